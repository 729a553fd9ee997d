//! Kueue: creates a Workload for each queued object, admits objects within its quota, and preempts them. Each
//! step is that of a real Kueue (0.19).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde_json::{Value, json};

use super::Shared;
use super::controller::POLL_INTERVAL;
use super::objects::{find_condition, is_being_deleted, is_condition_true, string_at};

/// The queued kinds by plural, with the path of their `suspend` field.
const QUEUED_KINDS: [(&str, &str); 7] = [
    ("jobs", "/spec/suspend"),
    ("jobsets", "/spec/suspend"),
    ("trainjobs", "/spec/suspend"),
    ("tfjobs", "/spec/runPolicy/suspend"),
    ("pytorchjobs", "/spec/runPolicy/suspend"),
    ("xgboostjobs", "/spec/runPolicy/suspend"),
    ("paddlejobs", "/spec/runPolicy/suspend"),
];
const QUEUE_LABEL: &str = "/metadata/labels/kueue.x-k8s.io~1queue-name";
/// The quota that disables Kueue, for tests that admit objects themselves.
pub(super) const QUOTA_WITHOUT_KUEUE: usize = usize::MAX;

/// Handles queued objects until the server ends.
pub(super) fn run(shared: &Arc<Shared>) {
    while !shared.is_ending.load(Ordering::SeqCst) {
        let quota = shared.queue_quota.load(Ordering::SeqCst);
        if quota != QUOTA_WITHOUT_KUEUE {
            QueueController { shared, quota }.poll();
        }
        std::thread::park_timeout(POLL_INTERVAL);
    }
}

/// Returns the Workloads of a queue's suspended objects, in order, as Kueue's visibility API does.
pub(super) fn pending_workloads(shared: &Shared, queue: &str) -> Value {
    let all = QueueController { shared, quota: 0 }.queued_objects().into_iter();
    let waiting = all.filter(|queued| {
        queued.object.pointer(queued.suspend) == Some(&Value::Bool(true))
            && string_at(&queued.object, QUEUE_LABEL) == queue
    });
    let items = waiting.enumerate().map(|(position, queued)| {
        let metadata = &queued.workload["metadata"];
        json!({
            "metadata": {"name": metadata["name"], "ownerReferences": metadata["ownerReferences"]},
            "localQueueName": queue,
            "positionInClusterQueue": position, "positionInLocalQueue": position,
        })
    });
    json!({"kind": "PendingWorkloadsSummary", "items": items.collect::<Vec<_>>()})
}

struct QueueController<'a> {
    shared: &'a Shared,
    quota: usize,
}

/// A queued object.
struct QueuedObject {
    plural: &'static str,
    suspend: &'static str,
    object: Value,
    workload: Value,
}

impl QueueController<'_> {
    fn poll(&self) {
        let mut running = 0;
        for queued in self.queued_objects() {
            let holds = |kind: &str| is_condition_true(&queued.workload, kind);
            let is_active = queued.workload.pointer("/spec/active") != Some(&Value::Bool(false));
            if holds("Finished") {
                continue;
            }
            if has_ended(&queued.object) {
                let message = "Reached expected number of succeeded pods";
                self.set_conditions(&queued, &[("Finished", true, "Succeeded", message)]);
            } else if holds("Evicted") {
                self.continue_eviction(&queued, is_active, running);
            } else if holds("Admitted") && !is_active {
                self.evict(&queued, "Deactivated", "The workload is deactivated");
            } else if holds("Admitted") && running >= self.quota {
                let message = "Preempted to accommodate a workload (UID: 0, JobUID: 0) due to prioritization in the ClusterQueue";
                self.evict(&queued, "Preempted", message);
            } else if holds("Admitted") {
                running += 1;
            } else if is_active && running < self.quota {
                running += 1;
                self.admit(&queued);
            } else {
                self.set_conditions(
                    &queued,
                    &[("QuotaReserved", false, "Pending", NO_QUOTA_MESSAGE)],
                );
            }
        }
    }

    /// Returns every object with a queue, and its Workload. Creates missing Workloads.
    fn queued_objects(&self) -> Vec<QueuedObject> {
        let mut all = Vec::new();
        for (plural, suspend) in QUEUED_KINDS {
            for object in self.shared.objects.list(plural) {
                if object.pointer(QUEUE_LABEL).is_none() || is_being_deleted(&object) {
                    continue;
                }
                let name = format!(
                    "{}-{}-1a2b3",
                    plural.trim_end_matches('s'),
                    string_at(&object, "/metadata/name")
                );
                let Some(workload) = self.shared.objects.get("workloads", &name) else {
                    let owner = json!({"kind": object["kind"], "name": object["metadata"]["name"], "uid": object["metadata"]["uid"]});
                    let workload = json!({
                        "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload",
                        "metadata": {"name": name, "namespace": "lab", "ownerReferences": [owner]},
                        "spec": {"active": true},
                    });
                    drop(self.shared.objects.create("workloads", workload));
                    continue;
                };
                all.push(QueuedObject { plural, suspend, object, workload });
            }
        }
        all
    }

    fn admit(&self, queued: &QueuedObject) {
        let mut new_conditions = vec![
            ("QuotaReserved", true, "QuotaReserved", "Quota reserved in ClusterQueue all"),
            ("Admitted", true, "Admitted", "The workload is admitted"),
        ];
        for kind in ["Evicted", "Preempted"] {
            if find_condition(&queued.workload, kind).is_some() {
                new_conditions.push((kind, false, "QuotaReserved", "Previously: taken back"));
            }
        }
        self.set_conditions(queued, &new_conditions);
        self.set_suspended(queued, false);
    }

    fn evict(&self, queued: &QueuedObject, reason: &str, message: &str) {
        let mut new_conditions = vec![("Evicted", true, reason, message)];
        if reason == "Preempted" {
            new_conditions.push(("Preempted", true, "InClusterQueue", message));
        }
        self.set_conditions(queued, &new_conditions);
        let name = string_at(&queued.workload, "/metadata/name");
        let count = |workload: &mut Value| {
            let before = workload.pointer("/status/schedulingStats/evictions/0/count");
            let count = before.and_then(Value::as_u64).unwrap_or(0) + 1;
            let eviction = json!({"reason": reason, "underlyingCause": "", "count": count});
            workload["status"]["schedulingStats"] = json!({"evictions": [eviction]});
        };
        drop(self.shared.objects.change("workloads", &name, count));
        self.set_suspended(queued, true);
    }

    /// Releases an evicted object's quota after its pods were asked to end, and admits it again when there is
    /// quota.
    fn continue_eviction(&self, queued: &QueuedObject, is_active: bool, running: usize) {
        if is_condition_true(&queued.workload, "Admitted") {
            if active_pods(&queued.object) == 0 {
                let words =
                    find_condition(&queued.workload, "Evicted").map(|it| string_at(it, "/message"));
                let words = words.unwrap_or_default();
                self.set_conditions(
                    queued,
                    &[
                        ("QuotaReserved", false, "Pending", &words),
                        ("Admitted", false, "NoReservation", "The workload has no reservation"),
                        ("Requeued", is_active, "Preempted", &words),
                    ],
                );
            }
        } else if is_active && running < self.quota {
            self.admit(queued);
        } else if is_active {
            self.set_conditions(queued, &[("QuotaReserved", false, "Pending", NO_QUOTA_MESSAGE)]);
        }
    }

    fn set_suspended(&self, queued: &QueuedObject, suspend: bool) {
        let name = string_at(&queued.object, "/metadata/name");
        let change = |object: &mut Value| {
            if let Some(known) = object.pointer_mut(queued.suspend) {
                *known = Value::Bool(suspend);
            }
        };
        drop(self.shared.objects.change(queued.plural, &name, change));
    }

    /// Writes conditions into a Workload, if they have changed.
    fn set_conditions(&self, queued: &QueuedObject, new_conditions: &[(&str, bool, &str, &str)]) {
        let mut conditions = queued.workload.pointer("/status/conditions").cloned();
        let before = conditions.clone();
        let known = conditions.get_or_insert_with(|| json!([])).as_array_mut();
        let Some(known) = known else { return };
        for (kind, status, reason, message) in new_conditions {
            let status = if *status { "True" } else { "False" };
            known.retain(|condition| condition["type"] != *kind);
            known.push(
                json!({"type": kind, "status": status, "reason": reason, "message": message}),
            );
        }
        if conditions == before {
            return;
        }
        let name = string_at(&queued.workload, "/metadata/name");
        let change = |workload: &mut Value| workload["status"]["conditions"] = json!(conditions);
        drop(self.shared.objects.change("workloads", &name, change));
    }
}

/// The message while the queue has no free quota.
const NO_QUOTA_MESSAGE: &str = "couldn't assign flavors to pod set main: insufficient unused quota for cpu in flavor default-flavor, 1 more needed";

fn has_ended(object: &Value) -> bool {
    ["Complete", "Completed", "Succeeded", "Failed"]
        .iter()
        .any(|kind| is_condition_true(object, kind))
}

/// Returns the number of pods that were not asked to end. The pods of the training operator are deleted at
/// once.
fn active_pods(object: &Value) -> u64 {
    object.pointer("/status/active").and_then(Value::as_u64).unwrap_or(0)
}
