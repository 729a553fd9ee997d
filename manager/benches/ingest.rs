//! Measures the speed at which the manager stores reports, with real sockets on loopback and the real store. Every
//! answer follows its commit. Prints figures without judging them.
//!
//! `cargo bench -p trial-manager --bench ingest [SECONDS [NAME]]`. `NAME` selects the loads whose name contains it.
//!
//! The server is a separate process (this program, started again), so that its memory is measured without the clients.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a measurement stops at the first thing that goes wrong, and prints"
)]

#[path = "ingest/server.rs"]
mod server;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use server::{EXPERIMENT_ID, Server, read_answer, trial_id};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::time::Instant;
use trial_manager::token::Secret;
use trial_manager::util::clock::{Clock as _, SystemClock};
use trial_protocol::ExperimentId;

const TRIAL_COUNT: u64 = 64;

fn main() {
    // Cargo adds the argument `--bench`.
    let arguments: Vec<String> =
        std::env::args().skip(1).filter(|word| word != "--bench").collect();
    match arguments.first().map(String::as_str) {
        Some("--server") => {
            let trials = arguments[2].parse().unwrap();
            let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
            runtime.block_on(server::serve(Path::new(&arguments[1]), trials));
        }
        first => {
            let seconds = first.and_then(|text| text.parse().ok()).unwrap_or(5);
            // The clients share the machine with the server, so they use one thread.
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(measure(
                Duration::from_secs(seconds),
                arguments.get(1).map(String::as_str),
            ));
        }
    }
}

/// Runs the loads, and prints a line of figures for each.
async fn measure(time: Duration, only: Option<&str>) {
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
        if only.is_some_and(|only| !name.contains(only)) {
            continue;
        }
        let folder = tempfile::tempdir().unwrap();
        let mut server = Server::start(folder.path(), TRIAL_COUNT);
        let secret = Arc::new(Secret::load_or_create(&folder.path().join("secret")).unwrap());
        let until = Instant::now() + time;
        let acknowledged = Arc::new(AtomicU64::new(0));
        let clients: Vec<_> = (0..connections)
            .map(|number| {
                let requests = Requests::new(load, number, &secret);
                let port = match load {
                    Load::Batches(_) => server.ports[0],
                    Load::Legacy { .. } => server.ports[1],
                };
                tokio::spawn(run_client(requests, port, until, Arc::clone(&acknowledged)))
            })
            .collect();
        let mut latencies = Vec::new();
        for client in clients {
            latencies.extend(client.await.unwrap());
        }
        latencies.sort_unstable();
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
            percentile_ms(&latencies, 50),
            percentile_ms(&latencies, 99),
            server.processor_time().as_secs_f64() * 1e6
                / f64::from(u32::try_from(requests.max(1)).unwrap()),
            server.resident_kib() / 1024,
        );
        server.stop();
        verify_metrics(&folder.path().join("trialkeeper.db"), requests * batch);
    }
}

/// Returns the time within which `percent` of the requests were answered, in milliseconds. `latencies` are sorted.
fn percentile_ms(latencies: &[Duration], percent: usize) -> f64 {
    let latency = latencies.get(latencies.len() * percent / 100).copied();
    latency.unwrap_or_default().as_secs_f64() * 1e3
}

/// Checks that the store contains all acknowledged metrics.
fn verify_metrics(database: &Path, metrics: u64) {
    let connection = rusqlite::Connection::open(database).unwrap();
    let stored: u64 = connection
        .query_row("SELECT count(*) FROM report", [], |row| row.get::<_, i64>(0))
        .unwrap()
        .try_into()
        .unwrap();
    assert!(stored >= metrics, "{stored} of {metrics} acknowledged metrics are stored");
}

/// The load of the clients.
#[derive(Debug, Clone, Copy)]
enum Load {
    /// Batches of this number of metrics, 0 for heartbeats.
    Batches(u64),
    /// Lines of NNI's own keeper, each with a metric.
    Legacy { trials: u64 },
}

/// The requests of a client, in order.
struct Requests {
    load: Load,
    number: u64,
    token: String,
    seq: u64,
}

impl Requests {
    fn new(load: Load, number: u64, secret: &Secret) -> Self {
        let e = ExperimentId::new(EXPERIMENT_ID).unwrap();
        let token = secret.trial_token(&e, &trial_id(number % TRIAL_COUNT), SystemClock.now_ms());
        Self { load, number, token, seq: 0 }
    }

    fn next_request(&mut self) -> String {
        let (path, body) = match self.load {
            Load::Batches(size) => {
                let body = batch_body(self.number, self.seq, size);
                self.seq += size;
                ("/api/v1/agent/reports".to_owned(), body)
            }
            Load::Legacy { trials } => {
                let trial = trial_id(self.number % trials);
                // Each client of a trial uses different sequence numbers, so that no metric is a repetition.
                let sequence = self.number + 1000 * self.seq;
                let body = format!(
                    r#"{{"tag": "trial", "stdOutputType": "Stdout", "msg": "NNISDK_MEb'{{\"parameter_id\": 0, \"trial_job_id\": \"{trial}\", \"type\": \"PERIODICAL\", \"sequence\": {sequence}, \"value\": \"0.8765\"}}'"}}"#
                );
                self.seq += 1;
                (format!("/api/v1/nni-pai/stdout/{EXPERIMENT_ID}/{trial}"), body)
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

/// Sends requests until the end of the measurement, and returns their latencies.
async fn run_client(
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
        let request = requests.next_request();
        let start = Instant::now();
        stream.write_all(request.as_bytes()).await.unwrap();
        let answer = read_answer(&mut stream, &mut answer).await;
        latencies.push(start.elapsed());
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        acknowledged.fetch_add(1, Ordering::Relaxed);
    }
    latencies
}

fn batch_body(number: u64, seq: u64, size: u64) -> String {
    let reports: Vec<_> = (seq..seq + size)
        .map(|seq| {
            format!(
                r#"{{"seq":{seq},"observed_at_ms":1700000000000,"body":{{"kind":"metric","name":"default","type":"intermediate","sequence":{seq},"value":0.8765}}}}"#
            )
        })
        .collect();
    format!(
        r#"{{"offer":{{"oldest":1,"newest":1}},"experiment":"{EXPERIMENT_ID}","trial":"{}","attempt":"a{number}","lane":"facts","reports":[{}]}}"#,
        trial_id(number % TRIAL_COUNT),
        reports.join(",")
    )
}
