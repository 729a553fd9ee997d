//! A small HTTP server for the SDK's channel and for `--listen`.
//!
//! It limits heads, bodies, connections and, on request, the time of clients. Connections are tasks that [`serve`] owns
//! and ends. A [`Handler`] produces the responses.

mod head;

pub use head::{Head, Method};

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use head::{Refusal, parse_head};

/// The time that clients still waiting at the end have to receive their responses.
const LAST_ANSWERS_TIMEOUT: Duration = Duration::from_secs(1);

/// A response to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Response {
    /// The status code and its phrase.
    pub status: &'static str,
    /// The media type of the body.
    pub media_type: &'static str,
    /// The body.
    pub body: String,
}

impl Response {
    /// Returns a response without a body.
    pub fn empty(status: &'static str) -> Self {
        Self { status, media_type: "application/json", body: String::new() }
    }
}

/// A future that produces a response.
pub type ResponseFuture<'a> = Pin<Box<dyn Future<Output = Response> + Send + 'a>>;

/// The part of a server that answers requests.
pub trait Handler: Send + Sync {
    /// Answers one request.
    fn respond<'a>(&'a self, head: &'a Head, body: &'a [u8]) -> ResponseFuture<'a>;
}

/// The limits for clients.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// The maximum number of connections at a time. Others wait in the kernel's queue.
    pub connections: usize,
    /// The maximum size of a body, in bytes.
    pub body_bytes: usize,
    /// The maximum time in which a request must arrive, including the silence before it, and in which its answer must
    /// be read. `None`: no limit.
    pub client_timeout: Option<Duration>,
}

/// Serves until `ended` is true or its sender is dropped. Then waits briefly for responses in progress.
pub async fn serve(
    listener: TcpListener,
    limits: Limits,
    handler: Arc<dyn Handler>,
    mut ended: watch::Receiver<bool>,
) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            () = wait_until_true(&mut ended) => break,
            Some(_) = connections.join_next() => {}
            accepted = listener.accept(), if connections.len() < limits.connections => {
                match accepted {
                    Ok((stream, _)) => {
                        let handler = Arc::clone(&handler);
                        connections.spawn(async move {
                            // A broken connection affects only its client, which sends the request again.
                            drop(serve_connection(stream, limits, handler.as_ref()).await);
                        });
                    }
                    // Most likely, the process has no free descriptors. Other connections will close theirs.
                    Err(error) => {
                        tracing::warn!(%error, "a connection could not be accepted");
                        tokio::time::sleep(Duration::from_millis(100)).await;
                    }
                }
            }
        }
    }
    // Handlers observe `ended` themselves, and silent clients are not waited for. Dead processes have closed their
    // connections, so this takes time only if a client is still running.
    let responses = async { while connections.join_next().await.is_some() {} };
    drop(tokio::time::timeout(LAST_ANSWERS_TIMEOUT, responses).await);
}

/// Waits until `ended` is true, or can no longer become true.
pub async fn wait_until_true(ended: &mut watch::Receiver<bool>) {
    drop(ended.wait_for(|ended| *ended).await);
}

/// Answers the requests of one connection, until either side closes it.
async fn serve_connection(
    mut stream: TcpStream,
    limits: Limits,
    handler: &dyn Handler,
) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = Vec::new();
    loop {
        let read = read_request(&mut stream, &mut buffer, limits);
        let head = match with_timeout(limits.client_timeout, read).await? {
            Some(Ok(head)) => head,
            Some(Err(status)) => {
                let write = write_response(&mut stream, Response::empty(status), false);
                return with_timeout(limits.client_timeout, write).await;
            }
            None => return Ok(()),
        };
        let response = handler.respond(&head, &buffer[..head.body_length]).await;
        buffer.drain(..head.body_length);
        let write = write_response(&mut stream, response, head.keeps_alive);
        with_timeout(limits.client_timeout, write).await?;
        if !head.keeps_alive {
            return Ok(());
        }
    }
}

async fn with_timeout<T>(
    client_timeout: Option<Duration>,
    work: impl Future<Output = io::Result<T>>,
) -> io::Result<T> {
    match client_timeout {
        Some(client_timeout) => tokio::time::timeout(client_timeout, work).await?,
        None => work.await,
    }
}

/// Reads a request. Returns its head and leaves its body at the start of `buffer`. Returns `None` if the peer has
/// closed the connection, or the status of a refusal.
async fn read_request(
    stream: &mut TcpStream,
    buffer: &mut Vec<u8>,
    limits: Limits,
) -> io::Result<Option<Result<Head, &'static str>>> {
    let head = loop {
        match parse_head(buffer) {
            Ok(Some((head, length))) => {
                buffer.drain(..length);
                break head;
            }
            Ok(None) if stream.read_buf(buffer).await? == 0 => return Ok(None),
            Ok(None) => {}
            Err(refusal) => return Ok(Some(Err(Refusal::status(refusal)))),
        }
    };
    if head.body_length > limits.body_bytes {
        return Ok(Some(Err("413 Content Too Large")));
    }
    if head.expects_continue {
        stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await?;
    }
    while buffer.len() < head.body_length {
        if stream.read_buf(buffer).await? == 0 {
            return Ok(None);
        }
    }
    Ok(Some(Ok(head)))
}

async fn write_response(
    stream: &mut TcpStream,
    response: Response,
    keeps_alive: bool,
) -> io::Result<()> {
    let Response { status, media_type, body } = response;
    let length = body.len();
    let connection = if keeps_alive { "keep-alive" } else { "close" };
    let text = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {media_type}\r\nContent-Length: {length}\r\n\
         Connection: {connection}\r\n\r\n{body}"
    );
    stream.write_all(text.as_bytes()).await
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Echo;

    impl Handler for Echo {
        fn respond<'a>(&'a self, head: &'a Head, _: &'a [u8]) -> ResponseFuture<'a> {
            Box::pin(async { Response { body: head.target.clone(), ..Response::empty("200 OK") } })
        }
    }

    async fn read_until_close(stream: &mut TcpStream) -> String {
        let mut all = String::new();
        stream.read_to_string(&mut all).await.unwrap();
        all
    }

    #[tokio::test(start_paused = true)]
    async fn slow_clients_are_closed_and_excess_clients_wait() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let limits =
            Limits { connections: 2, body_bytes: 0, client_timeout: Some(Duration::from_secs(10)) };
        let (_end, ended) = watch::channel(false);
        tokio::spawn(serve(listener, limits, Arc::new(Echo), ended));
        let mut silent = TcpStream::connect(address).await.unwrap();
        let mut slow = TcpStream::connect(address).await.unwrap();
        slow.write_all(b"GET /x HTTP/1.1\r\n").await.unwrap();
        // A third connection is served only after one of them was closed.
        let mut third = TcpStream::connect(address).await.unwrap();
        third.write_all(b"GET /y HTTP/1.0\r\n\r\n").await.unwrap();
        assert!(read_until_close(&mut third).await.ends_with("\r\n\r\n/y"));
        assert_eq!(read_until_close(&mut silent).await, "");
        assert_eq!(read_until_close(&mut slow).await, "");
        let mut large = TcpStream::connect(address).await.unwrap();
        large.write_all(b"PUT /x HTTP/1.1\r\nContent-Length: 1\r\n\r\n").await.unwrap();
        assert!(read_until_close(&mut large).await.starts_with("HTTP/1.1 413 "));
    }
}
