//! The address under which trials on other machines reach the manager: the user's, or a guess.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _, UdpSocket};

/// The manager's address and certificate as trials get them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AdvertisedAddress {
    /// Host name or address, where the manager's certificate is to hold it.
    pub(super) host: Option<String>,
    /// The base URL.
    pub(super) url: String,
}

/// The reason that it is not known where trials reach the manager.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadAddress {
    /// An advertised address that is none.
    #[error("--advertise {given}: expected a host, host:port, or a URL with http:// or https://")]
    Given {
        /// The value that was given.
        given: String,
    },
    /// Nothing was given, and there is nothing to guess from.
    #[error(
        "this machine has no network address that pods could reach; say with --advertise (or `advertise`) \
         which one they are to use"
    )]
    Unknown,
}

/// An address far away, of those that belong to no network (RFC 5737, RFC 3849): the way there is the way out.
const FAR: [&str; 2] = ["http://203.0.113.1:9", "http://[2001:db8::1]:9"];

/// Works out the address for trials. A URL is taken as it is: a proxy stands in front of the manager. A host, with or
/// without a port, is the manager itself. `server` is the host that trials are near to, if they are not on this
/// machine.
pub(super) fn told(
    advertise: Option<&str>,
    listener: SocketAddr,
    encrypted: bool,
    server: Option<&str>,
) -> Result<AdvertisedAddress, BadAddress> {
    let scheme = if encrypted { "https" } else { "http" };
    let bad = |given: &str| BadAddress::Given { given: given.to_owned() };
    if let Some(given) = advertise {
        let given = given.trim().trim_end_matches('/');
        if let Some((scheme, rest)) = given.split_once("://") {
            let place = rest.split(['/', '?', '#']).next().and_then(split);
            let good = matches!(scheme, "http" | "https") && place.is_some();
            return if good {
                Ok(AdvertisedAddress { host: None, url: given.to_owned() })
            } else {
                Err(bad(given))
            };
        }
        let (host, port) = split(given).ok_or_else(|| bad(given))?;
        let port = port.unwrap_or(listener.port());
        return Ok(AdvertisedAddress {
            url: format!("{scheme}://{}:{port}", bracketed(&host)),
            host: Some(host),
        });
    }
    let ip = listener.ip();
    let ip = match server {
        Some(server) if ip.is_unspecified() => {
            // A cluster that is reached over the loopback interface (kind, k3d, a tunnel) says nothing of how its pods
            // reach the manager: they have a loopback interface of their own.
            let known = [server].into_iter().chain(FAR).filter_map(own_address);
            known.into_iter().find(|ip| !ip.is_loopback()).ok_or(BadAddress::Unknown)?
        }
        Some(_) | None => ip,
    };
    let host = ip.to_string();
    let url = format!("{scheme}://{}:{}", bracketed(&host), listener.port());
    Ok(AdvertisedAddress { host: Some(host), url })
}

/// Returns the address to listen on where the user names none. Trials on this machine need no more than the loopback
/// interface; those elsewhere are near to `server`.
pub(super) fn listen_on(server: Option<&str>) -> &'static str {
    match server {
        None => "127.0.0.1",
        // In a cluster of IPv6 alone that is the address that pods are told. Most systems take IPv4 there, too.
        Some(server) if is_ipv6(server) => "::",
        Some(_) => "0.0.0.0",
    }
}

/// Returns whether this machine reaches a server by IPv6.
fn is_ipv6(server: &str) -> bool {
    own_address(server).is_some_and(|ip| ip.is_ipv6())
}

/// Host and port.
fn split(given: &str) -> Option<(String, Option<u16>)> {
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

fn bracketed(host: &str) -> String {
    if host.contains(':') { format!("[{host}]") } else { host.to_owned() }
}

/// The address of this machine on the way to a server. Nothing is sent: a datagram socket is only told where
/// it would send.
fn own_address(url: &str) -> Option<IpAddr> {
    let (scheme, rest) = url.split_once("://")?;
    let (host, port) = split(rest.split('/').next()?)?;
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
            let found = told(given, listener, encrypted, Some("https://10.1.1.1:6443"));
            assert_eq!(found.ok().map(|told| told.url).as_deref(), url, "{given:?} {listener}");
        }
    }

    #[test]
    fn a_server_is_reached_as_its_address_says() {
        for (server, ipv6) in [
            ("http://127.0.0.1:6443", false),
            ("https://[::1]:6443/", true),
            ("https://no-such-host.invalid", false),
        ] {
            // On a machine without IPv6 none is.
            let ipv6 = ipv6 && std::net::UdpSocket::bind("[::1]:0").is_ok();
            assert_eq!(is_ipv6(server), ipv6, "{server}");
        }
    }

    #[test]
    fn the_default_address_is_this_machines_on_the_way_to_the_cluster() {
        let guess = |server| told(None, "0.0.0.0:80".parse().unwrap(), true, server);
        // Pods have a loopback interface of their own, so that of a cluster on this machine helps none.
        match guess(Some("http://127.0.0.1:6443")) {
            Ok(told) => {
                let ip: IpAddr = told.host.unwrap().parse().unwrap();
                assert!(!ip.is_loopback() && !ip.is_unspecified(), "{ip}");
                assert_eq!(told.url, format!("https://{}:80", bracketed(&ip.to_string())));
            }
            // On a machine without any network.
            Err(error) => assert_eq!(error, BadAddress::Unknown),
        }
        assert_eq!(guess(None).unwrap().url, "https://0.0.0.0:80", "trials are on this machine");
    }
}
