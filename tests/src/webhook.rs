//! An HTTP server that records events, and answers with the faults that a test chooses.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use serde_json::Value;

/// The answer to one request.
#[derive(Debug, Clone, Copy)]
pub enum WebhookAnswer {
    /// This status without a body.
    Status(u16),
    /// No answer: the server closes the connection.
    NoAnswer,
    /// Bytes that are not HTTP.
    NotHttp,
    /// Status 200 with a body that never ends.
    EndlessBody,
}

/// A received request.
#[derive(Debug, Clone)]
pub struct ReceivedRequest {
    /// The request line.
    pub line: String,
    /// The headers in lower case, one per line.
    pub headers: Vec<String>,
    /// The body.
    pub event: Value,
}

/// The server. It runs until the test process ends.
#[derive(Debug)]
pub struct WebhookServer {
    port: u16,
    requests: Arc<Mutex<Vec<ReceivedRequest>>>,
}

impl WebhookServer {
    /// Starts a server that gives the first requests these answers, in order. Later requests get 204.
    pub fn start(answers: &'static [WebhookAnswer]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
        let port = listener.local_addr().expect("the listener has an address").port();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&requests);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let Some(request) = read_request(&stream) else { continue };
                let mut received = sink.lock().expect("no other thread panics");
                let answer =
                    answers.get(received.len()).copied().unwrap_or(WebhookAnswer::Status(204));
                received.push(request);
                drop(received);
                // Ignored: the client may close the connection early.
                std::thread::spawn(move || drop(write_answer(stream, answer)));
            }
        });
        Self { port, requests }
    }

    /// The base URL of the server.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Returns the requests received so far.
    pub fn requests(&self) -> Vec<ReceivedRequest> {
        self.requests.lock().expect("no other thread panics").clone()
    }
}

fn read_request(stream: &TcpStream) -> Option<ReceivedRequest> {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let (mut headers, mut length) = (Vec::new(), 0);
    loop {
        let mut header = String::new();
        reader.read_line(&mut header).ok()?;
        let header = header.trim().to_lowercase();
        if header.is_empty() {
            break;
        }
        if let Some(value) = header.strip_prefix("content-length:") {
            length = value.trim().parse().ok()?;
        }
        headers.push(header);
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let event = serde_json::from_slice(&body).ok()?;
    Some(ReceivedRequest { line: line.trim().to_owned(), headers, event })
}

fn write_answer(mut stream: TcpStream, answer: WebhookAnswer) -> std::io::Result<()> {
    match answer {
        WebhookAnswer::NoAnswer => Ok(()),
        WebhookAnswer::NotHttp => stream.write_all(b"\x00\xff\x15 220 ready\r\n\r\n"),
        WebhookAnswer::Status(status) => {
            write!(stream, "HTTP/1.1 {status} so\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        }
        WebhookAnswer::EndlessBody => {
            stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n")?;
            loop {
                stream.write_all(&[b'x'; 4096])?;
            }
        }
    }
}
