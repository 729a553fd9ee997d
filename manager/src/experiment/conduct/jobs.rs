//! What an experiment's task does with one trial: it records and submits it, again if need be, lets what was
//! left behind be delivered, and records its end. It does not decide when.

use std::sync::Arc;

use serde_json::Value;
use tracing::{info, warn};
use trial_protocol::{
    AttemptId, Metric, MetricKind, MetricValue, OBJECTIVE, StopReason, TrialJobId,
};

use super::patience::patiently;
use super::{Job, Run, trial_result};
use crate::config::render_command;
use crate::errors::chain;
use crate::experiment::ending::{End, Gone};
use crate::experiment::notice::Notice;
use crate::experiment::result::{Steps, TrialResult};
use crate::experiment::state;
use crate::ids;
use crate::job_state::JobState;
use crate::search_space::Parameters;
use crate::store::{self, NewTrial, TrialChange};
use crate::training_service::{JobWaits, Token, TrialJobSpec, parameter_record};

impl Run {
    /// Whether the attempt's verdict is stored, once what its agent left behind has been delivered. What could
    /// not be stored says nothing about the trial: then the store is waited for.
    pub(super) async fn ended(
        &mut self,
        trial: &TrialJobId,
        attempt: &AttemptId,
    ) -> Result<bool, store::Error> {
        loop {
            if self.c.store.attempt_state(trial, attempt).await?.ended {
                return Ok(true);
            }
            let was_ill = self.c.store.ailment().is_some();
            self.recover(trial).await?;
            if !was_ill && self.c.store.ailment().is_none() {
                return Ok(self.c.store.attempt_state(trial, attempt).await?.ended);
            }
            patiently(|| self.c.store.probe()).await?;
        }
    }

    /// Lets the service deliver what an agent left; its reports come through our own intake, which must
    /// not wait for us meanwhile.
    async fn recover(&mut self, trial: &TrialJobId) -> Result<(), store::Error> {
        let service = Arc::clone(&self.c.service);
        let recover = service.recover(trial);
        tokio::pin!(recover);
        loop {
            tokio::select! {
                () = &mut recover => return Ok(()),
                Some(event) = self.c.events.recv() => self.told(event).await?,
            }
        }
    }

    /// A gone trial's final result. One that was given up has its last intermediate result for one, which is
    /// recorded as derived.
    pub(super) async fn result(
        &mut self,
        trial: &TrialJobId,
        attempt: &AttemptId,
    ) -> Result<Option<MetricValue>, store::Error> {
        let TrialResult { name, last, mut intermediate } =
            trial_result(&self.c.store, &self.c.spec, trial, attempt).await?;
        let given_up = self.state.intent(trial) == Some(StopReason::EarlyStop);
        let Some(value) = intermediate.pop().filter(|_| last.is_none() && given_up) else {
            return Ok(last);
        };
        let counted = self.jobs.get(trial).and_then(|job| job.steps.name());
        let name = name.or_else(|| counted.map(str::to_owned));
        let metric = Metric {
            name: name.unwrap_or_else(|| OBJECTIVE.to_owned()),
            kind: MetricKind::Final,
            sequence: 0,
            value: value.clone(),
            derived: true,
        };
        let now = self.c.clock.now_ms();
        self.c.store.derive(trial, attempt, metric, now).await?;
        Ok(Some(value))
    }

    pub(super) fn fresh_id(&mut self) -> TrialJobId {
        loop {
            let id = ids::trial();
            if self.taken.insert(id.clone()) {
                return id;
            }
        }
    }

    pub(super) async fn launch(
        &mut self,
        trial: TrialJobId,
        sequence: u64,
        parameter_id: u64,
        parameters: Parameters,
    ) -> Result<Option<state::Event>, store::Error> {
        let attempt = ids::first_attempt(&trial);
        self.c.advice.launched(&trial, Some(parameter_id), &parameters);
        let parameters = Value::Object(parameters);
        let row = NewTrial {
            id: trial.clone(),
            sequence,
            parameter_id: Some(parameter_id),
            parameters: parameters.clone(),
            attempt: attempt.clone(),
            created_at_ms: self.c.clock.now_ms(),
        };
        patiently(|| self.c.store.insert_trial(row.clone())).await?;
        let steps = Steps::new(self.c.spec.objective.as_deref());
        let job = Job::new(sequence, parameters, attempt, false, steps);
        self.jobs.insert(trial.clone(), job);
        Ok(self.submit(&trial, Some(parameter_id)).await)
    }

    pub(super) async fn relaunch(
        &mut self,
        trial: &TrialJobId,
    ) -> Result<Option<state::Event>, store::Error> {
        let Some(row) = self.c.store.trial(trial).await? else { return Ok(None) };
        let Some(job) = self.jobs.get_mut(trial) else { return Ok(None) };
        if job.submitted {
            job.attempt = ids::next_attempt(trial, &job.attempt);
            job.steps = Steps::new(self.c.spec.objective.as_deref());
            job.given_up = None;
            (job.running_since, job.renew_at) = (None, None);
        }
        let (attempt, now) = (job.attempt.clone(), self.c.clock.now_ms());
        patiently(|| self.c.store.set_intent(trial, None, now)).await?;
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
        self.leases.forget(trial);
        let Some(job) = self.jobs.get_mut(trial) else { return Ok(()) };
        self.c.handle.forget(trial, &job.attempt);
        job.attempt = ids::next_attempt(trial, &job.attempt);
        job.steps = Steps::new(self.c.spec.objective.as_deref());
        (job.submitted, job.given_up) = (false, None);
        let (attempt, at_ms) = (job.attempt.clone(), self.c.clock.now_ms());
        let (state, message) = (JobState::Waiting, Some(message));
        let change = TrialChange { state, at_ms, message, exit_code: None, attempt: Some(attempt) };
        patiently(|| self.c.store.retry_trial(trial, change.clone())).await
    }

    /// Whether what was submitted as this attempt is what the trial waits for.
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
        info!(%trial, "its pod was started again by the cluster");
        let before = std::mem::replace(&mut job.attempt, attempt.clone());
        job.steps = Steps::new(self.c.spec.objective.as_deref());
        self.c.handle.forget(trial, &before);
        let runs = self.state.runs(trial);
        let state = if runs { JobState::Running } else { JobState::Waiting };
        self.record(trial, state, None, Some(attempt)).await?;
        // What the earlier one was ordered, this one has not heard.
        if let Some(reason) = self.state.intent(trial) {
            self.order_stop(trial, reason);
        }
        if runs {
            self.order_rules(trial);
        }
        Ok(())
    }

    /// Submits a recorded trial; a refusal is the trial's end, not the experiment's.
    async fn submit(
        &mut self,
        trial: &TrialJobId,
        parameter_id: Option<u64>,
    ) -> Option<state::Event> {
        let job = self.jobs.get_mut(trial)?;
        job.submitted = true;
        let none = Parameters::new();
        let parameters = job.parameters.as_object().unwrap_or(&none);
        let spec = TrialJobSpec {
            experiment: self.c.id.clone(),
            trial: trial.clone(),
            attempt: job.attempt.clone(),
            sequence: job.sequence,
            command: render_command(&self.c.spec.trial_command, parameters),
            parameter_record: parameter_record(parameter_id, &job.parameters),
            token: Token(self.c.secret.trial_token(&self.c.id, trial, self.c.secret.now_ms())),
        };
        match patiently(|| self.c.service.submit(&spec)).await {
            Ok(()) => None,
            Err(error) => {
                let message = chain(&error);
                warn!(%trial, "the trial could not be submitted: {message}");
                let gone = Gone { exit_code: None, message: Some(message) };
                let trial = trial.clone();
                Some(state::Event::Gone { trial, gone, verdict: None, result: None })
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
        if self.c.store.trial(&trial).await?.is_none_or(|row| row.state != JobState::Waiting) {
            return Ok(());
        }
        self.record(&trial, JobState::Waiting, Some(why.clone()), None).await?;
        self.notify(Notice::Waits { trial, sequence, why });
        Ok(())
    }

    pub(super) async fn record_end(
        &mut self,
        trial: TrialJobId,
        mut end: End,
    ) -> Result<(), store::Error> {
        self.leases.forget(&trial);
        let Some(job) = self.jobs.get_mut(&trial) else { return Ok(()) };
        self.c.handle.forget(&trial, &job.attempt);
        if end.state == JobState::EarlyStopped && job.given_up.is_some() {
            end.message = job.given_up.take();
        }
        self.c.advice.assessed(&trial, end.state, &job.steps);
        let ran = job.running_since.take().map(|since| since.elapsed());
        job.renew_at = None;
        let (sequence, attempt) = (job.sequence, job.attempt.clone());
        let parameters = job.parameters.clone();
        if let Some(ran) = ran.filter(|_| end.state == JobState::Succeeded) {
            self.succeeded_after(ran);
        }
        let change = TrialChange {
            state: end.state,
            at_ms: self.c.clock.now_ms(),
            message: end.message.clone(),
            exit_code: end.exit_code,
            attempt: None,
        };
        patiently(|| self.c.store.change_trial(&trial, change.clone())).await?;
        let result = trial_result(&self.c.store, &self.c.spec, &trial, &attempt).await?;
        if end.state == JobState::Succeeded {
            self.compare(&trial, sequence, &parameters, result.last.as_ref());
        }
        let mut last_lines = String::new();
        if end.state == JobState::Failed
            && let Some(verdict) = self.c.store.verdict(&trial, &attempt).await?
        {
            let evidence = verdict.evidence;
            let errors = evidence.stderr_tail.trim();
            last_lines =
                if errors.is_empty() { evidence.stdout_tail } else { evidence.stderr_tail };
        }
        self.notify(Notice::Ended { trial, sequence, end, result, last_lines });
        Ok(())
    }

    pub(super) async fn record(
        &mut self,
        trial: &TrialJobId,
        state: JobState,
        message: Option<String>,
        attempt: Option<AttemptId>,
    ) -> Result<(), store::Error> {
        let at_ms = self.c.clock.now_ms();
        let change = TrialChange { state, at_ms, message, exit_code: None, attempt };
        patiently(|| self.c.store.change_trial(trial, change.clone())).await
    }
}
