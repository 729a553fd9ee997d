//! Jobs while the cluster is away, and Jobs that another client deletes.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use trialkeeper_tests::kube::Kube;
use trialkeeper_tests::{Outcome, RunningProgram, TestBed, WAIT_TIMEOUT, wait_for};

use super::scenarios::{JOB, trial_object_name};
use super::{run_command, start_cluster, trial_why};

/// Starts a search with one trial, which runs as a Job.
fn start_job_search(
    bed: &TestBed,
    kube: &Kube,
    line: &str,
    retries: u32,
    changes: &Value,
) -> RunningProgram {
    let search = JOB.search(bed, kube, line, 1, changes).with("maxTrialRetries", retries);
    bed.start(&mut run_command(bed, &search))
}

/// Waits until a file in the bed exists.
fn wait_for_file(bed: &TestBed, name: &str) {
    wait_for(name, WAIT_TIMEOUT, || bed.path(name).exists().then_some(()));
}

#[test]
fn a_trial_that_starts_while_the_cluster_is_away_does_not_fail() {
    const START_UP_DEADLINE: Duration = Duration::from_secs(2);
    let line = r#"
touch "$TEST_BED/up"
until [ -e "$TEST_BED/go" ]; do sleep 0.1; done
echo score=1"#;
    let bed = TestBed::new();
    let kube = start_cluster(&bed);
    let running = start_job_search(&bed, &kube, line, 0, &json!({"startUpDeadline": "2s"}));
    // The first Job tests the controller.
    wait_for("the trial's Job", WAIT_TIMEOUT, || {
        (kube.created_objects("jobs").len() > 1).then_some(())
    });
    kube.set_unreachable(true);
    let since = Instant::now();
    wait_for_file(&bed, "up");
    wait_for("the time limit", WAIT_TIMEOUT, || {
        (since.elapsed() > START_UP_DEADLINE * 2).then_some(())
    });
    kube.set_unreachable(false);
    std::fs::write(bed.path("go"), "").expect("the bed is writable");
    let outcome = Outcome::parse(running.finish(WAIT_TIMEOUT));
    outcome.expect_done(1, 0);
    kube.wait_until_empty();
}

#[test]
fn the_next_attempt_of_a_deleted_job_waits_for_the_pods_of_the_first() {
    let line = r#"
if [ -e "$TEST_BED/first" ]; then echo again >>"$TEST_BED/log"; echo score=1; exit; fi
trap 'sleep 1; echo over >>"$TEST_BED/log"; exit 1' TERM
touch "$TEST_BED/first"
while :; do sleep 0.1; done"#;
    let bed = TestBed::new();
    let kube = start_cluster(&bed);
    let running = start_job_search(&bed, &kube, line, 1, &json!({}));
    wait_for_file(&bed, "first");
    kube.delete_object("jobs", &trial_object_name(&kube, "jobs"));
    let outcome = Outcome::parse(running.finish(WAIT_TIMEOUT));
    outcome.expect_done(1, 0);
    assert_eq!(bed.read("log"), "over\nagain\n", "{}", outcome.stderr);
    let explanation = trial_why(&bed);
    assert!(explanation.contains("its Job was deleted, but not by the manager"), "{explanation}");
    kube.wait_until_empty();
}
