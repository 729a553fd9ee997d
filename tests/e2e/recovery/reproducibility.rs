//! The same seed gives the same proposals, also after a resume.

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use trialkeeper_tests::{Gate, Outcome, RunningProgram, Search, TestBed, WAIT_TIMEOUT, wait_for};

/// A trial that records its start and waits at the gate.
const TRIAL_SCRIPT: &str = "echo x >>\"$GATE.begun\"; read _ <\"$GATE\"; echo score={{x}}";

const TRIAL_COUNT: usize = 14;

fn finish(running: RunningProgram) -> Outcome {
    Outcome::parse(running.finish(WAIT_TIMEOUT))
}

/// Returns the parameters and states of a search's trials. With `stop`, the search is interrupted in that
/// trial and resumed.
fn trial_outcomes(search: &Search, stop: Option<usize>) -> Vec<(Value, String)> {
    let bed = TestBed::new();
    let gate = Gate::new(&bed.path("gate"));
    let running = bed.start(search.command(&bed).env("GATE", gate.path()));
    let outcome = match stop {
        None => {
            gate.release(TRIAL_COUNT);
            finish(running)
        }
        Some(stop) => {
            gate.release(stop);
            let started_count = || bed.read("gate.begun").lines().count();
            wait_for("the trial", WAIT_TIMEOUT, || (started_count() == stop + 1).then_some(()));
            running.signal(Signal::SIGINT);
            let id = finish(running).id;
            let resumed = bed.start(Outcome::resume_command(&bed, &id).env("GATE", gate.path()));
            gate.release(TRIAL_COUNT);
            finish(resumed)
        }
    };
    assert_eq!(outcome.state, "DONE", "{outcome:#?}");
    outcome.trials.into_iter().map(|trial| (Value::from(trial.parameters), trial.state)).collect()
}

fn search(tuner: &Value) -> Search {
    let space = match tuner["name"].as_str() {
        Some("Batch") => {
            let sets = (0..TRIAL_COUNT).map(|i| json!({"x": i}));
            json!({"sets": {"_type": "choice", "_value": sets.collect::<Value>()}})
        }
        Some("GridSearch") => json!({"x": {"_type": "quniform", "_value": [0, 1, 0.05]}}),
        _ => {
            json!({"x": {"_type": "uniform", "_value": [0, 1]}, "n": {"_type": "randint", "_value": [0, 9]}})
        }
    };
    let trials = TRIAL_COUNT.try_into().unwrap();
    Search::new(TRIAL_SCRIPT, trials).with("searchSpace", space).with("tuner", tuner.clone())
}

#[test]
fn every_tuner_proposes_the_same_after_a_resume() {
    let args = |more: Value| {
        let mut args = json!({"optimize_mode": "maximize", "seed": 11});
        args.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        args
    };
    let table = [
        ("TPE", json!({})),
        ("TPE", json!({"tpe_args": {"n_startup_jobs": 4}})),
        ("Anneal", json!({})),
        ("Evolution", json!({"population_size": 4})),
        ("GP", json!({"cold_start_num": 4})),
        ("Hyperband", json!({"R": 4, "eta": 2, "exec_mode": "serial"})),
        ("BOHB", json!({"max_budget": 4, "eta": 2, "exec_mode": "serial"})),
        ("CMA-ES", json!({"population_size": 3})),
        ("NSGA-II", json!({"population_size": 6})),
        ("QMC", json!({})),
        ("Random", json!({})),
        ("GridSearch", json!({})),
        ("Batch", json!({})),
    ];
    for (name, more) in table {
        let search = search(&json!({"name": name, "classArgs": args(more.clone())}));
        let uninterrupted = trial_outcomes(&search, None);
        assert_eq!(uninterrupted.len(), TRIAL_COUNT, "{name}");
        assert_eq!(uninterrupted, trial_outcomes(&search, Some(12)), "{name} with {more}");
    }
}
