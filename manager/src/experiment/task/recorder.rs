//! Records an experiment's decisions before their effects are performed. While the disk is full or fails, the recorder
//! tries again, and its inbox keeps arriving events.

use std::sync::Arc;
use std::time::Duration;

use tracing::debug;
use trial_protocol::{AttemptId, Metric, StopReason, TrialJobId, Verdict};

use super::inbox::Inbox;
use crate::config::ExperimentSpec;
use crate::experiment::result::{self, TrialResult};
use crate::experiment::state::ExperimentState;
use crate::job_state::JobState;
use crate::store::{
    self, FinalRecords, NewNotification, NewTrial, ServicePart, Store, TrialChange, TrialRow,
    TrialTimes,
};
use crate::training_service::{JobImage, JobPart};
use crate::util::clock::{Clock, to_ms};
use crate::util::errors::error_chain;
use crate::util::ids;

/// The store of an experiment, and the inbox that keeps events during a wait for it.
pub(super) struct Recorder {
    store: Store,
    clock: Arc<dyn Clock>,
    inbox: Inbox,
}

impl Recorder {
    /// Returns a recorder that keeps the events of `inbox` while it waits.
    pub(super) fn new(store: Store, clock: Arc<dyn Clock>, inbox: Inbox) -> Self {
        Self { store, clock, inbox }
    }

    /// Returns the store, for reading.
    pub(super) fn store(&self) -> &Store {
        &self.store
    }

    /// Returns the inbox.
    pub(super) fn inbox(&mut self) -> &mut Inbox {
        &mut self.inbox
    }

    /// Returns the time, in milliseconds since the Unix epoch.
    pub(super) fn now_ms(&self) -> i64 {
        self.clock.now_ms()
    }

    /// Returns the row of a trial.
    pub(super) async fn trial(
        &mut self,
        trial: &TrialJobId,
    ) -> Result<Option<TrialRow>, store::Error> {
        self.inbox.retry_while_transient(|| self.store.trials().get(trial)).await
    }

    /// Returns the rows of all trials.
    pub(super) async fn trials(&mut self) -> Result<Vec<TrialRow>, store::Error> {
        self.inbox.retry_while_transient(|| self.store.trials().all()).await
    }

    /// Returns the reports of attempts, as far as the store has them.
    pub(super) async fn final_records(
        &mut self,
        attempts: &[(TrialJobId, AttemptId)],
    ) -> Result<Vec<FinalRecords>, store::Error> {
        self.inbox
            .retry_while_transient(|| self.store.reports().final_records(attempts.to_vec()))
            .await
    }

    /// Waits until a store that refused a write can be written.
    pub(super) async fn wait_until_writable(&mut self) -> Result<(), store::Error> {
        self.inbox.wait_until_writable(&self.store).await
    }

    /// Records new trials in one commit.
    pub(super) async fn insert_trials(&mut self, rows: &[NewTrial]) -> Result<(), store::Error> {
        self.inbox.retry_while_transient(|| self.store.trials().insert(rows.to_vec())).await
    }

    /// Records a trial's state, and its next attempt if there is one.
    pub(super) async fn record_state(
        &mut self,
        trial: &TrialJobId,
        state: JobState,
        message: Option<String>,
        attempt: Option<AttemptId>,
    ) -> Result<(), store::Error> {
        let change = self.trial_change(state, message, attempt);
        self.record_changes(&[(trial.clone(), change)]).await
    }

    /// Records that a trial waits for its next attempt, which counts as a retry.
    pub(super) async fn record_retry(
        &mut self,
        trial: &TrialJobId,
        message: String,
        attempt: AttemptId,
    ) -> Result<(), store::Error> {
        let change = self.trial_change(JobState::Waiting, Some(message), Some(attempt));
        self.inbox.retry_while_transient(|| self.store.trials().retry(trial, change.clone())).await
    }

    /// Records in one commit that trials run, each with the start time that its agent reported.
    pub(super) async fn record_running(
        &mut self,
        trials: Vec<(TrialJobId, Option<AttemptId>, Option<i64>)>,
    ) -> Result<(), store::Error> {
        let changes = trials.into_iter().map(|(trial, attempt, started_at_ms)| {
            let reported = TrialTimes { started_at_ms, duration_ms: None };
            (trial, TrialChange { reported, ..self.trial_change(JobState::Running, None, attempt) })
        });
        let changes: Vec<_> = changes.collect();
        self.record_changes(&changes).await
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
        let attempts = self.attempts(trial).await?;
        let position = |of: &AttemptId| attempts.iter().position(|known| known == of);
        Ok(position(attempt) > position(current))
    }

    /// Returns the attempts of a trial in the order of their first reports.
    pub(super) async fn attempts(
        &mut self,
        trial: &TrialJobId,
    ) -> Result<Vec<AttemptId>, store::Error> {
        let attempts = || self.store.queries().attempts(trial);
        let attempts = self.inbox.retry_while_transient(attempts).await?;
        Ok(attempts.into_iter().map(|known| known.attempt).collect())
    }

    /// Returns the verdicts on all attempts of a trial, in the order in which they were stored.
    pub(super) async fn verdicts(
        &mut self,
        trial: &TrialJobId,
    ) -> Result<Vec<(AttemptId, Verdict)>, store::Error> {
        self.inbox.retry_while_transient(|| self.store.queries().verdicts(trial)).await
    }

    /// Records changes of several trials in one commit.
    pub(super) async fn record_changes(
        &mut self,
        changes: &[(TrialJobId, TrialChange)],
    ) -> Result<(), store::Error> {
        self.inbox.retry_while_transient(|| self.store.trials().change(changes.to_vec())).await
    }

    /// Records in one commit the reasons why trials must stop. `None` removes the reason of a trial.
    pub(super) async fn record_intents(
        &mut self,
        intents: &[(TrialJobId, Option<StopReason>)],
    ) -> Result<(), store::Error> {
        let now = self.clock.now_ms();
        self.inbox.retry_while_transient(|| self.store.trials().set_intents(intents, now)).await
    }

    /// Records a verdict that the agent has not reported.
    pub(super) async fn record_verdict(
        &mut self,
        trial: &TrialJobId,
        attempt: &AttemptId,
        verdict: &Verdict,
    ) -> Result<(), store::Error> {
        let now = self.clock.now_ms();
        self.inbox
            .retry_while_transient(|| {
                self.store.reports().record_verdict(trial, attempt, verdict.clone(), now)
            })
            .await
    }

    /// Records a metric that no agent has reported.
    pub(super) async fn record_derived_metric(
        &mut self,
        trial: &TrialJobId,
        attempt: &AttemptId,
        metric: &Metric,
    ) -> Result<(), store::Error> {
        let now = self.clock.now_ms();
        self.inbox
            .retry_while_transient(|| {
                self.store.reports().insert_derived_metric(trial, attempt, metric.clone(), now)
            })
            .await
    }

    /// Records to which of several training services an attempt is submitted.
    pub(super) async fn record_service_part(&mut self, news: &JobPart) -> Result<(), store::Error> {
        let JobPart { trial, attempt, part, platform } = news;
        let part = ServicePart { index: *part, platform: platform.clone() };
        self.inbox
            .retry_while_transient(|| {
                self.store.attempt_records().record_part(trial, attempt, part.clone())
            })
            .await
    }

    /// Records the images of attempts in one commit.
    pub(super) async fn record_images(&mut self, news: Vec<JobImage>) -> Result<(), store::Error> {
        let images =
            news.into_iter().map(|JobImage { trial, attempt, image }| (trial, attempt, image));
        let images: Vec<_> = images.collect();
        self.inbox
            .retry_while_transient(|| self.store.attempt_records().record_images(images.clone()))
            .await
    }

    /// Records in one commit why trials wait.
    pub(super) async fn record_waits(
        &mut self,
        waits: Vec<(TrialJobId, String)>,
    ) -> Result<(), store::Error> {
        let changes = waits
            .into_iter()
            .map(|(trial, why)| (trial, self.trial_change(JobState::Waiting, Some(why), None)));
        let changes: Vec<_> = changes.collect();
        self.record_changes(&changes).await
    }

    /// Records the experiment's state together with a notification of it, if any.
    pub(super) async fn record_experiment_state(
        &mut self,
        state: ExperimentState,
        elapsed: Duration,
        notification: Option<NewNotification>,
    ) -> Result<(), store::Error> {
        let elapsed_ms = to_ms(elapsed);
        let (store, word, now) = (&self.store, state.as_str(), self.clock.now_ms());
        let write = || store.experiment().set_state(word, elapsed_ms, now, notification.clone());
        self.inbox.retry_while_transient(write).await
    }

    /// Records the running time. A failure has no consequence, because the next record replaces this one.
    pub(super) async fn record_running_time(&self, elapsed: Duration) {
        let elapsed_ms = to_ms(elapsed);
        if let Err(error) = self.store.experiment().set_elapsed(elapsed_ms).await {
            debug!(error = error_chain(&error), "cannot record the running time");
        }
    }

    /// Records the trouble of the search, or its end, together with a notification of it.
    pub(super) async fn record_trouble(
        &mut self,
        trouble: Option<&str>,
        notification: Option<NewNotification>,
    ) -> Result<(), store::Error> {
        let trouble = trouble.map(str::to_owned);
        let write = || self.store.experiment().set_trouble(trouble.clone(), notification.clone());
        self.inbox.retry_while_transient(write).await
    }

    fn trial_change(
        &self,
        state: JobState,
        message: Option<String>,
        attempt: Option<AttemptId>,
    ) -> TrialChange {
        let at_ms = self.clock.now_ms();
        TrialChange {
            state,
            at_ms,
            message,
            exit_code: None,
            attempt,
            reported: TrialTimes::default(),
        }
    }
}

/// Reads a trial's results from the store.
pub async fn trial_result(
    store: &Store,
    spec: &ExperimentSpec,
    trial: &TrialJobId,
    attempt: &AttemptId,
) -> Result<TrialResult, store::Error> {
    let rows = store.reports().metrics(trial).await?;
    let metrics = rows.iter().map(|row| (&row.attempt, &row.metric));
    Ok(result::pick_result_with_goals(metrics, attempt, spec.objective.as_deref(), &spec.goals))
}
