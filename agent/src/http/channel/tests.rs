use std::process::{Command as Process, Stdio};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::*;

const RECORD: &str = include_str!("../../../fixtures/sdk/parameter.cfg");

/// A served channel with its sender and receiver.
struct ServedChannel {
    url: String,
    address: SocketAddr,
    path: String,
    found: mpsc::Receiver<Finding>,
    end: watch::Sender<bool>,
    served: JoinSet<()>,
}

impl ServedChannel {
    async fn new() -> Self {
        let channel = Channel::bind().await.unwrap();
        let (url, address, path) = (channel.url(), channel.address, channel.path.clone());
        let (sender, found) = mpsc::channel(16);
        let (end, ended) = watch::channel(false);
        let mut served = JoinSet::new();
        served.spawn(channel.serve(RECORD, sender, ended));
        Self { url, address, path, found, end, served }
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// Sends one request with the body's length, and returns status and body.
    async fn send(&self, stream: &mut TcpStream, method: &str, body: &str) -> (u16, String) {
        let (path, length) = (&self.path, body.len());
        let head = format!("{method} {path} HTTP/1.1\r\nContent-Length: {length}\r\n\r\n");
        stream.write_all((head + body).as_bytes()).await.unwrap();
        read_answer(stream).await
    }

    async fn end(mut self) -> Vec<Finding> {
        self.end.send(true).unwrap();
        while let Some(served) = self.served.join_next().await {
            served.unwrap();
        }
        let mut found = Vec::new();
        while let Some(finding) = self.found.recv().await {
            found.push(finding);
        }
        found
    }
}

async fn read_answer(stream: &mut TcpStream) -> (u16, String) {
    let mut bytes = Vec::new();
    loop {
        if let Some(end) = memchr::memmem::find(&bytes, b"\r\n\r\n") {
            let head = std::str::from_utf8(&bytes[..end]).unwrap();
            let status = head.split(' ').nth(1).unwrap().parse().unwrap();
            let length = head.split("Content-Length: ").nth(1).unwrap();
            let length: usize = length.lines().next().unwrap().parse().unwrap();
            if bytes.len() == end + 4 + length {
                return (status, String::from_utf8(bytes.split_off(end + 4)).unwrap());
            }
        }
        assert_ne!(stream.read_buf(&mut bytes).await.unwrap(), 0, "closed after {bytes:?}");
    }
}

fn summarized_values(found: &[Finding]) -> Vec<String> {
    let value = |finding: &Finding| match finding {
        Finding::Metric(found) => found.value.as_json().to_string(),
        Finding::Unreadable { why, .. } => format!("!{why}"),
    };
    found.iter().map(value).collect()
}

/// Returns the reports of `trial_used.py`.
fn expected_values() -> [String; 4] {
    let second = json!({"default": 0.75, "loss": 1.25, "note": "it's \"quoted\""});
    let last = json!({"default": 0.875, "loss": 1.0});
    ["0.5".to_owned(), second.to_string(), "\"NaN\"".to_owned(), last.to_string()]
}

#[tokio::test(start_paused = true)]
async fn the_recorded_conversation_is_answered() {
    let channel = ServedChannel::new().await;
    let mut stream = channel.connect().await;
    let recording = include_str!("../../../fixtures/sdk/v3_http_channel.jsonl");
    let mut answers = Vec::new();
    for line in recording.lines() {
        let request: Value = serde_json::from_str(line).unwrap();
        let mut head =
            format!("{} {} HTTP/1.1\r\n", request["method"].as_str().unwrap(), channel.path);
        for (name, value) in request["headers"].as_object().unwrap() {
            write!(head, "{name}: {}\r\n", value.as_str().unwrap()).unwrap();
        }
        let request = format!("{head}\r\n{}", request["body"].as_str().unwrap());
        stream.write_all(request.as_bytes()).await.unwrap();
        answers.push(read_answer(&mut stream).await);
    }

    let statuses: Vec<_> = answers.iter().map(|(status, _)| *status).collect();
    // NNI's server had no parameters at the first poll, but the agent has them from the start.
    assert_eq!(statuses, [200, 200, 408, 200, 200, 200, 200]);
    let answer: Value = serde_json::from_str(&answers[1].1).unwrap();
    assert_eq!(answer, json!({"type": "parameter", "parameter": RECORD}));
    assert_eq!(summarized_values(&channel.end().await), expected_values());
}

#[tokio::test(start_paused = true)]
async fn every_process_of_a_trial_gets_its_parameters() {
    let channel = ServedChannel::new().await;
    let (mut one, mut two) = (channel.connect().await, channel.connect().await);
    let request = r#"{"type": "request_parameter"}"#;
    assert_eq!(channel.send(&mut one, "PUT", request).await.0, 200);
    assert_eq!(channel.send(&mut two, "PUT", request).await.0, 200);
    let (first, second) =
        (channel.send(&mut two, "GET", "").await, channel.send(&mut one, "GET", "").await);
    assert_eq!((first.0, &first), (200, &second));
    assert_eq!(channel.send(&mut one, "GET", "").await.0, 408);
}

#[tokio::test]
async fn a_waiting_poll_is_answered_when_the_channel_closes() {
    let mut channel = ServedChannel::new().await;
    let mut stream = channel.connect().await;
    // The answer shows that the connection was accepted. At the end, other connections are reset.
    assert_eq!(channel.send(&mut stream, "DELETE", "").await.0, 405);
    let poll = format!("GET {} HTTP/1.1\r\n\r\n", channel.path);
    stream.write_all(poll.as_bytes()).await.unwrap();
    channel.end.send(true).unwrap();
    assert_eq!(read_answer(&mut stream).await.0, 410);
    assert!(channel.served.join_next().await.unwrap().is_ok());
}

#[tokio::test]
async fn invalid_requests_are_refused() {
    let channel = ServedChannel::new().await;
    let path = &channel.path;
    #[rustfmt::skip]
    let table = [
        ("another path",     "PUT / HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}".to_owned(),          404),
        ("a longer path",    format!("PUT {path}x HTTP/1.1\r\nContent-Length: 2\r\n\r\n{{}}"),    404),
        ("another method",   format!("DELETE {path} HTTP/1.1\r\n\r\n"),                           405),
        ("no command",       format!("PUT {path} HTTP/1.1\r\nContent-Length: 2\r\n\r\n{{}}"),     400),
        ("a body too large", format!("PUT {path} HTTP/1.1\r\nContent-Length: 9000000\r\n\r\n"),   413),
        ("no length",        format!("PUT {path} HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"), 411),
        ("no HTTP",          "hello\r\n\r\n".to_owned(),                                          400),
    ];
    for (case, request, status) in table {
        let mut stream = channel.connect().await;
        stream.write_all(request.as_bytes()).await.unwrap();
        assert_eq!(read_answer(&mut stream).await.0, status, "{case}");
    }
    assert_eq!(summarized_values(&channel.end().await), ["!a command of an unknown type"]);
}

#[tokio::test]
async fn a_command_of_megabytes_in_pieces_is_one_metric() {
    let channel = ServedChannel::new().await;
    let mut stream = channel.connect().await;
    let long = "x".repeat(1_000_000);
    let metric = json!({"type": "FINAL", "sequence": 0, "value": json!(long).to_string()});
    let body = json!({"type": "metric", "metric": metric.to_string()}).to_string();
    assert_eq!(channel.send(&mut stream, "PUT", &body).await.0, 200);
    assert_eq!(channel.send(&mut stream, "PUT", "{").await.0, 400);
    let found = summarized_values(&channel.end().await);
    assert_eq!(found[0].len(), 1_000_002);
    assert_eq!(found[1..], ["!a command on the SDK's channel is not valid JSON"]);
}

#[tokio::test]
async fn each_run_has_its_own_path() {
    let (one, two) = (Channel::bind().await.unwrap(), Channel::bind().await.unwrap());
    assert_eq!(one.path.len(), 33);
    assert_ne!(one.path, two.path);
    assert!(one.url().starts_with("http://127.0.0.1:"));
}

#[test]
fn the_loopback_address_is_kept_from_proxies() {
    #[rustfmt::skip]
    let table = [
        (None,                      "127.0.0.1"),
        (Some(""),                  "127.0.0.1"),
        (Some("*"),                 "*"),
        (Some("a.b,127.0.0.1"),     "a.b,127.0.0.1"),
        (Some("a.b"),               "a.b,127.0.0.1"),
    ];
    for (existing, expected) in table {
        assert_eq!(no_proxy(existing), expected);
    }
}

#[tokio::test]
#[ignore = "needs TRIALKEEPER_TEST_NNI_PYTHON, a Python with NNI 3.0"]
async fn the_real_sdk_reports_through_the_channel() {
    let python = std::env::var("TRIALKEEPER_TEST_NNI_PYTHON").expect("it names a Python");
    let channel = ServedChannel::new().await;
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/sdk/trial_used.py");
    let home = tempfile::tempdir().unwrap();
    let mut trial = Process::new(python);
    trial
        .arg(script)
        .current_dir(home.path())
        .env("NNI_PLATFORM", "local")
        .env("NNI_EXP_ID", "testexp1")
        .env("NNI_TRIAL_JOB_ID", "abcde")
        .env("NNI_TRIAL_SEQ_ID", "7")
        .env("NNI_SYS_DIR", home.path())
        .env("NNI_OUTPUT_DIR", home.path())
        .env("REUSE_MODE", "true")
        .env("HTTP_PROXY", "http://192.0.2.1:1")
        .env("NO_PROXY", no_proxy(None))
        .env(CHANNEL_VARIABLE, &channel.url)
        .stdin(Stdio::null());
    let bound = Duration::from_mins(2);
    let run = tokio::task::spawn_blocking(move || trial.output().unwrap());
    let output = tokio::time::timeout(bound, run).await.unwrap().unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(stdout.contains("params {'lr': 0.01, 'act': 'relu'}"), "{stdout}");
    assert_eq!(summarized_values(&channel.end().await), expected_values());
}
