//! A loopback HTTP endpoint for the command channel of NNI's SDK (version 3: the variable `NNI_TRIAL_COMMAND_CHANNEL`).
//! It shields an unmodified trial from a manager that is slow or absent.
//!
//! The SDK sends commands with `PUT` and polls for answers with `GET`, on one URL, without a timeout and without a
//! second attempt (NNI 3.0, `nni/runtime/command_channel/http.py`). The agent therefore answers every request at once
//! from its own data, and passes a metric on before it answers the `PUT`. Only a `GET` without an answer waits, for at
//! most [`POLL_INTERVAL`].
//!
//! The socket listens only on 127.0.0.1. The URL's path is random, new for each run, and serves as the credential. A
//! request can only record a metric, or get the trial's parameters.

mod command;

use std::fmt::Write as _;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::{Notify, mpsc, watch};

use crate::collect::Finding;
use crate::http::server::{
    Handler, Head, Limits, Method, Response, ResponseFuture, serve, wait_until_true,
};
use command::ChannelCommand;

/// The variable from which the SDK reads the channel's URL.
pub const CHANNEL_VARIABLE: &str = "NNI_TRIAL_COMMAND_CHANNEL";

/// The maximum time that a `GET` waits for an answer, as in NNI's own server.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// A body may be large, because a metric of a million characters is encoded as JSON three times. There is no timeout: a
/// trial that is stopped during a request would not try again.
const CHANNEL_LIMITS: Limits =
    Limits { connections: 256, body_bytes: 8 * 1024 * 1024, client_timeout: None };

/// The endpoint, bound but not yet served.
#[derive(Debug)]
pub struct Channel {
    listener: TcpListener,
    address: SocketAddr,
    path: String,
}

/// The errors of opening the endpoint.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The socket on the loopback interface could not be opened.
    #[error("cannot listen on 127.0.0.1 for the trial's SDK, which will print its metrics")]
    Listen(#[source] io::Error),
    /// The path could not be generated.
    #[error("cannot get random bytes for the SDK's channel; the SDK will print its metrics")]
    NoRandomness,
}

/// The state that all connections share.
#[derive(Debug)]
struct ChannelState {
    path: String,
    /// The answer to a parameter request.
    parameters: String,
    /// The number of parameter requests that no `GET` has answered yet.
    pending_requests: AtomicUsize,
    /// Wakes a waiting `GET`.
    request_added: Notify,
    found: mpsc::Sender<Finding>,
    ended: watch::Receiver<bool>,
}

impl Channel {
    /// Binds a free port of the loopback interface.
    pub async fn bind() -> Result<Self, Error> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.map_err(Error::Listen)?;
        let address = listener.local_addr().map_err(Error::Listen)?;
        Ok(Self { listener, address, path: random_path()? })
    }

    /// Returns the value for [`CHANNEL_VARIABLE`]. The SDK's HTTP library uses `HTTP_PROXY` even for the loopback
    /// address, so a trial with a proxy also needs [`no_proxy`].
    pub fn url(&self) -> String {
        format!("http://{}{}", self.address, self.path)
    }

    /// Serves until `ended` is true. A waiting poll then gets the answer that the channel is closed.
    ///
    /// `record` is the parameter record (the content of `parameter.cfg`), with which every parameter request is
    /// answered, because each process of a trial may send one. Metrics are sent to `found`. While that is full, their
    /// `PUT`s wait.
    pub async fn serve(
        self,
        record: &str,
        found: mpsc::Sender<Finding>,
        ended: watch::Receiver<bool>,
    ) {
        let shared = ChannelState {
            path: self.path,
            parameters: command::parameter_answer(record),
            pending_requests: AtomicUsize::new(0),
            request_added: Notify::new(),
            found,
            ended: ended.clone(),
        };
        serve(self.listener, CHANNEL_LIMITS, Arc::new(shared), ended).await;
    }
}

/// Returns `existing`, the value of `NO_PROXY`, with the loopback address added.
pub fn no_proxy(existing: Option<&str>) -> String {
    match existing.map(str::trim) {
        None | Some("") => "127.0.0.1".to_owned(),
        Some("*") => "*".to_owned(),
        Some(hosts) if hosts.split(',').any(|host| host.trim() == "127.0.0.1") => hosts.to_owned(),
        Some(hosts) => format!("{hosts},127.0.0.1"),
    }
}

fn random_path() -> Result<String, Error> {
    let mut bytes = [0_u8; 16];
    let provider = rustls::crypto::ring::default_provider();
    provider.secure_random.fill(&mut bytes).map_err(|_| Error::NoRandomness)?;
    let mut path = "/".to_owned();
    for byte in bytes {
        write!(path, "{byte:02x}").expect("writing to a String cannot fail");
    }
    Ok(path)
}

impl Handler for ChannelState {
    fn respond<'a>(&'a self, head: &'a Head, body: &'a [u8]) -> ResponseFuture<'a> {
        Box::pin(async move {
            if head.target != self.path {
                return Response::empty("404 Not Found");
            }
            match head.method {
                Method::Put => handle_put(body, self).await,
                Method::Get => handle_poll(self).await,
                Method::Other => Response::empty("405 Method Not Allowed"),
            }
        })
    }
}

async fn handle_put(body: &[u8], shared: &ChannelState) -> Response {
    let finding = match command::parse(body) {
        ChannelCommand::RequestParameter => {
            shared.pending_requests.fetch_add(1, Ordering::Relaxed);
            shared.request_added.notify_one();
            return Response::empty("200 OK");
        }
        ChannelCommand::Finding(finding) => finding,
    };
    let status = match finding {
        Finding::Metric(_) => "200 OK",
        Finding::Unreadable { .. } => "400 Bad Request",
    };
    match shared.found.send(finding).await {
        Ok(()) => Response::empty(status),
        Err(_) => Response::empty("410 Gone"),
    }
}

async fn handle_poll(shared: &ChannelState) -> Response {
    let mut ended = shared.ended.clone();
    let wait = async {
        loop {
            let taken = shared.pending_requests.fetch_update(
                Ordering::Relaxed,
                Ordering::Relaxed,
                |requested| requested.checked_sub(1),
            );
            if taken.is_ok() {
                return;
            }
            shared.request_added.notified().await;
        }
    };
    tokio::select! {
        biased; // A requested parameter is returned even at the end.
        () = wait => Response { body: shared.parameters.clone(), ..Response::empty("200 OK") },
        () = wait_until_true(&mut ended) => Response::empty("410 Gone"),
        () = tokio::time::sleep(POLL_INTERVAL) => Response::empty("408 Request Timeout"),
    }
}

#[cfg(test)]
mod tests;
