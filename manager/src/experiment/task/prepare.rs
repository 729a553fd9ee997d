//! The preparation of an experiment's task. It restores the state from the store, reports the results to the
//! tuner and the assessor again, and adopts jobs that outlived an earlier manager. It starts nothing yet.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;
use trial_protocol::{AttemptId, Lane, MetricValue, Report, ReportBody, StopReason, TrialJobId};

use super::announcer::Announcer;
use super::launcher::JobLauncher;
use super::lease_monitor::LeaseMonitor;
use super::live_trials::LiveTrials;
use super::pending_ends::PendingEnds;
use super::recorder::Recorder;
use super::running_time::RunningTime;
use super::stop_rules::StopRules;
use super::stored_trials::{is_interrupted, stored_outcome, stored_samples};
use super::transient_errors::WriteWatch;
use super::verdict_ends::VerdictEnds;
use super::{Dependencies, ExperimentTask, LiveTrial, TaskEvent};
use crate::config::ExperimentSpec;
use crate::experiment::ending;
use crate::experiment::lease::Leases;
use crate::experiment::result::Steps;
use crate::experiment::state::{
    ExperimentState, FailureLimit, Limits, SearchPolicy, State, StoredTrial, StoredTrialState,
};
use crate::job_state::JobState;
use crate::notifications::event::NotificationSubject;
use crate::search::repeats::PointResults;
use crate::search::search_space::Parameters;
use crate::search::tuner::{Outcome, Sample};
use crate::store::{self, AttemptState, ReportRow, Store, TrialRow};
use crate::training_service::{AdoptionResult, JobEndEvent};
use crate::util::ids;

/// Builds the task from the store, for a new or an interrupted experiment.
pub(super) async fn prepare_task(mut deps: Dependencies) -> Result<ExperimentTask, store::Error> {
    let stored = deps.store.experiment().row().await?;
    let before = Duration::from_millis(stored.as_ref().map_or(0, |row| row.elapsed_ms));
    let was_done = stored.as_ref().is_some_and(|row| row.state == ExperimentState::Done.as_str());
    let has_external = deps.advisers.external.is_some();
    let trouble =
        current_trouble(&deps.store, has_external, stored.and_then(|row| row.trouble)).await?;
    let rows = deps.store.trials().all().await?;
    let used_ids = rows.iter().map(|row| row.id.clone()).collect();
    deps.advisers.import(stored_samples(deps.store.experiment().imported_rows().await?));
    let mut loaded = RestoredTrials::new(deps.lease);
    for row in rows {
        loaded.add(&mut deps, row).await?;
    }
    deps.service.end_unadopted();
    let RestoredTrials { trials, known, starts, gone, results, has_reported, leases, shortest } =
        loaded;
    let mut state =
        State::resume(limits(&deps.spec), before, known).with_policy(policy(&deps.spec));
    if has_reported {
        state.record_metric();
    }
    let state = if was_done { state.after_done() } else { state };
    let about = NotificationSubject { id: deps.id.clone(), name: deps.spec.name.clone() };
    let mut announcer = Announcer::new(about, &deps.spec, deps.waker, deps.notices, trouble);
    let points = find_best(&mut announcer, deps.spec.trial_repeats, results);
    let leases = LeaseMonitor::new(leases);
    let verdict_ends = VerdictEnds::new(Arc::clone(&deps.service), deps.handle.clone());
    let mut task = ExperimentTask {
        recorder: Recorder::new(deps.store, deps.clock, deps.inbox),
        launcher: JobLauncher::new(
            deps.id,
            deps.spec.trial_command.clone(),
            deps.service,
            deps.secret,
            deps.code,
            used_ids,
        ),
        rules: StopRules::new(
            deps.handle.clone(),
            deps.spec.max_trial_duration,
            leases.interval(),
            shortest,
        ),
        leases,
        announcer,
        trials: LiveTrials::new(trials, deps.handle.clone(), deps.spec.objective.clone()),
        advisers: deps.advisers,
        handle: deps.handle,
        job_news: deps.jobs,
        spec: deps.spec,
        state,
        ends: PendingEnds::new(points),
        verdict_ends,
        time: RunningTime::start(before),
        stays_open: deps.stays_open,
    };
    handle_missed_events(&mut task, starts, gone).await?;
    Ok(task)
}

/// Finds the best of the trials that succeeded before. Returns the results of their points, each of `repeats` trials.
fn find_best(
    announcer: &mut Announcer,
    repeats: u64,
    results: Vec<SuccessfulTrial>,
) -> PointResults {
    let mut points = PointResults::new(repeats);
    for (trial, sequence, parameters, result) in results {
        let number = result.as_ref().and_then(MetricValue::number);
        if let Some(number) = number.and_then(|number| points.add_result(&parameters, number)) {
            announcer.update_best(&trial, sequence, &parameters, number);
        }
    }
    points
}

/// Handles the events from the time without a manager, and repeats directives that may have been lost.
async fn handle_missed_events(
    task: &mut ExperimentTask,
    starts: Vec<TaskEvent>,
    gone: Vec<JobEndEvent>,
) -> Result<(), store::Error> {
    for event in starts {
        task.handle_batch(event).await?;
    }
    while let Some(event) = task.recorder.inbox().pop_kept() {
        task.handle_event(event).await?;
    }
    task.handle_ends(gone).await?;
    for trial in task.trials.find(LiveTrial::is_submitted) {
        let (trials, recorder, state) = (&mut task.trials, &mut task.recorder, &task.state);
        task.verdict_ends.restore(trials, recorder, state, &trial).await?;
    }
    repeat_directives(task).await;
    Ok(())
}

/// Returns the stored trouble if it still exists. A user who resumes a held search is assumed to have removed the
/// cause. An external tuner reports its recovery itself.
async fn current_trouble(
    store: &Store,
    has_external: bool,
    trouble: Option<String>,
) -> Result<Option<String>, store::Error> {
    if trouble.is_none() || has_external {
        return Ok(trouble);
    }
    store.experiment().set_trouble(None, None).await?;
    Ok(None)
}

fn limits(spec: &ExperimentSpec) -> Limits {
    Limits {
        concurrency: spec.trial_concurrency,
        trials: spec.max_trial_number,
        duration: spec.max_experiment_duration,
        trial_duration: spec.max_trial_duration,
    }
}

fn policy(spec: &ExperimentSpec) -> SearchPolicy {
    SearchPolicy {
        target: spec.target_metric.map(|target| (spec.direction, target)),
        failures: FailureLimit::from_setting(spec.max_consecutive_failures),
        retries: spec.max_trial_retries,
        repeats_points: spec.trial_repeats > 1,
    }
}

/// Repeats the directives and stops that an earlier manager may not have sent before it died.
async fn repeat_directives(task: &mut ExperimentTask) {
    for trial in task.trials.find(|job| job.is_running() && !job.has_ended()) {
        task.rules.send_rules(&trial, &mut task.trials, &task.advisers, &task.state);
    }
    for trial in task.trials.find(|_| true) {
        if let Some(reason) = task.state.intent(&trial) {
            task.trials.push_stop_directive(&trial, reason);
            // The earlier manager itself stopped the trials that its end interrupted. A second stop would cut their
            // grace period short.
            if reason != StopReason::ManagerShutdown {
                task.launcher.service().stop(&trial).await;
            }
        }
    }
}

/// A successful trial, with its position, its parameters and its result.
type SuccessfulTrial = (TrialJobId, u64, Value, Option<MetricValue>);

/// The trials of an earlier manager, as the task takes them over.
struct RestoredTrials {
    trials: HashMap<TrialJobId, LiveTrial>,
    known: Vec<StoredTrial>,
    /// The stored starts that the earlier manager did not handle before it died.
    starts: Vec<TaskEvent>,
    /// The jobs that have ended meanwhile.
    gone: Vec<JobEndEvent>,
    results: Vec<SuccessfulTrial>,
    has_reported: bool,
    leases: Leases,
    /// The shortest running time of a successful trial.
    shortest: Option<Duration>,
}

impl RestoredTrials {
    fn new(lease: Duration) -> Self {
        Self {
            trials: HashMap::new(),
            known: Vec::new(),
            starts: Vec::new(),
            gone: Vec::new(),
            results: Vec::new(),
            has_reported: false,
            leases: Leases::new(lease),
            shortest: None,
        }
    }

    /// Takes over a trial: determines the trial's state, and reports its results to the tuner and the
    /// assessor.
    async fn add(&mut self, deps: &mut Dependencies, row: TrialRow) -> Result<(), store::Error> {
        let state = determine_state(deps, &row, &mut self.gone).await?;
        let result = replay_result(deps, &row, state).await?;
        let succeeded = row.state == JobState::Succeeded;
        self.has_reported = self.has_reported
            || succeeded
            || !deps.store.reports().metrics(&row.id).await?.is_empty();
        if succeeded {
            self.add_success(&row, result);
        }
        let mut ended = false;
        if matches!(state, StoredTrialState::Alive { running_for: Some(_) }) {
            ended = deps.store.reports().attempt_state(&row.id, &row.attempt).await?.ended;
            self.leases.begin(&row.id, row.state == JobState::Lost && !ended);
        }
        if matches!(state, StoredTrialState::Alive { .. }) {
            self.starts.extend(unhandled_start(&deps.store, &row).await?);
        }
        if state != StoredTrialState::Ended {
            let submitted = state != StoredTrialState::Waiting || row.state != JobState::Waiting;
            let (sequence, parameters) = (row.sequence, row.parameters.clone());
            let steps = stored_steps(deps, &row).await?;
            let mut job =
                LiveTrial::new(sequence, parameters, row.attempt.clone(), submitted, steps);
            if ended {
                job.record_end();
            }
            if let StoredTrialState::Alive { running_for: Some(ran) } = state {
                let now = Instant::now();
                job.mark_running(now.checked_sub(ran).unwrap_or(now));
            }
            self.trials.insert(row.id.clone(), job);
        }
        let TrialRow { id: trial, sequence, parameter_id, intent, retries, .. } = row;
        self.known.push(StoredTrial { trial, sequence, parameter_id, state, intent, retries });
        Ok(())
    }

    fn add_success(&mut self, row: &TrialRow, result: Option<MetricValue>) {
        self.results.push((row.id.clone(), row.sequence, row.parameters.clone(), result));
        if let (Some(started), Some(ended)) = (row.started_at_ms, row.ended_at_ms) {
            let ran = Duration::from_millis(u64::try_from(ended - started).unwrap_or(0));
            self.shortest = Some(self.shortest.map_or(ran, |shortest| shortest.min(ran)));
        }
    }
}

/// Determines the state of a trial after the time without a manager.
async fn determine_state(
    deps: &mut Dependencies,
    row: &TrialRow,
    gone: &mut Vec<JobEndEvent>,
) -> Result<StoredTrialState, store::Error> {
    if row.state.is_final() {
        return Ok(if is_interrupted(row) {
            StoredTrialState::Waiting
        } else {
            StoredTrialState::Ended
        });
    }
    let (watch, service) = (WriteWatch::begin(&deps.store), Arc::clone(&deps.service));
    let submitted = ids::submitted_attempt(&row.attempt);
    // The inbox keeps a report that arrives meanwhile, and the task handles it although it may read it from the store
    // too. This does no harm.
    let adopted = deps.inbox.run_keeping_events(service.adopt(&row.id, &submitted)).await;
    let known = match adopted {
        AdoptionResult::Gone(_) => recover_records(deps, row, watch).await?,
        AdoptionResult::Alive | AdoptionResult::Unknown => {
            deps.store.reports().attempt_state(&row.id, &row.attempt).await?
        }
    };
    Ok(match adopted {
        AdoptionResult::Alive => {
            // A trial that its queue evicted does not run.
            let runs = known.facts_through.is_some() && row.state != JobState::Waiting;
            let started = row.started_at_ms.filter(|_| runs);
            let now = deps.clock.now_ms();
            let ran = |at: i64| Duration::from_millis(u64::try_from(now - at).unwrap_or(0));
            StoredTrialState::Alive { running_for: started.map(ran) }
        }
        // A verdict on disk counts like one in the store: the trial has ended, and must not run again.
        AdoptionResult::Gone(event)
            if known.ended || service.verdict_on_disk(&row.id, &row.attempt).await.is_some() =>
        {
            gone.push(event);
            StoredTrialState::Alive { running_for: None }
        }
        // The job was deleted after its trial had ended. A trial that was only stopped runs again.
        AdoptionResult::Unknown if known.ended && has_final_verdict(&deps.store, row).await? => {
            gone.push(JobEndEvent::unexplained(row.id.clone(), submitted));
            StoredTrialState::Alive { running_for: None }
        }
        // There is no evidence that the trial itself failed: the machine may have gone down, or a user may have removed
        // the job.
        AdoptionResult::Gone(_) | AdoptionResult::Unknown => StoredTrialState::Waiting,
    })
}

/// Returns whether the store has a verdict that ends the trial of a job that no longer exists.
async fn has_final_verdict(store: &Store, row: &TrialRow) -> Result<bool, store::Error> {
    let words = store.reports().final_records(vec![(row.id.clone(), row.attempt.clone())]).await?;
    Ok(words
        .into_iter()
        .filter_map(|words| words.verdict)
        .any(|verdict| ending::is_final(&verdict)))
}

/// Returns the start that an agent has reported of a trial that waits according to the store. `None` also for a trial
/// that its queue evicted: it waits, and already has a start time.
async fn unhandled_start(store: &Store, row: &TrialRow) -> Result<Option<TaskEvent>, store::Error> {
    if row.state != JobState::Waiting || row.started_at_ms.is_some() {
        return Ok(None);
    }
    let is_of_attempt = |report: &ReportRow| ids::submitted_attempt(&report.attempt) == row.attempt;
    let reports = store.reports().all(&row.id, Lane::Facts).await?;
    let mut latest = reports.into_iter().rev().filter(is_of_attempt);
    Ok(latest.find_map(|ReportRow { attempt, seq, observed_at_ms, body, .. }| {
        let body = serde_json::from_value(body).ok();
        let body = body.filter(|body| matches!(body, ReportBody::Started(_)))?;
        let fresh = vec![Report { seq, observed_at_ms, body }];
        Some(TaskEvent::Reported { trial: row.id.clone(), attempt, fresh })
    }))
}

/// Delivers the remaining reports of a gone trial's agent, and returns the stored reports. If they cannot be stored,
/// waits and tries again: the trial may have succeeded, and must then not run again.
async fn recover_records(
    deps: &mut Dependencies,
    row: &TrialRow,
    mut watch: WriteWatch,
) -> Result<AttemptState, store::Error> {
    let (store, service) = (deps.store.clone(), Arc::clone(&deps.service));
    loop {
        let known = store.reports().attempt_state(&row.id, &row.attempt).await?;
        if known.ended || watch.has_accepted_all() {
            return Ok(known);
        }
        deps.inbox.wait_until_writable(&store).await?;
        watch = WriteWatch::begin(&store);
        deps.inbox.run_keeping_events(service.recover_reports(&row.id)).await;
    }
}

/// Rebuilds the tuner's knowledge, and returns the result of an ended trial.
async fn replay_result(
    deps: &mut Dependencies,
    row: &TrialRow,
    state: StoredTrialState,
) -> Result<Option<MetricValue>, store::Error> {
    let none = Parameters::new();
    let parameters = row.parameters.as_object().unwrap_or(&none);
    deps.advisers.adopt(&row.id, row.parameter_id, parameters);
    if state == StoredTrialState::Ended {
        let steps = stored_steps(deps, row).await?;
        let outcome = stored_outcome(&deps.store, &deps.spec, row).await?;
        let outcome_value = match &outcome {
            Outcome::Result(value) => Some(value.clone()),
            Outcome::Failed => None,
        };
        deps.advisers.observe_for_assessor(&row.id, row.state, &steps);
        deps.advisers.observe(&row.id, row.parameter_id, row.state, &outcome);
        if let (None, Some(value)) = (row.parameter_id, &outcome_value) {
            // The user chose the parameters.
            let (parameters, value) = (parameters.clone(), value.clone());
            deps.advisers.import(vec![Sample { parameters, value }]);
        }
        return Ok(outcome_value);
    }
    Ok(None)
}

/// Returns the intermediate results of a trial's attempt, if they are needed.
async fn stored_steps(deps: &mut Dependencies, row: &TrialRow) -> Result<Steps, store::Error> {
    let mut steps = Steps::new(deps.spec.objective.as_deref());
    if deps.advisers.has_assessor() {
        let rows = deps.store.reports().metrics(&row.id).await?;
        let keeper = ids::legacy_attempt(&row.attempt);
        let own = |of: &AttemptId| *of == row.attempt || *of == keeper;
        for known in rows.iter().filter(|known| own(&known.attempt)) {
            if steps.insert(&known.metric) {
                deps.advisers.pass_step(&row.id, known.metric.sequence, &known.metric.value);
            }
        }
    }
    Ok(steps)
}
