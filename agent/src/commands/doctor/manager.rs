//! The checks of the connection to the manager, hop by hop.

use std::error::Error as StdError;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use reqwest::header::{CONTENT_TYPE, DATE};
use reqwest::{Client, StatusCode, Url};
use serde::Deserialize;
use tokio::net::{TcpStream, lookup_host};
use tokio::time::{Instant, timeout};

use super::{Check, CheckState};
use crate::delivery::dialect::native::REPORTS_PATH;
use crate::delivery::{LOCAL_BASE, LocalClient, ManagerAddress};
use crate::http::client;
use crate::util::clock::{Clock, SystemClock};
use crate::util::errors::chain;

/// The maximum time for a hop.
const HOP_TIMEOUT: Duration = Duration::from_secs(5);
/// The allowed difference between the clocks, in milliseconds.
const CLOCK_TOLERANCE_MS: i64 = 5_000;
/// The hops, in order.
const HOP_NAMES: [&str; 7] = ["address", "name", "route", "TLS", "manager", "clock", "token"];

/// The manager and files to check.
#[derive(Debug, Clone)]
pub(super) struct ManagerSpec {
    pub(super) address: Option<ManagerAddress>,
    pub(super) token_file: Option<PathBuf>,
    pub(super) ca_file: Option<PathBuf>,
}

/// Checks the hops up to the first failure. Returns one check per hop.
pub(super) async fn check(spec: &ManagerSpec) -> Vec<Check> {
    let Some(address) = &spec.address else {
        return vec![Check::skipped("manager", "not configured; set --manager")];
    };
    let mut checks = Vec::new();
    check_hops(address, spec, &mut checks).await;
    for hop in &HOP_NAMES[checks.len()..] {
        checks.push(Check::skipped(hop, "not checked"));
    }
    checks
}

/// Adds a check per hop, and stops after a failure.
async fn check_hops(
    address: &ManagerAddress,
    spec: &ManagerSpec,
    checks: &mut Vec<Check>,
) -> Option<()> {
    let mut pass = |check: Check| {
        let passed = check.state != CheckState::Fail;
        checks.push(check);
        passed.then_some(())
    };
    if let Some(socket) = address.socket() {
        return check_local_hops(&socket, spec, pass).await;
    }
    let base = match parse_address(address) {
        Ok(base) => base,
        Err(check) => return pass(check),
    };
    let (host, port) = (base.host_str().unwrap_or_default(), base.port_or_known_default());
    let port = port.unwrap_or(80);
    pass(Check::ok("address", base.as_str().trim_end_matches('/')))?;

    let plain = host.trim_start_matches('[').trim_end_matches(']');
    let found = timeout(HOP_TIMEOUT, lookup_host((plain, port))).await;
    let found = found.map_err(io::Error::from).flatten().map(Iterator::collect::<Vec<_>>);
    let check = check_name(plain, &found);
    pass(check)?;
    let addresses = found.unwrap_or_default();

    let began = Instant::now();
    let connected = connect(&addresses).await;
    pass(check_route(port, began.elapsed(), connected))?;

    let client = match client::build(spec.ca_file.as_deref()) {
        Ok(client) => client,
        Err(error) => {
            let advice = "name a PEM file with the manager's certificate authority";
            return pass(Check::fail("TLS", chain(&error), advice));
        }
    };
    let health = fetch_health(&client, &base).await;
    pass(check_tls(base.scheme(), &health))?;
    pass(check_manager(&health))?;
    pass(check_clock(health.ok().and_then(|health| health.date_ms), SystemClock.now_ms()))?;
    pass(probe_token(spec.token_file.as_deref(), &client, &base).await)
}

/// Checks a manager on this machine, which is reached only over its socket.
async fn check_local_hops(
    socket: &Path,
    spec: &ManagerSpec,
    mut pass: impl FnMut(Check) -> Option<()>,
) -> Option<()> {
    pass(Check::ok("address", socket.display().to_string()))?;
    pass(Check::ok("name", "not needed for a socket"))?;
    let base = Url::parse(LOCAL_BASE).expect("it is a URL");
    let local = match LocalClient::new(socket) {
        Ok(local) => local,
        Err(error) => return pass(Check::fail("route", chain(&error), "check the folder")),
    };
    let began = Instant::now();
    let health = fetch_health(local.client(), &base).await;
    pass(match &health {
        Err(error) if error.is_connect() => Check::fail(
            "route",
            chain(error),
            "no process listens there: is the manager running? `trial-manager resume` starts it again",
        ),
        _ => Check::ok("route", format!("connected in {} ms", began.elapsed().as_millis())),
    })?;
    pass(Check::ok("TLS", "not used"))?;
    pass(check_manager(&health))?;
    pass(check_clock(health.ok().and_then(|health| health.date_ms), SystemClock.now_ms()))?;
    pass(probe_token(spec.token_file.as_deref(), local.client(), &base).await)
}

fn parse_address(address: &ManagerAddress) -> Result<Url, Check> {
    let advice = "give the address as http://HOST:PORT or https://HOST:PORT";
    let text = match address.url() {
        Ok(text) => text,
        Err(error) => {
            let advice = "give the file with the manager's address, manager.url";
            return Err(Check::fail("address", chain(&error), advice));
        }
    };
    match Url::parse(&text) {
        Ok(url) if ["http", "https"].contains(&url.scheme()) && url.has_host() => Ok(url),
        Ok(_) => {
            Err(Check::fail("address", format!("{text:?} is not a manager's address"), advice))
        }
        Err(error) => Err(Check::fail("address", format!("{text:?}: {error}"), advice)),
    }
}

fn check_name(host: &str, found: &io::Result<Vec<SocketAddr>>) -> Check {
    match found {
        Ok(_) if host.parse::<IpAddr>().is_ok() => {
            Check::ok("name", "not needed for an IP address")
        }
        Ok(found) if !found.is_empty() => {
            let found: Vec<_> = found.iter().map(|address| address.ip().to_string()).collect();
            Check::ok("name", format!("{host} is {}", found.join(", ")))
        }
        Ok(_) => Check::fail("name", format!("{host} has no address"), NAME_ADVICE),
        Err(error) => Check::fail("name", format!("{host} is not found: {error}"), NAME_ADVICE),
    }
}

const NAME_ADVICE: &str =
    "check the spelling; in a pod, check the service's namespace and /etc/resolv.conf";

async fn connect(addresses: &[SocketAddr]) -> io::Result<SocketAddr> {
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for address in addresses {
        match timeout(HOP_TIMEOUT, TcpStream::connect(address)).await {
            Ok(Ok(_)) => return Ok(*address),
            Ok(Err(error)) => last = error,
            Err(late) => last = late.into(),
        }
    }
    Err(last)
}

fn check_route(port: u16, took: Duration, connected: io::Result<SocketAddr>) -> Check {
    match connected {
        Ok(address) => Check::ok("route", format!("{address} in {} ms", took.as_millis())),
        Err(error) => {
            let advice = if error.kind() == io::ErrorKind::ConnectionRefused {
                "no process listens there: does the manager run, with this port, and not only on 127.0.0.1?"
            } else if error.kind() == io::ErrorKind::TimedOut {
                "a firewall or a network policy may be in between"
            } else {
                "check the route to that machine"
            };
            Check::fail("route", format!("port {port} cannot be reached: {error}"), advice)
        }
    }
}

/// The answer to `GET /healthz`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct HealthAnswer {
    status: StatusCode,
    body: Vec<u8>,
    date_ms: Option<i64>,
}

async fn fetch_health(client: &Client, base: &Url) -> Result<HealthAnswer, reqwest::Error> {
    let url = format!("{}/healthz", base.as_str().trim_end_matches('/'));
    let response = client.get(url).timeout(HOP_TIMEOUT).send().await?;
    let date = response.headers().get(DATE).and_then(|date| date.to_str().ok());
    let date_ms = date.and_then(|date| httpdate::parse_http_date(date).ok()).and_then(|date| {
        let since = date.duration_since(std::time::UNIX_EPOCH).ok()?;
        i64::try_from(since.as_millis()).ok()
    });
    let status = response.status();
    Ok(HealthAnswer { status, body: response.bytes().await?.to_vec(), date_ms })
}

fn check_tls(scheme: &str, health: &Result<HealthAnswer, reqwest::Error>) -> Check {
    if scheme == "http" {
        return Check::ok("TLS", "not used");
    }
    let advice = "does this port use TLS? If not, use an http:// address";
    let Err(error) = health else { return Check::ok("TLS", "the certificate is valid") };
    match tls_error(error) {
        Some(rustls::Error::InvalidCertificate(why)) => {
            let advice = if *why == rustls::CertificateError::UnknownIssuer {
                "give the authority that signed the manager's certificate with --ca-file"
            } else {
                "the certificate must be valid now, and for the name in the address"
            };
            Check::fail("TLS", format!("the certificate is not trusted: {why}"), advice)
        }
        Some(error) => Check::fail("TLS", error.to_string(), advice),
        None if error.is_connect() || error.is_timeout() => {
            Check::fail("TLS", chain(error), advice)
        }
        None => Check::ok("TLS", "the certificate is valid"),
    }
}

/// Returns the TLS library's error, wherever it is in the chain.
fn tls_error<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a rustls::Error> {
    let mut next = Some(error);
    while let Some(error) = next {
        // An I/O error does not return the error that it wraps as its source.
        let wrapped = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        let inner: Option<&(dyn StdError + 'static)> = match wrapped {
            Some(wrapped) => Some(wrapped),
            None => error.source(),
        };
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        next = inner;
    }
    None
}

/// The body of an answer to `GET /healthz`.
#[derive(Debug, Deserialize)]
struct HealthBody {
    status: String,
    version: String,
    reason: Option<String>,
}

fn check_manager(health: &Result<HealthAnswer, reqwest::Error>) -> Check {
    let advice = "another server answers there: check the port, and any proxies";
    let health = match health {
        Ok(health) => health,
        Err(error) => return Check::fail("manager", chain(error), advice),
    };
    let Ok(HealthBody { status, version, reason }) = serde_json::from_slice(&health.body) else {
        let finding = format!("the server ({}) is not a manager", health.status);
        return Check::fail("manager", finding, advice);
    };
    let own = env!("CARGO_PKG_VERSION");
    let finding = format!("{status}, version {version}; this is {own}");
    if status != "ok" {
        let finding = format!("{finding}; {}", reason.unwrap_or_default());
        return Check::warn(
            "manager",
            finding,
            "check the manager; reports wait until it recovers",
        );
    }
    // Only a real batch would show that the protocols match. The same release always matches.
    if version != own {
        let advice = "if the manager refuses reports (409), rebuild the trial image";
        return Check::warn("manager", finding, advice);
    }
    Check::ok("manager", finding)
}

fn check_clock(manager_ms: Option<i64>, own_ms: i64) -> Check {
    let Some(manager_ms) = manager_ms else {
        return Check::skipped("clock", "the manager sends no time");
    };
    let apart = own_ms - manager_ms;
    if apart.abs() > CLOCK_TOLERANCE_MS {
        let word = if apart > 0 { "ahead of" } else { "behind" };
        let finding = format!("{} s {word} the manager's", apart.abs() / 1000);
        return Check::warn("clock", finding, "times in the timeline will be off; set the clock");
    }
    Check::ok("clock", "matches the manager's")
}

/// Sends a body that no manager can read. A manager answers 400 to a valid token, and refuses an invalid one earlier.
async fn probe_token(file: Option<&Path>, client: &Client, base: &Url) -> Check {
    let token = match file.map(std::fs::read_to_string) {
        None => None,
        Some(Ok(token)) => Some(token.trim().to_owned()),
        Some(Err(error)) => {
            let shown = file.unwrap_or(Path::new("")).display();
            let advice = "mount the trial's token there, readable for this user";
            return Check::fail("token", format!("cannot read {shown}: {error}"), advice);
        }
    };
    let url = format!("{}{REPORTS_PATH}", base.as_str().trim_end_matches('/'));
    let mut request =
        client.post(url).header(CONTENT_TYPE, "application/json").body("{}").timeout(HOP_TIMEOUT);
    if let Some(token) = &token {
        request = request.bearer_auth(token);
    }
    match request.send().await {
        Ok(response) => check_token(token.is_some(), response.status()),
        Err(error) => Check::fail("token", chain(&error), "try again; the manager answered before"),
    }
}

fn check_token(given: bool, status: StatusCode) -> Check {
    match (status, given) {
        (StatusCode::BAD_REQUEST, true) => {
            Check::ok("token", "valid; its trial is checked at the first report")
        }
        (StatusCode::BAD_REQUEST, false) => Check::ok("token", "not required"),
        (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN, true) => Check::fail(
            "token",
            format!("refused ({status})"),
            "the token is old or another manager's; use the trial's own",
        ),
        (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN, false) => Check::warn(
            "token",
            "the manager requires a token",
            "set --token-file; the trials' directories contain the token",
        ),
        (status, _) => Check::warn(
            "token",
            format!("the answer was {status}"),
            "the manager may have another version, or be busy; try again",
        ),
    }
}

#[cfg(test)]
mod tests;
