//! External tuner programs: Optuna, and programs that misbehave.

use std::fs;

use nix::sys::signal::{Signal, kill};
use serde_json::{Value, json};
use trialkeeper_tests::{
    Gate, Outcome, Search, TestBed, WAIT_TIMEOUT, examples_folder, optuna_python, wait_for,
};

use super::recorded_messages;

/// A tuner that proposes i / 10 for proposal i and records every message. `mode` chooses its fault.
const TUNER_PROGRAM: &str = r#"
import json, os, sys
mode, record = sys.argv[1], open(sys.argv[2], "a")
print(json.dumps({"pid": os.getpid()}), file=record, flush=True)
for line in sys.stdin:
    message = json.loads(line)
    print(line.strip(), file=record, flush=True)
    if message["type"] == "hello":
        print(json.dumps({"type": "ready"}), flush=True)
    elif message["type"] == "propose":
        if mode == "garbage":
            print("no JSON\n{\"type\": \"nothing\"}", flush=True)
            sys.stdout.buffer.write(b"\xff\n")
            sys.stdout.buffer.flush()
        if mode == "exit" and message["id"] == 1:
            sys.exit("SomeError: no more")
        if message["id"] == 4:
            print(json.dumps({"type": "exhausted", "id": 4}), flush=True)
        else:
            x = message["id"] / 10
            print(json.dumps({"type": "proposal", "id": message["id"], "parameters": {"x": x}}), flush=True)
    elif message["type"] == "intermediate" and mode == "strict" and message["id"] == 0:
        print(json.dumps({"type": "stop", "trial": message["trial"], "reason": "not good enough"}), flush=True)
"#;

fn search(bed: &TestBed, mode: &str, command: &str) -> Search {
    bed.write("code/program.py", TUNER_PROGRAM);
    let program = json!(["python3", "program.py", mode, bed.path("record")]);
    Search::new(command, 20)
        .with("tuner", json!({"command": program, "classArgs": {"optimize_mode": "minimize"}}))
}

#[test]
fn a_program_proposes_learns_and_stops() {
    let bed = TestBed::new();
    let command = "echo score={{x}}; test {{x}} != 0.0 || sleep 600";
    let outcome = search(&bed, "strict", command).run(&bed);
    assert_eq!(outcome.state, "DONE", "{outcome:#?}");
    let states: Vec<_> = outcome.trials.iter().map(|trial| trial.state.as_str()).collect();
    assert_eq!(states, ["EARLY_STOPPED", "SUCCEEDED", "SUCCEEDED", "SUCCEEDED"], "{outcome:#?}");
    let hello = &recorded_messages(&bed, "hello")[0];
    assert_eq!((&hello["protocol"], &hello["optimize_mode"]), (&json!(1), &json!("minimize")));
    let ends = recorded_messages(&bed, "ended");
    let reported: Vec<_> = ends.iter().map(|end| (&end["id"], &end["parameters"]["x"])).collect();
    let expected = [(0, 0.0), (1, 0.1), (2, 0.2), (3, 0.3)].map(|(id, x)| (json!(id), json!(x)));
    assert_eq!(reported, expected.iter().map(|(id, x)| (id, x)).collect::<Vec<_>>());
    assert_eq!(ends[1]["value"], 0.1);
    // A stopped trial's last intermediate result becomes its final result.
    assert_eq!((&ends[0]["state"], &ends[0]["value"]), (&json!("EARLY_STOPPED"), &json!(0.0)));
    assert_eq!(outcome.trial(0).final_result, 0.0);
    assert_eq!(recorded_messages(&bed, "end").len(), 1);
    bed.wait_until_empty();
}

#[test]
fn invalid_messages_are_reported_and_ignored() {
    let bed = TestBed::new();
    let outcome = search(&bed, "garbage", "echo score={{x}}").run(&bed);
    outcome.expect_done(4, 0);
    assert!(outcome.stderr.contains("unexpected message from"), "{}", outcome.stderr);
}

#[test]
fn a_program_that_always_ends_stops_the_search_and_keeps_its_trials() {
    let bed = TestBed::new();
    let outcome = search(&bed, "exit", "echo score={{x}}").run(&bed);
    assert_eq!((outcome.state.as_str(), outcome.trials.len()), ("STOPPED", 1), "{outcome:#?}");
    assert!(outcome.stderr.contains("SomeError: no more"), "{}", outcome.stderr);
    // The open proposal is requested again from each new process.
    let requested: Vec<_> =
        recorded_messages(&bed, "propose").iter().map(|ask| ask["id"].as_u64()).collect();
    assert!(
        requested.len() >= 4 && requested[1..].iter().all(|id| *id == Some(1)),
        "{requested:?}"
    );
}

#[test]
fn a_killed_program_is_restarted_with_its_history() {
    let bed = TestBed::new();
    let gate = Gate::new(&bed.path("gate"));
    let command = "echo x >>\"$GATE.begun\"; read _ <\"$GATE\"; echo score={{x}}";
    let search = search(&bed, "good", command);
    let running = bed.start(search.command(&bed).env("GATE", gate.path()));
    gate.release(2);
    wait_for("the third trial", WAIT_TIMEOUT, || {
        (recorded_messages(&bed, "launched").len() == 3).then_some(())
    });
    let first: Value = serde_json::from_str(bed.read("record").lines().next().unwrap()).unwrap();
    let pid = first["pid"].as_i64().unwrap();
    kill(nix::unistd::Pid::from_raw(pid.try_into().unwrap()), Signal::SIGKILL).unwrap();
    wait_for("the second program", WAIT_TIMEOUT, || {
        (recorded_messages(&bed, "hello").len() == 2).then_some(())
    });
    gate.release(2);
    let outcome = Outcome::parse(running.finish(WAIT_TIMEOUT));
    outcome.expect_done(4, 0);
    let launched = recorded_messages(&bed, "launched");
    let ids: Vec<_> = launched.iter().map(|trial| trial["id"].as_u64().unwrap()).collect();
    assert_eq!(ids, [0, 1, 2, 0, 1, 2, 3], "{}", bed.read("record"));
}

#[test]
fn a_program_gets_imported_results_and_a_new_space() {
    let bed = TestBed::new();
    let gate = Gate::new(&bed.path("gate"));
    let command = "echo x >>\"$GATE.begun\"; read _ <\"$GATE\"; echo score={{x}}";
    let search = search(&bed, "good", command);
    let running = bed.start(search.command(&bed).env("GATE", gate.path()));
    wait_for("a trial", WAIT_TIMEOUT, || (!bed.read("gate.begun").is_empty()).then_some(()));
    let space = json!({"x": {"_type": "uniform", "_value": [0, 0.5]}});
    bed.write("space.json", &space.to_string());
    bed.write("known.json", &json!([{"parameter": {"x": 0.25}, "value": 3}]).to_string());
    for words in [&["import", "known.json"][..], &["update", "--search-space", "space.json"]] {
        let mut command = bed.manager_command();
        command.arg("experiment").args(words).arg("--data-dir").arg(bed.data_folder());
        let finished = bed.start(&mut command).finish(WAIT_TIMEOUT);
        assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    }
    wait_for("the space", WAIT_TIMEOUT, || {
        (recorded_messages(&bed, "search_space").len() == 1).then_some(())
    });
    let samples = json!([{"parameters": {"x": 0.25}, "value": 3.0}]);
    assert_eq!(recorded_messages(&bed, "import")[0]["samples"], samples);
    assert_eq!(recorded_messages(&bed, "search_space")[0]["search_space"], space);
    running.signal(Signal::SIGINT);
    let id = Outcome::parse(running.finish(WAIT_TIMEOUT)).id;
    // The process of a new manager gets them, too.
    let resumed = bed.start(Outcome::resume_command(&bed, &id).env("GATE", gate.path()));
    gate.release(4);
    Outcome::parse(resumed.finish(WAIT_TIMEOUT)).expect_done(4, 0);
    assert_eq!(recorded_messages(&bed, "hello")[1]["search_space"], space);
    assert_eq!(recorded_messages(&bed, "import")[1]["samples"], samples);
}

#[test]
#[ignore = "needs Optuna from PyPI"]
fn optuna_runs_a_search_and_continues_after_a_resume() {
    let python = optuna_python();
    let bed = TestBed::new();
    let adapter = fs::read_to_string(examples_folder().join("optuna/optuna_search.py")).unwrap();
    bed.write("code/optuna_search.py", &adapter);
    let space = json!({
        "x": {"_type": "uniform", "_value": [-5, 5]},
        "net": {"_type": "choice", "_value": [
            {"_name": "flat"},
            {"_name": "deep", "layers": {"_type": "randint", "_value": [1, 5]},
             "rate": {"_type": "loguniform", "_value": [0.001, 1.0]}},
        ]},
    });
    let command = "test $(echo {{x}} | cut -c1-2) != nan && echo loss={{x}}";
    let search = |trials| {
        Search::new(command, trials)
            .with("searchSpace", space.clone())
            .with("trialConcurrency", 2)
            .with(
                "tuner",
                json!({
                    "command": [python, "optuna_search.py"],
                    "classArgs": {"optimize_mode": "minimize"},
                }),
            )
    };
    let outcome = search(25).run(&bed);
    outcome.expect_done(25, 0);
    let nets: Vec<_> = outcome.trials.iter().map(|trial| &trial.parameters["net"]).collect();
    assert!(nets.iter().any(|net| net["_name"] == "deep" && net["layers"].is_i64()), "{nets:?}");
    let best = outcome.best.unwrap().final_number();
    assert!(best < -4.0, "TPE does not find the minimum at the lower bound: {best}");
    assert!(!outcome.stderr.contains("WARN"), "{}", outcome.stderr);

    let running = bed.start(&mut search(400).command(&bed));
    let data = bed.data_folder();
    let counted = || {
        let folders = fs::read_dir(&data).unwrap().filter_map(Result::ok);
        let other = folders.map(|entry| entry.path()).find(|path| !path.ends_with(&outcome.id))?;
        (fs::read_dir(other).ok()?.count() > 14).then_some(())
    };
    wait_for("some trials", WAIT_TIMEOUT, counted);
    running.signal(Signal::SIGINT);
    let interrupted = Outcome::parse(running.finish(WAIT_TIMEOUT));
    assert_eq!(interrupted.state, "STOPPED");
    let resumed = Outcome::start_resume(&bed, &interrupted.id);
    let before = interrupted.trials.len();
    let folder = data.join(&interrupted.id);
    let more = || (fs::read_dir(&folder).unwrap().count() > before + 12).then_some(());
    wait_for("more trials", WAIT_TIMEOUT, more);
    resumed.signal(Signal::SIGINT);
    let resumed = Outcome::parse(resumed.finish(WAIT_TIMEOUT));
    assert!(!resumed.stderr.contains("WARN"), "{}", resumed.stderr);
    assert!(resumed.trials.len() > before, "{resumed:#?}");
    bed.wait_until_empty();
}
