//! Objects that look different from what has happened, as real controllers were seen to leave them.

use std::time::Duration;

use serde_json::{Value, json};
use trialkeeper_tests::{Outcome, TestBed, WAIT_TIMEOUT, wait_for};

use super::{run_command, search_with_service, service_section, start_cluster};

#[test]
fn a_suspended_job_that_counts_as_failed_is_preempted_and_tried_again() {
    const TRIAL_COMMAND: &str = "echo up >>\"$TEST_BED/up\"; \
                        until [ -e \"$TEST_BED/go\" ]; do sleep 0.02; done; echo score=1";
    let bed = TestBed::new();
    let kube = start_cluster(&bed);
    let own = json!({"platform": "kubernetes", "dockerImage": "any"});
    let search =
        search_with_service(&bed, &kube, TRIAL_COMMAND, 1, service_section(&bed, own, &json!({})));
    let search = search.with("maxTrialRetries", 1);
    let running = bed.start(&mut run_command(&bed, &search));
    let wait_until_up = |times: usize| {
        wait_for("the run", WAIT_TIMEOUT, || {
            (bed.read("up").lines().count() == times).then_some(())
        });
    };
    wait_until_up(1);
    let is_trial = |job: &Value| job.pointer("/metadata/labels/trialkeeper~1trial").is_some();
    let job = kube.list("jobs").into_iter().find(is_trial).expect("the Job runs");
    // A queue stopped the pod, and the Job controller saw its end before the pod was gone. The Job stays like this.
    kube.change_object("jobs", job["metadata"]["name"].as_str().expect("a Job has a name"), |job| {
        job["spec"]["suspend"] = json!(true);
        job["status"]["conditions"] = json!([{
            "type": "FailureTarget", "status": "True", "reason": "PodFailurePolicy",
            "message": "Container trial for pod lab/x failed with exit code 1 matching FailJob rule at index 1",
        }]);
    });
    wait_until_up(2);
    bed.write("go", "");
    let outcome = Outcome::parse(running.finish(WAIT_TIMEOUT));
    outcome.expect_done(1, 0);
    let explanation = super::deleted_pods::trial_why(&bed);
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
    let worker = json!({"replicas": 1, "dockerImage": "any", "command": "echo score=1"});
    let own = json!({"platform": "kubeflow", "operator": "tf-operator", "worker": worker});
    let search =
        search_with_service(&bed, &kube, "unused", 1, service_section(&bed, own, &json!({})));
    // The first Secret follows the check of the operator, and precedes the trial.
    kube.delay_requests("POST secrets", Duration::from_secs(1), 1);
    let running = bed.start(&mut run_command(&bed, &search));
    wait_for("the first Secret", WAIT_TIMEOUT, || {
        kube.requests().iter().any(|request| request == "POST secrets").then_some(())
    });
    // While the operator cannot create a pod, the TFJob has no status.
    kube.set_controllers_running(false);
    let job = wait_for("the TFJob", WAIT_TIMEOUT, || kube.list("tfjobs").pop());
    let time = "2026-11-23T17:00:01Z";
    let event = json!({
        "kind": "Event", "type": "Warning", "metadata": {"name": "refused", "namespace": "lab"},
        "involvedObject": {"kind": "TFJob", "name": job["metadata"]["name"], "namespace": "lab"},
        "reason": "FailedCreatePod", "message": refusal, "firstTimestamp": time, "lastTimestamp": time,
    });
    kube.create_object("events", event);
    let words = format!("the training operator cannot create its pod: {refusal}");
    wait_for("the reason", WAIT_TIMEOUT, || running.stderr().contains(&words).then_some(()));
    assert!(!running.stderr().contains("has not noticed"), "{}", running.stderr());
    kube.set_controllers_running(true);
    Outcome::parse(running.finish(WAIT_TIMEOUT)).expect_done(1, 0);
    kube.wait_until_empty();
}
