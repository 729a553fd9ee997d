//! Measures the throughput of reports into the spool, and through it to a manager that only acknowledges. The manager
//! is a thread of this process, over loopback. `cargo bench -p trialkeeper --bench delivery`
#![expect(clippy::unwrap_used, reason = "a benchmark fails by panicking")]
#![expect(clippy::print_stdout, reason = "the benchmark prints its results")]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::sync::{mpsc, watch};
use trial_protocol::{
    AttemptId, ExperimentId, LogChunk, LogText, Metric, MetricKind, Offer, ReportAck, ReportBody,
    Stream, TrialJobId, capability,
};
use trialkeeper::collect::LineCutter;
use trialkeeper::delivery::{self, ManagerAddress};
use trialkeeper::spool::{Dialect, Options, Sender, Spool};
use trialkeeper::supervise::recorder::NniRecorder;
use trialkeeper::util::secrets::Secrets;

const DELIVERY_TIMEOUT: Duration = Duration::from_mins(2);
/// Length of a line of the trial's output, newline included, in bytes.
const LINE_BYTES: usize = 100;
/// Number of lines in one report of TrialKeeper's protocol: the content of a full pipe.
const CHUNK_LINES: u64 = 640;

fn main() {
    println!("{:<44} {:>12} {:>12}", "", "count", "per second");
    for _ in 0..3 {
        measure_appends();
        measure_native_metrics(200_000);
        measure_native_lines(2_000_000);
        measure_legacy_lines(100_000);
        measure_legacy_metrics(100_000);
    }
}

fn print_rate(what: &str, count: u64, took: Duration) {
    #[expect(
        clippy::cast_precision_loss,
        clippy::as_conversions,
        reason = "an approximate rate suffices"
    )]
    let rate = count as f64 / took.as_secs_f64();
    println!("{what:<44} {count:>12} {rate:>12.0}");
}

fn measure_appends() {
    let dir = tempfile::tempdir().unwrap();
    let spool = spool(dir.path(), Dialect::Native);
    let count = 200_000;
    let start = Instant::now();
    for n in 0..count {
        spool.append(0, metric(n));
    }
    print_rate("metrics appended", count, start.elapsed());
    let on_disk = runtime().block_on(spool.close(DELIVERY_TIMEOUT));
    assert!(on_disk);
    print_rate("metrics appended, fsynced", count, start.elapsed());
}

fn measure_native_metrics(count: u64) {
    measure_delivery("metrics delivered", Dialect::Native, count, |spool| {
        for n in 0..count {
            spool.append(0, metric(n));
        }
    });
}

fn measure_native_lines(count: u64) {
    let text = line().repeat(usize::try_from(CHUNK_LINES).unwrap());
    measure_delivery("log lines delivered", Dialect::Native, count, |spool| {
        // A run begins with a fact. Only its ack shows that the manager accepts logs.
        spool.append(0, metric(0));
        for _ in 0..count / CHUNK_LINES {
            let text = LogText::Text(text.clone());
            spool.append(
                0,
                ReportBody::Log(LogChunk { stream: Stream::Stdout, offset_bytes: 0, text }),
            );
        }
    });
}

fn measure_legacy_lines(count: u64) {
    let text = line();
    measure_delivery("log lines delivered to NNI", Dialect::Nni, count, |spool| {
        record_lines(spool, count, |_| text.clone());
    });
}

fn measure_legacy_metrics(count: u64) {
    measure_delivery("metrics delivered to NNI", Dialect::Nni, count, |spool| {
        record_lines(spool, count, |n| {
            format!(
                "NNISDK_MEb'{{\"parameter_id\": 0, \"trial_job_id\": \"abcde\", \"type\": \"PERIODICAL\", \
                 \"sequence\": {n}, \"value\": \"0.5\"}}'\n"
            )
        });
    });
}

/// Records lines as if a trial had printed them.
fn record_lines(spool: &Spool, count: u64, line: impl Fn(u64) -> String) {
    let mut scribe = NniRecorder::new(
        spool.clone(),
        sender(Dialect::Nni),
        Value::Null,
        None,
        Secrets::default(),
    );
    let mut cutter = LineCutter::new(true);
    let mut lines = Vec::new();
    for n in 0..count {
        cutter.feed(line(n).as_bytes(), &mut lines);
        lines.drain(..).for_each(|line| scribe.record_line(0, line));
    }
}

/// Measures from the first append to the last acknowledgement. Appends run in parallel with the delivery.
fn measure_delivery(what: &str, dialect: Dialect, count: u64, append: impl FnOnce(&Spool) + Send) {
    let manager = ManagerAddress::Url(start_null_manager());
    let dir = tempfile::tempdir().unwrap();
    let spool = spool(dir.path(), dialect);
    let settings = delivery::Settings {
        manager,
        token_file: None,
        ca_file: None,
        credentials: delivery::Credentials::default(),
        sender: sender(dialect),
        heartbeat: Duration::from_secs(5),
        flush: DELIVERY_TIMEOUT,
        abort: watch::channel(false).1,
        counts: std::sync::Arc::default(),
    };
    let (directives, _obeyed) = mpsc::channel(1);
    let (end, ended) = watch::channel(false);
    let delivery = delivery::run(settings, spool.clone(), directives, ended);
    let start = Instant::now();
    let outcome = thread::scope(|scope| {
        scope.spawn(|| {
            append(&spool);
            end.send_replace(true);
        });
        runtime().block_on(delivery)
    });
    assert_eq!((outcome.undelivered, outcome.last_error), (0, None));
    print_rate(what, count, start.elapsed());
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

fn spool(dir: &Path, dialect: Dialect) -> Spool {
    let options = Options {
        dir: Some(dir.to_owned()),
        attempt: AttemptId::new("bench").unwrap(),
        sender: Some(sender(dialect)),
        limit_bytes: 1 << 30,
        sync_interval: Duration::from_secs(1),
        now_ms: 0,
    };
    Spool::open(options).spool
}

fn sender(dialect: Dialect) -> Sender {
    Sender {
        experiment: ExperimentId::new("bench").unwrap(),
        trial: TrialJobId::new("abcde").unwrap(),
        dialect,
    }
}

fn metric(sequence: u64) -> ReportBody {
    ReportBody::Metric(Metric {
        name: "default".to_owned(),
        kind: MetricKind::Intermediate,
        sequence,
        value: 0.5.into(),
        derived: false,
    })
}

fn line() -> String {
    let mut line = "x".repeat(LINE_BYTES - 1);
    line.push('\n');
    line
}

/// Starts a manager that acknowledges every batch, in both protocols. It ends with the process.
fn start_null_manager() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        for stream in listener.incoming() {
            thread::spawn(move || serve(&stream.unwrap()));
        }
    });
    url
}

fn serve(mut stream: &TcpStream) {
    stream.set_nodelay(true).unwrap();
    let mut bytes = Vec::new();
    let mut buffer = vec![0; 256 * 1024];
    loop {
        while let Some(length) = request_length(&bytes) {
            let ack = acknowledge(&bytes[..length]);
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", ack.len());
            stream.write_all(&[head.as_bytes(), &ack].concat()).unwrap();
            bytes.drain(..length);
        }
        match stream.read(&mut buffer) {
            Ok(0) | Err(_) => return,
            Ok(length) => bytes.extend_from_slice(&buffer[..length]),
        }
    }
}

fn request_length(bytes: &[u8]) -> Option<usize> {
    let head = memchr::memmem::find(bytes, b"\r\n\r\n")?;
    let text = std::str::from_utf8(&bytes[..head]).unwrap();
    let length = text.lines().find_map(|line| {
        let (name, value) = line.split_once(": ")?;
        name.eq_ignore_ascii_case("content-length").then(|| value.parse::<usize>().unwrap())
    });
    let whole = head + 4 + length.unwrap();
    (bytes.len() >= whole).then_some(whole)
}

/// Returns an ack of TrialKeeper's protocol. NNI's is empty.
fn acknowledge(request: &[u8]) -> Vec<u8> {
    if !request.starts_with(b"POST /api/v1/agent/reports") {
        return Vec::new();
    }
    // Quotes within a report's texts are escaped, so this is the beginning of a report.
    let through = memchr::memmem::rfind(request, b"{\"seq\":").map(|at| {
        let digits = &request[at + 7..];
        let length = digits.iter().take_while(|byte| byte.is_ascii_digit()).count();
        std::str::from_utf8(&digits[..length]).unwrap().parse().unwrap()
    });
    let ack = ReportAck {
        offer: Offer::new([capability::BULK]),
        through,
        directives: Vec::new(),
        lease_ms: None,
        token: None,
        resend: false,
        other: std::collections::BTreeMap::new(),
    };
    serde_json::to_vec(&ack).unwrap()
}
