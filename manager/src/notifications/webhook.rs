//! Notifies a server with one POST. Only the status of the answer is read. The URL may be a secret, so no message
//! contains it.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue, USER_AGENT};
use reqwest::{Client, Url};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};
use serde_json::Value;

use super::retry::DeliveryOutcome;
use crate::config::{SecretSource, WebhookSpec};
use crate::util::errors::error_chain;

/// The time limit for establishing a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The time limit for the server's answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Sends an event to the server.
pub(super) async fn post(spec: &WebhookSpec, id: &str, event: &Value) -> DeliveryOutcome {
    // The files are read for each request, because an operator may have corrected them.
    let (url, token) = match (read_url(&spec.url), spec.token.as_ref().map(read_token).transpose())
    {
        (Ok(url), Ok(token)) => (url, token),
        (Err(problem), _) | (_, Err(problem)) => return DeliveryOutcome::Retryable(problem),
    };
    let client = match build_client(spec.ca_file.as_deref()) {
        Ok(client) => client,
        Err(problem) => return DeliveryOutcome::Retryable(problem),
    };
    let mut request = client
        .post(url)
        .header(CONTENT_TYPE, "application/json")
        .header(USER_AGENT, concat!("trial-manager/", env!("CARGO_PKG_VERSION")))
        .header("idempotency-key", id)
        .body(event.to_string());
    if let Some(token) = token {
        request = request.header(AUTHORIZATION, token);
    }
    match request.send().await {
        // The body of the answer is ignored, because it may never end.
        Ok(answer) => outcome_of(answer.status().as_u16()),
        Err(error) => DeliveryOutcome::Retryable(error_chain(&error.without_url())),
    }
}

/// Returns the outcome for a status. A status that will not change is final.
fn outcome_of(status: u16) -> DeliveryOutcome {
    let message = format!("the server answered {status}");
    match status {
        200..=299 => DeliveryOutcome::Delivered,
        408 | 425 | 429 | 500..=599 => DeliveryOutcome::Retryable(message),
        300..=399 => {
            DeliveryOutcome::Permanent(format!("{message}; redirections are not followed"))
        }
        _ => DeliveryOutcome::Permanent(message),
    }
}

fn read_url(source: &SecretSource) -> Result<Url, String> {
    let text = read_secret(source, "webhookUrl")?;
    let url = Url::parse(&text).map_err(|error| format!("webhookUrl is not a URL: {error}"))?;
    match url.scheme() {
        "http" | "https" => Ok(url),
        _ => Err("webhookUrl must begin with http:// or https://".to_owned()),
    }
}

fn read_token(source: &SecretSource) -> Result<HeaderValue, String> {
    let text = read_secret(source, "webhookToken")?;
    let mut value = HeaderValue::try_from(format!("Bearer {text}"))
        .map_err(|_| "webhookToken cannot be sent in a header".to_owned())?;
    value.set_sensitive(true);
    Ok(value)
}

/// Reads the secret text. No error message contains it.
fn read_secret(source: &SecretSource, name: &str) -> Result<String, String> {
    let text = match source {
        SecretSource::Inline(text) => text.clone(),
        SecretSource::File(path) => std::fs::read_to_string(path)
            .map_err(|error| format!("{name}File {} cannot be read: {error}", path.display()))?,
        SecretSource::Variable(variable) => std::env::var(variable)
            .map_err(|_| format!("{name}Variable {variable} is not set for the manager"))?,
    };
    let line = text.lines().next().unwrap_or_default().trim();
    if line.is_empty() {
        return Err(format!("{name} is empty"));
    }
    Ok(line.to_owned())
}

fn build_client(ca_file: Option<&Path>) -> Result<Client, String> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(load_roots(ca_file)?)
        .with_no_client_auth();
    let built = Client::builder()
        .tls_backend_preconfigured(tls)
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(CONNECT_TIMEOUT)
        .timeout(ANSWER_TIMEOUT)
        .build();
    built.map_err(|error| error_chain(&error))
}

fn load_roots(ca_file: Option<&Path>) -> Result<RootCertStore, String> {
    let mut store = RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
    if let Some(path) = ca_file {
        let unusable = |error: &dyn std::fmt::Display| {
            format!("webhookCaFile {} contains no usable certificates: {error}", path.display())
        };
        let certificates = CertificateDer::pem_file_iter(path).map_err(|error| unusable(&error))?;
        for certificate in certificates {
            let certificate = certificate.map_err(|error| unusable(&error))?;
            store.add(certificate).map_err(|error| unusable(&error))?;
        }
    }
    Ok(store)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_determines_whether_to_retry() {
        for (status, outcome) in [
            (200, "taken"),
            (204, "taken"),
            (302, "never"),
            (401, "never"),
            (404, "never"),
            (408, "later"),
            (429, "later"),
            (500, "later"),
            (503, "later"),
            (999, "never"),
        ] {
            let found = match outcome_of(status) {
                DeliveryOutcome::Delivered => "taken",
                DeliveryOutcome::Retryable(_) => "later",
                DeliveryOutcome::Permanent(_) => "never",
            };
            assert_eq!(found, outcome, "{status}");
        }
    }

    #[tokio::test]
    async fn no_message_contains_the_secret() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("url");
        for text in ["http://127.0.0.1:1/s3cret", "ftp://s3cret", "s3cret", "http://[s3cret", ""] {
            std::fs::write(&file, text).unwrap();
            let spec =
                WebhookSpec { url: SecretSource::File(file.clone()), token: None, ca_file: None };
            let DeliveryOutcome::Retryable(why) = post(&spec, "id", &Value::Null).await else {
                panic!("no server listens at {text}");
            };
            assert!(!why.contains("s3cret"), "{text}: {why}");
        }
    }

    fn webhook_at(url: &str, ca_file: Option<&Path>) -> WebhookSpec {
        let ca_file = ca_file.map(Path::to_owned);
        WebhookSpec { url: SecretSource::Inline(url.to_owned()), token: None, ca_file }
    }

    #[tokio::test]
    async fn a_redirection_is_not_followed() {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/s3cret", listener.local_addr().unwrap());
        let elsewhere = url.clone();
        let server = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut asked = vec![0; 4096];
            let count = stream.read(&mut asked).await.unwrap();
            asked.truncate(count);
            let answer = format!(
                "HTTP/1.1 307 so\r\nlocation: {elsewhere}/there\r\ncontent-length: 0\r\n\r\n"
            );
            stream.write_all(answer.as_bytes()).await.unwrap();
            drop(stream.read_to_end(&mut asked).await);
            String::from_utf8_lossy(&asked).matches("POST ").count()
        });
        let outcome = post(&webhook_at(&url, None), "id", &Value::Null).await;
        let why = "the server answered 307; redirections are not followed".to_owned();
        assert_eq!(outcome, DeliveryOutcome::Permanent(why));
        assert_eq!(server.await.unwrap(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_does_not_answer_causes_a_timeout() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/s3cret", listener.local_addr().unwrap());
        let begun = tokio::time::Instant::now();
        let DeliveryOutcome::Retryable(why) =
            post(&webhook_at(&url, None), "id", &Value::Null).await
        else {
            panic!("no server has answered");
        };
        assert!(
            begun.elapsed() <= ANSWER_TIMEOUT + Duration::from_secs(1) && !why.contains("s3cret"),
            "{why}"
        );
    }

    #[tokio::test]
    async fn a_certificate_without_a_trusted_authority_is_refused() {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let pair = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let ca_file = folder.path().join("ca.pem");
        std::fs::write(&ca_file, pair.cert.pem()).unwrap();
        let key = rustls::pki_types::PrivatePkcs8KeyDer::from(pair.signing_key.serialize_der());
        let tls = rustls::ServerConfig::builder_with_provider(Arc::new(
            rustls::crypto::ring::default_provider(),
        ))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![pair.cert.der().clone()], key.into())
        .unwrap();
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(tls));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://{}/s3cret", listener.local_addr().unwrap());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let Ok(mut stream) = acceptor.accept(stream).await else { continue };
                let mut bytes = [0; 4096];
                drop(stream.read(&mut bytes).await);
                drop(stream.write_all(b"HTTP/1.1 204 so\r\n\r\n").await);
            }
        });
        let DeliveryOutcome::Retryable(why) =
            post(&webhook_at(&url, None), "id", &Value::Null).await
        else {
            panic!("the certificate must be refused");
        };
        assert!(why.contains("certificate") && !why.contains("s3cret"), "{why}");
        assert_eq!(
            post(&webhook_at(&url, Some(&ca_file)), "id", &Value::Null).await,
            DeliveryOutcome::Delivered
        );
    }
}
