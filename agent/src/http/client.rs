//! The HTTP client of the agent.
//!
//! Unless the pod's setup needs it, it is built only when there are reports to deliver, because building it would delay
//! the trial's start. It needs no files of the image in which it runs. Certificates are compiled in, so HTTPS works in an
//! image without a CA store, and the C library resolves names. The shipped program is linked with musl, whose resolver is static and supports `search` and `ndots`.
//! glibc's resolver would load modules of the image into the process.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use reqwest::{Client, ClientBuilder, Response};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::{ClientConfig, RootCertStore};

/// The maximum time for connecting.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The maximum time for an answer. The manager answers after its commit, which a busy disk can delay.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// The time after which an unused connection is closed.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);

/// The errors of building a client.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file with the manager's certificate authority cannot be used.
    #[error("cannot use the CA file {}; it must hold certificates in PEM form", .path.display())]
    CaFile {
        /// Path of the file.
        path: PathBuf,
        /// The underlying error.
        #[source]
        source: pem::Error,
    },
    /// The HTTP client cannot be created.
    #[error("cannot make an HTTP client")]
    Client(#[from] reqwest::Error),
    /// The cryptography library reported an error.
    #[error("cannot set up TLS")]
    Tls(#[from] rustls::Error),
}

/// Builds a client. With `ca_file`, it trusts only the certificates in that file.
pub fn build(ca_file: Option<&Path>) -> Result<Client, Error> {
    Ok(builder(read_roots(ca_file)?)?.build()?)
}

/// Builds a client like [`build`] for requests with a long time limit, such as a download. It gives up if nothing
/// arrives for [`ANSWER_TIMEOUT`], because the manager's machine may have gone without closing the connection.
pub fn build_for_downloads(ca_file: Option<&Path>) -> Result<Client, Error> {
    Ok(builder(read_roots(ca_file)?)?.read_timeout(ANSWER_TIMEOUT).build()?)
}

/// Builds a client that trusts `pem`, a content of `ca_file` that was read earlier.
pub fn build_trusting(ca_file: &Path, pem: &[u8]) -> Result<Client, Error> {
    Ok(builder(parse_roots(ca_file, pem)?)?.build()?)
}

/// Builds a client that connects to a Unix socket, regardless of the host in a URL. It trusts no certificate and needs
/// none.
pub fn build_on_socket(socket: &Path) -> Result<Client, Error> {
    Ok(builder(RootCertStore::empty())?.unix_socket(socket).build()?)
}

fn read_roots(ca_file: Option<&Path>) -> Result<RootCertStore, Error> {
    let Some(path) = ca_file else {
        return Ok(RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() });
    };
    let pem = std::fs::read(path).map_err(|error| ca_file_error(path, pem::Error::Io(error)))?;
    parse_roots(path, &pem)
}

fn parse_roots(ca_file: &Path, pem: &[u8]) -> Result<RootCertStore, Error> {
    let mut store = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        store.add(certificate.map_err(|error| ca_file_error(ca_file, error))?)?;
    }
    if store.is_empty() {
        return Err(ca_file_error(ca_file, pem::Error::NoItemsFound));
    }
    Ok(store)
}

/// Reads an answer to its end. Returns `None` if it is longer than `most` bytes.
pub async fn read_whole(
    mut response: Response,
    most: usize,
) -> Result<Option<Vec<u8>>, reqwest::Error> {
    let mut bytes = Vec::new();
    while let Some(piece) = response.chunk().await? {
        if bytes.len() + piece.len() > most {
            return Ok(None);
        }
        bytes.extend_from_slice(&piece);
    }
    Ok(Some(bytes))
}

fn ca_file_error(path: &Path, source: pem::Error) -> Error {
    Error::CaFile { path: path.to_owned(), source }
}

fn builder(roots: RootCertStore) -> Result<ClientBuilder, Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let builder = Client::builder()
        .tls_backend_preconfigured(tls)
        // A proxy variable in an image is meant for the image's own downloads. The manager is on the cluster's network
        // or on this machine.
        .no_proxy()
        .connect_timeout(CONNECT_TIMEOUT)
        .timeout(ANSWER_TIMEOUT)
        .tcp_nodelay(true)
        // Closes a second connection that was needed only once.
        .pool_idle_timeout(IDLE_TIMEOUT)
        .redirect(reqwest::redirect::Policy::none());
    Ok(builder)
}
