//! PURE: the observations of pods that their workloads may not report.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use serde_json::{Value, json};

use super::{Act, Tracker};
use crate::training_service::kubernetes::disruption::Disruption;
use crate::training_service::kubernetes::outcome::Outcome;
use crate::training_service::kubernetes::pending_reason::workload_of;
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
        let name = workload_of(pod);
        if self.jobs.contains_key(name) || self.strangers.contains_key(name) {
            self.pods.ends(pod, seen);
        }
    }

    /// A pod was seen whose containers have all ended. Where Jobs are followed, the workload may end with it.
    pub fn pod_over(&mut self, pod: &str, now: Duration) {
        if let Some(job) = self.jobs.get_mut(workload_of(pod)).filter(|_| self.kind.follows_jobs())
        {
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
        let job = self.jobs.get(workload_of(pod))?;
        self.pods.goes(pod, goes == PodGoes::Deleted, now);
        let incarnation = incarnation.filter(|_| self.several && goes != PodGoes::No)?;
        if !self.pods.leaves(pod, incarnation) {
            return None;
        }
        let (trial, attempt) = (job.trial.clone(), job.attempt.clone());
        let incarnation = incarnation.to_owned();
        Some(Act::Tell(JobNews::PodLeft(PodLeft { trial, attempt, incarnation })))
    }

    /// The pods of a workload that were seen to end.
    pub fn ended_pods(&self, name: &str) -> Vec<Value> {
        self.pods.ended(name)
    }

    /// Returns the pod of a workload that has one at a time, where it was seen to end by itself: a listing says no more.
    pub fn only_pod(&self, name: &str) -> Option<Value> {
        let mut ended = self.pods.ended(name);
        let pod = ended.pop().filter(|_| !self.several && ended.is_empty())?;
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

/// Pods by their names.
#[derive(Debug, Default)]
pub(super) struct Pods {
    /// Every pod that was seen.
    known: HashSet<String>,
    /// Pods that the platform takes away, or has taken, and what it says of it.
    disruptions: HashMap<String, Disruption>,
    /// Pods that end or have ended, as they were seen last: a pod that was deleted is gone before its workload says that it
    /// failed.
    ended: HashMap<String, Value>,
    /// Pods that are to end and have not, since when.
    going: HashMap<String, Duration>,
    /// The ids of pods that left, as was told.
    left: HashSet<(String, String)>,
}

impl Pods {
    /// Notes whether the platform takes a pod away. `None` also of another pod that has the name of one that it took.
    pub(super) fn seen(&mut self, pod: &str, disruption: Option<Disruption>) {
        self.known.insert(pod.to_owned());
        match disruption {
            Some(disruption) => self.disruptions.insert(pod.to_owned(), disruption),
            None => self.disruptions.remove(pod),
        };
    }

    /// Notes a pod that ends, or has ended.
    pub(super) fn ends(&mut self, pod: &str, seen: Value) {
        self.ended.insert(pod.to_owned(), seen);
    }

    /// Notes whether a pod is to end and has not.
    pub(super) fn goes(&mut self, pod: &str, goes: bool, now: Duration) {
        if goes {
            self.going.entry(pod.to_owned()).or_insert(now);
        } else {
            self.going.remove(pod);
        }
    }

    /// Returns the pods that are to end, and since when.
    pub(super) fn going(&self) -> impl Iterator<Item = (&str, Duration)> {
        self.going.iter().map(|(pod, since)| (pod.as_str(), *since))
    }

    /// Notes that a pod with an id has left. `true`: that is new.
    pub(super) fn leaves(&mut self, pod: &str, incarnation: &str) -> bool {
        self.left.insert((pod.to_owned(), incarnation.to_owned()))
    }

    /// Returns the pods of a workload that were seen to end.
    pub(super) fn ended(&self, name: &str) -> Vec<Value> {
        let own = self.ended.iter().filter(|(pod, _)| workload_of(pod) == name);
        own.map(|(_, seen)| seen.clone()).collect()
    }

    /// Returns whether a pod of a workload was seen, but not its end.
    pub(super) fn lacks_end(&self, name: &str, listed: &[Value]) -> bool {
        let is_listed = |pod: &String| {
            listed.iter().any(|seen| seen.pointer("/metadata/name") == Some(&json!(pod)))
        };
        let own = self.known.iter().filter(|pod| workload_of(pod) == name);
        own.into_iter().any(|pod| !self.ended.contains_key(pod) && !is_listed(pod))
    }

    /// Returns the outcome with the disruption of the pod that decided it, where the workload does not say so.
    pub(super) fn explain(&self, name: &str, outcome: Outcome) -> Outcome {
        let decided_by = outcome.decided_by.as_ref().filter(|_| outcome.disruption.is_none());
        let seen = decided_by.and_then(|by| {
            let whole = format!("{name}-{}-{}", by.role, by.index);
            // Of a JobSet; what follows is made up anew for each pod.
            let prefix = format!("{name}-{}-0-{}-", by.role, by.index);
            let own = |pod: &String| *pod == whole || pod.starts_with(&prefix);
            self.disruptions.iter().find(|(pod, _)| own(pod)).map(|(_, disruption)| disruption)
        });
        match seen {
            Some(disruption) => outcome.with_disruption(disruption.clone()),
            None => outcome,
        }
    }

    /// Forgets the pods of a workload.
    pub(super) fn forget(&mut self, name: &str) {
        self.known.retain(|pod| workload_of(pod) != name);
        self.disruptions.retain(|pod, _| workload_of(pod) != name);
        self.ended.retain(|pod, _| workload_of(pod) != name);
        self.going.retain(|pod, _| workload_of(pod) != name);
        self.left.retain(|(pod, _)| workload_of(pod) != name);
    }
}
