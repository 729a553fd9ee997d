//! PURE: the finished workloads that stay in the cluster.

use std::collections::VecDeque;

use trial_protocol::AttemptId;

use super::TrackerAction;

/// The number of finished workloads that stay in the cluster for a returning manager, and the number that is deleted at
/// a time.
pub(super) const MAX_FINISHED: usize = 100;
pub(super) const DELETE_BATCH: usize = 50;
/// The number of finished workloads that stay even if a quota is exhausted, because their ends may not be recorded yet.
pub(super) const MIN_FINISHED: usize = 10;

/// The attempts whose finished workloads stay in the cluster, the oldest first.
#[derive(Debug, Default)]
pub(super) struct FinishedWorkloads {
    attempts: VecDeque<AttemptId>,
}

impl FinishedWorkloads {
    pub(super) fn len(&self) -> usize {
        self.attempts.len()
    }

    /// Adds the attempt that ended last.
    pub(super) fn add(&mut self, attempt: AttemptId) {
        self.attempts.push_back(attempt);
    }

    /// Adds attempts that ended before all others, the oldest first.
    pub(super) fn add_oldest(&mut self, attempts: Vec<AttemptId>) {
        for attempt in attempts.into_iter().rev() {
            self.attempts.push_front(attempt);
        }
    }

    /// Deletes the remains of attempts that ended long ago, if there are many.
    pub(super) fn delete_excess(&mut self) -> Vec<TrackerAction> {
        let mut actions = Vec::new();
        while self.attempts.len() >= MAX_FINISHED + DELETE_BATCH {
            actions
                .push(TrackerAction::DeleteRemains(self.attempts.drain(..DELETE_BATCH).collect()));
        }
        actions
    }

    /// Deletes the remains of ended attempts early, when a quota of the cluster is exhausted.
    pub(super) fn delete_for_quota(&mut self) -> Option<TrackerAction> {
        let many = self.attempts.len().checked_sub(MIN_FINISHED).filter(|many| *many > 0)?;
        Some(TrackerAction::DeleteRemains(self.attempts.drain(..many).collect()))
    }
}
