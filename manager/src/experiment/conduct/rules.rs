//! What an experiment's task leaves its trials' agents to go by when they cannot hear it: the limit of their
//! time, and what the assessor would stop them for. It does not decide what that is.
//!
//! A rule of the assessor's must never stop a trial that the assessor would let run. What it would do depends on the
//! trials that succeed meanwhile, so its bounds leave room for all that are running now (`others`), and hold for less
//! time than any trial needed to succeed yet: one that is started later does not count before they have expired.
//! (Unless it succeeds in less than about three quarters of the shortest time so far: that cannot be known beforehand,
//! and the documentation says so.)

use std::time::Duration;

use tokio::time::Instant;
use trial_protocol::{Better, DirectiveBody, StopReason, StopRule, StopWhen, TrialJobId};

use super::ExperimentTask;
use crate::search::assessor::Bounds;
use crate::search::class_args::OptimizeMode;

/// The time beyond its need for which the limit of a trial's time is left to its agent.
const OUTLAST: Duration = Duration::from_hours(1);
/// The longest that a rule of the assessor's holds.
const MAX_RULE_LEASE: Duration = Duration::from_hours(1);

impl ExperimentTask {
    /// Leaves the trial's agent the rules that it is to keep also while it cannot hear us.
    pub(super) fn order_rules(&mut self, trial: &TrialJobId) {
        let rule = self.assessors_rule(trial);
        self.leave(trial, rule);
    }

    /// Leaves agents new rules where the assessor has learnt something, or the old ones are about to expire.
    pub(super) fn renew_rules(&mut self) {
        let (now, news) = (Instant::now(), std::mem::take(&mut self.news));
        let due = self.jobs.iter().filter(|(_, job)| {
            job.running_since.is_some() && (news || job.renew_at.is_some_and(|at| now >= at))
        });
        let due: Vec<_> = due.map(|(trial, _)| trial.clone()).collect();
        for trial in due {
            let rule = self.assessors_rule(&trial);
            // Without one there is nothing new: the limit of its time the agent has.
            if rule.is_some() {
                self.leave(&trial, rule);
            }
        }
    }

    fn leave(&mut self, trial: &TrialJobId, assessors: Option<(StopRule, Duration)>) {
        let Some(job) = self.jobs.get_mut(trial) else { return };
        let mut rules = Vec::new();
        let limit = self.deps.spec.max_trial_duration;
        if let Some(limit) = limit {
            let when = StopWhen::RunningFor { ms: ms(limit) };
            rules.push(StopRule { reason: StopReason::Deadline, lease_ms: None, when });
        }
        job.renew_at = assessors.as_ref().map(|(_, lease)| Instant::now() + *lease / 2);
        rules.extend(assessors.map(|(rule, _)| rule));
        if rules.is_empty() {
            return;
        }
        let whole = limit.map_or(MAX_RULE_LEASE, |limit| limit.saturating_add(OUTLAST));
        let orders = DirectiveBody::StopRules { rules, lease_ms: ms(whole) };
        self.deps.handle.push_directive(trial, &job.attempt, orders);
    }

    /// Returns the rule by which the assessor will stop the trial, and how long it holds.
    fn assessors_rule(&self, trial: &TrialJobId) -> Option<(StopRule, Duration)> {
        let lease = self.rules_lease()?;
        let job = self.jobs.get(trial)?;
        if self.state.intent(trial).is_some() {
            return None;
        }
        let name = job.steps.plain_name()?.to_owned();
        let others = self.state.live().saturating_sub(1);
        let Bounds { mode, from, bounds } = self.deps.advice.bounds(&job.steps, others)?;
        let better = match mode {
            OptimizeMode::Maximize => Better::Larger,
            OptimizeMode::Minimize => Better::Smaller,
        };
        let from_results = u64::try_from(from).unwrap_or(u64::MAX);
        let when = StopWhen::Best { name, better, from_results, bounds };
        let rule = StopRule { reason: StopReason::EarlyStop, lease_ms: Some(ms(lease)), when };
        Some((rule, lease))
    }

    /// A trial has succeeded after so long.
    pub(super) fn succeeded_after(&mut self, ran: Duration) {
        self.shortest = Some(self.shortest.map_or(ran, |shortest| shortest.min(ran)));
        self.news = true;
    }

    /// Returns how long a rule of the assessor's may hold. `None`: trials are so short that a silent agent's trial is
    /// over before anything comes of it.
    fn rules_lease(&self) -> Option<Duration> {
        // An order that waits for its agent is renewed, too, so what an agent reads is at most half as old again.
        let lease = (self.shortest? / 2).min(MAX_RULE_LEASE);
        (lease >= 2 * self.leases.beat()).then_some(lease)
    }
}

fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
