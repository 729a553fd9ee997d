//! PURE: Kueue's reason that a trial waits in a queue, by the Workload that it keeps for each Job.
//!
//! Source: Kueue 0.19, `apis/kueue/v1beta1` and `v1beta2`, which are alike in what is read here, and recordings of it.

use serde_json::Value;

use super::client::Resource;
use super::pending_reason::{condition, is, text};
use crate::util::excerpt::shortened;

/// The versions of Kueue's API that are read, the one to be preferred first: up to 0.14 it serves the second alone.
pub const VERSIONS: [&str; 2] = ["v1beta2", "v1beta1"];

/// Returns Kueue's Workloads, as a version of its API names them.
pub const fn workloads(version: &'static str) -> Resource {
    Resource { group: "kueue.x-k8s.io", version, kind: "Workload", plural: "workloads" }
}

/// Returns Kueue's queues of a namespace, likewise.
pub const fn local_queues(version: &'static str) -> Resource {
    Resource { group: "kueue.x-k8s.io", version, kind: "LocalQueue", plural: "localqueues" }
}

/// Returns Kueue's priority classes, likewise. They belong to no namespace.
pub const fn priority_classes(version: &'static str) -> Resource {
    let (kind, plural) = ("WorkloadPriorityClass", "workloadpriorityclasses");
    Resource { group: "kueue.x-k8s.io", version, kind, plural }
}

/// Returns why a `LocalQueue` admits nothing just now. `None`: it does, or does not say.
pub fn inactive(queue: &Value) -> Option<String> {
    let policy = queue.pointer("/spec/stopPolicy").and_then(Value::as_str);
    if let Some(policy) = policy.filter(|policy| *policy != "None") {
        return Some(format!("it is stopped (`stopPolicy: {}`)", shortened(policy)));
    }
    let active =
        condition(queue.get("status")?, "Active").filter(|it| is(it, "status", "False"))?;
    let cluster_queue = queue.pointer("/spec/clusterQueue").and_then(Value::as_str);
    let cluster_queue = shortened(cluster_queue.unwrap_or_default());
    Some(match text(active, "reason").as_str() {
        "ClusterQueueDoesNotExist" => format!("its ClusterQueue `{cluster_queue}` does not exist"),
        "ClusterQueueIsInactive" => {
            format!("its ClusterQueue `{cluster_queue}` is stopped or incomplete")
        }
        _ => text(active, "message"),
    })
}

/// Returns the reason that the trial of this Workload does not run. `None`: it is admitted, or has ended.
pub fn why(workload: &Value) -> Option<String> {
    let status = workload.get("status")?;
    let find = |kind: &str| condition(status, kind);
    let holds = |kind: &str| find(kind).is_some_and(|found| is(found, "status", "True"));
    if holds("Admitted") && !holds("Evicted") || holds("Finished") {
        return None;
    }
    if let Some(evicted) = find("Evicted").filter(|found| is(found, "status", "True")) {
        return Some(format!("its queue took it back: {}", text(evicted, "message")));
    }
    let reserved = find("QuotaReserved")?;
    if is(reserved, "status", "True") {
        return Some(format!("its queue has room for it and waits for {}", checks(status)));
    }
    let message = text(reserved, "message");
    let never = message.contains("> maximum capacity");
    let end = if never { "; it never fits as the queue is now" } else { "" };
    Some(format!("it waits in its queue: {message}{end}"))
}

/// The admission checks that are not ready, with their words.
fn checks(status: &Value) -> String {
    let checks = status.get("admissionChecks").and_then(Value::as_array);
    let waits = checks.into_iter().flatten().filter(|check| !is(check, "state", "Ready"));
    let words = waits.map(|check| match (text(check, "name"), text(check, "message")) {
        (name, message) if message.is_empty() => format!("the admission check {name}"),
        (name, message) => format!("the admission check {name}: {message}"),
    });
    let words: Vec<String> = words.collect();
    if words.is_empty() { "its admission".to_owned() } else { shortened(&words.join("; ")) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_queue_says_why_it_admits_nothing() {
        let queue = |policy: &str, status: &str, reason: &str| {
            let active =
                json!({"type": "Active", "status": status, "reason": reason, "message": "M"});
            json!({"spec": {"clusterQueue": "c", "stopPolicy": policy}, "status": {"conditions": [active]}})
        };
        #[rustfmt::skip]
        let table = [
            (json!({}), None),
            (json!({"spec": {"clusterQueue": "c"}}), None),
            (queue("None", "True", "Ready"), None),
            (queue("Hold", "False", "Stopped"), Some("it is stopped (`stopPolicy: Hold`)")),
            // The condition follows a moment later.
            (queue("HoldAndDrain", "True", "Ready"), Some("it is stopped (`stopPolicy: HoldAndDrain`)")),
            (queue("None", "False", "ClusterQueueDoesNotExist"), Some("its ClusterQueue `c` does not exist")),
            (queue("None", "False", "ClusterQueueIsInactive"), Some("its ClusterQueue `c` is stopped or incomplete")),
            (queue("None", "False", "Other"), Some("M")),
        ];
        for (queue, expected) in table {
            assert_eq!(inactive(&queue).as_deref(), expected, "{queue}");
        }
    }

    #[test]
    fn a_workload_says_why_its_trial_waits() {
        let conditions = |list: &[(&str, &str, &str)]| {
            let list = list.iter().map(|(kind, status, message)| {
                json!({"type": kind, "status": status, "message": message})
            });
            json!({"status": {"conditions": list.collect::<Vec<_>>()}})
        };
        let room = "couldn't assign flavors to pod set main: insufficient unused quota for cpu in flavor default-flavor, 400m more needed";
        let never = "couldn't assign flavors to pod set main: insufficient quota for cpu in flavor default-flavor, previously considered podsets requests (0) + current podset request (3) > maximum capacity (1)";
        let mut checked = conditions(&[("QuotaReserved", "True", "")]);
        checked["status"]["admissionChecks"] = json!([{"name": "ready", "state": "Ready"}, {"name": "by-hand", "state": "Pending", "message": "waiting for a node"}]);
        #[rustfmt::skip]
        let table = [
            (json!({}), None),
            (conditions(&[]), None),
            (conditions(&[("QuotaReserved", "False", room)]), Some(format!("it waits in its queue: {room}"))),
            (conditions(&[("QuotaReserved", "False", never)]), Some(format!("it waits in its queue: {never}; it never fits as the queue is now"))),
            (conditions(&[("QuotaReserved", "True", ""), ("Admitted", "True", "")]), None),
            (checked, Some("its queue has room for it and waits for the admission check by-hand: waiting for a node".to_owned())),
            (conditions(&[("QuotaReserved", "True", ""), ("Admitted", "True", ""), ("Evicted", "True", "Preempted to accommodate a workload")]),
                Some("its queue took it back: Preempted to accommodate a workload".to_owned())),
            (conditions(&[("QuotaReserved", "True", ""), ("Admitted", "True", ""), ("Evicted", "False", "Previously: Preempted")]), None),
            (conditions(&[("QuotaReserved", "True", ""), ("Finished", "True", "")]), None),
        ];
        for (workload, expected) in table {
            assert_eq!(why(&workload), expected, "{workload}");
        }
    }
}
