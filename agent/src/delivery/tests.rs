//! Delivery to a server that follows a script: it gives one answer for each request, and repeats the last one.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use trial_protocol::{
    DirectiveBody, ExperimentId, LogChunk, LogText, Metric, MetricKind, Offer, ReportAck,
    ReportBatch, ReportBody, StopReason, Stream, TrialJobId, capability,
};

use super::*;
use crate::spool::{Dialect, Options};

mod compression;
mod ending;
mod long_poll;

use long_poll::{OpenRequests, read_chunked_body};

const TEST_TIMEOUT: Duration = Duration::from_mins(1);

/// The server's reaction to a request.
#[derive(Debug, Clone)]
enum Answer {
    /// Stores and acknowledges the batch.
    Ack,
    /// Stores and acknowledges the batch, with these directives.
    AckWithDirectives(Vec<Directive>),
    /// Stores the batch, and breaks the connection before the ack.
    StoreAndReset,
    /// Breaks the connection in the middle of the request.
    Reset,
    /// Answers with a status and a header.
    Status(u16, &'static str),
    /// Answers 413 for more than this number of reports, otherwise with an ack.
    LimitReports(usize),
    /// Answers 401 unless the request has this token.
    RequireToken(&'static str),
    /// Answers 200 with a body that is not an ack.
    NotAnAck,
    /// Answers 200 with a body that is too long.
    TooLong,
    /// Acknowledges without having stored the batch.
    AckWithoutStoring,
    /// Stores and acknowledges the batch, but offers no capability.
    AckWithoutOffer,
    /// Refuses compressed batches with this status and a manager's explanation.
    RefuseCompressed(u16),
}

#[derive(Default)]
struct ServerRecord {
    /// Reports by attempt, lane and seq, as a manager stores them.
    stored: BTreeMap<(String, Lane, u64), ReportBody>,
    /// The order in which seqs of each lane were first stored.
    order: Vec<(Lane, u64)>,
    /// Attempts in the order of their first report.
    attempts: Vec<String>,
    obeyed: Vec<u64>,
    heartbeats: u64,
    requests: u64,
    /// The number of requests that were compressed.
    compressed_requests: u64,
}

struct Server {
    url: String,
    seen: Arc<Mutex<ServerRecord>>,
    open_requests: Arc<OpenRequests>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Server {
    async fn start(script: Vec<Answer>) -> Self {
        Self::start_on("127.0.0.1:0", script).await
    }

    async fn start_on(address: &str, script: Vec<Answer>) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let seen = Arc::<Mutex<ServerRecord>>::default();
        let script = Arc::new(Mutex::new(VecDeque::from(script)));
        let for_task = Arc::clone(&seen);
        let line = Arc::<OpenRequests>::default();
        let for_line = Arc::clone(&line);
        let task = tokio::spawn(async move {
            // The connections end with this task, because a stopped server answers on none of them.
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (script, seen, line) =
                    (Arc::clone(&script), Arc::clone(&for_task), Arc::clone(&for_line));
                connections.spawn(serve(stream, script, seen, line));
            }
        });
        Self { url, seen, open_requests: line, task }
    }

    fn facts(&self) -> Vec<u64> {
        let seen = self.seen.lock().unwrap();
        seen.order.iter().filter(|(lane, _)| *lane == Lane::Facts).map(|(_, seq)| *seq).collect()
    }

    async fn wait_until(&self, what: &str, holds: impl Fn(&ServerRecord) -> bool) {
        let wait = async {
            while !holds(&self.seen.lock().unwrap()) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        assert!(tokio::time::timeout(TEST_TIMEOUT, wait).await.is_ok(), "{what}, in time");
    }
}

async fn serve(
    mut stream: TcpStream,
    script: Arc<Mutex<VecDeque<Answer>>>,
    seen: Arc<Mutex<ServerRecord>>,
    open_requests: Arc<OpenRequests>,
) {
    let mut bytes = Vec::new();
    loop {
        let read =
            read_request(&mut stream, &mut bytes, &open_requests.opened, &open_requests.wake).await;
        let Some((token, body)) = read else { return };
        let (packed, body) = compression::decompress(body);
        seen.lock().unwrap().compressed_requests += u64::from(packed);
        if body.is_empty() {
            // An early answer. Like any server, this one then closes the connection.
            drop(stream.write_all(acknowledge(None, &[]).as_bytes()).await);
            return;
        }
        let answer = {
            let mut script = script.lock().unwrap();
            if script.len() > 1 { script.pop_front() } else { script.front().cloned() }
        };
        let batch: ReportBatch = serde_json::from_slice(&body).unwrap();
        let reply = match answer.unwrap_or(Answer::Ack) {
            Answer::Ack => store(&seen, &batch, &[]),
            Answer::AckWithDirectives(directives) => store(&seen, &batch, &directives),
            Answer::StoreAndReset => {
                store(&seen, &batch, &[]);
                return;
            }
            Answer::Reset => return,
            Answer::Status(status, header) => refuse(status, header),
            Answer::LimitReports(most) if batch.reports.len() > most => refuse(413, ""),
            Answer::RequireToken(wanted) if token.as_deref() != Some(wanted) => refuse(401, ""),
            Answer::RefuseCompressed(status) if packed => {
                refuse(status, "content-type: application/problem+json\r\n")
            }
            Answer::LimitReports(_) | Answer::RequireToken(_) | Answer::RefuseCompressed(_) => {
                store(&seen, &batch, &[])
            }
            Answer::AckWithoutOffer => {
                let ack = store(&seen, &batch, &[]);
                let (_, ack) = ack.split_once("\r\n\r\n").unwrap();
                let mut ack: ReportAck = serde_json::from_str(ack).unwrap();
                ack.offer = Offer::new([]);
                reply(200, "", &serde_json::to_string(&ack).unwrap())
            }
            Answer::NotAnAck => reply(200, "", "<html>"),
            Answer::TooLong => reply(200, "", &"[".repeat(2 << 20)),
            Answer::AckWithoutStoring => acknowledge(None, &[]),
        };
        seen.lock().unwrap().requests += 1;
        if stream.write_all(reply.as_bytes()).await.is_err() {
            return;
        }
    }
}

/// Reads one request. Returns its token and body.
async fn read_request(
    stream: &mut TcpStream,
    bytes: &mut Vec<u8>,
    opened: &watch::Sender<u32>,
    wake: &Notify,
) -> Option<(Option<String>, Vec<u8>)> {
    let (mut head, mut length, mut token) = (None, 0, None);
    loop {
        if head.is_none()
            && let Some(end) = memchr::memmem::find(bytes, b"\r\n\r\n")
        {
            let text = String::from_utf8_lossy(&bytes[..end]).to_lowercase();
            let header = |name: &str| {
                text.lines().find_map(|line| line.strip_prefix(name).map(str::to_owned))
            };
            if header("transfer-encoding: chunked").is_some() {
                opened.send_modify(|opened| *opened += 1);
                let token = header("authorization: bearer ");
                bytes.drain(..end + 4);
                return read_chunked_body(stream, bytes, wake).await.map(|body| (token, body));
            }
            length = header("content-length: ").unwrap().trim().parse().unwrap();
            token = header("authorization: bearer ");
            head = Some(end + 4);
        }
        if let Some(head) = head
            && bytes.len() >= head + length
        {
            let body = bytes[head..head + length].to_vec();
            bytes.drain(..head + length);
            return Some((token, body));
        }
        if stream.read_buf(bytes).await.ok()? == 0 {
            return None;
        }
    }
}

fn store(seen: &Mutex<ServerRecord>, batch: &ReportBatch, directives: &[Directive]) -> String {
    let mut seen = seen.lock().unwrap();
    seen.obeyed.extend(&batch.obeyed);
    seen.heartbeats += u64::from(batch.reports.is_empty());
    if !seen.attempts.iter().any(|known| known == batch.attempt.as_str()) {
        seen.attempts.push(batch.attempt.to_string());
    }
    for report in &batch.reports {
        let key = (batch.attempt.to_string(), batch.lane, report.seq);
        if seen.stored.insert(key, report.body.clone()).is_none() {
            seen.order.push((batch.lane, report.seq));
        }
    }
    acknowledge(batch.reports.last().map(|report| report.seq), directives)
}

fn acknowledge(through: Option<u64>, directives: &[Directive]) -> String {
    let ack = ReportAck {
        offer: Offer::new([capability::BULK, capability::GZIP, capability::OPEN]),
        through,
        directives: directives.to_vec(),
        lease_ms: None,
        token: None,
        resend: false,
        other: BTreeMap::new(),
    };
    reply(200, "", &serde_json::to_string(&ack).unwrap())
}

fn refuse(status: u16, header: &str) -> String {
    reply(status, header, r#"{"title":"no","detail":"because"}"#)
}

fn reply(status: u16, header: &str, body: &str) -> String {
    format!("HTTP/1.1 {status} x\r\ncontent-length: {}\r\n{header}\r\n{body}", body.len())
}

fn metric(number: u32) -> ReportBody {
    ReportBody::Metric(Metric {
        name: "m".to_owned(),
        kind: MetricKind::Intermediate,
        sequence: 0,
        value: f64::from(number).into(),
        derived: false,
    })
}

fn log() -> ReportBody {
    let text = LogText::Text("line\n".to_owned());
    ReportBody::Log(LogChunk { stream: Stream::Stdout, offset_bytes: 0, text })
}

fn memory_spool() -> Spool {
    spool_in(None)
}

fn spool_in(dir: Option<&Path>) -> Spool {
    Spool::open(options_in(dir, "t-1")).spool
}

fn options_in(dir: Option<&Path>, attempt: &str) -> Options {
    Options {
        dir: dir.map(Path::to_owned),
        attempt: AttemptId::new(attempt).unwrap(),
        sender: Some(sender()),
        limit_bytes: 1 << 20,
        sync_interval: Duration::from_secs(1),
        // At time 0, numbers start with 0.
        now_ms: 0,
    }
}

fn sender() -> Sender {
    Sender {
        experiment: ExperimentId::new("exp").unwrap(),
        trial: TrialJobId::new("trial").unwrap(),
        dialect: Dialect::Native,
    }
}

fn settings(manager: ManagerAddress) -> Settings {
    Settings {
        manager,
        token_file: None,
        ca_file: None,
        credentials: Credentials::default(),
        sender: sender(),
        heartbeat: Duration::from_hours(1),
        flush: TEST_TIMEOUT,
        abort: watch::channel(false).1,
        counts: Arc::default(),
    }
}

struct Delivery {
    directives: mpsc::Receiver<Directive>,
    end: watch::Sender<bool>,
    task: tokio::task::JoinHandle<Outcome>,
}

fn deliver(settings: Settings, spool: &Spool) -> Delivery {
    let (sender, directives) = mpsc::channel(16);
    let (end, ended) = watch::channel(false);
    let task = tokio::spawn(run(settings, spool.clone(), sender, ended));
    Delivery { directives, end, task }
}

impl Delivery {
    async fn end(self) -> Outcome {
        self.end.send_replace(true);
        tokio::time::timeout(TEST_TIMEOUT, self.task).await.expect("an end in time").unwrap()
    }
}

fn complete_outcome() -> Outcome {
    Outcome { undelivered: 0, last_error: None }
}

#[tokio::test]
async fn reports_arrive_once_and_in_order_whatever_the_manager_does() {
    #[rustfmt::skip]
    let table = [
        ("all is well",              vec![Answer::Ack]),
        ("an error, then well",      vec![Answer::Status(500, ""), Answer::Ack]),
        ("busy for a while",         vec![Answer::Status(503, "retry-after: 0\r\n"), Answer::Status(429, ""), Answer::Ack]),
        ("the request breaks",       vec![Answer::Reset, Answer::Reset, Answer::Ack]),
        ("the ack is lost",          vec![Answer::StoreAndReset, Answer::StoreAndReset, Answer::Ack]),
        ("batches are too large",    vec![Answer::LimitReports(3)]),
        ("a proxy refuses all for a while", vec![Answer::Status(413, ""); 12].into_iter().chain([Answer::Ack]).collect()),
        ("an answer without end",    vec![Answer::TooLong, Answer::Ack]),
        ("another server answers",   vec![Answer::NotAnAck, Answer::Status(404, ""), Answer::Ack]),
        ("a proxy refuses for a while", vec![Answer::Status(400, ""), Answer::Status(407, ""), Answer::Ack]),
        ("an ack without effect", vec![Answer::AckWithoutStoring, Answer::Ack]),
        ("refused, then known",      vec![Answer::Status(401, ""), Answer::Status(403, ""), Answer::Ack]),
    ];
    for (case, script) in table {
        let server = Server::start(script).await;
        let spool = memory_spool();
        let delivery = deliver(settings(ManagerAddress::Url(server.url.clone())), &spool);
        for number in 0..40 {
            spool.append(0, metric(number));
            spool.append(0, log());
        }
        assert_eq!(delivery.end().await, complete_outcome(), "{case}");
        assert_eq!(server.facts(), (0..40).collect::<Vec<_>>(), "{case}");
        assert_eq!(server.seen.lock().unwrap().stored.len(), 80, "{case}: logs too");
    }
}

#[tokio::test]
async fn a_new_token_is_read_when_the_old_one_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let token_file = dir.path().join("token");
    std::fs::write(&token_file, "old\n").unwrap();
    let server = Server::start(vec![Answer::RequireToken("new")]).await;
    let spool = memory_spool();
    spool.append(0, metric(0));
    let with_token = Settings {
        token_file: Some(token_file.clone()),
        ..settings(ManagerAddress::Url(server.url.clone()))
    };
    let delivery = deliver(with_token, &spool);
    server.wait_until("a refusal", |seen| seen.requests > 0).await;
    std::fs::write(&token_file, "new\n").unwrap();
    assert_eq!(delivery.end().await, complete_outcome());
    assert_eq!(server.facts(), [0]);
}

#[tokio::test]
async fn a_manager_that_moved_is_found_again() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("manager.url");
    let first = Server::start(vec![Answer::Ack]).await;
    std::fs::write(&file, format!("{}\n", first.url)).unwrap();
    let spool = memory_spool();
    let delivery = deliver(settings(ManagerAddress::File(file.clone())), &spool);
    spool.append(0, metric(0));
    first.wait_until("the first report", |seen| seen.stored.len() == 1).await;
    drop(first);
    spool.append(0, metric(1));
    let second = Server::start(vec![Answer::Ack]).await;
    std::fs::write(&file, format!("{}\n", second.url)).unwrap();
    assert_eq!(delivery.end().await, complete_outcome());
    assert!(second.facts().ends_with(&[1]));
}

#[tokio::test]
async fn credentials_read_before_the_trial_outlive_their_files() {
    let dir = tempfile::tempdir().unwrap();
    let [file, token_file] = ["manager.url", "token"].map(|name| dir.path().join(name));
    let server = Server::start(vec![Answer::Status(503, ""), Answer::RequireToken("t")]).await;
    std::fs::write(&file, format!("{}\n", server.url)).unwrap();
    std::fs::write(&token_file, "t\n").unwrap();
    let manager = ManagerAddress::File(file);
    let credentials = Credentials::read(&manager, Some(&token_file), None);
    drop(dir);
    let spool = memory_spool();
    spool.append(0, metric(0));
    let with_credentials =
        Settings { token_file: Some(token_file), credentials, ..settings(manager) };
    assert_eq!(deliver(with_credentials, &spool).end().await, complete_outcome());
    assert_eq!(server.facts(), [0]);
}

#[tokio::test]
async fn a_directive_is_passed_on_once_and_obeyed() {
    let body = DirectiveBody::Stop { reason: StopReason::User, grace_ms: None };
    let stop = Directive { id: 9, body };
    let twice = vec![
        Answer::AckWithDirectives(vec![stop.clone()]),
        Answer::AckWithDirectives(vec![stop.clone()]),
    ];
    let script = [twice, vec![Answer::Ack]].concat();
    let server = Server::start(script).await;
    let spool = memory_spool();
    let mut delivery = deliver(settings(ManagerAddress::Url(server.url.clone())), &spool);
    spool.append(0, metric(0));
    let got = tokio::time::timeout(TEST_TIMEOUT, delivery.directives.recv()).await.unwrap();
    assert_eq!(got, Some(stop));
    spool.append(0, metric(1));
    server.wait_until("the obeyed directive", |seen| seen.obeyed.contains(&9)).await;
    assert!(delivery.directives.try_recv().is_err(), "forwarded once");
    assert_eq!(delivery.end().await, complete_outcome());
}

#[tokio::test]
async fn bulk_waits_for_a_manager_that_accepts_it() {
    for (becomes, left, why) in [
        (Answer::AckWithoutOffer, 2, Some("the manager does not offer the capability `bulk`")),
        (Answer::Ack, 0, None),
    ] {
        let server = Server::start(vec![Answer::AckWithoutOffer, becomes]).await;
        let spool = memory_spool();
        let delivery = deliver(settings(ManagerAddress::Url(server.url.clone())), &spool);
        spool.append(0, metric(0));
        server.wait_until("the first fact", |seen| seen.requests >= 1).await;
        spool.append(0, log());
        spool.append(0, log());
        spool.append(0, metric(1));
        server.wait_until("another fact", |seen| seen.stored.len() >= 2).await;
        let outcome = delivery.end().await;
        assert_eq!((outcome.undelivered, outcome.last_error.as_deref()), (left, why));
        assert_eq!(server.facts(), [0, 1]);
    }
}

#[tokio::test]
async fn silence_is_broken_by_heartbeats() {
    let server = Server::start(vec![Answer::Ack]).await;
    let often = Settings {
        heartbeat: Duration::from_millis(20),
        ..settings(ManagerAddress::Url(server.url.clone()))
    };
    let delivery = deliver(often, &memory_spool());
    server.wait_until("heartbeats", |seen| seen.heartbeats >= 3).await;
    assert_eq!(delivery.end().await, complete_outcome());
}

#[tokio::test]
async fn an_earlier_attempt_is_delivered_first_under_its_own_id() {
    let dir = tempfile::tempdir().unwrap();
    let first = spool_in(Some(dir.path()));
    first.append(0, metric(7));
    assert!(first.close(TEST_TIMEOUT).await);
    let options = Options {
        dir: Some(dir.path().to_owned()),
        attempt: AttemptId::new("t-2").unwrap(),
        sender: Some(sender()),
        limit_bytes: 1 << 20,
        sync_interval: Duration::from_secs(1),
        // At time 0, numbers start with 0.
        now_ms: 0,
    };
    let second = Spool::open(options).spool;
    second.append(0, metric(8));
    // The earlier attempt has no report on this lane. The log must nevertheless wait for the earlier facts.
    second.append(0, log());
    let server = Server::start(vec![Answer::AckWithoutStoring, Answer::Ack]).await;
    let delivery = deliver(settings(ManagerAddress::Url(server.url.clone())), &second);
    assert_eq!(delivery.end().await, complete_outcome());
    let seen = server.seen.lock().unwrap();
    let of = |attempt: &str| seen.stored.get(&(attempt.to_owned(), Lane::Facts, 0)).cloned();
    assert_eq!((of("t-1"), of("t-2")), (Some(metric(7)), Some(metric(8))));
    assert_eq!(seen.attempts, ["t-1", "t-2"], "earlier attempts report first");
}
