//! PURE: the workloads that an earlier manager left, until they are adopted or deleted.

use std::collections::HashMap;
use std::time::Duration;

use trial_protocol::AttemptId;

use super::TrackerAction;
use crate::training_service::kubernetes::client::WatchedObject;
use crate::training_service::kubernetes::outcome::WorkloadPhase;

/// The workloads of an earlier manager that are not yet adopted.
#[derive(Debug, Default)]
pub(super) struct UnadoptedWorkloads {
    workloads: HashMap<String, UnadoptedWorkload>,
    /// The time from which unadopted workloads that have not ended are deleted. `None`: more may be adopted.
    deadline: Option<Duration>,
}

/// A workload that is not adopted.
#[derive(Debug)]
pub(super) struct UnadoptedWorkload {
    phase: WorkloadPhase,
    /// The time of its creation, in RFC 3339.
    created: Option<String>,
    /// The attempt that it runs.
    attempt: Option<AttemptId>,
    /// The queue in its label.
    queue: Option<String>,
}

impl UnadoptedWorkload {
    /// Returns the phase, and the queue in the label.
    pub(super) fn into_parts(self) -> (WorkloadPhase, Option<String>) {
        (self.phase, self.queue)
    }
}

impl UnadoptedWorkloads {
    pub(super) fn len(&self) -> usize {
        self.workloads.len()
    }

    pub(super) fn contains(&self, name: &str) -> bool {
        self.workloads.contains_key(name)
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &String> {
        self.workloads.keys()
    }

    /// Handles the observed phase of a workload.
    pub(super) fn observe_phase(&mut self, name: &str, phase: WorkloadPhase) {
        let new = UnadoptedWorkload {
            phase: WorkloadPhase::Unseen,
            created: None,
            attempt: None,
            queue: None,
        };
        self.workloads.entry(name.to_owned()).or_insert(new).phase = phase;
    }

    /// Handles the metadata of a workload.
    pub(super) fn observe_metadata(&mut self, object: &WatchedObject) {
        if let Some(known) = self.workloads.get_mut(&object.name) {
            known.created.clone_from(&object.created);
            known.queue.clone_from(&object.labels.queue);
            let attempt = object.labels.attempt.as_deref();
            known.attempt = attempt.and_then(|id| AttemptId::new(id).ok());
        }
    }

    /// Removes a workload that is adopted or gone.
    pub(super) fn remove(&mut self, name: &str) -> Option<UnadoptedWorkload> {
        self.workloads.remove(name)
    }

    /// Lets the workloads end by themselves until this time.
    pub(super) fn set_deadline(&mut self, at: Duration) {
        self.deadline = Some(at);
    }

    /// Returns the time from which workloads that have not ended are deleted.
    pub(super) fn deadline(&self) -> Option<Duration> {
        self.deadline
    }

    /// Returns the deletions, and the attempts of the workloads that have ended, the oldest first. `None`: they are not
    /// due at `now`.
    pub(super) fn take_due_deletions(
        &mut self,
        now: Duration,
    ) -> Option<(Vec<TrackerAction>, Vec<AttemptId>)> {
        self.deadline.take_if(|at| now >= *at)?;
        let (mut actions, mut ended) = (Vec::new(), Vec::new());
        self.workloads.retain(|name, workload| {
            let created = workload.created.take();
            match (&workload.phase, workload.attempt.take()) {
                (WorkloadPhase::Completed(_), Some(attempt)) => {
                    ended.push((created, attempt));
                    return false;
                }
                (WorkloadPhase::Completed(_), None) => {}
                (_, Some(attempt)) => actions.push(TrackerAction::DeleteRemains(vec![attempt])),
                (_, None) => actions.push(TrackerAction::DeleteLeftover(name.clone())),
            }
            true
        });
        ended.sort();
        Some((actions, ended.into_iter().map(|(_, attempt)| attempt).collect()))
    }
}
