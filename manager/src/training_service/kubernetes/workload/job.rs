//! PURE: trials as Jobs of `batch/v1`, which every cluster has. Kueue queues them if `queue` is set.
//!
//! A Job reports that it failed, but rarely the reason. The failure policy makes it name the pod and the exit code. The
//! rest is read from its pods, which stay until the Job is deleted.
//!
//! Source: Kubernetes 1.36, `pkg/controller/job`, and recordings of its behaviour.

use serde_json::{Value, json};
use trial_protocol::Class;

use super::{Workload, queue_labels};
use crate::config::kubernetes::{KubernetesSpec, RoleSpec, WorkloadKind};
use crate::training_service::TrialJobSpec;
use crate::training_service::kubernetes::disruption::{self, Disruption};
use crate::training_service::kubernetes::manifest::{
    WorkloadSettings, attempt_labels, merge, pod, workload_name,
};
use crate::training_service::kubernetes::outcome::{WorkloadOutcome, WorkloadPhase};
use crate::training_service::kubernetes::pod_end;
use crate::training_service::kubernetes::status_fields::{shortened_field, true_condition};
use crate::util::excerpt::shortened;

/// The name of the trial's container.
pub(super) const CONTAINER_NAME: &str = "trial";
/// The annotation with a pod's index in an Indexed Job.
const INDEX_ANNOTATION: &str = "metadata.annotations['batch.kubernetes.io/job-completion-index']";

/// Runs trials as Jobs.
#[derive(Debug)]
pub struct Job;

impl Workload for Job {
    fn kind(&self) -> WorkloadKind {
        WorkloadKind::Job
    }

    fn installation_advice(&self) -> String {
        "it does not serve batch/v1, as every Kubernetes cluster since 1.21 does: is the address that of an API server?"
            .to_owned()
    }

    fn manifest(&self, settings: &WorkloadSettings, job: &TrialJobSpec) -> Value {
        job_manifest(settings, job)
    }

    fn example_pod(
        &self,
        settings: &WorkloadSettings,
        job: &TrialJobSpec,
        role: &RoleSpec,
        position: usize,
    ) -> (Value, String) {
        (pod_template(settings, job, role, position), "0".to_owned())
    }

    fn phase(&self, object: &Value, _spec: &KubernetesSpec) -> WorkloadPhase {
        phase(object)
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
        let wanted = spec.roles.first()?.task_number;
        outcome_from_pods(wanted, pods, trial)
    }

    fn pod_place<'a>(&self, pod: &'a str) -> &'a str {
        pod_place(pod)
    }

    fn reporting_pod(&self, spec: &KubernetesSpec, name: &str, pods: &[String]) -> Option<String> {
        let (_, index) = &spec.metrics_from;
        let indexed = format!("{name}-{index}-");
        let prefix = if is_indexed(spec) { indexed } else { format!("{name}-") };
        pods.iter().find(|pod| pod.starts_with(&prefix)).cloned()
    }

    fn container_name(&self) -> &'static str {
        CONTAINER_NAME
    }

    fn probe_spec(&self, _name: &str) -> Value {
        json!({
            // A suspended Job creates no pod, and the controller reports the suspension. A queue that also admits Jobs
            // without a queue label may resume it, but `parallelism` is 0.
            "suspend": true,
            "parallelism": 0,
            "backoffLimit": 0,
            "template": {"spec": {
                "restartPolicy": "Never",
                "containers": [{"name": CONTAINER_NAME, "image": "none"}],
            }},
        })
    }
}

/// Returns the place of a pod of a Job: its name without the random suffix.
pub(super) fn pod_place(pod: &str) -> &str {
    pod.rsplit_once('-').map_or(pod, |(place, _)| place)
}

/// Returns true if the pods have an index, as all do except the pod of a Job that has only one.
fn is_indexed(spec: &KubernetesSpec) -> bool {
    spec.workload != WorkloadKind::Job || spec.roles.iter().any(|role| role.task_number > 1)
}

fn job_manifest(settings: &WorkloadSettings, job: &TrialJobSpec) -> Value {
    let spec = &settings.spec;
    let metadata = workload_metadata(settings, job);

    let Some(role) = spec.roles.first() else { return Value::Null };
    let mut body = job_spec(&pod_template(settings, job, role, 0), role.task_number);
    if is_indexed(spec) {
        body["completionMode"] = Value::from("Indexed");
    }
    if spec.queue.is_some() {
        // Kueue's webhook would do the same. Without the webhook, the Job must not bypass the queue.
        body["suspend"] = Value::Bool(true);
    }
    let kind = WorkloadKind::Job;
    json!({
        "apiVersion": kind.api_version(), "kind": kind.object(), "metadata": metadata, "spec": body,
    })
}

/// Returns the metadata of the object of an attempt: its name, its labels, those of its queue, and the user's own.
pub(super) fn workload_metadata(settings: &WorkloadSettings, job: &TrialJobSpec) -> Value {
    let spec = &settings.spec;
    let mut metadata =
        spec.template.as_ref().map_or(Value::Null, |template| template["metadata"].clone());
    if let Some(members) = metadata.as_object_mut() {
        // The other fields belong to the state of another object.
        members.retain(|name, _| name == "labels" || name == "annotations");
    } else {
        metadata = json!({});
    }
    metadata["name"] = Value::from(workload_name(&settings.experiment, &job.attempt));
    metadata["namespace"] = Value::from(settings.namespace.as_str());
    merge(&mut metadata["labels"], attempt_labels(&settings.experiment, job));
    merge(&mut metadata["labels"], queue_labels(spec).collect());
    metadata
}

/// Returns the specification of a Job with this number of identical pods, which fails with its first failed pod.
pub(super) fn job_spec(template: &Value, pods: u64) -> Value {
    let container = template.pointer("/spec/containers/0/name").cloned().unwrap_or_default();
    json!({
        // A retry is the manager's decision, and gets a new attempt number.
        "backoffLimit": 0,
        "parallelism": pods,
        "completions": pods,
        // The pod of a suspended Job may end by a signal (143, 137), which is no failure of the trial. `backoffLimit`
        // handles the other cases.
        "podFailurePolicy": {"rules": [
            {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
            {"action": "FailJob", "onExitCodes": {
                "containerName": container, "operator": "NotIn", "values": [0, 137, 143],
            }},
        ]},
        "template": template,
    })
}

/// The labels that Kubernetes generates for the pods of a Job. The template of an exported Job contains those of that
/// Job, which the API server refuses for another.
const GENERATED_LABELS: [&str; 4] = [
    "batch.kubernetes.io/controller-uid",
    "batch.kubernetes.io/job-name",
    "controller-uid",
    "job-name",
];

/// Returns the pod template of the role at `position` among the trial's roles.
pub(super) fn pod_template(
    settings: &WorkloadSettings,
    job: &TrialJobSpec,
    role: &RoleSpec,
    position: usize,
) -> Value {
    let spec = &settings.spec;
    let own = spec.template.as_ref();
    let own = own.and_then(|template| {
        template.pointer(&format!("/spec/taskRoles/{position}/task/pod")).cloned()
    });
    let mut template = own.unwrap_or_else(|| json!({}));
    if let Some(labels) = template["metadata"]["labels"].as_object_mut() {
        labels.retain(|name, _| !GENERATED_LABELS.contains(&name.as_str()));
    }
    pod::protect_from_controllers(&mut template["metadata"]);
    merge(&mut template["metadata"]["labels"], attempt_labels(&settings.experiment, job));
    pod::complete_pod(&mut template["spec"], settings, job, role, position);
    let container = &mut template["spec"]["containers"][0];
    pod::set_variable(container, "TRIALKEEPER_EXIT_CODE_MAP", "kubernetes");
    pod::set_variable(container, "TRIALKEEPER_ROLE", &role.name);
    if is_indexed(spec) {
        pod::set_variable_from_field(container, "TRIALKEEPER_ROLE_INDEX", INDEX_ANNOTATION);
    } else {
        pod::set_variable(container, "TRIALKEEPER_ROLE_INDEX", "0");
    }
    pod::set_output_folders(container, settings, job, role);
    // A queue may evict the trial and admit it again, in another pod. A user who suspends it has the same effect. A
    // JobSet recreates a deleted Job.
    pod::set_variable_from_field(container, "TRIALKEEPER_INCARNATION", "metadata.uid");
    template
}

/// Returns the phase of a Job.
fn phase(object: &Value) -> WorkloadPhase {
    let status = object.get("status").filter(|status| status.is_object());
    let suspended = object.pointer("/spec/suspend") == Some(&Value::Bool(true));
    let Some(status) = status.filter(|status| status.as_object().is_some_and(|s| !s.is_empty()))
    else {
        return if suspended { WorkloadPhase::Suspended } else { WorkloadPhase::Unseen };
    };
    let holds = |kind: &str| true_condition(status, kind);
    let count = |field: &str| status.get(field).and_then(Value::as_i64).unwrap_or(0);
    if holds("Complete").is_some() {
        let message = "the pod succeeded".to_owned();
        let (succeeded, exit_code) = (true, Some(0));
        return WorkloadPhase::Completed(WorkloadOutcome {
            succeeded,
            exit_code,
            ..WorkloadOutcome::failure(message)
        });
    }
    if let Some(failed) = holds("Failed").or_else(|| holds("FailureTarget")) {
        // While the Job is suspended, its controller will not complete it. The end of a pod that the queue stopped
        // counted as a failure.
        return match (suspended, holds("Failed")) {
            (true, _) => {
                WorkloadPhase::Completed(eviction_outcome(&shortened_field(failed, "message")))
            }
            (false, Some(_)) => WorkloadPhase::Completed(failed_job_outcome(failed)),
            (false, None) => WorkloadPhase::Ending,
        };
    }
    if holds("SuccessCriteriaMet").is_some() {
        return WorkloadPhase::Ending;
    }
    let wanted = object.pointer("/spec/parallelism").and_then(Value::as_i64).unwrap_or(1);
    let is_whole = begun_pods(status) >= wanted;
    match (suspended, count("active"), count("ready")) {
        (true, ..) => WorkloadPhase::Suspended,
        (false, active, ready) if active > 0 && ready >= active && is_whole => {
            WorkloadPhase::Running
        }
        (false, active, ready) if active > 0 && ready > 0 => WorkloadPhase::Starting,
        (false, ..) => WorkloadPhase::Waiting,
    }
}

/// Returns the number of pods that a Job has, or has had. Its `active` counts only pods that could be created.
fn begun_pods(status: &Value) -> i64 {
    let count = |field: &str| status.get(field).and_then(Value::as_i64).unwrap_or(0);
    let counted = ["active", "terminating", "succeeded", "failed"].map(count);
    let uncounted = ["succeeded", "failed"].map(|field| {
        let ids = status.pointer(&format!("/uncountedTerminatedPods/{field}"));
        let ids = ids.and_then(Value::as_array).map_or(0, Vec::len);
        i64::try_from(ids).unwrap_or(i64::MAX)
    });
    counted.into_iter().chain(uncounted).fold(0, i64::saturating_add)
}

/// Returns the outcome of a failed Job.
fn failed_job_outcome(condition: &Value) -> WorkloadOutcome {
    let message = shortened_field(condition, "message");
    match shortened_field(condition, "reason").as_str() {
        "DeadlineExceeded" => {
            let why = "its Job ran longer than its activeDeadlineSeconds".to_owned();
            let evidence = format!("DeadlineExceeded: {message}");
            let disruption = Some(Disruption { evidence, why: why.clone() });
            // A retry would take equally long. Only the exit code is read from the pod.
            let class = Some(Class::Permanent);
            WorkloadOutcome { class, disruption, needs_pods: true, ..WorkloadOutcome::failure(why) }
        }
        "BackoffLimitExceeded" => {
            // A pod that fails by itself stays until its Job is deleted.
            let message = "its pod was deleted, and its end was not observed".to_owned();
            let class = Some(Class::Transient);
            WorkloadOutcome { class, needs_pods: true, ..WorkloadOutcome::failure(message) }
        }
        _ => WorkloadOutcome { needs_pods: true, ..WorkloadOutcome::failure(message) },
    }
}

/// Returns the outcome of a workload that its queue evicted and that cannot be resumed. The end of a pod that was
/// stopped for the queue counted as the workload's failure.
pub(super) fn eviction_outcome(message: &str) -> WorkloadOutcome {
    let why = format!(
        "its queue took the trial back as its pod ended, so the trial cannot be resumed ({message})"
    );
    let disruption =
        Some(Disruption { evidence: format!("Suspended: {message}"), why: why.clone() });
    WorkloadOutcome {
        class: Some(Class::Transient),
        disruption,
        needs_pods: true,
        ..WorkloadOutcome::failure(why)
    }
}

/// Completes a Job's failure from its pods: from the pod that the Job names, or else from one that failed.
fn explain_failure(outcome: WorkloadOutcome, pods: &[Value], trial: &[String]) -> WorkloadOutcome {
    let end_of = |pod: &Value| pod_end::read(pod, trial);
    let named = |pod: &&Value| {
        let name = shortened_field(&pod["metadata"], "name");
        !name.is_empty() && outcome.message.contains(&format!("/{name} "))
    };
    let deleted = |pod: &Value| shortened_field(&pod["metadata"], "deletionTimestamp");
    let failed = |pod: &&Value| pod.pointer("/status/phase").is_some_and(|phase| phase == "Failed");
    // Pods that the controller deletes after a failure may also end as failed, and are not its cause.
    let by_itself = |pod: &&Value| failed(pod) && deleted(pod).is_empty();
    let taken = |pod: &&Value| disruption::of_pod(pod).is_some();
    let going = pods.iter().filter(|pod| !deleted(pod).is_empty());
    let pod = pods.iter().find(named).or_else(|| pods.iter().find(by_itself));
    let pod = pod.or_else(|| pods.iter().find(taken));
    let pod = pod.or_else(|| going.min_by_key(|pod| deleted(pod))).or(pods.first());
    if outcome.disruption.is_some() {
        let exit_code = pod.and_then(end_of).and_then(|end| end.exit_code);
        return WorkloadOutcome { exit_code, needs_pods: false, ..outcome };
    }
    let Some(end) = pod.and_then(end_of) else {
        if let Some(disruption) = disruption::of_job(&outcome.message) {
            return WorkloadOutcome { needs_pods: false, ..outcome.with_disruption(disruption) };
        }
        let exit_code = exit_code_of_message(&outcome.message);
        let message = match exit_code {
            Some(code) => format!("the container ended with exit code {code}"),
            None => shortened(&outcome.message),
        };
        return WorkloadOutcome { exit_code, message, needs_pods: false, ..outcome };
    };
    WorkloadOutcome {
        exit_code: end.exit_code,
        message: end.message,
        class: end.class,
        cause: end.cause,
        disruption: end.disruption,
        needs_pods: false,
        ..outcome
    }
}

/// Returns the outcome of a Job of which a pod has failed or all `wanted` pods have succeeded, if its controller cannot
/// report it.
/// `None`: a pod still runs, or none is known.
fn outcome_from_pods(wanted: u64, pods: &[Value], trial: &[String]) -> Option<WorkloadOutcome> {
    let has_phase = |pod: &Value, phase: &str| {
        pod.pointer("/status/phase").and_then(Value::as_str) == Some(phase)
    };
    let succeeded = pods.iter().filter(|pod| has_phase(pod, "Succeeded")).count();
    if succeeded == pods.len() && u64::try_from(succeeded).is_ok_and(|own| own >= wanted) {
        let message = "the pod succeeded".to_owned();
        return Some(WorkloadOutcome {
            succeeded: true,
            exit_code: Some(0),
            ..WorkloadOutcome::failure(message)
        });
    }
    // A Job fails with its first failed pod.
    pods.iter().find(|pod| has_phase(pod, "Failed"))?;
    let failed = WorkloadOutcome::failure("its pod failed".to_owned());
    Some(explain_failure(WorkloadOutcome { needs_pods: true, ..failed }, pods, trial))
}

/// Returns the exit code in the message of a Job's failure policy: `… failed with exit code 3 matching FailJob rule at
/// index 1`.
fn exit_code_of_message(message: &str) -> Option<i32> {
    let (_, rest) = message.split_once(" failed with exit code ")?;
    rest.split(' ').next()?.parse().ok()
}

#[cfg(test)]
mod tests;
