//! How fast the manager takes in reports: real sockets on loopback, the real store, every answer after its
//! commit. Prints figures and judges nothing: `cargo bench -p trial-manager --bench ingest [SECONDS]`.
//!
//! The server is a process of its own (this program, started again), so that its memory is not mixed
//! with the load's.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a measurement stops at the first thing that goes wrong, and prints"
)]

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;
use trial_manager::api::{self, State};
use trial_manager::clock::SystemClock;
use trial_manager::experiment::Handle;
use trial_manager::intake::Intake;
use trial_manager::store::{NewTrial, Store};
use trial_manager::token::Secret;
use trial_protocol::{AttemptId, ExperimentId, TrialJobId};

const EXPERIMENT: &str = "bench";
const TRIALS: u64 = 64;

fn main() {
    // Cargo adds `--bench`.
    let arguments: Vec<String> =
        std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    match arguments.first().map(String::as_str) {
        Some("--server") => runtime.block_on(serve(Path::new(&arguments[1]))),
        first => {
            let seconds = first.and_then(|text| text.parse().ok()).unwrap_or(5);
            runtime.block_on(measure(Duration::from_secs(seconds)));
        }
    }
}

fn trial(number: u64) -> TrialJobId {
    TrialJobId::new(format!("t{}", number % TRIALS)).unwrap()
}

/// The manager's ingest path: prints its port, ends with its standard input.
async fn serve(folder: &Path) {
    let store = Store::open(&folder.join("trialkeeper.db")).unwrap();
    for sequence in 0..TRIALS {
        let new = NewTrial {
            id: trial(sequence),
            sequence,
            parameter_id: Some(sequence),
            parameters: json!({}),
            attempt: AttemptId::new("a").unwrap(),
            created_at_ms: 0,
        };
        store.insert_trial(new).await.unwrap();
    }
    let (handle, mut events) = Handle::new(1024);
    let experiment = ExperimentId::new(EXPERIMENT).unwrap();
    let intake = Intake::new(store.clone(), handle, experiment, Arc::new(SystemClock));
    let secret = Arc::new(Secret::load_or_create(&folder.join("secret")).unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let old = TcpListener::bind("127.0.0.1:0").await.unwrap();
    println!("{} {}", listener.local_addr().unwrap().port(), old.local_addr().unwrap().port());
    let legacy =
        tokio::spawn(api::serve(old, api::legacy::router(&intake), std::future::pending::<()>()));
    let listen = tokio::spawn(async move { while events.recv().await.is_some() {} });
    let router = api::router(State { intake, store: store.clone(), secret });
    api::serve(listener, router, async {
        let mut input = Vec::new();
        tokio::task::spawn_blocking(move || {
            std::io::Read::read_to_end(&mut std::io::stdin(), &mut input).unwrap();
        })
        .await
        .unwrap();
    })
    .await
    .unwrap();
    legacy.abort();
    drop(legacy.await);
    listen.await.unwrap();
    store.close().await;
}

/// One load and what it brought.
async fn measure(time: Duration) {
    println!(
        "{:<36}{:>12}{:>12}{:>10}{:>10}{:>16}{:>12}",
        "load", "requests/s", "metrics/s", "p50 ms", "p99 ms", "CPU us/request", "server MiB"
    );
    for (name, connections, load) in [
        ("batches of 100, 4 connections", 4, Load::Batches(100)),
        ("batches of 100, 32 connections", 32, Load::Batches(100)),
        ("single metrics, 1 connection", 1, Load::Batches(1)),
        ("single metrics, 16 connections", 16, Load::Batches(1)),
        ("single metrics, 64 connections", 64, Load::Batches(1)),
        ("heartbeats, 64 connections", 64, Load::Batches(0)),
        ("legacy stdout, 16 conns, 16 trials", 16, Load::Legacy { trials: 16 }),
        ("legacy stdout, 16 conns, 1 trial", 16, Load::Legacy { trials: 1 }),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let mut server = Server::start(folder.path());
        let secret = Arc::new(Secret::load_or_create(&folder.path().join("secret")).unwrap());
        let until = Instant::now() + time;
        let acknowledged = Arc::new(AtomicU64::new(0));
        let clients: Vec<_> = (0..connections)
            .map(|number| {
                let requests = Requests::new(load, number, &secret);
                let port = server.port(load);
                tokio::spawn(client(requests, port, until, Arc::clone(&acknowledged)))
            })
            .collect();
        let mut latencies = Vec::new();
        for client in clients {
            latencies.extend(client.await.unwrap());
        }
        latencies.sort_unstable();
        let at = |percent: usize| {
            latencies
                .get(latencies.len() * percent / 100)
                .copied()
                .unwrap_or_default()
                .as_secs_f64()
                * 1e3
        };
        let batch = match load {
            Load::Batches(metrics) => metrics,
            Load::Legacy { .. } => 1,
        };
        let requests = acknowledged.load(Ordering::Relaxed);
        let per_second = |count: u64| count * 1000 / u64::try_from(time.as_millis()).unwrap();
        println!(
            "{name:<36}{:>12}{:>12}{:>10.2}{:>10.2}{:>16.1}{:>12}",
            per_second(requests),
            per_second(requests * batch),
            at(50),
            at(99),
            server.processor().as_secs_f64() * 1e6
                / f64::from(u32::try_from(requests.max(1)).unwrap()),
            server.resident_kib() / 1024,
        );
        server.stop();
        verify(&folder.path().join("trialkeeper.db"), requests * batch);
    }
}

/// What was acknowledged is there.
fn verify(database: &Path, metrics: u64) {
    let connection = rusqlite::Connection::open(database).unwrap();
    let stored: u64 = connection
        .query_row("SELECT count(*) FROM report", [], |row| row.get::<_, i64>(0))
        .unwrap()
        .try_into()
        .unwrap();
    assert!(stored >= metrics, "{stored} of {metrics} acknowledged metrics are stored");
}

/// What clients send.
#[derive(Debug, Clone, Copy)]
enum Load {
    /// Batches of so many metrics; none for heartbeats.
    Batches(u64),
    /// The old keeper's lines, each with a metric.
    Legacy { trials: u64 },
}

/// One client's requests, one after the other.
struct Requests {
    load: Load,
    number: u64,
    token: String,
    seq: u64,
}

impl Requests {
    fn new(load: Load, number: u64, secret: &Secret) -> Self {
        let token = secret.trial_token(&ExperimentId::new(EXPERIMENT).unwrap(), &trial(number));
        Self { load, number, token, seq: 0 }
    }

    fn next(&mut self) -> String {
        let (path, body) = match self.load {
            Load::Batches(size) => {
                let body = batch(self.number, self.seq, size);
                self.seq += size;
                ("/api/v1/agent/reports".to_owned(), body)
            }
            Load::Legacy { trials } => {
                let trial = trial(self.number % trials);
                // Clients of one trial share its numbers, so that nothing is said twice.
                let sequence = self.number + 1000 * self.seq;
                let metric = json!({"parameter_id": 0, "trial_job_id": trial, "type": "PERIODICAL",
                    "sequence": sequence, "value": "0.8765"});
                let line = format!("NNISDK_MEb'{metric}'");
                let body = json!({"tag": "trial", "stdOutputType": "Stdout", "msg": line});
                self.seq += 1;
                (format!("/api/v1/nni-pai/stdout/{EXPERIMENT}/{trial}"), body.to_string())
            }
        };
        format!(
            "POST {path} HTTP/1.1\r\nhost: bench\r\nauthorization: Bearer {}\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            self.token,
            body.len()
        )
    }
}

/// Posts until the time is over; how long each took.
async fn client(
    mut requests: Requests,
    port: u16,
    until: Instant,
    acknowledged: Arc<AtomicU64>,
) -> Vec<Duration> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let mut latencies = Vec::new();
    let mut answer = vec![0; 64 << 10];
    while Instant::now() < until {
        let request = requests.next();
        let start = Instant::now();
        stream.write_all(request.as_bytes()).await.unwrap();
        let answer = read_answer(&mut stream, &mut answer).await;
        latencies.push(start.elapsed());
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        acknowledged.fetch_add(1, Ordering::Relaxed);
    }
    latencies
}

fn batch(number: u64, seq: u64, size: u64) -> String {
    let reports: Vec<_> = (seq..seq + size)
        .map(|seq| {
            format!(
                r#"{{"seq":{seq},"observed_at_ms":1700000000000,"body":{{"kind":"metric","name":"default","type":"intermediate","sequence":{seq},"value":0.8765}}}}"#
            )
        })
        .collect();
    format!(
        r#"{{"offer":{{"oldest":1,"newest":1}},"experiment":"{EXPERIMENT}","trial":"{}","attempt":"a{number}","lane":"facts","reports":[{}]}}"#,
        trial(number),
        reports.join(",")
    )
}

/// Reads one answer with a `content-length`.
async fn read_answer<'a>(stream: &mut TcpStream, buffer: &'a mut [u8]) -> &'a str {
    let mut filled = 0;
    loop {
        let read = stream.read(&mut buffer[filled..]).await.unwrap();
        assert!(read > 0, "the server has hung up");
        filled += read;
        let text = std::str::from_utf8(&buffer[..filled]).unwrap();
        let Some(head) = text.find("\r\n\r\n") else { continue };
        let length: usize = text[..head]
            .lines()
            .find_map(|line| line.strip_prefix("content-length: "))
            .and_then(|length| length.parse().ok())
            .unwrap();
        if filled >= head + 4 + length {
            return std::str::from_utf8(&buffer[..filled]).unwrap();
        }
    }
}

struct Server {
    process: Child,
    native: u16,
    legacy: u16,
}

impl Server {
    fn start(folder: &Path) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .arg("--server")
            .arg(folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let (native, legacy) = line.trim().split_once(' ').unwrap();
        Self { process, native: native.parse().unwrap(), legacy: legacy.parse().unwrap() }
    }

    fn port(&self, load: Load) -> u16 {
        match load {
            Load::Batches(_) => self.native,
            Load::Legacy { .. } => self.legacy,
        }
    }

    /// Processor time it has used so far, all threads together.
    fn processor(&self) -> Duration {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.process.id())).unwrap();
        // The name in parentheses may hold blanks; user and system time are the 12th and 13th after it.
        let fields: Vec<&str> = stat[stat.rfind(')').unwrap()..].split_whitespace().collect();
        let ticks: u64 = fields[12..14].iter().map(|field| field.parse::<u64>().unwrap()).sum();
        // Linux counts in hundredths of a second for user space (`USER_HZ`).
        Duration::from_millis(ticks * 10)
    }

    /// Its highest memory use so far.
    fn resident_kib(&self) -> u64 {
        let status =
            std::fs::read_to_string(format!("/proc/{}/status", self.process.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    fn stop(&mut self) {
        drop(self.process.stdin.take());
        self.process.wait().unwrap();
        std::io::stdout().flush().unwrap();
    }
}
