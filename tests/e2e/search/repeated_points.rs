//! Noisy results: each point is evaluated by several trials.

use serde_json::{Value, json};
use trialkeeper_tests::{FinishedProgram, Outcome, Search, TestBed, WAIT_TIMEOUT};

/// Creates a search with three points, each evaluated by three trials. The first trial of the first point has
/// an unusually good result.
fn search(trials: u32) -> Search {
    let command = "[ $NNI_TRIAL_SEQ_ID = 0 ] && echo score=0.9 || echo score={{x}}";
    Search::new(command, trials)
        .with("searchSpace", json!({"x": {"_type": "choice", "_value": [0.25, 0.5, 0.75]}}))
        .with("tuner", json!({"name": "GridSearch"}))
        .with("trialRepeats", 3)
}

fn best_point(finished: &FinishedProgram) -> Value {
    let whole: Value = serde_json::from_slice(&finished.stdout).unwrap();
    whole["best"].clone()
}

#[test]
fn a_point_that_was_lucky_once_is_not_the_best() {
    let bed = TestBed::new();
    let finished = search(6).start(&bed).finish(WAIT_TIMEOUT);
    let best = best_point(&finished);
    let outcome = Outcome::parse(finished);
    outcome.expect_done(6, 0);
    let points: Vec<_> = outcome.trials.iter().map(|trial| trial.parameters["x"].clone()).collect();
    assert_eq!(points, [0.25, 0.25, 0.25, 0.5, 0.5, 0.5]);
    let mean = json!({"results": 3, "wanted": 3, "mean": 0.5, "half_width": 0.0});
    assert_eq!((&best["parameters"]["x"], &best["estimate"]), (&json!(0.5), &mean), "{best}");

    let shown = |format: &str| {
        let mut show = bed.manager_command();
        show.args(["experiment", "show", &outcome.id, "--output", format, "--data-dir"]);
        let shown = bed.start(show.arg(bed.data_folder())).finish(WAIT_TIMEOUT);
        String::from_utf8(shown.stdout).unwrap()
    };
    let view: Value = serde_json::from_str(&shown("json")).unwrap();
    assert_eq!((&view["best"]["estimate"], &view["trial_repeats"]), (&mean, &json!(3)), "{view}");
    let first = view["improvements"][0]["value"].as_f64().unwrap();
    assert!((first - (0.9 + 0.25 + 0.25) / 3.0).abs() < 1e-9, "{view}");
    let table = shown("table");
    assert!(table.contains("0.5 ± 0, the mean of 3 trials, by trial 5"), "{table}");
}

#[test]
fn a_mean_reaches_the_target_and_a_lucky_trial_does_not() {
    let bed = TestBed::new();
    let outcome = search(9).with("targetMetric", 0.5).run(&bed);
    outcome.expect_done(6, 0);
    assert!(
        outcome.stderr.contains("a result of 0.5 reaches targetMetric 0.5"),
        "{}",
        outcome.stderr
    );
}

#[test]
fn a_point_of_the_experiment_file_is_repeated_too() {
    let bed = TestBed::new();
    let outcome = search(6).with("initialTrials", json!([{"x": 0.75}])).run(&bed);
    outcome.expect_done(6, 0);
    let points: Vec<_> = outcome.trials.iter().map(|trial| trial.parameters["x"].clone()).collect();
    assert_eq!(points[..3], [0.75, 0.75, 0.75], "{outcome:#?}");
    assert_eq!(points[3..], [0.25, 0.25, 0.25], "{outcome:#?}");
}
