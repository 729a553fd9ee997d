//! PURE: trials of several roles as `JobSet`s of `jobset.x-k8s.io/v1alpha2`, with a Job for each role.
//!
//! A `JobSet` names the Job that failed first. The pods of that Job show the reason, and the `JobSet` deletes the other
//! pods.
//!
//! Source: `JobSet` 0.12, and recordings of its behaviour.

use serde_json::{Value, json};

use super::job::{CONTAINER_NAME, eviction_outcome, job_spec, pod_place, pod_template};
use super::several_pods::{self, EndedPod};
use super::{Workload, queue_labels};
use crate::config::kubernetes::{KubernetesSpec, RoleSpec, WorkloadKind};
use crate::training_service::TrialJobSpec;
use crate::training_service::completion::TrialCompletion;
use crate::training_service::kubernetes::manifest::{
    WorkloadSettings, attempt_labels, workload_name,
};
use crate::training_service::kubernetes::outcome::{DecidingPod, WorkloadOutcome, WorkloadPhase};
use crate::training_service::kubernetes::status_fields::{shortened_field, true_condition};

/// Runs trials of several roles as `JobSet`s.
#[derive(Debug)]
pub struct JobSet;

impl Workload for JobSet {
    fn kind(&self) -> WorkloadKind {
        WorkloadKind::JobSet
    }

    fn installation_advice(&self) -> String {
        "a trial of several `taskRoles` needs JobSet, which is not installed there; `kubectl apply --server-side -f \
         https://github.com/kubernetes-sigs/jobset/releases/download/v0.12.0/manifests.yaml` installs it, and a trial of one role \
         needs no more than Jobs"
            .to_owned()
    }

    fn manifest(&self, settings: &WorkloadSettings, job: &TrialJobSpec) -> Value {
        let spec = &settings.spec;
        let mut labels = attempt_labels(&settings.experiment, job);
        labels.extend(queue_labels(spec));
        let roles = spec.roles.iter().enumerate();
        let roles = roles.map(|(position, role)| replicated_job(settings, job, role, position));
        let mut body = json!({
            // A retry is the manager's decision, and gets a new attempt number.
            "failurePolicy": {"maxRestarts": 0},
            "replicatedJobs": roles.collect::<Vec<_>>(),
        });
        let deciding: Vec<&str> =
            spec.roles.iter().filter(|role| is_deciding(role)).map(role_name).collect();
        if !deciding.is_empty() {
            // The trial succeeds as soon as one of these roles has succeeded. If there is none, all roles must succeed.
            body["successPolicy"] = json!({"operator": "Any", "targetReplicatedJobs": deciding});
        }
        if spec.queue.is_some() {
            // Kueue's webhook would do the same. Without the webhook, the trial must not bypass the queue.
            body["suspend"] = Value::Bool(true);
        }
        json!({
            "apiVersion": self.kind().api_version(),
            "kind": self.kind().object(),
            "metadata": {
                "name": workload_name(&settings.experiment, &job.attempt),
                "namespace": settings.namespace,
                "labels": labels,
            },
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
        (pod_template(settings, job, role, position), format!("{}-0-0", role.name))
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
        let (role, index) = spec.metrics_from.clone();
        let roles = spec.roles.iter().map(|role| RolePods {
            name: &role.name,
            pods: role.task_number,
            wanted: u64::try_from(role.policy.min_succeeded).ok(),
        });
        let main = DecidingPod { role, index, is_main: true };
        outcome_from_pods(&roles.collect::<Vec<_>>(), main, pods, trial)
    }

    fn completion(&self, spec: &KubernetesSpec) -> TrialCompletion {
        several_pods::completion_rules(spec, several_pods::success_by_policy)
    }

    fn can_end_before_pods(&self) -> bool {
        true
    }

    fn pod_owners(&self, spec: &KubernetesSpec, name: &str) -> Vec<(&'static str, String)> {
        let jobs = spec.roles.iter().map(|role| ("Job", job_name(name, role)));
        // The Jobs themselves may have been refused, too.
        jobs.chain([(self.kind().object(), name.to_owned())]).collect()
    }

    fn pod_place<'a>(&self, pod: &'a str) -> &'a str {
        pod_place(pod)
    }

    fn reporting_pod(&self, spec: &KubernetesSpec, name: &str, pods: &[String]) -> Option<String> {
        let (role, index) = &spec.metrics_from;
        let prefix = format!("{name}-{role}-0-{index}-");
        pods.iter().find(|pod| pod.starts_with(&prefix)).cloned()
    }

    fn container_name(&self) -> &'static str {
        CONTAINER_NAME
    }

    fn probe_spec(&self, _name: &str) -> Value {
        let pod = json!({"spec": {
            "restartPolicy": "Never",
            "containers": [{"name": CONTAINER_NAME, "image": "none"}],
        }});
        // A queue that also admits JobSets without a queue label may resume this one, but it has no pods to create.
        // JobSet's own default is `Indexed`, with which the API server requires `completions`.
        let body = json!({
            "parallelism": 0, "completionMode": "NonIndexed", "backoffLimit": 0, "template": pod,
        });
        json!({
            // A suspended JobSet creates no pod, and the controller reports the suspension.
            "suspend": true,
            "replicatedJobs": [{"name": "probe", "replicas": 1, "template": {"spec": body}}],
        })
    }
}

/// Returns true if the success of some of the role's pods makes the trial succeed.
fn is_deciding(role: &RoleSpec) -> bool {
    role.policy.min_succeeded > 0
}

fn role_name(role: &RoleSpec) -> &str {
    &role.name
}

/// Returns the name of a role's Job.
fn job_name(set: &str, role: &RoleSpec) -> String {
    format!("{set}-{}-0", role.name)
}

fn replicated_job(
    settings: &WorkloadSettings,
    job: &TrialJobSpec,
    role: &RoleSpec,
    position: usize,
) -> Value {
    let mut body = job_spec(&pod_template(settings, job, role, position), role.task_number);
    body["completionMode"] = Value::from("Indexed");
    let wanted = u64::try_from(role.policy.min_succeeded).unwrap_or(role.task_number);
    if wanted < role.task_number {
        body["successPolicy"] = json!({"rules": [{"succeededCount": wanted}]});
    }
    json!({"name": role.name, "replicas": 1, "template": {"spec": body}})
}

/// Returns the phase of a `JobSet`.
fn phase(object: &Value, spec: &KubernetesSpec) -> WorkloadPhase {
    let (role, index) = spec.metrics_from.clone();
    let main = DecidingPod { role, index, is_main: true };
    phase_of(object, &STATUS_NAMES, spec.roles.len(), main)
}

/// The names in the status of a kind that consists of Jobs.
#[derive(Debug)]
pub(super) struct StatusNames {
    /// The condition that marks success.
    pub(super) succeeded: &'static str,
    /// The list with the state of each role's Job.
    pub(super) jobs: &'static str,
}

const STATUS_NAMES: StatusNames =
    StatusNames { succeeded: "Completed", jobs: "replicatedJobsStatus" };

/// Returns the phase of an object that consists of this number of Jobs. `main` is the pod whose metrics are the
/// trial's.
pub(super) fn phase_of(
    object: &Value,
    names: &StatusNames,
    roles: usize,
    main: DecidingPod,
) -> WorkloadPhase {
    let suspended = object.pointer("/spec/suspend") == Some(&Value::Bool(true));
    let status =
        object.get("status").and_then(Value::as_object).filter(|status| !status.is_empty());
    let Some(status) = status else {
        return if suspended { WorkloadPhase::Suspended } else { WorkloadPhase::Unseen };
    };
    let conditions = &object["status"];
    let holds = |kind: &str| true_condition(conditions, kind);
    if holds(names.succeeded).is_some() {
        let message = "its pods succeeded".to_owned();
        let (succeeded, exit_code) = (true, Some(0));
        return WorkloadPhase::Completed(WorkloadOutcome {
            succeeded,
            exit_code,
            ..WorkloadOutcome::failure(message)
        });
    }
    if let Some(failed) = holds("Failed").filter(|_| suspended) {
        return WorkloadPhase::Completed(eviction_outcome(&shortened_field(failed, "message")));
    }
    if let Some(failed) = holds("Failed") {
        return WorkloadPhase::Completed(WorkloadOutcome {
            decided_by: Some(main),
            needs_pods: true,
            ..WorkloadOutcome::failure(shortened_field(failed, "message"))
        });
    }
    if suspended {
        return WorkloadPhase::Suspended;
    }
    // The status counts Jobs, and each role has one Job.
    let jobs = status.get(names.jobs).and_then(Value::as_array);
    let begun = jobs.into_iter().flatten().filter(|job| {
        let counts = ["ready", "succeeded", "failed"].iter();
        counts.filter_map(|field| job.get(*field)?.as_u64()).any(|count| count > 0)
    });
    match begun.count() {
        0 => WorkloadPhase::Waiting,
        begun if begun < roles => WorkloadPhase::Starting,
        _ => WorkloadPhase::Running,
    }
}

/// Completes a failure with the pod that caused it. If the `JobSet` names the Job that failed first, the pod is one of
/// that Job.
pub(super) fn explain_failure(
    outcome: WorkloadOutcome,
    pods: &[Value],
    trial: &[String],
) -> WorkloadOutcome {
    let ended = |pod: &Value| read_ended_pod(pod, trial);
    let Some(main) = outcome.decided_by.clone() else {
        return WorkloadOutcome { needs_pods: false, ..outcome };
    };
    let first = first_failed_job(&outcome.message);
    let of_first = |pod: &&Value| {
        let name = shortened_field(&pod["metadata"], "name");
        first.is_some_and(|job| name.strip_prefix(job).is_some_and(|rest| rest.starts_with('-')))
    };
    let own: Vec<EndedPod> = pods.iter().filter(of_first).filter_map(ended).collect();
    let ends = if own.is_empty() { pods.iter().filter_map(ended).collect() } else { own };
    several_pods::outcome_with_cause(&outcome, &main, &ends, |_| true)
}

/// The pods of a role, and the number that must succeed for the role to decide the trial. `None`: the role does not
/// decide.
pub(super) struct RolePods<'a> {
    pub(super) name: &'a str,
    pub(super) pods: u64,
    pub(super) wanted: Option<u64>,
}

/// Derives the outcome of a workload of these roles from its ended pods, whose ends its Jobs cannot report. `None`: the
/// outcome is undecided.
pub(super) fn outcome_from_pods(
    roles: &[RolePods<'_>],
    main: DecidingPod,
    pods: &[Value],
    trial: &[String],
) -> Option<WorkloadOutcome> {
    let is_over = |pod: &&Value| {
        pod.pointer("/status/phase").is_some_and(|phase| phase == "Succeeded" || phase == "Failed")
    };
    let ends = pods.iter().filter(is_over).filter_map(|pod| read_ended_pod(pod, trial));
    let ends: Vec<EndedPod> = ends.collect();
    if ends.iter().any(|end| end.end.exit_code != Some(0)) {
        let failed = WorkloadOutcome::failure("one of its pods failed".to_owned());
        let failed = WorkloadOutcome { decided_by: Some(main), needs_pods: true, ..failed };
        return Some(explain_failure(failed, pods, trial));
    }
    let succeeded = |role: &RolePods<'_>, wanted: u64| {
        let own = ends.iter().filter(|end| end.role == role.name).count();
        u64::try_from(own).is_ok_and(|own| own >= wanted)
    };
    let mut deciding = roles.iter().filter_map(|role| Some((role, role.wanted?))).peekable();
    let is_done = if deciding.peek().is_some() {
        deciding.any(|(role, wanted)| succeeded(role, wanted))
    } else {
        roles.iter().all(|role| succeeded(role, role.pods))
    };
    let message = "its pods succeeded".to_owned();
    let (succeeded, exit_code) = (true, Some(0));
    is_done.then(|| WorkloadOutcome { succeeded, exit_code, ..WorkloadOutcome::failure(message) })
}

/// Returns the Job in a `JobSet`'s message `… (first failed job: NAME)`.
fn first_failed_job(message: &str) -> Option<&str> {
    let (_, rest) = message.split_once("(first failed job: ")?;
    rest.split(')').next().filter(|name| !name.is_empty())
}

/// Reads the end of a pod with the name `SET-ROLE-0-INDEX-SUFFIX`.
fn read_ended_pod(pod: &Value, trial: &[String]) -> Option<EndedPod> {
    let name = pod.pointer("/metadata/name")?.as_str()?;
    let mut parts = name.rsplitn(5, '-').skip(1);
    let index = parts.next()?.parse().ok()?;
    let role = parts.nth(1)?;
    EndedPod::read(pod, role, index, trial)
}

#[cfg(test)]
mod tests;
