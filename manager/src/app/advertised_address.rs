//! The address under which trials on other machines reach the manager: the user's choice, or a guess.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _, UdpSocket};

/// The manager's address for trials.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AdvertisedAddress {
    /// The host name or address that the manager's certificate must contain.
    pub(super) host: Option<String>,
    /// The base URL.
    pub(super) url: String,
}

/// The reason for which the manager's address for trials cannot be determined.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadAddress {
    /// The advertised address is invalid.
    #[error("--advertise {given}: expected a host, host:port, or a URL with http:// or https://")]
    Invalid {
        /// The advertised address.
        given: String,
    },
    /// No address is configured, and none can be guessed.
    #[error(
        "this machine has no network address that pods could reach; set an address for pods with --advertise \
         (or `advertise`)"
    )]
    Unknown,
}

/// Addresses that belong to no network (RFC 5737, RFC 3849). The route to them is the default route.
const DISTANT_ADDRESSES: [&str; 2] = ["http://203.0.113.1:9", "http://[2001:db8::1]:9"];

/// Determines the address for trials. A URL is used unchanged, because a proxy is in front of the manager. A host,
/// with or without a port, is the manager itself. `server` is the host near which the trials run, if they do not run
/// on this machine.
pub(super) fn advertised_address(
    advertise: Option<&str>,
    listener: SocketAddr,
    encrypted: bool,
    server: Option<&str>,
) -> Result<AdvertisedAddress, BadAddress> {
    let scheme = if encrypted { "https" } else { "http" };
    let bad = |given: &str| BadAddress::Invalid { given: given.to_owned() };
    if let Some(given) = advertise {
        let given = given.trim().trim_end_matches('/');
        if let Some((scheme, rest)) = given.split_once("://") {
            let place = rest.split(['/', '?', '#']).next().and_then(split_host_port);
            let good = matches!(scheme, "http" | "https") && place.is_some();
            return if good {
                Ok(AdvertisedAddress { host: None, url: given.to_owned() })
            } else {
                Err(bad(given))
            };
        }
        let (host, port) = split_host_port(given).ok_or_else(|| bad(given))?;
        let port = port.unwrap_or(listener.port());
        return Ok(AdvertisedAddress {
            url: format!("{scheme}://{}:{port}", bracket_ipv6(&host)),
            host: Some(host),
        });
    }
    let ip = listener.ip();
    let ip = match server {
        Some(server) if ip.is_unspecified() => {
            // A loopback address of a cluster (kind, k3d, a tunnel) does not show how its pods reach the manager,
            // because pods have their own loopback interfaces.
            let known = [server].into_iter().chain(DISTANT_ADDRESSES).filter_map(own_address);
            known.into_iter().find(|ip| !ip.is_loopback()).ok_or(BadAddress::Unknown)?
        }
        Some(_) | None => ip,
    };
    let host = ip.to_string();
    let url = format!("{scheme}://{}:{}", bracket_ipv6(&host), listener.port());
    Ok(AdvertisedAddress { host: Some(host), url })
}

/// Returns the default address to listen on. Trials on this machine need only the loopback interface; other trials
/// run near `server`.
pub(super) fn listen_on(server: Option<&str>) -> &'static str {
    match server {
        None => "127.0.0.1",
        // In an IPv6-only cluster, the pods receive an IPv6 address. On most systems, `::` also accepts IPv4.
        Some(server) if is_ipv6(server) => "::",
        Some(_) => "0.0.0.0",
    }
}

/// Returns whether this machine reaches a server by IPv6.
fn is_ipv6(server: &str) -> bool {
    own_address(server).is_some_and(|ip| ip.is_ipv6())
}

/// Splits a text into host and port.
fn split_host_port(given: &str) -> Option<(String, Option<u16>)> {
    let host = |text: &str| {
        let allowed = |c: char| c.is_ascii_alphanumeric() || "-._:".contains(c);
        (!text.is_empty() && text.chars().all(allowed)).then(|| text.to_owned())
    };
    if let Some(rest) = given.strip_prefix('[') {
        let (inner, rest) = rest.split_once(']')?;
        let port = match rest {
            "" => None,
            rest => Some(rest.strip_prefix(':')?.parse().ok()?),
        };
        return Some((host(inner)?, port));
    }
    match given.split_once(':') {
        // An IPv6 address without brackets.
        Some((_, rest)) if rest.contains(':') => Some((host(given)?, None)),
        Some((name, port)) => Some((host(name)?, Some(port.parse().ok()?))),
        None => Some((host(given)?, None)),
    }
}

fn bracket_ipv6(host: &str) -> String {
    if host.contains(':') { format!("[{host}]") } else { host.to_owned() }
}

/// Returns the address of this machine on the route to a server. Nothing is sent: connecting a datagram socket only
/// selects the route.
fn own_address(url: &str) -> Option<IpAddr> {
    let (scheme, rest) = url.split_once("://")?;
    let (host, port) = split_host_port(rest.split('/').next()?)?;
    let port = port.unwrap_or(if scheme == "http" { 80 } else { 443 });
    let to = (host.as_str(), port).to_socket_addrs().ok()?.next()?;
    let any: IpAddr = match to {
        SocketAddr::V4(_) => std::net::Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect(to).ok()?;
    socket.local_addr().ok().map(|address| address.ip()).filter(|ip| !ip.is_unspecified())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_advertised_address_is_a_host_or_a_url() {
        #[rustfmt::skip]
        let table = [
            (Some("10.0.0.7"),          "0.0.0.0:8080",   Some("https://10.0.0.7:8080")),
            (Some("10.0.0.7:30080"),    "0.0.0.0:8080",   Some("https://10.0.0.7:30080")),
            (Some("manager.lab.svc:80"), "127.0.0.1:8080", Some("http://manager.lab.svc:80")),
            (Some("[fd00::1]:9"),       "[::]:8080",      Some("https://[fd00::1]:9")),
            (Some("fd00::1"),           "[::]:8080",      Some("https://[fd00::1]:8080")),
            (Some("https://m.example/tk/"), "0.0.0.0:8080", Some("https://m.example/tk")),
            (Some("http://m.example"),  "0.0.0.0:8080",   Some("http://m.example")),
            (Some("ftp://m.example"),   "0.0.0.0:8080",   None),
            (Some("http://:80"),        "0.0.0.0:8080",   None),
            (Some("http://m.example:x/"), "0.0.0.0:8080", None),
            (Some("m.example:port"),    "0.0.0.0:8080",   None),
            (Some("two words"),         "0.0.0.0:8080",   None),
            (Some(""),                  "0.0.0.0:8080",   None),
            (None,                      "127.0.0.1:81",   Some("http://127.0.0.1:81")),
            (None,                      "10.0.0.9:81",    Some("https://10.0.0.9:81")),
        ];
        for (given, listener, url) in table {
            let listener: SocketAddr = listener.parse().unwrap();
            let encrypted = !listener.ip().is_loopback();
            let found =
                advertised_address(given, listener, encrypted, Some("https://10.1.1.1:6443"));
            assert_eq!(
                found.ok().map(|address| address.url).as_deref(),
                url,
                "{given:?} {listener}"
            );
        }
    }

    #[test]
    fn the_ip_version_of_a_server_follows_from_its_address() {
        for (server, ipv6) in [
            ("http://127.0.0.1:6443", false),
            ("https://[::1]:6443/", true),
            ("https://no-such-host.invalid", false),
        ] {
            // On a machine without IPv6, no server is reached by IPv6.
            let ipv6 = ipv6 && std::net::UdpSocket::bind("[::1]:0").is_ok();
            assert_eq!(is_ipv6(server), ipv6, "{server}");
        }
    }

    #[test]
    fn the_default_address_is_that_of_the_route_to_the_cluster() {
        let guess = |server| advertised_address(None, "0.0.0.0:80".parse().unwrap(), true, server);
        // Pods have their own loopback interfaces, so they cannot use that of a cluster on this machine.
        match guess(Some("http://127.0.0.1:6443")) {
            Ok(address) => {
                let ip: IpAddr = address.host.unwrap().parse().unwrap();
                assert!(!ip.is_loopback() && !ip.is_unspecified(), "{ip}");
                assert_eq!(address.url, format!("https://{}:80", bracket_ipv6(&ip.to_string())));
            }
            // This machine has no network.
            Err(error) => assert_eq!(error, BadAddress::Unknown),
        }
        assert_eq!(
            guess(None).unwrap().url,
            "https://0.0.0.0:80",
            "the trials run on this machine"
        );
    }
}
