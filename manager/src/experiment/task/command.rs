//! The commands of users to a running experiment. They are checked against the store. New limits, results from
//! elsewhere and a new search space are recorded at once, so that a resumed search has them. The experiment's task does
//! the rest.

use std::collections::HashSet;

use serde_json::Value;
use trial_protocol::{DirectiveBody, StopReason, TrialJobId};

use super::announcer::Announcer;
use super::launcher::JobLauncher;
use super::live_trials::LiveTrials;
use super::new_trials::complete_point;
use super::recorder::Recorder;
use super::stored_trials::{stored_samples, teach_stored_trials};
use crate::config::{self, ExperimentSpec, TunerChoice};
use crate::experiment::advisers::Advisers;
use crate::experiment::command::{Command, CommandError, NewLimits};
use crate::experiment::notice::Notice;
use crate::experiment::state::{self, ExperimentState, State, UserChange};
use crate::search::search_space::Parameters;
use crate::search::tuner::import::{SampleReceiver, read_samples};
use crate::search::tuner::{self, TRIAL_BUDGET};
use crate::store::{ImportedRow, TrialRow};
use crate::util::errors::error_chain;

/// Checks and records the commands to an experiment.
pub(super) struct CommandHandler<'a> {
    pub(super) spec: &'a mut ExperimentSpec,
    pub(super) recorder: &'a Recorder,
    pub(super) launcher: &'a mut JobLauncher,
    pub(super) trials: &'a mut LiveTrials,
    pub(super) state: &'a State,
    pub(super) advisers: &'a mut Advisers,
    pub(super) announcer: &'a Announcer,
    /// `true` if a search that is done may continue.
    pub(super) stays_open: bool,
}

impl CommandHandler<'_> {
    /// Checks a command, and stores the limits, results or space that a resumed search needs. Returns what remains to be
    /// done, or the reason for a refusal.
    pub(super) async fn prepare(
        mut self,
        command: Command,
    ) -> Result<PreparedCommand, CommandError> {
        let database = self.recorder.store().database();
        if database.write_error().is_some()
            && let Err(error) = database.probe().await
        {
            return Err(CommandError::WaitsForDisk(error_chain(&error)));
        }
        match command {
            Command::StopTrial(trial) => self.prepare_stop(trial).await,
            Command::RerunTrial(trial) => self.rerun_trial(trial).await,
            Command::AddTrial { trial, parameters } => self.add_trial(trial, &parameters).await,
            Command::FlushTrial(trial) => self.prepare_directive(trial, DirectiveBody::Flush).await,
            Command::SetLogLevel(trial, level) => {
                self.prepare_directive(trial, DirectiveBody::LogLevel { level }).await
            }
            Command::ChangeLimits(limits) => self.change_limits(&limits).await,
            Command::ImportResults(list) => self.import_results(&list).await,
            Command::ChangeSpace(space) => self.change_space(space).await,
        }
    }

    async fn prepare_stop(&mut self, trial: TrialJobId) -> Result<PreparedCommand, CommandError> {
        let reason = StopReason::User;
        let stop = state::Event::StopRequested { trial: trial.clone(), reason };
        self.require_live_trial(trial).await.map(|_| PreparedCommand::Event(stop))
    }

    /// Checks a directive that is not recorded. An agent that misses it does no harm.
    async fn prepare_directive(
        &mut self,
        trial: TrialJobId,
        body: DirectiveBody,
    ) -> Result<PreparedCommand, CommandError> {
        self.require_live_trial(trial).await.map(|trial| PreparedCommand::Directive(trial, body))
    }

    /// Checks that a trial has not ended.
    async fn require_live_trial(&mut self, trial: TrialJobId) -> Result<TrialJobId, CommandError> {
        let Some(row) = self.recorder.store().trials().get(&trial).await? else {
            return Err(CommandError::UnknownTrial(trial));
        };
        if row.state.is_final() {
            return Err(CommandError::Ended { trial, state: row.state });
        }
        Ok(trial)
    }

    async fn rerun_trial(&mut self, trial: TrialJobId) -> Result<PreparedCommand, CommandError> {
        let Some(row) = self.recorder.store().trials().get(&trial).await? else {
            return Err(CommandError::UnknownTrial(trial));
        };
        if !row.state.is_final() {
            return Err(CommandError::NotEnded { trial, state: row.state });
        }
        self.require_active()?;
        let TrialRow { sequence, parameters, attempt, .. } = row;
        self.trials.add(trial.clone(), sequence, parameters, attempt, true);
        Ok(PreparedCommand::UserChange(UserChange::Rerun(trial)))
    }

    /// Checks a point of the user and completes it.
    async fn add_trial(
        &mut self,
        trial: TrialJobId,
        given: &Parameters,
    ) -> Result<PreparedCommand, CommandError> {
        self.require_active()?;
        if self.state.is_full() {
            return Err(CommandError::TrialLimitReached { limit: self.state.next_sequence() });
        }
        if self.state.experiment_state() == ExperimentState::NoMoreTrial {
            return Err(CommandError::LastTrials);
        }
        if !self.launcher.reserve_trial_id(&trial) {
            return Err(CommandError::InvalidValue(format!(
                "trial {trial} already exists; send the request again"
            )));
        }
        let Some(row) = self.recorder.store().experiment().row().await? else {
            return Err(CommandError::NotRunning);
        };
        let number = self.state.next_sequence();
        let parameters = complete_point(self.spec, given, row.seed, number);
        let parameters =
            parameters.map_err(|error| CommandError::InvalidValue(error.to_string()))?;
        Ok(PreparedCommand::UserChange(UserChange::AddTrials(vec![(trial, parameters)])))
    }

    fn require_active(&self) -> Result<(), CommandError> {
        match self.state.experiment_state() {
            ExperimentState::Running
            | ExperimentState::NoMoreTrial
            | ExperimentState::TunerNoMoreTrial => Ok(()),
            state @ (ExperimentState::Done
            | ExperimentState::Stopping
            | ExperimentState::Stopped) => Err(CommandError::NoMoreTrials(state)),
        }
    }

    /// Checks that the search may still change: it is active, or it is done and may continue.
    fn require_open(&self) -> Result<(), CommandError> {
        let waits = self.stays_open && self.state.experiment_state() == ExperimentState::Done;
        if waits { Ok(()) } else { self.require_active() }
    }

    /// Records new limits in the stored specification, for a resumed experiment.
    async fn change_limits(&mut self, limits: &NewLimits) -> Result<PreparedCommand, CommandError> {
        self.require_open()?;
        limits.check()?;
        let NewLimits { concurrency, trials, ref duration } = *limits;
        let duration = duration.as_ref().map(|duration| duration.length);
        let room = self.launcher.service().capacity();
        if let Some((concurrency, room)) =
            concurrency.zip(room).filter(|(concurrency, room)| concurrency > room)
        {
            let why = format!(
                "the training service has room for {room} of {concurrency} trials at a time"
            );
            return Err(CommandError::InvalidValue(why));
        }
        let canonical = limits.apply_to(self.spec.canonical.clone());
        self.recorder.store().experiment().set_canonical(canonical.clone(), None).await?;
        let spec = &mut *self.spec;
        spec.canonical = canonical;
        spec.trial_concurrency = concurrency.unwrap_or(spec.trial_concurrency);
        spec.max_trial_number = trials.or(spec.max_trial_number);
        spec.max_experiment_duration = duration.or(spec.max_experiment_duration);
        Ok(PreparedCommand::UserChange(UserChange::ChangeLimits { concurrency, trials, duration }))
    }

    /// Imports results of other searches for the tuner. Known results are skipped, so that a file may be imported
    /// twice.
    async fn import_results(&mut self, list: &Value) -> Result<PreparedCommand, CommandError> {
        self.require_open()?;
        let spec = &self.spec;
        let (native, own_parameters): (_, &[&str]) = match &spec.tuner {
            TunerChoice::BuiltIn(native) => (Some(native), native.own_parameters()),
            TunerChoice::Nni { advisor: true, .. } => (None, &[TRIAL_BUDGET]),
            TunerChoice::Nni { .. } | TunerChoice::Command { .. } => (None, &[]),
        };
        let receiver = SampleReceiver { space: &spec.search_space, native, own_parameters };
        let given = read_samples(list, receiver)
            .map_err(|error| CommandError::InvalidValue(error_text(&error)))?;
        let text = |row: &ImportedRow| (row.parameters.to_string(), row.value.to_string());
        let mut known: HashSet<_> =
            self.recorder.store().experiment().imported_rows().await?.iter().map(text).collect();
        let rows = given.into_iter().map(|sample| ImportedRow {
            parameters: Value::Object(sample.parameters),
            value: sample.value.as_json().clone(),
        });
        let fresh: Vec<ImportedRow> = rows.filter(|row| known.insert(text(row))).collect();
        let now = self.recorder.now_ms();
        self.recorder.store().experiment().insert_imported(fresh.clone(), now).await?;
        let count = fresh.len();
        self.advisers.import(stored_samples(fresh));
        let plural = if count == 1 { "" } else { "s" };
        let message = format!("the tuner has learned {count} imported result{plural}");
        self.announcer.notify(Notice::Message(message));
        Ok(PreparedCommand::UserChange(UserChange::TunerUpdated))
    }

    /// Changes the search space. A built-in tuner is rebuilt for the new space and learns all results again, as on a
    /// resume, so the search does not depend on interruptions. The tuner ignores results that do not fit the new space.
    async fn change_space(&mut self, space: Value) -> Result<PreparedCommand, CommandError> {
        self.require_open()?;
        let mut canonical = self.spec.canonical.clone();
        if let Some(members) = canonical.as_object_mut() {
            members.insert("searchSpace".to_owned(), space);
        }
        // Checks the settings that depend on the space again: the command's parameters and the tuner's arguments.
        let spec = config::from_canonical(&canonical);
        let spec = spec.map_err(|error| CommandError::InvalidValue(error.problem))?;
        let Some(row) = self.recorder.store().experiment().row().await? else {
            return Err(CommandError::NotRunning);
        };
        let native = match &spec.tuner {
            TunerChoice::BuiltIn(native) => {
                tuner::build(native, &spec.search_space, row.seed).map(Some)
            }
            TunerChoice::Nni { .. } | TunerChoice::Command { .. } => Ok(None),
        };
        let mut native = native.map_err(|error| CommandError::InvalidValue(error_text(&error)))?;
        let open = match &mut native {
            Some(tuner) => {
                teach_stored_trials(tuner.as_mut(), self.recorder.store(), self.spec).await?
            }
            None => Vec::new(),
        };
        let stored = spec.canonical.clone();
        self.recorder.store().experiment().set_canonical(stored, None).await?;
        self.advisers.change_space(spec.search_space.as_json(), native);
        self.spec.search_space = spec.search_space;
        self.spec.canonical = spec.canonical;
        self.announcer.notify(Notice::Message("the search space has changed".to_owned()));
        Ok(PreparedCommand::UserChange(UserChange::ChangeSpace { open }))
    }
}

/// A message to the state machine or to an agent.
pub(super) enum PreparedCommand {
    Event(state::Event),
    UserChange(UserChange),
    Directive(TrialJobId, DirectiveBody),
}

/// Returns the path of an error and the problem.
fn error_text(error: &tuner::Error) -> String {
    if error.path.is_empty() { error.problem.clone() } else { error.to_string() }
}
