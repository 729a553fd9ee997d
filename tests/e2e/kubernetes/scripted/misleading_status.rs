//! Objects that look different from what has happened, as real controllers were seen to leave them.

use std::sync::mpsc;

use serde_json::json;
use trialkeeper_tests::{Outcome, TestBed, WAIT_TIMEOUT, wait_for};

use super::scenarios::{JOB, TF_JOB, WAITING_TRIAL, trial_object_name, wait_for_starts};
use super::{run_command, start_cluster, trial_why};

#[test]
fn a_suspended_job_that_counts_as_failed_is_preempted_and_tried_again() {
    let bed = TestBed::new();
    let kube = start_cluster(&bed);
    let search = JOB.search(&bed, &kube, WAITING_TRIAL, 1, &json!({})).with("maxTrialRetries", 1);
    let running = bed.start(&mut run_command(&bed, &search));
    wait_for_starts(&bed, 1);
    // A queue stopped the pod, and the Job controller saw its end before the pod was gone. The Job stays like this.
    kube.change_object("jobs", &trial_object_name(&kube, "jobs"), |job| {
        job["spec"]["suspend"] = json!(true);
        job["status"]["conditions"] = json!([{
            "type": "FailureTarget", "status": "True", "reason": "PodFailurePolicy",
            "message": "Container trial for pod lab/x failed with exit code 1 matching FailJob rule at index 1",
        }]);
    });
    wait_for_starts(&bed, 2);
    bed.write("go", "");
    let outcome = Outcome::parse(running.finish(WAIT_TIMEOUT));
    outcome.expect_done(1, 0);
    let explanation = trial_why(&bed);
    let words = "its queue took the trial back as its pod ended, so the trial cannot be resumed";
    for words in [words, "it is tried again (1 of 1)"] {
        assert!(explanation.contains(words), "{words:?} is not in {explanation}");
    }
    kube.wait_until_empty();
}

#[test]
fn an_operator_that_cannot_create_a_pod_is_not_called_absent() {
    let refusal = "Error creating: pods \"x\" is forbidden: exceeded quota: small, requested: pods=1, used: pods=1, limited: pods=1";
    let bed = TestBed::new();
    let kube = start_cluster(&bed);
    // The first Secret follows the check of the operator, and precedes the trial. It waits until the operator is stopped.
    let (stopped, wait_for_stop) = mpsc::channel::<()>();
    kube.set_policy(move |plural, _| {
        if plural == "secrets" {
            let _stopped = wait_for_stop.recv();
        }
    });
    let running = TF_JOB.start(&bed, &kube, "echo score=1", &json!({}));
    wait_for("the first Secret", WAIT_TIMEOUT, || {
        kube.requests().iter().any(|request| request == "POST secrets").then_some(())
    });
    // While the operator cannot create a pod, the TFJob has no status.
    kube.set_controllers_running(false);
    drop(stopped);
    let job = wait_for("the TFJob", WAIT_TIMEOUT, || kube.list("tfjobs").pop());
    let time = "2026-11-23T17:00:01Z";
    let event = json!({
        "kind": "Event", "type": "Warning", "metadata": {"name": "refused", "namespace": "lab"},
        "involvedObject": {"kind": "TFJob", "name": job["metadata"]["name"], "namespace": "lab"},
        "reason": "FailedCreatePod", "message": refusal, "firstTimestamp": time, "lastTimestamp": time,
    });
    kube.create_object("events", event);
    running.wait_for_stderr(&format!("the training operator cannot create its pod: {refusal}"));
    assert!(!running.stderr().contains("has not noticed"), "{}", running.stderr());
    kube.set_controllers_running(true);
    Outcome::parse(running.finish(WAIT_TIMEOUT)).expect_done(1, 0);
    kube.wait_until_empty();
}
