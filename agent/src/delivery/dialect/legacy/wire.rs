//! HTTP/1.1 over one persistent connection, one request at a time.
//!
//! Here, a line costs one write and one read. The general client costs several times as much, and an NNI manager
//! supports neither TLS nor newer versions of HTTP.

use std::io;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::Error;
use crate::http::client::{ANSWER_TIMEOUT, CONNECT_TIMEOUT};

/// The maximum length of an answer's head, in bytes.
const MAX_HEAD_BYTES: usize = 64 << 10;
/// The maximum length of a body that is read to keep the connection, in bytes.
const MAX_BODY_BYTES: usize = 64 << 10;

/// A connection to one manager.
#[derive(Debug)]
pub struct Connection {
    base: String,
    stream: TcpStream,
    buffer: Vec<u8>,
}

/// The relevant parts of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) retry_after_seconds: Option<u64>,
}

/// The head of an answer.
#[derive(Debug, PartialEq, Eq)]
struct AnswerHead {
    answer: Answer,
    /// The length of the head in bytes.
    length: usize,
    /// The length of the body in bytes. `None`: its end is unknown, so the connection cannot be used again.
    body: Option<usize>,
}

/// Posts `body` and reads the answer. Uses `connection` if it is still open.
pub(super) async fn exchange(
    connection: &mut Option<Connection>,
    base: &str,
    path: &impl Fn() -> String,
    body: &str,
) -> Result<Answer, Error> {
    let unanswered = |source| Error::NoAnswer { url: format!("{base}{}", path()), source };
    let (authority, prefix) = split_base_url(base)?;
    let request = format!(
        "POST {prefix}{} HTTP/1.1\r\nHost: {authority}\r\nUser-Agent: trialkeeper/{}\r\n\
         Accept: application/json\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        path(),
        env!("CARGO_PKG_VERSION"),
        body.len(),
    );
    // A server closes a connection that was idle for some seconds. It has then not read this request.
    let kept = connection.take().filter(|kept| kept.base == base && kept.is_open());
    let reused = kept.is_some();
    let mut current = match kept {
        Some(kept) => kept,
        None => Connection::open(base, authority).await.map_err(unanswered)?,
    };
    let mut answered = current.exchange(request.as_bytes()).await;
    if reused && answered.as_ref().is_err_and(|_| current.buffer.is_empty()) {
        current = Connection::open(base, authority).await.map_err(unanswered)?;
        answered = current.exchange(request.as_bytes()).await;
    }
    let (answer, keep) = answered.map_err(unanswered)?;
    if keep {
        *connection = Some(current);
    }
    Ok(answer)
}

/// PURE: returns `host:port` of `http://host:port/path`, and the path before the API's.
fn split_base_url(base: &str) -> Result<(&str, &str), Error> {
    let rest = base.strip_prefix("http://").map(|rest| rest.trim_end_matches('/'));
    let (authority, prefix) = match rest {
        Some(rest) => rest.split_at(rest.find('/').unwrap_or(rest.len())),
        None => ("", ""),
    };
    let is_printable = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
    if authority.is_empty() || !is_printable(base) {
        return Err(Error::Address { url: base.to_owned() });
    }
    Ok((authority, prefix))
}

impl Connection {
    async fn open(base: &str, authority: &str) -> io::Result<Self> {
        let has_port = authority.rfind(':') > authority.rfind(']');
        let with_port;
        let address = if has_port {
            authority
        } else {
            with_port = format!("{authority}:80");
            &with_port
        };
        let stream = timeout(CONNECT_TIMEOUT, TcpStream::connect(address)).await??;
        stream.set_nodelay(true)?;
        Ok(Self { base: base.to_owned(), stream, buffer: Vec::new() })
    }

    /// Returns whether the server has left the connection open and sent nothing.
    fn is_open(&self) -> bool {
        let mut byte = [0];
        let silent = self.stream.try_read(&mut byte);
        silent.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }

    /// Sends a request and reads the answer. Returns whether the connection can be used again. After an error, the
    /// buffer is empty if no byte of an answer arrived.
    async fn exchange(&mut self, request: &[u8]) -> io::Result<(Answer, bool)> {
        self.buffer.clear();
        timeout(ANSWER_TIMEOUT, async {
            self.stream.write_all(request).await?;
            let head = loop {
                match parse_head(&self.buffer)? {
                    // An interim answer, such as "Continue".
                    Some(head) if head.answer.status < 200 => {
                        self.buffer.drain(..head.length);
                    }
                    Some(head) => break head,
                    None if self.buffer.len() > MAX_HEAD_BYTES => return Err(not_http("too long")),
                    None => self.read().await?,
                }
            };
            let body = head.body.filter(|length| *length <= MAX_BODY_BYTES);
            let Some(whole) = body.map(|body| head.length + body) else {
                return Ok((head.answer, false));
            };
            while self.buffer.len() < whole {
                self.read().await?;
            }
            // The connection cannot be used again if it has unexpected bytes, which would precede the next answer.
            Ok((head.answer, self.buffer.len() == whole))
        })
        .await?
    }

    async fn read(&mut self) -> io::Result<()> {
        match self.stream.read_buf(&mut self.buffer).await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }
}

fn not_http(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the answer is not HTTP ({why})"))
}

/// PURE: parses the head of an answer. Returns `None` if it is incomplete.
fn parse_head(bytes: &[u8]) -> io::Result<Option<AnswerHead>> {
    let mut headers = [httparse::EMPTY_HEADER; 64];
    let mut response = httparse::Response::new(&mut headers);
    let length = match response.parse(bytes) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(error) => return Err(not_http(&error.to_string())),
    };
    let header = |name: &str| {
        let found = response.headers.iter().find(|header| header.name.eq_ignore_ascii_case(name));
        found.and_then(|header| std::str::from_utf8(header.value).ok()).map(str::trim)
    };
    let status = response.code.unwrap_or(0);
    let closes = header("connection").is_some_and(|value| value.eq_ignore_ascii_case("close"))
        || response.version == Some(0);
    let body = match header("content-length").map(str::parse) {
        _ if closes || header("transfer-encoding").is_some() => None,
        _ if status < 200 || status == 204 || status == 304 => Some(0),
        Some(Ok(body)) => Some(body),
        Some(Err(_)) | None => None,
    };
    let retry_after_seconds = header("retry-after").and_then(|value| value.parse().ok());
    Ok(Some(AnswerHead { answer: Answer { status, retry_after_seconds }, length, body }))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn relevant_parts_of_answers_are_parsed() {
        let head = |status, length, body, retry_after_seconds| {
            Some(AnswerHead { answer: Answer { status, retry_after_seconds }, length, body })
        };
        #[rustfmt::skip]
        let table = [
            ("what the server sends", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",            head(200, 38, Some(0), None)),
            ("a body",                "HTTP/1.1 500 No\r\ncontent-length: 12\r\n\r\nmetr",       head(500, 39, Some(12), None)),
            ("nothing to come",       "HTTP/1.1 204 No\r\n\r\n",                                 head(204, 19, Some(0), None)),
            ("a stream",              "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",   head(200, 47, None, None)),
            ("an end",                "HTTP/1.1 200 OK\r\nConnection: Close\r\nContent-Length: 0\r\n\r\n", head(200, 57, None, None)),
            ("no length",             "HTTP/1.1 200 OK\r\n\r\n",                                 head(200, 19, None, None)),
            ("a strange length",      "HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",            head(200, 38, None, None)),
            ("an old server",         "HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n",            head(200, 38, None, None)),
            ("busy",                  "HTTP/1.1 503 B\r\nRetry-After: 7\r\nContent-Length: 0\r\n\r\n", head(503, 53, Some(0), Some(7))),
            ("a beginning",           "HTTP/1.1 200 OK\r\nContent-",                             None),
            ("nothing",               "",                                                        None),
        ];
        for (case, bytes, expected) in table {
            assert_eq!(parse_head(bytes.as_bytes()).unwrap(), expected, "{case}");
        }
        assert!(parse_head(b"SSH-2.0-OpenSSH\r\n\r\n").is_err());
    }

    #[test]
    fn addresses_are_hosts_with_an_optional_path() {
        #[rustfmt::skip]
        let table = [
            ("http://10.0.0.1:8081",      Some(("10.0.0.1:8081", ""))),
            ("http://10.0.0.1:8081/",     Some(("10.0.0.1:8081", ""))),
            ("http://[fd00::1]:80/a/b/",  Some(("[fd00::1]:80", "/a/b"))),
            ("http://host",               Some(("host", ""))),
            ("https://host",              None),
            ("http://",                   None),
            ("http://a b",                None),
            ("http://a\r\nb",             None),
            ("",                          None),
        ];
        for (base, parts) in table {
            assert_eq!(split_base_url(base).ok(), parts, "{base:?}");
        }
    }

    proptest! {
        #[test]
        fn answers_of_random_bytes_never_panic(bytes: Vec<u8>) {
            drop(parse_head(&bytes));
            drop(parse_head(&[b"HTTP/1.1 200 OK\r\n".as_slice(), &bytes].concat()));
        }
    }
}
