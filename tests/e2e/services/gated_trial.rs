//! The trial of most tests here, which reports before and after a gate, and the checks of its output.

use serde_json::json;
use trialkeeper_tests::{Outcome, TestBed, WAIT_TIMEOUT, wait_for};

/// A trial that records its machine, if that has a name, and its id. It reports before and after the gate, and cleans
/// up on TERM.
pub(super) const TRAIN_SCRIPT: &str = r#"#!/bin/sh
trap 'echo "$NNI_TRIAL_JOB_ID" >>"$BED/cleaned"; exit 143' TERM
echo "${MACHINE:+$MACHINE }$NNI_TRIAL_JOB_ID" >>"$BED/started"
echo score=0.25
read _ <"$BED/gate"
echo score=0.5
"#;

/// Waits until trials were started this many times, and returns the line of each start.
pub(super) fn wait_for_starts(bed: &TestBed, trials: usize) -> Vec<String> {
    wait_for("the trials to start", WAIT_TIMEOUT, || {
        let started: Vec<_> = bed.read("started").lines().map(str::to_owned).collect();
        (started.len() >= trials).then_some(started)
    })
}

/// Checks that every trial ran once, and that exactly its output is stored.
pub(super) fn expect_complete_output(bed: &TestBed, done: &Outcome, trials: usize) {
    let started = wait_for_starts(bed, trials);
    assert_eq!(started.len(), trials, "a trial ran twice: {started:?}");
    expect_last_output(done, trials);
}

/// Checks that every trial has succeeded, and that exactly the output of its last attempt is stored.
pub(super) fn expect_last_output(done: &Outcome, trials: usize) {
    done.expect_done(trials, 0);
    for trial in &done.trials {
        assert_eq!(trial.intermediate, [json!(0.25), json!(0.5)], "{trial:?}");
        assert_eq!(trial.final_result, 0.5, "{trial:?}");
    }
}
