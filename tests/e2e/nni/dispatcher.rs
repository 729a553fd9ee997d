//! Tuners, assessors and advisors of NNI and of the user, run by NNI's dispatcher from `PyPI`.

use std::fs;
use std::path::Path;

use nix::sys::signal::{Signal, kill};
use serde_json::{Value, json};
use trialkeeper_tests::{Gate, Outcome, Search, TestBed, WAIT_TIMEOUT, nni_python, wait_for};

/// A trial that reports the square of x, which is largest at x = 1. With `patient` and a small x, it does not
/// end.
const SQUARE_COMMAND: &str = "python3 square.py";

const SQUARE_SOURCE: &str = r#"
import json, os, sys, time
x = json.load(open(os.environ["NNI_SYS_DIR"] + "/parameter.cfg"))["parameters"]["x"]
for step in range(3):
    print(f"score={x * x * (step + 1) / 3}", flush=True)
if "patient" in sys.argv and x < 0.15:
    time.sleep(600)
"#;

/// A user's tuner that proposes i / 10 and records every call.
const TUNER_SCRIPT: &str = r#"
import json, os, threading
from nni.tuner import Tuner

lock = threading.Lock()

class Stepper(Tuner):
    def __init__(self, record, last=None, fail_at=None, hang_at=None):
        self.record, self.last = record, last
        self.fail_at, self.hang_at = fail_at, hang_at
        self.next = 0
        self.note("made", os.getpid())

    def note(self, *words):
        with lock, open(self.record, "a") as file:
            file.write(json.dumps(words) + "\n")

    def update_search_space(self, space):
        self.note("space", sorted(space))

    def generate_parameters(self, parameter_id, **kwargs):
        from nni import NoMoreTrialError
        if self.next == self.fail_at:
            raise RuntimeError("the tuner is out of ideas")
        if self.next == self.last:
            raise NoMoreTrialError("all tried")
        self.next += 1
        self.note("proposed", parameter_id)
        return {"x": self.next / 10}

    def receive_trial_result(self, parameter_id, parameters, value, **kwargs):
        self.note("result", parameters["x"], value)

    def trial_end(self, parameter_id, success, **kwargs):
        self.note("end", parameter_id, success)

    def import_data(self, data):
        self.next = max([self.next] + [round(known["parameter"]["x"] * 10) for known in data])
        self.note("import", sorted(known["parameter"]["x"] for known in data))

    def load_checkpoint(self):
        self.note("loaded", os.path.basename(self.get_checkpoint_path()))
"#;

/// A user's assessor that stops a trial whose first result is below 0.01.
const ASSESSOR_SCRIPT: &str = r"
from nni.assessor import Assessor, AssessResult

class Strict(Assessor):
    def assess_trial(self, trial_job_id, trial_history):
        return AssessResult.Good if trial_history[0] >= 0.01 else AssessResult.Bad
";

fn create_bed() -> TestBed {
    let bed = TestBed::new();
    bed.write("code/square.py", SQUARE_SOURCE);
    bed.write("algorithms/mine.py", TUNER_SCRIPT);
    bed.write("algorithms/strict.py", ASSESSOR_SCRIPT);
    bed
}

fn search(python: &Path, trials: u32, tuner: &Value) -> Search {
    Search::new(SQUARE_COMMAND, trials)
        .with("pythonInterpreter", python.to_str().unwrap())
        .with("tuner", tuner.clone())
}

fn user_tuner(bed: &TestBed, more: &Value) -> Value {
    let mut args = json!({"record": bed.path("record")});
    args.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    json!({"className": "mine.Stepper", "codeDirectory": "algorithms", "classArgs": args})
}

/// Returns the recorded calls of one kind.
fn recorded_calls(bed: &TestBed, kind: &str) -> Vec<Value> {
    let lines = bed.read("record");
    let words = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    words.filter(|words| words[0] == kind).collect()
}

#[test]
#[ignore = "needs NNI from PyPI"]
fn nni_s_own_tuner_and_assessor_run_unchanged() {
    let python = nni_python();
    let bed = create_bed();
    let tuner = json!({
        "className": "nni.algorithms.hpo.tpe_tuner.TpeTuner",
        "classArgs": {"optimize_mode": "maximize", "seed": 3},
    });
    let outcome = search(&python, 8, &tuner)
        .with("trialConcurrency", 2)
        .with(
            "assessor",
            json!({"className": "nni.algorithms.hpo.medianstop_assessor.MedianstopAssessor"}),
        )
        .run(&bed);
    assert_eq!((outcome.state.as_str(), outcome.code), ("DONE", 0), "{outcome:#?}");
    assert_eq!(outcome.trials.len(), 8, "{outcome:#?}");
    let ended = outcome.trials.iter().filter(|trial| trial.state == "SUCCEEDED").count();
    assert!(ended >= 2, "{outcome:#?}");
    bed.wait_until_empty();
}

#[test]
#[ignore = "needs NNI from PyPI"]
fn nni_s_dispatcher_gets_imported_results_and_a_new_space() {
    let python = nni_python();
    let bed = create_bed();
    let gate = Gate::new(&bed.path("gate"));
    let search = search(&python, 6, &user_tuner(&bed, &json!({})))
        .with("trialCommand", "echo x >>\"$GATE.begun\"; read _ <\"$GATE\"; echo score=1");
    let running = bed.start(search.command(&bed).env("GATE", gate.path()));
    wait_for("a trial", WAIT_TIMEOUT, || (!bed.read("gate.begun").is_empty()).then_some(()));
    let space = json!({"x": {"_type": "uniform", "_value": [0, 0.75]}});
    bed.write("space.json", &space.to_string());
    bed.write("known.json", &json!([{"parameter": {"x": 0.5}, "value": 3.5}]).to_string());
    for words in [&["import", "known.json"][..], &["update", "--search-space", "space.json"]] {
        let mut command = bed.manager_command();
        command.arg("experiment").args(words).arg("--data-dir").arg(bed.data_folder());
        let finished = bed.start(&mut command).finish(WAIT_TIMEOUT);
        assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    }
    wait_for("the space", WAIT_TIMEOUT, || {
        (recorded_calls(&bed, "space").len() == 2).then_some(())
    });
    assert_eq!(recorded_calls(&bed, "import")[0][1], json!([0.5]));
    running.signal(Signal::SIGINT);
    let id = Outcome::parse(running.finish(WAIT_TIMEOUT)).id;
    // The dispatcher of the new manager gets both, too.
    let resumed = bed.start(Outcome::resume_command(&bed, &id).env("GATE", gate.path()));
    gate.release(6);
    let outcome = Outcome::parse(resumed.finish(WAIT_TIMEOUT));
    outcome.expect_done(6, 0);
    let again = recorded_calls(&bed, "import")[1][1].clone();
    assert!(again.as_array().unwrap().contains(&json!(0.5)), "{again}");
    // The interrupted trial runs again with 0.1. The tuner continues after the imported point.
    assert_eq!(outcome.trial(1).parameters["x"], 0.6, "{outcome:#?}");
    bed.wait_until_empty();
}

#[test]
#[ignore = "needs NNI from PyPI"]
fn a_user_s_class_gets_a_space_of_any_form() {
    let python = nni_python();
    let bed = create_bed();
    let gate = Gate::new(&bed.path("gate"));
    let own = json!({"layers": {"min": 1, "max": 5}, "mode": "fast"});
    let search = search(&python, 4, &user_tuner(&bed, &json!({})))
        .with("searchSpace", own)
        .with("trialCommand", "echo x >>\"$GATE.begun\"; read _ <\"$GATE\"; echo score={{x}}");
    let running = bed.start(search.command(&bed).env("GATE", gate.path()));
    wait_for("a trial", WAIT_TIMEOUT, || (!bed.read("gate.begun").is_empty()).then_some(()));
    bed.write("space.json", "{}");
    bed.write("known.json", &json!([{"parameter": {"x": 0.5}, "value": 3.5}]).to_string());
    for words in [&["import", "known.json"][..], &["update", "--search-space", "space.json"]] {
        let mut command = bed.manager_command();
        command.arg("experiment").args(words).arg("--data-dir").arg(bed.data_folder());
        let finished = bed.start(&mut command).finish(WAIT_TIMEOUT);
        assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    }
    wait_for("the space", WAIT_TIMEOUT, || {
        (recorded_calls(&bed, "space").len() == 2).then_some(())
    });
    let spaces = [json!(["space", ["layers", "mode"]]), json!(["space", []])];
    assert_eq!(recorded_calls(&bed, "space"), spaces);
    running.signal(Signal::SIGINT);
    let id = Outcome::parse(running.finish(WAIT_TIMEOUT)).id;
    let resumed = bed.start(Outcome::resume_command(&bed, &id).env("GATE", gate.path()));
    gate.release(4);
    let outcome = Outcome::parse(resumed.finish(WAIT_TIMEOUT));
    outcome.expect_done(4, 0);
    // The resumed search uses only the last space.
    assert_eq!(recorded_calls(&bed, "space").last(), Some(&spaces[1]));
    for trial in &outcome.trials {
        assert_eq!(trial.final_result, trial.parameters["x"], "{trial:?}");
    }
    bed.wait_until_empty();
}

#[test]
#[ignore = "needs NNI from PyPI"]
fn a_built_in_tuner_of_nni_is_found_by_its_name() {
    let python = nni_python();
    let bed = create_bed();
    let tuner = json!({"name": "pbt_tuner", "classArgs": {
        "optimize_mode": "maximize", "population_size": 2, "all_checkpoint_dir": bed.path("ckpt"),
    }});
    search(&python, 4, &tuner).run(&bed).expect_done(4, 0);
}

#[test]
#[ignore = "needs NNI from PyPI"]
fn a_user_s_class_gets_each_end_once_and_after_its_result() {
    let python = nni_python();
    let bed = create_bed();
    let outcome = search(&python, 100, &user_tuner(&bed, &json!({"last": 6})))
        .with("trialConcurrency", 3)
        .with("assessor", json!({"className": "strict.Strict", "codeDirectory": "algorithms"}))
        .with("trialCommand", "python3 square.py patient")
        .run(&bed);
    assert_eq!(outcome.state, "DONE", "{outcome:#?}");
    // The first result of x = 0.1 is 0.0033.
    let stopped: Vec<_> = outcome.trials.iter().filter(|t| t.state == "EARLY_STOPPED").collect();
    assert_eq!(stopped.len(), 1, "{outcome:#?}");
    assert_eq!(stopped[0].parameters["x"], 0.1);
    assert_stopped_by_assessor(&bed, &outcome, &stopped[0].id);
    let xs: Vec<_> = outcome.trials.iter().map(|trial| trial.parameters["x"].as_f64()).collect();
    assert_eq!(xs, [0.1, 0.2, 0.3, 0.4, 0.5, 0.6].map(Some), "{outcome:#?}");
    let results = recorded_calls(&bed, "result");
    assert_eq!(results.len(), 5, "{}", bed.read("record"));
    let record = bed.read("record");
    let place = |line: &str| record.lines().position(|known| known == line);
    for (id, x) in [(1, 0.2), (2, 0.3), (3, 0.4), (4, 0.5), (5, 0.6)] {
        let result = results.iter().find(|words| words[1] == x).unwrap();
        let at = place(&result.to_string().replace(',', ", ")).unwrap();
        if let Some(end) = place(&format!("[\"end\", {id}, true]")) {
            assert!(at < end, "{record}");
        }
    }
    let ends = recorded_calls(&bed, "end");
    let mut ids: Vec<_> = ends.iter().map(|words| words[1].as_u64()).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), ends.len(), "an end was reported twice: {record}");
    assert!(place("[\"end\", 0, false]").is_some(), "{record}");
    bed.wait_until_empty();
}

#[test]
#[ignore = "needs NNI from PyPI"]
fn a_killed_dispatcher_is_restarted_with_its_history() {
    let python = nni_python();
    let bed = create_bed();
    let gate = Gate::new(&bed.path("gate"));
    let command = "echo x >>\"$GATE.begun\"; read _ <\"$GATE\"; python3 square.py";
    let search = search(&python, 6, &user_tuner(&bed, &json!({}))).with("trialCommand", command);
    let running = bed.start(search.command(&bed).env("GATE", gate.path()));
    gate.release(2);
    let started_count = || bed.read("gate.begun").lines().count();
    wait_for("the third trial", WAIT_TIMEOUT, || (started_count() == 3).then_some(()));
    let pid = recorded_calls(&bed, "made")[0][1].as_i64().unwrap();
    kill(nix::unistd::Pid::from_raw(pid.try_into().unwrap()), Signal::SIGKILL).unwrap();
    wait_for("the second dispatcher", WAIT_TIMEOUT, || {
        (recorded_calls(&bed, "import").len() == 1).then_some(())
    });
    gate.release(4);
    let outcome = Outcome::parse(running.finish(WAIT_TIMEOUT));
    outcome.expect_done(6, 0);
    assert!(outcome.stderr.contains("is restarted"), "{}", outcome.stderr);
    let imports = recorded_calls(&bed, "import");
    assert_eq!(imports[0], json!(["import", [0.1, 0.2]]), "{}", bed.read("record"));
    // The trial that was running at the kill is imported, too.
    assert!(imports.contains(&json!(["import", [0.3]])), "{}", bed.read("record"));
    bed.wait_until_empty();
}

#[test]
#[ignore = "needs NNI from PyPI"]
fn a_permanently_failing_tuner_leaves_a_resumable_search() {
    let python = nni_python();
    let bed = create_bed();
    let search = search(&python, 6, &user_tuner(&bed, &json!({"fail_at": 2})));
    let outcome = search.run(&bed);
    assert_eq!(outcome.state, "STOPPED", "{outcome:#?}");
    assert_eq!(outcome.trials.len(), 2, "{outcome:#?}");
    assert!(outcome.trials.iter().all(|trial| trial.state == "SUCCEEDED"), "{outcome:#?}");
    assert!(
        outcome.stderr.contains("RuntimeError: the tuner is out of ideas"),
        "{}",
        outcome.stderr
    );
    // Each process after the first one may load the checkpoint of an earlier one.
    let (made, loaded) = (recorded_calls(&bed, "made").len(), recorded_calls(&bed, "loaded").len());
    assert_eq!(loaded + 1, made, "{}", bed.read("record"));
    // After the repair, the search continues.
    let repaired = TUNER_SCRIPT.replace("self.next == self.fail_at", "False");
    bed.write("algorithms/mine.py", &repaired);
    let outcome = Outcome::run_resume(&bed, &outcome.id);
    outcome.expect_done(6, 0);
    assert_eq!(recorded_calls(&bed, "loaded").len(), made, "{}", bed.read("record"));
    let xs: Vec<_> = outcome.trials.iter().map(|trial| trial.parameters["x"].as_f64()).collect();
    assert_eq!(xs, [0.1, 0.2, 0.3, 0.4, 0.5, 0.6].map(Some), "{outcome:#?}");
}

#[test]
#[ignore = "needs NNI from PyPI"]
fn an_advisor_of_nni_sets_budgets() {
    let python = nni_python();
    let bed = create_bed();
    let advisor = json!({
        "className": "nni.algorithms.hpo.hyperband_advisor.Hyperband",
        "classArgs": {"optimize_mode": "maximize", "R": 4, "eta": 2},
    });
    let outcome = search(&python, 10, &json!(null))
        .without("tuner")
        .with("advisor", advisor)
        .with("trialConcurrency", 2)
        .run(&bed);
    outcome.expect_done(10, 0);
    let budget = |trial: &trialkeeper_tests::Trial| trial.parameters["TRIAL_BUDGET"].as_u64();
    let budgets: Vec<_> = outcome.trials.iter().filter_map(budget).collect();
    assert_eq!(budgets.len(), 10, "{outcome:#?}");
    // The first bracket has four trials with one unit each. The better half continues with two.
    assert_eq!(budgets[..4], [1, 1, 1, 1], "{budgets:?}\n{}", outcome.stderr);
    assert!(budgets.contains(&2) && budgets.contains(&4), "{budgets:?}\n{}", outcome.stderr);
}

#[test]
#[ignore = "needs NNI from PyPI"]
fn a_built_in_tuner_works_with_an_external_assessor() {
    let python = nni_python();
    let bed = create_bed();
    let outcome = Search::new("python3 square.py patient", 4)
        .with("pythonInterpreter", python.to_str().unwrap())
        .with("searchSpace", json!({"x": {"_type": "choice", "_value": [0.1, 0.5, 0.6, 0.7]}}))
        .with("tuner", json!({"name": "GridSearch"}))
        .with("assessor", json!({"className": "strict.Strict", "codeDirectory": "algorithms"}))
        .run(&bed);
    let states: Vec<_> = outcome.trials.iter().map(|trial| trial.state.as_str()).collect();
    assert_eq!(states, ["EARLY_STOPPED", "SUCCEEDED", "SUCCEEDED", "SUCCEEDED"], "{outcome:#?}");
    assert_stopped_by_assessor(&bed, &outcome, "0");
}

/// Checks that the assessor has stopped the trial, and not the tuner, which may be external, too.
fn assert_stopped_by_assessor(bed: &TestBed, outcome: &Outcome, trial: &str) {
    let mut why = bed.manager_command();
    why.args(["trial", "why", trial, "--experiment", &outcome.id, "--data-dir"])
        .arg(bed.data_folder());
    let why = String::from_utf8(bed.start(&mut why).finish(WAIT_TIMEOUT).stdout).unwrap();
    assert!(why.contains("stopped early by strict.Strict"), "{why}");
}

#[test]
fn an_unusable_interpreter_is_named() {
    let bed = create_bed();
    let without = bed.write_script("without/python", "#!/bin/sh\nexec python3 -S -E \"$@\"\n");
    let broken = bed.write_script("broken/python", "#!/bin/sh\nexit 3\n");
    #[rustfmt::skip]
    let table = [
        (Some(without.as_path()), "No module named nni"),
        (Some(broken.as_path()),  "exit status: 3"),
        (None,                    "`no-such-python -m nni`) cannot be started: No such file"),
    ];
    for (python, message) in table {
        let python = python.map_or("no-such-python", |path| path.to_str().unwrap());
        let outcome = search(Path::new(python), 3, &user_tuner(&bed, &json!({}))).run(&bed);
        assert_eq!((outcome.state.as_str(), outcome.trials.len()), ("STOPPED", 0), "{outcome:#?}");
        assert!(outcome.stderr.contains(message), "{message}: {}", outcome.stderr);
    }
    fs::remove_file(bed.path("code/square.py")).unwrap();
}
