//! PURE: the objects that are made for a trial: its Framework and the Secret with its token; and one Secret
//! per experiment, with the way to the manager.
//!
//! The controller rewrites what it is given with the types of Kubernetes 1.16: newer fields of a pod, such
//! as `seccompProfile` or `resizePolicy`, would be dropped without a word. They are not used.

mod pod;

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::digest::{SHA256, digest};
use serde_json::{Map, Value, json};
use trial_protocol::{AttemptId, ExperimentId, TrialJobId};

use crate::config::kubernetes::{KubernetesSpec, is_name};
use crate::search_space::Parameters;
use crate::training_service::share::{Share, azure_data};
use crate::training_service::{Token, TrialJobSpec};

/// Label with the experiment's id, on everything of ours.
pub const EXPERIMENT: &str = "trialkeeper/experiment";
/// Label with the trial's id.
pub const TRIAL: &str = "trialkeeper/trial";
/// Label with the attempt's id.
pub const ATTEMPT: &str = "trialkeeper/attempt";

/// How much longer than its own time a pod that is to end is waited for before it is taken for gone with its node. An
/// attempt that lives on all the same does no harm: the next one has another number.
const NODE_GONE_S: u64 = 600;

/// What every trial of an experiment has in common.
#[derive(Debug)]
pub struct Common {
    /// Which experiment.
    pub experiment: ExperimentId,
    /// What is wanted.
    pub spec: KubernetesSpec,
    /// Where its objects are.
    pub namespace: String,
    /// Name of the metric to optimise, where it is configured.
    pub objective: Option<String>,
    /// Whether the experiment's Secret has a `ca.pem`.
    pub has_ca: bool,
    /// The disk that trials share, if they do.
    pub share: Option<Share>,
}

/// The name of an attempt's Framework. `FrameworkController` allows 63 lower-case letters and digits.
pub fn framework_name(experiment: &ExperimentId, attempt: &AttemptId) -> String {
    // Our ids have one dash, before the attempt's number, and are of equal length: none is ambiguous.
    let name = format!("tk{experiment}{}", attempt.as_str().replacen('-', "", 1));
    if is_name(&name) { name } else { hashed(&format!("{experiment}/{attempt}")) }
}

/// The name of the experiment's own Secret.
pub fn experiment_name(experiment: &ExperimentId) -> String {
    let name = format!("tk{experiment}");
    if is_name(&name) { name } else { hashed(experiment.as_str()) }
}

/// The name of the Secret with which pods mount an Azure file share. (No role has a dash in its name.)
pub fn storage_name(experiment: &ExperimentId) -> String {
    format!("{}-azure-file", experiment_name(experiment))
}

/// The name of the Secret with a registry's password.
pub fn registry_name(experiment: &ExperimentId, role: &str) -> String {
    format!("{}-{role}", experiment_name(experiment))
}

fn hashed(text: &str) -> String {
    let digest = digest(&SHA256, text.as_bytes());
    let number = digest.as_ref().iter().take(16).fold(0, |sum, byte| sum << 8 | u128::from(*byte));
    format!("tk{number:032x}")
}

/// What selects everything of an experiment.
pub fn selector(experiment: &ExperimentId) -> String {
    format!("{EXPERIMENT}={experiment}")
}

/// What selects everything of some attempts.
pub fn selector_of(experiment: &ExperimentId, attempts: &[AttemptId]) -> String {
    let attempts: Vec<&str> = attempts.iter().map(AttemptId::as_str).collect();
    format!("{EXPERIMENT}={experiment},{ATTEMPT} in ({})", attempts.join(","))
}

fn labels(experiment: &ExperimentId) -> Map<String, Value> {
    let mut labels = Map::new();
    labels.insert("app.kubernetes.io/managed-by".to_owned(), Value::from("trialkeeper"));
    labels.insert(EXPERIMENT.to_owned(), Value::from(experiment.as_str()));
    labels
}

fn labels_of(experiment: &ExperimentId, job: &TrialJobSpec) -> Map<String, Value> {
    let mut labels = labels(experiment);
    labels.insert(TRIAL.to_owned(), Value::from(job.trial.as_str()));
    labels.insert(ATTEMPT.to_owned(), Value::from(job.attempt.as_str()));
    labels
}

/// The experiment's Secret: the manager's URL, which agents read again when it does not answer, and the
/// authority of its certificate.
pub fn experiment_secret(common: &Common, manager_url: &str, ca_pem: Option<&str>) -> Value {
    let mut data = Map::new();
    let mut put = |name: &str, text: &str| {
        data.insert(name.to_owned(), Value::from(STANDARD.encode(text)));
    };
    put("manager.url", &format!("{manager_url}\n"));
    if let Some(ca_pem) = ca_pem {
        put("ca.pem", ca_pem);
    }
    json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "Opaque",
        "metadata": {
            "name": experiment_name(&common.experiment),
            "namespace": common.namespace,
            "labels": labels(&common.experiment),
        },
        "data": data,
    })
}

/// The Secret with a registry's password: a docker configuration file.
pub fn registry_secret(common: &Common, role: &str, docker_config: &[u8]) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "kubernetes.io/dockerconfigjson",
        "metadata": {
            "name": registry_name(&common.experiment, role),
            "namespace": common.namespace,
            "labels": labels(&common.experiment),
        },
        "data": {".dockerconfigjson": STANDARD.encode(docker_config)},
    })
}

/// The Secret with which pods mount an Azure file share.
pub fn storage_secret(common: &Common, account: &str, key: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "Opaque",
        "metadata": {
            "name": storage_name(&common.experiment),
            "namespace": common.namespace,
            "labels": labels(&common.experiment),
        },
        "data": azure_data(account, key),
    })
}

/// The Secret with a trial's token.
pub fn token_secret(common: &Common, job: &TrialJobSpec) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "Opaque",
        "metadata": {
            "name": framework_name(&common.experiment, &job.attempt),
            "namespace": common.namespace,
            "labels": labels_of(&common.experiment, job),
        },
        "data": {"token": STANDARD.encode(&job.token.0)},
    })
}

/// A Framework that starts no pod, to see whether its controller takes notice.
pub fn probe(experiment: &ExperimentId, namespace: &str) -> Value {
    json!({
        "apiVersion": "frameworkcontroller.microsoft.com/v1",
        "kind": "Framework",
        "metadata": {
            "name": format!("{}probe", experiment_name(experiment)),
            "namespace": namespace,
            "labels": labels(experiment),
        },
        "spec": {
            // It waits to be started, which nobody does.
            "executionType": "Create",
            "taskRoles": [{
                "name": "probe",
                "taskNumber": 1,
                "task": {"pod": {"spec": {
                    "restartPolicy": "Never",
                    "containers": [{"name": "framework", "image": "none"}],
                }}},
            }],
        },
    })
}

/// The longest time that one of the template's pods may take to end.
pub fn grace(spec: &KubernetesSpec) -> Duration {
    let roles = spec.template.as_ref().and_then(|template| template.pointer("/spec/taskRoles"));
    let pods = roles.and_then(Value::as_array).into_iter().flatten();
    let pods = pods.filter_map(|role| role.pointer("/task/pod/spec"));
    Duration::from_secs(pods.map(pod::grace).max().unwrap_or(pod::GRACE_S))
}

/// Whether a trial has one pod in all: no other beside it, and none that the template has the controller start after it.
pub fn has_one_pod(spec: &KubernetesSpec) -> bool {
    let retries = |of: &Value| {
        let policy = &of["retryPolicy"];
        policy["fancyRetryPolicy"] == true
            || policy["maxRetryCount"].as_i64().is_some_and(|count| count != 0)
    };
    let framework = spec.template.as_ref().map_or(&Value::Null, |template| &template["spec"]);
    let roles = framework["taskRoles"].as_array().map_or(&[][..], Vec::as_slice);
    spec.roles.iter().map(|role| role.task_number).sum::<u64>() == 1
        && !retries(framework)
        && !roles.iter().any(|role| retries(&role["task"]))
}

/// The pod of a Framework whose metrics are the trial's, and the name of its container.
pub fn reporter(spec: &KubernetesSpec, framework: &str) -> (String, String) {
    let (role, index) = &spec.metrics_from;
    let roles = spec.template.as_ref().and_then(|template| template.pointer("/spec/taskRoles"));
    let own = roles.and_then(Value::as_array).and_then(|roles| {
        let known = roles.iter().find(|known| known["name"] == role.as_str())?;
        known.pointer("/task/pod/spec/containers/0/name")?.as_str()
    });
    (format!("{framework}-{role}-{index}"), own.unwrap_or(pod::CONTAINER).to_owned())
}

/// A trial's Framework: the user's template, completed.
pub fn framework(common: &Common, job: &TrialJobSpec) -> Value {
    let spec = &common.spec;
    let mut framework = spec.template.clone().unwrap_or_else(|| json!({}));
    framework["apiVersion"] = Value::from("frameworkcontroller.microsoft.com/v1");
    framework["kind"] = Value::from("Framework");
    if let Some(object) = framework.as_object_mut() {
        // Never sent: what is stored as a status is believed by the controller.
        object.shift_remove("status");
    }
    let labels = labels_of(&common.experiment, job);
    let metadata = &mut framework["metadata"];
    if let Some(metadata) = metadata.as_object_mut() {
        // What `kubectl get -o yaml` shows of another Framework's life; some of it would be refused.
        metadata.retain(|name, _| name == "labels" || name == "annotations");
    }
    metadata["name"] = Value::from(framework_name(&common.experiment, &job.attempt));
    metadata["namespace"] = Value::from(common.namespace.as_str());
    merge(&mut metadata["labels"], labels.clone());

    framework["spec"]["executionType"] = Value::from("Start");
    set_default(&mut framework["spec"], "retryPolicy", no_retry());
    let templates = framework["spec"]["taskRoles"].take();
    let roles: Vec<Value> = spec
        .roles
        .iter()
        .enumerate()
        .map(|(position, role)| {
            let template = templates
                .as_array()
                .and_then(|list| list.iter().find(|known| known["name"] == role.name.as_str()));
            let mut whole = template.cloned().unwrap_or_else(|| json!({}));
            whole["name"] = Value::from(role.name.as_str());
            whole["taskNumber"] = Value::from(role.task_number);
            whole["frameworkAttemptCompletionPolicy"] = json!({
                "minFailedTaskCount": role.policy.min_failed,
                "minSucceededTaskCount": role.policy.min_succeeded,
            });
            set_default(&mut whole["task"], "retryPolicy", no_retry());
            // Without it a pod whose node is gone is waited for until somebody removes the node.
            let gone = pod::grace(&whole["task"]["pod"]["spec"]) + NODE_GONE_S;
            set_default(&mut whole["task"], "podGracefulDeletionTimeoutSec", Value::from(gone));
            let pod = &mut whole["task"]["pod"];
            pod::leave_alone(&mut pod["metadata"]);
            merge(&mut pod["metadata"]["labels"], labels.clone());
            pod::complete(&mut pod["spec"], common, job, role, position);
            whole
        })
        .collect();
    framework["spec"]["taskRoles"] = Value::Array(roles);
    framework
}

/// The first pod of each role of a trial, as `FrameworkController` would make it, by its role.
pub fn pods(common: &Common) -> Vec<(String, Value)> {
    let trial = example(&common.experiment);
    let mut framework = framework(common, &trial);
    let name = framework_name(&common.experiment, &trial.attempt);
    let roles = framework.pointer_mut("/spec/taskRoles").and_then(Value::as_array_mut);
    let roles = roles.into_iter().flatten().map(|role| {
        let own = role["name"].as_str().unwrap_or_default().to_owned();
        let mut pod = role["task"]["pod"].take();
        (pod["apiVersion"], pod["kind"]) = (Value::from("v1"), Value::from("Pod"));
        pod["metadata"]["name"] = Value::from(format!("{name}-{own}-0"));
        pod["metadata"]["namespace"] = Value::from(common.namespace.as_str());
        pod::without_what_is_dropped(&mut pod["spec"]);
        pod::fill_in(&mut pod);
        (own, pod)
    });
    roles.collect()
}

/// A trial like every other.
fn example(experiment: &ExperimentId) -> TrialJobSpec {
    TrialJobSpec {
        experiment: experiment.clone(),
        trial: TrialJobId::new("example").expect("it is an id"),
        attempt: AttemptId::new("example-1").expect("it is an id"),
        sequence: 0,
        command: String::new(),
        parameter_record: json!({}),
        token: Token(String::new()),
    }
}

/// A retry is the manager's decision, and gets a number.
fn no_retry() -> Value {
    json!({"fancyRetryPolicy": false, "maxRetryCount": 0})
}

/// The trial's parameters, for commands that name them.
fn parameters(job: &TrialJobSpec) -> Parameters {
    job.parameter_record.get("parameters").and_then(Value::as_object).cloned().unwrap_or_default()
}

/// Puts fields into an object that may not be there yet.
fn merge(object: &mut Value, fields: Map<String, Value>) {
    if !object.is_object() {
        *object = json!({});
    }
    if let Some(object) = object.as_object_mut() {
        object.extend(fields);
    }
}

/// Sets a field that the template does not.
fn set_default(object: &mut Value, field: &str, value: Value) {
    if !object.is_object() {
        *object = json!({});
    }
    if object[field].is_null() {
        object[field] = value;
    }
}

#[cfg(test)]
mod tests;
