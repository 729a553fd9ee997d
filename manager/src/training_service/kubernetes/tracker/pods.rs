//! PURE: the observations of pods that their workloads may not report.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use serde_json::Value;

use super::{Act, Tracker};
use crate::training_service::kubernetes::disruption::Disruption;
use crate::training_service::kubernetes::outcome::{JobPhase, Outcome};
use crate::training_service::kubernetes::pending_reason::workload_of;
use crate::training_service::kubernetes::workload::Workload;
use crate::training_service::{JobImage, JobNews, PodLeft};

impl Tracker {
    /// The pod whose metrics are the trial's runs this image.
    pub fn image(&mut self, name: &str, image: String) -> Option<Act> {
        let job = self.jobs.get_mut(name).filter(|job| job.image.as_ref() != Some(&image))?;
        job.image = Some(image.clone());
        let (trial, attempt) = (job.trial.clone(), job.attempt.clone());
        Some(Act::Tell(JobNews::Image(JobImage { trial, attempt, image })))
    }

    /// A pod was seen that ends, or has ended.
    pub fn pod_ends(&mut self, pod: &str, seen: Value) {
        if self.knows(workload_of(pod)) {
            self.pods.ends(pod, seen);
        }
    }

    /// A pod was seen that runs. Its workload says so later, and a queue may take both back before.
    pub fn pod_runs(&mut self, pod: &str) {
        let job = self.jobs.get_mut(workload_of(pod));
        if let Some(job) = job.filter(|job| job.phase != JobPhase::Suspended) {
            job.ran = true;
        }
    }

    /// A pod was seen whose containers have all ended. Where Jobs are followed, the workload may end with it.
    pub fn pod_over(&mut self, pod: &str, now: Duration) {
        let counts = self.kind.follows_jobs() && self.pods.is_current(pod);
        let job = self.jobs.get_mut(workload_of(pod)).filter(|_| counts);
        // A pod that its queue stops is no end of the workload.
        if let Some(job) = job.filter(|job| job.phase != JobPhase::Suspended) {
            job.ending_since = job.ending_since.or(Some(now));
        }
    }

    /// A pod was seen that is to end, or is not. `incarnation` is its own id.
    pub fn pod_goes(
        &mut self,
        pod: &str,
        incarnation: Option<&str>,
        goes: PodGoes,
        now: Duration,
    ) -> Option<Act> {
        if self.knows(workload_of(pod)) {
            self.pods.goes(pod, incarnation, goes, now);
        }
        let job = self.jobs.get(workload_of(pod))?;
        let incarnation = incarnation.filter(|_| self.wanted > 1 && goes != PodGoes::No)?;
        if !self.pods.leaves(pod) {
            return None;
        }
        let (trial, attempt) = (job.trial.clone(), job.attempt.clone());
        let incarnation = incarnation.to_owned();
        Some(Act::Tell(JobNews::PodLeft(PodLeft { trial, attempt, incarnation })))
    }

    /// Returns whether a workload is ours, or may yet be found to be.
    pub(super) fn knows(&self, name: &str) -> bool {
        !self.listed || self.jobs.contains_key(name) || self.strangers.contains_key(name)
    }

    /// The pods of a workload that a listing has and those that were seen to end, without those of an earlier run of it.
    pub fn with_ended_pods(&self, name: &str, listed: Vec<Value>) -> Vec<Value> {
        self.pods.with_ended(name, listed)
    }

    /// Returns the pod of a workload that has one at a time, where it was seen to end by itself: a listing says no more.
    pub fn only_pod(&self, name: &str) -> Option<Value> {
        let mut ended = self.pods.with_ended(name, Vec::new());
        let pod = ended.pop().filter(|_| self.wanted == 1 && ended.is_empty())?;
        let phase = pod.pointer("/status/phase").and_then(Value::as_str);
        let is_over = matches!(phase, Some("Succeeded" | "Failed"));
        let is_deleted = pod.pointer("/metadata/deletionTimestamp").is_some();
        (is_over && !is_deleted && !self.pods.lacks_end(name, &[])).then_some(pod)
    }

    /// Returns whether a pod that a listing no longer has was not seen to end: then the watch lags behind the listing.
    pub fn lacks_end(&self, name: &str, listed: &[Value]) -> bool {
        self.pods.lacks_end(name, listed)
    }
}

/// The disappearance of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PodGoes {
    /// It does not, or has ended by itself.
    No,
    /// It is to end, and has not yet.
    Deleted,
    /// It was to end, and has; or it is gone.
    Gone,
}

/// The pods of each workload, those that were seen later after the others.
///
/// A pod that was deleted tells nothing of its workload any more once another pod has its place, or once the queue that
/// stopped it lets the workload run again.
#[derive(Debug)]
pub(super) struct Pods {
    kind: &'static dyn Workload,
    seen: HashMap<String, Vec<Pod>>,
}

/// A pod, as it was seen last.
#[derive(Debug, Default)]
struct Pod {
    name: String,
    /// Its own id, where it was seen: a pod that is made again may have the name of the one before.
    incarnation: Option<String>,
    /// The disruption by which the platform takes it away, or has taken it.
    disruption: Option<Disruption>,
    /// The pod itself, where it ends or has ended: one that was deleted is gone before its workload says that it failed.
    end: Option<Value>,
    /// It is to end, or is gone.
    is_deleted: bool,
    /// Since when it is to end and has not.
    goes_since: Option<Duration>,
    /// It was told that it left.
    has_left: bool,
    /// It was deleted before its queue let the workload run again.
    is_past: bool,
}

impl Pods {
    /// No pods, of workloads of a kind.
    pub(super) fn new(kind: &'static dyn Workload) -> Self {
        Self { kind, seen: HashMap::new() }
    }

    /// The pod of a name, which may be new.
    fn pod(&mut self, name: &str) -> &mut Pod {
        let own = self.seen.entry(workload_of(name).to_owned()).or_default();
        let at = own.iter().position(|pod| pod.name == name).unwrap_or_else(|| {
            own.push(Pod { name: name.to_owned(), ..Pod::default() });
            own.len() - 1
        });
        &mut own[at]
    }

    fn own(&self, workload: &str) -> &[Pod] {
        self.seen.get(workload).map_or(&[], Vec::as_slice)
    }

    /// Returns whether a pod was deleted and another has its place: one that was seen later, or that was not deleted.
    fn is_replaced(&self, own: &[Pod], at: usize) -> bool {
        let has_place = |(other, pod): (usize, &Pod)| {
            let is_of_it = self.kind.place(&pod.name) == self.kind.place(&own[at].name);
            other != at && is_of_it && (other > at || !pod.is_deleted)
        };
        own[at].is_deleted && own.iter().enumerate().any(has_place)
    }

    /// Returns whether a pod tells of its workload as it is now.
    fn is_telling(&self, own: &[Pod], at: usize) -> bool {
        !own[at].is_past && !self.is_replaced(own, at)
    }

    /// The pods that tell of their workload as it is now.
    fn current(&self, workload: &str) -> impl Iterator<Item = &Pod> {
        let own = self.own(workload);
        let telling = own.iter().enumerate().filter(move |(at, _)| self.is_telling(own, *at));
        telling.map(|(_, pod)| pod)
    }

    /// Returns the number of places that have, or had, a pod since the workload may run.
    pub(super) fn places(&self, workload: &str) -> u64 {
        let own = self.own(workload).iter().filter(|pod| !pod.is_past);
        let places: HashSet<&str> = own.map(|pod| self.kind.place(&pod.name)).collect();
        u64::try_from(places.len()).unwrap_or(u64::MAX)
    }

    /// Returns whether a pod tells of its workload as it is now, as far as is known.
    pub(super) fn is_current(&self, pod: &str) -> bool {
        let own = self.own(workload_of(pod));
        let at = own.iter().position(|known| known.name == pod);
        at.is_none_or(|at| self.is_telling(own, at))
    }

    /// Notes whether the platform takes a pod away. `None` also of another pod that has the name of one that it took.
    pub(super) fn seen(&mut self, pod: &str, disruption: Option<Disruption>) {
        self.pod(pod).disruption = disruption;
    }

    /// Returns whether a pod was deleted.
    pub(super) fn is_deleted(&self, pod: &str) -> bool {
        self.own(workload_of(pod)).iter().any(|known| known.name == pod && known.is_deleted)
    }

    /// Notes a pod that ends, or has ended.
    pub(super) fn ends(&mut self, pod: &str, seen: Value) {
        self.pod(pod).end = Some(seen);
    }

    /// Notes the id of a pod and whether it is to end, or has.
    pub(super) fn goes(
        &mut self,
        pod: &str,
        incarnation: Option<&str>,
        goes: PodGoes,
        now: Duration,
    ) {
        let is_other = |known: &Pod| {
            let ids = known.incarnation.as_deref().zip(incarnation);
            known.name == pod && ids.is_some_and(|(known, seen)| known != seen)
        };
        if let Some(own) = self.seen.get_mut(workload_of(pod)) {
            own.retain(|known| !is_other(known));
        }
        let known = self.pod(pod);
        if known.incarnation.is_none() {
            known.incarnation = incarnation.map(str::to_owned);
        }
        known.is_deleted = goes != PodGoes::No;
        known.goes_since = match goes {
            PodGoes::Deleted => known.goes_since.or(Some(now)),
            PodGoes::No | PodGoes::Gone => None,
        };
    }

    /// The workloads with pods that are to end and that no others have replaced, and since when.
    pub(super) fn going(&self) -> impl Iterator<Item = (&str, Duration)> {
        self.seen.iter().flat_map(move |(workload, own)| {
            let left = own.iter().enumerate().filter(move |(at, _)| !self.is_replaced(own, *at));
            left.filter_map(move |(_, pod)| Some((workload.as_str(), pod.goes_since?)))
        })
    }

    /// Notes that a pod has left. `true`: that is new.
    pub(super) fn leaves(&mut self, pod: &str) -> bool {
        !std::mem::replace(&mut self.pod(pod).has_left, true)
    }

    /// Notes that a workload runs again that its queue had taken back.
    pub(super) fn resume(&mut self, workload: &str) {
        let own = self.seen.get_mut(workload).into_iter().flatten();
        own.filter(|pod| pod.is_deleted).for_each(|pod| pod.is_past = true);
    }

    /// The pods of a workload that a listing has and those that were seen to end, where they tell of it as it is now.
    pub(super) fn with_ended(&self, workload: &str, listed: Vec<Value>) -> Vec<Value> {
        let own = self.own(workload);
        let is_stale = |seen: &Value| {
            own.iter().enumerate().any(|(at, pod)| pod.is(seen) && !self.is_telling(own, at))
        };
        let mut pods = listed;
        pods.retain(|seen| !is_stale(seen));
        let ended =
            self.current(workload).filter(|pod| !pods.iter().any(|seen| pod.has_name_of(seen)));
        let ended: Vec<Value> = ended.filter_map(|pod| pod.end.clone()).collect();
        pods.extend(ended);
        pods
    }

    /// Returns whether a pod of a workload was seen, but not its end.
    pub(super) fn lacks_end(&self, workload: &str, listed: &[Value]) -> bool {
        let is_listed = |pod: &Pod| listed.iter().any(|seen| pod.has_name_of(seen));
        self.current(workload).any(|pod| pod.end.is_none() && !is_listed(pod))
    }

    /// Returns the outcome with the disruption of the pod that decided it, where the workload does not say so.
    pub(super) fn explain(&self, workload: &str, outcome: Outcome) -> Outcome {
        let decided_by = outcome.decided_by.as_ref().filter(|_| outcome.disruption.is_none());
        let seen = decided_by.and_then(|by| {
            let whole = format!("{workload}-{}-{}", by.role, by.index);
            // In a JobSet; what follows is made up anew for each pod.
            let prefix = format!("{workload}-{}-0-{}-", by.role, by.index);
            let mut own = self.current(workload).filter(|pod| pod.disruption.is_some());
            own.find(|pod| pod.name == whole || pod.name.starts_with(&prefix))
        });
        match seen.and_then(|pod| pod.disruption.clone()) {
            Some(disruption) => outcome.with_disruption(disruption),
            None => outcome,
        }
    }

    /// Forgets the pods of a workload.
    pub(super) fn forget(&mut self, workload: &str) {
        self.seen.remove(workload);
    }
}

impl Pod {
    fn has_name_of(&self, seen: &Value) -> bool {
        seen.pointer("/metadata/name").and_then(Value::as_str) == Some(self.name.as_str())
    }

    /// Returns whether it is this pod that was seen, and not another of its name.
    fn is(&self, seen: &Value) -> bool {
        let id = seen.pointer("/metadata/uid").and_then(Value::as_str);
        let ids = id.zip(self.incarnation.as_deref());
        self.has_name_of(seen) && ids.is_none_or(|(seen, known)| seen == known)
    }
}
