//! What an experiment's task does about agents that fall silent and speak again.
//!
//! `LOST` says that a trial's job is there, as far as its training service can tell, and its agent is not
//! heard. It is not an end: the trial keeps its place among the concurrent ones (its job uses what it uses), the tuner
//! is told nothing, deadlines and stops hold. The service says when the job is gone, and then it ends like any other.
//!
//! An agent that has said how its command ended and is silent then is not lost: it has nothing more to say. A job that is
//! still there after that (a pod with a sidecar that runs on, a node that went down) is asked to end, and the trial ends
//! as its agent said.

use tokio::time::Instant;
use tracing::{info, warn};
use trial_protocol::TrialJobId;

use super::ExperimentTask;
use crate::experiment::notice::Notice;
use crate::job_state::JobState;
use crate::store;

impl ExperimentTask {
    /// When silence is looked at next.
    pub(super) fn next_beat(&self) -> Instant {
        self.beat_at + self.leases.beat()
    }

    /// Records who has fallen silent.
    pub(super) async fn beat(&mut self) -> Result<(), store::Error> {
        let now = Instant::now();
        let passed = now.saturating_duration_since(self.beat_at);
        self.beat_at = now;
        self.renew_rules();
        for trial in self.leases.passed(passed) {
            let seconds = self.leases.lease().as_secs();
            if self.jobs.get(&trial).is_some_and(|job| job.ended) {
                info!(%trial, "its command has ended and its job has not within {seconds} s; ending it");
                self.deps.service.finish(&trial).await;
                continue;
            }
            let message = format!(
                "its agent has not been heard for {seconds} s; its job is still there, and what the agent \
                 keeps is taken in when it speaks again"
            );
            warn!(%trial, "the trial is lost: {message}");
            self.record(&trial, JobState::Lost, Some(message.clone()), None).await?;
            let sequence = self.jobs.get(&trial).map_or(0, |job| job.sequence);
            self.notify(Notice::Lost { trial, sequence, message });
        }
        Ok(())
    }

    /// An agent spoke, whatever it said.
    pub(super) async fn heard(&mut self, trial: &TrialJobId) -> Result<(), store::Error> {
        if self.leases.heard(trial) && self.jobs.get(trial).is_some_and(|job| !job.ended) {
            info!(%trial, "a trial that was lost is heard again");
            self.record(trial, JobState::Running, None, None).await?;
            let sequence = self.jobs.get(trial).map_or(0, |job| job.sequence);
            self.notify(Notice::Found { trial: trial.clone(), sequence });
        }
        Ok(())
    }
}
