//! PURE: the reason why a trial waits in a queue, from the Workload that Kueue keeps for each Job.
//!
//! Source: Kueue 0.19, `apis/kueue/v1beta1` and `v1beta2`, which agree in the fields that are read, and recordings of
//! Kueue.

use std::collections::HashMap;

use serde_json::Value;

use super::client::Resource;
use super::status_fields::{find_condition, has_field, shortened_field, true_condition};
use crate::util::excerpt::shortened;

/// The supported versions of Kueue's API, in order of preference. Kueue up to 0.14 serves only the second.
pub const API_VERSIONS: [&str; 2] = ["v1beta2", "v1beta1"];

/// Returns the resource of Kueue's Workloads in a version of its API.
pub const fn workloads(version: &'static str) -> Resource {
    Resource { group: "kueue.x-k8s.io", version, kind: "Workload", plural: "workloads" }
}

/// Returns the resource of Kueue's `LocalQueue` objects in a version of its API.
pub const fn local_queues(version: &'static str) -> Resource {
    Resource { group: "kueue.x-k8s.io", version, kind: "LocalQueue", plural: "localqueues" }
}

/// Returns the resource of Kueue's priority classes in a version of its API. They are cluster-wide.
pub const fn priority_classes(version: &'static str) -> Resource {
    let (kind, plural) = ("WorkloadPriorityClass", "workloadpriorityclasses");
    Resource { group: "kueue.x-k8s.io", version, kind, plural }
}

/// Returns the path of the Workloads that wait in a `LocalQueue`, which Kueue's own API server serves in a version of
/// its API.
pub fn pending_workloads_path(version: &str, namespace: &str, queue: &str) -> String {
    let group = "visibility.kueue.x-k8s.io";
    format!("/apis/{group}/{version}/namespaces/{namespace}/localqueues/{queue}/pendingworkloads")
}

/// Returns the number of Workloads ahead of each trial in its `ClusterQueue`, by the name of the trial's object.
pub fn positions(pending: &Value) -> HashMap<String, u64> {
    let items = pending.get("items").and_then(Value::as_array);
    let position = |item: &Value| {
        let owner = item.pointer("/metadata/ownerReferences/0/name")?.as_str()?;
        Some((owner.to_owned(), item.get("positionInClusterQueue")?.as_u64()?))
    };
    items.into_iter().flatten().filter_map(position).collect()
}

/// Returns a phrase for a trial's position in its queue. Large numbers are rounded down, so that the phrase rarely
/// changes.
pub fn position_phrase(ahead: u64) -> String {
    match ahead {
        0 => "it is the next in its queue".to_owned(),
        1 => "1 other is ahead of it".to_owned(),
        2..10 => format!("{ahead} others are ahead of it"),
        _ => {
            let unit = 10_u64.pow(ahead.ilog10());
            format!("{} or more others are ahead of it", ahead / unit * unit)
        }
    }
}

/// Returns the reason why a `LocalQueue` currently admits nothing. `None`: it admits trials, or its status has no
/// reason.
pub fn inactive_reason(queue: &Value) -> Option<String> {
    let policy = queue.pointer("/spec/stopPolicy").and_then(Value::as_str);
    if let Some(policy) = policy.filter(|policy| *policy != "None") {
        return Some(format!("it is stopped (`stopPolicy: {}`)", shortened(policy)));
    }
    let active = find_condition(queue.get("status")?, "Active")
        .filter(|it| has_field(it, "status", "False"))?;
    let cluster_queue = queue.pointer("/spec/clusterQueue").and_then(Value::as_str);
    let cluster_queue = shortened(cluster_queue.unwrap_or_default());
    Some(match shortened_field(active, "reason").as_str() {
        "ClusterQueueDoesNotExist" => format!("its ClusterQueue `{cluster_queue}` does not exist"),
        "ClusterQueueIsInactive" => {
            format!("its ClusterQueue `{cluster_queue}` is stopped or incomplete")
        }
        _ => shortened_field(active, "message"),
    })
}

/// The state of a trial in its queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QueueState {
    /// The trial may run, or has run.
    Admitted,
    /// The trial waits for this reason.
    Waits(String),
    /// The trial waits, although it would not fit even into an empty queue.
    NeverFits(String),
    /// The queue no longer lets the trial run.
    Ended(QueueEnd),
}

/// The end of a trial by its queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueEnd {
    /// The reason, for the user.
    pub why: String,
    /// Kueue's message, if it removed the trial. `None`: Kueue refuses the trial itself.
    pub disruption: Option<String>,
}

/// Reads the state of a trial from its Workload. `None`: Kueue has not examined it yet.
///
/// The conditions `PodsReady` and `Requeued` are ignored: they change briefly at every end, and stay true after a
/// requeue.
pub fn queue_state(workload: &Value) -> Option<QueueState> {
    let status = workload.get("status")?;
    let holds = |kind: &str| true_condition(status, kind);
    if let Some(finished) = holds("Finished") {
        return Some(match shortened_field(finished, "reason").as_str() {
            reason @ ("FailedToStart" | "OutOfSync") => {
                let message = shortened_field(finished, "message");
                let disruption = (reason == "OutOfSync").then(|| format!("{reason}: {message}"));
                let why = format!("its queue has given up the trial: {message} ({reason})");
                QueueState::Ended(QueueEnd { why, disruption })
            }
            _ => QueueState::Admitted,
        });
    }
    if let Some(evicted) = holds("Evicted") {
        let (reason, message) =
            (shortened_field(evicted, "reason"), shortened_field(evicted, "message"));
        if workload.pointer("/spec/active") == Some(&Value::Bool(false)) {
            // A Workload that was evicted before its deactivation keeps the reason for the eviction.
            let why = reason.strip_prefix("Deactivated").unwrap_or_default();
            return Some(QueueState::Ended(end_by_deactivation(why, &message)));
        }
        // The eviction stays true until the trial runs again. Meanwhile the queue reports the reason for the wait.
        if !is_queued_again(status, &message) {
            let why =
                format!("its queue took the trial back{}: {message}", preemption_phrase(status));
            return Some(QueueState::Waits(why));
        }
    }
    let begins = if holds("Evicted").is_some() {
        "its queue took the trial back"
    } else {
        "it waits in its queue"
    };
    let reserved = find_condition(status, "QuotaReserved")?;
    if holds("Admitted").is_some() {
        return Some(QueueState::Admitted);
    }
    if has_field(reserved, "status", "True") {
        let flavor = reserved_flavors(status).map(|flavor| format!(" in the flavor {flavor}"));
        let flavor = flavor.unwrap_or_default();
        let why = format!(
            "its queue has reserved quota{flavor} and waits for {}",
            unready_checks_phrase(status)
        );
        return Some(QueueState::Waits(why));
    }
    let message = shortened_field(reserved, "message");
    let never = can_never_fit(reserved);
    let end = if never { "; the trial cannot fit into the queue as it is" } else { "" };
    let why = format!("{begins}{}: {message}{end}", preemption_phrase(status));
    Some(if never { QueueState::NeverFits(why) } else { QueueState::Waits(why) })
}

/// Returns whether the trial fits into no flavor of its queue, however empty the queue is. Kueue states it as the
/// reason with its feature gate `UnadmittedWorkloadsObservability`, and otherwise in the message about each flavor.
fn can_never_fit(reserved: &Value) -> bool {
    let message = reserved.get("message").and_then(Value::as_str).unwrap_or_default();
    let has_room_later = message.contains("insufficient unused quota");
    ["NoMatchingFlavor", "ExceedsMaxQuota"]
        .iter()
        .any(|reason| has_field(reserved, "reason", reason))
        || message.contains("> maximum capacity") && !has_room_later
}

/// Returns whether Kueue has considered a Workload again since an eviction with this message, and has no room for it.
fn is_queued_again(status: &Value, evicted: &str) -> bool {
    find_condition(status, "QuotaReserved").is_some_and(|reserved| {
        has_field(reserved, "status", "False") && shortened_field(reserved, "message") != evicted
    })
}

/// Returns the end of a Workload that was deactivated for this reason, `DueToX` or none.
fn end_by_deactivation(reason: &str, message: &str) -> QueueEnd {
    let disruption = Some(format!("Deactivated{reason}: {message}"));
    match reason.strip_prefix("DueTo") {
        Some(check) if check.starts_with("AdmissionCheck") => QueueEnd {
            why: format!("an admission check of its queue rejected it: {message}"),
            disruption: None,
        },
        Some("MaximumExecutionTimeExceeded") => {
            QueueEnd { why: "the trial ran longer than its queue allows".to_owned(), disruption }
        }
        Some("RequeuingLimitExceeded") => {
            let why =
                "its pods were so often not ready in time that its queue has given up the trial";
            QueueEnd { why: why.to_owned(), disruption }
        }
        Some(_) | None => {
            QueueEnd { why: format!("its Workload was deactivated: {message}"), disruption }
        }
    }
}

/// Returns a phrase for the number of preemptions of a trial, empty for none.
fn preemption_phrase(status: &Value) -> String {
    let evictions = status.pointer("/schedulingStats/evictions").and_then(Value::as_array);
    let preempted =
        evictions.into_iter().flatten().filter(|it| has_field(it, "reason", "Preempted"));
    let counts = preempted.filter_map(|eviction| eviction.get("count")?.as_u64());
    match counts.fold(0, u64::saturating_add) {
        0 => String::new(),
        1 => " (preempted once)".to_owned(),
        times => format!(" (preempted {times} times)"),
    }
}

/// Returns the resource flavors in which the queue has reserved quota.
fn reserved_flavors(status: &Value) -> Option<String> {
    let sets = status.pointer("/admission/podSetAssignments")?.as_array()?;
    let flavors = sets.iter().filter_map(|set| set.get("flavors")?.as_object());
    let mut names: Vec<&str> =
        flavors.flat_map(|set| set.values()).filter_map(Value::as_str).collect();
    names.sort_unstable();
    names.dedup();
    Some(shortened(&names.join(", "))).filter(|names| !names.is_empty())
}

/// Returns the admission checks that are not ready, with their messages.
fn unready_checks_phrase(status: &Value) -> String {
    let checks = status.get("admissionChecks").and_then(Value::as_array);
    let waits = checks.into_iter().flatten().filter(|check| !has_field(check, "state", "Ready"));
    let words = waits.map(|check| {
        match (shortened_field(check, "name"), shortened_field(check, "message")) {
            (name, message) if message.is_empty() => format!("the admission check {name}"),
            (name, message) => format!("the admission check {name}: {message}"),
        }
    });
    let words: Vec<String> = words.collect();
    if words.is_empty() { "its admission".to_owned() } else { shortened(&words.join("; ")) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn the_reason_of_an_inactive_queue_is_read() {
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
            // The condition changes shortly after the policy.
            (queue("HoldAndDrain", "True", "Ready"), Some("it is stopped (`stopPolicy: HoldAndDrain`)")),
            (queue("None", "False", "ClusterQueueDoesNotExist"), Some("its ClusterQueue `c` does not exist")),
            (queue("None", "False", "ClusterQueueIsInactive"), Some("its ClusterQueue `c` is stopped or incomplete")),
            (queue("None", "False", "Other"), Some("M")),
        ];
        for (queue, expected) in table {
            assert_eq!(inactive_reason(&queue).as_deref(), expected, "{queue}");
        }
    }

    #[test]
    fn the_position_of_a_trial_is_read_from_the_pending_workloads() {
        let item = |owner: &str, position: Value| json!({"metadata": {"name": "job-x-1a2b3", "ownerReferences": [{"name": owner}]}, "positionInClusterQueue": position});
        let items = [item("tka", json!(0)), item("tkb", json!(7)), item("tkc", json!(null))];
        let expected = HashMap::from([("tka".to_owned(), 0), ("tkb".to_owned(), 7)]);
        assert_eq!(positions(&json!({"items": items})), expected);
        for none in [json!({}), json!({"items": []}), json!({"items": [{}]})] {
            assert_eq!(positions(&none), HashMap::new(), "{none}");
        }
        #[rustfmt::skip]
        let table = [
            (0,   "it is the next in its queue"),
            (1,   "1 other is ahead of it"),
            (9,   "9 others are ahead of it"),
            (10,  "10 or more others are ahead of it"),
            (47,  "40 or more others are ahead of it"),
            (999, "900 or more others are ahead of it"),
        ];
        for (ahead, expected) in table {
            assert_eq!(position_phrase(ahead), expected);
        }
    }

    fn workload_with_conditions(list: &[(&str, &str, &str, &str)]) -> Value {
        let list = list.iter().map(|(kind, status, reason, message)| {
            json!({"type": kind, "status": status, "reason": reason, "message": message})
        });
        json!({"spec": {"active": true}, "status": {"conditions": list.collect::<Vec<_>>()}})
    }

    #[test]
    fn the_reason_for_a_wait_is_read_from_the_workload() {
        let room = "couldn't assign flavors to pod set main: insufficient unused quota for cpu in flavor default-flavor, 400m more needed";
        let never = "couldn't assign flavors to pod set main: insufficient quota for cpu in flavor default-flavor, previously considered podsets requests (0) + current podset request (3) > maximum capacity (1)";
        // The trial would fit into the second flavor later.
        let either = "couldn't assign flavors to pod set main: insufficient quota for cpu in flavor spot, previously considered podsets requests (0) + current podset request (3) > maximum capacity (1), insufficient unused quota for cpu in flavor default-flavor, 1 more needed";
        let taint = "couldn't assign flavors to pod set main: untolerated taint {spot true NoSchedule <nil>} in flavor spot";
        let namespace = "Workload namespace doesn't match ClusterQueue selector";
        let pending = |reason, message| {
            workload_with_conditions(&[("QuotaReserved", "False", reason, message)])
        };
        let reserved = ("QuotaReserved", "True", "QuotaReserved", "");
        let admitted = ("Admitted", "True", "Admitted", "");
        let mut checked = workload_with_conditions(&[
            reserved,
            ("Admitted", "False", "NoReservationUnsatisfiedChecks", ""),
        ]);
        checked["status"]["admissionChecks"] = json!([{"name": "ready", "state": "Ready"}, {"name": "by-hand", "state": "Pending", "message": "waiting for a node"}]);
        checked["status"]["admission"] = json!({"podSetAssignments": [{"name": "main", "flavors": {"cpu": "spot", "memory": "spot"}}]});
        let mut again = workload_with_conditions(&[
            ("QuotaReserved", "False", "Pending", room),
            ("Evicted", "False", "QuotaReserved", "Previously: M"),
        ]);
        again["status"]["schedulingStats"] = json!({"evictions": [
            {"reason": "Preempted", "underlyingCause": "", "count": 2}, {"reason": "PodsReadyTimeout", "count": 1},
        ]});
        let waits = |why: String| Some(QueueState::Waits(why));
        #[rustfmt::skip]
        let table = [
            (json!({}), None),
            (workload_with_conditions(&[]), None),
            (workload_with_conditions(&[("PodsReady", "False", "WaitForStart", "")]), None),
            (workload_with_conditions(&[("QuotaReserved", "False", "Pending", room)]), waits(format!("it waits in its queue: {room}"))),
            (workload_with_conditions(&[("QuotaReserved", "False", "Pending", never)]), Some(QueueState::NeverFits(format!("it waits in its queue: {never}; the trial cannot fit into the queue as it is")))),
            (pending("Pending", either), waits(format!("it waits in its queue: {either}"))),
            (pending("Pending", taint), waits(format!("it waits in its queue: {taint}"))),
            (pending("Inadmissible", namespace), waits(format!("it waits in its queue: {namespace}"))),
            (pending("NoMatchingFlavor", taint), Some(QueueState::NeverFits(format!("it waits in its queue: {taint}; the trial cannot fit into the queue as it is")))),
            (pending("ExceedsMaxQuota", "M"), Some(QueueState::NeverFits("it waits in its queue: M; the trial cannot fit into the queue as it is".to_owned()))),
            (again, waits(format!("it waits in its queue (preempted 2 times): {room}"))),
            (workload_with_conditions(&[reserved, admitted]), Some(QueueState::Admitted)),
            (checked, waits("its queue has reserved quota in the flavor spot and waits for the admission check by-hand: waiting for a node".to_owned())),
            (workload_with_conditions(&[reserved, admitted, ("Evicted", "True", "Preempted", "Preempted to accommodate a workload")]),
                waits("its queue took the trial back: Preempted to accommodate a workload".to_owned())),
            (workload_with_conditions(&[("QuotaReserved", "False", "Pending", "Preempted to"), ("Admitted", "False", "NoReservation", ""), ("Evicted", "True", "Preempted", "Preempted to")]),
                waits("its queue took the trial back: Preempted to".to_owned())),
            (workload_with_conditions(&[("QuotaReserved", "False", "Pending", room), ("Admitted", "False", "NoReservation", ""), ("Evicted", "True", "Preempted", "Preempted to")]),
                waits(format!("its queue took the trial back: {room}"))),
            (workload_with_conditions(&[reserved, admitted, ("Evicted", "False", "QuotaReserved", "Previously: Preempted")]), Some(QueueState::Admitted)),
            (workload_with_conditions(&[reserved, ("Finished", "True", "Succeeded", "")]), Some(QueueState::Admitted)),
        ];
        for (workload, expected) in table {
            assert_eq!(queue_state(&workload), expected, "{workload}");
        }
    }

    #[test]
    fn a_queue_ends_a_trial_that_may_not_run_any_more() {
        let evicted = |active: bool, reason: &str| {
            let mut workload = workload_with_conditions(&[
                ("QuotaReserved", "False", "Pending", "M"),
                ("Evicted", "True", reason, "M"),
            ]);
            workload["spec"]["active"] = Value::Bool(active);
            workload
        };
        let finished =
            |reason: &str| workload_with_conditions(&[("Finished", "True", reason, "M")]);
        #[rustfmt::skip]
        let table = [
            (evicted(false, "Deactivated"), "its Workload was deactivated: M", Some("Deactivated: M")),
            (evicted(false, "Preempted"), "its Workload was deactivated: M", Some("Deactivated: M")),
            (evicted(false, "InactiveWorkload"), "its Workload was deactivated: M", Some("Deactivated: M")),
            (evicted(false, "DeactivatedDueToMaximumExecutionTimeExceeded"), "the trial ran longer than its queue allows", Some("DeactivatedDueToMaximumExecutionTimeExceeded: M")),
            (evicted(false, "DeactivatedDueToRequeuingLimitExceeded"), "its pods were so often not ready in time", Some("DeactivatedDueToRequeuingLimitExceeded: M")),
            (evicted(false, "DeactivatedDueToAdmissionCheck"), "an admission check of its queue rejected it: M", None),
            (finished("FailedToStart"), "its queue has given up the trial: M (FailedToStart)", None),
            (finished("OutOfSync"), "its queue has given up the trial: M (OutOfSync)", Some("OutOfSync: M")),
        ];
        for (workload, why, disruption) in table {
            let Some(QueueState::Ended(end)) = queue_state(&workload) else { panic!("{workload}") };
            assert!(end.why.starts_with(why), "{}", end.why);
            assert_eq!(end.disruption.as_deref(), disruption, "{workload}");
        }
        // The user reactivates the Workload.
        assert!(matches!(queue_state(&evicted(true, "Deactivated")), Some(QueueState::Waits(_))));
    }

    proptest! {
        #[test]
        fn random_workloads_never_panic(kind in "[A-Za-z]{0,14}", status in "True|False|[a-z]{0,4}", reason in ".{0,40}", number in any::<i64>()) {
            let condition = json!({"type": kind, "status": status, "reason": reason, "message": number});
            drop(queue_state(&json!({"spec": number, "status": {
                "conditions": [condition, 3], "schedulingStats": {"evictions": [number, {"reason": "Preempted", "count": number}]},
                "admission": {"podSetAssignments": [{"flavors": number}, reason]},
            }})));
        }
    }
}
