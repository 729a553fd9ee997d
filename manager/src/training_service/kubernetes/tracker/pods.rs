//! PURE: the observations of pods that their workloads may not report.

use std::collections::{HashMap, HashSet};

use serde_json::{Value, json};

use super::{Act, Tracker};
use crate::training_service::kubernetes::disruption::Disruption;
use crate::training_service::kubernetes::outcome::{Decider, Outcome};
use crate::training_service::kubernetes::pending_reason::workload_of;
use crate::training_service::{JobImage, JobNews};

impl Tracker {
    /// The pod whose metrics are the trial's runs this image.
    pub fn image(&mut self, name: &str, image: String) -> Option<Act> {
        let job = self.jobs.get_mut(name).filter(|job| job.image.as_ref() != Some(&image))?;
        job.image = Some(image.clone());
        let (trial, attempt) = (job.trial.clone(), job.attempt.clone());
        Some(Act::Tell(JobNews::Image(JobImage { trial, attempt, image })))
    }

    /// Returns whether a pod that a listing no longer has was not seen to end: then the watch lags behind the listing.
    pub fn lacks_end(&self, name: &str, listed: &[Value]) -> bool {
        self.pods.lacks_end(name, listed)
    }
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
        let pod_of = |by: &Decider| format!("{name}-{}-{}", by.role, by.index);
        let pod = outcome.decided_by.as_ref().map(pod_of);
        let seen =
            pod.filter(|_| outcome.disruption.is_none()).and_then(|pod| self.disruptions.get(&pod));
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
    }
}
