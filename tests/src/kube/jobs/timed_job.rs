//! A Job without a process. Its pod and its status take the steps of a real cluster in the times measured
//! there (Kubernetes 1.36, idle), or faster by a factor.

use std::time::Duration;

use serde_json::{Value, json};

use super::super::Shared;
use super::super::kubelet::{PHASE_MS, TERMINATED_MS};
use super::super::objects::{is_being_deleted, string_at};

/// From the Job's creation to the pod's, from there to the container's start, and from there to its end.
pub(super) const POD_CREATION_MS: u64 = 40;
pub(super) const CONTAINER_START_MS: u64 = 300;
const CONTAINER_RUN_MS: u64 = 5_000;
/// The time by which the longest run exceeds the shortest. Trials that start together do not end together.
const RUN_SPREAD_MS: u64 = 4_000;
/// From the pod's phase to the Job's conditions.
pub(super) const JOB_DECISION_MS: u64 = 750;
const JOB_END_MS: u64 = 15;

/// Runs a Job whose container ends with an exit code.
pub(super) fn run_timed_job(shared: &Shared, job: &Value, code: i32, speed: u32) {
    let name = string_at(job, "/metadata/name");
    if job["spec"]["suspend"] == true {
        // The manager's test of the controller: a suspended Job.
        let suspended = json!({"type": "Suspended", "status": "True", "reason": "JobSuspended", "message": "Job suspended"});
        set_status(shared, &name, json!({"conditions": [suspended], "active": 0}));
        return;
    }
    let pod = format!("{name}-pcm7m");
    let pause = |ms: u64| shared.pause(Duration::from_millis(ms) / speed.max(1));
    let is_there = || shared.objects.inspect("jobs", &name, is_being_deleted) == Some(false);
    set_status(shared, &name, json!({"active": 1, "ready": 0}));
    pause(POD_CREATION_MS);
    create_pod(shared, job, &pod);
    pause(CONTAINER_START_MS);
    set_pod_status(shared, &pod, "Running", &json!({"running": {}}));
    set_status(shared, &name, json!({"active": 1, "ready": 1}));
    pause(container_run_ms(&name) + TERMINATED_MS);
    let reason = if code == 0 { "Completed" } else { "Error" };
    let terminated = json!({"terminated": {
        "exitCode": code, "reason": reason, "startedAt": "2026-11-23T00:00:00Z",
    }});
    set_pod_status(shared, &pod, "Running", &terminated);
    pause(PHASE_MS);
    set_pod_status(shared, &pod, if code == 0 { "Succeeded" } else { "Failed" }, &terminated);
    pause(JOB_DECISION_MS);
    if !is_there() {
        return;
    }
    let (target, end, reason, message) = if code == 0 {
        let message = "Reached expected number of succeeded pods".to_owned();
        ("SuccessCriteriaMet", "Complete", "CompletionsReached", message)
    } else {
        let message = format!(
            "Container trial for pod lab/{pod} failed with exit code {code} matching FailJob rule at index 1"
        );
        ("FailureTarget", "Failed", "PodFailurePolicy", message)
    };
    let condition =
        |kind: &str| json!({"type": kind, "status": "True", "reason": reason, "message": message});
    set_status(shared, &name, json!({"active": 0, "conditions": [condition(target)]}));
    pause(JOB_END_MS);
    set_status(
        shared,
        &name,
        json!({"active": 0, "conditions": [condition(target), condition(end)]}),
    );
}

/// Returns the running time of a Job's container. The mean is `CONTAINER_RUN_MS`, and the name decides.
fn container_run_ms(name: &str) -> u64 {
    let hash = name.bytes().fold(0_u64, |hash, byte| hash.wrapping_mul(31) + u64::from(byte));
    CONTAINER_RUN_MS - RUN_SPREAD_MS / 2 + hash % RUN_SPREAD_MS
}

fn create_pod(shared: &Shared, job: &Value, name: &str) {
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "status": {"phase": "Pending"}});
    pod["metadata"] = job["spec"]["template"]["metadata"].clone();
    pod["metadata"]["name"] = Value::from(name);
    pod["metadata"]["namespace"] = Value::from("lab");
    pod["metadata"]["ownerReferences"] = json!([{
        "apiVersion": "batch/v1", "kind": "Job", "name": job["metadata"]["name"], "controller": true,
        "uid": job["metadata"]["uid"],
    }]);
    pod["spec"] = job["spec"]["template"]["spec"].clone();
    drop(shared.objects.create("pods", pod));
}

fn set_status(shared: &Shared, job: &str, status: Value) {
    drop(shared.objects.change("jobs", job, |object| object["status"] = status));
}

fn set_pod_status(shared: &Shared, pod: &str, phase: &str, state: &Value) {
    let status = json!({
        "phase": phase,
        "containerStatuses": [{"name": "trial", "state": state, "imageID": super::IMAGE_ID}],
    });
    drop(shared.objects.change("pods", pod, |object| object["status"] = status));
}
