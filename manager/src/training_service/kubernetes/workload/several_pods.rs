//! PURE: the choice of the pod that decided the end of a workload with several pods.

use serde_json::Value;
use trial_protocol::Class;

use crate::config::kubernetes::{KubernetesSpec, RoleSpec};
use crate::training_service::completion::{
    ReplicaId, RoleCompletion, RoleSuccess, TrialCompletion,
};
use crate::training_service::kubernetes::outcome::{DecidingPod, WorkloadOutcome};
use crate::training_service::kubernetes::pod_end::{self, PodEnd};
use crate::util::excerpt::shortened;

/// Returns the rules of a kind that fails with its first failed pod. `success` returns the condition under which a role
/// makes the trial succeed.
pub(super) fn completion_rules(
    spec: &KubernetesSpec,
    success: impl Fn(&RoleSpec) -> RoleSuccess,
) -> TrialCompletion {
    let roles = spec.roles.iter().map(|role| RoleCompletion {
        role: role.name.clone(),
        pods: role.task_number,
        min_failed: Some(1),
        success: success(role),
    });
    let (role, index) = spec.metrics_from.clone();
    TrialCompletion { roles: roles.collect(), main: ReplicaId { role, index } }
}

/// Returns the condition for success that a role's policy states.
pub(super) fn success_by_policy(role: &RoleSpec) -> RoleSuccess {
    match u64::try_from(role.policy.min_succeeded) {
        Ok(least @ 1..) => RoleSuccess::Count(least),
        Ok(0) | Err(_) => RoleSuccess::Never,
    }
}

/// A pod that has ended, or was deleted.
#[derive(Debug, Clone)]
pub(super) struct EndedPod {
    pub(super) role: String,
    pub(super) index: u64,
    pub(super) deleted: bool,
    pub(super) end: PodEnd,
}

impl EndedPod {
    /// Reads a pod of a role whose trial runs in a container with one of these names. `None`: the pod still runs.
    pub(super) fn read(pod: &Value, role: &str, index: u64, trial: &[String]) -> Option<Self> {
        let deleted = pod.pointer("/metadata/deletionTimestamp").is_some();
        let end = match pod_end::read(pod, trial) {
            Some(PodEnd { exit_code: Some(code), disruption: None, .. })
                if deleted && code == 0 =>
            {
                // The controller counts the pod as failed because of its deletion, whatever its exit code.
                PodEnd { exit_code: Some(code), ..deleted_pod_end() }
            }
            Some(end) => end,
            None if deleted => deleted_pod_end(),
            None => return None,
        };
        Some(Self { role: role.to_owned(), index, deleted, end })
    }

    pub(super) fn is_pod(&self, pod: &DecidingPod) -> bool {
        self.role == pod.role && self.index == pod.index
    }
}

/// Returns the end of a pod that was deleted and still runs.
fn deleted_pod_end() -> PodEnd {
    PodEnd {
        exit_code: None,
        message: "the trial's pod was deleted".to_owned(),
        class: Some(Class::Transient),
        cause: None,
        disruption: None,
    }
}

/// Returns the failure with the pod that caused it. `named` returns whether the workload's message names a pod. `main`
/// is the pod whose metrics are the trial's.
pub(super) fn outcome_with_cause(
    outcome: &WorkloadOutcome,
    main: &DecidingPod,
    ends: &[EndedPod],
    named: impl Fn(&EndedPod) -> bool,
) -> WorkloadOutcome {
    let failed = |end: &&EndedPod| end.end.exit_code != Some(0) || end.end.disruption.is_some();
    // A deleted pod may be the cause, or the controller may have deleted it after the failure.
    let by_itself = |end: &&EndedPod| !end.deleted && failed(end);
    let taken = |end: &&EndedPod| end.end.disruption.is_some();
    let deleted = |end: &&EndedPod| end.deleted && named(end);
    let cause = ends
        .iter()
        .find(by_itself)
        .or_else(|| ends.iter().find(taken))
        .or_else(|| ends.iter().find(deleted))
        .or_else(|| ends.iter().find(|end| end.deleted))
        .or_else(|| ends.iter().find(failed));
    let Some(EndedPod { role, index, end, .. }) = cause.cloned() else {
        return WorkloadOutcome {
            succeeded: false,
            message: shortened(&outcome.message),
            // A pod that fails by itself stays. The pod that caused the failure was deleted.
            class: outcome.class.or(Some(Class::Transient)),
            decided_by: None,
            needs_pods: false,
            ..outcome.clone()
        };
    };
    let is_main = role == main.role && index == main.index;
    let decided_by = Some(DecidingPod { role, index, is_main });
    WorkloadOutcome {
        succeeded: false,
        exit_code: end.exit_code,
        message: DecidingPod::with_pod_name(decided_by.as_ref(), end.message),
        class: end.class,
        cause: end.cause,
        decided_by,
        disruption: end.disruption,
        needs_pods: false,
    }
}
