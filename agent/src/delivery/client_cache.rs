//! The HTTP client for the manager, and the certificates that it trusts. They come from a file that the user may
//! replace.

use std::fs;
use std::path::PathBuf;

use reqwest::Client;
use tracing::{info, warn};

use crate::http::client;
use crate::util::errors::chain;

/// The client, and the source of the certificates that it trusts.
#[derive(Debug, Default)]
pub(super) struct HttpClientCache {
    ca_file: Option<PathBuf>,
    /// The content of the file at the last read.
    pem: Option<Vec<u8>>,
    client: Option<Client>,
    /// `true` if the file must be read again.
    stale: bool,
}

impl HttpClientCache {
    /// Creates a cache without a client. The first client trusts `known`, the file's content before the trial started,
    /// if it was read then.
    pub(super) fn new(ca_file: Option<PathBuf>, known: Option<Vec<u8>>) -> Self {
        let stale = known.is_none();
        Self { ca_file, pem: known, client: None, stale }
    }

    /// Makes the next [`Self::get`] read the file again, because it may have been replaced.
    pub(super) fn refresh(&mut self) {
        self.stale = true;
    }

    /// Returns the client, or a new one if the file has changed. An unusable file changes nothing, because it may be
    /// incomplete.
    pub(super) fn get(&mut self) -> Result<Client, client::Error> {
        let changed = self.has_changed();
        if let Some(client) = self.client.as_ref().filter(|_| !changed) {
            return Ok(client.clone());
        }
        let made = match (&self.ca_file, &self.pem) {
            (Some(path), Some(pem)) => client::build_trusting(path, pem),
            (path, _) => client::build(path.as_deref()),
        };
        match (made, &self.client) {
            (Ok(client), before) => {
                if before.is_some() {
                    info!("the authority for the manager's certificate was replaced");
                }
                Ok(self.client.insert(client).clone())
            }
            (Err(error), Some(before)) => {
                warn!("{}; the previous one is used", chain(&error));
                Ok(before.clone())
            }
            (Err(error), None) => Err(error),
        }
    }

    fn has_changed(&mut self) -> bool {
        if !std::mem::take(&mut self.stale) {
            return false;
        }
        let read = self.ca_file.as_ref().and_then(|path| fs::read(path).ok());
        let changed = read.is_some() && read != self.pem;
        self.pem = read.or(self.pem.take());
        changed
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;
    use tokio_rustls::TlsAcceptor;
    use tokio_rustls::rustls::{ServerConfig, crypto, pki_types::PrivateKeyDer};

    use super::*;

    /// Starts a server that answers every request with 204 and encrypts with its own certificate. Returns its port, and
    /// the certificate in PEM form.
    async fn start_tls_server() -> (u16, String) {
        let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
        let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
        let config =
            ServerConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
                .with_safe_default_protocol_versions()
                .unwrap()
                .with_no_client_auth()
                .with_single_cert(vec![made.cert.der().clone()], key)
                .unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                // A client that does not trust the certificate closes the connection.
                let Ok(mut stream) = acceptor.accept(stream).await else { continue };
                drop(stream.read(&mut [0; 1024]).await);
                drop(stream.write_all(b"HTTP/1.1 204 x\r\nconnection: close\r\n\r\n").await);
            }
        });
        (port, made.cert.pem())
    }

    fn client(caller: &mut HttpClientCache, ca_file: &Path, pem: &str) -> Client {
        fs::write(ca_file, pem).unwrap();
        caller.refresh();
        caller.get().unwrap()
    }

    #[tokio::test]
    async fn a_replaced_authority_is_trusted() {
        let dir = tempfile::tempdir().unwrap();
        let ca_file = dir.path().join("ca.pem");
        let (port, right) = start_tls_server().await;
        let (_, wrong) = start_tls_server().await;
        let mut caller = HttpClientCache::new(Some(ca_file.clone()), None);
        assert!(caller.get().is_err(), "the file does not exist yet");
        let trusts = async |client: Client| {
            client.get(format!("https://127.0.0.1:{port}/")).send().await.is_ok()
        };
        #[rustfmt::skip]
        let table = [
            ("another's",                  wrong.as_str(), false),
            ("the right one",              right.as_str(), true),
            ("half of a file",             &right[..99],   true),
            ("an empty file",              "",             true),
            ("another's again",            wrong.as_str(), false),
        ];
        for (case, pem, trusted) in table {
            assert_eq!(trusts(client(&mut caller, &ca_file, pem)).await, trusted, "{case}");
        }
        fs::write(&ca_file, right).unwrap();
        assert!(!trusts(caller.get().unwrap()).await, "not read until a request fails");
    }
}
