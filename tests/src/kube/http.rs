//! The part of HTTP/1.1 that a Kubernetes client uses: sequential requests, request bodies with a length, and
//! answers with a length or in chunks.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde_json::Value;

use super::objects::ObjectChange;
use super::{Shared, api};

/// A request.
pub(super) struct Request {
    pub(super) method: String,
    /// The parts of the path, decoded.
    pub(super) path: Vec<String>,
    pub(super) query: Vec<(String, String)>,
    pub(super) authorization: String,
    pub(super) content_type: String,
    pub(super) body: Value,
}

impl Request {
    pub(super) fn query(&self, name: &str) -> Option<&str> {
        self.query.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

/// An event of a watch.
pub(super) enum WatchEvent {
    /// A change of an object.
    Changed(Arc<ObjectChange>),
    /// A bookmark or an error.
    Other(Value),
}

/// Returns the pieces of a text in order, and `None` at its end.
pub(super) type TextPieces = Box<dyn FnMut() -> Option<Vec<u8>>>;

/// The answer to a request.
pub(super) enum Answer {
    /// A status code and JSON.
    Json(u16, Value),
    /// Watch events, one per line, until the function returns `None`.
    Watch(Box<dyn FnMut() -> Option<WatchEvent>>),
    /// A text in pieces, until the function returns `None`.
    Text(TextPieces),
    /// No answer: the connection is cut.
    Cut,
}

pub(super) fn serve(listener: &TcpListener, shared: &Arc<Shared>) {
    for stream in listener.incoming() {
        if shared.is_ending.load(Ordering::SeqCst) {
            return;
        }
        let Ok(stream) = stream else { continue };
        let shared = Arc::clone(shared);
        // Ignored: a client may disconnect.
        std::thread::spawn(move || handle_connection(&stream, &shared).ok());
    }
}

fn handle_connection(stream: &TcpStream, shared: &Arc<Shared>) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut reader = BufReader::new(stream);
    let mut writer = stream;
    while let Some(request) = read_request(&mut reader)? {
        match api::answer_request(shared, &request) {
            Answer::Json(code, body) => {
                let body = body.to_string();
                // The real server also asks clients to wait for a second.
                let after = if code == 429 { "Retry-After: 1\r\n" } else { "" };
                write!(
                    writer,
                    "HTTP/1.1 {code} Scripted\r\n{after}Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
                    body.len()
                )?;
            }
            Answer::Watch(mut next) => {
                write!(
                    writer,
                    "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
                )?;
                while let Some(event) = next() {
                    let word;
                    let line = match &event {
                        WatchEvent::Changed(change) => change.line(),
                        WatchEvent::Other(value) => {
                            word = format!("{value}\n");
                            &word
                        }
                    };
                    // In one packet, because three small ones would add a delay that a real server does not
                    // have.
                    writer.write_all(format!("{:x}\r\n{line}\r\n", line.len()).as_bytes())?;
                    if let WatchEvent::Changed(change) = event {
                        shared.objects.record_sent(change.version);
                    }
                }
                // Without a final chunk, so that the client does not take the cut for a regular end.
                return Ok(());
            }
            Answer::Text(mut next) => {
                write!(
                    writer,
                    "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n"
                )?;
                while let Some(piece) = next() {
                    write!(writer, "{:x}\r\n", piece.len())?;
                    writer.write_all(&piece)?;
                    writer.write_all(b"\r\n")?;
                }
                writer.write_all(b"0\r\n\r\n")?;
            }
            Answer::Cut => return Ok(()),
        }
        writer.flush()?;
    }
    Ok(())
}

fn read_request(reader: &mut BufReader<&TcpStream>) -> std::io::Result<Option<Request>> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let mut words = line.split_whitespace();
    let method = words.next().unwrap_or_default().to_owned();
    let target = words.next().unwrap_or_default().to_owned();
    let (mut length, mut authorization, mut content_type) = (0, String::new(), String::new());
    loop {
        let mut header = String::new();
        if reader.read_line(&mut header)? == 0 || header.trim().is_empty() {
            break;
        }
        let Some((name, value)) = header.split_once(':') else { continue };
        let value = value.trim();
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = value.parse().unwrap_or(0),
            "authorization" => value.clone_into(&mut authorization),
            "content-type" => value.clone_into(&mut content_type),
            _ => {}
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let path = path.split('/').filter(|part| !part.is_empty()).map(decode_percent).collect();
    let query = query.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        (decode_percent(name), decode_percent(value))
    });
    let query = query.collect();
    let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
    Ok(Some(Request { method, path, query, authorization, content_type, body }))
}

fn decode_percent(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        match byte {
            b'+' => bytes.push(b' '),
            b'%' => {
                let digits = [rest.next().unwrap_or(b'0'), rest.next().unwrap_or(b'0')];
                let digits = String::from_utf8_lossy(&digits).into_owned();
                bytes.push(u8::from_str_radix(&digits, 16).unwrap_or(b'?'));
            }
            other => bytes.push(other),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
