//! The wire to an adviser's program: a WebSocket that the program opens, or its standard input and output. The wire
//! does not understand the messages.
//!
//! A task of its own writes the messages: a program that does not listen holds up no other.

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

/// The time that a client may take, once it has connected, to name the path that it wants.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// Bytes of one line at most: no proposal is longer, and a program that prints without end must not fill the memory.
const MAX_LINE_BYTES: usize = 16 << 20;

/// The way to one program.
pub(super) enum Wire {
    /// It has not connected yet; a task waits for it.
    Listening(JoinSet<Option<Socket>>),
    /// It has connected.
    Socket(Box<SplitStream<Socket>>, MessageWriter),
    /// Its standard input and output.
    Pipes(Lines<ChildStdout>, MessageWriter),
    /// Nothing more will come.
    Closed,
}

/// A WebSocket to a program on this machine.
type Socket = WebSocketStream<TcpStream>;

/// The messages to send, and the task that sends them. Dropped, it says no more.
pub(super) struct MessageWriter {
    /// `None`: nothing will be added. As few as there are orders while a program hangs.
    texts: Option<mpsc::UnboundedSender<String>>,
    _writer: JoinSet<()>,
}

impl MessageWriter {
    /// That the way is closed is noticed where the next word is awaited, so a writer ends without a word.
    fn new<F>(write: impl FnOnce(mpsc::UnboundedReceiver<String>) -> F) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (texts, unsaid) = mpsc::unbounded_channel();
        let mut writer = JoinSet::new();
        writer.spawn(write(unsaid));
        Self { texts: Some(texts), _writer: writer }
    }
}

/// The kind of input that came.
pub(super) enum Incoming {
    /// It has connected: the conversation can begin.
    Connected,
    /// A text.
    Text(String),
    /// The way is closed, from the other side or by an error.
    Closed,
}

impl Wire {
    /// Opens a door on the loopback interface, and says where it is. Only who knows `secret` is let in.
    pub(super) async fn door(secret: &str) -> io::Result<(Self, String)> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let path = format!("/{secret}/tuner");
        let url = format!("ws://{}{path}", listener.local_addr()?);
        let mut waiting = JoinSet::new();
        waiting.spawn(accept(listener, path));
        Ok((Self::Listening(waiting), url))
    }

    /// The pipes of a program that has just been started.
    pub(super) fn pipes(input: ChildStdin, output: ChildStdout) -> Self {
        let mouth = MessageWriter::new(|mut unsaid| async move {
            let mut input = input;
            while let Some(text) = unsaid.recv().await {
                if input.write_all(format!("{text}\n").as_bytes()).await.is_err() {
                    break;
                }
            }
        });
        Self::Pipes(Lines::new(output), mouth)
    }

    /// Waits for what comes next. May be dropped at any time without a loss.
    pub(super) async fn next(&mut self) -> Incoming {
        let came = match self {
            Self::Listening(waiting) => match waiting.join_next().await {
                Some(Ok(Some(socket))) => {
                    let (mut sink, stream) = socket.split();
                    let mouth = MessageWriter::new(|mut unsaid| async move {
                        while let Some(text) = unsaid.recv().await {
                            if sink.send(Message::text(text)).await.is_err() {
                                break;
                            }
                        }
                    });
                    *self = Self::Socket(Box::new(stream), mouth);
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
        match came {
            Some(text) => Incoming::Text(text),
            None => {
                *self = Self::Closed;
                Incoming::Closed
            }
        }
    }

    /// Says something, as soon as the program listens.
    pub(super) fn say(&self, text: String) {
        if let Self::Socket(_, mouth) | Self::Pipes(_, mouth) = self
            && let Some(texts) = &mouth.texts
        {
            drop(texts.send(text));
        }
    }

    /// Says no more than was said: a program that reads its standard input comes to its end.
    pub(super) fn hush(&mut self) {
        if let Self::Socket(_, mouth) | Self::Pipes(_, mouth) = self {
            mouth.texts = None;
        }
    }
}

/// Lines of a foreign program, whatever bytes they hold.
pub(super) struct Lines<R> {
    reader: BufReader<R>,
    /// The beginning of the next message.
    begun: Vec<u8>,
}

impl<R: AsyncRead + Unpin> Lines<R> {
    fn new(reader: R) -> Self {
        Self { reader: BufReader::new(reader), begun: Vec::new() }
    }

    /// The next line, without its end; `None` at the end, after an error, and for one that is too long. May be dropped
    /// at any time without a loss.
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

/// Waits for the one who knows the path; others are sent away.
async fn accept(listener: TcpListener, path: String) -> Option<Socket> {
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
        let accepted = timeout(HANDSHAKE, accept_hdr_async(stream, check)).await;
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
    async fn foreign_bytes_are_lines_and_one_without_end_is_given_up() {
        assert_eq!(lines(b"a\n\n\xff b\nlast").await, ["a", "", "\u{fffd} b", "last"]);
        let endless = [b"a\n".as_slice(), &vec![b'x'; MAX_LINE_BYTES + 1]].concat();
        assert_eq!(lines(&endless).await, ["a"]);
    }
}
