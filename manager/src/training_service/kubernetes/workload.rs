//! PURE: the kinds of Kubernetes objects that run an attempt of a trial job. A kind defines how its object is built,
//! how the object's status is read, and how it is stopped. Everything else is the same for all kinds.
//!
//! `ARCHITECTURE.md` describes how to add a kind.

use std::fmt::Debug;

use serde_json::{Value, json};
use trial_protocol::{AttemptId, ExperimentId};

use super::client::Resource;
use super::manifest::{
    ATTEMPT_LABEL, WorkloadSettings, example_job, experiment_labels, experiment_object_name,
    workload_name,
};
use super::outcome::{WorkloadOutcome, WorkloadPhase};
use crate::config::kubernetes::{KubernetesSpec, RoleSpec, WorkloadKind};
use crate::training_service::TrialJobSpec;
use crate::training_service::completion::{RoleSuccess, TrialCompletion};

pub mod framework;
pub mod job;
pub mod job_set;
pub mod kubeflow;
mod several_pods;
#[cfg(test)]
mod tests;
pub mod train_job;

/// A kind of object that runs an attempt. Every function is pure.
pub trait Workload: Debug + Send + Sync {
    /// Returns the kind.
    fn kind(&self) -> WorkloadKind;

    /// Returns the resource of the kind, with the names that the API uses.
    fn resource(&self) -> Resource {
        let kind = self.kind();
        let (group, version) = (kind.group(), kind.version());
        Resource { group, version, kind: kind.object(), plural: kind.plural() }
    }

    /// Returns the requests for objects of the kind that the manager needs.
    fn verbs(&self) -> &'static [&'static str] {
        &["get", "list", "watch", "create", "delete", "deletecollection"]
    }

    /// Returns the kinds of [`Self::shared_objects`], each with the requests that the manager needs.
    fn shared_kinds(&self) -> &'static [(Resource, &'static [&'static str])] {
        &[]
    }

    /// Returns the additional objects that all trials of an experiment share. They outlive the trials.
    fn shared_objects(&self, _settings: &WorkloadSettings) -> Vec<(Resource, Value)> {
        Vec::new()
    }

    /// Returns whether the cluster refuses an object with this message because one of [`Self::shared_objects`] is
    /// missing.
    fn is_missing_shared_object(&self, _refusal: &str) -> bool {
        false
    }

    /// Returns the objects that represent a trial in a dry run. If [`Self::shared_objects`] contains the pod, returns
    /// those objects instead.
    fn example_objects(&self, settings: &WorkloadSettings) -> Vec<(Resource, Value)> {
        let trial = example_job(&settings.experiment);
        vec![(self.resource(), self.manifest(settings, &trial))]
    }

    /// Returns further such objects, which need [`Self::shared_probe_objects`].
    fn example_objects_with_probe(&self, _settings: &WorkloadSettings) -> Vec<(Resource, Value)> {
        Vec::new()
    }

    /// Returns the selector for the pods of an attempt that the workload `name` runs.
    fn pod_selector(&self, _name: &str, attempt: &AttemptId) -> String {
        format!("{ATTEMPT_LABEL}={attempt}")
    }

    /// Returns the usual name of the controller that creates the pods.
    fn controller(&self) -> &'static str {
        self.kind().controller()
    }

    /// Returns the missing component in a cluster that does not serve the kind, and the remedy.
    fn installation_advice(&self) -> String;

    /// Returns the object for a job.
    fn manifest(&self, settings: &WorkloadSettings, job: &TrialJobSpec) -> Value;

    /// Returns the first pod of the role at `position` as the controller would create it for a job, and the suffix of
    /// the pod's name. [`Self::example_pods`] sets the metadata that all kinds have in common.
    fn example_pod(
        &self,
        settings: &WorkloadSettings,
        job: &TrialJobSpec,
        role: &RoleSpec,
        position: usize,
    ) -> (Value, String);

    /// Returns one pod of each role as the controller would create it, with its role, for a dry run.
    fn example_pods(&self, settings: &WorkloadSettings) -> Vec<(String, Value)> {
        let trial = example_job(&settings.experiment);
        let workload = workload_name(&settings.experiment, &trial.attempt);
        let roles = settings.spec.roles.iter().enumerate();
        let pods = roles.map(|(position, role)| {
            let (mut pod, suffix) = self.example_pod(settings, &trial, role, position);
            (pod["apiVersion"], pod["kind"]) = (Value::from("v1"), Value::from("Pod"));
            pod["metadata"]["name"] = Value::from(format!("{workload}-{suffix}"));
            pod["metadata"]["namespace"] = Value::from(settings.namespace.as_str());
            (role.name.clone(), pod)
        });
        pods.collect()
    }

    /// Returns the phase of an object.
    fn phase(&self, object: &Value, spec: &KubernetesSpec) -> WorkloadPhase;

    /// Completes an [`WorkloadOutcome`] with [`WorkloadOutcome::needs_pods`] from the observations of the workload's
    /// pods. `trial` has the names of the containers that run the trial. The default serves a kind that states every
    /// reason itself.
    fn explain_outcome(
        &self,
        outcome: WorkloadOutcome,
        _pods: &[Value],
        _trial: &[String],
    ) -> WorkloadOutcome {
        outcome
    }

    /// Derives the outcome of a workload from its pods, for a controller that does not report the end. `trial` has the
    /// names of the containers that run the trial. `None`: the pods are not conclusive.
    fn outcome_from_pods(
        &self,
        spec: &KubernetesSpec,
        pods: &[Value],
        trial: &[String],
    ) -> Option<WorkloadOutcome>;

    /// Returns the rules by which the pods of a trial end it.
    fn completion(&self, spec: &KubernetesSpec) -> TrialCompletion {
        several_pods::completion_rules(spec, |_| RoleSuccess::Never)
    }

    /// Returns true if the controller reports the end of a workload before it has ended the remaining pods.
    fn can_end_before_pods(&self) -> bool {
        false
    }

    /// Returns the place of a pod among those of its workload. A pod that replaces another has the same place. The
    /// place is the pod's name, unless the controller gives each pod a random suffix.
    fn pod_place<'a>(&self, pod: &'a str) -> &'a str {
        pod
    }

    /// Returns the objects whose events explain why a pod of the workload `name` could not be created, each as kind and
    /// name.
    fn pod_owners(&self, _spec: &KubernetesSpec, name: &str) -> Vec<(&'static str, String)> {
        vec![(self.resource().kind, name.to_owned())]
    }

    /// Returns the request that makes the controller end the pods. The default is a deletion, because Kueue would resume
    /// a suspended object, and a suspended object counts as waiting.
    fn stop_request(&self) -> StopRequest {
        StopRequest::Delete
    }

    /// Returns the pod whose metrics are the trial's, among the pods of the workload `name`.
    fn reporting_pod(&self, spec: &KubernetesSpec, name: &str, pods: &[String]) -> Option<String>;

    /// Returns the name of the trial's container if the template gives none.
    fn container_name(&self) -> &'static str;

    /// Returns the specification of an object with this name that starts no pod.
    fn probe_spec(&self, name: &str) -> Value;

    /// Returns an object that starts no pod, for checking whether the controller notices it.
    fn probe_object(&self, experiment: &ExperimentId, namespace: &str) -> Value {
        let (kind, name) = (self.kind(), probe_name(experiment));
        json!({
            "apiVersion": kind.api_version(),
            "kind": kind.object(),
            "metadata": {"name": name, "namespace": namespace, "labels": experiment_labels(experiment)},
            "spec": self.probe_spec(&name),
        })
    }

    /// Returns the additional objects that the probe needs.
    fn shared_probe_objects(
        &self,
        _experiment: &ExperimentId,
        _namespace: &str,
    ) -> Vec<(Resource, Value)> {
        Vec::new()
    }

    /// Returns whether the controller has noticed the probe. By default, any status shows it.
    fn is_noticed(&self, probe: &Value) -> bool {
        let status = probe.get("status").and_then(Value::as_object);
        status.is_some_and(|status| !status.is_empty())
    }

    /// Returns a question about the probable reasons why the controller does not notice the probe.
    fn unnoticed_hint(&self) -> &'static str {
        "does its pod run, and does it watch that namespace?"
    }
}

/// Returns the implementation of a kind.
pub fn workload(kind: WorkloadKind) -> &'static dyn Workload {
    match kind {
        WorkloadKind::Framework => &framework::Framework,
        WorkloadKind::TrainJob => &train_job::TrainJob,
        WorkloadKind::JobSet => &job_set::JobSet,
        WorkloadKind::Job => &job::Job,
        WorkloadKind::TfJob => &kubeflow::TF_JOB,
        WorkloadKind::PyTorchJob => &kubeflow::PYTORCH_JOB,
        WorkloadKind::XgBoostJob => &kubeflow::XGBOOST_JOB,
        WorkloadKind::PaddleJob => &kubeflow::PADDLE_JOB,
    }
}

/// Returns the name of an experiment's probe, and of the objects that the probe needs.
fn probe_name(experiment: &ExperimentId) -> String {
    format!("{}probe", experiment_object_name(experiment))
}

/// Returns the labels that put a workload into a queue of Kueue, if a queue is configured.
fn queue_labels(spec: &KubernetesSpec) -> impl Iterator<Item = (String, Value)> {
    let queue = [(QUEUE_LABEL, &spec.queue), (PRIORITY_LABEL, &spec.priority_class)];
    queue
        .into_iter()
        .filter_map(|(label, name)| Some((label.to_owned(), Value::from(name.as_deref()?))))
}

/// The label that names a workload's queue.
pub(super) const QUEUE_LABEL: &str = "kueue.x-k8s.io/queue-name";
/// The label that names the workload's priority class.
pub(super) const PRIORITY_LABEL: &str = "kueue.x-k8s.io/priority-class";

/// A way to end a workload's pods.
#[derive(Debug, Clone, PartialEq)]
pub enum StopRequest {
    /// A merge patch. The object stays and reports the end.
    Patch(Value),
    /// A deletion of the object. The workload has ended when its last pod is gone.
    Delete,
}
