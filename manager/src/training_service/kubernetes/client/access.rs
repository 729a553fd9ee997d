//! Locates the cluster, without connecting to it: through a named kubeconfig, `KUBECONFIG`, `~/.kube/config`, or the
//! pod that runs this program.

use std::net::IpAddr;
use std::path::PathBuf;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD as STANDARD;
use jiff::Timestamp;
use kube::config::{AuthInfo, Config, KubeConfigOptions, Kubeconfig, KubeconfigError};

use super::error::EXPIRY_FORMAT;
use super::{Access, Error, expiry};
use crate::util::errors::error_chain;

/// Returns the cluster's address and the credentials, and an error if the credentials have expired.
pub(super) async fn load_config(access: &Access) -> Result<(Config, Option<Error>), Error> {
    let options =
        KubeConfigOptions { context: access.context.clone(), ..KubeConfigOptions::default() };
    let Some((from, file)) = read_kubeconfig(access) else {
        if std::env::var_os("KUBERNETES_SERVICE_HOST").is_none() {
            return Err(Error::NoKubeconfig);
        }
        let from = "the pod's service account".to_owned();
        let config = Config::incluster();
        let config =
            config.map_err(|error| Error::Kubeconfig { from, message: error_chain(&error) })?;
        return Ok((config, None));
    };
    // Only the first line of a YAML error is used. The other lines show an excerpt of the file.
    let bad = |message: String| Error::Kubeconfig {
        from: from.clone(),
        message: message.lines().next().unwrap_or_default().to_owned(),
    };
    let mut file = file.map_err(|error| bad(error_chain(&error)))?;
    check_context(&file, access.context.as_deref()).map_err(bad)?;
    trim_tokens(&mut file).map_err(bad)?;
    let context = access.context.as_deref().or(file.current_context.as_deref());
    let own_proxy = has_own_proxy(&file, context);
    let stale = expired_since(&file, context);
    let mut config = Config::from_custom_kubeconfig(file, &options)
        .await
        .map_err(|error| bad(error_chain(&error)))?;
    // kube applies HTTPS_PROXY to every server, and compares NO_PROXY with the proxy's own name.
    if !own_proxy {
        let (scheme, host) = (config.cluster_url.scheme_str(), config.cluster_url.host());
        let not = ["NO_PROXY", "no_proxy"].iter().find_map(|name| std::env::var(name).ok());
        if !is_proxied(scheme, host.unwrap_or_default(), not.as_deref().unwrap_or_default()) {
            config.proxy_url = None;
        }
    }
    Ok((config, stale.map(|since| Error::CertificateExpired { from, since })))
}

/// Returns the context that the access data name, or else the current one. `None`: there is no kubeconfig, or it cannot
/// be used.
pub(super) fn chosen_context(access: &Access) -> Option<String> {
    let current = || read_kubeconfig(access)?.1.ok()?.current_context.filter(|it| !it.is_empty());
    access.context.clone().or_else(current)
}

/// Reads the kubeconfig and returns its origin with it. `None`: there is no kubeconfig.
fn read_kubeconfig(access: &Access) -> Option<(String, Result<Kubeconfig, KubeconfigError>)> {
    let path = match (&access.kubeconfig, std::env::var_os("KUBECONFIG")) {
        (Some(path), _) => path.clone(),
        (None, Some(paths)) if !paths.is_empty() => {
            let from = format!("KUBECONFIG ({})", paths.to_string_lossy());
            let read = Kubeconfig::from_env();
            return Some((from, read.and_then(|file| file.ok_or(KubeconfigError::FindPath))));
        }
        (None, _) => default_kubeconfig_path().filter(|path| path.exists())?,
    };
    Some((path.display().to_string(), Kubeconfig::read_from(path)))
}

/// Checks that the file has the context and its user. `wanted` is the context to use instead of the current one.
fn check_context(file: &Kubeconfig, wanted: Option<&str>) -> Result<(), String> {
    if let Some(wanted) = wanted
        && !file.contexts.iter().any(|context| context.name == wanted)
    {
        let has: Vec<&str> = file.contexts.iter().map(|context| context.name.as_str()).collect();
        let has = if has.is_empty() { "none".to_owned() } else { has.join(", ") };
        return Err(format!("it has no context `{wanted}`; its contexts are {has}"));
    }
    let current = file.current_context.as_deref().filter(|current| !current.is_empty());
    let context = wanted.or(current).ok_or(
        "it has no current context; name one with `context`, or `kubectl config use-context`",
    )?;
    missing_user(file, context).map_or(Ok(()), |user| {
        Err(format!("its context `{context}` names the user `{user}`, which it does not contain"))
    })
}

/// Returns the expiry time of an expired certificate that is the only credential of a context's user. (Reading a file
/// makes its paths absolute.)
fn expired_since(file: &Kubeconfig, context: Option<&str>) -> Option<String> {
    let context = file.contexts.iter().find(|known| Some(known.name.as_str()) == context);
    let user = context?.context.as_ref()?.user.as_ref()?;
    let user = file.auth_infos.iter().find(|known| known.name == *user)?.auth_info.as_ref()?;
    let others = user.token_file.is_some() || user.exec.is_some() || user.username.is_some();
    if others || user.auth_provider.is_some() || token_of(user).is_some() {
        return None;
    }
    let pem = match (&user.client_certificate_data, &user.client_certificate) {
        (Some(data), _) => STANDARD.decode(data).ok()?,
        (None, Some(path)) => std::fs::read(path).ok()?,
        (None, None) => return None,
    };
    let at = expiry::expiry_time(&pem).filter(|at| *at < Timestamp::now())?;
    Some(at.strftime(EXPIRY_FORMAT).to_string())
}

/// Removes the line break at the end of a token. `kubectl` does the same, but the library does not. A token file
/// without a line break stays a file, because a program may renew it. `Err`: the token contains an invalid character.
fn trim_tokens(file: &mut Kubeconfig) -> Result<(), String> {
    for known in &mut file.auth_infos {
        let Some(user) = &mut known.auth_info else { continue };
        // The library reports a file that cannot be read.
        let from_file = |path: &String| std::fs::read_to_string(path).ok();
        let token = match &user.token {
            Some(_) => token_of(user),
            None => user.token_file.as_ref().and_then(from_file).filter(|text| text.trim() != text),
        };
        let Some(token) = token else { continue };
        let token = token.trim();
        if token.contains(|c: char| !c.is_ascii_graphic()) {
            return Err(format!(
                "the token of the user `{}` has an invalid character, such as a line break",
                known.name
            ));
        }
        user.token = Some(token.to_owned().into());
    }
    Ok(())
}

/// Returns the token in a user's entry. (The library reveals it only to a serialiser.)
fn token_of(user: &AuthInfo) -> Option<String> {
    Some(serde_json::to_value(user).ok()?.get("token")?.as_str()?.to_owned())
}

/// Returns the user that a context names and the file lacks.
fn missing_user(file: &Kubeconfig, context: &str) -> Option<String> {
    let context = file.contexts.iter().find(|known| known.name == context);
    let user = context?.context.as_ref()?.user.as_ref().filter(|user| !user.is_empty())?;
    (!file.auth_infos.iter().any(|known| known.name == *user)).then(|| user.clone())
}

/// Returns whether a context's cluster has its own proxy.
fn has_own_proxy(file: &Kubeconfig, context: Option<&str>) -> bool {
    let context = file.contexts.iter().find(|known| Some(known.name.as_str()) == context);
    let cluster = context.and_then(|named| Some(named.context.as_ref()?.cluster.as_str()));
    let cluster = file.clusters.iter().find(|known| Some(known.name.as_str()) == cluster);
    let proxy = cluster.and_then(|named| named.cluster.as_ref()?.proxy_url.as_deref());
    proxy.is_some_and(|proxy| !proxy.is_empty())
}

/// Returns whether a server is reached through the proxy in `HTTPS_PROXY`. As in `kubectl`, the exceptions are this
/// machine, servers without TLS, and the entries of `NO_PROXY` (hosts, domains, addresses, networks).
fn is_proxied(scheme: Option<&str>, host: &str, no_proxy: &str) -> bool {
    let host = host.trim_start_matches('[').trim_end_matches(']').to_ascii_lowercase();
    let address: Option<IpAddr> = host.parse().ok();
    if scheme != Some("https") || host == "localhost" || address.is_some_and(|ip| ip.is_loopback())
    {
        return false;
    }
    !no_proxy.split(',').map(|entry| entry.trim().to_ascii_lowercase()).any(|entry| {
        if entry == "*" {
            return true;
        }
        if let (Some((network, bits)), Some(address)) = (entry.split_once('/'), address) {
            let (network, bits) = (network.parse::<IpAddr>(), bits.parse::<u32>());
            return network
                .is_ok_and(|network| bits.is_ok_and(|b| is_in_network(address, network, b)));
        }
        let name = entry.trim_start_matches('*').trim_start_matches('.');
        let name = match name.rsplit_once(':') {
            Some((name, port)) if !name.contains(':') && port.parse::<u16>().is_ok() => name,
            Some(_) | None => name,
        };
        let domain = || host.strip_suffix(name).is_some_and(|start| start.ends_with('.'));
        !name.is_empty() && (host == name || address.is_none() && domain())
    })
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

fn default_kubeconfig_path() -> Option<PathBuf> {
    std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".kube").join("config"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_read_as_kubectl_reads_it_or_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        std::fs::write(&path, "from-file\n").unwrap();
        let path = path.display();
        for (user, expected) in [
            ("{token: \"abc\\n\"}".to_owned(), Some("abc")),
            (format!("{{tokenFile: '{path}'}}"), Some("from-file")),
            ("{token: \"a\\nb\"}".to_owned(), None),
            ("{token: \"a b\"}".to_owned(), None),
        ] {
            let text = format!(
                "users: [{{name: u, user: {user}}}]\ncontexts: [{{name: c, context: {{cluster: k, user: v}}}}]"
            );
            let mut file = Kubeconfig::from_yaml(&text).unwrap();
            let good = trim_tokens(&mut file).is_ok();
            assert_eq!(good, expected.is_some(), "{user}");
            let token = token_of(file.auth_infos[0].auth_info.as_ref().unwrap()).filter(|_| good);
            assert_eq!(token.as_deref(), expected, "{user}");
            assert_eq!(missing_user(&file, "c").as_deref(), Some("v"));
        }
    }

    #[test]
    fn a_proxy_is_used_for_remote_servers_without_an_exception() {
        #[rustfmt::skip]
        let table = [
            ("https", "k8s.example.com", "",                        true),
            ("http",  "k8s.example.com", "",                        false),
            ("https", "127.0.0.1",       "",                        false),
            ("https", "[::1]",           "",                        false),
            ("https", "localhost",       "",                        false),
            ("https", "k8s.example.com", "*",                       false),
            ("https", "k8s.example.com", "localhost, .Example.com", false),
            ("https", "k8s.example.com", "*.example.com",           false),
            ("https", "k8s.example.com", "example.com:6443",        false),
            ("https", "myexample.com",   "example.com",             true),
            ("https", "10.1.2.3",        "10.0.0.0/8",              false),
            ("https", "11.1.2.3",        "10.0.0.0/8,fd00::/8",     true),
            ("https", "[fd00::7]",       "10.0.0.0/8,fd00::/8",     false),
            ("https", "10.1.2.3",        "10.1.2.3",                false),
            ("https", "10.1.2.3",        "2.3,,/,0/x, ",            true),
            ("https", "10.1.2.3",        "0.0.0.0/0",               false),
        ];
        for (scheme, host, not, proxied) in table {
            assert_eq!(is_proxied(Some(scheme), host, not), proxied, "{scheme}://{host} {not:?}");
        }
    }
}
