//! Runs in place of NNI's own keeper, against a server that acts like NNI's cluster server. It answers each request by
//! a script, and then always with 200.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::Value;

use crate::test_agent::{EndedAgent, RunningAgent, TestAgent, trialkeeper_command, wait_until};

/// The server's reaction to a request.
#[derive(Debug, Clone, Copy)]
enum Answer {
    /// A status, with the error page of Express.
    Status(u16),
    /// Accepts the request, answers, and closes the connection without notice.
    AcceptAndClose,
    /// Breaks the connection before the request is read.
    Reset,
    /// Accepts the request, with a chunked body in the answer.
    Chunked,
    /// Answers 413 to bodies above this number of bytes.
    LimitBody(usize),
}

#[derive(Debug, Clone, PartialEq)]
struct Request {
    path: String,
    headers: Vec<String>,
    body: Value,
}

#[derive(Default)]
struct ServerRecord {
    accepted: Vec<Request>,
    requests: usize,
    connections: usize,
}

struct Server {
    port: u16,
    seen: Arc<Mutex<ServerRecord>>,
}

impl Server {
    fn start(script: &[Answer]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let seen = Arc::<Mutex<ServerRecord>>::default();
        let script = Arc::new(Mutex::new(VecDeque::from(script.to_vec())));
        let for_thread = Arc::clone(&seen);
        // The thread ends with the test's process.
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (seen, script) = (Arc::clone(&for_thread), Arc::clone(&script));
                seen.lock().unwrap().connections += 1;
                thread::spawn(move || serve(&stream.unwrap(), &seen, &script));
            }
        });
        Self { port, seen }
    }

    fn accepted(&self) -> Vec<Request> {
        self.seen.lock().unwrap().accepted.clone()
    }

    /// Returns the lines with a tag, in the order of arrival.
    fn lines(&self, tag: &str) -> Vec<String> {
        let accepted = self.accepted();
        let of_tag = accepted.iter().filter(|request| request.body["tag"] == tag);
        of_tag.map(|request| request.body["msg"].as_str().unwrap().to_owned()).collect()
    }
}

fn serve(stream: &TcpStream, seen: &Mutex<ServerRecord>, script: &Mutex<VecDeque<Answer>>) {
    let mut reader = BufReader::new(stream);
    while let Some((request, length)) = read_request(&mut reader) {
        let answer = script.lock().unwrap().pop_front().unwrap_or(Answer::Status(200));
        let mut seen = seen.lock().unwrap();
        seen.requests += 1;
        let (takes, reply) = match answer {
            Answer::Status(200) => {
                (true, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n".to_owned())
            }
            Answer::Chunked => (
                true,
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"
                    .to_owned(),
            ),
            Answer::LimitBody(most) if length > most => {
                // Remains the answer to all later requests.
                script.lock().unwrap().push_front(answer);
                (false, refusal(413))
            }
            Answer::LimitBody(_) => {
                script.lock().unwrap().push_front(answer);
                (true, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n".to_owned())
            }
            Answer::AcceptAndClose => (true, String::new()),
            Answer::Reset => (false, String::new()),
            Answer::Status(status) => (false, refusal(status)),
        };
        if takes {
            seen.accepted.push(request);
        }
        drop(seen);
        let mut stream = stream;
        if reply.is_empty() || stream.write_all(reply.as_bytes()).is_err() {
            return;
        }
    }
}

fn refusal(status: u16) -> String {
    let page = "<!DOCTYPE html><html>Error: at somewhere</html>";
    format!(
        "HTTP/1.1 {status} x\r\nContent-Type: text/html\r\nContent-Length: {}\r\n\r\n{page}",
        page.len()
    )
}

fn read_request(reader: &mut impl BufRead) -> Option<(Request, usize)> {
    let mut head = Vec::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        if line == "\r\n" {
            break;
        }
        head.push(line.trim_end().to_owned());
    }
    let path = head[0].strip_prefix("POST ")?.strip_suffix(" HTTP/1.1")?.to_owned();
    let length = head.iter().find_map(|line| line.strip_prefix("Content-Length: "));
    let length = length.unwrap().parse().unwrap();
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let body = serde_json::from_slice(&body).unwrap();
    Some((Request { path, headers: head.split_off(1), body }, length))
}

/// Returns an agent with the command line of NNI's keeper around `line`, for the trial `abcde` of `testexp1`.
fn nni_agent(port: u16, options: &[&str], line: &str) -> TestAgent {
    let dir = tempfile::tempdir().unwrap();
    let mut command = trialkeeper_command();
    let port = port.to_string();
    command.args(["--trial_command", line, "--nnimanager_ip", "127.0.0.1"]);
    command.args(["--nnimanager_port", &port]).args(options).current_dir(dir.path());
    let variables = [
        ("NNI_PLATFORM", "frameworkcontroller"),
        ("NNI_EXP_ID", "testexp1"),
        ("NNI_TRIAL_JOB_ID", "abcde"),
        ("NNI_TRIAL_SEQ_ID", "7"),
        ("NNI_SYS_DIR", "sys"),
        ("NNI_OUTPUT_DIR", "out"),
    ];
    command.envs(variables);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    TestAgent { command, dir }
}

/// Returns a request without the parts that differ between runs: the time, the process id, the form of the command.
fn to_comparable(path: &str, body: &Value) -> (String, String, String) {
    let text = |name: &str| body[name].as_str().unwrap_or_default().to_owned();
    let (tag, mut message) = (text("tag"), text("msg"));
    if tag == "trial_keeper" {
        message = message.split_once("] ").unwrap().1.to_owned();
        if let Some((head, _)) = message.split_once(" (pid ") {
            message = head.to_owned();
        }
    }
    if let Some(object) = message.strip_prefix("NNISDK_MEb'") {
        let object: Value = serde_json::from_str(object.strip_suffix('\'').unwrap()).unwrap();
        message = object.to_string();
    }
    (path.to_owned(), tag, message)
}

fn recorded_requests(requests: &str) -> Vec<(String, String, String)> {
    let read = |line: &str| {
        let request: Value = serde_json::from_str(line).unwrap();
        let body = serde_json::from_str(request["body"].as_str().unwrap()).unwrap();
        to_comparable(request["path"].as_str().unwrap(), &body)
    };
    requests.lines().map(read).collect()
}

fn received_requests(server: &Server) -> Vec<(String, String, String)> {
    server.accepted().iter().map(|request| to_comparable(&request.path, &request.body)).collect()
}

#[test]
fn the_manager_gets_the_requests_of_nnis_own_keeper() {
    let printed = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/fixtures/trial_keeper/log_collection_none.stdout.txt"
    );
    // Lines that the recorded keeper itself printed do not belong to the trial.
    let metrics = format!("grep -v '^\\[20' {printed}");
    #[rustfmt::skip]
    let table: [(&str, &[&str], &str, &str, i32); 4] = [
        ("metrics only", &["--nni_manager_version", "3.0", "--log_collection", "none"], &metrics,
         include_str!("../../fixtures/trial_keeper/log_collection_none.requests.jsonl"), 0),
        ("everything", &["--nni_manager_version", "2.9", "--log_collection", "http"], "echo one; echo two; exit 3",
         include_str!("../../fixtures/trial_keeper/log_collection_http.requests.jsonl"), 3),
        ("everything by default", &[], "echo one",
         include_str!("../../fixtures/trial_keeper/log_collection_absent.requests.jsonl"), 0),
        ("an empty line", &["--nni_manager_version", "", "--log_collection", "http"], "echo one; echo",
         include_str!("../../fixtures/trial_keeper/log_collection_quoted_none.requests.jsonl"), 0),
    ];
    for (case, options, line, requests, code) in table {
        let server = Server::start(&[]);
        let mut agent = nni_agent(server.port, options, line);
        agent.command.env("TRIALKEEPER_NNI_VERSION", "3.0");
        let ended = agent.run();
        assert_eq!(ended.code, Some(code), "{case}: {}", ended.stderr);
        assert_eq!(received_requests(&server), recorded_requests(requests), "{case}");
        assert_eq!(server.seen.lock().unwrap().connections, 1, "{case}: one connection");
        for request in server.accepted() {
            for header in ["Accept: application/json", "Content-Type: application/json"] {
                assert!(request.headers.iter().any(|line| line == header), "{:?}", request.headers);
            }
        }
    }
}

/// A subject, options, command, lines with the trial's tag, exit code.
type Row<'a> = (&'a str, &'a [&'a str], &'a str, Vec<&'a str>, i32);

#[test]
fn nnis_defects_are_not_copied() {
    let quoted = &["--log_collection", "\"none\""][..];
    #[rustfmt::skip]
    let table: [Row<'_>; 5] = [
        ("a quoted none is none",      quoted, "echo one",                     vec![],               0),
        ("the last line counts",       &[],    "printf 'one\ntwo'",            vec!["one", "two"],   0),
        ("any bytes are a line",       &[],    r"printf 'a\377b\n'",           vec!["a\u{fffd}b"],   0),
        ("a command only sh can read", &[],    "echo it\\'s; echo 'a'\"b\"",   vec!["it's", "ab"],   0),
        ("a signal gives 128 plus it", quoted, "kill -9 $$",                   vec![],               137),
    ];
    for (case, options, line, lines, code) in table {
        let server = Server::start(&[]);
        let ended = nni_agent(server.port, options, line).run();
        assert_eq!(ended.code, Some(code), "{case}: {}", ended.stderr);
        assert_eq!(server.lines("trial"), lines, "{case}");
        let last = format!("NNI trial keeper exit with code {code}");
        assert!(server.lines("trial_keeper").last().unwrap().ends_with(&last), "{case}");
    }
}

/// Prints a hundred metrics and a hundred lines.
const HUNDRED_METRICS_AND_LINES: &str = r#"i=0; while [ $i -lt 100 ]; do
    echo "NNISDK_MEb'{\"parameter_id\": 1, \"type\": \"PERIODICAL\", \"sequence\": $i, \"value\": \"$i\"}'"
    echo line $i; i=$((i+1)); done"#;

#[track_caller]
fn assert_all_in_order(server: &Server, case: &str) {
    let lines = server.lines("trial");
    let metric = |n: &i32| {
        format!(
            "NNISDK_MEb'{{\"parameter_id\": 1, \"type\": \"PERIODICAL\", \"sequence\": {n}, \"value\": \"{n}\"}}'"
        )
    };
    let expected: Vec<_> = (0..100).flat_map(|n| [metric(&n), format!("line {n}")]).collect();
    assert_eq!(lines, expected, "{case}");
}

#[test]
fn every_line_arrives_once_and_in_order_whatever_the_server_does() {
    use Answer::{Chunked, Reset, Status};
    #[rustfmt::skip]
    let table: [(&str, &[Answer]); 6] = [
        ("no failure",              &[]),
        ("busy and unavailable",    &[Status(200), Status(503), Status(502), Status(429)]),
        ("another experiment's",    &[Status(404), Status(404)]),
        ("broken connections",      &[Reset, Reset, Status(200), Reset]),
        ("chunked answers",         &[Chunked, Chunked, Chunked]),
        ("a failure at a metric",   &[Status(200), Status(200), Status(500), Status(400)]),
    ];
    for (case, script) in table {
        let server = Server::start(script);
        let ended =
            nni_agent(server.port, &["--nni_manager_version", "3.0.1"], HUNDRED_METRICS_AND_LINES)
                .run();
        assert_eq!(ended.code, Some(0), "{case}: {}", ended.stderr);
        assert_all_in_order(&server, case);
        let accepted = server.accepted();
        assert_eq!(
            accepted[0].body.to_string(),
            r#"{"tag":"VCSuccess"}"#,
            "{case}: the first request"
        );
        assert!(!ended.stderr.contains("were not delivered"), "{case}: {}", ended.stderr);
    }
}

#[test]
fn an_answer_that_is_lost_repeats_one_line_at_most() {
    let server = Server::start(&[Answer::Status(200), Answer::AcceptAndClose]);
    let ended = nni_agent(server.port, &["--log_collection", "http"], "echo one; echo two").run();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let mut lines = server.lines("trial");
    assert_eq!(lines, ["one", "one", "two"]);
    lines.dedup();
    assert_eq!(lines, ["one", "two"]);
}

#[test]
fn a_refused_line_does_not_delay_other_lines() {
    let server = Server::start(&[Answer::Status(200), Answer::Status(500), Answer::Status(413)]);
    let ended = nni_agent(server.port, &[], "echo one; echo two; echo three").run();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert_eq!(server.lines("trial"), ["three"]);
    assert!(ended.stderr.contains("refuses a line of"), "{}", ended.stderr);
}

#[test]
fn a_metric_that_is_too_large_is_sent_without_its_other_values() {
    let server = Server::start(&[Answer::LimitBody(100 << 10)]);
    let line = r#"printf "NNISDK_MEb'{\"parameter_id\": 1, \"type\": \"FINAL\", \"sequence\": 0, \"value\": \"{\\\\\"default\\\\\": 0.5, \\\\\"big\\\\\": \\\\\""
        head -c 200000 /dev/zero | tr '\0' x
        printf "\\\\\"}\"}'\n""#;
    let ended = nni_agent(server.port, &["--log_collection", "none"], line).run();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let lines = server.lines("trial");
    let [line] = &lines[..] else { panic!("one metric, not {}: {}", lines.len(), ended.stderr) };
    let object = line.strip_prefix("NNISDK_MEb'").unwrap().strip_suffix('\'').unwrap();
    let object: Value = serde_json::from_str(object).unwrap();
    assert_eq!(object["value"], r#"{"default": 0.5}"#);
}

#[test]
fn an_unreadable_metric_does_not_reach_the_server_as_one() {
    let server = Server::start(&[]);
    let ended = nni_agent(server.port, &[], r#"echo "NNISDK_MEb'{\"type\": 1}'""#).run();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert_eq!(server.lines("trial"), [""; 0]);
    let lines = server.lines("trial_keeper");
    assert!(
        lines.iter().any(|line| line.contains("Unreadable metric, it has no type")),
        "{lines:?}"
    );
}

#[test]
fn the_objective_is_found_in_json_too_and_nothing_else_is_a_metric() {
    let server = Server::start(&[]);
    let printed = r#"echo loss=1; echo '{"default": 0.25, "lr": 1}'; echo '{"default": 0.5}'"#;
    let agent = nni_agent(server.port, &["--log_collection", "none"], printed);
    std::fs::create_dir(agent.dir.path().join("sys")).unwrap();
    let record = r#"{"parameter_id": 4, "parameters": {"x": 1}}"#;
    std::fs::write(agent.dir.path().join("sys/parameter.cfg"), record).unwrap();
    let ended = agent.run();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let metric = |kind: &str, sequence, value: &str| {
        format!(
            "NNISDK_MEb'{{\"parameter_id\": 4, \"trial_job_id\": \"abcde\", \"type\": \"{kind}\", \"sequence\": {sequence}, \"value\": \"{value}\"}}'"
        )
    };
    let expected = [
        metric("PERIODICAL", 0, r#"{\"default\": 0.25, \"lr\": 1}"#),
        metric("PERIODICAL", 1, r#"{\"default\": 0.5}"#),
        metric("FINAL", 0, r#"{\"default\": 0.5}"#),
    ];
    assert_eq!(server.lines("trial"), expected);
}

#[test]
fn secrets_are_masked_in_lines() {
    let server = Server::start(&[]);
    let mut agent = nni_agent(server.port, &[], "echo key $KEY end");
    agent.command.env("KEY", "hunter22").env("TRIALKEEPER_MASK_ENV", "KEY");
    let ended = agent.run();
    assert_eq!(ended.stdout(), "key hunter22 end\n");
    let lines = server.lines("trial");
    assert!(lines.len() == 1 && !lines[0].contains("hunter22"), "{lines:?}");
}

#[test]
fn a_version_mismatch_is_only_reported() {
    let server = Server::start(&[]);
    let ended = nni_agent(server.port, &["--nni_manager_version", "4.1"], "exit 4").run();
    assert_eq!(ended.code, Some(4), "{}", ended.stderr);
    let first = &server.accepted()[0];
    assert_eq!(first.path, "/api/v1/nni-pai/version/testexp1/abcde");
    assert_eq!(first.body["tag"], "VCFail");
    assert!(ended.stderr.contains("NNIManager version is 4.1"), "{}", ended.stderr);
}

#[test]
fn the_job_id_file_holds_the_pid_and_unknown_flags_are_warned_of() {
    let server = Server::start(&[]);
    let line = "until [ -e go ]; do :; done";
    let running = nni_agent(server.port, &["--job_id_file", "id", "--no_such_flag", "x"], line)
        .start()
        .wait_for("id");
    let pid = running.pid().to_string();
    wait_until("the pid", || std::fs::read_to_string(running.path("id")).unwrap() == pid);
    std::fs::write(running.path("go"), "").unwrap();
    let ended = running.wait();
    assert!(ended.stderr.contains("--no_such_flag is unknown and ignored"), "{}", ended.stderr);
}

#[test]
fn without_a_command_nothing_is_run() {
    let mut agent = TestAgent::new(&[]);
    agent.command = trialkeeper_command();
    agent.command.args(["--nnimanager_ip", "h"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let ended = agent.run();
    assert_eq!(ended.code, Some(125));
    assert!(ended.stderr.contains("--trial_command is missing"), "{}", ended.stderr);
}

fn run_without_a_manager() -> (EndedAgent, u16) {
    // A port without a listener.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut agent = nni_agent(port, &["--nni_manager_version", "3.0"], HUNDRED_METRICS_AND_LINES);
    agent.command.env("TRIALKEEPER_FLUSH", "100ms");
    let running: RunningAgent = agent.start();
    (running.wait(), port)
}

#[test]
fn undelivered_lines_are_replayed_unchanged() {
    let (ended, _) = run_without_a_manager();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(ended.stderr.contains("were not delivered"), "{}", ended.stderr);
    let server = Server::start(&[]);
    for round in ["everything", "nothing more"] {
        let url = format!("http://127.0.0.1:{}", server.port);
        let mut replay = trialkeeper_command();
        replay.args(["replay", "--manager", &url]).arg(ended.path("out"));
        assert!(replay.status().unwrap().success(), "{round}");
        assert_all_in_order(&server, round);
    }
    assert_eq!(server.accepted()[0].body["tag"], "VCSuccess");
}

#[test]
fn commands_run_in_the_shell_of_nnis_own_keeper() {
    let server = Server::start(&[]);
    let ended = nni_agent(server.port, &[], "[ \"$0\" = /bin/sh ] && exit 7").run();
    assert_eq!(ended.code, Some(7), "{}", ended.stderr);
}
