//! The rules that agents follow even while they cannot reach the manager: the time limit of a trial, and the assessor's
//! reasons to stop it. The assessor itself decides its bounds.
//!
//! A rule of the assessor must never stop a trial that the assessor would let run. The assessor's judgement depends on
//! the trials that succeed meanwhile, so the bounds of a rule allow for all trials that are running now (`others`). A
//! rule also expires sooner than any trial has succeeded so far, so a trial that starts later does not count before.
//!
//! The exception is a trial that succeeds in less than about three quarters of the shortest time so far. Such a trial
//! cannot be foreseen, and the documentation mentions the case.

use std::time::Duration;

use tokio::time::Instant;
use trial_protocol::{DirectiveBody, StopReason, StopRule, StopWhen, TrialJobId};

use super::live_trial::LiveTrial;
use super::live_trials::LiveTrials;
use crate::experiment::ExperimentHandle;
use crate::experiment::advisers::Advisers;
use crate::experiment::state::State;
use crate::search::assessor::Bounds;
use crate::util::clock::to_ms;

/// The time for which the agent keeps a trial's time limit beyond the limit itself.
const TIME_LIMIT_MARGIN: Duration = Duration::from_hours(1);
/// The longest validity of a rule of the assessor.
const MAX_RULE_LEASE: Duration = Duration::from_hours(1);

/// A rule of the assessor, and its validity.
type LeasedRule = (StopRule, Duration);

/// The rules of an experiment's trials.
pub(super) struct StopRules {
    handle: ExperimentHandle,
    /// The time limit of a trial.
    limit: Option<Duration>,
    /// The interval between checks of the agents' leases.
    check_interval: Duration,
    /// The shortest running time of a successful trial.
    shortest_success: Option<Duration>,
    /// Set if the assessor has learned something since the rules were renewed.
    is_stale: bool,
}

impl StopRules {
    /// Returns the rules of an experiment. `handle` sends them as directives.
    pub(super) fn new(
        handle: ExperimentHandle,
        limit: Option<Duration>,
        check_interval: Duration,
        shortest_success: Option<Duration>,
    ) -> Self {
        Self { handle, limit, check_interval, shortest_success, is_stale: true }
    }

    /// Marks the assessor's rules as outdated, because the assessor has learned something.
    pub(super) fn mark_stale(&mut self) {
        self.is_stale = true;
    }

    /// Records the running time of a successful trial.
    pub(super) fn record_success(&mut self, ran: Duration) {
        self.shortest_success =
            Some(self.shortest_success.map_or(ran, |shortest| shortest.min(ran)));
        self.is_stale = true;
    }

    /// Sends a trial's agent the rules that apply even while it cannot reach the manager.
    pub(super) fn send_rules(
        &self,
        trial: &TrialJobId,
        trials: &mut LiveTrials,
        advisers: &Advisers,
        state: &State,
    ) {
        let is_stopping = state.intent(trial).is_some();
        let Some(job) = trials.get_mut(trial) else { return };
        let rule = if is_stopping {
            None
        } else {
            self.assessor_rule(job, advisers, other_live_trials(state))
        };
        self.push_rules(trial, job, rule);
    }

    /// Sends agents new rules if the assessor has learned something, or the old rules are about to expire.
    pub(super) fn renew_rules(
        &mut self,
        trials: &mut LiveTrials,
        advisers: &Advisers,
        state: &State,
    ) {
        let (now, is_stale) = (Instant::now(), std::mem::take(&mut self.is_stale));
        let is_due = |job: &LiveTrial| is_stale || job.is_renewal_due(now);
        let due = trials.iter_mut().filter(|(_, job)| job.is_running() && is_due(job));
        for (trial, job) in due.filter(|(trial, _)| state.intent(trial).is_none()) {
            // Without a rule of the assessor nothing has changed, because the agent already has the trial's time limit.
            let rule = self.assessor_rule(job, advisers, other_live_trials(state));
            if rule.is_some() {
                self.push_rules(trial, job, rule);
            }
        }
    }

    /// Sends a trial's agent the trial's time limit, and a rule of the assessor.
    fn push_rules(&self, trial: &TrialJobId, job: &mut LiveTrial, assessors: Option<LeasedRule>) {
        let mut rules = Vec::new();
        if let Some(limit) = self.limit {
            let when = StopWhen::RunningFor { ms: to_ms(limit) };
            rules.push(StopRule { reason: StopReason::Deadline, lease_ms: None, when });
        }
        job.schedule_renewal(assessors.as_ref().map(|(_, lease)| Instant::now() + *lease / 2));
        rules.extend(assessors.map(|(rule, _)| rule));
        if rules.is_empty() {
            return;
        }
        let whole =
            self.limit.map_or(MAX_RULE_LEASE, |limit| limit.saturating_add(TIME_LIMIT_MARGIN));
        let directive = DirectiveBody::StopRules { rules, lease_ms: to_ms(whole) };
        self.handle.push_directive(trial, job.attempt(), directive);
    }

    /// Returns the rule by which the assessor will stop a trial while `others` run. `None`: there is no such rule.
    fn assessor_rule(
        &self,
        job: &LiveTrial,
        advisers: &Advisers,
        others: usize,
    ) -> Option<LeasedRule> {
        let lease = self.rule_lease()?;
        let name = job.steps().plain_name()?.to_owned();
        let Bounds { direction, from, bounds } = advisers.bounds(job.steps(), others)?;
        let from_results = u64::try_from(from).unwrap_or(u64::MAX);
        let when = StopWhen::Best { name, direction: Some(direction), from_results, bounds };
        let rule = StopRule { reason: StopReason::EarlyStop, lease_ms: Some(to_ms(lease)), when };
        Some((rule, lease))
    }

    /// Returns the validity of a rule of the assessor. `None`: trials are so short that a trial with a silent agent
    /// ends before a rule matters.
    fn rule_lease(&self) -> Option<Duration> {
        // A directive that waits for its agent is also renewed, so a rule reaches an agent at most half its validity
        // late.
        let lease = (self.shortest_success? / 2).min(MAX_RULE_LEASE);
        (lease >= 2 * self.check_interval).then_some(lease)
    }
}

/// Returns the number of other trials that may end before a live trial.
fn other_live_trials(state: &State) -> usize {
    state.live_count().saturating_sub(1)
}
