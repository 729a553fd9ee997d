//! What a person asks of an experiment that runs: checked against the store, recorded, then done. What a tuner is
//! given is in `steer`.

use serde_json::{Value, json};
use trial_protocol::{DirectiveBody, StopReason, TrialJobId};

use super::{ExperimentTask, Job};
use crate::config::MOST_AT_A_TIME;
use crate::experiment::command::{Command, NewLimits, Refused};
use crate::experiment::result::Steps;
use crate::experiment::state::{self, Effect, ExperimentState, Steer};
use crate::store::{self, TrialRow};
use crate::util::errors::chain;

impl ExperimentTask {
    /// Does what is asked, or says why not. An error of its own is the experiment's.
    pub(super) async fn commanded(
        &mut self,
        command: Command,
    ) -> Result<Result<(), Refused>, store::Error> {
        if self.deps.store.ailment().is_some()
            && let Err(error) = self.deps.store.probe().await
        {
            return Ok(Err(Refused::Held(chain(&error))));
        }
        let checked = match command {
            Command::Kill(trial) => self.kill(trial).await,
            Command::Retry(trial) => self.retry(trial).await,
            Command::Add { trial, parameters } => self.add(trial, &parameters).await,
            Command::Flush(trial) => self.tell(trial, DirectiveBody::Flush).await,
            Command::LogLevel(trial, level) => {
                self.tell(trial, DirectiveBody::LogLevel { level }).await
            }
            Command::Limit(limits) => self.limit(&limits).await,
            Command::Import(list) => self.import(&list).await,
            Command::Space(space) => self.space(space).await,
        };
        match checked {
            Ok(Asked::Event(event)) => self.perform(event).await?,
            Ok(Asked::Steer(steer)) => {
                let asked = steer.clone();
                let effects = self.state.steer(steer, self.elapsed());
                if let Steer::Again(trial) = asked
                    && !effects.contains(&Effect::Relaunch { trial: trial.clone() })
                {
                    // The caller sees that it waits, and a manager that takes over runs it.
                    self.waits_again(&trial).await?;
                }
                self.do_all(effects).await?;
            }
            Ok(Asked::Order(trial, body)) => {
                if let Some(job) = self.jobs.get(&trial) {
                    self.deps.handle.order(&trial, &job.attempt, body);
                }
            }
            Err(refused) => return Ok(Err(refused)),
        }
        Ok(Ok(()))
    }

    async fn kill(&mut self, trial: TrialJobId) -> Result<Asked, Refused> {
        let reason = StopReason::User;
        let cancel = state::Event::Cancel { trial: trial.clone(), reason };
        self.lives(trial).await.map(|_| Asked::Event(cancel))
    }

    /// An order that is obeyed or forgotten: nothing depends on it.
    async fn tell(&mut self, trial: TrialJobId, body: DirectiveBody) -> Result<Asked, Refused> {
        self.lives(trial).await.map(|trial| Asked::Order(trial, body))
    }

    /// A trial that has not ended.
    async fn lives(&mut self, trial: TrialJobId) -> Result<TrialJobId, Refused> {
        let Some(row) = self.deps.store.trial(&trial).await? else {
            return Err(Refused::UnknownTrial(trial));
        };
        if row.state.is_final() {
            return Err(Refused::Ended { trial, state: row.state });
        }
        Ok(trial)
    }

    async fn retry(&mut self, trial: TrialJobId) -> Result<Asked, Refused> {
        let Some(row) = self.deps.store.trial(&trial).await? else {
            return Err(Refused::UnknownTrial(trial));
        };
        if !row.state.is_final() {
            return Err(Refused::NotEnded { trial, state: row.state });
        }
        self.goes_on()?;
        let job = self.ended_job(row);
        self.jobs.insert(trial.clone(), job);
        Ok(Asked::Steer(Steer::Again(trial)))
    }

    /// Returns the state of a trial that runs again.
    fn ended_job(&self, row: TrialRow) -> Job {
        let steps = Steps::new(self.deps.spec.objective.as_deref());
        let TrialRow { sequence, parameters, attempt, .. } = row;
        Job::new(sequence, parameters, attempt, true, steps)
    }

    pub(super) fn goes_on(&self) -> Result<(), Refused> {
        match self.state.stands() {
            ExperimentState::Running
            | ExperimentState::NoMoreTrial
            | ExperimentState::TunerNoMoreTrial => Ok(()),
            stands @ (ExperimentState::Done
            | ExperimentState::Stopping
            | ExperimentState::Stopped) => Err(Refused::Over(stands)),
        }
    }

    /// Records other limits in the experiment's file, where a resumed experiment finds them.
    async fn limit(&mut self, limits: &NewLimits) -> Result<Asked, Refused> {
        self.goes_on()?;
        let NewLimits { concurrency, trials, duration: ref written } = *limits;
        let duration = written.as_ref().map(|duration| duration.length);
        for (name, zero) in [
            ("trialConcurrency", concurrency == Some(0)),
            ("maxTrialNumber", trials == Some(0)),
            ("maxExperimentDuration", duration.is_some_and(|limit| limit.is_zero())),
        ] {
            if zero {
                return Err(Refused::Zero(name));
            }
        }
        if let Some(concurrency) = concurrency {
            let room = self.deps.service.room();
            if let Some(room) = room.filter(|room| concurrency > *room) {
                let why = format!(
                    "the GPUs have room for {room} trials at a time, not for {concurrency}"
                );
                return Err(Refused::Wrong(why));
            }
            if concurrency > MOST_AT_A_TIME {
                let why = format!(
                    "trialConcurrency is {concurrency}; at most {MOST_AT_A_TIME} is possible"
                );
                return Err(Refused::Wrong(why));
            }
        }
        let mut canonical = self.deps.spec.canonical.clone();
        let mut set = |name: &str, value: Option<Value>| {
            if let (Some(members), Some(value)) = (canonical.as_object_mut(), value) {
                members.insert(name.to_owned(), value);
            }
        };
        set("trialConcurrency", concurrency.map(|value| json!(value)));
        set("maxTrialNumber", trials.map(|value| json!(value)));
        set("maxExperimentDuration", written.as_ref().map(|duration| duration.written.clone()));
        self.deps.store.set_canonical(canonical.clone()).await?;
        let spec = &mut self.deps.spec;
        spec.canonical = canonical;
        spec.trial_concurrency = concurrency.unwrap_or(spec.trial_concurrency);
        spec.max_trial_number = trials.or(spec.max_trial_number);
        spec.max_experiment_duration = duration.or(spec.max_experiment_duration);
        Ok(Asked::Steer(Steer::Limit { concurrency, trials, duration }))
    }
}

/// A message to the state machine or to an agent.
pub(super) enum Asked {
    Event(state::Event),
    Steer(Steer),
    Order(TrialJobId, DirectiveBody),
}
