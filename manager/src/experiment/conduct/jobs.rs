//! What an experiment's task does with one trial: it records and submits it, again if need be, lets what was
//! left behind be delivered, and records its end. It does not decide when.

use serde_json::Value;
use tracing::{info, warn};
use trial_protocol::{AttemptId, TrialJobId};

use super::patience::Passing as _;
use super::{ExperimentTask, Job};
use crate::config::render_command;
use crate::experiment::ending::Gone;
use crate::experiment::notice::Notice;
use crate::experiment::result::Steps;
use crate::experiment::state;
use crate::job_state::JobState;
use crate::search::search_space::Parameters;
use crate::store::{self, NewTrial, Span, TrialChange};
use crate::training_service::{JobImage, JobWaits, Token, TrialJobSpec, parameter_record};
use crate::util::errors::chain;
use crate::util::ids;

impl ExperimentTask {
    pub(super) fn fresh_id(&mut self) -> TrialJobId {
        loop {
            let id = ids::trial();
            if self.taken.insert(id.clone()) {
                return id;
            }
        }
    }

    /// Records new trials, all in one commit, and submits them; says which were refused.
    pub(super) async fn launch(
        &mut self,
        new: Vec<(TrialJobId, u64, u64, Parameters)>,
    ) -> Result<Vec<state::Event>, store::Error> {
        let (mut rows, mut order) = (Vec::new(), Vec::new());
        for (trial, sequence, parameter_id, parameters) in new {
            self.deps.advice.launched(&trial, Some(parameter_id), &parameters);
            rows.push(NewTrial {
                id: trial.clone(),
                sequence,
                parameter_id: Some(parameter_id),
                parameters: Value::Object(parameters),
                attempt: ids::first_attempt(&trial),
                created_at_ms: self.deps.clock.now_ms(),
            });
            order.push((trial, parameter_id));
        }
        self.deps.inbox.patiently(|| self.deps.store.insert_trials(rows.clone())).await?;
        for NewTrial { id, sequence, parameters, attempt, .. } in rows {
            let steps = Steps::new(self.deps.spec.objective.as_deref());
            let job = Job::new(sequence, parameters, attempt, false, steps);
            self.jobs.insert(id, job);
        }
        let mut refused = Vec::new();
        for (trial, parameter_id) in order {
            refused.extend(self.submit(&trial, Some(parameter_id)).await);
        }
        Ok(refused)
    }

    pub(super) async fn relaunch(
        &mut self,
        trial: &TrialJobId,
    ) -> Result<Vec<state::Event>, store::Error> {
        let row = self.deps.inbox.patiently(|| self.deps.store.trial(trial)).await?;
        let Some(row) = row else { return Ok(Vec::new()) };
        let Some(job) = self.jobs.get_mut(trial) else { return Ok(Vec::new()) };
        if job.submitted {
            job.attempt = ids::next_attempt(trial, &job.attempt);
            job.steps = Steps::new(self.deps.spec.objective.as_deref());
            job.given_up = None;
            (job.running_since, job.started_at_ms, job.renew_at) = (None, None, None);
            (job.ended, job.requeued) = (false, false);
        }
        let (attempt, now) = (job.attempt.clone(), self.deps.clock.now_ms());
        let none = [(trial.clone(), None)];
        self.deps.inbox.patiently(|| self.deps.store.set_intents(&none, now)).await?;
        self.record(trial, JobState::Waiting, None, Some(attempt)).await?;
        Ok(self.submit(trial, row.parameter_id).await)
    }

    /// Records that a trial is to be tried again, with the number of its next attempt: a manager that dies before
    /// that has begun finds nothing of it that has ended.
    pub(super) async fn retried(
        &mut self,
        trial: &TrialJobId,
        message: String,
    ) -> Result<(), store::Error> {
        let Some(attempt) = self.renumbered(trial) else { return Ok(()) };
        let (state, at_ms, message) = (JobState::Waiting, self.deps.clock.now_ms(), Some(message));
        let change = TrialChange {
            state,
            at_ms,
            message,
            exit_code: None,
            attempt: Some(attempt),
            told: Span::default(),
        };
        self.deps.inbox.patiently(|| self.deps.store.retry_trial(trial, change.clone())).await
    }

    /// Makes a trial wait for another attempt at the user's request, which counts as no failure.
    pub(super) async fn waits_again(&mut self, trial: &TrialJobId) -> Result<(), store::Error> {
        let Some(attempt) = self.renumbered(trial) else { return Ok(()) };
        let message = "it is to run once more, on request, as soon as there is room";
        self.record(trial, JobState::Waiting, Some(message.to_owned()), Some(attempt)).await
    }

    fn renumbered(&mut self, trial: &TrialJobId) -> Option<AttemptId> {
        self.leases.forget(trial);
        let job = self.jobs.get_mut(trial)?;
        self.deps.handle.forget(trial, &job.attempt);
        job.attempt = ids::next_attempt(trial, &job.attempt);
        job.steps = Steps::new(self.deps.spec.objective.as_deref());
        (job.submitted, job.given_up, job.ended, job.requeued) = (false, None, false, false);
        Some(job.attempt.clone())
    }

    /// Returns whether what was submitted as this attempt is what the trial waits for.
    pub(super) fn is_present(&self, trial: &TrialJobId, attempt: &AttemptId) -> bool {
        let submitted = self.jobs.get(trial).map(|job| ids::submitted(&job.attempt));
        submitted.is_some_and(|submitted| submitted == ids::submitted(attempt))
    }

    /// The cluster started a trial's pod again by itself: what its agent says counts from here on, and what the
    /// earlier one said does not.
    pub(super) async fn started_again(
        &mut self,
        trial: &TrialJobId,
        attempt: AttemptId,
    ) -> Result<(), store::Error> {
        let Some(job) = self.jobs.get_mut(trial) else { return Ok(()) };
        if job.attempt != ids::submitted(&job.attempt) || !ids::is_pod_of(&attempt, &job.attempt) {
            info!(%trial, "its pod was started again by the cluster");
        }
        let before = std::mem::replace(&mut job.attempt, attempt.clone());
        job.steps = Steps::new(self.deps.spec.objective.as_deref());
        (job.ended, job.requeued) = (false, false);
        self.deps.handle.forget(trial, &before);
        let runs = self.state.runs(trial);
        let state = if runs { JobState::Running } else { JobState::Waiting };
        self.record(trial, state, None, Some(attempt)).await?;
        // What the earlier one was ordered, this one has not heard.
        if let Some(reason) = self.state.intent(trial) {
            self.order_stop(trial, reason);
        }
        if runs {
            self.leases.expect(trial, false);
            self.order_rules(trial);
        }
        Ok(())
    }

    /// Submits a recorded trial; a refusal is the trial's end, not the experiment's. Says what came of it.
    async fn submit(&mut self, trial: &TrialJobId, parameter_id: Option<u64>) -> Vec<state::Event> {
        let Some(job) = self.jobs.get_mut(trial) else { return Vec::new() };
        job.submitted = true;
        let none = Parameters::new();
        let parameters = job.parameters.as_object().unwrap_or(&none);
        let spec = TrialJobSpec {
            experiment: self.deps.id.clone(),
            trial: trial.clone(),
            attempt: job.attempt.clone(),
            sequence: job.sequence,
            command: render_command(&self.deps.spec.trial_command, parameters),
            parameter_record: parameter_record(parameter_id, &job.parameters),
            token: Token(self.deps.secret.trial_token(
                &self.deps.id,
                trial,
                self.deps.secret.now_ms(),
            )),
        };
        match self.deps.inbox.patiently(|| self.deps.service.submit(&spec)).await {
            Ok(()) => {
                if let Some(code) = &self.deps.code {
                    code.record(trial, &spec.attempt);
                }
                Vec::new()
            }
            Err(error) => {
                // A disk that was waited for until the experiment was to stop: so it was the stop that ended it.
                let stop = error.may_pass().then_some(state::Event::Stop);
                let message = chain(&error);
                warn!(%trial, "the trial could not be submitted: {message}");
                let gone =
                    Gone { exit_code: None, message: Some(message), class: None, taken: None };
                let trial = trial.clone();
                let gone = state::Event::Gone { trial, gone, verdict: None, result: None };
                stop.into_iter().chain([gone]).collect()
            }
        }
    }

    /// A job waits, and why is known.
    pub(super) async fn waits(&mut self, news: JobWaits) -> Result<(), store::Error> {
        let JobWaits { trial, attempt, why } = news;
        let Some(job) = self.jobs.get(&trial).filter(|_| self.is_present(&trial, &attempt)) else {
            return Ok(()); // An attempt that was given up before.
        };
        let sequence = job.sequence;
        // Its agent may have started the command meanwhile; then the reason is old news.
        let row = self.deps.inbox.patiently(|| self.deps.store.trial(&trial)).await?;
        if row.is_none_or(|row| row.state != JobState::Waiting) {
            return Ok(());
        }
        self.record(&trial, JobState::Waiting, Some(why.clone()), None).await?;
        self.notify(Notice::Waits { trial, sequence, why });
        Ok(())
    }

    /// A job that ran is to wait again: it will run once more from its beginning, in another pod.
    pub(super) async fn requeued(&mut self, news: JobWaits) -> Result<(), store::Error> {
        let JobWaits { trial, attempt, why } = news;
        if !self.is_present(&trial, &attempt) || self.state.intent(&trial).is_some() {
            return Ok(());
        }
        // An agent that was about to speak for the first time is not heard any more.
        if !self.state.runs(&trial) {
            return self.waits(JobWaits { trial, attempt, why }).await;
        }
        info!(%trial, "its queue has taken the trial back: {why}");
        self.leases.forget(&trial);
        let Some(job) = self.jobs.get_mut(&trial) else { return Ok(()) };
        self.deps.handle.forget(&trial, &job.attempt);
        job.steps = Steps::new(self.deps.spec.objective.as_deref());
        (job.running_since, job.started_at_ms, job.renew_at) = (None, None, None);
        (job.ended, job.requeued, job.given_up) = (false, true, None);
        let sequence = job.sequence;
        self.perform(state::Event::Requeued { trial: trial.clone() }).await?;
        self.record(&trial, JobState::Waiting, Some(why.clone()), None).await?;
        self.notify(Notice::Waits { trial, sequence, why });
        Ok(())
    }

    /// Records the image that an attempt runs.
    pub(super) async fn record_image(&mut self, news: JobImage) -> Result<(), store::Error> {
        let JobImage { trial, attempt, image } = news;
        if !self.is_present(&trial, &attempt) {
            return Ok(());
        }
        let record = || self.deps.store.record_image(&trial, &attempt, image.clone());
        self.deps.inbox.patiently(record).await
    }

    /// Records that trials run, each since when its agent says, all in one commit.
    pub(super) async fn record_running(
        &mut self,
        trials: &[TrialJobId],
    ) -> Result<(), store::Error> {
        let (state, at_ms) = (JobState::Running, self.deps.clock.now_ms());
        let change = |trial: &TrialJobId| {
            let job = self.jobs.get(trial);
            let started_at_ms = job.and_then(|job| job.started_at_ms);
            let told = Span { started_at_ms, duration_ms: None };
            // Of a job whose pods report as tries of their own this is the first that is known of the pod.
            let attempt = job.map(|job| job.attempt.clone());
            let change =
                TrialChange { state, at_ms, message: None, exit_code: None, attempt, told };
            (trial.clone(), change)
        };
        let changes: Vec<_> = trials.iter().map(change).collect();
        self.deps.inbox.patiently(|| self.deps.store.change_trials(changes.clone())).await
    }

    pub(super) async fn record(
        &mut self,
        trial: &TrialJobId,
        state: JobState,
        message: Option<String>,
        attempt: Option<AttemptId>,
    ) -> Result<(), store::Error> {
        let at_ms = self.deps.clock.now_ms();
        let change =
            TrialChange { state, at_ms, message, exit_code: None, attempt, told: Span::default() };
        self.deps.inbox.patiently(|| self.deps.store.change_trial(trial, change.clone())).await
    }
}
