//! A user changes a running search: imported results and another search space. Both also apply after a
//! resume.

use std::net::TcpListener;

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use trialkeeper_tests::{
    FinishedProgram, Gate, Outcome, RunningProgram, Search, TestBed, WAIT_TIMEOUT, wait_for,
};

/// A trial that records its start and waits at the gate.
const WAITING_TRIAL: &str = "echo x >>\"$GATE.begun\"; read _ <\"$GATE\"; echo score={{x}}";

fn wait_for_started(bed: &TestBed, count: usize) {
    let lines = || bed.read("gate.begun").lines().count();
    wait_for("a trial", WAIT_TIMEOUT, || (lines() >= count).then_some(()));
}

/// Runs `trial-manager experiment ...`.
fn run_experiment_command(bed: &TestBed, words: &[&str]) -> FinishedProgram {
    let mut command = bed.manager_command();
    command.arg("experiment").args(words).arg("--data-dir").arg(bed.data_folder());
    bed.start(&mut command).finish(WAIT_TIMEOUT)
}

fn expect_accepted(bed: &TestBed, words: &[&str]) {
    let finished = run_experiment_command(bed, words);
    assert_eq!(finished.code, Some(0), "{words:?}: {}", finished.stderr);
}

fn choice_space(values: &[u64]) -> Value {
    json!({"x": {"_type": "choice", "_value": values}})
}

fn start_search(bed: &TestBed, gate: &Gate, search: &Search) -> RunningProgram {
    bed.start(search.command(bed).env("GATE", gate.path()))
}

fn interrupt_search(running: RunningProgram) -> String {
    running.signal(Signal::SIGINT);
    let outcome = Outcome::parse(running.finish(WAIT_TIMEOUT));
    assert_eq!(outcome.state, "STOPPED", "{outcome:#?}");
    outcome.id
}

fn resume_search(bed: &TestBed, gate: &Gate, id: &str) -> RunningProgram {
    bed.start(Outcome::resume_command(bed, id).env("GATE", gate.path()))
}

fn tried_points(outcome: &Outcome) -> Vec<f64> {
    outcome.trials.iter().map(|trial| trial.parameters["x"].as_f64().unwrap()).collect()
}

#[test]
fn imported_points_are_not_tried_and_a_new_space_is_searched() {
    let bed = TestBed::new();
    let gate = Gate::new(&bed.path("gate"));
    let search = Search::new(WAITING_TRIAL, 10)
        .with("searchSpace", choice_space(&[1, 2, 3, 4]))
        .with("tuner", json!({"name": "GridSearch"}));
    let running = start_search(&bed, &gate, &search);
    wait_for_started(&bed, 1);
    let known = json!([
        {"parameter": {"x": 2}, "value": 0.5},
        {"parameter": {"x": 3}, "value": {"default": 0.5, "loss": 7}},
    ]);
    bed.write("known.json", &known.to_string());
    expect_accepted(&bed, &["import", "known.json"]);
    expect_accepted(&bed, &["import", "known.json"]); // A second import changes nothing.
    gate.release(1);
    wait_for_started(&bed, 2);
    bed.write("space.yml", &choice_space(&[3, 4, 5, 6]).to_string());
    expect_accepted(&bed, &["update", "--search-space", "space.yml"]);
    let id = interrupt_search(running);
    let running = resume_search(&bed, &gate, &id);
    gate.release(10);
    let outcome = Outcome::parse(running.finish(WAIT_TIMEOUT));
    outcome.expect_done(4, 0);
    assert_eq!(tried_points(&outcome), [1.0, 4.0, 5.0, 6.0]);
}

/// Returns the proposals of a search that gets results and another space while its second trial runs.
fn proposals_of(tuner: &str, interrupt: bool) -> Vec<f64> {
    let bed = TestBed::new();
    let gate = Gate::new(&bed.path("gate"));
    let args = json!({"optimize_mode": "minimize", "seed": 5});
    let search =
        Search::new(WAITING_TRIAL, 7).with("tuner", json!({"name": tuner, "classArgs": args}));
    let running = start_search(&bed, &gate, &search);
    gate.release(1);
    wait_for_started(&bed, 2);
    let known = (0..40).map(|i| f64::from(i) / 40.0);
    let known: Value =
        known.map(|x| json!({"parameter": {"x": x}, "value": (x - 0.2).abs()})).collect();
    bed.write("known.json", &known.to_string());
    expect_accepted(&bed, &["import", "known.json"]);
    let space = json!({"x": {"_type": "uniform", "_value": [0, 0.5]}});
    bed.write("space.json", &space.to_string());
    expect_accepted(&bed, &["update", "--search-space", "space.json"]);
    let running = if interrupt {
        let id = interrupt_search(running);
        resume_search(&bed, &gate, &id)
    } else {
        running
    };
    gate.release(10);
    let outcome = Outcome::parse(running.finish(WAIT_TIMEOUT));
    outcome.expect_done(7, 0);
    tried_points(&outcome)
}

#[test]
fn a_changed_search_proposes_the_same_after_a_resume() {
    for tuner in ["TPE", "Evolution", "Hyperband"] {
        let (uninterrupted, resumed) = (proposals_of(tuner, false), proposals_of(tuner, true));
        assert_eq!(uninterrupted, resumed, "{tuner}");
        assert!(uninterrupted[2..].iter().all(|x| *x <= 0.5), "{tuner}: {uninterrupted:?}");
    }
}

#[test]
fn errors_in_imports_and_spaces_are_named_with_their_position() {
    let bed = TestBed::new();
    let gate = Gate::new(&bed.path("gate"));
    let running = start_search(&bed, &gate, &Search::new(WAITING_TRIAL, 1));
    wait_for_started(&bed, 1);
    #[rustfmt::skip]
    let table = [
        (vec!["import"],                   r#"[{"parameter": {"x": 0.5}, "value": 1}, {"parameter": {"x": 2}, "value": 1}]"#, "[1].parameter.x: 2 is not"),
        (vec!["import"],                   r#"[{"parameter": {"x": 0.5}, "value": "good"}]"#,   "[0].value: expected a number"),
        (vec!["import"],                   r#"[{"parameter": {"x": 0.5}, "#,                    "given: line 1, column"),
        (vec!["update", "--search-space"], r#"{"x": {"_type": "unifrom", "_value": [0, 1]}}"#,  "searchSpace.x._type: `unifrom` is not a type"),
        (vec!["update", "--search-space"], r#"{"y": {"_type": "uniform", "_value": [0, 1]}}"#,  "trialCommand: "),
        (vec!["update", "--search-space"], "{}",                                                "searchSpace: is empty"),
    ];
    for (mut words, text, problem) in table {
        bed.write("given", text);
        words.push("given");
        let finished = run_experiment_command(&bed, &words);
        assert_eq!(finished.code, Some(2), "{words:?} {text}: {}", finished.stderr);
        assert!(
            finished.stderr.contains("given: "),
            "the message does not name the file: {}",
            finished.stderr
        );
        assert!(finished.stderr.contains(problem), "{problem}: {}", finished.stderr);
    }
    gate.release(1);
    Outcome::parse(running.finish(WAIT_TIMEOUT)).expect_done(1, 0);
    bed.write("given", "[]");
    let finished = run_experiment_command(&bed, &["import", "given"]);
    assert_eq!(finished.code, Some(1), "{}", finished.stderr);
    assert!(finished.stderr.contains("is DONE: there is nothing"), "{}", finished.stderr);
}

#[test]
fn a_rerun_in_a_served_search_runs_with_the_next_resume() {
    let bed = TestBed::new();
    // The trial fails the first time.
    let search = Search::new("echo score=1; mkdir ../once || exit 0; exit 3", 1);
    let id = search.run(&bed).id;
    let folder = bed.data_folder().join(&id);
    let mut serve = bed.manager_command();
    serve.args(["serve", "--experiment", &id, "--port", "0", "--data-dir"]).arg(bed.data_folder());
    let serving = bed.start(&mut serve);
    let url = wait_for("the pages to be served", WAIT_TIMEOUT, || {
        let url = std::fs::read_to_string(folder.join("view.url")).ok()?;
        Some(url.trim().to_owned())
    });
    let run_trial = |verb: &str, which: &str| {
        let mut command = bed.manager_command();
        command.args(["trial", verb, which, "--manager", &url, "--token-file"]);
        bed.start(command.arg(folder.join("user.token"))).finish(WAIT_TIMEOUT)
    };
    let refused = run_trial("stop", "0");
    assert_eq!(refused.code, Some(1), "{}", refused.stderr);
    assert!(refused.stderr.contains("trial-manager resume"), "{}", refused.stderr);
    // A server of a stored search has no search to stop.
    let token = std::fs::read_to_string(folder.join("user.token")).unwrap();
    let (status, answer) =
        trialkeeper_tests::send_request(&url, "POST /api/v1/experiment/stop", token.trim(), "")
            .unwrap();
    assert_eq!(status, 409, "{answer}");
    let finished = run_trial("rerun", "0");
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    let finished = run_trial("rerun", "--failed");
    assert_eq!(finished.stderr, "no trial has failed\n", "the failed trial is already marked");
    let (_, page) = trialkeeper_tests::http_get(&url, "/trials").unwrap();
    assert!(page.contains("the next `trial-manager resume` runs it"), "{page}");
    serving.signal(Signal::SIGTERM);
    assert_eq!(serving.finish(WAIT_TIMEOUT).code, Some(0));
    Outcome::run_resume(&bed, &id).expect_done(1, 0);
}

/// Runs `trial-manager resume` with new limits to its end.
fn resume_with(bed: &TestBed, id: &str, limits: &[&str]) -> FinishedProgram {
    bed.start(Outcome::resume_command(bed, id).args(limits)).finish(WAIT_TIMEOUT)
}

#[test]
fn a_search_that_is_done_continues_under_a_higher_limit() {
    let bed = TestBed::new();
    let first = Search::new("echo score={{x}}", 2).run(&bed);
    first.expect_done(2, 0);
    let id = first.id.as_str();
    // Without a higher limit, the results are shown, and the remedy.
    for limits in [&[][..], &["--max-trial-number", "2"], &["--trial-concurrency", "2"]] {
        let shown = Outcome::parse(resume_with(&bed, id, limits));
        shown.expect_done(2, 0);
        let remedy = format!("`trial-manager resume {id} --max-trial-number N` continues it");
        assert!(shown.stderr.contains("maxTrialNumber is 2"), "{}", shown.stderr);
        assert!(shown.stderr.contains(&remedy), "{}", shown.stderr);
    }
    for (flag, value, problem) in [
        ("--max-trial-number", "1", "it has 2 trials, and maxTrialNumber is 1"),
        ("--max-experiment-duration", "1h", "it has 2 trials, and maxTrialNumber is 2"),
        ("--max-experiment-duration", "soon", "--max-experiment-duration"),
        ("--trial-concurrency", "999999999", "the maximum is"),
    ] {
        let refused = resume_with(&bed, id, &[flag, value]);
        assert_eq!(refused.code, Some(2), "{flag} {value}: {}", refused.stderr);
        assert!(refused.stderr.contains(problem), "{flag} {value}: {}", refused.stderr);
    }
    // A start that fails changes nothing, so the same command works afterwards.
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let failed = resume_with(&bed, id, &["--max-trial-number", "4", "--legacy-port", &port]);
    assert_ne!(failed.code, Some(0));
    assert!(failed.stderr.contains("in use"), "{}", failed.stderr);
    let shown = run_experiment_command(&bed, &["show", "-o", "json"]);
    let shown: Value = serde_json::from_slice(&shown.stdout).unwrap();
    assert_eq!((&shown["state"], &shown["max_trial_number"]), (&json!("DONE"), &json!(2)));
    let limits = ["--max-trial-number", "4", "--trial-concurrency", "2"];
    let second = Outcome::parse(resume_with(&bed, id, &limits));
    second.expect_done(4, 0);
    assert_eq!(second.trials[..2], first.trials[..]);
    let shown = run_experiment_command(&bed, &["show", "-o", "json"]);
    let shown: Value = serde_json::from_slice(&shown.stdout).unwrap();
    assert_eq!((&shown["max_trial_number"], &shown["trial_concurrency"]), (&json!(4), &json!(2)));
    let refused = run_experiment_command(&bed, &["limit", "--max-trial-number", "9"]);
    assert_eq!(refused.code, Some(1), "{}", refused.stderr);
    assert!(refused.stderr.contains("--max-trial-number N` continues"), "{}", refused.stderr);
}

#[test]
fn an_interrupted_search_continues_under_other_limits() {
    let bed = TestBed::new();
    let gate = Gate::new(&bed.path("gate"));
    let running = start_search(&bed, &gate, &Search::new(WAITING_TRIAL, 50));
    wait_for_started(&bed, 1);
    let id = interrupt_search(running);
    gate.release(9);
    let mut command = Outcome::resume_command(&bed, &id);
    command.env("GATE", gate.path()).args(["--max-trial-number", "2"]);
    Outcome::parse(bed.start(&mut command).finish(WAIT_TIMEOUT)).expect_done(2, 0);
}
