//! Assessors decide after a resume as without one: their knowledge of ended and running trials is rebuilt.

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use trialkeeper_tests::{
    Gate, Outcome, RunningProgram, Search, TestBed, WAIT_TIMEOUT, nni_python, wait_for,
};

/// A trial with one of three curves of ten steps: good, almost as good, or hopeless. Each step waits for the
/// trial's own gate.
const TRIAL_SCRIPT: &str = r#"
case {{x}} in
0) curve="0.5 0.65 0.73 0.78 0.81 0.83 0.84 0.85 0.855 0.86" ;;
1) curve="0.49 0.64 0.72 0.77 0.8 0.82 0.83 0.84 0.845 0.85" ;;
2) curve="0.1 0.172 0.203 0.21 0.222 0.224 0.229 0.23 0.231 0.232" ;;
esac
for score in $curve; do
    read _ <"$BED/gate$NNI_TRIAL_SEQ_ID"
    echo "score=$score"
    echo x >>"$BED/steps$NNI_TRIAL_SEQ_ID"
done
"#;

/// Returns the state and the message of each trial from the API.
fn trial_states(running: &RunningProgram) -> Option<Vec<(String, String)>> {
    let shown = running.read_api("/api/v1/trials?sort=sequence")?;
    let word = |trial: &Value, name: &str| trial[name].as_str().unwrap_or_default().to_owned();
    let trials = shown["trials"].as_array()?.iter();
    Some(trials.map(|trial| (word(trial, "state"), word(trial, "message"))).collect())
}

/// Returns the states of the trials, the reasons, and the numbers of steps. The first trial succeeds. With
/// `kills`, the manager is killed when the second and the third trial have taken three and six steps. The
/// third trial is hopeless and can be stopped at its eighth step.
fn trial_outcomes(search: &Search, kills: bool) -> Vec<(String, String, usize)> {
    let bed = TestBed::new();
    let gates: Vec<Gate> = (0..3).map(|i| Gate::new(&bed.path(&format!("gate{i}")))).collect();
    let steps = |trial: usize, count: usize| {
        let taken = || bed.read(&format!("steps{trial}")).lines().count() == count;
        wait_for(&format!("step {count} of trial {trial}"), WAIT_TIMEOUT, || taken().then_some(()));
    };
    let mut running = bed.start(search.command(&bed).env("BED", bed.folder()));
    gates[1].release(3);
    gates[0].release(10);
    steps(1, 3);
    gates[2].release(6);
    steps(2, 6);
    if kills {
        let id = running.wait_for_experiment_id();
        running.signal(Signal::SIGKILL);
        assert_eq!(running.finish(WAIT_TIMEOUT).code, None);
        running = bed.start(Outcome::resume_command(&bed, &id).env("BED", bed.folder()));
    }
    gates[2].release(2);
    let states = wait_for("the assessor's decision", WAIT_TIMEOUT, || {
        trial_states(&running)
            .filter(|trials| trials.get(2).is_some_and(|(state, _)| state == "EARLY_STOPPED"))
    });
    gates[1].release(7);
    let outcome = Outcome::parse(running.finish(WAIT_TIMEOUT));
    assert_eq!((outcome.state.as_str(), outcome.code), ("DONE", 0), "{outcome:#?}");
    bed.wait_until_empty();
    let ended = outcome.trials.into_iter().zip(states);
    ended.map(|(trial, (_, why))| (trial.state, why, trial.intermediate.len())).collect()
}

fn search(assessor: &Value) -> Search {
    let sets = json!([{"x": 0}, {"x": 1}, {"x": 2}]);
    Search::new(TRIAL_SCRIPT, 3)
        .with("trialConcurrency", 2)
        .with("searchSpace", json!({"sets": {"_type": "choice", "_value": sets}}))
        .with("tuner", json!({"name": "Batch"}))
        .with("assessor", assessor.clone())
}

fn expect_same_after_kill(search: &Search, case: &str) {
    let uninterrupted = trial_outcomes(search, false);
    let (states, counts): (Vec<_>, Vec<_>) =
        uninterrupted.iter().map(|(state, _, steps)| (state.as_str(), *steps)).unzip();
    assert_eq!(states, ["SUCCEEDED", "SUCCEEDED", "EARLY_STOPPED"], "{case}: {uninterrupted:?}");
    assert_eq!(counts, [10, 10, 8], "{case}: {uninterrupted:?}");
    assert_eq!(uninterrupted, trial_outcomes(search, true), "{case}");
}

#[test]
fn built_in_assessors_decide_the_same_after_a_kill() {
    let table = [
        ("Medianstop", json!({"start_step": 8})),
        ("Curvefitting", json!({"start_step": 8, "epoch_num": 20, "threshold": 0.8})),
    ];
    for (name, args) in table {
        expect_same_after_kill(&search(&json!({"name": name, "classArgs": args})), name);
    }
}

#[test]
#[ignore = "needs NNI from PyPI"]
fn nni_s_assessors_decide_the_same_after_a_kill() {
    let python = nni_python();
    let table = [
        ("nni.algorithms.hpo.medianstop_assessor.MedianstopAssessor", json!({"start_step": 8})),
        (
            "nni.algorithms.hpo.curvefitting_assessor.CurvefittingAssessor",
            json!({"start_step": 8, "epoch_num": 20, "threshold": 0.8}),
        ),
    ];
    for (class, args) in table {
        let search = search(&json!({"className": class, "classArgs": args}));
        expect_same_after_kill(&search.with("pythonInterpreter", python.to_str().unwrap()), class);
    }
}

/// Runs a search that minimises a loss with `assessor`. Only the third trial is hopeless.
fn check_minimized_loss(assessor: &Value, python: &str) {
    // The third trial has a hopeless loss and does not end without being stopped.
    let line = "echo loss={{x}}; echo loss={{x}}; [ {{x}} -lt 9 ] || exec sleep 100000";
    let sets = json!([{"x": 3}, {"x": 2}, {"x": 9}, {"x": 1}]);
    let search = Search::new(line, 4)
        .with("trialConcurrency", 1)
        .with("searchSpace", json!({"sets": {"_type": "choice", "_value": sets}}))
        .with("tuner", json!({"name": "Batch", "classArgs": {"optimize_mode": "minimize"}}))
        .with("assessor", assessor.clone())
        .with("pythonInterpreter", python);
    let bed = TestBed::new();
    let outcome = Outcome::parse(bed.start(&mut search.command(&bed)).finish(WAIT_TIMEOUT));
    let states: Vec<_> = outcome.trials.iter().map(|trial| trial.state.as_str()).collect();
    assert_eq!(states, ["SUCCEEDED", "SUCCEEDED", "EARLY_STOPPED", "SUCCEEDED"], "{outcome:#?}");
}

#[test]
fn an_assessor_follows_the_tuners_direction() {
    check_minimized_loss(&json!({"name": "Medianstop", "classArgs": {"start_step": 1}}), "python3");
}

#[test]
#[ignore = "needs NNI from PyPI"]
fn an_assessor_class_of_nni_follows_the_tuners_direction() {
    let python = nni_python();
    let class = "nni.algorithms.hpo.medianstop_assessor.MedianstopAssessor";
    let assessor = json!({"className": class, "classArgs": {"start_step": 1}});
    check_minimized_loss(&assessor, python.to_str().unwrap());
}
