//! PURE: the life of an experiment. Its input is events, and its output is effects. It has no clock, no randomness and
//! no I/O. The module [`ending`](super::ending) decides the final state of a trial.
//!
//! # Invariants
//!
//! 1. At most `concurrency` trials are alive, including requested proposals.
//! 2. A tuner learns the end of each of its proposals at most once, after the end was recorded.
//! 3. An intent is recorded before the stop that it explains is sent.
//! 4. Nothing is started while the experiment stops.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::time::Duration;

use trial_protocol::{Cause, MetricValue, StopReason, TrialJobId, Verdict};

use self::budget::{Budget, Failure};
pub use self::budget::{FailureLimit, Policy};
pub use self::events::{Effect, Event, ExperimentState, Fate, Limits, OwnTrial, Remembered};
pub use self::steer::Steer;
use super::ending::{Gone, class, conclude};
use crate::job_state::JobState;
use crate::search::tuner::{Outcome, Proposal};

mod budget;
mod events;
mod resume;
mod steer;

/// A trial that has not ended.
#[derive(Debug)]
struct Live {
    parameter_id: Option<u64>,
    running_since: Option<Duration>,
    intent: Option<StopReason>,
}

/// The state of `maxExperimentDuration`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bound {
    /// Nothing starts after the deadline.
    Holds,
    /// The deadline has passed, and the observers were notified.
    Told,
    /// The experiment was done. Trials that the user runs again start regardless of the deadline.
    Lifted,
}

/// The state machine of an experiment.
#[derive(Debug)]
pub struct State {
    limits: Limits,
    phase: ExperimentState,
    live: HashMap<TrialJobId, Live>,
    again: VecDeque<TrialJobId>,
    again_ids: HashMap<TrialJobId, Option<u64>>,
    /// The user's own trials whose results the tuner has still to learn.
    own: HashSet<TrialJobId>,
    /// The number of proposals that are requested and not answered.
    asked: usize,
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
    duration: Bound,
}

impl State {
    /// Returns the state of a new experiment.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            phase: ExperimentState::Running,
            live: HashMap::new(),
            again: VecDeque::new(),
            again_ids: HashMap::new(),
            own: HashSet::new(),
            asked: 0,
            tuner_waits: false,
            tuner_lost: false,
            held: false,
            budget: Budget::default(),
            next_sequence: 0,
            next_parameter_id: 0,
            unused_ids: BTreeSet::new(),
            elapsed: Duration::ZERO,
            duration: Bound::Holds,
        }
    }

    /// Returns the state of an experiment that was done. It starts only the trials that must run again.
    #[must_use]
    pub fn once_done(mut self) -> Self {
        (self.phase, self.duration) = (ExperimentState::NoMoreTrial, Bound::Lifted);
        self
    }

    /// Returns the state with another policy.
    #[must_use]
    pub fn under(mut self, policy: Policy) -> Self {
        self.budget = self.budget.under(policy);
        self
    }

    /// Records that a trial has reported a metric, which proves that the command can work.
    pub fn reported(&mut self) {
        self.budget.proven();
    }

    /// Returns whether failures hold the search in this run.
    pub fn is_held(&self) -> bool {
        self.held
    }

    /// Returns the state of the experiment.
    pub fn state(&self) -> ExperimentState {
        self.phase
    }

    /// Returns the intended stop of a trial.
    pub fn intent(&self, trial: &TrialJobId) -> Option<StopReason> {
        self.live.get(trial)?.intent
    }

    /// Returns whether a trial has started and not ended.
    pub fn runs(&self, trial: &TrialJobId) -> bool {
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
            .filter(|_| self.phase.is_active() && self.duration == Bound::Holds);
        trials.chain(whole).min()
    }

    /// Handles an event at running time `elapsed` and returns the effects.
    pub fn step(&mut self, event: Event, elapsed: Duration) -> Vec<Effect> {
        self.elapsed = self.elapsed.max(elapsed);
        let before = self.phase;
        let mut effects = Vec::new();
        match event {
            Event::Begin => effects.push(Effect::RecordState(self.phase)),
            Event::Proposed { parameter_id, proposal, trial } => {
                self.proposed(parameter_id, proposal, trial, &mut effects);
            }
            Event::TunerReady => self.tuner_waits = false,
            Event::TunerLost => {
                self.tuner_lost = true;
                if self.phase == ExperimentState::Running {
                    self.phase = ExperimentState::TunerNoMoreTrial;
                }
            }
            Event::Started { trial } => {
                if let Some(live) = self.live.get_mut(&trial)
                    && live.running_since.is_none()
                {
                    live.running_since = Some(self.elapsed);
                    self.budget.started();
                    effects.push(Effect::RecordRunning { trial });
                }
            }
            Event::Requeued { trial } => self.requeue(&trial),
            Event::Gone { trial, gone, verdict, result } => {
                self.gone(trial, &gone, verdict.as_deref(), result, &mut effects);
            }
            Event::PointKnown { mean } => {
                let reached = self.budget.reached(&MetricValue::from(mean)).map(Effect::Tell);
                self.hold(reached, &mut effects);
            }
            Event::StopRequested { trial, reason } => {
                if !self.take_back(&trial, &mut effects) {
                    self.intend(&trial, reason, &mut effects);
                }
            }
            Event::ExperimentStopRequested => {
                if !matches!(self.phase, ExperimentState::Done | ExperimentState::Stopped) {
                    self.phase = ExperimentState::Stopping;
                    let mut live: Vec<_> = self.live.keys().cloned().collect();
                    live.sort();
                    for trial in live {
                        self.intend(&trial, StopReason::ManagerShutdown, &mut effects);
                    }
                }
            }
            Event::Tick => {}
        }
        self.follow(before, effects)
    }

    /// Completes the `effects` of an event: enforces limits, fills free slots, and records a state other than `before`.
    fn follow(&mut self, before: ExperimentState, mut effects: Vec<Effect>) -> Vec<Effect> {
        self.enforce_deadlines(&mut effects);
        self.fill(&mut effects);
        self.settle();
        if self.phase != before {
            effects.push(Effect::RecordState(self.phase));
        }
        effects
    }

    fn proposed(
        &mut self,
        parameter_id: u64,
        proposal: Proposal,
        trial: TrialJobId,
        effects: &mut Vec<Effect>,
    ) {
        self.asked = self.asked.saturating_sub(1);
        match proposal {
            // A trial of the user may have used up the limit while the tuner computed.
            Proposal::Parameters(parameters)
                if self.phase == ExperimentState::Running && !self.is_full() =>
            {
                let sequence = self.next_sequence;
                self.next_sequence += 1;
                let live =
                    Live { parameter_id: Some(parameter_id), running_since: None, intent: None };
                self.live.insert(trial.clone(), live);
                effects.push(Effect::Launch { trial, sequence, parameter_id, parameters });
            }
            // The experiment was stopped while the tuner computed. The proposal was never tried and is not recorded.
            Proposal::Parameters(_) => {}
            Proposal::Exhausted if self.phase == ExperimentState::Running => {
                self.phase = ExperimentState::TunerNoMoreTrial;
            }
            Proposal::Exhausted => {}
            Proposal::Wait => {
                self.tuner_waits = true;
                // Only proposals consume ids, so a later request uses this one again.
                self.unused_ids.insert(parameter_id);
            }
        }
    }

    fn gone(
        &mut self,
        trial: TrialJobId,
        gone: &Gone,
        verdict: Option<&Verdict>,
        result: Option<MetricValue>,
        effects: &mut Vec<Effect>,
    ) {
        // A second report of the same end comes too late.
        let Some(live) = self.live.remove(&trial) else { return };
        if gone.fenced && verdict.is_none() && live.intent.is_none() && !self.stopping() {
            return self.replace(trial, &live, gone, effects);
        }
        let end = conclude(live.intent, verdict, gone);
        let state = end.state;
        let succeeded = state == JobState::Succeeded;
        let class = class(verdict, gone);
        let why = end.message.clone().unwrap_or_default();
        let told = self.unstarted(&live, verdict, state, &why);
        let taken = verdict.is_some_and(|verdict| verdict.cause == Cause::Preempted);
        let may_repeat = state == JobState::Failed || taken && live.intent.is_none();
        if may_repeat
            && !self.stopping()
            && let Some((time, times)) = self.budget.retry(&trial, class)
        {
            let message = format!("{why}; it is tried again ({time} of {times})");
            effects.push(Effect::Retry { trial: trial.clone(), message });
            self.again_ids.insert(trial.clone(), live.parameter_id);
            self.again.push_back(trial);
            self.hold(told, effects);
            return;
        }
        let exit_code = end.exit_code;
        effects.push(Effect::RecordEnd { trial: trial.clone(), end });
        self.hold(told, effects);
        // A trial that the manager's own end interrupted runs again: now if that manager survived its stop, or else on
        // resume. The tuner waits for it.
        if live.intent == Some(StopReason::ManagerShutdown) && !succeeded {
            if !self.stopping() {
                self.again_ids.insert(trial.clone(), live.parameter_id);
                self.again.push_back(trial);
            }
            return;
        }
        let outcome = match result {
            Some(value) if counts(state, live.intent) && value.number().is_some() => {
                Outcome::Result(value)
            }
            Some(_) | None => Outcome::Failed,
        };
        let cause = verdict.map(|verdict| verdict.cause);
        let failure = Failure { class, cause, exit_code, why: &why };
        self.weigh(state, failure, &outcome, effects);
        let parameter_id = live.parameter_id;
        let own = self.own.remove(&trial).then(|| (trial.clone(), outcome.clone()));
        effects.push(Effect::Observe { trial, parameter_id, state, outcome });
        if let Some((trial, Outcome::Result(result))) = own {
            effects.push(Effect::Teach { trial, result });
        }
        self.tuner_waits = false;
    }

    /// Runs a fenced trial, whose machine is out of reach, again. The trial has not failed, so it does not count
    /// towards the limits of failures and retries.
    fn replace(&mut self, trial: TrialJobId, live: &Live, gone: &Gone, effects: &mut Vec<Effect>) {
        let message = gone.message.clone().unwrap_or_default();
        effects.push(Effect::Replace { trial: trial.clone(), message });
        self.again_ids.insert(trial.clone(), live.parameter_id);
        self.again.push_back(trial);
    }

    /// Returns the effect that holds the search if too many successive attempts have failed before their commands
    /// started.
    fn unstarted(
        &mut self,
        live: &Live,
        verdict: Option<&Verdict>,
        state: JobState,
        why: &str,
    ) -> Option<Effect> {
        if live.running_since.is_some() || verdict.is_some_and(|verdict| verdict.exit.is_some()) {
            self.budget.started();
            return None;
        }
        let fails = state == JobState::Failed && !self.stopping();
        let concurrency = self.limits.concurrency;
        let told = fails.then(|| self.budget.unstarted(concurrency, why))??;
        self.held = true;
        Some(Effect::Hold(told))
    }

    /// Ends the start of new trials, and reports the reason.
    fn hold(&mut self, told: Option<Effect>, effects: &mut Vec<Effect>) {
        if let Some(told) = told
            && self.phase == ExperimentState::Running
        {
            self.phase = ExperimentState::NoMoreTrial;
            effects.push(told);
        }
    }

    /// Decides whether this end ends the search.
    fn weigh(
        &mut self,
        state: JobState,
        failure: Failure<'_>,
        outcome: &Outcome,
        effects: &mut Vec<Effect>,
    ) {
        if state == JobState::Succeeded {
            self.budget.proven();
        }
        let told = match (state, outcome) {
            (JobState::Failed, _) => {
                let starts_more = self.phase == ExperimentState::Running;
                let concurrency = starts_more.then_some(self.limits.concurrency);
                let told = self.budget.failed(failure, concurrency);
                self.held |= told.is_some();
                told.map(Effect::Hold)
            }
            (JobState::Succeeded, Outcome::Result(value)) => {
                self.budget.fine();
                self.budget.reached_alone(value).map(Effect::Tell)
            }
            (_, Outcome::Result(_) | Outcome::Failed) => {
                self.budget.fine();
                None
            }
        };
        self.hold(told, effects);
    }

    fn stopping(&self) -> bool {
        matches!(self.phase, ExperimentState::Stopping | ExperimentState::Stopped)
    }

    fn intend(&mut self, trial: &TrialJobId, reason: StopReason, effects: &mut Vec<Effect>) {
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
            let over =
                |live: &Live| live.running_since.is_some_and(|since| elapsed >= since + limit);
            let mut late: Vec<_> =
                self.live.iter().filter(|(_, live)| over(live)).map(|(id, _)| id.clone()).collect();
            late.sort();
            for trial in late {
                self.intend(&trial, StopReason::Deadline, effects);
            }
        }
        if !self.phase.is_active() || !self.time_is_up() {
            return;
        }
        if self.phase == ExperimentState::Running {
            self.phase = ExperimentState::NoMoreTrial;
        }
        if std::mem::replace(&mut self.duration, Bound::Told) == Bound::Holds {
            let rest = match self.live.len() {
                0 => "no more trials are started".to_owned(),
                1 => "no more trials are started, and the running trial continues".to_owned(),
                more => {
                    format!("no more trials are started, and the {more} running trials continue")
                }
            };
            effects.push(Effect::Tell(format!("maxExperimentDuration has passed: {rest}")));
        }
    }

    fn time_is_up(&self) -> bool {
        self.duration != Bound::Lifted
            && self.limits.duration.is_some_and(|limit| self.elapsed >= limit)
    }

    /// Starts trials in free slots: interrupted trials first, then new ones.
    fn fill(&mut self, effects: &mut Vec<Effect>) {
        let may_repeat = !self.time_is_up() && !self.held && self.phase.is_active();
        while may_repeat && self.live.len() + self.asked < self.limits.concurrency {
            let Some(trial) = self.again.pop_front() else { break };
            let parameter_id = self.again_ids.remove(&trial).flatten();
            let live = Live { parameter_id, running_since: None, intent: None };
            self.live.insert(trial.clone(), live);
            effects.push(Effect::Relaunch { trial });
        }
        while self.phase == ExperimentState::Running
            && !self.tuner_waits
            && self.live.len() + self.asked < self.limits.concurrency
            && self.limits.trials.is_none_or(|limit| self.next_sequence + count(self.asked) < limit)
        {
            self.asked += 1;
            let parameter_id = self.unused_ids.pop_first().unwrap_or_else(|| {
                self.next_parameter_id += 1;
                self.next_parameter_id - 1
            });
            effects.push(Effect::Propose { parameter_id });
        }
    }

    fn settle(&mut self) {
        let limit_reached = self.is_full();
        if self.phase == ExperimentState::Running && limit_reached && self.again.is_empty() {
            self.phase = ExperimentState::NoMoreTrial;
        }
        if self.phase != ExperimentState::Running {
            // A proposal that the tuner still computes is no longer wanted.
            self.asked = 0;
        }
        if !self.live.is_empty() || self.asked > 0 {
            return;
        }
        self.phase = match self.phase {
            ExperimentState::Stopping | ExperimentState::Stopped => ExperimentState::Stopped,
            // A tuner that waits for results would wait forever if no trial is left to bring one.
            ExperimentState::Running if self.tuner_waits && self.again.is_empty() => {
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
            ExperimentState::Running | ExperimentState::Done => self.phase,
        };
    }
}

/// Returns whether the tuner learns from the result of a trial with this end. If the assessor stopped the trial, the
/// tuner learns from the last intermediate result.
pub fn counts(state: JobState, intent: Option<StopReason>) -> bool {
    state == JobState::Succeeded
        || (state == JobState::EarlyStopped && intent == Some(StopReason::EarlyStop))
}

fn count(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
