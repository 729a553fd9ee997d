//! A client of the API for programs. It sends requests to a running manager, or calls the routes over a store without
//! a manager. The responses are the same.

use std::path::PathBuf;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{HeaderName, Method, Request, Response, StatusCode, header};
use http_body_util::BodyExt as _;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tower::ServiceExt as _;

use super::PREFIX_HEADER;
use super::server::tls;
use crate::util::local_socket;

/// The time in which a manager must begin its response.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// The reason why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no listener, or the connection broke.
    #[error("the manager at {url} cannot be reached: {problem}")]
    Unreachable {
        /// The manager's URL.
        url: String,
        /// The cause.
        problem: String,
    },
    /// The manager requires the user's token, and the client sent none.
    #[error("the manager requires the user's token")]
    TokenRequired,
    /// The manager refused the request.
    #[error("{detail}")]
    Refused {
        /// The HTTP status.
        status: u16,
        /// The reason, for a person.
        detail: String,
    },
    /// This build cannot parse the response.
    #[error("cannot read the manager's response: {0}")]
    Unreadable(String),
}

/// The recipient of requests.
#[derive(Debug, Clone)]
pub enum Client {
    /// A running manager.
    Remote {
        /// The manager's base URL.
        url: String,
        /// The user's token, if known.
        token: Option<String>,
        /// The manager's own authority in PEM form, if the manager encrypts. `None` means the public authorities.
        ca_pem: Option<String>,
        /// The manager's Unix socket, if the manager runs on this machine. Requests are then sent only there. `None`
        /// means TCP.
        socket: Option<PathBuf>,
    },
    /// The routes over a store, in this process.
    InProcess(Router),
}

/// A response that is read line by line while it arrives.
#[derive(Debug)]
pub struct LineStream {
    body: Body,
    rest: Vec<u8>,
}

impl LineStream {
    /// Returns the next line without its line end, or `None` at the end of the response.
    pub async fn next(&mut self) -> Option<String> {
        loop {
            if let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.rest.drain(..=end).collect();
                return Some(String::from_utf8_lossy(&line[..end]).into_owned());
            }
            let frame = self.body.frame().await?.ok()?;
            self.rest.extend_from_slice(frame.data_ref()?);
        }
    }
}

impl Client {
    /// Sends a request and parses the response as JSON. `body` is sent as JSON.
    pub async fn request_json(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Value, Error> {
        let bytes = self.request_bytes(method, path, body).await?;
        serde_json::from_slice(&bytes).map_err(|error| Error::Unreadable(error.to_string()))
    }

    /// Sends a request and returns the bytes of the response.
    pub async fn request_bytes(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Bytes, Error> {
        let response = self.send(method, path, body).await?;
        let read = response.into_body().collect().await;
        Ok(read.map_err(|error| self.unreachable(&error))?.to_bytes())
    }

    /// Sends a `GET` request and returns the response as a stream of lines.
    pub async fn request_lines(&self, path: &str) -> Result<LineStream, Error> {
        Ok(LineStream { body: self.send("GET", path, None).await?.into_body(), rest: Vec::new() })
    }

    async fn send(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Response<Body>, Error> {
        let method = Method::from_bytes(method.as_bytes()).unwrap_or(Method::GET);
        let mut request = Request::builder().method(method).uri(path);
        request = request.header(header::HOST, self.host());
        let token = if let Self::Remote { token, .. } = self { token.as_ref() } else { None };
        if let Some(token) = token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        let body = body.map(|body| Body::from(body.to_string())).unwrap_or_default();
        let request = request.body(body).map_err(|error| Error::Unreadable(error.to_string()))?;
        let answered = timeout(ANSWER_TIMEOUT, self.exchange(request)).await;
        let response =
            answered.unwrap_or_else(|_| Err(self.unreachable(&"it did not respond in time")))?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        if status == StatusCode::UNAUTHORIZED && token.is_none() {
            return Err(Error::TokenRequired);
        }
        let bytes = response.into_body().collect().await.map(http_body_util::Collected::to_bytes);
        let problem: Value = serde_json::from_slice(&bytes.unwrap_or_default()).unwrap_or_default();
        let detail = problem.get("detail").and_then(Value::as_str);
        let detail = detail.map_or_else(|| status.to_string(), str::to_owned);
        Err(Error::Refused { status: status.as_u16(), detail })
    }

    /// Forwards a request with the user's token and returns the response, whatever its status. The manager's pages
    /// then link below `prefix`.
    pub(super) async fn forward(
        &self,
        request: Request<Body>,
        prefix: &str,
    ) -> Result<Response<Body>, Error> {
        let (parts, body) = request.into_parts();
        let mut forwarded = Request::builder().method(parts.method).uri(parts.uri);
        let kept =
            [header::CONTENT_TYPE, header::ACCEPT, HeaderName::from_static("idempotency-key")];
        for name in kept {
            if let Some(value) = parts.headers.get(&name) {
                forwarded = forwarded.header(name, value);
            }
        }
        forwarded = forwarded.header(header::HOST, self.host()).header(PREFIX_HEADER, prefix);
        if let Self::Remote { token: Some(token), .. } = self {
            forwarded = forwarded.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        let request = forwarded.body(body).map_err(|error| Error::Unreadable(error.to_string()))?;
        let answered = timeout(ANSWER_TIMEOUT, self.exchange(request)).await;
        answered.unwrap_or_else(|_| Err(self.unreachable(&"it did not respond in time")))
    }

    async fn exchange(&self, request: Request<Body>) -> Result<Response<Body>, Error> {
        match self {
            Self::InProcess(router) => match router.clone().oneshot(request).await {
                Ok(response) => Ok(response),
                Err(never) => match never {},
            },
            Self::Remote { socket: Some(socket), .. } => {
                let stream = local_socket::connect(socket).await;
                self.send_over(stream.map_err(|error| self.unreachable(&error))?, request).await
            }
            Self::Remote { url, ca_pem, .. } => {
                let host = self.host();
                let stream = TcpStream::connect(&host).await;
                let stream = stream.map_err(|error| self.unreachable(&error))?;
                if !is_encrypted(url) {
                    return self.send_over(stream, request).await;
                }
                let name = host.rsplit_once(':').map_or(host.as_str(), |(name, _)| name);
                let name = name.trim_start_matches('[').trim_end_matches(']').to_owned();
                let name = name.try_into().map_err(|error| self.unreachable(&error))?;
                let connector =
                    tls::connector(ca_pem.as_deref()).map_err(|error| self.unreachable(&error))?;
                let stream = connector.connect(name, stream).await;
                self.send_over(stream.map_err(|error| self.unreachable(&error))?, request).await
            }
        }
    }

    async fn send_over<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
        &self,
        stream: S,
        request: Request<Body>,
    ) -> Result<Response<Body>, Error> {
        let handshake = http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = handshake.map_err(|error| self.unreachable(&error))?;
        // The task ends with the response.
        tokio::spawn(connection);
        let response = sender.send_request(request).await;
        Ok(response.map_err(|error| self.unreachable(&error))?.map(Body::new))
    }

    /// Returns the host and the port, in the form of a URL.
    fn host(&self) -> String {
        match self {
            Self::InProcess(_) | Self::Remote { socket: Some(_), .. } => "localhost".to_owned(),
            Self::Remote { url, .. } => {
                let host = url.split_once("://").map_or(url.as_str(), |(_, host)| host);
                let host = host.trim_end_matches('/');
                let port = if is_encrypted(url) { 443 } else { 80 };
                let has_port =
                    host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
                if has_port { host.to_owned() } else { format!("{host}:{port}") }
            }
        }
    }

    fn unreachable(&self, problem: &dyn std::fmt::Display) -> Error {
        let url = match self {
            Self::Remote { url, .. } => url.clone(),
            Self::InProcess(_) => "this machine".to_owned(),
        };
        let problem = problem.to_string();
        let advice = connection_advice(&problem);
        Error::Unreachable { url, problem: problem + advice }
    }
}

/// PURE: returns the remedy for a connection that fails because of its encryption. Empty for other problems.
fn connection_advice(problem: &str) -> &'static str {
    let table = [
        (
            "UnknownIssuer",
            "; pass its certificate authority with --ca-file (`tls/ca.pem` in the experiment's folder)",
        ),
        ("invalid HTTP version", "; it may encrypt its connections: use https://"),
        ("InvalidContentType", "; it may not encrypt its connections: use http://"),
    ];
    table.iter().find(|(part, _)| problem.contains(part)).map_or("", |(_, advice)| advice)
}

fn is_encrypted(url: &str) -> bool {
    url.get(..8).is_some_and(|scheme| scheme.eq_ignore_ascii_case("https://"))
}

/// Returns a client that calls the routes over a store, in this process.
pub fn in_process(state: super::ApiState) -> Client {
    Client::InProcess(super::router(state))
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn a_connection_that_fails_because_of_its_encryption_has_a_remedy() {
        // A fatal alert of TLS (RFC 8446, section 6), and a response of HTTP.
        let table: [(&str, &[u8], &str); 2] = [
            ("http", b"\x15\x03\x01\x00\x02\x02\x46", "use https://"),
            ("https", b"HTTP/1.1 400 Bad Request\r\n\r\n", "use http://"),
        ];
        for (scheme, response, remedy) in table {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let url = format!("{scheme}://{}", listener.local_addr().unwrap());
            let far = Client::Remote { url, token: None, ca_pem: None, socket: None };
            let answering = async {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut received = [0; 4096];
                assert!(stream.read(&mut received).await.unwrap() > 0);
                stream.write_all(response).await.unwrap();
                stream
            };
            let asking = far.request_json("GET", "/api/v1/experiment", None);
            let (answer, _stream) = tokio::join!(asking, answering);
            let error = answer.unwrap_err().to_string();
            assert!(error.contains(remedy), "{scheme}: {error}");
        }
        let unknown = "invalid peer certificate: UnknownIssuer";
        assert!(connection_advice(unknown).contains("--ca-file"));
        assert_eq!(connection_advice("Connection refused (os error 111)"), "");
    }

    #[tokio::test]
    async fn a_token_is_never_sent_unencrypted_to_an_https_address() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("HTTPS://127.0.0.1:{}", listener.local_addr().unwrap().port());
        let far =
            Client::Remote { url, token: Some("secret".to_owned()), ca_pem: None, socket: None };
        let listening = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut received = vec![0; 4096];
            let length = stream.read(&mut received).await.unwrap();
            received.truncate(length);
            received
        };
        let asking = far.request_json("GET", "/api/v1/experiment", None);
        let (answer, received) = tokio::join!(asking, listening);
        // A handshake record of TLS (RFC 8446, section 5.1). The test does not answer it.
        assert_eq!(received.first(), Some(&22), "{received:?}");
        assert!(matches!(answer, Err(Error::Unreachable { .. })), "{answer:?}");
    }
}
