//! PURE: the objects that every kind of workload needs. They are a Secret with each trial's token, a Secret with the
//! manager's address for the experiment, and the pods of a workload.

pub mod cache;
pub(super) mod pod;

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::digest::{SHA256, digest};
use serde_json::{Map, Value, json};
use trial_protocol::{AttemptId, ExperimentId, TrialJobId};

use self::cache::CachedFiles;
use crate::config::kubernetes::{KubernetesSpec, is_framework_name};
use crate::search::search_space::Parameters;
use crate::training_service::agent_arguments::AgentSettings;
use crate::training_service::kubernetes::shared_disk::{SharedDisk, azure_secret_data};
use crate::training_service::{Token, TrialJobSpec};

/// The label with the experiment's id, on every object of TrialKeeper.
pub const EXPERIMENT_LABEL: &str = "trialkeeper/experiment";
/// The label with the trial's id.
pub const TRIAL_LABEL: &str = "trialkeeper/trial";
/// The label with the attempt's id.
pub const ATTEMPT_LABEL: &str = "trialkeeper/attempt";

/// The settings that every trial of an experiment shares.
#[derive(Debug)]
pub struct WorkloadSettings {
    /// The experiment.
    pub experiment: ExperimentId,
    /// The specification.
    pub spec: KubernetesSpec,
    /// The namespace of the objects.
    pub namespace: String,
    /// The name of the trial's container if the template gives none.
    pub container_name: &'static str,
    /// The settings of the agents.
    pub agents: AgentSettings,
    /// Set if the experiment's Secret has a `ca.pem`.
    pub has_ca: bool,
    /// The disk that trials share, if there is one.
    pub shared_disk: Option<SharedDisk>,
    /// The files that pods look for in the cache, if there is one.
    pub cached_files: Option<CachedFiles>,
}

/// Returns the name of an attempt's workload, which is the same for every kind. It has at most 63 lower-case letters
/// and digits, which every kind accepts. Controllers append a dash and a suffix for each pod.
pub fn workload_name(experiment: &ExperimentId, attempt: &AttemptId) -> String {
    // Ids of TrialKeeper have one dash, before the attempt's number, and equal length, so no name is ambiguous.
    let name = format!("tk{experiment}{}", attempt.as_str().replacen('-', "", 1));
    if is_framework_name(&name) { name } else { hashed_name(&format!("{experiment}/{attempt}")) }
}

/// Returns the workload of a pod. Every controller builds the name of a pod from the workload's name, which has no
/// dash, followed by a dash and a suffix.
pub fn workload_of(pod: &str) -> &str {
    pod.split('-').next().unwrap_or_default()
}

/// Returns the name of an experiment's own objects, such as its Secret.
pub fn experiment_object_name(experiment: &ExperimentId) -> String {
    let name = format!("tk{experiment}");
    if is_framework_name(&name) { name } else { hashed_name(experiment.as_str()) }
}

/// Returns the name of the Secret for mounting an Azure file share. (No role has a dash in its name.)
pub fn storage_secret_name(experiment: &ExperimentId) -> String {
    format!("{}-azure-file", experiment_object_name(experiment))
}

/// Returns the name of the Secret with a registry's password.
pub fn registry_secret_name(experiment: &ExperimentId, role: &str) -> String {
    format!("{}-{role}", experiment_object_name(experiment))
}

fn hashed_name(text: &str) -> String {
    let digest = digest(&SHA256, text.as_bytes());
    let number = digest.as_ref().iter().take(16).fold(0, |sum, byte| sum << 8 | u128::from(*byte));
    format!("tk{number:032x}")
}

/// Returns the selector for all objects of an experiment.
pub fn experiment_selector(experiment: &ExperimentId) -> String {
    format!("{EXPERIMENT_LABEL}={experiment}")
}

/// Returns the selector for all objects of some attempts.
pub fn attempts_selector(experiment: &ExperimentId, attempts: &[AttemptId]) -> String {
    let attempts: Vec<&str> = attempts.iter().map(AttemptId::as_str).collect();
    format!("{EXPERIMENT_LABEL}={experiment},{ATTEMPT_LABEL} in ({})", attempts.join(","))
}

pub(super) fn experiment_labels(experiment: &ExperimentId) -> Map<String, Value> {
    let mut labels = Map::new();
    labels.insert("app.kubernetes.io/managed-by".to_owned(), Value::from("trialkeeper"));
    labels.insert(EXPERIMENT_LABEL.to_owned(), Value::from(experiment.as_str()));
    labels
}

pub(super) fn attempt_labels(experiment: &ExperimentId, job: &TrialJobSpec) -> Map<String, Value> {
    let mut labels = experiment_labels(experiment);
    labels.insert(TRIAL_LABEL.to_owned(), Value::from(job.trial.as_str()));
    labels.insert(ATTEMPT_LABEL.to_owned(), Value::from(job.attempt.as_str()));
    labels
}

/// Builds the experiment's Secret. It holds the authority of the manager's certificate, and the manager's URL, which
/// agents read again when the manager does not answer.
pub fn experiment_secret(
    settings: &WorkloadSettings,
    manager_url: &str,
    ca_pem: Option<&str>,
) -> Value {
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
            "name": experiment_object_name(&settings.experiment),
            "namespace": settings.namespace,
            "labels": experiment_labels(&settings.experiment),
        },
        "data": data,
    })
}

/// Builds the Secret with a registry's password, as a docker configuration file.
pub fn registry_secret(settings: &WorkloadSettings, role: &str, docker_config: &[u8]) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "kubernetes.io/dockerconfigjson",
        "metadata": {
            "name": registry_secret_name(&settings.experiment, role),
            "namespace": settings.namespace,
            "labels": experiment_labels(&settings.experiment),
        },
        "data": {".dockerconfigjson": STANDARD.encode(docker_config)},
    })
}

/// Builds the Secret for mounting an Azure file share.
pub fn storage_secret(settings: &WorkloadSettings, account: &str, key: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "Opaque",
        "metadata": {
            "name": storage_secret_name(&settings.experiment),
            "namespace": settings.namespace,
            "labels": experiment_labels(&settings.experiment),
        },
        "data": azure_secret_data(account, key),
    })
}

/// Builds the Secret with a trial's token.
pub fn token_secret(settings: &WorkloadSettings, job: &TrialJobSpec) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "Opaque",
        "metadata": {
            "name": workload_name(&settings.experiment, &job.attempt),
            "namespace": settings.namespace,
            "labels": attempt_labels(&settings.experiment, job),
        },
        "data": {"token": STANDARD.encode(&job.token.0)},
    })
}

/// Returns the longest grace period among the template's pods.
pub fn grace_period(spec: &KubernetesSpec) -> Duration {
    let roles = spec.template.as_ref().and_then(|template| template.pointer("/spec/taskRoles"));
    let pods = roles.and_then(Value::as_array).into_iter().flatten();
    let pods = pods.filter_map(|role| role.pointer("/task/pod/spec"));
    Duration::from_secs(pods.map(pod::grace_period).max().unwrap_or(pod::MIN_GRACE_S))
}

/// Returns whether the template lets the controller replace a pod that failed by another.
pub fn has_retries(spec: &KubernetesSpec) -> bool {
    let retries = |of: &Value| {
        let policy = &of["retryPolicy"];
        policy["fancyRetryPolicy"] == true
            || policy["maxRetryCount"].as_i64().is_some_and(|count| count != 0)
    };
    let framework = spec.template.as_ref().map_or(&Value::Null, |template| &template["spec"]);
    let roles = framework["taskRoles"].as_array().map_or(&[][..], Vec::as_slice);
    retries(framework) || roles.iter().any(|role| retries(&role["task"]))
}

/// Returns the name of the container that reports the trial's metrics: the template's name, or the default.
pub fn reporting_container(settings: &WorkloadSettings) -> String {
    let spec = &settings.spec;
    if spec.workload.shares_pod_template() {
        // The controller requires this name.
        return settings.container_name.to_owned();
    }
    let (role, _) = &spec.metrics_from;
    let roles = spec.template.as_ref().and_then(|template| template.pointer("/spec/taskRoles"));
    let own = roles.and_then(Value::as_array).and_then(|roles| {
        let known = roles.iter().find(|known| known["name"] == role.as_str())?;
        known.pointer("/task/pod/spec/containers/0/name")?.as_str()
    });
    own.unwrap_or(settings.container_name).to_owned()
}

/// Returns the names of the containers that run the trial in the pods of its roles: the template's names, or the
/// default `usual`.
pub fn trial_containers(spec: &KubernetesSpec, usual: &str) -> Vec<String> {
    let own = |position: usize| {
        // A kind with a shared pod template requires the default name.
        let template = spec.template.as_ref().filter(|_| !spec.workload.shares_pod_template())?;
        let at = format!("/spec/taskRoles/{position}/task/pod/spec/containers/0/name");
        template.pointer(&at)?.as_str()
    };
    let roles = 0..spec.roles.len();
    roles.map(|position| own(position).unwrap_or(usual).to_owned()).collect()
}

/// Returns an example trial, for dry runs.
pub(super) fn example_job(experiment: &ExperimentId) -> TrialJobSpec {
    TrialJobSpec {
        experiment: experiment.clone(),
        trial: TrialJobId::new("example").expect("a valid id"),
        attempt: AttemptId::new("example-1").expect("a valid id"),
        sequence: 0,
        command: String::new(),
        parameter_record: json!({}),
        token: Token(String::new()),
    }
}

/// Returns the trial's parameters, for the placeholders in commands.
fn parameters(job: &TrialJobSpec) -> Parameters {
    job.parameter_record.get("parameters").and_then(Value::as_object).cloned().unwrap_or_default()
}

/// Adds fields to an object, which may not exist yet.
pub(super) fn merge(object: &mut Value, fields: Map<String, Value>) {
    if !object.is_object() {
        *object = json!({});
    }
    if let Some(object) = object.as_object_mut() {
        object.extend(fields);
    }
}

/// Sets a field unless the template sets it.
pub(super) fn set_default(object: &mut Value, field: &str, value: Value) {
    if !object.is_object() {
        *object = json!({});
    }
    if object[field].is_null() {
        object[field] = value;
    }
}

#[cfg(test)]
pub(super) mod tests;
