//! The one HTTP client of the agent.
//!
//! It is built when there is something to deliver, never before the trial was started, and it needs
//! nothing of the image it runs in: certificates are compiled in, so an image without a CA store can speak
//! HTTPS, and names are resolved by the C library. The shipped binary is linked with musl, whose resolver is
//! static and honours `search` and `ndots`; glibc's would load modules of the image into the process.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use reqwest::{Client, Response};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::{ClientConfig, RootCertStore};

/// The time that a connection may take to be made.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The time that an answer may take. The manager answers after its commit, which a busy disk can delay.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// The time that an unused connection may rest.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);

/// The errors of building a client.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file with the manager's certificate authority.
    #[error("cannot use the CA file {}; it must hold certificates in PEM form", .path.display())]
    CaFile {
        /// Path of the file.
        path: PathBuf,
        /// The underlying error.
        #[source]
        source: pem::Error,
    },
    /// Anything else.
    #[error("cannot make an HTTP client")]
    Client(#[from] reqwest::Error),
    /// The cryptography library.
    #[error("cannot set up TLS")]
    Tls(#[from] rustls::Error),
}

/// Makes the client. With `ca_file`, its certificates are trusted and no others.
pub fn build(ca_file: Option<&Path>) -> Result<Client, Error> {
    let Some(path) = ca_file else {
        let roots = webpki_roots::TLS_SERVER_ROOTS.to_vec();
        return assemble(RootCertStore { roots }, None);
    };
    let pem = std::fs::read(path).map_err(|error| unusable(path, pem::Error::Io(error)))?;
    build_trusting(path, &pem)
}

/// Builds a client that trusts an earlier content of `ca_file`.
pub fn build_trusting(ca_file: &Path, pem: &[u8]) -> Result<Client, Error> {
    let mut store = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        store.add(certificate.map_err(|error| unusable(ca_file, error))?)?;
    }
    if store.is_empty() {
        return Err(unusable(ca_file, pem::Error::NoItemsFound));
    }
    assemble(store, None)
}

/// Makes a client that connects to a Unix socket, whatever host a URL names. It trusts no certificate and needs none.
pub fn build_on_socket(socket: &Path) -> Result<Client, Error> {
    assemble(RootCertStore::empty(), Some(socket))
}

/// Reads an answer to its end; `None` if it is longer than `most` bytes.
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

fn unusable(path: &Path, source: pem::Error) -> Error {
    Error::CaFile { path: path.to_owned(), source }
}

fn assemble(roots: RootCertStore, socket: Option<&Path>) -> Result<Client, Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let mut client = Client::builder()
        .tls_backend_preconfigured(tls)
        // A proxy variable in an image is meant for its own downloads; the manager is on the cluster's
        // network or on this machine.
        .no_proxy()
        .connect_timeout(CONNECT_TIMEOUT)
        .timeout(ANSWER_TIMEOUT)
        .tcp_nodelay(true)
        // A second connection that was needed once need not stay.
        .pool_idle_timeout(IDLE_TIMEOUT)
        .redirect(reqwest::redirect::Policy::none());
    if let Some(socket) = socket {
        client = client.unix_socket(socket);
    }
    Ok(client.build()?)
}
