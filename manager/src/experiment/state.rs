//! PURE: the life of an experiment. Its input is events, and its output is effects. It has no clock, no randomness and
//! no I/O. The module [`ending`](super::ending) decides the final state of a trial.
//!
//! # Invariants
//!
//! 1. At most `concurrency` trials are alive, including requested proposals.
//! 2. A tuner learns the end of each of its proposals at most once, after the end was recorded.
//! 3. An intent is recorded before the stop that it explains is sent.
//! 4. Nothing is started while the experiment stops.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::Duration;

use trial_protocol::{Cause, MetricValue, StopReason, TrialJobId, Verdict};

use self::budget::{Budget, Failure};
pub use self::budget::{FailureLimit, SearchPolicy};
pub use self::events::{
    Effect, Event, ExperimentState, Limits, StoredTrial, StoredTrialState, UserChange, UserTrial,
};
use self::run_queue::{DequeuedTrial, RunQueue};
use super::ending::{RecordedEnd, conclude, failure_class};
use crate::job_state::JobState;
use crate::search::tuner::{Outcome, Proposal};
use crate::training_service::JobEnd;

mod budget;
mod events;
mod run_queue;

/// The state of a trial that has not ended.
#[derive(Debug)]
struct LiveTrialState {
    parameter_id: Option<u64>,
    running_since: Option<Duration>,
    intent: Option<StopReason>,
}

/// The state of `maxExperimentDuration`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DurationLimitState {
    /// Nothing starts after the deadline.
    Active,
    /// The deadline has passed, and the observers were notified.
    Reported,
    /// The experiment was done. Trials that the user runs again start regardless of the deadline.
    Lifted,
}

/// The state machine of an experiment.
#[derive(Debug)]
pub struct State {
    limits: Limits,
    experiment: ExperimentState,
    live: HashMap<TrialJobId, LiveTrialState>,
    run_queue: RunQueue,
    /// The user's own trials whose results the tuner has still to learn.
    user_trials: HashSet<TrialJobId>,
    /// The number of proposals that are requested and not answered.
    pending_proposals: usize,
    /// Set if the tuner needs another result first.
    tuner_waits: bool,
    /// Set if the tuner is lost, so that no further proposals come in this run.
    tuner_lost: bool,
    /// Set if too many failures, or attempts that never began, hold the search in this run.
    held: bool,
    budget: Budget,
    next_sequence: u64,
    next_parameter_id: u64,
    /// The ids of requests that brought no proposal.
    unused_ids: BTreeSet<u64>,
    elapsed: Duration,
    duration: DurationLimitState,
}

impl State {
    /// Returns the state of a new experiment.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            experiment: ExperimentState::Running,
            live: HashMap::new(),
            run_queue: RunQueue::default(),
            user_trials: HashSet::new(),
            pending_proposals: 0,
            tuner_waits: false,
            tuner_lost: false,
            held: false,
            budget: Budget::default(),
            next_sequence: 0,
            next_parameter_id: 0,
            unused_ids: BTreeSet::new(),
            elapsed: Duration::ZERO,
            duration: DurationLimitState::Active,
        }
    }

    /// Returns the state of an experiment that has run for `elapsed` before, with its trials in the order of their
    /// sequence.
    pub fn resume(limits: Limits, elapsed: Duration, trials: Vec<StoredTrial>) -> Self {
        let mut state = Self::new(limits);
        state.elapsed = elapsed;
        for known in trials {
            state.next_sequence = state.next_sequence.max(known.sequence + 1);
            state.budget.set_retries(known.trial.clone(), known.retries);
            match known.parameter_id {
                Some(id) => state.next_parameter_id = state.next_parameter_id.max(id + 1),
                None if known.state == StoredTrialState::Ended => {}
                None => drop(state.user_trials.insert(known.trial.clone())),
            }
            match known.state {
                StoredTrialState::Ended => {}
                StoredTrialState::Alive { running_for } => {
                    let live = LiveTrialState {
                        parameter_id: known.parameter_id,
                        running_since: running_for.map(|ran| elapsed.saturating_sub(ran)),
                        intent: known.intent,
                    };
                    state.live.insert(known.trial, live);
                }
                StoredTrialState::Waiting => state.run_queue.push(known.trial, known.parameter_id),
            }
        }
        state
    }

    /// Returns the state of an experiment that was done. It starts only the trials that must run again.
    #[must_use]
    pub fn after_done(mut self) -> Self {
        (self.experiment, self.duration) =
            (ExperimentState::NoMoreTrial, DurationLimitState::Lifted);
        self
    }

    /// Returns the state with another policy.
    #[must_use]
    pub fn with_policy(mut self, policy: SearchPolicy) -> Self {
        self.budget = self.budget.with_policy(policy);
        self
    }

    /// Records that a trial has reported a metric, which proves that the command can work.
    pub fn record_metric(&mut self) {
        self.budget.set_proven();
    }

    /// Returns whether failures hold the search in this run.
    pub fn is_held(&self) -> bool {
        self.held
    }

    /// Returns the state of the experiment.
    pub fn experiment_state(&self) -> ExperimentState {
        self.experiment
    }

    /// Returns the number of trials that have not ended.
    pub fn live_count(&self) -> usize {
        self.live.len()
    }

    /// Returns whether a trial has not ended.
    pub fn is_live(&self, trial: &TrialJobId) -> bool {
        self.live.contains_key(trial)
    }

    /// Returns whether the number of trials has reached its limit.
    pub fn is_full(&self) -> bool {
        self.limits.trials.is_some_and(|limit| self.next_sequence >= limit)
    }

    /// Returns the position of the next trial.
    pub fn next_sequence(&self) -> u64 {
        self.next_sequence
    }

    /// Returns the intended stop of a trial.
    pub fn intent(&self, trial: &TrialJobId) -> Option<StopReason> {
        self.live.get(trial)?.intent
    }

    /// Returns whether a trial has started and not ended.
    pub fn is_running(&self, trial: &TrialJobId) -> bool {
        self.live.get(trial).is_some_and(|live| live.running_since.is_some())
    }

    /// Returns the running time at which [`Event::Tick`] is needed next.
    pub fn next_deadline(&self) -> Option<Duration> {
        let trials = self.limits.trial_duration.into_iter().flat_map(|limit| {
            let unstopped = self.live.values().filter(|live| live.intent.is_none());
            unstopped.filter_map(move |live| Some(live.running_since? + limit))
        });
        let whole = self
            .limits
            .duration
            .filter(|_| self.experiment.is_active() && self.duration == DurationLimitState::Active);
        trials.chain(whole).min()
    }

    /// Handles an event at running time `elapsed` and returns the effects.
    pub fn step(&mut self, event: Event, elapsed: Duration) -> Vec<Effect> {
        self.elapsed = self.elapsed.max(elapsed);
        let before = self.experiment;
        let mut effects = Vec::new();
        match event {
            Event::Begin => effects.push(Effect::RecordState(self.experiment)),
            Event::Proposed { parameter_id, proposal, trial } => {
                self.handle_proposal(parameter_id, proposal, trial, &mut effects);
            }
            Event::TunerReady => self.tuner_waits = false,
            Event::TunerLost => {
                self.tuner_lost = true;
                if self.experiment == ExperimentState::Running {
                    self.experiment = ExperimentState::TunerNoMoreTrial;
                }
            }
            Event::Started { trial } => {
                if let Some(live) = self.live.get_mut(&trial)
                    && live.running_since.is_none()
                {
                    live.running_since = Some(self.elapsed);
                    self.budget.record_started();
                    effects.push(Effect::RecordRunning { trial });
                }
            }
            Event::Requeued { trial } => self.requeue(&trial),
            Event::JobGone { trial, job_end, verdict, result } => {
                self.handle_gone(trial, &job_end, verdict.as_deref(), result, &mut effects);
            }
            Event::PointCompleted { mean } => {
                let reached =
                    self.budget.reached_message(&MetricValue::from(mean)).map(Effect::Notify);
                self.stop_new_trials(reached, &mut effects);
            }
            Event::StopRequested { trial, reason } => {
                if !self.remove_queued(&trial, &mut effects) {
                    self.request_stop(&trial, reason, &mut effects);
                }
            }
            Event::ExperimentStopRequested => {
                if !matches!(self.experiment, ExperimentState::Done | ExperimentState::Stopped) {
                    self.experiment = ExperimentState::Stopping;
                    let mut live: Vec<_> = self.live.keys().cloned().collect();
                    live.sort();
                    for trial in live {
                        self.request_stop(&trial, StopReason::ManagerShutdown, &mut effects);
                    }
                }
            }
            Event::Tick => {}
        }
        self.complete_effects(before, effects)
    }

    /// Handles a change by the user at running time `elapsed` and returns the effects.
    pub fn apply_change(&mut self, change: UserChange, elapsed: Duration) -> Vec<Effect> {
        self.elapsed = self.elapsed.max(elapsed);
        let before = self.experiment;
        let mut effects = Vec::new();
        match change {
            UserChange::Rerun(trial) => {
                let is_known = self.is_live(&trial) || self.run_queue.contains(&trial);
                if !is_known && !self.is_stopping() {
                    self.run_queue.push(trial, None);
                }
            }
            UserChange::AddTrials(points) => {
                if !self.is_stopping() && !points.is_empty() {
                    let own = points.into_iter().map(|(trial, parameters)| {
                        let sequence = self.next_sequence;
                        self.next_sequence += 1;
                        self.user_trials.insert(trial.clone());
                        self.run_queue.push(trial.clone(), None);
                        UserTrial { trial, sequence, parameters }
                    });
                    effects.push(Effect::Enqueue(own.collect()));
                }
            }
            UserChange::ChangeLimits { concurrency, trials, duration } => {
                self.change_limits(concurrency, trials, duration);
            }
            UserChange::TunerUpdated => self.tuner_waits = false,
            UserChange::ChangeSpace { open } => {
                self.tuner_waits = false;
                for (trial, id) in open {
                    match self.live.get_mut(&trial) {
                        Some(live) => live.parameter_id = Some(id),
                        None => self.run_queue.set_proposal(&trial, id),
                    }
                }
                let used_up = self.experiment == ExperimentState::TunerNoMoreTrial;
                if used_up && !self.tuner_lost && !self.held {
                    self.experiment = ExperimentState::Running;
                }
            }
        }
        self.complete_effects(before, effects)
    }

    fn change_limits(
        &mut self,
        concurrency: Option<usize>,
        trials: Option<u64>,
        duration: Option<Duration>,
    ) {
        self.limits.concurrency = concurrency.unwrap_or(self.limits.concurrency);
        self.limits.trials = trials.or(self.limits.trials);
        self.limits.duration = duration.or(self.limits.duration);
        if duration.is_some() {
            self.duration = DurationLimitState::Active;
        }
        // A search that the last limits had ended continues under the new ones, if they leave room. A search that
        // failures hold does not.
        let is_wider = trials.is_some() || duration.is_some();
        let is_over =
            matches!(self.experiment, ExperimentState::NoMoreTrial | ExperimentState::Done);
        if is_over && is_wider && !self.held {
            self.experiment = ExperimentState::Running;
        }
    }

    /// Completes the `effects` of an event: enforces limits, fills free slots, and records a state other than `before`.
    fn complete_effects(
        &mut self,
        before: ExperimentState,
        mut effects: Vec<Effect>,
    ) -> Vec<Effect> {
        self.enforce_deadlines(&mut effects);
        self.start_trials(&mut effects);
        self.update_experiment_state();
        if self.experiment != before {
            effects.push(Effect::RecordState(self.experiment));
        }
        effects
    }

    /// Makes a running trial wait for another run from its beginning.
    fn requeue(&mut self, trial: &TrialJobId) {
        if let Some(live) = self.live.get_mut(trial) {
            live.running_since = None;
        }
    }

    /// Ends a trial that waits to run. Returns whether there was one.
    fn remove_queued(&mut self, trial: &TrialJobId, effects: &mut Vec<Effect>) -> bool {
        let Some(DequeuedTrial { trial, parameter_id }) = self.run_queue.remove(trial) else {
            return false;
        };
        let state = JobState::UserCanceled;
        let again = if self.user_trials.remove(&trial) { "" } else { " again" };
        let message = Some(format!("it was stopped before it ran{again}"));
        let end = RecordedEnd { state, message, exit_code: None };
        effects.push(Effect::RecordEnd { trial: trial.clone(), end });
        if parameter_id.is_some() {
            // A tuner that has not learned the end yet waits for it.
            let outcome = Outcome::Failed;
            effects.push(Effect::Observe { trial, parameter_id, state, outcome });
            self.tuner_waits = false;
        }
        true
    }

    fn handle_proposal(
        &mut self,
        parameter_id: u64,
        proposal: Proposal,
        trial: TrialJobId,
        effects: &mut Vec<Effect>,
    ) {
        self.pending_proposals = self.pending_proposals.saturating_sub(1);
        match proposal {
            // A trial of the user may have used up the limit while the tuner computed.
            Proposal::Parameters(parameters)
                if self.experiment == ExperimentState::Running && !self.is_full() =>
            {
                let sequence = self.next_sequence;
                self.next_sequence += 1;
                let live = LiveTrialState {
                    parameter_id: Some(parameter_id),
                    running_since: None,
                    intent: None,
                };
                self.live.insert(trial.clone(), live);
                effects.push(Effect::Launch { trial, sequence, parameter_id, parameters });
            }
            // The experiment was stopped while the tuner computed. The proposal was never tried and is not recorded.
            Proposal::Parameters(_) => {}
            Proposal::Exhausted if self.experiment == ExperimentState::Running => {
                self.experiment = ExperimentState::TunerNoMoreTrial;
            }
            Proposal::Exhausted => {}
            Proposal::Wait => {
                self.tuner_waits = true;
                // Only proposals consume ids, so a later request uses this one again.
                self.unused_ids.insert(parameter_id);
            }
        }
    }

    fn handle_gone(
        &mut self,
        trial: TrialJobId,
        job_end: &JobEnd,
        verdict: Option<&Verdict>,
        result: Option<MetricValue>,
        effects: &mut Vec<Effect>,
    ) {
        // A second report of the same end comes too late.
        let Some(live) = self.live.remove(&trial) else { return };
        if job_end.replaced && verdict.is_none() && live.intent.is_none() && !self.is_stopping() {
            return self.replace_attempt(trial, &live, job_end, effects);
        }
        let end = conclude(live.intent, verdict, job_end);
        let state = end.state;
        let succeeded = state == JobState::Succeeded;
        let class = failure_class(verdict, job_end);
        let why = end.message.clone().unwrap_or_default();
        let notice = self.record_start(&live, verdict, state, &why);
        let taken = verdict.is_some_and(|verdict| verdict.cause == Cause::Preempted);
        let may_repeat = state == JobState::Failed || taken && live.intent.is_none();
        if may_repeat
            && !self.is_stopping()
            && let Some((time, times)) = self.budget.count_retry(&trial, class)
        {
            let message = format!("{why}; it is tried again ({time} of {times})");
            effects.push(Effect::RecordRetry { trial: trial.clone(), message });
            self.run_queue.push(trial, live.parameter_id);
            self.stop_new_trials(notice, effects);
            return;
        }
        let exit_code = end.exit_code;
        effects.push(Effect::RecordEnd { trial: trial.clone(), end });
        self.stop_new_trials(notice, effects);
        // A trial interrupted by a manager's shutdown runs again: at once if that manager is still running, otherwise
        // on resume. The tuner waits for it.
        if live.intent == Some(StopReason::ManagerShutdown) && !succeeded {
            if !self.is_stopping() {
                self.run_queue.push(trial, live.parameter_id);
            }
            return;
        }
        let outcome = match result {
            Some(value) if is_result_for_tuner(state, live.intent) && value.number().is_some() => {
                Outcome::Result(value)
            }
            Some(_) | None => Outcome::Failed,
        };
        let cause = verdict.map(|verdict| verdict.cause);
        let failure = Failure { class, cause, exit_code, why: &why };
        self.count_end(state, failure, &outcome, effects);
        let parameter_id = live.parameter_id;
        let own = self.user_trials.remove(&trial).then(|| (trial.clone(), outcome.clone()));
        effects.push(Effect::Observe { trial, parameter_id, state, outcome });
        if let Some((trial, Outcome::Result(result))) = own {
            effects.push(Effect::ObserveUserTrial { trial, result });
        }
        self.tuner_waits = false;
    }

    /// Runs a trial again whose attempt must be replaced. The trial has not failed, so it does not count towards the
    /// limits of failures and retries.
    fn replace_attempt(
        &mut self,
        trial: TrialJobId,
        live: &LiveTrialState,
        job_end: &JobEnd,
        effects: &mut Vec<Effect>,
    ) {
        let message = job_end.message.clone().unwrap_or_default();
        effects.push(Effect::RecordReplacement { trial: trial.clone(), message });
        self.run_queue.push(trial, live.parameter_id);
    }

    /// Records whether an attempt that ended had started its command. Returns the effect that holds the search if too
    /// many successive attempts have failed before that.
    fn record_start(
        &mut self,
        live: &LiveTrialState,
        verdict: Option<&Verdict>,
        state: JobState,
        why: &str,
    ) -> Option<Effect> {
        if live.running_since.is_some() || verdict.is_some_and(|verdict| verdict.exit.is_some()) {
            self.budget.record_started();
            return None;
        }
        let fails = state == JobState::Failed && !self.is_stopping();
        let concurrency = self.limits.concurrency;
        let notice = fails.then(|| self.budget.record_unstarted(concurrency, why))??;
        self.held = true;
        Some(Effect::Hold(notice))
    }

    /// Ends the start of new trials, and reports the reason.
    fn stop_new_trials(&mut self, notice: Option<Effect>, effects: &mut Vec<Effect>) {
        if let Some(notice) = notice
            && self.experiment == ExperimentState::Running
        {
            self.experiment = ExperimentState::NoMoreTrial;
            effects.push(notice);
        }
    }

    /// Counts an end towards the limits, and decides whether it ends the search.
    fn count_end(
        &mut self,
        state: JobState,
        failure: Failure<'_>,
        outcome: &Outcome,
        effects: &mut Vec<Effect>,
    ) {
        if state == JobState::Succeeded {
            self.budget.set_proven();
        }
        let notice = match (state, outcome) {
            (JobState::Failed, _) => {
                let starts_more = self.experiment == ExperimentState::Running;
                let concurrency = starts_more.then_some(self.limits.concurrency);
                let notice = self.budget.record_failure(failure, concurrency);
                self.held |= notice.is_some();
                notice.map(Effect::Hold)
            }
            (JobState::Succeeded, Outcome::Result(value)) => {
                self.budget.record_other_end();
                self.budget.single_result_message(value).map(Effect::Notify)
            }
            (_, Outcome::Result(_) | Outcome::Failed) => {
                self.budget.record_other_end();
                None
            }
        };
        self.stop_new_trials(notice, effects);
    }

    fn is_stopping(&self) -> bool {
        matches!(self.experiment, ExperimentState::Stopping | ExperimentState::Stopped)
    }

    fn request_stop(&mut self, trial: &TrialJobId, reason: StopReason, effects: &mut Vec<Effect>) {
        // The first intent stays, because it explains the stop that was sent.
        if let Some(live) = self.live.get_mut(trial)
            && live.intent.is_none()
        {
            live.intent = Some(reason);
            effects.push(Effect::StopTrial { trial: trial.clone(), reason });
        }
    }

    fn enforce_deadlines(&mut self, effects: &mut Vec<Effect>) {
        if let Some(limit) = self.limits.trial_duration {
            let elapsed = self.elapsed;
            let over = |live: &LiveTrialState| {
                live.running_since.is_some_and(|since| elapsed >= since + limit)
            };
            let mut late: Vec<_> =
                self.live.iter().filter(|(_, live)| over(live)).map(|(id, _)| id.clone()).collect();
            late.sort();
            for trial in late {
                self.request_stop(&trial, StopReason::Deadline, effects);
            }
        }
        if !self.experiment.is_active() || !self.is_time_over() {
            return;
        }
        if self.experiment == ExperimentState::Running {
            self.experiment = ExperimentState::NoMoreTrial;
        }
        if std::mem::replace(&mut self.duration, DurationLimitState::Reported)
            == DurationLimitState::Active
        {
            let rest = match self.live.len() {
                0 => "no more trials are started".to_owned(),
                1 => "no more trials are started, and the running trial continues".to_owned(),
                more => {
                    format!("no more trials are started, and the {more} running trials continue")
                }
            };
            effects.push(Effect::Notify(format!("maxExperimentDuration has passed: {rest}")));
        }
    }

    fn is_time_over(&self) -> bool {
        self.duration != DurationLimitState::Lifted
            && self.limits.duration.is_some_and(|limit| self.elapsed >= limit)
    }

    /// Starts trials in free slots: first queued ones (retries, trials to run again, points of the user), then new ones.
    fn start_trials(&mut self, effects: &mut Vec<Effect>) {
        let may_repeat = !self.is_time_over() && !self.held && self.experiment.is_active();
        while may_repeat && self.live.len() + self.pending_proposals < self.limits.concurrency {
            let Some(DequeuedTrial { trial, parameter_id }) = self.run_queue.pop() else { break };
            let live = LiveTrialState { parameter_id, running_since: None, intent: None };
            self.live.insert(trial.clone(), live);
            effects.push(Effect::StartNextAttempt { trial });
        }
        while self.experiment == ExperimentState::Running
            && !self.tuner_waits
            && self.live.len() + self.pending_proposals < self.limits.concurrency
            && self.limits.trials.is_none_or(|limit| {
                self.next_sequence + usize_to_u64(self.pending_proposals) < limit
            })
        {
            self.pending_proposals += 1;
            let parameter_id = self.unused_ids.pop_first().unwrap_or_else(|| {
                self.next_parameter_id += 1;
                self.next_parameter_id - 1
            });
            effects.push(Effect::Propose { parameter_id });
        }
    }

    fn update_experiment_state(&mut self) {
        let limit_reached = self.is_full();
        if self.experiment == ExperimentState::Running && limit_reached && self.run_queue.is_empty()
        {
            self.experiment = ExperimentState::NoMoreTrial;
        }
        if self.experiment != ExperimentState::Running {
            // A proposal that the tuner still computes is no longer wanted.
            self.pending_proposals = 0;
        }
        if !self.live.is_empty() || self.pending_proposals > 0 {
            return;
        }
        self.experiment = match self.experiment {
            ExperimentState::Stopping | ExperimentState::Stopped => ExperimentState::Stopped,
            // A tuner that waits for results would wait forever if no trial is left to bring one.
            ExperimentState::Running if self.tuner_waits && self.run_queue.is_empty() => {
                ExperimentState::Done
            }
            ExperimentState::NoMoreTrial | ExperimentState::TunerNoMoreTrial
                if self.held || (self.tuner_lost && !limit_reached) =>
            {
                ExperimentState::Stopped
            }
            ExperimentState::NoMoreTrial | ExperimentState::TunerNoMoreTrial => {
                ExperimentState::Done
            }
            ExperimentState::Running | ExperimentState::Done => self.experiment,
        };
    }
}

/// Returns whether the tuner learns from the result of a trial with this end. If the assessor stopped the trial, the
/// tuner learns from the last intermediate result.
pub fn is_result_for_tuner(state: JobState, intent: Option<StopReason>) -> bool {
    state == JobState::Succeeded
        || (state == JobState::EarlyStopped && intent == Some(StopReason::EarlyStop))
}

fn usize_to_u64(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
