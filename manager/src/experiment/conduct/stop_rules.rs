//! The rules that agents keep also while they cannot hear the manager: the limit of a trial's time, and what the
//! assessor would stop the trial for. It does not decide what the assessor's bounds are.
//!
//! A rule of the assessor's must never stop a trial that the assessor would let run. The assessor's judgement depends
//! on the trials that succeed meanwhile. So the bounds of a rule leave room for all trials that are running now
//! (`others`). A rule also holds for less time than any trial needed to succeed yet: a trial that is started later does
//! not count before the rule has expired. (Unless it succeeds in less than about three quarters of the shortest time so
//! far: that cannot be known beforehand, and the documentation says so.)

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;
use trial_protocol::{Better, DirectiveBody, StopReason, StopRule, StopWhen, TrialJobId};

use super::job::Job;
use crate::experiment::Handle;
use crate::experiment::advice::Advice;
use crate::search::assessor::Bounds;
use crate::search::class_args::OptimizeMode;

/// The time beyond its need for which the limit of a trial's time is left to its agent.
const OUTLAST: Duration = Duration::from_hours(1);
/// The longest that a rule of the assessor's holds.
const MAX_RULE_LEASE: Duration = Duration::from_hours(1);

/// A rule of the assessor's, and how long it holds.
type LeasedRule = (StopRule, Duration);

/// The rules of an experiment's trials.
pub(super) struct StopRules {
    handle: Handle,
    /// The limit of a trial's time.
    limit: Option<Duration>,
    /// The time between two checks of the agents' leases.
    check_interval: Duration,
    /// The time that the trial ran that succeeded soonest.
    shortest_success: Option<Duration>,
    /// The assessor has learnt something since the rules were renewed.
    is_stale: bool,
}

impl StopRules {
    /// Returns the rules of an experiment, which are queued as directives of `handle`.
    pub(super) fn new(
        handle: Handle,
        limit: Option<Duration>,
        check_interval: Duration,
        shortest_success: Option<Duration>,
    ) -> Self {
        Self { handle, limit, check_interval, shortest_success, is_stale: true }
    }

    /// Notes that the assessor has learnt something.
    pub(super) fn mark_stale(&mut self) {
        self.is_stale = true;
    }

    /// Notes that a trial has succeeded after so long.
    pub(super) fn record_success(&mut self, ran: Duration) {
        self.shortest_success =
            Some(self.shortest_success.map_or(ran, |shortest| shortest.min(ran)));
        self.is_stale = true;
    }

    /// Returns the trials that need new rules of the assessor's: it has learnt something, or theirs are about to expire.
    pub(super) fn due(&mut self, jobs: &HashMap<TrialJobId, Job>) -> Vec<TrialJobId> {
        let (now, is_stale) = (Instant::now(), std::mem::take(&mut self.is_stale));
        let is_due = |job: &Job| is_stale || job.renew_at.is_some_and(|at| now >= at);
        let due = jobs.iter().filter(|(_, job)| job.running_since.is_some() && is_due(job));
        due.map(|(trial, _)| trial.clone()).collect()
    }

    /// Leaves a trial's agent the limit of the trial's time, and a rule of the assessor's.
    pub(super) fn push(&self, trial: &TrialJobId, job: &mut Job, assessors: Option<LeasedRule>) {
        let mut rules = Vec::new();
        if let Some(limit) = self.limit {
            let when = StopWhen::RunningFor { ms: ms(limit) };
            rules.push(StopRule { reason: StopReason::Deadline, lease_ms: None, when });
        }
        job.renew_at = assessors.as_ref().map(|(_, lease)| Instant::now() + *lease / 2);
        rules.extend(assessors.map(|(rule, _)| rule));
        if rules.is_empty() {
            return;
        }
        let whole = self.limit.map_or(MAX_RULE_LEASE, |limit| limit.saturating_add(OUTLAST));
        let directive = DirectiveBody::StopRules { rules, lease_ms: ms(whole) };
        self.handle.push_directive(trial, &job.attempt, directive);
    }

    /// Returns the rule by which the assessor will stop a trial beside which `others` run. `None`: there is none.
    pub(super) fn of_assessor(
        &self,
        job: &Job,
        advice: &Advice,
        others: usize,
    ) -> Option<LeasedRule> {
        let lease = self.lease()?;
        let name = job.steps.plain_name()?.to_owned();
        let Bounds { mode, from, bounds } = advice.bounds(&job.steps, others)?;
        let better = match mode {
            OptimizeMode::Maximize => Better::Larger,
            OptimizeMode::Minimize => Better::Smaller,
        };
        let from_results = u64::try_from(from).unwrap_or(u64::MAX);
        let when = StopWhen::Best { name, better, from_results, bounds };
        let rule = StopRule { reason: StopReason::EarlyStop, lease_ms: Some(ms(lease)), when };
        Some((rule, lease))
    }

    /// Returns how long a rule of the assessor's may hold. `None`: trials are so short that a silent agent's trial is
    /// over before anything comes of it.
    fn lease(&self) -> Option<Duration> {
        // A directive that waits for its agent is renewed, too, so what an agent reads is at most half as old again.
        let lease = (self.shortest_success? / 2).min(MAX_RULE_LEASE);
        (lease >= 2 * self.check_interval).then_some(lease)
    }
}

fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
