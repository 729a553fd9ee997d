//! PURE: trials as jobs of Kubeflow's training operator (`kubeflow.org/v1`). `TFJob`, `PyTorchJob`, `XGBoostJob` and
//! `PaddleJob` differ only in names.
//!
//! Source: training-operator 1.9.4, and recordings of its behaviour.

use serde_json::{Map, Value, json};

use super::several_pods::{self, EndedPod};
use super::{Workload, queue_labels};
use crate::config::kubernetes::{KubernetesSpec, RoleSpec, WorkloadKind};
use crate::training_service::TrialJobSpec;
use crate::training_service::completion::{RoleSuccess, TrialCompletion};
use crate::training_service::kubernetes::manifest::{
    WorkloadSettings, attempt_labels, merge, pod, workload_name,
};
use crate::training_service::kubernetes::outcome::{DecidingPod, WorkloadOutcome, WorkloadPhase};
use crate::training_service::kubernetes::status_fields::{
    find_condition, shortened_field, true_condition,
};

/// A kind of the training operator, which runs trials as its objects.
#[derive(Debug)]
pub struct TrainingJob {
    kind: WorkloadKind,
    /// The field of the specification that holds the roles.
    roles_field: &'static str,
    /// The name that the operator requires for a role's container.
    container_name: &'static str,
}

/// Runs trials as `TFJob`s.
pub const TF_JOB: TrainingJob = TrainingJob {
    kind: WorkloadKind::TfJob,
    roles_field: "tfReplicaSpecs",
    container_name: "tensorflow",
};
/// Runs trials as `PyTorchJob`s.
pub const PYTORCH_JOB: TrainingJob = TrainingJob {
    kind: WorkloadKind::PyTorchJob,
    roles_field: "pytorchReplicaSpecs",
    container_name: "pytorch",
};
/// Runs trials as `XGBoostJob`s.
pub const XGBOOST_JOB: TrainingJob = TrainingJob {
    kind: WorkloadKind::XgBoostJob,
    roles_field: "xgbReplicaSpecs",
    container_name: "xgboost",
};
/// Runs trials as `PaddleJob`s.
pub const PADDLE_JOB: TrainingJob = TrainingJob {
    kind: WorkloadKind::PaddleJob,
    roles_field: "paddleReplicaSpecs",
    container_name: "paddle",
};

/// The roles of an experiment file, and the operator's spelling of each.
const ROLE_SPELLINGS: [(&str, &str); 3] =
    [("master", "Master"), ("worker", "Worker"), ("ps", "PS")];

/// The field of a pod with its index in its role.
const INDEX_LABEL: &str = "metadata.labels['training.kubeflow.org/replica-index']";

impl Workload for TrainingJob {
    fn kind(&self) -> WorkloadKind {
        self.kind
    }

    fn verbs(&self) -> &'static [&'static str] {
        // The role that the operator installs does not include `deletecollection`.
        &["get", "list", "watch", "create", "delete"]
    }

    fn installation_advice(&self) -> String {
        format!(
            "Kubeflow's training operator (version 1) is not installed there, or not with {}s; install it with `kubectl \
             apply --server-side -k \"github.com/kubeflow/training-operator.git/manifests/overlays/standalone?ref=v1.9.4\"`, \
             or use `platform: kubernetes`, which needs no operator",
            self.kind.object()
        )
    }

    fn manifest(&self, settings: &WorkloadSettings, job: &TrialJobSpec) -> Value {
        let spec = &settings.spec;
        let mut labels = attempt_labels(&settings.experiment, job);
        labels.extend(queue_labels(spec));
        let roles = spec.roles.iter().enumerate().map(|(position, role)| {
            let replica = json!({
                "replicas": role.task_number,
                // A retry is the manager's decision, and gets a new attempt number.
                "restartPolicy": "Never",
                "template": pod_template(settings, job, role, position),
            });
            (operator_spelling(&role.name), replica)
        });
        let roles: Map<String, Value> = roles.collect();
        // Parameter servers end with the trial, and ended pods stay readable.
        let mut policy = json!({"cleanPodPolicy": "Running"});
        if spec.queue.is_some() {
            // Kueue's webhook would do the same. Without the webhook, the trial must not bypass the queue.
            policy["suspend"] = Value::Bool(true);
        }
        json!({
            "apiVersion": self.kind.api_version(),
            "kind": self.kind.object(),
            "metadata": {
                "name": workload_name(&settings.experiment, &job.attempt),
                "namespace": settings.namespace,
                "labels": labels,
            },
            "spec": {"runPolicy": policy, self.roles_field: roles},
        })
    }

    fn example_pod(
        &self,
        settings: &WorkloadSettings,
        job: &TrialJobSpec,
        role: &RoleSpec,
        position: usize,
    ) -> (Value, String) {
        let mut pod = pod_template(settings, job, role, position);
        pod["spec"]["restartPolicy"] = Value::from("Never");
        if self.kind == WorkloadKind::PyTorchJob && role.name == "worker" {
            pod::append(&mut pod["spec"], "initContainers", [init_pytorch_container()]);
        }
        (pod, format!("{}-0", role.name))
    }

    fn phase(&self, object: &Value, spec: &KubernetesSpec) -> WorkloadPhase {
        phase(object, spec)
    }

    fn explain_outcome(
        &self,
        outcome: WorkloadOutcome,
        pods: &[Value],
        trial: &[String],
    ) -> WorkloadOutcome {
        explain_failure(outcome, pods, trial)
    }

    fn outcome_from_pods(
        &self,
        spec: &KubernetesSpec,
        pods: &[Value],
        trial: &[String],
    ) -> Option<WorkloadOutcome> {
        let deciders = deciding_pods(self.kind, spec);
        outcome_from_pods(spec, &deciders, pods, trial)
    }

    fn completion(&self, spec: &KubernetesSpec) -> TrialCompletion {
        let deciding = deciding_role(spec);
        several_pods::completion_rules(spec, |role| match deciding {
            Some(deciding) if deciding.name == role.name && self.kind == WorkloadKind::TfJob => {
                RoleSuccess::First
            }
            Some(deciding) if deciding.name == role.name => RoleSuccess::Count(role.task_number),
            Some(_) | None => RoleSuccess::Never,
        })
    }

    fn can_end_before_pods(&self) -> bool {
        true
    }

    fn reporting_pod(&self, spec: &KubernetesSpec, name: &str, _pods: &[String]) -> Option<String> {
        let (role, index) = &spec.metrics_from;
        Some(format!("{name}-{role}-{index}"))
    }

    fn container_name(&self) -> &'static str {
        self.container_name
    }

    fn probe_spec(&self, _name: &str) -> Value {
        let pod = json!({"spec": {
            // A queue that also admits jobs without a queue label may resume this one. Its pod is then never scheduled.
            "schedulingGates": [{"name": "trialkeeper/probe"}],
            "containers": [{"name": self.container_name, "image": "none"}],
        }});
        let replica = json!({"replicas": 1, "restartPolicy": "Never", "template": pod});
        // A job may consist of this role alone.
        let role = if self.kind == WorkloadKind::TfJob { "Worker" } else { "Master" };
        // A suspended job creates no pod, and the operator reports the suspension.
        json!({"runPolicy": {"suspend": true}, self.roles_field: {role: replica}})
    }

    fn is_noticed(&self, probe: &Value) -> bool {
        let status = probe.get("status");
        status.is_some_and(|status| {
            ["Created", "Suspended"].iter().any(|kind| find_condition(status, kind).is_some())
        })
    }
}

/// Returns the container that the operator adds to a `PyTorchJob`'s workers by default. It waits for the master's name
/// to resolve. A Pod Security profile or a registry may refuse it.
fn init_pytorch_container() -> Value {
    json!({
        "name": "init-pytorch",
        "image": "alpine:3.10",
        "imagePullPolicy": "IfNotPresent",
        "command": ["sh", "-c", "nslookup"],
        "resources": {
            "requests": {"cpu": "50m", "memory": "10Mi"},
            "limits": {"cpu": "100m", "memory": "20Mi"},
        },
    })
}

/// Returns the operator's spelling of a role.
fn operator_spelling(role: &str) -> String {
    let known = ROLE_SPELLINGS.iter().find(|(name, _)| *name == role);
    known.map_or(role, |(_, spelled)| spelled).to_owned()
}

fn pod_template(
    settings: &WorkloadSettings,
    job: &TrialJobSpec,
    role: &RoleSpec,
    position: usize,
) -> Value {
    let mut template = json!({"metadata": {}, "spec": {}});
    pod::protect_from_controllers(&mut template["metadata"]);
    merge(&mut template["metadata"]["labels"], attempt_labels(&settings.experiment, job));
    pod::complete_pod(&mut template["spec"], settings, job, role, position);
    if let Some(spec) = template["spec"].as_object_mut() {
        // The role has its own restart policy, and the operator warns of a second one in the pod.
        spec.shift_remove("restartPolicy");
    }
    let container = &mut template["spec"]["containers"][0];
    pod::set_variable(container, "TRIALKEEPER_EXIT_CODE_MAP", "kubernetes");
    pod::set_variable(container, "TRIALKEEPER_ROLE", &role.name);
    pod::set_variable_from_field(container, "TRIALKEEPER_ROLE_INDEX", INDEX_LABEL);
    pod::set_output_folders(container, settings, job, role);
    // A pod that disappears while the operator is down is recreated under the same name, as is a pod of a job that its
    // queue evicted.
    pod::set_variable_from_field(container, "TRIALKEEPER_INCARNATION", "metadata.uid");
    template
}

/// Returns the phase of a job. Conditions are found by their type, because the operator moves changed conditions to the
/// end of the list and keeps some past ones as "False".
fn phase(object: &Value, spec: &KubernetesSpec) -> WorkloadPhase {
    let suspended = object.pointer("/spec/runPolicy/suspend") == Some(&Value::Bool(true));
    let status = object.get("status").filter(|status| status.get("conditions").is_some());
    let Some(status) = status else {
        return if suspended { WorkloadPhase::Suspended } else { WorkloadPhase::Unseen };
    };
    let holds = |kind: &str| true_condition(status, kind);
    let (role, index) = &spec.metrics_from;
    let main = DecidingPod { role: role.clone(), index: *index, is_main: true };
    match (holds("Succeeded"), holds("Failed")) {
        (succeeded, Some(failed)) => {
            // If both conditions hold, one role succeeded as another failed, and the deciding pod determines the
            // outcome.
            let message = shortened_field(failed, "message");
            let (succeeded, decided_by) = (succeeded.is_some(), Some(main));
            return WorkloadPhase::Completed(WorkloadOutcome {
                succeeded,
                decided_by,
                needs_pods: true,
                ..WorkloadOutcome::failure(message)
            });
        }
        (Some(_), None) => {
            let (succeeded, exit_code) = (true, Some(0));
            let message = "its pods succeeded".to_owned();
            return WorkloadPhase::Completed(WorkloadOutcome {
                succeeded,
                exit_code,
                ..WorkloadOutcome::failure(message)
            });
        }
        (None, None) => {}
    }
    if suspended || holds("Suspended").is_some() {
        return WorkloadPhase::Suspended;
    }
    let counts = status.get("replicaStatuses").and_then(Value::as_object);
    let count = |of: &str| {
        let roles = counts.into_iter().flat_map(Map::values);
        roles.filter_map(|role| role.get(of)?.as_u64()).fold(0, u64::saturating_add)
    };
    let started = ["active", "succeeded", "failed"].map(count);
    let started = started.into_iter().fold(0, u64::saturating_add);
    let wanted = spec.roles.iter().map(|role| role.task_number).sum::<u64>();
    match (count("active"), holds("Running").is_some()) {
        (1.., _) if started >= wanted => WorkloadPhase::Running,
        (1.., _) => WorkloadPhase::Starting,
        // All pods that ran have ended, and the operator has not reported it yet.
        (0, true) if started > 0 => WorkloadPhase::Running,
        (0, _) => WorkloadPhase::Waiting,
    }
}

/// Completes a failure with the pod that decided it.
fn explain_failure(outcome: WorkloadOutcome, pods: &[Value], trial: &[String]) -> WorkloadOutcome {
    let Some(main) = outcome.decided_by.clone() else {
        return WorkloadOutcome { needs_pods: false, ..outcome };
    };
    let ends: Vec<EndedPod> = pods.iter().filter_map(|pod| read_ended_pod(pod, trial)).collect();
    // Both conditions hold.
    if outcome.succeeded {
        let own = ends.iter().find(|end| end.is_pod(&main));
        if own.is_none_or(|end| end.end.exit_code == Some(0)) {
            return WorkloadOutcome { exit_code: Some(0), needs_pods: false, ..outcome };
        }
    }
    let named = |role: &str| outcome.message.to_lowercase().contains(&format!(" {role} replica"));
    several_pods::outcome_with_cause(&outcome, &main, &ends, |end| named(&end.role))
}

/// Returns the pods whose success makes a job succeed: the master, or else the first worker of a `TFJob` and all
/// workers of another kind. Each pod is a role and an index.
fn deciding_pods(kind: WorkloadKind, spec: &KubernetesSpec) -> Vec<(&str, u64)> {
    let Some(role) = deciding_role(spec) else { return Vec::new() };
    let count = if kind == WorkloadKind::TfJob { 1 } else { role.task_number };
    (0..count).map(|index| (role.name.as_str(), index)).collect()
}

/// Returns the role whose success makes a job succeed.
fn deciding_role(spec: &KubernetesSpec) -> Option<&RoleSpec> {
    let role = |name: &str| spec.roles.iter().find(|role| role.name == name);
    role("master").or_else(|| role("worker"))
}

/// Derives the outcome of a job from its ended pods, for pods that the operator does not see end. `None`: the outcome
/// is undecided.
fn outcome_from_pods(
    spec: &KubernetesSpec,
    deciders: &[(&str, u64)],
    pods: &[Value],
    trial: &[String],
) -> Option<WorkloadOutcome> {
    let is_over = |pod: &&Value| {
        pod.pointer("/status/phase").is_some_and(|phase| phase == "Succeeded" || phase == "Failed")
    };
    let ends: Vec<EndedPod> =
        pods.iter().filter(is_over).filter_map(|pod| read_ended_pod(pod, trial)).collect();
    if ends.iter().any(|end| end.end.exit_code != Some(0)) {
        let (role, index) = spec.metrics_from.clone();
        let decided_by = Some(DecidingPod { role, index, is_main: true });
        let failed = WorkloadOutcome::failure("one of its pods failed".to_owned());
        return Some(explain_failure(
            WorkloadOutcome { decided_by, needs_pods: true, ..failed },
            pods,
            trial,
        ));
    }
    let has_succeeded = |(role, index): &(&str, u64)| {
        ends.iter().any(|end| end.role == *role && end.index == *index)
    };
    let message = "its pods succeeded".to_owned();
    let (succeeded, exit_code) = (true, Some(0));
    let is_done = !deciders.is_empty() && deciders.iter().all(has_succeeded);
    is_done.then(|| WorkloadOutcome { succeeded, exit_code, ..WorkloadOutcome::failure(message) })
}

fn read_ended_pod(pod: &Value, trial: &[String]) -> Option<EndedPod> {
    let name = pod.pointer("/metadata/name")?.as_str()?;
    let mut parts = name.rsplitn(3, '-');
    let index = parts.next()?.parse().ok()?;
    EndedPod::read(pod, parts.next()?, index, trial)
}

#[cfg(test)]
mod tests;
