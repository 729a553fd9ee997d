//! PURE: observations of pods, which the status of their workloads may lack.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use serde_json::Value;

use crate::config::kubernetes::WorkloadKind;
use crate::training_service::kubernetes::client::WatchedObject;
use crate::training_service::kubernetes::disruption::Disruption;
use crate::training_service::kubernetes::manifest::workload_of;
use crate::training_service::kubernetes::outcome::WorkloadOutcome;
use crate::training_service::kubernetes::workload::Workload;

/// The identity of a pod.
#[derive(Debug, Clone, Copy)]
pub struct PodKey<'a> {
    /// The workload of the pod.
    pub workload: &'a str,
    /// The name of the pod.
    pub name: &'a str,
}

impl<'a> PodKey<'a> {
    /// Returns the key of a pod of a workload of this kind.
    pub fn of_pod(pod: &'a WatchedObject, kind: WorkloadKind) -> Self {
        // Old clusters do not set every label.
        match pod.labels.workload(kind) {
            Some(workload) => Self { workload, name: &pod.name },
            None => Self::from(pod.name.as_str()),
        }
    }
}

/// The identity of a pod of which only the name is known.
impl<'a> From<&'a str> for PodKey<'a> {
    fn from(name: &'a str) -> Self {
        Self { workload: workload_of(name), name }
    }
}

/// A step in the disappearance of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PodDeparture {
    /// The pod was not deleted.
    NotDeleted,
    /// The pod was deleted and has not ended yet.
    Deleted,
    /// The pod was deleted and has ended, or no longer exists.
    Gone,
}

/// The observed pods of each workload, in the order in which they were first seen.
///
/// A deleted pod counts for its workload until another pod has its place, or until the queue that stopped the pod lets
/// the workload run again.
#[derive(Debug)]
pub struct ObservedPods {
    kind: &'static dyn Workload,
    seen: HashMap<String, Vec<Pod>>,
    /// The known pods that the current listing has not shown yet.
    unlisted: HashSet<String>,
    /// Set during a listing, which has no order.
    is_listing: bool,
}

/// The last observation of a pod.
#[expect(clippy::struct_excessive_bools, reason = "independent facts")]
#[derive(Debug, Default)]
struct Pod {
    name: String,
    /// The unique id, if known. A recreated pod may have the name of its predecessor.
    incarnation: Option<String>,
    /// The time of its creation by the API server's clock, in RFC 3339.
    created: Option<String>,
    /// The disruption by which the platform removes the pod.
    disruption: Option<Disruption>,
    /// The time at which the platform began to remove the pod, in RFC 3339.
    disrupted_at: Option<String>,
    /// The pod itself, if it ends or has ended. A deleted pod is gone before its workload reports the failure.
    end: Option<Value>,
    /// The time since which the pod runs on although its trial has ended.
    outlives_since: Option<Duration>,
    /// Set if all containers of the pod have started, or the pod was deleted.
    has_started: bool,
    /// Set if the pod has scheduling gates.
    is_gated: bool,
    /// Set if the pod was deleted or is gone.
    is_deleted: bool,
    /// The time of the deletion, while the pod has not ended.
    deleted_at: Option<Duration>,
    /// Set if the pod was deleted while it ran, before the watch showed the failure or the deletion of another pod. A
    /// controller deletes the other pods only after it has seen a failure, so it did not delete this one.
    is_first_deleted: bool,
    /// Set if a container of the pod failed by itself, and not because the pod was deleted.
    has_failed: bool,
    /// Set if the news that the pod has left was sent.
    has_left: bool,
    /// Set if the pod was deleted before its queue let the workload run again.
    is_past: bool,
}

impl ObservedPods {
    /// Creates an empty collection for workloads of a kind.
    pub(super) fn new(kind: &'static dyn Workload) -> Self {
        Self { kind, seen: HashMap::new(), unlisted: HashSet::new(), is_listing: false }
    }

    /// Returns the observed pod, and adds it if it is new.
    fn pod_entry(&mut self, PodKey { workload, name }: PodKey<'_>) -> &mut Pod {
        let own = self.seen.entry(workload.to_owned()).or_default();
        let at = own.iter().position(|pod| pod.name == name).unwrap_or_else(|| {
            own.push(Pod { name: name.to_owned(), ..Pod::default() });
            own.len() - 1
        });
        &mut own[at]
    }

    fn pods_of(&self, workload: &str) -> &[Pod] {
        self.seen.get(workload).map_or(&[], Vec::as_slice)
    }

    /// Returns whether a pod was deleted and another pod has its place. The other pod was observed later, or was not
    /// deleted.
    fn is_replaced(&self, own: &[Pod], at: usize) -> bool {
        let has_place = |(other, pod): (usize, &Pod)| {
            let is_of_it = self.kind.pod_place(&pod.name) == self.kind.pod_place(&own[at].name);
            other != at && is_of_it && (other > at || !pod.is_deleted)
        };
        own[at].is_deleted && own.iter().enumerate().any(has_place)
    }

    /// Returns whether a pod counts for its workload's present run.
    fn is_current_pod(&self, own: &[Pod], at: usize) -> bool {
        !own[at].is_past && !self.is_replaced(own, at)
    }

    /// Returns the pods that count for their workload's present run.
    fn current_pods(&self, workload: &str) -> impl Iterator<Item = &Pod> {
        let own = self.pods_of(workload);
        let current = own.iter().enumerate().filter(move |(at, _)| self.is_current_pod(own, *at));
        current.map(|(_, pod)| pod)
    }

    /// Returns the number of places that have, or had, a pod since the workload may run.
    pub(super) fn place_count(&self, workload: &str) -> u64 {
        let own = self.pods_of(workload).iter().filter(|pod| !pod.is_past);
        let places: HashSet<&str> = own.map(|pod| self.kind.pod_place(&pod.name)).collect();
        u64::try_from(places.len()).unwrap_or(u64::MAX)
    }

    /// Returns the number of places whose pods have started.
    pub(super) fn started_place_count(&self, workload: &str) -> u64 {
        let started = self.current_pods(workload).filter(|pod| pod.has_started);
        let places: HashSet<&str> = started.map(|pod| self.kind.pod_place(&pod.name)).collect();
        u64::try_from(places.len()).unwrap_or(u64::MAX)
    }

    /// Records the time of a pod's creation, by the API server's clock.
    pub(super) fn record_creation(&mut self, pod: PodKey<'_>, created: Option<&str>) {
        self.pod_entry(pod).created = created.map(str::to_owned);
    }

    /// Returns the time at which the newest pod of a workload was created, by the API server's clock.
    pub fn newest_creation(&self, workload: &str) -> Option<&str> {
        self.pods_of(workload).iter().filter_map(|pod| pod.created.as_deref()).max()
    }

    /// Returns whether a pod of a workload runs, as far as the watch has shown.
    pub fn has_running(&self, workload: &str) -> bool {
        self.current_pods(workload).any(|pod| pod.end.is_none())
    }

    /// Records whether a pod has started, which its workload need not show: a Job counts only pods that are ready.
    pub(super) fn record_start(&mut self, pod: PodKey<'_>, has_started: bool) {
        self.pod_entry(pod).has_started = has_started;
    }

    /// Records whether a pod has scheduling gates.
    pub(super) fn record_gates(&mut self, pod: PodKey<'_>, is_gated: bool) {
        self.pod_entry(pod).is_gated = is_gated;
    }

    /// Returns whether a pod of a workload has scheduling gates.
    pub(super) fn is_gated(&self, workload: &str) -> bool {
        self.current_pods(workload).any(|pod| pod.is_gated && !pod.is_deleted)
    }

    /// Records the time since which a pod runs on although its trial has ended.
    pub(super) fn record_outliving(&mut self, pod: PodKey<'_>, since: Option<Duration>) {
        let pod = self.pod_entry(pod);
        pod.outlives_since = since.map(|since| pod.outlives_since.unwrap_or(since));
    }

    /// Returns the time since which a pod of a workload runs on although its trial has ended.
    pub(super) fn outliving_since(&self, workload: &str) -> Option<Duration> {
        self.current_pods(workload).filter_map(|pod| pod.outlives_since).min()
    }

    /// Begins the wait for the end of such pods again.
    pub(super) fn restart_outliving(&mut self, workload: &str, now: Duration) {
        let own = self.seen.get_mut(workload).into_iter().flatten();
        let remains = own.filter_map(|pod| pod.outlives_since.as_mut());
        remains.for_each(|since| *since = now);
    }

    /// Begins a listing of the pods.
    pub(super) fn begin_listing(&mut self) {
        let pods = self.seen.values().flatten();
        self.unlisted = pods.map(|pod| pod.name.clone()).collect();
        self.is_listing = true;
    }

    /// Completes the listing. Returns the pods that it lacks: the workload, the name and the unique id of each.
    pub(super) fn complete_listing(&mut self) -> Vec<(String, String, Option<String>)> {
        self.is_listing = false;
        let unlisted = std::mem::take(&mut self.unlisted);
        let pods =
            self.seen.iter().flat_map(|(workload, own)| own.iter().map(move |pod| (workload, pod)));
        let gone = pods.filter(|(_, pod)| unlisted.contains(&pod.name));
        gone.map(|(workload, pod)| (workload.clone(), pod.name.clone(), pod.incarnation.clone()))
            .collect()
    }

    /// Returns whether a pod counts for its workload's present run, as an unknown pod does.
    pub(super) fn is_current(&self, pod: PodKey<'_>) -> bool {
        let own = self.pods_of(pod.workload);
        let at = own.iter().position(|known| known.name == pod.name);
        at.is_none_or(|at| self.is_current_pod(own, at))
    }

    /// Sets the disruption by which the platform removes a pod. `None` also clears the disruption of an earlier pod
    /// with the same name.
    pub(super) fn set_disruption(&mut self, pod: PodKey<'_>, disruption: Option<Disruption>) {
        self.pod_entry(pod).disruption = disruption;
    }

    /// Records the time at which the platform began to remove a pod, by the API server's clock.
    pub(super) fn record_disruption_time(&mut self, pod: PodKey<'_>, at: Option<&str>) {
        self.pod_entry(pod).disrupted_at = at.map(str::to_owned);
    }

    /// Returns whether the platform removes, or has removed, a pod of a workload.
    pub(super) fn has_disruption(&self, workload: &str) -> bool {
        self.current_pods(workload).any(|pod| pod.disruption.is_some())
    }

    /// Returns whether a pod was deleted.
    pub(super) fn is_deleted(&self, pod: PodKey<'_>) -> bool {
        self.pods_of(pod.workload).iter().any(|known| known.name == pod.name && known.is_deleted)
    }

    /// Records the observation of a pod that ends, or has ended.
    pub(super) fn record_end(&mut self, pod: PodKey<'_>, seen: Value) {
        let pod = self.pod_entry(pod);
        pod.end = Some(seen);
        // An agent whose trial was ended by a signal exits with one of these codes.
        let by_itself = |end: &Value| !matches!(end["exitCode"].as_i64(), Some(137 | 143));
        let has_failed = pod.failures().any(|end| !pod.is_deleted || by_itself(end));
        pod.has_failed |= has_failed;
    }

    /// Returns the name of the first pod that a workload lost, if it was deleted while it ran, and another pod failed
    /// later.
    pub(super) fn first_deleted(&self, workload: &str) -> Option<&str> {
        let is_cause = |pod: &&Pod| pod.is_first_deleted && pod.disruption.is_none();
        let first = self.current_pods(workload).find(is_cause)?;
        let has_failed = |pod: &Pod| pod.has_failed && pod.name != first.name;
        self.current_pods(workload).any(has_failed).then_some(first.name.as_str())
    }

    /// Records the id of a pod, and a step in its disappearance.
    pub(super) fn record_deletion(
        &mut self,
        pod: PodKey<'_>,
        incarnation: Option<&str>,
        departure: PodDeparture,
        now: Duration,
    ) {
        let is_other = |known: &Pod| {
            let ids = known.incarnation.as_deref().zip(incarnation);
            known.name == pod.name && ids.is_some_and(|(known, seen)| known != seen)
        };
        self.unlisted.remove(pod.name);
        if let Some(own) = self.seen.get_mut(pod.workload) {
            own.retain(|known| !is_other(known));
        }
        let is_intact = |pod: &Pod| !pod.is_deleted && !pod.has_failed;
        let is_first = departure == PodDeparture::Deleted
            && !self.is_listing
            && self.current_pods(pod.workload).all(is_intact);
        let known = self.pod_entry(pod);
        known.is_first_deleted |= is_first;
        if known.incarnation.is_none() {
            known.incarnation = incarnation.map(str::to_owned);
        }
        known.is_deleted = departure != PodDeparture::NotDeleted;
        // A deleted pod ends.
        known.outlives_since = known.outlives_since.filter(|_| !known.is_deleted);
        known.deleted_at = match departure {
            PodDeparture::Deleted => known.deleted_at.or(Some(now)),
            PodDeparture::NotDeleted | PodDeparture::Gone => None,
        };
    }

    /// Returns the workloads with deleted pods that have not ended and have no successor, each with the time of the
    /// deletion.
    pub(super) fn workloads_with_deleted_pods(&self) -> impl Iterator<Item = (&str, Duration)> {
        self.seen.iter().flat_map(move |(workload, own)| {
            let left = own.iter().enumerate().filter(move |(at, _)| !self.is_replaced(own, *at));
            left.filter_map(move |(_, pod)| Some((workload.as_str(), pod.deleted_at?)))
        })
    }

    /// Records that a pod has left, and returns `true` if this is new.
    pub(super) fn record_departure(&mut self, pod: PodKey<'_>) -> bool {
        !std::mem::replace(&mut self.pod_entry(pod).has_left, true)
    }

    /// Marks the deleted pods of a workload as past, because the workload runs again after its queue had evicted it.
    pub(super) fn mark_deleted_as_past(&mut self, workload: &str) {
        let own = self.seen.get_mut(workload).into_iter().flatten();
        own.filter(|pod| pod.is_deleted).for_each(|pod| pod.is_past = true);
    }

    /// Returns the listed pods of a workload, and the pods whose ends were observed, if they count for its present run.
    pub fn with_ended_pods(&self, workload: &str, listed: Vec<Value>) -> Vec<Value> {
        let own = self.pods_of(workload);
        let is_stale = |seen: &Value| {
            own.iter()
                .enumerate()
                .any(|(at, pod)| pod.is_same_pod(seen) && !self.is_current_pod(own, at))
        };
        let mut pods = listed;
        pods.retain(|seen| !is_stale(seen));
        let ended = self
            .current_pods(workload)
            .filter(|pod| !pods.iter().any(|seen| pod.has_name_of(seen)));
        let ended: Vec<Value> = ended.filter_map(|pod| pod.end.clone()).collect();
        pods.extend(ended);
        pods
    }

    /// Returns the only pod of a workload, if its end was observed.
    pub(super) fn only_ended_pod(&self, workload: &str) -> Option<Value> {
        let mut ended = self.with_ended_pods(workload, Vec::new());
        let pod = ended.pop().filter(|_| ended.is_empty())?;
        let phase = pod.pointer("/status/phase").and_then(Value::as_str);
        let is_over = matches!(phase, Some("Succeeded" | "Failed"));
        let is_deleted = pod.pointer("/metadata/deletionTimestamp").is_some();
        (is_over && !is_deleted && !self.has_unobserved_end(workload, &[])).then_some(pod)
    }

    /// Returns whether a pod of a workload is missing from the listing although its end was not observed. The watch
    /// then lags behind the listing.
    pub fn has_unobserved_end(&self, workload: &str, listed: &[Value]) -> bool {
        let is_listed = |pod: &Pod| listed.iter().any(|seen| pod.has_name_of(seen));
        self.current_pods(workload).any(|pod| pod.end.is_none() && !is_listed(pod))
    }

    /// Returns the outcome with the disruption of the deciding pod, if the workload itself does not report it.
    pub(super) fn with_observed_disruption(
        &self,
        workload: &str,
        outcome: WorkloadOutcome,
    ) -> WorkloadOutcome {
        let decided_by = outcome.decided_by.as_ref().filter(|_| outcome.disruption.is_none());
        let seen = decided_by.and_then(|by| {
            let whole = format!("{workload}-{}-{}", by.role, by.index);
            // In a JobSet each pod's name ends with a random suffix.
            let prefix = format!("{workload}-{}-0-{}-", by.role, by.index);
            let mut own = self.current_pods(workload).filter(|pod| pod.disruption.is_some());
            own.find(|pod| pod.name == whole || pod.name.starts_with(&prefix))
        });
        match seen.and_then(|pod| pod.disruption.clone()) {
            Some(disruption) => outcome.with_disruption(disruption),
            None => outcome,
        }
    }

    /// Returns the outcome of a workload with the disruption of a pod that the platform removed before another pod
    /// failed. The other pod probably failed for the loss of its peer.
    pub(super) fn with_lost_peer(
        &self,
        workload: &str,
        outcome: WorkloadOutcome,
    ) -> WorkloadOutcome {
        let disrupted =
            self.current_pods(workload).filter_map(|pod| Some((pod, pod.disrupted_at.as_ref()?)));
        let first = disrupted.min_by_key(|(_, at)| *at);
        let failed_at = self.current_pods(workload).filter_map(Pod::failed_at).min();
        let Some((Pod { disruption: Some(disruption), .. }, at)) = first else { return outcome };
        if failed_at.is_none_or(|failed_at| failed_at < at.as_str()) {
            return outcome;
        }
        outcome.with_lost_peer(disruption.clone())
    }

    /// Removes the pods of a workload.
    pub(super) fn remove_workload(&mut self, workload: &str) {
        self.seen.remove(workload);
    }
}

impl Pod {
    /// Returns the time at which a container of the pod failed by itself, in RFC 3339.
    fn failed_at(&self) -> Option<&str> {
        self.failures().filter_map(|end| end["finishedAt"].as_str()).min()
    }

    /// Returns the ends of the containers that failed, unless the platform removed the pod.
    fn failures(&self) -> impl Iterator<Item = &Value> {
        let end = self.end.as_ref().filter(|_| self.disruption.is_none());
        let containers = end.and_then(|end| end.pointer("/status/containerStatuses")?.as_array());
        let containers = containers.into_iter().flatten();
        let ends = containers.filter_map(|container| container.pointer("/state/terminated"));
        ends.filter(|end| end["exitCode"] != 0)
    }

    fn has_name_of(&self, seen: &Value) -> bool {
        seen.pointer("/metadata/name").and_then(Value::as_str) == Some(self.name.as_str())
    }

    /// Returns whether an observation is of this pod, and not of another pod with the same name.
    fn is_same_pod(&self, seen: &Value) -> bool {
        let id = seen.pointer("/metadata/uid").and_then(Value::as_str);
        let ids = id.zip(self.incarnation.as_deref());
        self.has_name_of(seen) && ids.is_none_or(|(seen, known)| seen == known)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pod_belongs_to_the_workload_that_its_label_names() {
        #[rustfmt::skip]
        let table = [
            (WorkloadKind::Framework,  json!({"FC_FRAMEWORK_NAME": "tkx"}),              "other-worker-0", "tkx"),
            (WorkloadKind::Job,        json!({"batch.kubernetes.io/job-name": "tkx"}),   "other-abcde",    "tkx"),
            (WorkloadKind::PyTorchJob, json!({"training.kubeflow.org/job-name": "tkx"}), "other-worker-0", "tkx"),
            (WorkloadKind::JobSet,     json!({"jobset.sigs.k8s.io/jobset-name": "tkx", "batch.kubernetes.io/job-name": "tkx-ps-0"}), "other-ps-0-0-abcde", "tkx"),
            (WorkloadKind::TrainJob,   json!({"jobset.sigs.k8s.io/jobset-name": "tkx", "batch.kubernetes.io/job-name": "tkx-node-0"}), "other-node-0-0-abcde", "tkx"),
            // Labels that the user's template has from an old pod.
            (WorkloadKind::Job,        json!({"jobset.sigs.k8s.io/jobset-name": "old", "batch.kubernetes.io/job-name": "tkx"}), "tkx-abcde", "tkx"),
            (WorkloadKind::Job,        json!({"FC_FRAMEWORK_NAME": "old", "training.kubeflow.org/job-name": "old"}), "tkx-abcde", "tkx"),
            (WorkloadKind::Framework,  json!({"jobset.sigs.k8s.io/jobset-name": "old"}), "tkx-worker-0",   "tkx"),
            (WorkloadKind::Job,        json!({}),                                        "tkx-abcde",      "tkx"),
        ];
        for (kind, labels, name, expected) in table {
            let pod = json!({"metadata": {"name": name, "labels": labels}});
            let pod: WatchedObject = serde_json::from_value(pod).unwrap();
            assert_eq!(PodKey::of_pod(&pod, kind).workload, expected, "{kind:?} {labels}");
        }
    }
}
