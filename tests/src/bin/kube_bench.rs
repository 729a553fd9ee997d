//! Measures a manager with thousands of Jobs or Frameworks, hundreds at a time: requests, memory, and the
//! delay from a state in the API to the store. The scripted API server replays what real controllers did. The
//! output also shows the part of the delay until the server has written the event. It shows the processor
//! time of both programs, which does not depend on other load.
//!
//! `cargo run --release -p trialkeeper-tests --bin kube_bench [jobs|frameworks [TRIALS [CONCURRENCY
//! [SPEED]]]]`, after building the programs in the same profile. `kube_bench hand-over [TRIALS]` measures the
//! time between two trials.

#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "a benchmark program")]

use std::collections::HashMap;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::{Mutex, mpsc};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};
use trialkeeper_tests::kube::{Behavior, Kube};
use trialkeeper_tests::{Outcome, Search, TestBed};

#[path = "kube_bench/hand_over.rs"]
mod hand_over;

#[expect(clippy::too_many_lines, reason = "a benchmark is one sequence")]
fn main() {
    let mut words = std::env::args().skip(1).peekable();
    if words.next_if(|word| word == "hand-over").is_some() {
        return hand_over::print_hand_overs(words.next().map_or(10, |word| word.parse().unwrap()));
    }
    let kind = words.next_if(|word| word.parse::<u32>().is_err());
    let kind = WorkloadKind::from_name(kind.as_deref().unwrap_or("jobs"));
    let mut words = words.map(|word| word.parse::<u32>().unwrap());
    let trials = words.next().unwrap_or(2000);
    let concurrency = words.next().unwrap_or(500);
    let speed = words.next().unwrap_or(4);
    let bed = TestBed::new();
    // Each trial is reported as started, as its agent would do. Otherwise the manager would pause the search.
    let (started, starts) = mpsc::channel::<Value>();
    let kube = Kube::start(bed.folder(), move |object| {
        // Ignored: the receiver ends with the search.
        drop(started.send(object.clone()));
        match kind {
            WorkloadKind::Frameworks => Behavior::Recorded("fail5".to_owned(), speed),
            WorkloadKind::Jobs => Behavior::TimedJob { code: TRIAL_EXIT_CODE, speed },
        }
    });
    kube.write_kubeconfig(&bed.path("kubeconfig"));
    let search = Search::new("true", trials).with("trialConcurrency", concurrency).with(
        "trainingService",
        json!({
            "platform": kind.platform(), "agent": "image", "storage": "image",
            "kubeconfig": bed.path("kubeconfig").display().to_string(),
            "taskRoles": [{"name": "worker", "dockerImage": "any"}],
        }),
    );
    let mut command = search.command(&bed);
    command.args(["--host", "127.0.0.1"]);
    let began = Instant::now();
    let mut running = bed.start(&mut command);
    let status = format!("/proc/{}/status", running.pid());
    let stat = format!("/proc/{}/stat", running.pid());
    let (mut peak_kib, mut manager_ms) = (0, 0);
    let mut unreported = Vec::new();
    while running.is_running() {
        unreported.extend(starts.try_iter());
        unreported = report_starts(&kube, unreported);
        manager_ms = manager_ms.max(processor_ms(&stat).unwrap_or(0));
        let text = fs::read_to_string(&status).unwrap_or_default();
        let peak = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let peak =
            peak.and_then(|line| line.trim().trim_end_matches("kB").trim().parse::<u64>().ok());
        peak_kib = peak_kib.max(peak.unwrap_or(0));
        std::thread::park_timeout(Duration::from_millis(20));
    }
    let took = began.elapsed();
    let outcome = Outcome::parse(running.finish(Duration::from_mins(2)));
    assert_eq!(outcome.trials.len(), usize::try_from(trials).unwrap(), "{}", outcome.stderr);

    // The wall clock, as SQLite reads it, at the same time as this process's monotonic clock.
    let store = bed.find_store().expect("the experiment has a store");
    let wall = "SELECT CAST(unixepoch('subsec') * 1000 AS INTEGER)";
    let now_ms: i64 = store.query_row(wall, [], |row| row.get(0)).unwrap();
    let now = Instant::now();
    let ended: HashMap<String, i64> = store
        .prepare("SELECT id, ended_at_ms FROM trial WHERE state = 'FAILED' AND exit_code = 7")
        .unwrap()
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))
        .unwrap()
        .map(Result::unwrap)
        .collect();
    let events = "SELECT count(*) FROM trial_event WHERE state = 'FAILED'";
    let events: i64 = store.query_row(events, [], |row| row.get(0)).unwrap();

    let completed = kube.first_matches(kind.plural(), |object| kind.has_ended(object));
    let wall_ms =
        |at: Instant| Some(now_ms - i64::try_from(now.duration_since(at).as_millis()).ok()?);
    let (mut late, mut written, mut delivered) = (Vec::new(), Vec::new(), Vec::new());
    for (object, at) in &completed {
        let trial = object["metadata"]["labels"]["trialkeeper/trial"].as_str();
        let end = trial.and_then(|trial| ended.get(trial));
        let sent = kube.first_sent_at(object);
        let (Some(end), Some(sent)) = (end, sent) else { continue };
        let (Some(at), Some(sent)) = (wall_ms(*at), wall_ms(sent)) else { continue };
        late.push(end - at);
        written.push(sent - at);
        delivered.push(end - sent);
    }
    let requests = kube.requests().len();
    // About 20 requests belong to the search as a whole.
    let hundredths = (requests - 20) * 100 / usize::try_from(trials).unwrap().max(1);
    println!("{trials} {} at {concurrency} in {:.1} s", kind.plural(), took.as_secs_f64());
    println!(
        "ended in the store: {} trials, {events} transitions; listed {}",
        ended.len(),
        outcome.trials.len()
    );
    for (what, times) in [
        ("API to store", &mut late),
        ("  of this, until the scripted server has written the event", &mut written),
        ("  of this, from there to the store", &mut delivered),
    ] {
        times.sort_unstable();
        let at = |part: usize| times.get(times.len() * part / 100).copied().unwrap_or(-1);
        let most = times.last().unwrap_or(&-1);
        println!("{what}: p50 {} ms, p99 {} ms, maximum {most} ms", at(50), at(99));
    }
    let own_ms = processor_ms("/proc/self/stat").unwrap_or(0);
    println!("processors: manager {manager_ms} ms, scripted server {own_ms} ms");
    println!("requests: {requests}, {}.{:02} a trial", hundredths / 100, hundredths % 100);
    println!("memory: {} MB maximum", peak_kib / 1000);
}

/// Returns the wall clock in milliseconds, as SQLite reads it.
fn wall_now_ms(store: &rusqlite::Connection) -> f64 {
    store.query_row("SELECT unixepoch('subsec') * 1000.0", [], |row| row.get(0)).unwrap()
}

/// The number of starts that are reported at the same time.
const REPORTER_THREADS: usize = 16;

/// The exit code of every trial, which the recording of a Framework has, too.
const TRIAL_EXIT_CODE: i32 = 7;

/// The kind of object that runs the trials.
#[derive(Clone, Copy)]
enum WorkloadKind {
    Frameworks,
    Jobs,
}

impl WorkloadKind {
    fn from_name(name: &str) -> Self {
        match name {
            "frameworks" => Self::Frameworks,
            "jobs" => Self::Jobs,
            other => panic!("{other}: expected jobs or frameworks"),
        }
    }

    fn plural(self) -> &'static str {
        match self {
            Self::Frameworks => "frameworks",
            Self::Jobs => "jobs",
        }
    }

    fn platform(self) -> &'static str {
        match self {
            Self::Frameworks => "frameworkcontroller",
            Self::Jobs => "kubernetes",
        }
    }

    fn has_ended(self, object: &Value) -> bool {
        match self {
            Self::Frameworks => object.pointer("/status/state") == Some(&Value::from("Completed")),
            Self::Jobs => {
                let conditions = object.pointer("/status/conditions").and_then(Value::as_array);
                let is_end = |condition: &Value| {
                    ["Failed", "Complete", "Completed"].iter().any(|end| condition["type"] == *end)
                };
                conditions.into_iter().flatten().any(is_end)
            }
        }
    }
}

/// Reports the starts of trials, and returns those that could not be reported yet: an object is there before its
/// Secret.
fn report_starts(kube: &Kube, objects: Vec<Value>) -> Vec<Value> {
    let (waiting, unreported) = (Mutex::new(objects), Mutex::new(Vec::new()));
    let next = || waiting.lock().unwrap().pop();
    std::thread::scope(|scope| {
        for _ in 0..REPORTER_THREADS.min(waiting.lock().unwrap().len()) {
            scope.spawn(|| {
                while let Some(object) = next() {
                    if report_start(kube, &object).is_none() {
                        unreported.lock().unwrap().push(object);
                    }
                }
            });
        }
    });
    unreported.into_inner().unwrap()
}

/// Reports to the manager that a trial's command was started. `None`: the object has no Secret yet.
fn report_start(kube: &Kube, framework: &Value) -> Option<()> {
    let label =
        |name: &str| framework["metadata"]["labels"][format!("trialkeeper/{name}")].as_str();
    let (experiment, trial, attempt) = (label("experiment")?, label("trial")?, label("attempt")?);
    let secret = |name: &str, field: &str| {
        let text = kube.get("secrets", name)?["data"][field].as_str()?.to_owned();
        String::from_utf8(BASE64_STANDARD.decode(text).ok()?).ok()
    };
    let token = secret(framework["metadata"]["name"].as_str()?, "token")?;
    let url = secret(&format!("tk{experiment}"), "manager.url")?;
    let started = json!({
        "kind": "started", "pid": 1, "command": ["true"], "host": "h", "agent_version": "0.1.0",
    });
    let body = json!({
        "offer": {"oldest": 1, "newest": 1, "capabilities": []},
        "experiment": experiment, "trial": trial, "attempt": attempt, "lane": "facts",
        "reports": [{"seq": 0, "observed_at_ms": 0, "body": started}],
    });
    let body = body.to_string();
    let mut stream = TcpStream::connect(url.trim().strip_prefix("http://")?).ok()?;
    let head = format!(
        "POST /api/v1/agent/reports HTTP/1.1\r\nHost: m\r\nConnection: close\r\n\
         Authorization: Bearer {token}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(head.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    Some(())
}

/// Returns the processor time of a process in ms, from its `stat` in `/proc` (with ticks of 10 ms).
fn processor_ms(stat: &str) -> Option<u64> {
    let text = fs::read_to_string(stat).ok()?;
    // The process name in parentheses may contain any character.
    let rest = text.rsplit_once(')')?.1;
    let ticks = rest.split_whitespace().skip(11).take(2).map(|field| field.parse::<u64>().ok());
    Some(ticks.sum::<Option<u64>>()? * 10)
}
