//! Handles attempts that the cluster runs again in another pod.

use tracing::info;
use trial_protocol::{AttemptId, TrialJobId};

use super::ExperimentTask;
use crate::experiment::notice::Notice;
use crate::experiment::state;
use crate::job_state::JobState;
use crate::store;
use crate::training_service::JobWaits;
use crate::util::ids;

impl ExperimentTask {
    /// Takes over the attempt of a pod that the cluster has started again. From now on, only the reports of its agent
    /// count, and no longer those of the earlier agent.
    pub(super) async fn take_over_attempt(
        &mut self,
        trial: &TrialJobId,
        attempt: AttemptId,
    ) -> Result<(), store::Error> {
        let Some(earlier) = self.jobs.replace_attempt(trial, attempt.clone()) else {
            return Ok(());
        };
        self.forget_main_end(trial);
        if !ids::is_pod_of(&attempt, &earlier) {
            info!(%trial, "the cluster has started its pod again");
        }
        let runs = self.state.is_running(trial);
        let state = if runs { JobState::Running } else { JobState::Waiting };
        self.recorder.record_state(trial, state, None, Some(attempt)).await?;
        // The new agent has not received the directives for the earlier one.
        if let Some(reason) = self.state.intent(trial) {
            self.jobs.push_stop_directive(trial, reason);
        }
        if runs {
            self.leases.begin(trial);
            self.rules.send(trial, &mut self.jobs, &self.advisers, &self.state);
        }
        Ok(())
    }

    /// Records that a running job waits again. Another pod will run it from its beginning.
    pub(super) async fn record_requeue(&mut self, news: JobWaits) -> Result<(), store::Error> {
        if !self.jobs.is_current_submission(&news.trial, &news.attempt)
            || self.state.intent(&news.trial).is_some()
        {
            return Ok(());
        }
        // The trial's agent, which had not reported yet, is gone.
        if !self.state.is_running(&news.trial) {
            return self.announcer.record_waits(&self.jobs, &mut self.recorder, vec![news]).await;
        }
        let JobWaits { trial, why, .. } = news;
        info!(%trial, "its queue has taken the trial back: {why}");
        self.leases.end(&trial);
        let Some(sequence) = self.jobs.requeue(&trial) else { return Ok(()) };
        self.perform(state::Event::Requeued { trial: trial.clone() }).await?;
        self.recorder.record_state(&trial, JobState::Waiting, Some(why.clone()), None).await?;
        self.announcer.notify(Notice::Waits { trial, sequence, why });
        Ok(())
    }
}
