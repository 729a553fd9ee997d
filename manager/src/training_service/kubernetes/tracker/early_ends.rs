//! PURE: workloads whose trials have ended by the verdicts of their agents.

use std::time::Duration;

use trial_protocol::{AttemptId, TrialJobId};

use super::job::{ForcedEnd, Job};
use super::{Act, Tracker};
use crate::training_service::VerdictTrust;
use crate::training_service::kubernetes::client::WatchedObject;
use crate::training_service::kubernetes::outcome::JobPhase;

/// The metadata of a workload that is not adopted.
#[derive(Debug, Default)]
pub(super) struct UnadoptedMetadata {
    /// The time of its creation, in RFC 3339.
    created: Option<String>,
    /// The attempt that it runs.
    attempt: Option<AttemptId>,
    /// The queue in its label.
    pub(super) queue: Option<String>,
}

impl Tracker {
    /// Stops the workload of a trial that has ended according to its agent, while the workload has not.
    pub fn finish(&mut self, trial: &TrialJobId, now: Duration) -> Vec<Act> {
        let Some(name) = self.latest.get(trial).cloned() else { return Vec::new() };
        // A queue that took the trial back lets it run again.
        if self.jobs.get(&name).is_some_and(|job| job.phase == JobPhase::Suspended) {
            return Vec::new();
        }
        if let Some(job) = self.jobs.get_mut(&name)
            && job.stop.is_none()
        {
            job.forced = Some(ForcedEnd::failure(
                "the trial ended, but its pod did not: does another process run in the pod, or is its node down?"
                    .to_owned(),
            ));
        }
        self.stop(&name, now)
    }

    /// Records that a trial has ended while its workload still exists. `false`: the trial ends with its workload, because
    /// the cluster may have removed a pod before another failed.
    pub fn hand_over(
        &mut self,
        trial: &TrialJobId,
        trust: VerdictTrust,
        now: Duration,
    ) -> (bool, Vec<Act>) {
        let is_final = trust == VerdictTrust::Final;
        let Some(name) = self.latest.get(trial).cloned() else { return (is_final, Vec::new()) };
        let has_disruption =
            self.pods.has_disruption(&name) || self.disruption_by_deletion(&name).is_some();
        let Some(job) = self.jobs.get_mut(&name) else { return (is_final, Vec::new()) };
        if !is_final && (has_disruption || !job.explains(trust)) {
            return (false, Vec::new());
        }
        job.handed_over = job.handed_over.or(Some(now));
        let acts =
            if job.phase == JobPhase::Suspended { self.stop(&name, now) } else { Vec::new() };
        (true, acts)
    }

    /// Lets the workloads that an earlier manager left, and that were not adopted, end by themselves for a while, and then
    /// deletes them. Their trials have ended.
    pub fn end_unadopted(&mut self, now: Duration) {
        self.end_unadopted_at = Some(now + self.patience);
    }

    /// Handles the metadata of a workload that is not adopted.
    pub fn observe_unadopted(&mut self, object: &WatchedObject) {
        if !self.unadopted.contains_key(&object.name) {
            return;
        }
        let attempt = object.labels.attempt.as_deref().and_then(|id| AttemptId::new(id).ok());
        let (created, queue) = (object.created.clone(), object.labels.queue.clone());
        let known = UnadoptedMetadata { created, attempt, queue };
        self.unadopted_metadata.insert(object.name.clone(), known);
    }

    /// Returns the deletions of unadopted workloads that are due at `now`. Those that have ended count as the oldest
    /// finished ones.
    pub(super) fn discard_unadopted(&mut self, now: Duration) -> Vec<Act> {
        if !self.listed || self.end_unadopted_at.take_if(|at| now >= *at).is_none() {
            return Vec::new();
        }
        let mut metadata = std::mem::take(&mut self.unadopted_metadata);
        let (mut acts, mut ended) = (Vec::new(), Vec::new());
        self.unadopted.retain(|name, phase| {
            let UnadoptedMetadata { created, attempt, .. } =
                metadata.remove(name).unwrap_or_default();
            match (phase, attempt) {
                (JobPhase::Completed(_), Some(attempt)) => {
                    ended.push((created, attempt));
                    return false;
                }
                (JobPhase::Completed(_), None) => {}
                (_, Some(attempt)) => acts.push(Act::Tidy(vec![attempt])),
                (_, None) => acts.push(Act::Discard(name.clone())),
            }
            true
        });
        ended.sort();
        for (_, attempt) in ended.into_iter().rev() {
            self.finished.push_front(attempt);
        }
        acts.extend(self.tidy_finished());
        acts
    }

    /// Returns whether a workload continues after its trial was recorded as ended.
    pub fn has_handed_over(&self) -> bool {
        self.jobs.values().any(|job| job.handed_over.is_some())
    }
}

impl Job {
    /// Returns whether the failure of a pod explains the end of the trial.
    fn explains(&self, trust: VerdictTrust) -> bool {
        let is_decided = match &self.phase {
            JobPhase::Suspended => return false,
            JobPhase::Completed(outcome) if outcome.disruption.is_some() => return false,
            JobPhase::Completed(_) | JobPhase::Ending => true,
            JobPhase::Unseen | JobPhase::Waiting | JobPhase::Starting | JobPhase::Running => false,
        };
        // The controller stops the other pods only after it has decided that the workload fails.
        trust != VerdictTrust::FailedAndStopped || is_decided || self.stop.is_some()
    }
}
