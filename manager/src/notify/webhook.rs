//! Tells a server: one POST, whose answer's status is all that is read of it. The URL may be a secret: no message
//! holds it.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue, USER_AGENT};
use reqwest::{Client, Url};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};
use serde_json::Value;

use super::pace::Outcome;
use crate::config::{Source, WebhookSpec};
use crate::errors::chain;

/// How long a connection may take to be made.
const CONNECT: Duration = Duration::from_secs(5);
/// How long the server may take to begin its answer.
const ANSWER: Duration = Duration::from_secs(10);

/// Tells the server of an event.
pub(super) async fn post(spec: &WebhookSpec, id: &str, event: &Value) -> Outcome {
    // Read anew each time: an operator may have mended them.
    let (url, token) = match (url(&spec.url), spec.token.as_ref().map(token).transpose()) {
        (Ok(url), Ok(token)) => (url, token),
        (Err(problem), _) | (_, Err(problem)) => return Outcome::NotNow(problem),
    };
    let client = match client(spec.ca_file.as_deref()) {
        Ok(client) => client,
        Err(problem) => return Outcome::NotNow(problem),
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
        // What else it says is nobody's business, and may never end.
        Ok(answer) => judge(answer.status().as_u16()),
        Err(error) => Outcome::NotNow(chain(&error.without_url())),
    }
}

/// What a status means: one that will be the same tomorrow is final.
fn judge(status: u16) -> Outcome {
    let said = format!("the server answers {status}");
    match status {
        200..=299 => Outcome::Taken,
        408 | 425 | 429 | 500..=599 => Outcome::NotNow(said),
        300..=399 => Outcome::Never(format!("{said}; redirections are not followed")),
        _ => Outcome::Never(said),
    }
}

fn url(source: &Source) -> Result<Url, String> {
    let text = read(source, "webhookUrl")?;
    let url = Url::parse(&text).map_err(|error| format!("webhookUrl is no URL: {error}"))?;
    match url.scheme() {
        "http" | "https" => Ok(url),
        _ => Err("webhookUrl must begin with http:// or https://".to_owned()),
    }
}

fn token(source: &Source) -> Result<HeaderValue, String> {
    let text = read(source, "webhookToken")?;
    let mut value = HeaderValue::try_from(format!("Bearer {text}"))
        .map_err(|_| "webhookToken cannot stand in a header".to_owned())?;
    value.set_sensitive(true);
    Ok(value)
}

/// The text itself; no message holds it.
fn read(source: &Source, name: &str) -> Result<String, String> {
    let text = match source {
        Source::Given(text) => text.clone(),
        Source::File(path) => std::fs::read_to_string(path)
            .map_err(|error| format!("{name}File {} cannot be read: {error}", path.display()))?,
        Source::Variable(variable) => std::env::var(variable)
            .map_err(|_| format!("{name}Variable {variable} is not set for the manager"))?,
    };
    let line = text.lines().next().unwrap_or_default().trim();
    if line.is_empty() {
        return Err(format!("{name} is empty"));
    }
    Ok(line.to_owned())
}

fn client(ca_file: Option<&Path>) -> Result<Client, String> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots(ca_file)?)
        .with_no_client_auth();
    let built = Client::builder()
        .tls_backend_preconfigured(tls)
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(CONNECT)
        .timeout(ANSWER)
        .build();
    built.map_err(|error| chain(&error))
}

fn roots(ca_file: Option<&Path>) -> Result<RootCertStore, String> {
    let mut store = RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
    if let Some(path) = ca_file {
        let unusable = |error: &dyn std::fmt::Display| {
            format!("webhookCaFile {} holds no certificates: {error}", path.display())
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
    fn a_status_says_whether_to_try_again() {
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
            let found = match judge(status) {
                Outcome::Taken => "taken",
                Outcome::NotNow(_) => "later",
                Outcome::Never(_) => "never",
            };
            assert_eq!(found, outcome, "{status}");
        }
    }

    #[tokio::test]
    async fn no_message_holds_the_secret() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("url");
        for text in ["http://127.0.0.1:1/s3cret", "ftp://s3cret", "s3cret", "http://[s3cret", ""] {
            std::fs::write(&file, text).unwrap();
            let spec = WebhookSpec { url: Source::File(file.clone()), token: None, ca_file: None };
            let Outcome::NotNow(why) = post(&spec, "id", &Value::Null).await else {
                panic!("nobody listens at {text}");
            };
            assert!(!why.contains("s3cret"), "{text}: {why}");
        }
    }
}
