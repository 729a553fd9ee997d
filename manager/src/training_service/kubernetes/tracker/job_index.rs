//! PURE: the workloads that have not ended, by their names and by their trials.

use std::collections::HashMap;

use trial_protocol::TrialJobId;

use super::tracked_workload::TrackedWorkload;

/// The workloads that have not ended.
#[derive(Debug, Default)]
pub(super) struct WorkloadIndex {
    jobs: HashMap<String, TrackedWorkload>,
    /// The name of the latest workload of each trial.
    latest: HashMap<TrialJobId, String>,
}

impl WorkloadIndex {
    /// Adds the latest workload of a trial.
    pub(super) fn insert(&mut self, job: TrackedWorkload) {
        self.latest.insert(job.trial().clone(), job.name().to_owned());
        self.jobs.insert(job.name().to_owned(), job);
    }

    pub(super) fn contains(&self, name: &str) -> bool {
        self.jobs.contains_key(name)
    }

    pub(super) fn get(&self, name: &str) -> Option<&TrackedWorkload> {
        self.jobs.get(name)
    }

    pub(super) fn get_mut(&mut self, name: &str) -> Option<&mut TrackedWorkload> {
        self.jobs.get_mut(name)
    }

    /// Returns the latest workload of a trial.
    pub(super) fn latest_of_trial(&self, trial: &TrialJobId) -> Option<&TrackedWorkload> {
        self.jobs.get(self.latest.get(trial)?)
    }

    /// Returns the latest workload of a trial.
    pub(super) fn latest_of_trial_mut(
        &mut self,
        trial: &TrialJobId,
    ) -> Option<&mut TrackedWorkload> {
        self.jobs.get_mut(self.latest.get(trial)?)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &TrackedWorkload> {
        self.jobs.values()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut TrackedWorkload> {
        self.jobs.values_mut()
    }

    /// Removes a workload that has ended.
    pub(super) fn remove(&mut self, name: &str) -> Option<TrackedWorkload> {
        let job = self.jobs.remove(name)?;
        if self.latest.get(job.trial()).is_some_and(|latest| latest == name) {
            self.latest.remove(job.trial());
        }
        Some(job)
    }
}
