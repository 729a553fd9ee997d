//! The server of the benchmarks: the manager's ingest path with the real store, but without an experiment. It is a
//! separate process, so that its memory and processor time are measured without the clients.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::io::AsyncReadExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use trial_manager::api::access::auth::{Authenticator, Reach};
use trial_manager::api::access::session::Sessions;
use trial_manager::api::{self, ApiState, Pods, ServerInfo};
use trial_manager::code_archive::CodeArchive;
use trial_manager::experiment::ExperimentHandle;
use trial_manager::ingest::Intake;
use trial_manager::store::{NewTrial, Store};
use trial_manager::token::{Secret, UserToken};
use trial_manager::util::clock::SystemClock;
use trial_manager::view::TrialCache;
use trial_protocol::{AttemptId, ExperimentId, TrialJobId};

/// The experiment of all trials.
pub(crate) const EXPERIMENT_ID: &str = "bench";

/// Returns the id of the trial with a number.
pub(crate) fn trial_id(number: u64) -> TrialJobId {
    TrialJobId::new(format!("t{number}")).unwrap()
}

/// Opens a store in `folder` and inserts a number of trials.
async fn create_store(folder: &Path, trials: u64) -> Store {
    let store = Store::open(&folder.join("trialkeeper.db")).unwrap();
    for sequence in 0..trials {
        let new = NewTrial {
            id: trial_id(sequence),
            sequence,
            parameter_id: Some(sequence),
            parameters: json!({}),
            attempt: AttemptId::new("a").unwrap(),
            created_at_ms: 0,
        };
        store.trials().insert(vec![new]).await.unwrap();
    }
    store
}

/// Runs the server: prints its ports, and ends when standard input is closed.
pub(crate) async fn serve(folder: &Path, trials: u64) {
    let store = create_store(folder, trials).await;
    let (handle, mut events) = ExperimentHandle::new(1024);
    let experiment = ExperimentId::new(EXPERIMENT_ID).unwrap();
    let clock = Arc::new(SystemClock);
    let intake = Intake::new(store.clone(), handle.clone(), experiment.clone(), clock.clone());
    let secret = Arc::new(Secret::load_or_create(&folder.join("secret")).unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let old = TcpListener::bind("127.0.0.1:0").await.unwrap();
    println!("{} {}", listener.local_addr().unwrap().port(), old.local_addr().unwrap().port());
    let legacy =
        tokio::spawn(api::serve(old, api::legacy::router(&intake), std::future::pending::<()>()));
    let listen = tokio::spawn(async move { while events.recv().await.is_some() {} });
    let user = UserToken::load_or_create(&folder.join("user.token")).unwrap();
    let sessions = Sessions::load(store.sessions().clone(), clock.clone()).await.unwrap();
    let authenticator =
        Authenticator::new(&experiment, user, secret.as_ref().clone(), sessions, Reach::Machine);
    let pods = Pods::new(CodeArchive::new(PathBuf::new(), PathBuf::new()), 1);
    let closing = CancellationToken::new();
    let trial_cache = TrialCache::new(store.queries().clone(), None);
    let kept = store.clone();
    let (server_info, service) = (
        ServerInfo { port: None, folder: folder.to_owned(), has_trial_files: false },
        Arc::default(),
    );
    let state = ApiState {
        intake,
        store: kept,
        secret,
        authenticator,
        closed: closing.clone(),
        closing,
        streams: TaskTracker::new(),
        pods,
        trial_cache,
        handle,
        clock,
        service,
        server_info,
    };
    let router = api::router(state);
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

/// Reads an answer with a `content-length`.
pub(crate) async fn read_answer<'a>(stream: &mut TcpStream, buffer: &'a mut [u8]) -> &'a str {
    let mut filled = 0;
    loop {
        let read = stream.read(&mut buffer[filled..]).await.unwrap();
        assert!(read > 0, "the server closed the connection");
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

/// A running server.
pub(crate) struct Server {
    process: Child,
    /// The ports of the native listener, and of the listener for NNI's own keeper.
    pub(crate) ports: [u16; 2],
}

impl Server {
    /// Starts this program again as a server with a number of trials.
    pub(crate) fn start(folder: &Path, trials: u64) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .arg("--server")
            .arg(folder)
            .arg(trials.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let (native, legacy) = line.trim().split_once(' ').unwrap();
        Self { process, ports: [native.parse().unwrap(), legacy.parse().unwrap()] }
    }

    /// Returns the processor time of all threads of the server so far.
    pub(crate) fn processor_time(&self) -> Duration {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.process.id())).unwrap();
        // The name in parentheses may contain blanks. User and system time are the 12th and 13th fields after it.
        let fields: Vec<&str> = stat[stat.rfind(')').unwrap()..].split_whitespace().collect();
        let ticks: u64 = fields[12..14].iter().map(|field| field.parse::<u64>().unwrap()).sum();
        // Linux counts in hundredths of a second for user space (`USER_HZ`).
        Duration::from_millis(ticks * 10)
    }

    /// Returns the server's peak memory so far, in KiB.
    pub(crate) fn resident_kib(&self) -> u64 {
        let status =
            std::fs::read_to_string(format!("/proc/{}/status", self.process.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    /// Stops the server.
    pub(crate) fn stop(&mut self) {
        drop(self.process.stdin.take());
        self.process.wait().unwrap();
        std::io::stdout().flush().unwrap();
    }
}
