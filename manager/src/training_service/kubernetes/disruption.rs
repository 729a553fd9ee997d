//! PURE: the disruption of a pod, from its status. The sources are the condition `DisruptionTarget`, and the reason
//! that the kubelet sets for a pod that the kubelet itself ended.

use serde_json::Value;

use super::status_fields::{shortened_field, true_condition};
use crate::util::excerpt::shortened;

/// The removal of a pod by the platform.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disruption {
    /// The platform's statement, in the form `REASON: message`.
    pub evidence: String,
    /// The explanation for the user.
    pub why: String,
}

impl Disruption {
    fn new(reason: &str, message: &str) -> Self {
        let evidence = if message.is_empty() {
            reason.to_owned()
        } else {
            format!("{reason}: {}", shortened(message))
        };
        let why = format!("its pod was removed: {} ({evidence})", explanation_of(reason));
        Self { evidence, why }
    }
}

impl Disruption {
    /// Returns the disruption of a trial whose pod was deleted, but not by the manager, before another pod failed.
    pub fn of_deleted_pod(pod: &str) -> Self {
        let why = format!(
            "its pod {pod} was deleted, but not by the manager, and another pod failed without it"
        );
        Self { evidence: format!("Deleted: the pod {pod} was deleted"), why }
    }
}

/// The conditions of a pod that the platform removes. The second is Kueue's, for a pod that waited in a queue by itself
/// (Kueue 0.19, `pkg/controller/jobs/pod`).
const REMOVAL_CONDITIONS: [&str; 2] = ["DisruptionTarget", "TerminationTarget"];

/// Returns the disruption of a pod that was just observed. `None`: the platform did not remove it.
pub fn of_pod(pod: &Value) -> Option<Disruption> {
    let status = pod.get("status")?;
    if let Some(condition) = REMOVAL_CONDITIONS.iter().find_map(|kind| true_condition(status, kind))
    {
        return Some(Disruption::new(
            &shortened_field(condition, "reason"),
            &shortened_field(condition, "message"),
        ));
    }
    of_reason(&shortened_field(status, "reason"), &shortened_field(status, "message"))
}

/// Returns the time at which the platform began to remove a pod, in RFC 3339.
pub fn disruption_time(pod: &Value) -> Option<&str> {
    true_condition(pod.get("status")?, "DisruptionTarget")?.get("lastTransitionTime")?.as_str()
}

/// Returns the disruption that a failed Job names: `Pod NS/NAME has condition DisruptionTarget matching FailJob rule at
/// index 0`. The pod itself may be gone.
pub fn of_job(message: &str) -> Option<Disruption> {
    const CONDITION: &str = "DisruptionTarget";
    let is_named = message.contains(&format!(" has condition {CONDITION} matching "));
    is_named.then(|| Disruption::new(CONDITION, message))
}

/// Returns the disruption that the reason in a pod's status names. The kubelet or the node controller sets the reason.
pub fn of_reason(reason: &str, message: &str) -> Option<Disruption> {
    let taken = match reason {
        "Evicted" => !is_over_own_limit(reason, message),
        "Preempting" | "NodeLost" | "NodeShutdown" | "Shutdown" | "Terminated" => true,
        _ => false,
    };
    taken.then(|| Disruption::new(reason, message))
}

/// Returns the disruption for one of the controller's usual codes (evicted, node lost, preempted), if the status does
/// not show the pod.
pub fn of_code(code: Option<i64>, phrase: &str) -> Option<Disruption> {
    matches!(code, Some(-1000 | -1001 | -1003)).then(|| Disruption::new(phrase, ""))
}

/// Returns whether a pod was evicted for its own usage, although its node had enough resources. A retry would end in
/// the same way.
pub fn is_over_own_limit(reason: &str, message: &str) -> bool {
    // The kubelet's messages about a pod, a volume or a container contain these texts. Its messages about a node that
    // runs low do not.
    let words = ["exceeds the total limit", "exceeds the limit", "exceeded its local"];
    reason == "Evicted" && words.iter().any(|words| message.contains(words))
}

/// Returns the explanation of a reason.
fn explanation_of(reason: &str) -> &'static str {
    match reason {
        "PreemptionByScheduler" => "a pod of higher priority needed its resources",
        "EvictionByEvictionAPI" => "it was evicted through the API, for example by `kubectl drain`",
        "DeletionByTaintManager" => {
            "its node got a taint, for example because the node no longer answers"
        }
        "DeletionByPodGC" | "NodeLost" => "its node is gone",
        "TerminationByKubelet" => {
            "its node ran low on resources, was shut down, or needed the resources for a critical pod"
        }
        "WorkloadEvicted" => "its queue took it back",
        "Evicted" => "its node ran low on resources",
        "Preempting" => "its node needed the resources for a critical pod",
        "NodeShutdown" | "Shutdown" | "Terminated" => "its node was shut down",
        _ => "the cluster ended it",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_disruption_of_a_removed_pod_is_explained() {
        let target = |status: &str, reason: &str, message: &str| {
            json!({"status": {"conditions": [
                {"type": "Ready", "status": "True"},
                {"type": "DisruptionTarget", "status": status, "reason": reason, "message": message},
            ]}})
        };
        let ended = |reason: &str, message: &str| json!({"status": {"phase": "Failed", "reason": reason, "message": message}});
        let queue = |status: &str| {
            json!({"status": {"conditions": [
                {"type": "TerminationTarget", "status": status, "reason": "WorkloadEvicted", "message": "Preempted to accommodate a workload"},
            ]}})
        };
        // Messages of Kubernetes 1.31.
        #[rustfmt::skip]
        let table = [
            (target("True", "PreemptionByScheduler", "default-scheduler: preempting to accommodate a higher priority pod"),
                Some("a pod of higher priority")),
            (target("True", "EvictionByEvictionAPI", "Eviction API: evicting"), Some("`kubectl drain`")),
            (target("True", "DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint"), Some("got a taint")),
            (target("True", "DeletionByPodGC", "PodGC: node no longer exists"), Some("its node is gone")),
            (target("True", "TerminationByKubelet", "The node was low on resource: memory."), Some("its node ran low")),
            (target("True", "WhoKnows", ""), Some("the cluster ended it (WhoKnows)")),
            (target("False", "PreemptionByScheduler", ""), None),
            (queue("True"), Some("its queue took it back (WorkloadEvicted: Preempted to accommodate a workload)")),
            (queue("False"), None),
            (ended("Evicted", "The node was low on resource: ephemeral-storage. Container framework was using 5Gi, request is 0, has larger consumption of ephemeral-storage. "),
                Some("its node ran low on resources (Evicted: The node was low on resource: ephemeral-storage.")),
            (ended("Preempting", "Preempted in order to admit critical pod"), Some("a critical pod")),
            (ended("NodeLost", "Node n1 which was running pod p is unresponsive"), Some("its node is gone")),
            (ended("Terminated", "Pod was terminated in response to imminent node shutdown."), Some("shut down")),
            // The pod exceeded its own limit.
            (ended("Evicted", "Pod ephemeral local storage usage exceeds the total limit of containers 1Gi. "), None),
            (ended("Evicted", "Usage of EmptyDir volume \"trialkeeper\" exceeds the limit \"1Gi\". "), None),
            (ended("Evicted", "Container framework exceeded its local ephemeral storage limit \"1Gi\". "), None),
            // The pod was never admitted by its node.
            (ended("OutOfcpu", "Node didn't have enough resource: cpu"), None),
            (ended("DeadlineExceeded", "Pod was active on the node longer than the specified deadline"), None),
            (json!({"status": {"phase": "Failed", "conditions": null}}), None),
            (json!({}), None),
        ];
        for (pod, expected) in table {
            let why = of_pod(&pod).map(|taken| taken.why);
            match (&why, expected) {
                (Some(why), Some(part)) => {
                    assert!(why.starts_with("its pod was removed: "), "{why}");
                    assert!(why.contains(part), "{part:?} is not in {why}");
                }
                (None, None) => {}
                (_, _) => panic!("{pod}: {why:?}"),
            }
        }
    }
}
