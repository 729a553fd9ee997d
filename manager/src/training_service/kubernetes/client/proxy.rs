//! PURE: the proxy through which a cluster is reached, as `kubectl` chooses it. The library compares `NO_PROXY` with the
//! proxy instead of the server, and refuses entries that it cannot read.

use core::net::IpAddr;

use hyper::Uri;

/// Returns the proxy for a server: that of its cluster in the kubeconfig, or the one in `HTTPS_PROXY`. `variable` returns
/// the value of an environment variable. The error names the source of a proxy that cannot be used.
pub(super) fn proxy_for(
    server: &Uri,
    own: Option<&str>,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<Option<Uri>, String> {
    if let Some(own) = own.filter(|own| !own.is_empty()) {
        return read_proxy(own, "its cluster's `proxy-url`").map(Some);
    }
    let either = |names: [&'static str; 2]| {
        names.into_iter().find_map(|name| Some((name, variable(name).filter(|it| !it.is_empty())?)))
    };
    let Some((name, proxy)) = either(["HTTPS_PROXY", "https_proxy"]) else { return Ok(None) };
    let exceptions = either(["NO_PROXY", "no_proxy"]).map(|(_, value)| value);
    if !is_proxied(server, exceptions.as_deref().unwrap_or_default()) {
        return Ok(None);
    }
    read_proxy(&proxy, name).map(Some)
}

/// Reads the address of a proxy. The message about a bad one omits the address, which may contain a password.
fn read_proxy(text: &str, source: &str) -> Result<Uri, String> {
    let text = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
    // With either scheme, the library leaves the resolution of names to the proxy.
    let text = text.replacen("socks5h://", "socks5://", 1);
    let proxy: Uri =
        text.parse().map_err(|problem| format!("{source} is not an address: {problem}"))?;
    match proxy.scheme_str() {
        Some("http" | "https" | "socks5") if proxy.host().is_some_and(|host| !host.is_empty()) => {
            Ok(proxy)
        }
        Some("http" | "https" | "socks5") => Err(format!("{source} names no host")),
        scheme => Err(format!(
            "{source} has the scheme `{}`; use http, https, socks5 or socks5h",
            scheme.unwrap_or_default()
        )),
    }
}

/// Returns whether a server is reached through the proxy in `HTTPS_PROXY`. As in `kubectl`, the exceptions are this
/// machine, servers without TLS, and the entries of `NO_PROXY` (hosts, domains, addresses, networks).
fn is_proxied(server: &Uri, no_proxy: &str) -> bool {
    let host = server.host().unwrap_or_default().trim_matches(['[', ']']).to_ascii_lowercase();
    let address: Option<IpAddr> = host.parse().ok();
    let is_loopback = host == "localhost" || address.is_some_and(|ip| ip.is_loopback());
    if server.scheme_str() != Some("https") || is_loopback {
        return false;
    }
    let port = server.port_u16().unwrap_or(443);
    !no_proxy.split(',').map(|entry| entry.trim().to_ascii_lowercase()).any(|entry| {
        if entry == "*" {
            return true;
        }
        if let (Some((network, bits)), Some(address)) = (entry.split_once('/'), address) {
            let (network, bits) = (network.parse::<IpAddr>(), bits.parse::<u32>());
            return network
                .is_ok_and(|network| bits.is_ok_and(|b| is_in_network(address, network, b)));
        }
        let (name, only_port) = split_port(&entry);
        let name = name.trim_start_matches('*').trim_start_matches('.');
        let is_domain = || host.strip_suffix(name).is_some_and(|start| start.ends_with('.'));
        !name.is_empty()
            && only_port.is_none_or(|only| only == port)
            && (host == name || address.is_none() && is_domain())
    })
}

/// Returns the host of an entry of `NO_PROXY`, and its port if it has one.
fn split_port(entry: &str) -> (&str, Option<u16>) {
    if let Some((host, rest)) = entry.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        return (host, rest.strip_prefix(':').and_then(|port| port.parse().ok()));
    }
    match entry.rsplit_once(':') {
        Some((name, port)) if !name.contains(':') => match port.parse() {
            Ok(port) => (name, Some(port)),
            Err(_) => (entry, None),
        },
        Some(_) | None => (entry, None),
    }
}

/// Returns whether an address belongs to a network.
fn is_in_network(address: IpAddr, network: IpAddr, bits: u32) -> bool {
    let differ = match (address, network) {
        (IpAddr::V4(a), IpAddr::V4(b)) => u128::from(a.to_bits() ^ b.to_bits()) << 96,
        (IpAddr::V6(a), IpAddr::V6(b)) => a.to_bits() ^ b.to_bits(),
        (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => return false,
    };
    differ.leading_zeros() >= bits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxy_is_used_for_remote_servers_without_an_exception() {
        #[rustfmt::skip]
        let table = [
            ("https://k8s.example.com",      "",                        true),
            ("http://k8s.example.com",       "",                        false),
            ("https://127.0.0.1:6443",       "",                        false),
            ("https://[::1]:6443",           "",                        false),
            ("https://localhost",            "",                        false),
            ("https://k8s.example.com",      "*",                       false),
            ("https://k8s.example.com",      "localhost, .Example.com", false),
            ("https://k8s.example.com",      "*.example.com",           false),
            ("https://k8s.example.com:6443", "example.com:6443",        false),
            ("https://k8s.example.com",      "example.com:6443",        true),
            ("https://k8s.example.com",      "example.com:443",         false),
            ("https://myexample.com",        "example.com",             true),
            ("https://10.1.2.3",             "10.0.0.0/8",              false),
            ("https://11.1.2.3",             "10.0.0.0/8,fd00::/8",     true),
            ("https://[fd00::7]",            "10.0.0.0/8,fd00::/8",     false),
            ("https://[fd00::7]:6443",       "[fd00::7]:6443",          false),
            ("https://[fd00::7]",            "fd00::7",                 false),
            ("https://10.1.2.3",             "10.1.2.3",                false),
            ("https://10.1.2.3",             "2.3,,/,0/x,169.254/16, ", true),
            ("https://10.1.2.3",             "0.0.0.0/0",               false),
        ];
        for (server, not, proxied) in table {
            assert_eq!(is_proxied(&server.parse().unwrap(), not), proxied, "{server} {not:?}");
        }
    }

    #[test]
    fn the_proxy_of_the_cluster_comes_before_that_of_the_environment() {
        let kubectl = "http://proxy:3128/";
        #[rustfmt::skip]
        let table = [
            (None,                                "",                   "localhost,", Ok(None)),
            (None,                                "http://proxy:3128",  "localhost,", Ok(Some(kubectl))),
            (None,                                "proxy:3128",         "",           Ok(Some(kubectl))),
            (None,                                "http://proxy:3128",  "proxy",      Ok(Some(kubectl))),
            (None,                                "http://proxy:3128",  "k8s",        Ok(None)),
            (Some(""),                            "http://proxy:3128",  "*",          Ok(None)),
            (Some("http://proxy:3128"),           "http://other",       "*",          Ok(Some(kubectl))),
            (Some("socks5h://127.0.0.1:1080"),    "",                   "127.0.0.1",  Ok(Some("socks5://127.0.0.1:1080/"))),
            (Some("ftp://proxy"),                 "",                   "",           Err("its cluster's `proxy-url` has the scheme `ftp`; ")),
            (Some("http://:secret@"),             "",                   "",           Err("its cluster's `proxy-url` ")),
            (None,                                "http://a b",         "",           Err("HTTPS_PROXY is not an address: ")),
        ];
        for (own, proxy, exceptions, expected) in table {
            // An empty variable does not hide that with the other spelling.
            let variable = |name: &str| match name {
                "HTTPS_PROXY" => Some(proxy.to_owned()),
                "NO_PROXY" => Some(String::new()),
                "no_proxy" => Some(exceptions.to_owned()),
                _ => None,
            };
            let found = proxy_for(&"https://k8s".parse().unwrap(), own, variable);
            match (found, expected) {
                (Ok(found), Ok(expected)) => {
                    assert_eq!(
                        found.map(|found| found.to_string()).as_deref(),
                        expected,
                        "{own:?} {proxy}"
                    );
                }
                (Err(problem), Err(expected)) => {
                    assert!(
                        problem.starts_with(expected) && !problem.contains("secret"),
                        "{problem}"
                    );
                }
                (found, expected) => panic!("{own:?} {proxy}: {found:?} instead of {expected:?}"),
            }
        }
    }
}
