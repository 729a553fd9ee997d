//! A server that is told of events, and answers as badly as it is asked to.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use serde_json::Value;

/// How it answers one request.
#[derive(Debug, Clone, Copy)]
pub enum Answer {
    /// With this status and nothing else.
    Status(u16),
    /// It hangs up.
    Nothing,
    /// With bytes that are no HTTP.
    Noise,
    /// With 200 and a text that does not end.
    Endless,
}

/// One request that it was sent.
#[derive(Debug, Clone)]
pub struct Told {
    /// Its first line.
    pub line: String,
    /// Its headers, a line each, in lower case.
    pub headers: Vec<String>,
    /// Its body.
    pub event: Value,
}

/// The server; it runs for as long as the test's process.
#[derive(Debug)]
pub struct Hook {
    port: u16,
    told: Arc<Mutex<Vec<Told>>>,
}

impl Hook {
    /// Starts one that answers the first requests so, and those after them with 204.
    pub fn start(answers: &'static [Answer]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
        let port = listener.local_addr().expect("it is bound").port();
        let told = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&told);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let Some(request) = read(&stream) else { continue };
                let mut told = sink.lock().expect("no reader panics");
                let answer = answers.get(told.len()).copied().unwrap_or(Answer::Status(204));
                told.push(request);
                drop(told);
                // Whoever hangs up has heard enough.
                std::thread::spawn(move || drop(say(stream, answer)));
            }
        });
        Self { port, told }
    }

    /// Its base URL.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// What it was told so far.
    pub fn told(&self) -> Vec<Told> {
        self.told.lock().expect("no reader panics").clone()
    }
}

fn read(stream: &TcpStream) -> Option<Told> {
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
    Some(Told { line: line.trim().to_owned(), headers, event })
}

fn say(mut stream: TcpStream, answer: Answer) -> std::io::Result<()> {
    match answer {
        Answer::Nothing => Ok(()),
        Answer::Noise => stream.write_all(b"\x00\xff\x15 220 ready\r\n\r\n"),
        Answer::Status(status) => {
            write!(stream, "HTTP/1.1 {status} so\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        }
        Answer::Endless => {
            stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n")?;
            loop {
                stream.write_all(&[b'x'; 4096])?;
            }
        }
    }
}
