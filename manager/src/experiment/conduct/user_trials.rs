//! Trials with the user's own parameters: the initial points of the experiment file, and additions to a running search.
//! Each is recorded as a waiting trial before anything starts, so that the next manager finds it.

use serde_json::Value;
use trial_protocol::{MetricValue, TrialJobId};

use super::command::CheckedCommand;
use super::{ExperimentTask, Job};
use crate::config::{ExperimentSpec, TunerChoice};
use crate::experiment::command::Refused;
use crate::experiment::state::{ExperimentState, UserChange, UserTrial};
use crate::search::own_point;
use crate::search::search_space::{self, Parameters};
use crate::search::tuner::{self, Sample};
use crate::store::{self, NewTrial};
use crate::util::ids;

/// Completes a point of the user: missing parameters are drawn from the space that `spec` describes.
fn complete_point(
    spec: &ExperimentSpec,
    given: &Parameters,
    seed: u64,
    number: u64,
) -> Result<Parameters, search_space::Error> {
    let native = if let TunerChoice::Native(native) = &spec.tuner { Some(native) } else { None };
    let sets = native.and_then(|native| tuner::batch_sets(native, &spec.search_space));
    own_point::complete(given, &spec.search_space, sets.as_deref(), seed, number)
}

impl ExperimentTask {
    /// Queues the points of the experiment file, all or none, before any other trial.
    pub(super) async fn add_initial(&mut self) -> Result<(), store::Error> {
        let is_new =
            self.state.next_sequence() == 0 && self.state.state() == ExperimentState::Running;
        if !is_new || self.spec.initial_trials.is_empty() {
            return Ok(());
        }
        let seed = self.recorder.store().experiment().await?.map_or(0, |row| row.seed);
        let mut points = Vec::new();
        for (number, given) in (0_u64..).zip(self.spec.initial_trials.clone()) {
            // This cannot fail, because the file was checked against the same space.
            let Ok(parameters) = complete_point(&self.spec, &given, seed, number) else { continue };
            for _ in 0..self.spec.trial_repeats {
                points.push((self.launcher.new_trial_id(), parameters.clone()));
            }
        }
        let effects = self.state.apply_change(UserChange::Add(points), self.elapsed());
        self.perform_all(effects).await
    }

    /// Checks a point of the user and completes it.
    pub(super) async fn add(
        &mut self,
        trial: TrialJobId,
        given: &Parameters,
    ) -> Result<CheckedCommand, Refused> {
        self.require_active()?;
        if self.state.is_full() {
            return Err(Refused::Full { limit: self.state.next_sequence() });
        }
        if self.state.state() == ExperimentState::NoMoreTrial {
            return Err(Refused::LastTrials);
        }
        if !self.launcher.reserve_trial_id(&trial) {
            return Err(Refused::Wrong(format!(
                "trial {trial} already exists; send the request again"
            )));
        }
        let Some(row) = self.recorder.store().experiment().await? else {
            return Err(Refused::NotRunning);
        };
        let number = self.state.next_sequence();
        let parameters = complete_point(&self.spec, given, row.seed, number);
        let parameters = parameters.map_err(|error| Refused::Wrong(error.to_string()))?;
        Ok(CheckedCommand::UserChange(UserChange::Add(vec![(trial, parameters)])))
    }

    /// Records new trials of the user.
    pub(super) async fn enqueue(&mut self, own: Vec<UserTrial>) -> Result<(), store::Error> {
        let created_at_ms = self.recorder.now_ms();
        let row = |own: &UserTrial| NewTrial {
            id: own.trial.clone(),
            sequence: own.sequence,
            parameter_id: None,
            parameters: Value::Object(own.parameters.clone()),
            attempt: ids::first_attempt(&own.trial),
            created_at_ms,
        };
        let rows: Vec<_> = own.iter().map(row).collect();
        self.recorder.insert_trials(&rows).await?;
        for (own, row) in own.into_iter().zip(rows) {
            self.advice.notify_launched(&own.trial, None, &own.parameters);
            let steps = self.new_steps();
            let job = Job::new(row.sequence, row.parameters, row.attempt, false, steps);
            self.jobs.insert(own.trial, job);
        }
        Ok(())
    }

    /// Teaches the tuner the result of a trial of the user.
    pub(super) fn teach_user_result(&mut self, trial: &TrialJobId, value: MetricValue) {
        let parameters = self.jobs.get(trial).and_then(|job| job.parameters.as_object().cloned());
        if let Some(parameters) = parameters {
            self.advice.import(vec![Sample { parameters, value }]);
        }
    }
}
