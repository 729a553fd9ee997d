//! The connection to an adviser's program: a WebSocket that the program opens, or its standard input and output. This
//! module does not interpret the messages.
//!
//! A separate task writes the messages, so that a program that does not read blocks only that task.

use std::io;
use std::time::Duration;

use futures_util::stream::SplitStream;
use futures_util::{SinkExt, StreamExt};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{ChildStdin, ChildStdout};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::server::{ErrorResponse, Request, Response};
use tokio_tungstenite::{WebSocketStream, accept_hdr_async};

/// The time that a client may take to request its path after it has connected.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// The maximum size of a line in bytes. Every proposal is shorter, and a program that prints without end must not
/// fill the memory.
const MAX_LINE_BYTES: usize = 16 << 20;

/// The connection to a program.
pub(super) enum ProgramConnection {
    /// The program has not connected yet; a task waits for the connection.
    Listening(JoinSet<Option<Socket>>),
    /// The program has connected.
    Socket(Box<SplitStream<Socket>>, MessageWriter),
    /// The program's standard input and output.
    Pipes(Lines<ChildStdout>, MessageWriter),
    /// The connection is closed.
    Closed,
}

/// A WebSocket to a program on this machine.
type Socket = WebSocketStream<TcpStream>;

/// The queue of messages, and the task that sends them. Dropping it ends the task.
pub(super) struct MessageWriter {
    /// `None` once the queue is closed. Unbounded, because there are few requests while a program hangs.
    texts: Option<mpsc::UnboundedSender<String>>,
    _writer: JoinSet<()>,
}

impl MessageWriter {
    /// Starts the task. It ends silently on an error, because the reader detects a closed connection.
    fn new<F>(write: impl FnOnce(mpsc::UnboundedReceiver<String>) -> F) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (texts, queue) = mpsc::unbounded_channel();
        let mut writer = JoinSet::new();
        writer.spawn(write(queue));
        Self { texts: Some(texts), _writer: writer }
    }
}

/// An incoming message or event.
pub(super) enum Incoming {
    /// The program has connected, and the conversation can begin.
    Connected,
    /// The program has sent a text.
    Text(String),
    /// The connection is closed, by the program or after an error.
    Closed,
}

impl ProgramConnection {
    /// Listens on the loopback interface, and returns the URL. Only a client that requests the path with `secret` is
    /// accepted.
    pub(super) async fn listen(secret: &str) -> io::Result<(Self, String)> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let path = format!("/{secret}/tuner");
        let url = format!("ws://{}{path}", listener.local_addr()?);
        let mut waiting = JoinSet::new();
        waiting.spawn(accept_client(listener, path));
        Ok((Self::Listening(waiting), url))
    }

    /// Returns the connection to the pipes of a program that was just started.
    pub(super) fn from_pipes(input: ChildStdin, output: ChildStdout) -> Self {
        let writer = MessageWriter::new(|mut queue| async move {
            let mut input = input;
            while let Some(text) = queue.recv().await {
                if input.write_all(format!("{text}\n").as_bytes()).await.is_err() {
                    break;
                }
            }
        });
        Self::Pipes(Lines::new(output), writer)
    }

    /// Waits for the next message. Cancel safe.
    pub(super) async fn next(&mut self) -> Incoming {
        let incoming = match self {
            Self::Listening(waiting) => match waiting.join_next().await {
                Some(Ok(Some(socket))) => {
                    let (mut sink, stream) = socket.split();
                    let writer = MessageWriter::new(|mut queue| async move {
                        while let Some(text) = queue.recv().await {
                            if sink.send(Message::text(text)).await.is_err() {
                                break;
                            }
                        }
                    });
                    *self = Self::Socket(Box::new(stream), writer);
                    return Incoming::Connected;
                }
                Some(Ok(None) | Err(_)) | None => None,
            },
            Self::Socket(socket, _) => loop {
                match socket.next().await {
                    Some(Ok(Message::Text(text))) => break Some(text.as_str().to_owned()),
                    Some(Ok(Message::Binary(_) | Message::Ping(_) | Message::Pong(_))) => {}
                    Some(Ok(Message::Close(_) | Message::Frame(_)) | Err(_)) | None => break None,
                }
            },
            Self::Pipes(lines, _) => lines.next().await,
            Self::Closed => std::future::pending().await,
        };
        match incoming {
            Some(text) => Incoming::Text(text),
            None => {
                *self = Self::Closed;
                Incoming::Closed
            }
        }
    }

    /// Queues a message, which is sent as soon as the program reads.
    pub(super) fn send(&self, text: String) {
        if let Self::Socket(_, writer) | Self::Pipes(_, writer) = self
            && let Some(texts) = &writer.texts
        {
            drop(texts.send(text));
        }
    }

    /// Closes the queue of messages. A program that reads its standard input then receives the end of the input.
    pub(super) fn close_queue(&mut self) {
        if let Self::Socket(_, writer) | Self::Pipes(_, writer) = self {
            writer.texts = None;
        }
    }
}

/// The lines of a foreign program, which may contain arbitrary bytes.
pub(super) struct Lines<R> {
    reader: BufReader<R>,
    /// The beginning of the next message.
    begun: Vec<u8>,
}

impl<R: AsyncRead + Unpin> Lines<R> {
    fn new(reader: R) -> Self {
        Self { reader: BufReader::new(reader), begun: Vec::new() }
    }

    /// Returns the next line without its terminator. `None` at the end, after an error, and for a line that is too
    /// long. Cancel safe.
    async fn next(&mut self) -> Option<String> {
        loop {
            let chunk = self.reader.fill_buf().await.ok()?;
            let end = chunk.iter().position(|byte| *byte == b'\n');
            let length = end.unwrap_or(chunk.len());
            let over = chunk.is_empty();
            self.begun.extend_from_slice(&chunk[..length]);
            self.reader.consume(length + usize::from(end.is_some()));
            if self.begun.len() > MAX_LINE_BYTES || (over && self.begun.is_empty()) {
                return None;
            }
            if end.is_some() || over {
                let line = std::mem::take(&mut self.begun);
                return Some(String::from_utf8_lossy(&line).into_owned());
            }
        }
    }
}

/// Waits for a client that requests `path`; all others are rejected.
async fn accept_client(listener: TcpListener, path: String) -> Option<Socket> {
    loop {
        let (stream, _) = listener.accept().await.ok()?;
        #[expect(clippy::result_large_err, reason = "the library's own type for a refusal")]
        let check = |request: &Request, response: Response| {
            if request.uri().path() == path {
                return Ok(response);
            }
            let (mut head, ()) = response.into_parts();
            head.status = 404.try_into().unwrap_or_default();
            Err(ErrorResponse::from_parts(head, None))
        };
        let accepted = timeout(HANDSHAKE_TIMEOUT, accept_hdr_async(stream, check)).await;
        if let Ok(Ok(socket)) = accepted {
            return Some(socket);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn lines(bytes: &[u8]) -> Vec<String> {
        let (mut lines, mut found) = (Lines::new(bytes), Vec::new());
        while let Some(line) = lines.next().await {
            found.push(line);
        }
        found
    }

    #[tokio::test]
    async fn invalid_bytes_are_replaced_and_an_endless_line_ends_the_input() {
        assert_eq!(lines(b"a\n\n\xff b\nlast").await, ["a", "", "\u{fffd} b", "last"]);
        let endless = [b"a\n".as_slice(), &vec![b'x'; MAX_LINE_BYTES + 1]].concat();
        assert_eq!(lines(&endless).await, ["a"]);
    }
}
