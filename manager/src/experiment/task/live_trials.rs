//! The trials that have not ended, with their present attempts. When an attempt ends or another replaces it, the
//! directives for its agent are dropped.

use std::collections::HashMap;

use serde_json::Value;
use trial_protocol::{AttemptId, DirectiveBody, Metric, StopReason, TrialJobId};

use super::live_trial::LiveTrial;
use crate::experiment::ExperimentHandle;
use crate::experiment::result::Steps;
use crate::search::search_space::Parameters;
use crate::store::NewTrial;
use crate::util::ids;

/// The live trials of an experiment.
pub(super) struct LiveTrials {
    trials: HashMap<TrialJobId, LiveTrial>,
    /// Queues directives for agents.
    handle: ExperimentHandle,
    /// The metric whose intermediate results count. `None`: the first one that is reported.
    objective: Option<String>,
}

impl LiveTrials {
    /// Returns live trials whose agents receive directives through `handle`.
    pub(super) fn new(
        trials: HashMap<TrialJobId, LiveTrial>,
        handle: ExperimentHandle,
        objective: Option<String>,
    ) -> Self {
        Self { trials, handle, objective }
    }

    /// Returns a live trial.
    pub(super) fn get(&self, trial: &TrialJobId) -> Option<&LiveTrial> {
        self.trials.get(trial)
    }

    /// Returns a live trial, to change it.
    pub(super) fn get_mut(&mut self, trial: &TrialJobId) -> Option<&mut LiveTrial> {
        self.trials.get_mut(trial)
    }

    /// Returns the live trials for which `is_wanted` returns `true`.
    pub(super) fn find(&self, is_wanted: impl Fn(&LiveTrial) -> bool) -> Vec<TrialJobId> {
        let found = self.trials.iter().filter(|(_, job)| is_wanted(job));
        found.map(|(trial, _)| trial.clone()).collect()
    }

    /// Returns all live trials, to change them.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (&TrialJobId, &mut LiveTrial)> {
        self.trials.iter_mut()
    }

    /// Returns a trial's position in the experiment.
    pub(super) fn sequence(&self, trial: &TrialJobId) -> u64 {
        self.trials.get(trial).map_or(0, LiveTrial::sequence)
    }

    /// Returns a trial's parameters.
    pub(super) fn parameters(&self, trial: &TrialJobId) -> Option<Parameters> {
        self.trials.get(trial)?.parameters().as_object().cloned()
    }

    /// Returns whether `attempt` is the submission that the trial waits for.
    pub(super) fn is_current_submission(&self, trial: &TrialJobId, attempt: &AttemptId) -> bool {
        self.trials.get(trial).is_some_and(|job| job.is_submission(attempt))
    }

    /// Adds a recorded trial.
    pub(super) fn add_new(&mut self, row: NewTrial) {
        let NewTrial { id, sequence, parameters, attempt, .. } = row;
        self.add(id, sequence, parameters, attempt, false);
    }

    /// Adds a trial. `submitted`: `attempt` may have been submitted.
    pub(super) fn add(
        &mut self,
        trial: TrialJobId,
        sequence: u64,
        parameters: Value,
        attempt: AttemptId,
        submitted: bool,
    ) {
        let job = LiveTrial::new(sequence, parameters, attempt, submitted, self.new_steps());
        self.trials.insert(trial, job);
    }

    /// Adopts the attempt of the first pod that reports for the submitted attempt. It is recorded when the pod's
    /// command runs. `intent` is the reason for which the trial must stop.
    pub(super) fn adopt_first_pod(
        &mut self,
        trial: &TrialJobId,
        attempt: &AttemptId,
        intent: Option<StopReason>,
    ) {
        let Some(job) = self.trials.get_mut(trial) else { return };
        let Some(submitted) = job.adopt_first_pod(attempt) else { return };
        self.handle.remove_directives(trial, &submitted);
        if let Some(reason) = intent {
            self.push_stop_directive(trial, reason);
        }
    }

    /// Makes an attempt that the cluster started the present one. Returns the earlier one.
    pub(super) fn replace_attempt(
        &mut self,
        trial: &TrialJobId,
        attempt: AttemptId,
    ) -> Option<AttemptId> {
        let steps = self.new_steps();
        let earlier = self.trials.get_mut(trial)?.replace_attempt(attempt, steps);
        self.handle.remove_directives(trial, &earlier);
        Some(earlier)
    }

    /// Makes a running trial wait for another pod. Returns the trial's position.
    pub(super) fn requeue(&mut self, trial: &TrialJobId) -> Option<u64> {
        let steps = self.new_steps();
        let job = self.trials.get_mut(trial)?;
        self.handle.remove_directives(trial, job.attempt());
        job.requeue(steps);
        Some(job.sequence())
    }

    /// Gives the next attempt its number before a slot for it is free, and returns the number.
    pub(super) fn reserve_next_attempt(&mut self, trial: &TrialJobId) -> Option<AttemptId> {
        let steps = self.new_steps();
        let job = self.trials.get_mut(trial)?;
        self.handle.remove_directives(trial, job.attempt());
        job.reserve_next_attempt(trial, steps);
        Some(job.attempt().clone())
    }

    /// Begins the next attempt, if the present one may have been submitted. Returns the attempt to submit.
    pub(super) fn begin_next_attempt(&mut self, trial: &TrialJobId) -> Option<AttemptId> {
        let steps = self.new_steps();
        let job = self.trials.get_mut(trial)?;
        job.begin_next_attempt(trial, steps);
        Some(job.attempt().clone())
    }

    /// Drops the directives of a trial that has ended, and its pods that have left.
    pub(super) fn remove_ended(&self, trial: &TrialJobId) {
        if let Some(job) = self.trials.get(trial) {
            self.handle.remove_directives(trial, job.attempt());
            for (attempt, _) in job.pods().others(&ids::submitted_attempt(job.attempt())) {
                self.handle.remove_directives(trial, &attempt);
            }
            self.handle.departed().remove_trial(trial);
        }
    }

    /// Queues a directive for a trial's agent.
    pub(super) fn push_directive(&self, trial: &TrialJobId, body: DirectiveBody) {
        if let Some(job) = self.trials.get(trial) {
            self.handle.push_directive(trial, job.attempt(), body);
        }
    }

    /// Queues a stop for a trial's agent.
    pub(super) fn push_stop_directive(&self, trial: &TrialJobId, reason: StopReason) {
        self.push_directive(trial, DirectiveBody::Stop { reason, grace_ms: None });
    }

    /// Records the start time that a trial's agent reports.
    pub(super) fn record_start(&mut self, trial: &TrialJobId, started_at_ms: i64) {
        if let Some(job) = self.trials.get_mut(trial) {
            job.record_start(started_at_ms);
        }
    }

    /// Records that a trial's agent has reported the end of its command.
    pub(super) fn record_end(&mut self, trial: &TrialJobId) {
        if let Some(job) = self.trials.get_mut(trial) {
            job.record_end();
        }
    }

    /// Adds an intermediate result to its trial. Returns the trial if this is its next step and it was not stopped
    /// early.
    pub(super) fn add_step(&mut self, trial: &TrialJobId, metric: &Metric) -> Option<&LiveTrial> {
        let job = self.trials.get_mut(trial)?;
        job.add_step(metric).then_some(job)
    }

    /// Stops a trial early for the assessor's `reason`. Returns `false` if it was stopped before, or is not live.
    pub(super) fn stop_early(&mut self, trial: &TrialJobId, reason: &str) -> bool {
        self.trials.get_mut(trial).is_some_and(|job| job.stop_early(reason))
    }

    fn new_steps(&self) -> Steps {
        Steps::new(self.objective.as_deref())
    }
}
