//! PURE: the trials that wait to run, or to run again, before the tuner's next proposal.

use std::collections::{HashMap, VecDeque};

use trial_protocol::TrialJobId;

/// A trial that no longer waits.
#[derive(Debug)]
pub(super) struct DequeuedTrial {
    pub(super) trial: TrialJobId,
    /// The id of its proposal, if the tuner has still to learn its end.
    pub(super) parameter_id: Option<u64>,
}

/// The waiting trials, in the order of their runs.
#[derive(Debug, Default)]
pub(super) struct RunQueue {
    queue: VecDeque<TrialJobId>,
    /// The id of each trial's proposal whose end the tuner has still to learn, if any.
    proposals: HashMap<TrialJobId, Option<u64>>,
}

impl RunQueue {
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub(super) fn contains(&self, trial: &TrialJobId) -> bool {
        self.proposals.contains_key(trial)
    }

    /// Appends a trial.
    pub(super) fn push(&mut self, trial: TrialJobId, parameter_id: Option<u64>) {
        self.proposals.insert(trial.clone(), parameter_id);
        self.queue.push_back(trial);
    }

    /// Removes the next trial to run.
    pub(super) fn pop(&mut self) -> Option<DequeuedTrial> {
        let trial = self.queue.pop_front()?;
        let parameter_id = self.proposals.remove(&trial).flatten();
        Some(DequeuedTrial { trial, parameter_id })
    }

    /// Removes a trial, if it waits.
    pub(super) fn remove(&mut self, trial: &TrialJobId) -> Option<DequeuedTrial> {
        let parameter_id = self.proposals.remove(trial)?;
        self.queue.retain(|waiting| waiting != trial);
        Some(DequeuedTrial { trial: trial.clone(), parameter_id })
    }

    /// Sets the proposal of a trial that waits.
    pub(super) fn set_proposal(&mut self, trial: &TrialJobId, parameter_id: u64) {
        if let Some(waiting) = self.proposals.get_mut(trial) {
            *waiting = Some(parameter_id);
        }
    }
}
