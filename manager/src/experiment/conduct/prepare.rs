//! How an experiment's task begins: what the store remembers becomes its state, the tuner and the assessor
//! learn again what they knew, and jobs that outlived an earlier manager are adopted. It starts nothing.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use trial_protocol::{AttemptId, MetricValue, StopReason, TrialJobId};

use super::patience::Watch;
use super::steer::learnt;
use super::{Dependencies, ExperimentTask, Job, trial_result};
use crate::config::ExperimentSpec;
use crate::experiment::lease::Leases;
use crate::experiment::result::Steps;
use crate::experiment::state::{
    self, ExperimentState, FailureLimit, Fate, Limits, Policy, Remembered, State,
};
use crate::job_state::JobState;
use crate::search::assessor::Judgement;
use crate::search::search_space::Parameters;
use crate::search::tuner::{Outcome, Sample};
use crate::store::{self, AttemptState, Store, TrialRow};
use crate::training_service::{Adopted, JobEvent};
use crate::util::ids;

impl ExperimentTask {
    /// Builds the state from the store: a new experiment has no trials, an interrupted one has.
    pub(super) async fn prepare(mut deps: Dependencies) -> Result<Self, store::Error> {
        let limits = Limits {
            concurrency: deps.spec.trial_concurrency,
            trials: deps.spec.max_trial_number,
            duration: deps.spec.max_experiment_duration,
            trial_duration: deps.spec.max_trial_duration,
        };
        let stored = deps.store.experiment().await?;
        let before = Duration::from_millis(stored.as_ref().map_or(0, |row| row.elapsed_ms));
        let was_done =
            stored.as_ref().is_some_and(|row| row.state == ExperimentState::Done.as_str());
        let mut trouble = stored.and_then(|row| row.trouble);
        if trouble.is_some() && deps.advice.outside.is_none() {
            // What held the search is taken for mended by the user who resumes. A tuner outside says itself that it is well.
            deps.store.set_trouble(None, None).await?;
            trouble = None;
        }
        let began = Instant::now();
        let rows = deps.store.trials().await?;
        let taken = rows.iter().map(|row| row.id.clone()).collect();
        let (mut jobs, mut remembered) = (HashMap::new(), Vec::new());
        deps.advice.import(learnt(deps.store.imported().await?));
        let mut gone = Vec::new();
        let (mut results, mut reported) = (Vec::new(), false);
        let mut leases = Leases::new(deps.lease);
        let mut shortest: Option<Duration> = None;
        for row in rows {
            let fate = Self::fate(&mut deps, &row, &mut gone).await?;
            let result = Self::teach(&mut deps, &row, fate).await?;
            reported = reported
                || row.state == JobState::Succeeded
                || !deps.store.metrics(&row.id).await?.is_empty();
            if row.state == JobState::Succeeded {
                results.push((row.id.clone(), row.sequence, row.parameters.clone(), result));
            }
            let mut ended = false;
            if matches!(fate, Fate::Alive { running_for: Some(_) }) {
                ended = deps.store.attempt_state(&row.id, &row.attempt).await?.ended;
                leases.expect(&row.id, row.state == JobState::Lost && !ended);
            }
            if row.state == JobState::Succeeded
                && let (Some(started), Some(ended)) = (row.started_at_ms, row.ended_at_ms)
            {
                let ran = Duration::from_millis(u64::try_from(ended - started).unwrap_or(0));
                shortest = Some(shortest.map_or(ran, |shortest| shortest.min(ran)));
            }
            if fate != Fate::Ended {
                let submitted = fate != Fate::Again || row.state != JobState::Waiting;
                let (sequence, parameters) = (row.sequence, row.parameters.clone());
                let steps = Self::steps(&mut deps, &row).await?;
                let attempt = row.attempt.clone();
                let mut job = Job::new(sequence, parameters, attempt, submitted, steps);
                job.ended = ended;
                if let Fate::Alive { running_for: Some(ran) } = fate {
                    let now = Instant::now();
                    job.running_since = Some(now.checked_sub(ran).unwrap_or(now));
                }
                jobs.insert(row.id.clone(), job);
            }
            let TrialRow { id: trial, sequence, parameter_id, intent, retries, .. } = row;
            remembered.push(Remembered { trial, sequence, parameter_id, fate, intent, retries });
        }
        let policy = Policy {
            target: deps.spec.target_metric.map(|target| (deps.spec.optimize_mode, target)),
            failures: FailureLimit::of_file(deps.spec.max_consecutive_failures),
            retries: deps.spec.max_trial_retries,
        };
        let state = State::resume(limits, before, remembered).under(policy);
        let mut state = state;
        if reported {
            state.reported();
        }
        let state = if was_done { state.once_done() } else { state };
        let mut run = Self {
            deps,
            state,
            jobs,
            taken,
            leases,
            known: HashMap::new(),
            best: None,
            trouble,
            beat_at: Instant::now(),
            shortest,
            objective_told: false,
            news: true,
            before,
            began,
        };
        for (trial, sequence, parameters, result) in results {
            run.compare(&trial, sequence, &parameters, result.as_ref());
        }
        while let Some(event) = run.deps.inbox.pop() {
            run.told(event).await?;
        }
        run.gone(gone).await?;
        // An earlier manager may have died before it said so to their agents, and what it said may expire.
        let running = run.jobs.iter().filter(|(_, job)| job.running_since.is_some() && !job.ended);
        let running: Vec<_> = running.map(|(trial, _)| trial.clone()).collect();
        for trial in running {
            run.order_rules(&trial);
        }
        // An earlier manager recorded that these are to stop; whether it came to say so is unknown.
        let stops: Vec<_> = run.jobs.keys().cloned().collect();
        for trial in stops {
            if let Some(reason) = run.state.intent(&trial) {
                run.order_stop(&trial, reason);
                // Those that a manager's end interrupts were asked by it, and have their grace.
                if reason != StopReason::ManagerShutdown {
                    run.deps.service.cancel(&trial).await;
                }
            }
        }
        Ok(run)
    }

    /// Judges the trials that run by the steps in the store: those that agents delivered before this manager had read it are
    /// no news, and the last of them may be one that its trial is to be given up for.
    pub(super) async fn judge_stored(&mut self) -> Result<(), store::Error> {
        let runs = |job: &Job| job.submitted && !job.ended && job.given_up.is_none();
        let running = self.jobs.iter().filter(|(_, job)| runs(job));
        let running: Vec<TrialJobId> = running.map(|(trial, _)| trial.clone()).collect();
        for trial in running {
            let Some(job) = self.jobs.get(&trial).filter(|job| !job.steps.history().is_empty())
            else {
                continue;
            };
            if let Judgement::Bad { reason } = self.deps.advice.judge(&trial, &job.steps)
                && let Some(event) = self.give_up(&trial, reason)
            {
                self.perform(event).await?;
            }
        }
        Ok(())
    }

    /// Finds out what became of a trial while no manager watched.
    async fn fate(
        deps: &mut Dependencies,
        row: &TrialRow,
        gone: &mut Vec<JobEvent>,
    ) -> Result<Fate, store::Error> {
        if row.state.is_final() {
            return Ok(if Self::is_interrupted(row) { Fate::Again } else { Fate::Ended });
        }
        let (watch, service) = (Watch::begin(&deps.store), Arc::clone(&deps.service));
        let submitted = ids::submitted(&row.attempt);
        // What is reported meanwhile may be known from the store by then; to be told twice does no harm.
        let adopted = deps.inbox.aside(service.adopt(&row.id, &submitted)).await;
        let known = match adopted {
            Adopted::Gone(_) => Self::left(deps, row, watch).await?,
            Adopted::Alive | Adopted::Unknown => {
                deps.store.attempt_state(&row.id, &row.attempt).await?
            }
        };
        Ok(match adopted {
            Adopted::Alive => {
                let started = row.started_at_ms.filter(|_| known.facts_through.is_some());
                let now = deps.clock.now_ms();
                let ran = |at: i64| Duration::from_millis(u64::try_from(now - at).unwrap_or(0));
                Fate::Alive { running_for: started.map(ran) }
            }
            // A verdict on disk counts as well as one in the store: the trial has ended, and must not run again.
            Adopted::Gone(event)
                if known.ended || service.kept_verdict(&row.id, &row.attempt).await.is_some() =>
            {
                gone.push(event);
                Fate::Alive { running_for: None }
            }
            // No failure of its own is known: the machine went down, or a person cleaned up.
            Adopted::Gone(_) | Adopted::Unknown => Fate::Again,
        })
    }

    /// Returns the reports of a gone trial, once what its agent left behind is stored. What could not be stored says
    /// nothing about the trial: it may have ended well, and must not run again.
    async fn left(
        deps: &mut Dependencies,
        row: &TrialRow,
        mut watch: Watch,
    ) -> Result<AttemptState, store::Error> {
        let (store, service) = (deps.store.clone(), Arc::clone(&deps.service));
        loop {
            let known = store.attempt_state(&row.id, &row.attempt).await?;
            if known.ended || watch.took_all() {
                return Ok(known);
            }
            deps.inbox.mended(&store).await?;
            watch = Watch::begin(&store);
            deps.inbox.aside(service.recover(&row.id)).await;
        }
    }

    /// Rebuilds what the tuner knew; gives the result of a trial that has ended.
    async fn teach(
        deps: &mut Dependencies,
        row: &TrialRow,
        fate: Fate,
    ) -> Result<Option<MetricValue>, store::Error> {
        let none = Parameters::new();
        let parameters = row.parameters.as_object().unwrap_or(&none);
        deps.advice.adopt(&row.id, row.parameter_id, parameters);
        if fate == Fate::Ended {
            let steps = Self::steps(deps, row).await?;
            let outcome = Self::outcome(&deps.store, &deps.spec, row).await?;
            let told = match &outcome {
                Outcome::Result(value) => Some(value.clone()),
                Outcome::Failed => None,
            };
            deps.advice.assessed(&row.id, row.state, &steps);
            deps.advice.observe(&row.id, row.parameter_id, row.state, &outcome);
            if let (None, Some(value)) = (row.parameter_id, &told) {
                // The parameters are the user's.
                let (parameters, value) = (parameters.clone(), value.clone());
                deps.advice.import(vec![Sample { parameters, value }]);
            }
            return Ok(told);
        }
        Ok(None)
    }

    /// Returns whether a trial was ended by a manager's own end, and so runs again.
    pub(super) fn is_interrupted(row: &TrialRow) -> bool {
        let interrupted = row.intent == Some(StopReason::ManagerShutdown);
        interrupted && row.state.is_final() && row.state != JobState::Succeeded
    }

    /// Returns the outcome of a trial that has ended, for the tuner.
    pub(super) async fn outcome(
        store: &Store,
        spec: &ExperimentSpec,
        row: &TrialRow,
    ) -> Result<Outcome, store::Error> {
        let result = trial_result(store, spec, &row.id, &row.attempt).await?;
        let counts = state::counts(row.state, row.intent);
        let number = result.last.filter(|value| counts && value.number().is_some());
        Ok(number.map_or(Outcome::Failed, Outcome::Result))
    }

    /// The intermediate results of a trial's attempt, where they are needed.
    async fn steps(deps: &mut Dependencies, row: &TrialRow) -> Result<Steps, store::Error> {
        let mut steps = Steps::new(deps.spec.objective.as_deref());
        if deps.advice.assesses() {
            let rows = deps.store.metrics(&row.id).await?;
            let keeper = ids::of_old_keeper(&row.attempt);
            let own = |of: &AttemptId| *of == row.attempt || *of == keeper;
            for known in rows.iter().filter(|known| own(&known.attempt)) {
                if steps.enter(&known.metric) {
                    deps.advice.seen(&row.id, known.metric.sequence, &known.metric.value);
                }
            }
        }
        Ok(steps)
    }
}
