//! PURE: trials as `TrainJob`s of Kubeflow Trainer (`trainer.kubeflow.org/v1alpha1`). The experiment's own
//! `TrainingRuntime` holds the pod of all its trials. A `TrainJob` adds the command and the variables of one attempt.
//!
//! The Trainer creates a `JobSet` of the same name, whose only role is called `node`, and copies its conditions. The
//! labels of a `TrainJob` do not reach its pods, which are found by the name of their `JobSet`.
//!
//! Source: Trainer 2.3, and recordings of its behaviour.

use serde_json::{Value, json};
use trial_protocol::{AttemptId, Class, ExperimentId};

use super::job::{job_spec, pod_place, pod_template, workload_metadata};
use super::job_set::{self, RolePods, StatusNames};
use super::{Workload, probe_name};
use crate::config::kubernetes::{KubernetesSpec, RoleSpec, WorkloadKind};
use crate::training_service::TrialJobSpec;
use crate::training_service::kubernetes::client::Resource;
use crate::training_service::kubernetes::disruption::Disruption;
use crate::training_service::kubernetes::manifest::{
    WorkloadSettings, example_job, experiment_labels, experiment_object_name, pod, workload_name,
};
use crate::training_service::kubernetes::outcome::{DecidingPod, WorkloadOutcome, WorkloadPhase};
use crate::training_service::kubernetes::status_fields::{shortened_field, true_condition};

const API_GROUP: &str = WorkloadKind::TrainJob.group();
const TRAINING_RUNTIMES: Resource = Resource {
    group: API_GROUP,
    version: WorkloadKind::TrainJob.version(),
    kind: "TrainingRuntime",
    plural: "trainingruntimes",
};

/// The name of the role that trains, and of the container in it.
const NODE_NAME: &str = "node";
/// The label of the role that a `TrainJob` completes.
const STEP_LABEL: &str = "trainer.kubeflow.org/trainjob-ancestor-step";
/// The pod label with the name of its `JobSet`, which equals the `TrainJob`'s name.
const JOB_SET_LABEL: &str = "jobset.sigs.k8s.io/jobset-name";

const STATUS_NAMES: StatusNames = StatusNames { succeeded: "Complete", jobs: "jobsStatus" };

/// Runs trials as `TrainJob`s.
#[derive(Debug)]
pub struct TrainJob;

impl Workload for TrainJob {
    fn kind(&self) -> WorkloadKind {
        WorkloadKind::TrainJob
    }

    fn shared_kinds(&self) -> &'static [(Resource, &'static [&'static str])] {
        &[(TRAINING_RUNTIMES, &["list", "create", "patch", "delete", "deletecollection"])]
    }

    fn shared_objects(&self, settings: &WorkloadSettings) -> Vec<(Resource, Value)> {
        vec![(TRAINING_RUNTIMES, runtime(settings))]
    }

    fn is_missing_shared_object(&self, refusal: &str) -> bool {
        // Either webhook may answer first. Kueue's also answers for TrainJobs that name no queue.
        refusal.contains("specified trainingRuntime must be created before the TrainJob")
            || refusal.contains("\"vtrainjob.kb.io\"") && refusal.contains("not found")
    }

    fn example_objects(&self, settings: &WorkloadSettings) -> Vec<(Resource, Value)> {
        // The cluster refuses a TrainJob without its runtime, and the pod is part of the runtime.
        self.shared_objects(settings)
    }

    fn example_objects_with_probe(&self, settings: &WorkloadSettings) -> Vec<(Resource, Value)> {
        let mut trial = self.manifest(settings, &example_job(&settings.experiment));
        trial["spec"]["runtimeRef"]["name"] = Value::from(probe_name(&settings.experiment));
        vec![(self.resource(), trial)]
    }

    fn pod_selector(&self, name: &str, _attempt: &AttemptId) -> String {
        format!("{JOB_SET_LABEL}={name}")
    }

    fn installation_advice(&self) -> String {
        "Kubeflow Trainer (version 2) is not installed there; `kubectl apply --server-side -k \
         \"github.com/kubeflow/trainer.git/manifests/overlays/manager?ref=v2.3.0\"` installs it together with JobSet, and \
         `platform: kubernetes` needs neither"
            .to_owned()
    }

    fn manifest(&self, settings: &WorkloadSettings, job: &TrialJobSpec) -> Value {
        let Some(role) = settings.spec.roles.first() else { return Value::Null };
        let mut pod = pod_template(settings, job, role, 0);
        let container = &mut pod["spec"]["containers"][0];
        let name = workload_name(&settings.experiment, &job.attempt);
        pod::take_token_from_variable(container, &name);
        let mut body = json!({
            "runtimeRef": {
                "apiGroup": API_GROUP,
                "kind": TRAINING_RUNTIMES.kind,
                "name": experiment_object_name(&settings.experiment),
            },
            "trainer": {
                "numNodes": role.task_number,
                "command": container["command"],
                "env": container["env"],
            },
        });
        if settings.spec.queue.is_some() {
            // Kueue's webhook would do the same. Without the webhook, the trial must not bypass the queue.
            body["suspend"] = Value::Bool(true);
        }
        json!({
            "apiVersion": self.kind().api_version(),
            "kind": self.kind().object(),
            "metadata": workload_metadata(settings, job),
            "spec": body,
        })
    }

    fn example_pod(
        &self,
        settings: &WorkloadSettings,
        job: &TrialJobSpec,
        role: &RoleSpec,
        position: usize,
    ) -> (Value, String) {
        let mut template = pod_template(settings, job, role, position);
        template["spec"]["containers"][0]["name"] = Value::from(NODE_NAME);
        (template, format!("{NODE_NAME}-0-0"))
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
        job_set::explain_failure(outcome, pods, trial)
    }

    fn outcome_from_pods(
        &self,
        spec: &KubernetesSpec,
        pods: &[Value],
        trial: &[String],
    ) -> Option<WorkloadOutcome> {
        let count = spec.roles.first()?.task_number;
        let role = RolePods { name: NODE_NAME, pods: count, wanted: Some(count) };
        job_set::outcome_from_pods(&[role], main_pod(spec), pods, trial)
    }

    fn pod_owners(&self, _spec: &KubernetesSpec, name: &str) -> Vec<(&'static str, String)> {
        let name = name.to_owned();
        vec![("Job", job_name(&name)), ("JobSet", name.clone()), (self.kind().object(), name)]
    }

    fn pod_place<'a>(&self, pod: &'a str) -> &'a str {
        pod_place(pod)
    }

    fn reporting_pod(&self, spec: &KubernetesSpec, name: &str, pods: &[String]) -> Option<String> {
        let (_, index) = &spec.metrics_from;
        let prefix = format!("{}-{index}-", job_name(name));
        pods.iter().find(|pod| pod.starts_with(&prefix)).cloned()
    }

    fn container_name(&self) -> &'static str {
        NODE_NAME
    }

    fn probe_spec(&self, name: &str) -> Value {
        json!({
            // A suspended TrainJob creates no pod, and the controller reports the suspension.
            "suspend": true,
            "runtimeRef": {"apiGroup": API_GROUP, "kind": TRAINING_RUNTIMES.kind, "name": name},
            "trainer": {"numNodes": 1},
        })
    }

    fn shared_probe_objects(
        &self,
        experiment: &ExperimentId,
        namespace: &str,
    ) -> Vec<(Resource, Value)> {
        let pod = json!({"spec": {
            "restartPolicy": "Never",
            // A queue that also admits TrainJobs without a queue label may resume this one. Its pod is then never
            // scheduled.
            "schedulingGates": [{"name": "trialkeeper/probe"}],
            "containers": [{"name": NODE_NAME, "image": "none"}],
        }});
        let name = probe_name(experiment);
        let metadata =
            json!({"name": name, "namespace": namespace, "labels": experiment_labels(experiment)});
        vec![(TRAINING_RUNTIMES, runtime_with_job(&metadata, &job_spec(&pod, 1)))]
    }

    fn is_noticed(&self, probe: &Value) -> bool {
        // `jobsStatus` also shows that the controller of the JobSet has noticed the probe.
        let jobs = probe.pointer("/status/jobsStatus").and_then(Value::as_array);
        jobs.is_some_and(|jobs| !jobs.is_empty())
    }

    fn unnoticed_hint(&self) -> &'static str {
        // Trainer 2.0 never fills in `jobsStatus` (kubeflow/trainer, pull request 2802).
        "do its pod and that of the JobSet controller run, does it watch that namespace, and is its version 2.1 or newer?"
    }
}

/// Returns the name of the Job that creates the pods.
fn job_name(name: &str) -> String {
    format!("{name}-{NODE_NAME}-0")
}

/// Returns the runtime of an experiment: the pod of every trial, without the parts of a single attempt.
fn runtime(settings: &WorkloadSettings) -> Value {
    let Some(role) = settings.spec.roles.first() else { return Value::Null };
    let mut template = pod_template(settings, &example_job(&settings.experiment), role, 0);
    let own = experiment_labels(&settings.experiment);
    if let Some(known) = template["metadata"]["labels"].as_object_mut() {
        known.retain(|name, _| !name.starts_with("trialkeeper/"));
        known.extend(own.clone());
    }
    let container = &mut template["spec"]["containers"][0];
    container["name"] = Value::from(NODE_NAME);
    if let Some(container) = container.as_object_mut() {
        // Each TrainJob has its own command, and its variables would not precede the runtime's.
        container.shift_remove("command");
        container.shift_remove("env");
    }
    let metadata = json!({
        "name": experiment_object_name(&settings.experiment), "namespace": settings.namespace, "labels": own,
    });
    runtime_with_job(&metadata, &job_spec(&template, role.task_number))
}

/// Returns a runtime with one role, for which the Trainer sets the variables of `PyTorch`'s launcher.
fn runtime_with_job(metadata: &Value, job: &Value) -> Value {
    let role = json!({
        "name": NODE_NAME,
        "replicas": 1,
        "template": {"metadata": {"labels": {STEP_LABEL: "trainer"}}, "spec": job},
    });
    json!({
        "apiVersion": WorkloadKind::TrainJob.api_version(),
        "kind": TRAINING_RUNTIMES.kind,
        "metadata": metadata,
        "spec": {
            "mlPolicy": {"numNodes": 1, "torch": {}},
            // A retry is the manager's decision, and gets a new attempt number.
            "template": {"spec": {"failurePolicy": {"maxRestarts": 0}, "replicatedJobs": [role]}},
        },
    })
}

/// Returns the phase of a `TrainJob`.
fn phase(object: &Value, spec: &KubernetesSpec) -> WorkloadPhase {
    let failed = object.get("status").and_then(|status| true_condition(status, "Failed"));
    let message = failed.map(|failed| shortened_field(failed, "message")).unwrap_or_default();
    match failed.map(|failed| shortened_field(failed, "reason")).as_deref() {
        Some("TrainingRuntimeNotSupported") => {
            let message = format!("Kubeflow Trainer rejects the TrainJob: {message}");
            let class = Some(Class::Permanent);
            WorkloadPhase::Completed(WorkloadOutcome { class, ..WorkloadOutcome::failure(message) })
        }
        Some("DeadlineExceeded") => {
            let why = "its TrainJob ran longer than its activeDeadlineSeconds".to_owned();
            let evidence = format!("DeadlineExceeded: {message}");
            let disruption = Some(Disruption { evidence, why: why.clone() });
            // A retry would take equally long.
            let class = Some(Class::Permanent);
            WorkloadPhase::Completed(WorkloadOutcome {
                class,
                disruption,
                ..WorkloadOutcome::failure(why)
            })
        }
        _ => job_set::phase_of(object, &STATUS_NAMES, 1, main_pod(spec)),
    }
}

/// Returns the pod whose metrics are the trial's.
fn main_pod(spec: &KubernetesSpec) -> DecidingPod {
    let (_, index) = spec.metrics_from;
    DecidingPod { role: NODE_NAME.to_owned(), index, is_main: true }
}

#[cfg(test)]
mod tests;
