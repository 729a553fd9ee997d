//! The manager's endpoint: its URL, and its certificate if connections are encrypted.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use super::advertised_address::AdvertisedAddress;
use super::{Error, Settings, advertised_address};
use crate::api::access::auth::Reach;
use crate::api::server::tls::Tls;
use crate::util::files::create_private_folder;

/// A certificate of the user. The files are read again when they change.
#[derive(Debug)]
pub struct UserCertificate {
    /// The certificate and its chain, in PEM form.
    pub certificate: PathBuf,
    /// The private key, in PEM form.
    pub key: PathBuf,
    /// The authority with which agents verify the certificate. `None` for the public authorities.
    pub ca: Option<PathBuf>,
}

/// The manager's endpoint.
pub(super) struct Endpoint {
    /// The encryption. `None` for unencrypted connections.
    pub(super) tls: Option<Tls>,
    /// The only authority that agents trust. `None` for the public authorities.
    pub(super) ca_file: Option<PathBuf>,
    /// The base URL for agents on this machine.
    pub(super) url: String,
    /// The base URL for agents on other machines.
    pub(super) advertised_url: String,
    /// The clients that can reach the manager.
    pub(super) reach: Reach,
}

impl Endpoint {
    pub(super) fn build(
        settings: &Settings,
        address: SocketAddr,
        authority: &Path,
        advertise: Option<&str>,
        server: Option<&str>,
    ) -> Result<Self, Error> {
        let encrypted = settings.certificate.is_some() || !address.ip().is_loopback();
        let advertised =
            advertised_address::advertised_address(advertise, address, encrypted, server)?;
        // If a URL is configured, the proxy in front of the manager has its own certificate.
        let trusts_own_authority = advertised.host.is_some() || settings.certificate.is_some();
        // Connections that leave the machine are encrypted; those over the loopback interface do not leave it.
        let (tls, ca_file) = match &settings.certificate {
            Some(own) => {
                let tls = Tls::from_files(&own.certificate, &own.key)?;
                let absolute = |path: &PathBuf| {
                    std::path::absolute(path)
                        .map_err(|source| Error::DataDir { path: path.clone(), source })
                };
                (Some(tls), own.ca.as_ref().map(absolute).transpose()?)
            }
            None if !encrypted => (None, None),
            None => {
                let names = [
                    Some(address.ip().to_string()),
                    settings.host.clone(),
                    advertised.host.clone(),
                ];
                (Some(own_authority(authority, names)?), Some(authority.join("ca.pem")))
            }
        };
        let reach = if tls.is_some() { Reach::Network } else { Reach::Machine };
        let given = advertise.filter(|_| server.is_none()).map(|_| &advertised);
        let url = url_here(given, address, tls.is_some());
        let ca_file = ca_file.filter(|_| trusts_own_authority || server.is_none());
        Ok(Self { tls, ca_file, url, advertised_url: advertised.url, reach })
    }
}

/// Returns the base URL for agents on this machine. They connect directly, unless a certificate requires the
/// advertised name. An unencrypted listener is on the loopback interface only, so the name of another host does not
/// lead to it.
fn url_here(given: Option<&AdvertisedAddress>, address: SocketAddr, is_encrypted: bool) -> String {
    match given {
        Some(given) if is_encrypted || given.host.is_none() => given.url.clone(),
        _ if is_encrypted => format!("https://{}", reachable_address(address)),
        _ => format!("http://{}", reachable_address(address)),
    }
}

/// Returns the manager's own certificate, for the names under which agents reach the manager.
fn own_authority(folder: &Path, more: [Option<String>; 3]) -> Result<Tls, Error> {
    create_private_folder(folder)
        .map_err(|source| Error::DataDir { path: folder.to_owned(), source })?;
    let own = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
    let mut names = vec!["localhost".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned()];
    names.extend(own.into_iter().chain(more.into_iter().flatten()));
    names.sort();
    names.dedup();
    names.retain(|name| !name.is_empty());
    Ok(Tls::load_or_create(folder, &names)?)
}

/// Returns the address under which agents on this machine reach a listener. An unspecified address accepts
/// connections everywhere, but is not a destination.
fn reachable_address(address: SocketAddr) -> SocketAddr {
    let mut address = address;
    if address.ip().is_unspecified() {
        address.set_ip(match address {
            SocketAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
            SocketAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
        });
    }
    address
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agents_on_this_machine_get_a_reachable_address() {
        let given = |host: Option<&str>, url: &str| {
            Some(AdvertisedAddress { host: host.map(str::to_owned), url: url.to_owned() })
        };
        #[rustfmt::skip]
        let table = [
            // advertised address                             listener        encrypted  url
            (None,                                            "127.0.0.1:80", false,     "http://127.0.0.1:80"),
            (None,                                            "0.0.0.0:80",   true,      "https://127.0.0.1:80"),
            (given(Some("m"), "https://m:80"),                "0.0.0.0:80",   true,      "https://m:80"),
            (given(None, "https://proxy/m"),                  "127.0.0.1:80", false,     "https://proxy/m"),
            (given(Some("10.0.0.1"), "http://10.0.0.1:80"),   "127.0.0.1:80", false,     "http://127.0.0.1:80"),
        ];
        for (given, listener, is_encrypted, expected) in table {
            let advertised = url_here(given.as_ref(), listener.parse().unwrap(), is_encrypted);
            assert_eq!(advertised, expected, "{given:?} at {listener}");
        }
    }
}
