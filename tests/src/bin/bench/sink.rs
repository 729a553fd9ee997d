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
pub(super) struct ReceivedReports {
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
pub(super) struct AckServer {
    pub(super) port: u16,
    received: Arc<Mutex<ReceivedReports>>,
}

impl AckServer {
    pub(super) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("the loopback interface is up");
        let port = listener.local_addr().expect("the listener has an address").port();
        let received = Arc::<Mutex<ReceivedReports>>::default();
        let shared = Arc::clone(&received);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let received = Arc::clone(&shared);
                thread::spawn(move || serve_connection(&stream, &received));
            }
        });
        Self { port, received }
    }

    pub(super) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    pub(super) fn received(&self) -> MutexGuard<'_, ReceivedReports> {
        self.received.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn serve_connection(mut stream: &TcpStream, received: &Mutex<ReceivedReports>) {
    stream.set_nodelay(true).expect("the socket is connected");
    let mut bytes = Vec::new();
    let mut buffer = vec![0; 256 * 1024];
    loop {
        let mut used = 0;
        let mut answers = Vec::new();
        while let Some((head, length)) = request_lengths(&bytes[used..]) {
            let body = &bytes[used + head..used + length];
            let native = bytes[used..].starts_with(b"POST /api/v1/agent/reports");
            let ack = if native {
                handle_agent_batch(body, received)
            } else {
                handle_nni_post(body, received)
            };
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

fn find_bytes(text: &[u8], wanted: &[u8]) -> Option<usize> {
    text.windows(wanted.len()).position(|window| window == wanted)
}

/// Returns the lengths of a request's head and of the whole request, if it is complete.
fn request_lengths(bytes: &[u8]) -> Option<(usize, usize)> {
    let head = find_bytes(&bytes[..bytes.len().min(8192)], b"\r\n\r\n")? + 4;
    let text = String::from_utf8_lossy(&bytes[..head]).to_ascii_lowercase();
    let length = text.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
    let whole = head + length.unwrap_or(0_usize);
    (bytes.len() >= whole).then_some((head, whole))
}

/// Handles a post of NNI's keeper. A line of the trial contains its number.
fn handle_nni_post(body: &[u8], received: &Mutex<ReceivedReports>) -> Vec<u8> {
    let text = String::from_utf8_lossy(body);
    let mut received = received.lock().unwrap_or_else(PoisonError::into_inner);
    for stamp in parse_times(&text) {
        received.latencies.push(now_ms() - stamp);
    }
    if let Some(number) = text.split("line ").nth(1).and_then(|rest| rest.get(..10)?.parse().ok()) {
        let number: u64 = number;
        received.gaps += u64::from(number != received.next_offset);
        received.next_offset = number + 1;
        received.lines += 1;
        received.last_line_ms = now_ms();
    }
    Vec::new()
}

fn handle_agent_batch(body: &[u8], received: &Mutex<ReceivedReports>) -> Vec<u8> {
    let batch: ReportBatch = serde_json::from_slice(body).expect("an agent's batch can be read");
    let mut received = received.lock().unwrap_or_else(PoisonError::into_inner);
    let through = batch.reports.last().map(|report| report.seq);
    for report in &batch.reports {
        match &report.body {
            // The agent derived this result from an earlier metric.
            ReportBody::Metric(metric) if metric.derived => {}
            ReportBody::Metric(metric) => {
                let text = metric.value.as_json().to_string();
                let now = now_ms();
                received.latencies.extend(parse_times(&text).map(|stamp| now - stamp));
            }
            ReportBody::Log(chunk) => {
                let LogText::Text(text) = &chunk.text else { continue };
                received.gaps += u64::from(chunk.offset_bytes != received.next_offset);
                received.next_offset = chunk.offset_bytes + u64::try_from(text.len()).unwrap_or(0);
                let lines = text.bytes().filter(|byte| *byte == b'\n').count();
                received.lines += u64::try_from(lines).unwrap_or(0);
                received.last_line_ms = now_ms();
            }
            ReportBody::Shed(shed) => received.gaps += shed.log_bytes,
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
fn parse_times(text: &str) -> impl Iterator<Item = f64> {
    let numbers = text.split(|c: char| !c.is_ascii_digit() && c != '.');
    numbers.filter(|number| number.find('.') == Some(13)).filter_map(|number| number.parse().ok())
}
