//! A manager that acknowledges every report at once and stores none, so that benchmarks measure only the
//! agent. It accepts TrialKeeper's and NNI's protocol, and reads only what the figures need.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use trial_protocol::{Lane, LogText, Offer, ReportAck, ReportBatch, ReportBody, capability};

use super::loads::now_ms;

/// Counts of the received reports.
#[derive(Debug, Default)]
pub(super) struct Taken {
    /// The time from print to acknowledgement of each stamped metric, in milliseconds.
    pub(super) latencies: Vec<f64>,
    /// The number of log lines.
    pub(super) lines: u64,
    /// The time at which the last line was acknowledged.
    pub(super) last_line_ms: f64,
    /// The expected offset of the next part of the log.
    next_offset: u64,
    /// The number of lost or unordered parts.
    pub(super) gaps: u64,
}

/// The manager. It ends with the process.
pub(super) struct Sink {
    pub(super) port: u16,
    taken: Arc<Mutex<Taken>>,
}

impl Sink {
    pub(super) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("the loopback interface is up");
        let port = listener.local_addr().expect("the listener has an address").port();
        let taken = Arc::<Mutex<Taken>>::default();
        let shared = Arc::clone(&taken);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let taken = Arc::clone(&shared);
                thread::spawn(move || serve(&stream, &taken));
            }
        });
        Self { port, taken }
    }

    pub(super) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    pub(super) fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn serve(mut stream: &TcpStream, taken: &Mutex<Taken>) {
    stream.set_nodelay(true).expect("the socket is connected");
    let mut bytes = Vec::new();
    let mut buffer = vec![0; 256 * 1024];
    loop {
        let mut used = 0;
        let mut answers = Vec::new();
        while let Some((head, length)) = request(&bytes[used..]) {
            let body = &bytes[used + head..used + length];
            let native = bytes[used..].starts_with(b"POST /api/v1/agent/reports");
            let ack = if native { acknowledge(body, taken) } else { take_line(body, taken) };
            let head = format!(
                "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
                ack.len()
            );
            answers.extend_from_slice(head.as_bytes());
            answers.extend_from_slice(&ack);
            used += length;
        }
        bytes.drain(..used);
        if !answers.is_empty() && stream.write_all(&answers).is_err() {
            return;
        }
        match stream.read(&mut buffer) {
            Ok(0) | Err(_) => return,
            Ok(length) => bytes.extend_from_slice(&buffer[..length]),
        }
    }
}

fn find(text: &[u8], wanted: &[u8]) -> Option<usize> {
    text.windows(wanted.len()).position(|window| window == wanted)
}

/// Returns the lengths of a request's head and of the whole request, if it is complete.
fn request(bytes: &[u8]) -> Option<(usize, usize)> {
    let head = find(&bytes[..bytes.len().min(8192)], b"\r\n\r\n")? + 4;
    let text = String::from_utf8_lossy(&bytes[..head]).to_ascii_lowercase();
    let length = text.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
    let whole = head + length.unwrap_or(0_usize);
    (bytes.len() >= whole).then_some((head, whole))
}

/// Handles a post of NNI's keeper. A line of the trial contains its number.
fn take_line(body: &[u8], taken: &Mutex<Taken>) -> Vec<u8> {
    let text = String::from_utf8_lossy(body);
    let mut taken = taken.lock().unwrap_or_else(PoisonError::into_inner);
    for stamp in stamps(&text) {
        taken.latencies.push(now_ms() - stamp);
    }
    if let Some(number) = text.split("line ").nth(1).and_then(|rest| rest.get(..10)?.parse().ok()) {
        let number: u64 = number;
        taken.gaps += u64::from(number != taken.next_offset);
        taken.next_offset = number + 1;
        taken.lines += 1;
        taken.last_line_ms = now_ms();
    }
    Vec::new()
}

fn acknowledge(body: &[u8], taken: &Mutex<Taken>) -> Vec<u8> {
    let batch: ReportBatch = serde_json::from_slice(body).expect("an agent's batch can be read");
    let mut taken = taken.lock().unwrap_or_else(PoisonError::into_inner);
    let through = batch.reports.last().map(|report| report.seq);
    for report in &batch.reports {
        match &report.body {
            // The agent derived this result from an earlier metric.
            ReportBody::Metric(metric) if metric.derived => {}
            ReportBody::Metric(metric) => {
                let text = metric.value.as_json().to_string();
                let now = now_ms();
                taken.latencies.extend(stamps(&text).map(|stamp| now - stamp));
            }
            ReportBody::Log(chunk) => {
                let LogText::Text(text) = &chunk.text else { continue };
                taken.gaps += u64::from(chunk.offset_bytes != taken.next_offset);
                taken.next_offset = chunk.offset_bytes + u64::try_from(text.len()).unwrap_or(0);
                let lines = text.bytes().filter(|byte| *byte == b'\n').count();
                taken.lines += u64::try_from(lines).unwrap_or(0);
                taken.last_line_ms = now_ms();
            }
            ReportBody::Shed(shed) => taken.gaps += shed.log_bytes,
            ReportBody::Started(_)
            | ReportBody::Sample(_)
            | ReportBody::Ended(_)
            | ReportBody::Note { .. }
            | ReportBody::Unknown => {}
        }
    }
    let _: Lane = batch.lane;
    let ack = ReportAck {
        offer: Offer::new([capability::BULK]),
        through,
        directives: Vec::new(),
        lease_ms: None,
        token: None,
        resend: false,
        other: BTreeMap::new(),
    };
    serde_json::to_vec(&ack).expect("an ack is JSON")
}

/// Returns the times in a text: 13 digits, a point, and more digits.
fn stamps(text: &str) -> impl Iterator<Item = f64> {
    let numbers = text.split(|c: char| !c.is_ascii_digit() && c != '.');
    numbers.filter(|number| number.find('.') == Some(13)).filter_map(|number| number.parse().ok())
}
