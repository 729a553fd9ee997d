//! Runs with a scripted manager: every report arrives once, and directives are obeyed.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use nix::sys::signal::Signal;
use trial_protocol::{
    Cause, Direction, Directive, DirectiveBody, Lane, LogChunk, LogText, Metric, Offer, Report,
    ReportAck, ReportBatch, ReportBody, StopReason, StopRule, StopWhen, Stream, VERSION_NEWEST,
    VERSION_OLDEST,
};

use crate::test_agent::{TestAgent, trialkeeper_command, wait_until};

/// The state of the scripted manager, and its directives.
#[derive(Default)]
pub(crate) struct ManagerState {
    pub(crate) facts: Vec<Report>,
    pub(crate) bulk: Vec<Report>,
    directives: Vec<Directive>,
    obeyed: Vec<u64>,
    /// `true` if the manager accepts connections and answers nothing.
    unresponsive: bool,
}

pub(crate) struct Manager {
    url: String,
    pub(crate) state: Arc<Mutex<ManagerState>>,
}

impl Manager {
    pub(crate) fn start(directives: Vec<Directive>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let state = Arc::new(Mutex::new(ManagerState { directives, ..ManagerState::default() }));
        let shared = Arc::clone(&state);
        // The thread ends with the test's process.
        thread::spawn(move || {
            for stream in listener.incoming() {
                let state = Arc::clone(&shared);
                thread::spawn(move || serve(&stream.unwrap(), &state));
            }
        });
        Self { url, state }
    }

    pub(crate) fn options<'a>(&'a self, more: &[&'a str]) -> Vec<&'a str> {
        let ids = ["--manager", &self.url, "--experiment", "e", "--trial", "t", "--attempt", "a"];
        [&ids[..], more].concat()
    }

    fn metrics(&self) -> Vec<Metric> {
        let state = self.state.lock().unwrap();
        let metric = |report: &Report| {
            let ReportBody::Metric(metric) = &report.body else { return None };
            Some(metric.clone())
        };
        state.facts.iter().filter_map(metric).collect()
    }
}

/// Answers the requests of one connection.
fn serve(stream: &TcpStream, state: &Mutex<ManagerState>) {
    let mut reader = BufReader::new(stream);
    let mut stream = stream;
    loop {
        let mut length = 0;
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).unwrap_or(0) == 0 {
                return;
            }
            let line = line.trim().to_ascii_lowercase();
            if let Some(value) = line.strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
            if line.is_empty() {
                break;
            }
        }
        let mut body = vec![0; length];
        if reader.read_exact(&mut body).is_err() {
            return;
        }
        let batch: ReportBatch = serde_json::from_slice(&body).unwrap();
        if state.lock().unwrap().unresponsive {
            return;
        }
        let answer = serde_json::to_vec(&acknowledge(batch, &mut state.lock().unwrap())).unwrap();
        let head = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            answer.len()
        );
        if stream.write_all(&[head.as_bytes(), &answer].concat()).is_err() {
            return;
        }
    }
}

fn acknowledge(batch: ReportBatch, state: &mut ManagerState) -> ReportAck {
    state.obeyed.extend(&batch.obeyed);
    let lane = match batch.lane {
        Lane::Facts => &mut state.facts,
        Lane::Bulk => &mut state.bulk,
    };
    for report in batch.reports {
        if lane.iter().all(|known| known.seq != report.seq) {
            lane.push(report);
        }
    }
    let through = lane.last().map(|report| report.seq);
    let obeyed = &state.obeyed;
    let directives =
        state.directives.iter().filter(|order| !obeyed.contains(&order.id)).cloned().collect();
    let offer = Offer {
        oldest: VERSION_OLDEST,
        newest: VERSION_NEWEST,
        capabilities: ["bulk".to_owned()].into(),
    };
    ReportAck {
        offer,
        through,
        directives,
        lease_ms: None,
        token: None,
        resend: false,
        other: std::collections::BTreeMap::new(),
    }
}

#[test]
fn every_fact_arrives_in_order_before_the_agent_ends() {
    let manager = Manager::start(vec![]);
    let line = "for i in 1 2 3; do echo loss=0.$i; done; exit 0";
    let ended = TestAgent::shell(&manager.options(&[]), line).run();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert_eq!(ended.stderr, "", "with a manager there is no summary");
    let values: Vec<_> = manager.metrics().iter().map(|metric| metric.value.number()).collect();
    assert_eq!(values, [Some(0.1), Some(0.2), Some(0.3), Some(0.3)]);
    let state = manager.state.lock().unwrap();
    let numbers: Vec<u64> = state.facts.iter().map(|report| report.seq).collect();
    assert_eq!(numbers, (numbers[0]..).take(6).collect::<Vec<_>>());
    assert!(matches!(state.facts[0].body, ReportBody::Started(_)));
    let ReportBody::Ended(verdict) = &state.facts[5].body else { panic!("{:?}", state.facts[5]) };
    assert_eq!(**verdict, ended.verdict());
}

#[test]
fn a_stop_directive_is_obeyed_and_its_reason_reported() {
    let body = DirectiveBody::Stop { reason: StopReason::EarlyStop, grace_ms: Some(200) };
    let manager = Manager::start(vec![Directive { id: 7, body }]);
    let line = r#"trap "" TERM; while :; do sleep 0.05; done"#;
    let ended = TestAgent::shell(&manager.options(&[]), line).run();
    assert_eq!(ended.code, Some(137), "{}", ended.stderr);
    let verdict = ended.verdict();
    assert_eq!((verdict.cause, verdict.stop), (Cause::EarlyStopped, Some(StopReason::EarlyStop)));
    wait_until("the report that the directive was obeyed", || {
        manager.state.lock().unwrap().obeyed.contains(&7)
    });
}

#[test]
fn a_signal_that_is_faster_than_the_managers_reason_does_not_hide_it() {
    let manager = Manager::start(Vec::new());
    // The agent is so silent that only the signal makes it send a batch.
    let options = manager.options(&["--heartbeat", "1h"]);
    let line = "touch ready; exec sleep 1000";
    let running = TestAgent::shell(&options, line).start().wait_for("ready");
    wait_until("the report of the start", || !manager.state.lock().unwrap().facts.is_empty());
    let body = DirectiveBody::Stop { reason: StopReason::EarlyStop, grace_ms: None };
    manager.state.lock().unwrap().directives.push(Directive { id: 1, body });
    running.send_signal(nix::sys::signal::Signal::SIGTERM);
    let ended = running.wait();
    assert_eq!(ended.code, Some(143));
    let verdict = ended.verdict();
    assert_eq!(verdict.cause, Cause::EarlyStopped, "{}", verdict.message);
    assert!(verdict.message.starts_with("The assessor stopped"), "{}", verdict.message);
}

#[test]
fn an_assessors_rule_applies_while_the_manager_is_unreachable() {
    let when = StopWhen::Best {
        name: "score".to_owned(),
        direction: Some(Direction::Maximize),
        from_results: 2,
        bounds: vec![0.5],
    };
    let rule = StopRule { reason: StopReason::EarlyStop, lease_ms: Some(600_000), when };
    let body = DirectiveBody::StopRules { rules: vec![rule], lease_ms: 3_600_000 };
    let manager = Manager::start(vec![Directive { id: 3, body }]);
    let options = manager.options(&["--heartbeat", "100ms", "--flush", "100ms"]);
    let line = "echo score=0.3; until [ -e go ]; do sleep 0.02; done; echo score=0.2; sleep 1000";
    let running = TestAgent::shell(&options, line).start();
    wait_until("the agent has the rule", || manager.state.lock().unwrap().obeyed.contains(&3));
    manager.state.lock().unwrap().unresponsive = true;
    std::fs::write(running.path("go"), "").unwrap();
    let ended = running.wait();
    let verdict = ended.verdict();
    assert_eq!((verdict.cause, verdict.stop), (Cause::EarlyStopped, Some(StopReason::EarlyStop)));

    manager.state.lock().unwrap().unresponsive = false;
    let mut replay = trialkeeper_command();
    replay.arg("replay").arg(ended.path("out")).args(["--manager", &manager.url]);
    assert_eq!(replay.output().unwrap().status.code(), Some(0));
    let state = manager.state.lock().unwrap();
    let why = state.facts.iter().find_map(|report| {
        let ReportBody::Note { code, message } = &report.body else { return None };
        (code == "early-stop").then(|| message.clone())
    });
    let expected = "its best of 2 results, 0.3, is worse than the manager's bound 0.5";
    assert_eq!(why.as_deref(), Some(expected));
}

#[test]
fn sigterm_after_the_trial_shortens_the_delivery() {
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let url = format!("http://{address}");
    let manager = Manager::start(vec![]);
    let mut options = manager.options(&["--flush", "1h"]);
    options[1] = &url;
    let running = TestAgent::shell(&options, "echo loss=0.5").start().wait_for("out/verdict.json");
    running.send_signal(Signal::SIGTERM);
    let ended = running.wait();
    assert_eq!(ended.code, Some(0), "the trial's own: {}", ended.stderr);
    assert!(ended.stderr.contains("were not delivered"), "{}", ended.stderr);
}

#[test]
fn an_unreachable_manager_does_not_affect_the_trial_and_replay_delivers_later() {
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let url = format!("http://{address}");
    let manager = Manager::start(vec![]);
    let mut options = manager.options(&["--flush", "100ms"]);
    options[1] = &url;
    let ended = TestAgent::shell(&options, "echo loss=0.5; exit 3").run();
    assert_eq!((ended.code, ended.stdout()), (Some(3), "loss=0.5\n"));
    let command = format!("out/spool --manager {url}");
    assert!(ended.stderr.contains(&command), "{}", ended.stderr);

    let mut replay = trialkeeper_command();
    let output =
        replay.arg("replay").arg(ended.path("out")).args(["--manager", &manager.url]).output();
    assert_eq!(output.unwrap().status.code(), Some(0));
    assert_eq!(manager.metrics().len(), 1);
    let state = manager.state.lock().unwrap();
    assert!(matches!(state.facts.last().unwrap().body, ReportBody::Ended(_)));
}

#[test]
fn a_running_attempt_is_not_started_twice() {
    let manager = Manager::start(vec![]);
    let running = TestAgent::shell(&manager.options(&[]), "touch ready; exec sleep 1000")
        .start()
        .wait_for("ready");
    let mut second = trialkeeper_command();
    second.args(["run", "--output-dir", "out"]).args(manager.options(&["--", "touch", "twice"]));
    let output = second.current_dir(running.path("")).output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    assert!(!running.path("twice").exists());
    running.send_signal(nix::sys::signal::Signal::SIGTERM);
    assert_eq!(running.wait().code, Some(143));
}

/// Returns the joined log that has arrived.
fn joined_log(manager: &Manager, wanted: Stream) -> String {
    let state = manager.state.lock().unwrap();
    let piece = |report: &Report| {
        let ReportBody::Log(LogChunk { stream, text: LogText::Text(text), .. }) = &report.body
        else {
            return None;
        };
        (*stream == wanted).then(|| text.clone())
    };
    state.bulk.iter().filter_map(piece).collect()
}

#[test]
fn requested_logs_arrive_whole_in_order_and_masked() {
    let manager = Manager::start(vec![]);
    let line = r#"seq 1 200000; echo "token $SECRET" >&2; printf '1%%\r2%%\rdone\n' >&2"#;
    let options = manager.options(&["--log-collection", "http", "--mask-env", "OTHER,SECRET"]);
    let mut agent = TestAgent::shell(&options, line);
    agent.command.env("SECRET", "hunter22");
    let ended = agent.run();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let expected = (1..=200_000).fold(String::new(), |text, n: u32| text + &n.to_string() + "\n");
    assert!(joined_log(&manager, Stream::Stdout) == expected, "every line, in order");
    assert_eq!(joined_log(&manager, Stream::Stderr), "token ***\ndone\n");
    assert!(ended.stderr.starts_with("token hunter22\n1%\r"), "local output is not masked");
    assert!(ended.verdict().evidence.stderr_tail.starts_with("token ***\n"));
}

#[test]
fn logs_are_not_sent_by_default() {
    let manager = Manager::start(vec![]);
    assert_eq!(TestAgent::shell(&manager.options(&[]), "echo hello").run().code, Some(0));
    assert_eq!(joined_log(&manager, Stream::Stdout), "");
}

#[test]
fn the_end_of_each_stream_arrives_without_log_collection() {
    let manager = Manager::start(vec![]);
    let ended = TestAgent::shell(&manager.options(&[]), "seq 1 200000; seq 1 2000 >&2").run();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let printed =
        |last: u32| (1..=last).fold(String::new(), |text, n| text + &n.to_string() + "\n");
    let (stdout, stderr) = (printed(200_000), printed(2_000));
    let state = manager.state.lock().unwrap();
    let sent: Vec<_> = state.bulk.iter().filter_map(|report| as_log(&report.body)).collect();
    let [(Stream::Stdout, at, end), (Stream::Stderr, 0, whole)] = sent.as_slice() else {
        panic!("{} pieces", sent.len())
    };
    assert_eq!(*end, &stdout[usize::try_from(*at).unwrap()..]);
    assert!(
        end.len() > 65_000 && stdout[..stdout.len() - end.len()].ends_with('\n'),
        "whole lines"
    );
    assert_eq!(*whole, stderr);
}

fn as_log(body: &ReportBody) -> Option<(Stream, u64, &str)> {
    let ReportBody::Log(LogChunk { stream, offset_bytes, text: LogText::Text(text) }) = body else {
        return None;
    };
    Some((*stream, *offset_bytes, text))
}

#[test]
fn logs_beyond_the_rate_are_counted() {
    let manager = Manager::start(vec![]);
    let options = manager.options(&["--log-collection", "http", "--log-rate", "1000"]);
    assert_eq!(TestAgent::shell(&options, "seq 1 100000").run().code, Some(0));
    let state = manager.state.lock().unwrap();
    let shed = state
        .facts
        .iter()
        .any(|report| matches!(&report.body, ReportBody::Note { code, .. } if code == "log-shed"));
    assert!(shed, "{:?}", state.facts);
}
