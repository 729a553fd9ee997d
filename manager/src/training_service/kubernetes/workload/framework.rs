//! PURE: trials as Frameworks of Microsoft's `FrameworkController`.
//!
//! The controller rewrites its input with the types of Kubernetes 1.16 and silently drops newer fields of a pod, such
//! as `seccompProfile` and `resizePolicy`. The manifest therefore does not use them.

pub mod status;

use serde_json::{Value, json};

use super::several_pods::{self, EndedPod};
use super::{StopRequest, Workload};
use crate::config::kubernetes::{KubernetesSpec, RoleSpec, WorkloadKind};
use crate::training_service::TrialJobSpec;
use crate::training_service::completion::{
    CompletionDecision, PodResult, ReplicaId, TrialCompletion,
};
use crate::training_service::kubernetes::client::Resource;
use crate::training_service::kubernetes::manifest::{
    WorkloadSettings, attempt_labels, has_retries, merge, pod, set_default, workload_name,
};
use crate::training_service::kubernetes::outcome::{DecidingPod, WorkloadOutcome, WorkloadPhase};

/// The time beyond its grace period after which a deleted pod counts as gone with its node, in seconds. An attempt that
/// survives does no harm, because the next one has another number.
const NODE_GONE_S: u64 = 600;

/// Runs trials as Frameworks.
#[derive(Debug)]
pub struct Framework;

impl Workload for Framework {
    fn kind(&self) -> WorkloadKind {
        WorkloadKind::Framework
    }

    fn verbs(&self) -> &'static [&'static str] {
        &["get", "list", "watch", "create", "patch", "delete", "deletecollection"]
    }

    fn installation_advice(&self) -> String {
        "FrameworkController is not installed there (docs/kubernetes.md describes the installation)"
            .to_owned()
    }

    fn manifest(&self, settings: &WorkloadSettings, job: &TrialJobSpec) -> Value {
        framework(settings, job)
    }

    fn example_objects(&self, _settings: &WorkloadSettings) -> Vec<(Resource, Value)> {
        // The dry run of the pods already shows unknown fields. The controller silently drops unknown fields elsewhere,
        // which does no harm.
        Vec::new()
    }

    fn example_pod(
        &self,
        settings: &WorkloadSettings,
        job: &TrialJobSpec,
        role: &RoleSpec,
        position: usize,
    ) -> (Value, String) {
        let mut framework = framework(settings, job);
        let mut pod = framework["spec"]["taskRoles"][position]["task"]["pod"].take();
        remove_dropped_fields(&mut pod["spec"]);
        fill_placeholders(&mut pod);
        (pod, format!("{}-0", role.name))
    }

    fn phase(&self, object: &Value, spec: &KubernetesSpec) -> WorkloadPhase {
        let (role, index) = &spec.metrics_from;
        status::read(object, (role.as_str(), *index))
    }

    fn outcome_from_pods(
        &self,
        spec: &KubernetesSpec,
        pods: &[Value],
        trial: &[String],
    ) -> Option<WorkloadOutcome> {
        // Retries are the controller's.
        if has_retries(spec) {
            return None;
        }
        outcome_from_pods(&self.completion(spec), pods, trial)
    }

    fn completion(&self, spec: &KubernetesSpec) -> TrialCompletion {
        let mut completion = several_pods::completion_rules(spec, several_pods::success_by_policy);
        for (role, own) in completion.roles.iter_mut().zip(&spec.roles) {
            role.min_failed = u64::try_from(own.policy.min_failed).ok().filter(|least| *least > 0);
        }
        completion
    }

    fn stop_request(&self) -> StopRequest {
        StopRequest::Patch(json!({"spec": {"executionType": "Stop"}}))
    }

    fn reporting_pod(&self, spec: &KubernetesSpec, name: &str, _pods: &[String]) -> Option<String> {
        let (role, index) = &spec.metrics_from;
        Some(format!("{name}-{role}-{index}"))
    }

    fn container_name(&self) -> &'static str {
        "framework"
    }

    fn probe_spec(&self, _name: &str) -> Value {
        json!({
            // The Framework waits to be started, which never happens.
            "executionType": "Create",
            "taskRoles": [{
                "name": "probe",
                "taskNumber": 1,
                "task": {"pod": {"spec": {
                    "restartPolicy": "Never",
                    "containers": [{"name": "framework", "image": "none"}],
                }}},
            }],
        })
    }

    fn is_noticed(&self, probe: &Value) -> bool {
        probe.pointer("/status/state").is_some_and(Value::is_string)
    }
}

/// Builds a trial's Framework from the user's template.
pub(in crate::training_service::kubernetes) fn framework(
    settings: &WorkloadSettings,
    job: &TrialJobSpec,
) -> Value {
    let spec = &settings.spec;
    let mut framework = spec.template.clone().unwrap_or_else(|| json!({}));
    framework["apiVersion"] = Value::from(WorkloadKind::Framework.api_version());
    framework["kind"] = Value::from(WorkloadKind::Framework.object());
    if let Some(object) = framework.as_object_mut() {
        // No status is sent, because the controller would accept it as its own.
        object.shift_remove("status");
    }
    let labels = attempt_labels(&settings.experiment, job);
    let metadata = &mut framework["metadata"];
    if let Some(metadata) = metadata.as_object_mut() {
        // The template may come from `kubectl get -o yaml` and contain the state of another Framework. The cluster
        // would refuse some of it.
        metadata.retain(|name, _| name == "labels" || name == "annotations");
    }
    metadata["name"] = Value::from(workload_name(&settings.experiment, &job.attempt));
    metadata["namespace"] = Value::from(settings.namespace.as_str());
    merge(&mut metadata["labels"], labels.clone());

    framework["spec"]["executionType"] = Value::from("Start");
    set_default(&mut framework["spec"], "retryPolicy", no_retry_policy());
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
            set_default(&mut whole["task"], "retryPolicy", no_retry_policy());
            // Without this limit the controller would wait for a pod on a lost node until the node is removed.
            let gone = pod::grace_period(&whole["task"]["pod"]["spec"]) + NODE_GONE_S;
            set_default(&mut whole["task"], "podGracefulDeletionTimeoutSec", Value::from(gone));
            let pod = &mut whole["task"]["pod"];
            pod::protect_from_controllers(&mut pod["metadata"]);
            merge(&mut pod["metadata"]["labels"], labels.clone());
            pod::complete_pod(&mut pod["spec"], settings, job, role, position);
            pod::set_output_folders(&mut pod["spec"]["containers"][0], settings, job, role);
            whole
        })
        .collect();
    framework["spec"]["taskRoles"] = Value::Array(roles);
    framework
}

/// Derives the outcome of a Framework from its ended pods.
fn outcome_from_pods(
    completion: &TrialCompletion,
    pods: &[Value],
    trial: &[String],
) -> Option<WorkloadOutcome> {
    let is_over = |pod: &&Value| {
        pod.pointer("/status/phase").is_some_and(|phase| phase == "Succeeded" || phase == "Failed")
    };
    let ends = pods.iter().filter(is_over).filter_map(|pod| {
        let mut parts = pod.pointer("/metadata/name")?.as_str()?.rsplitn(3, '-');
        let index = parts.next()?.parse().ok()?;
        EndedPod::read(pod, parts.next()?, index, trial)
    });
    let ends: Vec<EndedPod> = ends.collect();
    let results = ends.iter().map(|end| {
        let (role, index) = (end.role.clone(), end.index);
        let has_failed = end.end.exit_code != Some(0) || end.end.disruption.is_some();
        let result = if has_failed { PodResult::Failed } else { PodResult::Succeeded };
        (ReplicaId { role, index }, result)
    });
    let ReplicaId { role, index } = completion.main.clone();
    let main = DecidingPod { role, index, is_main: true };
    match completion.decide(&results.collect::<Vec<_>>())? {
        CompletionDecision::Failed(replica) => {
            let is_cause = |end: &&EndedPod| end.role == replica.role && end.index == replica.index;
            let cause: Vec<EndedPod> = ends.iter().filter(is_cause).cloned().collect();
            let failed = WorkloadOutcome::failure("one of its pods failed".to_owned());
            Some(several_pods::outcome_with_cause(&failed, &main, &cause, |_| true))
        }
        CompletionDecision::Succeeded => {
            let (succeeded, exit_code) = (true, Some(0));
            let message = "its pods succeeded".to_owned();
            Some(WorkloadOutcome { succeeded, exit_code, ..WorkloadOutcome::failure(message) })
        }
        CompletionDecision::Requested | CompletionDecision::Unexplained => None,
    }
}

/// Returns a policy without retries, since a retry is the manager's decision and gets a new attempt number.
fn no_retry_policy() -> Value {
    json!({"fancyRetryPolicy": false, "maxRetryCount": 0})
}

/// Removes the fields that the controller drops, so that a dry run checks the pod that the controller would create.
fn remove_dropped_fields(pod: &mut Value) {
    let lists = ["initContainers", "containers"];
    let containers = lists.map(|list| pod[list].as_array().map_or(0, Vec::len));
    let containers = lists.iter().zip(containers);
    let containers =
        containers.flat_map(|(list, count)| (0..count).map(move |i| format!("/{list}/{i}")));
    for place in std::iter::once(String::new()).chain(containers.collect::<Vec<_>>()) {
        let context = pod.pointer_mut(&format!("{place}/securityContext"));
        if let Some(context) = context.and_then(Value::as_object_mut) {
            context.shift_remove("seccompProfile");
        }
    }
}

/// Replaces the controller's placeholders, such as `{{FC_TASK_INDEX}}`, with text that is valid in a name.
fn fill_placeholders(value: &mut Value) {
    match value {
        Value::String(text) => {
            while let Some((before, rest)) = text.split_once("{{FC_")
                && let Some((_, after)) = rest.split_once("}}")
            {
                *text = format!("{before}0{after}");
            }
        }
        Value::Array(list) => list.iter_mut().for_each(fill_placeholders),
        Value::Object(members) => members.values_mut().for_each(fill_placeholders),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}
