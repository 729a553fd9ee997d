//! The next attempts of trials. They are recorded with their numbers, and submitted when a slot is free.

use tracing::{info, warn};
use trial_protocol::{AttemptId, TrialJobId};

use super::ExperimentTask;
use crate::experiment::state;
use crate::job_state::JobState;
use crate::store;

impl ExperimentTask {
    /// Submits another attempt of a trial.
    pub(super) async fn relaunch(
        &mut self,
        trial: &TrialJobId,
    ) -> Result<Vec<state::Event>, store::Error> {
        let Some(row) = self.recorder.trial(trial).await? else { return Ok(Vec::new()) };
        let steps = self.new_steps();
        let Some(job) = self.jobs.get_mut(trial) else { return Ok(Vec::new()) };
        job.begin_next_attempt(trial, steps);
        let attempt = job.attempt.clone();
        self.recorder.record_intents(&[(trial.clone(), None)]).await?;
        self.recorder.record_state(trial, JobState::Waiting, None, Some(attempt)).await?;
        Ok(self.submit(trial, row.parameter_id).await)
    }

    /// Records that a trial will be retried, with the number of its next attempt. If the manager dies before that
    /// attempt begins, the next manager submits it, because the store contains no end of that attempt.
    pub(super) async fn record_retry(
        &mut self,
        trial: &TrialJobId,
        message: String,
    ) -> Result<(), store::Error> {
        info!(%trial, "the trial failed: {message}");
        let Some(attempt) = self.reserve_next_attempt(trial) else { return Ok(()) };
        self.recorder.record_retry(trial, message, attempt).await
    }

    /// Records that a trial waits for the attempt that replaces a fenced one, which is no retry.
    pub(super) async fn record_replacement(
        &mut self,
        trial: &TrialJobId,
        message: String,
    ) -> Result<(), store::Error> {
        warn!(%trial, "the attempt is fenced: {message}");
        let Some(attempt) = self.reserve_next_attempt(trial) else { return Ok(()) };
        self.recorder.record_state(trial, JobState::Waiting, Some(message), Some(attempt)).await
    }

    pub(super) fn reserve_next_attempt(&mut self, trial: &TrialJobId) -> Option<AttemptId> {
        self.leases.end(trial);
        let steps = self.new_steps();
        let job = self.jobs.get_mut(trial)?;
        self.handle.forget(trial, &job.attempt);
        job.reserve_next_attempt(trial, steps);
        Some(job.attempt.clone())
    }
}
