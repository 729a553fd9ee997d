//! PURE: passes the state of a pod, as a watch shows it, to the tracker.

use std::time::Duration;

use serde_json::Value;

use super::{PodDeparture, PodKey, Tracker, TrackerAction};
use crate::training_service::kubernetes::client::WatchedObject;
use crate::training_service::kubernetes::{disruption, pending_reason, pod_end};

/// Passes the observation of a pod to the tracker.
pub fn observe_pod(
    tracker: &mut Tracker,
    pod: &WatchedObject,
    now: Duration,
) -> Vec<TrackerAction> {
    let phase = pod.body.pointer("/status/phase").and_then(Value::as_str);
    let is_over = matches!(phase, Some("Succeeded" | "Failed"));
    let departure = match pod.body.pointer("/metadata/deletionTimestamp").is_some() {
        false => PodDeparture::NotDeleted,
        true if is_over => PodDeparture::Gone,
        true => PodDeparture::Deleted,
    };
    let key = PodKey::of_pod(pod, tracker.kind());
    let left = tracker.observe_pod_departure(key, pod.uid.as_deref(), departure, now);
    let has_started =
        departure != PodDeparture::NotDeleted || is_over || pod_end::has_started(&pod.body);
    if let Some(pods) = tracker.pods_unless_foreign(key) {
        pods.record_creation(key, pod.created.as_deref());
        pods.record_disruption_time(key, disruption::disruption_time(&pod.body));
        pods.record_start(key, has_started);
    }
    tracker.observe_pod_gates(key, pending_reason::is_gated(&pod.body), now);
    if pod_end::has_ended(&pod.body) {
        tracker.observe_pod_end(key, pod_end::observed_fields(&pod.name, &pod.body));
    }
    let requeued = match phase {
        _ if is_over => {
            tracker.mark_pod_completed(key, now);
            None
        }
        Some("Running") => tracker.mark_pod_running(key),
        _ => None,
    };
    let (why, disruption) = (pending_reason::pod_reason(&pod.body), disruption::of_pod(&pod.body));
    let reason = tracker.observe_pod(key, why, disruption);
    requeued.into_iter().chain(reason).chain(left).collect()
}

/// Informs the tracker that a pod is gone.
pub fn observe_missing_pod(
    tracker: &mut Tracker,
    pod: &WatchedObject,
    now: Duration,
) -> Option<TrackerAction> {
    let key = PodKey::of_pod(pod, tracker.kind());
    let left = tracker.observe_pod_departure(key, pod.uid.as_deref(), PodDeparture::Gone, now);
    tracker.observe_pod_end(key, pod_end::observed_fields(&pod.name, &pod.body));
    left
}
