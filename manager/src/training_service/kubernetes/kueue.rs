//! PURE: what Kueue says of a trial that waits in a queue, by the Workload that it keeps for each Job.
//!
//! Source: Kueue 0.19, `apis/kueue/v1beta1`, and recordings of it.

use serde_json::Value;

use super::client::Resource;
use super::text::shortened;
use super::why::{condition, is, text};

/// Kueue's Workloads, as the API names them.
pub const WORKLOADS: Resource =
    Resource { group: "kueue.x-k8s.io", version: "v1beta1", kind: "Workload", plural: "workloads" };

/// Why the trial of this Workload does not run. `None`: it is admitted, or has ended.
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
