//! External tuners that answer late or never, also while the search is being stopped.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;
use trialkeeper_tests::{
    Gate, Outcome, RunningProgram, Search, TestBed, WAIT_TIMEOUT, nni_python, wait_for,
};

use super::recorded_messages;

/// A tuner that proposes i / 10 for proposal i and records every message. Its first process that gets a
/// request for proposal 1 waits until the gate opens. Meanwhile, it reads no messages.
const TUNER_PROGRAM: &str = r#"
import json, os, sys
gate, record = sys.argv[1], open(sys.argv[2], "a")
for line in sys.stdin:
    message = json.loads(line)
    print(line.strip(), file=record, flush=True)
    if message["type"] == "hello":
        print(json.dumps({"type": "ready"}), flush=True)
    elif message["type"] == "propose":
        if message["id"] == 1 and not os.path.exists(gate + ".taken"):
            open(gate + ".taken", "w").close()
            print(json.dumps({"type": "hangs", "pid": os.getpid()}), file=record, flush=True)
            print("waiting for the gate", file=sys.stderr, flush=True)
            os.read(os.open(gate, os.O_RDONLY), 1)
        answer = {"type": "proposal", "id": message["id"], "parameters": {"x": message["id"] / 10}}
        print(json.dumps(answer), flush=True)
"#;

/// An NNI tuner that proposes 0.1, 0.2 and so on. Its first instance hangs at the second proposal.
const TUNER_SCRIPT: &str = r#"
import os, time
from nni.tuner import Tuner

class Hanging(Tuner):
    def __init__(self, mark):
        self.mark, self.made = mark, 0

    def update_search_space(self, space):
        pass

    def import_data(self, data):
        self.made = len(data)

    def receive_trial_result(self, *args, **kwargs):
        pass

    def generate_parameters(self, parameter_id, **kwargs):
        if self.made == 1 and not os.path.exists(self.mark):
            open(self.mark, "w").close()
            while True:
                time.sleep(60)
        self.made += 1
        return {"x": self.made / 10}
"#;

/// An NNI assessor that stops trials below 0.15. Its first instance hangs at the first result.
const ASSESSOR_SCRIPT: &str = r#"
import os, time
from nni.assessor import Assessor, AssessResult

class Hanging(Assessor):
    def __init__(self, mark):
        self.mark = mark

    def assess_trial(self, trial_job_id, trial_history):
        if not os.path.exists(self.mark):
            open(self.mark, "w").close()
            while True:
                time.sleep(60)
        return AssessResult.Good if trial_history[-1] >= 0.15 else AssessResult.Bad
"#;

/// Starts a search with two trials at a time. Trials wait at the first gate, and the tuner waits at the
/// second.
fn start_search(bed: &TestBed, gates: &(Gate, Gate), patience: &str) -> RunningProgram {
    bed.write("code/program.py", TUNER_PROGRAM);
    let program = json!(["python3", "program.py", gates.1.path(), bed.path("record")]);
    let command = "echo x >>\"$GATE.begun\"; read _ <\"$GATE\"; echo score={{x}}";
    let search = Search::new(command, 3)
        .with("trialConcurrency", 2)
        .with("tunerPatience", patience)
        .with("tuner", json!({"command": program, "classArgs": {"optimize_mode": "maximize"}}));
    bed.start(search.command(bed).env("GATE", gates.0.path()))
}

fn create_gates(bed: &TestBed) -> (Gate, Gate) {
    (Gate::new(&bed.path("gate")), Gate::new(&bed.path("tuner")))
}

/// Returns the trouble in the API, once the portal shows it, too.
fn shown_trouble(running: &RunningProgram) -> Option<String> {
    let shown = running.read_api("/api/v1/experiment")?;
    let trouble = shown["trouble"].as_str()?.to_owned();
    let page = running.read_page("/")?;
    page.contains("class=\"trouble\"").then_some(trouble)
}

fn wait_for_trouble(running: &RunningProgram, text: &str) -> String {
    wait_for(text, WAIT_TIMEOUT, || shown_trouble(running).filter(|trouble| trouble.contains(text)))
}

#[test]
fn a_late_answer_of_a_tuner_is_reported_and_used() {
    let bed = TestBed::new();
    let gates = create_gates(&bed);
    let running = start_search(&bed, &gates, "10s");
    let report = wait_for_trouble(&running, "has not proposed anything for 5 s");
    assert!(report.contains("if it has not sent a message for 10 s (`tunerPatience`)"), "{report}");
    assert!(report.ends_with("; it last wrote: waiting for the gate"), "{report}");
    running.wait_for_stderr(&report);
    assert_eq!(bed.read("gate.begun").lines().count(), 1, "the running trial must continue");
    gates.1.release(1);
    wait_for("the message about the tuner's answer", WAIT_TIMEOUT, || {
        running.stderr().contains("answers again").then_some(())
    });
    wait_for("the end of the trouble", WAIT_TIMEOUT, || {
        shown_trouble(&running).is_none().then_some(())
    });
    gates.0.release(3);
    let outcome = Outcome::parse(running.finish(WAIT_TIMEOUT));
    outcome.expect_done(3, 0);
    assert_eq!(
        recorded_messages(&bed, "hello").len(),
        1,
        "the tuner was restarted: {}",
        bed.read("record")
    );
    bed.wait_until_empty();
}

#[test]
fn a_tuner_that_never_answers_is_restarted_with_its_history() {
    let bed = TestBed::new();
    let gates = create_gates(&bed);
    let running = start_search(&bed, &gates, "2s");
    wait_for("the second program", WAIT_TIMEOUT, || {
        (recorded_messages(&bed, "hello").len() == 2).then_some(())
    });
    let pid = recorded_messages(&bed, "hangs")[0]["pid"].as_i64().unwrap();
    let pid = Pid::from_raw(pid.try_into().unwrap());
    assert!(kill(pid, None).is_err(), "the hanging process is still running");
    // The first trial has been running in the meantime.
    gates.0.release(3);
    let outcome = Outcome::parse(running.finish(WAIT_TIMEOUT));
    outcome.expect_done(3, 0);
    assert!(outcome.stderr.contains("has not sent a message for 2 s"), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("is restarted with the history of the search"));
    let xs: Vec<_> = outcome.trials.iter().map(|trial| trial.parameters["x"].clone()).collect();
    assert_eq!(xs, [0.0, 0.1, 0.2], "a proposal is repeated");
    let record = bed.read("record");
    let second = record.rsplit_once("\"hello\"").unwrap().1;
    let first = second.lines().nth(1).unwrap();
    assert!(first.contains("\"launched\"") && first.contains("\"id\":0"), "{first}");
    bed.wait_until_empty();
}

#[test]
fn a_search_is_stopped_while_its_tuner_hangs() {
    let bed = TestBed::new();
    let gates = create_gates(&bed);
    let running = start_search(&bed, &gates, "6s");
    wait_for_trouble(&running, "has not proposed anything for 3 s");
    running.signal(Signal::SIGINT);
    let outcome = Outcome::parse(running.finish(WAIT_TIMEOUT));
    assert_eq!(outcome.state, "STOPPED", "{outcome:#?}");
    // The tuner was killed at once: the manager neither waited for its patience to end nor sent `end`, and it
    // started no other process.
    assert!(!outcome.stderr.contains("restarted with the history"), "{}", outcome.stderr);
    assert_eq!(
        (recorded_messages(&bed, "hello").len(), recorded_messages(&bed, "end").len()),
        (1, 0)
    );
    bed.wait_until_empty();
}

#[test]
fn a_program_that_reads_nothing_delays_neither_trials_nor_a_stop() {
    let bed = TestBed::new();
    let gates = create_gates(&bed);
    // More steps than fit into a pipe.
    bed.write("code/program.py", TUNER_PROGRAM);
    let program = json!(["python3", "program.py", gates.1.path(), bed.path("record")]);
    let steps = "for i in $(seq 2000); do echo score=$i; done; sleep 600";
    let search = Search::new(steps, 3)
        .with("trialConcurrency", 2)
        .with("tuner", json!({"command": program, "classArgs": {"optimize_mode": "maximize"}}));
    let running = search.start(&bed);
    wait_for("the tuner to hang", WAIT_TIMEOUT, || {
        (recorded_messages(&bed, "hangs").len() == 1).then_some(())
    });
    let seen = || {
        let body = running.read_page("/api/v1/trials")?;
        body.contains("\"latest_step\":1999").then_some(())
    };
    wait_for("the last step", WAIT_TIMEOUT, seen);
    running.signal(Signal::SIGINT);
    let outcome = Outcome::parse(running.finish(WAIT_TIMEOUT));
    assert_eq!(outcome.state, "STOPPED", "{outcome:#?}");
    bed.wait_until_empty();
}

#[test]
#[ignore = "needs NNI from PyPI"]
fn nni_s_dispatcher_is_replaced_when_its_tuner_hangs() {
    let python = nni_python();
    let bed = TestBed::new();
    bed.write("algorithms/mine.py", TUNER_SCRIPT);
    let tuner = json!({
        "className": "mine.Hanging",
        "codeDirectory": "algorithms",
        "classArgs": {"mark": bed.path("hung")},
    });
    let outcome = Search::new("echo score={{x}}", 3)
        .with("pythonInterpreter", python.to_str().unwrap())
        .with("tunerPatience", "4s")
        .with("tuner", tuner)
        .run(&bed);
    outcome.expect_done(3, 0);
    assert!(bed.path("hung").exists());
    assert!(outcome.stderr.contains("has not sent a message for 4 s"), "{}", outcome.stderr);
    let xs: Vec<_> = outcome.trials.iter().map(|trial| trial.parameters["x"].clone()).collect();
    assert_eq!(xs, [0.1, 0.2, 0.3], "the new tuner did not get the first result");
    bed.wait_until_empty();
}

#[test]
#[ignore = "needs NNI from PyPI"]
fn a_hanging_assessor_is_reported_and_restarted() {
    let python = nni_python();
    let bed = TestBed::new();
    let gate = Gate::new(&bed.path("gate"));
    bed.write("algorithms/mine.py", TUNER_SCRIPT);
    bed.write("algorithms/strict.py", ASSESSOR_SCRIPT);
    bed.write("no", "");
    let class = |name: &str, mark: &str| {
        let args = json!({"mark": bed.path(mark)});
        json!({"className": name, "codeDirectory": "algorithms", "classArgs": args})
    };
    let search = Search::new("echo score={{x}}; read _ <\"$GATE\"", 2)
        .with("trialConcurrency", 2)
        .with("pythonInterpreter", python.to_str().unwrap())
        .with("tunerPatience", "4s")
        .with("tuner", class("mine.Hanging", "no"))
        .with("assessor", class("strict.Hanging", "hung"));
    let running = bed.start(search.command(&bed).env("GATE", gate.path()));
    wait_for_trouble(&running, "has not processed a result for 2 s");
    // The second assessor gets the result again. The gate is closed, so the first trial can only end by being
    // stopped.
    let given_up = || running.read_page("/api/v1/trials")?.contains("EARLY_STOPPED").then_some(());
    wait_for("the assessor's decision", WAIT_TIMEOUT, given_up);
    gate.release(1);
    let outcome = Outcome::parse(running.finish(WAIT_TIMEOUT));
    assert!(outcome.stderr.contains("has not processed a result for 4 s"), "{}", outcome.stderr);
    let states: Vec<_> = outcome.trials.iter().map(|trial| trial.state.as_str()).collect();
    assert_eq!(states, ["EARLY_STOPPED", "SUCCEEDED"], "{outcome:#?}");
    bed.wait_until_empty();
}

#[test]
fn doctor_reports_a_tuner_that_does_not_answer() {
    let bed = TestBed::new();
    let gates = create_gates(&bed);
    bed.write("code/program.py", &TUNER_PROGRAM.replace("message[\"id\"] == 1", "True"));
    let program = json!(["python3", "program.py", gates.1.path(), bed.path("record")]);
    let search = Search::new("echo score=1", 3)
        .with("tunerPatience", "6s")
        .with("tuner", json!({"command": program}));
    let file = search.write(&bed);
    let run_doctor = |words: &[&str]| {
        let mut doctor = bed.manager_command();
        doctor.arg("doctor").args(words).arg(&file).env("TMPDIR", bed.folder());
        let done = bed.start(&mut doctor).finish(WAIT_TIMEOUT);
        (done.code, String::from_utf8(done.stdout).unwrap())
    };
    let (code, stdout) = run_doctor(&[]);
    assert_eq!(code, Some(1), "{stdout}");
    let fault = stdout.lines().find(|line| line.starts_with("FAIL  tuner  ")).unwrap();
    assert!(fault.contains("has been asked, and has not proposed anything for 3 s"), "{stdout}");
    assert!(fault.ends_with("it last wrote: waiting for the gate"), "{stdout}");
    bed.wait_until_empty();
    // Only the program's first process hangs.
    let (code, stdout) = run_doctor(&["--probe", "--port", "0"]);
    assert_eq!(code, Some(0), "{stdout}");
    assert!(stdout.contains("proposes parameters") && stdout.contains("a trial ran"), "{stdout}");
}
