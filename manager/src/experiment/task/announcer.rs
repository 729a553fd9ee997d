//! The announcements of an experiment: notices for its observers, and notifications, which are recorded together with
//! their subject.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::mpsc;
use tracing::error;
use trial_protocol::{Direction, TrialJobId};

use super::live_trial::LiveTrial;
use super::live_trials::LiveTrials;
use super::recorder::Recorder;
use crate::config::{ExperimentSpec, NotificationsSpec};
use crate::experiment::RESUME_REMEDY;
use crate::experiment::notice::Notice;
use crate::experiment::state::ExperimentState;
use crate::job_state::JobState;
use crate::notifications::OutboxWaker;
use crate::notifications::event::{self, BestResult, Notification, NotificationSubject};
use crate::search::goals::is_better;
use crate::store::{self, NewNotification};
use crate::training_service::JobWait;

/// Sends announcements, and remembers earlier ones.
pub(super) struct Announcer {
    about: NotificationSubject,
    notifications: Option<NotificationsSpec>,
    direction: Direction,
    /// Set if a single trial can be the best, which needs a single objective.
    has_best: bool,
    waker: OutboxWaker,
    notices: mpsc::UnboundedSender<Notice>,
    /// The best trial so far.
    best: Option<BestResult>,
    /// The trouble with an external tuner or assessor, as recorded in the store.
    trouble: Option<String>,
    /// Set after the user was notified which metric an agent chose as the result.
    has_announced_objective: bool,
}

impl Announcer {
    /// Creates an announcer. `trouble` is the trouble in the experiment's store.
    pub(super) fn new(
        about: NotificationSubject,
        spec: &ExperimentSpec,
        waker: OutboxWaker,
        notices: mpsc::UnboundedSender<Notice>,
        trouble: Option<String>,
    ) -> Self {
        Self {
            about,
            notifications: spec.notifications.clone(),
            direction: spec.direction,
            has_best: !spec.goals.has_several_objectives(),
            waker,
            notices,
            best: None,
            trouble,
            has_announced_objective: false,
        }
    }

    /// Sends a notice.
    pub(super) fn notify(&self, notice: Notice) {
        // There may be no receiver.
        drop(self.notices.send(notice));
    }

    /// Reports once which of several metrics an agent chose as the result.
    pub(super) fn notify_of_objective(&mut self, trial: &TrialJobId, message: &str) {
        if !std::mem::replace(&mut self.has_announced_objective, true) {
            self.notify(Notice::Message(format!("trial {trial}: {message}")));
        }
    }

    /// Records and reports why jobs wait.
    pub(super) async fn record_waits(
        &self,
        trials: &LiveTrials,
        recorder: &mut Recorder,
        news: Vec<JobWait>,
    ) -> Result<(), store::Error> {
        let mut waits = Vec::new();
        for JobWait { trial, attempt, why } in news {
            let job = trials.get(&trial).filter(|_| trials.is_current_submission(&trial, &attempt));
            // News of other attempts is outdated: the task gave them up before.
            let Some(sequence) = job.map(LiveTrial::sequence) else { continue };
            // The agent may have started the command meanwhile, which makes the reason obsolete.
            let row = recorder.trial(&trial).await?;
            if row.is_some_and(|row| row.state == JobState::Waiting) {
                waits.push((trial, sequence, why));
            }
        }
        if waits.is_empty() {
            return Ok(());
        }
        let reasons = waits.iter().map(|(trial, _, why)| (trial.clone(), why.clone()));
        recorder.record_waits(reasons.collect()).await?;
        for (trial, sequence, why) in waits {
            self.notify(Notice::Waits { trial, sequence, why });
        }
        Ok(())
    }

    /// Records the experiment's state. An end is recorded together with its notification.
    pub(super) async fn record_experiment_state(
        &self,
        recorder: &mut Recorder,
        state: ExperimentState,
        elapsed: Duration,
    ) -> Result<(), store::Error> {
        let is_end = matches!(state, ExperimentState::Done | ExperimentState::Stopped);
        let notification = match &self.notifications {
            Some(spec) if is_end => self.end_notification(recorder, spec, state).await?,
            Some(_) | None => None,
        };
        let is_notified = notification.is_some();
        recorder.record_experiment_state(state, elapsed, notification).await?;
        if is_notified {
            self.waker.wake();
        }
        Ok(())
    }

    async fn end_notification(
        &self,
        recorder: &mut Recorder,
        spec: &NotificationsSpec,
        state: ExperimentState,
    ) -> Result<Option<NewNotification>, store::Error> {
        let mut counts = BTreeMap::new();
        for row in recorder.trials().await? {
            *counts.entry(row.state.as_str()).or_default() += 1;
        }
        let (best, now) = (self.best.as_ref(), recorder.now_ms());
        Ok(event::ended(&self.about, state.as_str(), &counts, best, now).into_stored(spec))
    }

    /// Reports that too many failures hold the search, and records it for the API and the web portal.
    pub(super) async fn record_hold(
        &mut self,
        recorder: &mut Recorder,
        why: String,
    ) -> Result<(), store::Error> {
        self.notify(Notice::Message(why.clone()));
        let event = event::held(&self.about, &why, recorder.now_ms());
        self.record_event(recorder, Some(why), event).await
    }

    /// Reports and records the trouble with the adviser `name`, or its end.
    pub(super) async fn report_trouble(
        &mut self,
        recorder: &mut Recorder,
        name: &str,
        trouble: Option<String>,
    ) -> Result<(), store::Error> {
        if self.trouble == trouble {
            return Ok(());
        }
        let well = || format!("{name} answers again");
        self.notify(Notice::Message(trouble.clone().unwrap_or_else(well)));
        self.record_trouble(recorder, name, trouble).await
    }

    /// Logs and records that the adviser `name` is lost. `tunes`: the search depends on it.
    pub(super) async fn record_loss(
        &mut self,
        recorder: &mut Recorder,
        name: &str,
        message: &str,
        tunes: bool,
    ) -> Result<(), store::Error> {
        let lost = if tunes {
            format!("the tuner is lost: {message}; {RESUME_REMEDY}")
        } else {
            format!("the assessor is lost, so no more trials are stopped early: {message}")
        };
        error!("{lost}");
        self.record_trouble(recorder, name, Some(lost)).await
    }

    async fn record_trouble(
        &mut self,
        recorder: &mut Recorder,
        name: &str,
        trouble: Option<String>,
    ) -> Result<(), store::Error> {
        let event = event::trouble(&self.about, name, trouble.as_deref(), recorder.now_ms());
        self.record_event(recorder, trouble, event).await
    }

    async fn record_event(
        &mut self,
        recorder: &mut Recorder,
        trouble: Option<String>,
        event: Notification,
    ) -> Result<(), store::Error> {
        let notification = self.notifications.as_ref().and_then(|spec| event.into_stored(spec));
        recorder.record_trouble(trouble.as_deref(), notification).await?;
        self.waker.wake();
        self.trouble = trouble;
        Ok(())
    }

    /// Remembers the result of a trial, or of its whole point, if it is the best.
    pub(super) fn update_best(
        &mut self,
        trial: &TrialJobId,
        sequence: u64,
        parameters: &Value,
        number: f64,
    ) {
        if !self.has_best {
            return;
        }
        let best = self.best.as_ref().map(|best| best.number);
        if is_better(self.direction, Some(number), best) {
            let (trial, parameters) = (trial.clone(), parameters.clone());
            self.best = Some(BestResult { trial, sequence, number, parameters });
        }
    }
}
