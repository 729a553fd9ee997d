//! Handles attempts that a queue takes back and another pod runs again, and trials that end before their jobs.

use tracing::info;
use trial_protocol::{AttemptId, TrialJobId, Verdict};

use super::ExperimentTask;
use crate::experiment::ending;
use crate::experiment::notice::Notice;
use crate::experiment::state;
use crate::job_state::JobState;
use crate::store;
use crate::training_service::{JobEvent, JobWaits};
use crate::util::ids;

impl ExperimentTask {
    /// Takes over the attempt of a pod that the cluster has started again. From now on, only the reports of its agent
    /// count, and no longer those of the earlier agent.
    pub(super) async fn take_over_attempt(
        &mut self,
        trial: &TrialJobId,
        attempt: AttemptId,
    ) -> Result<(), store::Error> {
        let steps = self.new_steps();
        let Some(job) = self.jobs.get_mut(trial) else { return Ok(()) };
        if !ids::is_pod_of(&attempt, &job.attempt) {
            info!(%trial, "the cluster has started its pod again");
        }
        let before = job.replace_attempt(attempt.clone(), steps);
        self.handle.forget(trial, &before);
        let runs = self.state.is_running(trial);
        let state = if runs { JobState::Running } else { JobState::Waiting };
        self.recorder.record_state(trial, state, None, Some(attempt)).await?;
        // The new agent has not received the directives for the earlier one.
        if let Some(reason) = self.state.intent(trial) {
            self.push_stop_directive(trial, reason);
        }
        if runs {
            self.leases.begin(trial);
            self.push_rules(trial);
        }
        Ok(())
    }

    /// Adopts the attempt of the first pod that reports for the submitted attempt. It is recorded when the pod's
    /// command runs.
    pub(super) fn adopt_first_pod(&mut self, trial: &TrialJobId, attempt: &AttemptId) {
        let Some(job) = self.jobs.get_mut(trial) else { return };
        if job.requeued || !ids::is_pod_of(attempt, &job.attempt) {
            return;
        }
        self.handle.forget(trial, &job.attempt);
        job.attempt = attempt.clone();
        if let Some(reason) = self.state.intent(trial) {
            self.push_stop_directive(trial, reason);
        }
    }

    /// Returns whether the first report of this pod came after that of the present one. The names of two pods do not
    /// show which is newer, and their clocks may disagree.
    pub(super) async fn is_newer_pod(
        &mut self,
        trial: &TrialJobId,
        attempt: &AttemptId,
        current: &AttemptId,
    ) -> Result<bool, store::Error> {
        if !ids::is_another_pod(attempt, current) {
            return Ok(false);
        }
        let attempts = self.recorder.attempts(trial).await?;
        let place = |of: &AttemptId| attempts.iter().position(|known| known == of);
        Ok(place(attempt) > place(current))
    }

    /// Records that a running job waits again. Another pod will run it from its beginning.
    pub(super) async fn record_requeue(&mut self, news: JobWaits) -> Result<(), store::Error> {
        if !self.is_current_submission(&news.trial, &news.attempt)
            || self.state.intent(&news.trial).is_some()
        {
            return Ok(());
        }
        // The trial's agent, which had not reported yet, is gone.
        if !self.state.is_running(&news.trial) {
            return self.record_waits(vec![news]).await;
        }
        let JobWaits { trial, why, .. } = news;
        info!(%trial, "its queue has taken the trial back: {why}");
        self.leases.end(&trial);
        let steps = self.new_steps();
        let Some(job) = self.jobs.get_mut(&trial) else { return Ok(()) };
        self.handle.forget(&trial, &job.attempt);
        job.requeue(steps);
        let sequence = job.sequence;
        self.perform(state::Event::Requeued { trial: trial.clone() }).await?;
        self.recorder.record_state(&trial, JobState::Waiting, Some(why.clone()), None).await?;
        self.announcer.notify(Notice::Waits { trial, sequence, why });
        Ok(())
    }

    /// Remembers a trial whose agent has reported the end, if the trial may end before its job.
    pub(super) fn note_final_verdict(&mut self, trial: &TrialJobId, verdict: &Verdict) {
        if let Some(job) = self.jobs.get(trial)
            && ending::is_final(verdict)
            && self.launcher.service().ends_with_verdict()
        {
            self.final_verdicts.push((trial.clone(), job.attempt.clone()));
        }
    }

    /// Ends the trials of the final verdicts in one commit. Returns whether there were any.
    pub(super) async fn conclude_by_verdicts(&mut self) -> Result<bool, store::Error> {
        let mut noted = std::mem::take(&mut self.final_verdicts);
        // A search that stops waits for its jobs, because it reports the jobs that it leaves in the cluster.
        let is_interrupted = self.state.state() == state::ExperimentState::Stopping;
        noted.retain(|(trial, attempt)| {
            !is_interrupted && self.is_current_submission(trial, attempt)
        });
        if noted.is_empty() {
            return Ok(false);
        }
        let mut ends = Vec::new();
        for (trial, attempt) in noted {
            info!(%trial, "its agent has reported the end; not waiting for its job");
            self.launcher.service().hand_over(&trial).await;
            ends.push(JobEvent::unexplained(trial, attempt));
        }
        // The future is boxed, because this call handles waiting events, as its caller does.
        Box::pin(self.handle_ends(ends)).await?;
        Ok(true)
    }
}
