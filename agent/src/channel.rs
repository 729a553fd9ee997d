//! A loopback HTTP endpoint that speaks the command channel of NNI's SDK (version 3: the variable
//! `NNI_TRIAL_COMMAND_CHANNEL`), so that an unmodified trial never feels a manager that is slow or gone.
//!
//! The SDK puts commands with `PUT` and polls for answers with `GET`, on one URL, without a timeout and
//! without a second try (NNI 3.0, `nni/runtime/command_channel/http.py`). So every answer is given at once
//! from what the agent holds, a metric is handed on before its `PUT` is answered, and only a `GET` with
//! nothing to say waits, for at most [`POLL`].
//!
//! The socket listens on 127.0.0.1 alone; the URL's path is random, new for each run, and is what entitles
//! to speak. No request makes the agent do anything but record a metric. Heads, bodies and connections are
//! bounded. Connections are tasks, all owned and ended by [`Channel::serve`].

mod command;
mod http;

use std::fmt::Write as _;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinSet;

use crate::collect::Finding;
use command::Command;
use http::{Head, Method, Refusal};

/// Name of the variable that tells the SDK where the channel is.
pub const CHANNEL_VARIABLE: &str = "NNI_TRIAL_COMMAND_CHANNEL";

/// How long a `GET` waits for something to say, as NNI's own server does.
const POLL: Duration = Duration::from_secs(1);

/// Largest body: a metric of a million characters is encoded as JSON three times.
const BODY_BYTES: usize = 8 * 1024 * 1024;

/// How long those who wait for an answer at the end are given to get it.
const LAST_ANSWERS: Duration = Duration::from_secs(1);

/// Most connections at a time; others wait in the kernel's queue.
const CONNECTIONS: usize = 256;

/// The endpoint, bound and not yet served.
#[derive(Debug)]
pub struct Channel {
    listener: TcpListener,
    address: SocketAddr,
    path: String,
}

/// Why the endpoint could not be made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No socket on the loopback interface.
    #[error("cannot listen on 127.0.0.1 for the trial's SDK; it is left to print its metrics")]
    Listen(#[source] io::Error),
    /// No random bytes for the path.
    #[error(
        "the system gave no random bytes for the SDK's channel; it is left to print its metrics"
    )]
    NoRandomness,
}

/// What all connections share.
#[derive(Debug)]
struct Shared {
    path: String,
    /// The answer to a parameter request.
    parameters: String,
    /// Parameter requests that no `GET` has answered yet.
    requested: AtomicUsize,
    /// Wakes a `GET` that waits.
    request: Notify,
    found: mpsc::Sender<Finding>,
    ended: watch::Receiver<bool>,
}

/// What is written back.
#[derive(Debug, PartialEq, Eq)]
struct Answer<'a> {
    status: &'static str,
    body: &'a str,
}

impl Answer<'static> {
    const fn empty(status: &'static str) -> Self {
        Self { status, body: "" }
    }
}

impl Channel {
    /// Binds a free port of the loopback interface.
    pub async fn bind() -> Result<Self, Error> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.map_err(Error::Listen)?;
        let address = listener.local_addr().map_err(Error::Listen)?;
        Ok(Self { listener, address, path: random_path()? })
    }

    /// The value for [`CHANNEL_VARIABLE`]. The SDK's HTTP library obeys `HTTP_PROXY` even for the loopback
    /// address, so a trial that has a proxy also needs [`no_proxy`].
    pub fn url(&self) -> String {
        format!("http://{}{}", self.address, self.path)
    }

    /// Serves until `ended` is true; then a poll that waits is told that the channel is closed.
    ///
    /// `record` is the parameter record (the content of `parameter.cfg`), the answer to every request for
    /// parameters: each process of a trial may ask. What trials report is sent to `found`; while that is
    /// full, their `PUT`s wait.
    pub async fn serve(
        self,
        record: &str,
        found: mpsc::Sender<Finding>,
        mut ended: watch::Receiver<bool>,
    ) {
        let shared = Arc::new(Shared {
            path: self.path,
            parameters: command::parameter_answer(record),
            requested: AtomicUsize::new(0),
            request: Notify::new(),
            found,
            ended: ended.clone(),
        });
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                () = wait_until_true(&mut ended) => break,
                Some(_) = connections.join_next() => {}
                accepted = self.listener.accept(), if connections.len() < CONNECTIONS => {
                    match accepted {
                        Ok((stream, _)) => {
                            let shared = Arc::clone(&shared);
                            connections.spawn(async move {
                                // A connection that breaks concerns its trial alone, which asks again.
                                drop(converse(stream, &shared).await);
                            });
                        }
                        // Out of descriptors, most likely: others close theirs in time.
                        Err(error) => {
                            tracing::warn!(%error, "the SDK's channel could not accept a connection");
                            tokio::time::sleep(Duration::from_millis(100)).await;
                        }
                    }
                }
            }
        }
        // Polls see the end by themselves; whoever is silent is not waited for. Dead processes have closed
        // their connections, so this costs time only where something lives on.
        let polls = async { while connections.join_next().await.is_some() {} };
        drop(tokio::time::timeout(LAST_ANSWERS, polls).await);
    }
}

/// `NO_PROXY` with the loopback address added to what it was.
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
        write!(path, "{byte:02x}").expect("a String takes everything");
    }
    Ok(path)
}

async fn wait_until_true(ended: &mut watch::Receiver<bool>) {
    // A sender that is gone will never say more: that is an end too.
    drop(ended.wait_for(|ended| *ended).await);
}

/// Answers the requests of one connection, until either side closes it.
async fn converse(mut stream: TcpStream, shared: &Shared) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = Vec::new();
    loop {
        let head = match read_head(&mut stream, &mut buffer).await? {
            Some(Ok(head)) => head,
            Some(Err(refusal)) => {
                return write_answer(&mut stream, &Answer::empty(refusal.status()), false).await;
            }
            None => return Ok(()),
        };
        if head.length > BODY_BYTES {
            let answer = Answer::empty("413 Content Too Large");
            return write_answer(&mut stream, &answer, false).await;
        }
        if head.expects_continue {
            stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await?;
        }
        while buffer.len() < head.length {
            if stream.read_buf(&mut buffer).await? == 0 {
                return Ok(());
            }
        }
        let answer = answer(&head, &buffer[..head.length], shared).await;
        buffer.drain(..head.length);
        write_answer(&mut stream, &answer, head.keeps_alive).await?;
        if !head.keeps_alive {
            return Ok(());
        }
    }
}

/// Reads one head off the connection; what follows it stays in `buffer`. `None` if the peer has closed.
async fn read_head(
    stream: &mut TcpStream,
    buffer: &mut Vec<u8>,
) -> io::Result<Option<Result<Head, Refusal>>> {
    loop {
        match http::parse_head(buffer) {
            Ok(Some((head, length))) => {
                buffer.drain(..length);
                return Ok(Some(Ok(head)));
            }
            Ok(None) if stream.read_buf(buffer).await? == 0 => return Ok(None),
            Ok(None) => {}
            Err(refusal) => return Ok(Some(Err(refusal))),
        }
    }
}

async fn answer<'a>(head: &Head, body: &[u8], shared: &'a Shared) -> Answer<'a> {
    if head.target != shared.path {
        return Answer::empty("404 Not Found");
    }
    match head.method {
        Method::Put => put(body, shared).await,
        Method::Get => poll(shared).await,
        Method::Other => Answer::empty("405 Method Not Allowed"),
    }
}

async fn put(body: &[u8], shared: &Shared) -> Answer<'static> {
    let finding = match command::read(body) {
        Command::RequestParameter => {
            shared.requested.fetch_add(1, Ordering::Relaxed);
            shared.request.notify_one();
            return Answer::empty("200 OK");
        }
        Command::Found(finding) => finding,
    };
    let status = match finding {
        Finding::Metric(_) => "200 OK",
        Finding::Unreadable { .. } => "400 Bad Request",
    };
    match shared.found.send(finding).await {
        Ok(()) => Answer::empty(status),
        Err(_) => Answer::empty("410 Gone"),
    }
}

async fn poll(shared: &Shared) -> Answer<'_> {
    let mut ended = shared.ended.clone();
    let wait = async {
        loop {
            let taken =
                shared.requested.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |requested| {
                    requested.checked_sub(1)
                });
            if taken.is_ok() {
                return;
            }
            shared.request.notified().await;
        }
    };
    tokio::select! {
        biased; // A parameter that was asked for is given even at the end.
        () = wait => Answer { status: "200 OK", body: &shared.parameters },
        () = wait_until_true(&mut ended) => Answer::empty("410 Gone"),
        () = tokio::time::sleep(POLL) => Answer::empty("408 Request Timeout"),
    }
}

async fn write_answer(
    stream: &mut TcpStream,
    answer: &Answer<'_>,
    keeps_alive: bool,
) -> io::Result<()> {
    let Answer { status, body } = answer;
    let length = body.len();
    let connection = if keeps_alive { "keep-alive" } else { "close" };
    let text = format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\
         Connection: {connection}\r\n\r\n{body}"
    );
    stream.write_all(text.as_bytes()).await
}

#[cfg(test)]
mod tests;
