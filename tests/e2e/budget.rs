//! What ends a search, or holds it, before its number of trials is reached.

use serde_json::json;
use trialkeeper_tests::{Outcome, Search, TestBed};

#[test]
fn a_result_that_is_good_enough_ends_the_search() {
    let bed = TestBed::new();
    let outcome = Search::new("echo score={{x}}", 50)
        .with("searchSpace", json!({"x": {"_type": "choice", "_value": [0.1, 0.5, 0.75, 0.9]}}))
        .with("tuner", json!({"name": "GridSearch"}))
        .with("targetMetric", 0.5)
        .run(&bed);
    outcome.expect_done(2, 0);
    assert!(outcome.stderr.contains("targetMetric 0.5 is reached with 0.5"), "{}", outcome.stderr);
}

#[test]
fn failures_without_end_hold_the_search_until_they_are_mended() {
    let bed = TestBed::new();
    bed.write("code/trial.sh", "echo broken >&2; exit 3");
    let outcome = Search::new("sh trial.sh", 6).with("maxConsecutiveFailures", 2).run(&bed);
    assert_eq!((outcome.state.as_str(), outcome.trials.len()), ("STOPPED", 2), "{outcome:#?}");
    let message = "2 trials in a row failed by the command or its parameters";
    assert_eq!(outcome.stderr.matches(message).count(), 1, "{}", outcome.stderr);

    bed.write("code/trial.sh", "echo score=1");
    let resumed = Outcome::of_resume(&bed, &outcome.id);
    resumed.expect_done(4, 2);
}
