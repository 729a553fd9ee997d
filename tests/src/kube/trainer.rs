//! Kubeflow Trainer: creates a `JobSet` from each `TrainJob` and its `TrainingRuntime`, passes a suspension
//! on, and copies the `JobSet`'s status. The pods belong to the `JobSet`.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde_json::{Value, json};

use super::Shared;
use super::controller::POLL_INTERVAL;
use super::objects::{new_condition, string_at};

const RUNTIME_POINTER: &str = "/spec/runtimeRef/name";

/// Refuses a `TrainJob` whose runtime does not exist, as the webhook does.
pub(super) fn admit(shared: &Shared, job: &Value) -> Result<(), String> {
    let runtime = string_at(job, RUNTIME_POINTER);
    if shared.objects.get("trainingruntimes", &runtime).is_some() {
        return Ok(());
    }
    Err(format!(
        "admission webhook \"validator.trainjob.trainer.kubeflow.org\" denied the request: spec.runtimeRef: Invalid value: \
         {runtime:?}: specified trainingRuntime must be created before the TrainJob is created"
    ))
}

/// Follows `TrainJob`s until the server ends.
pub(super) fn run(shared: &Arc<Shared>) {
    let mut known = HashSet::new();
    while !shared.is_ending.load(Ordering::SeqCst) {
        let works = shared.controllers_running.load(Ordering::SeqCst);
        for job in shared.objects.list("trainjobs").into_iter().filter(|_| works) {
            if known.insert(string_at(&job, "/metadata/uid")) {
                let shared = Arc::clone(shared);
                std::thread::spawn(move || follow_train_job(&shared, &job));
            }
        }
        std::thread::park_timeout(POLL_INTERVAL);
    }
}

fn follow_train_job(shared: &Shared, job: &Value) {
    let name = string_at(job, "/metadata/name");
    let Some(runtime) = shared.objects.get("trainingruntimes", &string_at(job, RUNTIME_POINTER))
    else {
        return;
    };
    drop(shared.objects.create("jobsets", create_job_set(job, &runtime)));
    let mut was_suspended = false;
    let mut written = Value::Null;
    while !shared.is_gone("trainjobs", job) {
        let suspended = shared.is_suspended("trainjobs", &name).unwrap_or(false);
        was_suspended |= suspended;
        if shared.is_suspended("jobsets", &name) == Some(!suspended) {
            let change = |set: &mut Value| set["spec"]["suspend"] = Value::Bool(suspended);
            drop(shared.objects.change("jobsets", &name, change));
        }
        let set = shared.objects.get("jobsets", &name).unwrap_or_default();
        let status = train_job_status(&set, suspended, was_suspended);
        if status != written {
            written = status.clone();
            drop(shared.objects.change("trainjobs", &name, |job| job["status"] = status));
        }
        std::thread::park_timeout(POLL_INTERVAL);
    }
}

/// Returns the `JobSet`. It has the labels of neither the `TrainJob` nor the runtime.
fn create_job_set(job: &Value, runtime: &Value) -> Value {
    let mut spec = runtime["spec"]["template"]["spec"].clone();
    let trainer = &job["spec"]["trainer"];
    let roles = spec["replicatedJobs"].as_array_mut().into_iter().flatten();
    for role in roles.filter(|role| {
        string_at(role, "/template/metadata/labels/trainer.kubeflow.org~1trainjob-ancestor-step")
            == "trainer"
    }) {
        let body = &mut role["template"]["spec"];
        body["completionMode"] = Value::from("Indexed");
        for count in ["parallelism", "completions"] {
            body[count] = trainer["numNodes"].clone();
        }
        let container = &mut body["template"]["spec"]["containers"][0];
        assert_eq!(container["name"], "node", "the Trainer finds its container by this name");
        if trainer["command"].is_array() {
            container["command"] = trainer["command"].clone();
        }
        let nodes = json!({"name": "PET_NNODES", "value": trainer["numNodes"].to_string()});
        let own = trainer["env"].as_array().cloned().unwrap_or_default();
        let known = container["env"].as_array().cloned().unwrap_or_default();
        container["env"] = json!([known, own, vec![nodes]].concat());
    }
    spec["suspend"] = job["spec"]["suspend"].clone();
    json!({
        "apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "spec": spec,
        "metadata": {
            "name": job["metadata"]["name"], "namespace": "lab",
            "ownerReferences": [{
                "apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob", "controller": true,
                "name": job["metadata"]["name"], "uid": job["metadata"]["uid"],
            }],
        },
    })
}

/// Derives the status of a `TrainJob` from its `JobSet`'s.
fn train_job_status(set: &Value, suspended: bool, was_suspended: bool) -> Value {
    let mut conditions = Vec::new();
    if suspended {
        conditions.push(new_condition("Suspended", "True", "Suspended", "TrainJob is suspended"));
    } else if was_suspended {
        conditions.push(new_condition("Suspended", "False", "Resumed", "TrainJob is resumed"));
    }
    let ends = set["status"]["conditions"].as_array().into_iter().flatten();
    for end in ends.filter(|end| end["status"] == "True") {
        let kind = match end["type"].as_str() {
            Some("Completed") => "Complete",
            Some("Failed") => "Failed",
            _ => continue,
        };
        conditions.push(new_condition(
            kind,
            "True",
            &string_at(end, "/reason"),
            &string_at(end, "/message"),
        ));
    }
    let mut status = json!({"conditions": conditions});
    if !set["status"]["replicatedJobsStatus"].is_null() {
        status["jobsStatus"] = set["status"]["replicatedJobsStatus"].clone();
    }
    status
}
