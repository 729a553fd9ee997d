//! The launcher of jobs, which turns a recorded trial into a job of the training service. It records nothing.

use std::collections::HashSet;
use std::sync::Arc;

use tracing::warn;
use trial_protocol::{ExperimentId, TrialJobId};

use super::inbox::Inbox;
use super::live_trial::LiveTrial;
use super::transient_errors::TransientError as _;
use crate::config::render_command;
use crate::experiment::code_recorder::CodeRecorder;
use crate::experiment::state;
use crate::search::search_space::Parameters;
use crate::token::Secret;
use crate::training_service::{JobEnd, Token, TrainingService, TrialJobSpec, parameter_record};
use crate::util::errors::error_chain;
use crate::util::ids;

/// Creates and submits the jobs of an experiment.
pub(super) struct JobLauncher {
    experiment: ExperimentId,
    /// The trials' command, with its placeholders.
    command: String,
    service: Arc<dyn TrainingService>,
    secret: Arc<Secret>,
    /// Records the code with which attempts start. `None`: trials do not run in the code directory itself.
    code: Option<CodeRecorder>,
    /// The ids of all trials.
    used_ids: HashSet<TrialJobId>,
}

impl JobLauncher {
    /// Returns a launcher for an experiment whose trials have the ids `used_ids`.
    pub(super) fn new(
        experiment: ExperimentId,
        command: String,
        service: Arc<dyn TrainingService>,
        secret: Arc<Secret>,
        code: Option<CodeRecorder>,
        used_ids: HashSet<TrialJobId>,
    ) -> Self {
        Self { experiment, command, service, secret, code, used_ids }
    }

    /// Returns the training service.
    pub(super) fn service(&self) -> &Arc<dyn TrainingService> {
        &self.service
    }

    /// Returns an id that no trial of the experiment has.
    pub(super) fn new_trial_id(&mut self) -> TrialJobId {
        loop {
            let id = ids::new_trial_id();
            if self.used_ids.insert(id.clone()) {
                return id;
            }
        }
    }

    /// Reserves an id for a new trial. Returns `false` if another trial has it.
    pub(super) fn reserve_trial_id(&mut self, id: &TrialJobId) -> bool {
        self.used_ids.insert(id.clone())
    }

    /// Submits a trial's attempt, and returns the resulting events. A refusal ends the trial and not the experiment.
    /// While a disk is full it tries again, and `inbox` keeps arriving events.
    pub(super) async fn submit(
        &self,
        inbox: &mut Inbox,
        trial: &TrialJobId,
        job: &mut LiveTrial,
        parameter_id: Option<u64>,
    ) -> Vec<state::Event> {
        job.mark_submitted();
        let spec = self.job_spec(trial, job, parameter_id);
        let submitted = inbox.retry_while_transient(|| self.service.submit(&spec)).await;
        let Err(error) = submitted else {
            if let Some(code) = &self.code {
                code.record(trial, &spec.attempt);
            }
            return Vec::new();
        };
        // Such an error is only returned if the experiment must stop: otherwise, the launcher tries again.
        let stop = error.is_transient().then_some(state::Event::ExperimentStopRequested);
        let message = error_chain(&error);
        warn!(%trial, "the trial could not be submitted: {message}");
        let job_end = JobEnd { message: Some(message), ..JobEnd::default() };
        let trial = trial.clone();
        let gone = state::Event::JobGone { trial, job_end, verdict: None, result: None };
        stop.into_iter().chain([gone]).collect()
    }

    fn job_spec(
        &self,
        trial: &TrialJobId,
        job: &LiveTrial,
        parameter_id: Option<u64>,
    ) -> TrialJobSpec {
        let none = Parameters::new();
        let parameters = job.parameters().as_object().unwrap_or(&none);
        let token = self.secret.trial_token(&self.experiment, trial, self.secret.now_ms());
        TrialJobSpec {
            experiment: self.experiment.clone(),
            trial: trial.clone(),
            attempt: job.attempt().clone(),
            sequence: job.sequence(),
            command: render_command(&self.command, parameters),
            parameter_record: parameter_record(parameter_id, job.parameters()),
            token: Token(token),
        }
    }

    /// Waits until the versions of the code are recorded.
    pub(super) async fn close(&mut self) {
        if let Some(code) = self.code.take() {
            code.close().await;
        }
    }
}
