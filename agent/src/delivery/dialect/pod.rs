//! The requests of a pod before its trial starts: the code, the parameters, the other pods.

use std::time::Duration;

use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, ETAG};
use reqwest::{Client, RequestBuilder, Response, StatusCode};
use trial_protocol::{RendezvousReply, RendezvousRequest};

use super::Error;
use super::native::{read_json, read_refusal};

/// The path of the code directory, below the manager's base URL.
const CODE_PATH: &str = "/api/v1/agent/code";
/// The path of the parameter record.
const PARAMETERS_PATH: &str = "/api/v1/agent/parameters";
/// The path of the rendezvous of pods.
const RENDEZVOUS_PATH: &str = "/api/v1/agent/rendezvous";

/// A client for the requests of a pod.
#[derive(Debug, Clone)]
pub struct PodSetupClient {
    /// The client.
    pub client: Client,
    /// The manager's base URL.
    pub base: String,
    /// The trial's token.
    pub token: Option<String>,
    /// The time for the answer, including its body.
    pub timeout: Duration,
}

/// The code's archive during its download.
#[derive(Debug)]
pub struct CodeDownload {
    /// SHA-256 of the archive in hexadecimal digits. `None`: the answer does not come from a manager.
    pub sha256: Option<String>,
    response: Response,
    url: String,
}

impl CodeDownload {
    /// Returns the next piece, or `None` at the end.
    pub async fn next_chunk(&mut self) -> Result<Option<impl AsRef<[u8]>>, Error> {
        let url = self.url.clone();
        self.response.chunk().await.map_err(|source| Error::Unreachable { url, source })
    }
}

impl PodSetupClient {
    fn url(&self, path: &str) -> String {
        format!("{}{path}", self.base.trim_end_matches('/'))
    }

    async fn send(&self, url: &str, request: RequestBuilder) -> Result<Response, Error> {
        let mut request = request.timeout(self.timeout);
        if let Some(token) = &self.token {
            request = request.header(AUTHORIZATION, format!("Bearer {token}"));
        }
        let unreachable = |source| Error::Unreachable { url: url.to_owned(), source };
        let response = request.send().await.map_err(unreachable)?;
        if response.status() == StatusCode::OK {
            Ok(response)
        } else {
            Err(read_refusal(url.to_owned(), response).await)
        }
    }

    /// Starts to fetch the code.
    pub async fn start_code_download(&self) -> Result<CodeDownload, Error> {
        let url = self.url(CODE_PATH);
        let response = self.send(&url, self.client.get(&url)).await?;
        let tag = response.headers().get(ETAG).and_then(|tag| tag.to_str().ok());
        let sha256 = tag.map(|tag| tag.trim_matches('"').to_owned());
        Ok(CodeDownload { sha256, response, url })
    }

    /// Fetches the parameter record.
    pub async fn fetch_parameters(&self) -> Result<String, Error> {
        let url = self.url(PARAMETERS_PATH);
        let response = self.send(&url, self.client.get(&url)).await?;
        let unreachable = |source| Error::Unreachable { url: url.clone(), source };
        let bytes = response.bytes().await.map_err(unreachable)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Reports the address of this pod, and returns those of the other pods.
    pub async fn report_address(&self, pod: &RendezvousRequest) -> Result<RendezvousReply, Error> {
        let url = self.url(RENDEZVOUS_PATH);
        let body = serde_json::to_vec(pod).expect("a pod has string keys only");
        let request = self.client.post(&url).header(CONTENT_TYPE, "application/json").body(body);
        let response = self.send(&url, request).await?;
        read_json(&url, response).await
    }
}
