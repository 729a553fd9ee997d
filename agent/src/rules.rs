//! PURE: the manager's rules for ending the trial, which hold while it cannot be reached. Time comes in as
//! a value.

use std::time::{Duration, Instant};

use trial_protocol::{Metric, MetricKind, StopReason, StopRule, StopWhen};

/// The rules that hold now.
#[derive(Debug, Default)]
pub struct Rules {
    rules: Vec<StopRule>,
    /// When they expire. `None`: there are none, or never within this program's time.
    until: Option<Instant>,
}

impl Rules {
    /// Replaces all rules; they hold for `lease` from `now`.
    pub fn replace(&mut self, rules: Vec<StopRule>, lease: Duration, now: Instant) {
        self.rules = rules;
        self.until = now.checked_add(lease);
    }

    fn in_force(&self, now: Instant) -> &[StopRule] {
        match self.until {
            Some(until) if now >= until => &[],
            Some(_) | None => &self.rules,
        }
    }

    /// When a rule on the running time fits next, for a trial that was started then.
    pub fn next_due(&self, started: Instant, now: Instant) -> Option<Instant> {
        let due = self.in_force(now).iter().filter_map(|rule| match rule.when {
            StopWhen::RunningFor { ms } => started.checked_add(Duration::from_millis(ms)),
            StopWhen::Metric { .. } | StopWhen::Unknown => None,
        });
        due.filter(|due| self.until.is_none_or(|until| *due < until)).min()
    }

    /// Whether a rule on the running time fits, for a trial that was started then.
    pub fn overdue(&self, started: Instant, now: Instant) -> Option<StopReason> {
        let ran = now.saturating_duration_since(started);
        let fits = |rule: &&StopRule| match rule.when {
            StopWhen::RunningFor { ms } => ran >= Duration::from_millis(ms),
            StopWhen::Metric { .. } | StopWhen::Unknown => false,
        };
        self.in_force(now).iter().find(fits).map(|rule| rule.reason)
    }

    /// Whether a rule fits that the trial has broken with this metric.
    pub fn broken_by(&self, metric: &Metric, now: Instant) -> Option<StopReason> {
        if metric.kind != MetricKind::Intermediate {
            return None;
        }
        let fits = |rule: &&StopRule| match &rule.when {
            StopWhen::Metric { name, from_sequence, at_least, at_most } => {
                let number = metric.value.number().unwrap_or(f64::NAN);
                *name == metric.name
                    && metric.sequence >= *from_sequence
                    && (number.is_nan()
                        || at_least.is_some_and(|least| number < least)
                        || at_most.is_some_and(|most| number > most))
            }
            StopWhen::RunningFor { .. } | StopWhen::Unknown => false,
        };
        self.in_force(now).iter().find(fits).map(|rule| rule.reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn rule(reason: StopReason, when: StopWhen) -> StopRule {
        StopRule { reason, when }
    }

    #[test]
    fn a_trial_is_overdue_by_the_table() {
        let started = Instant::now();
        let hour = || vec![rule(StopReason::Deadline, StopWhen::RunningFor { ms: 3_600_000 })];
        #[rustfmt::skip]
        let table = [
            // rules, lease, seconds gone, overdue, when it is due
            ("not yet",              hour(),     7200, 3599, None,                       Some(3600)),
            ("just now",             hour(),     7200, 3600, Some(StopReason::Deadline), Some(3600)),
            ("long since",           hour(),     7200, 7199, Some(StopReason::Deadline), Some(3600)),
            ("the lease is over",    hour(),     7200, 7200, None,                       Some(3600)),
            ("the lease ends before", hour(),    3600, 3600, None,                       None),
            ("no rules",             Vec::new(), 7200, 7000, None,                       None),
            ("unknown",              vec![rule(StopReason::User, StopWhen::Unknown)], 7200, 7000, None, None),
        ];
        for (says, given, lease, gone, overdue, due) in table {
            let mut rules = Rules::default();
            rules.replace(given, lease * SECOND, started);
            assert_eq!(rules.overdue(started, started + gone * SECOND), overdue, "{says}");
            let due = due.map(|due| started + due * SECOND);
            assert_eq!(rules.next_due(started, started), due, "{says}");
            assert_eq!(rules.next_due(started, started + lease * SECOND), None, "{says}: expired");
            rules.replace(Vec::new(), SECOND, started);
            assert_eq!(rules.overdue(started, started + gone * SECOND), None, "{says}: replaced");
        }
    }

    #[test]
    fn rules_that_last_for_ever_overflow_nothing() {
        let mut rules = Rules::default();
        let now = Instant::now();
        let never = rule(StopReason::Deadline, StopWhen::RunningFor { ms: u64::MAX });
        rules.replace(vec![never], Duration::from_millis(u64::MAX), now);
        assert_eq!(rules.overdue(now, now + SECOND), None);
        assert!(rules.next_due(now, now).is_none_or(|due| due > now));
    }

    #[test]
    fn a_metric_breaks_a_rule_by_the_table() {
        use MetricKind::{Final, Intermediate};
        let now = Instant::now();
        let mut rules = Rules::default();
        let bounds = |name: &str, from_sequence, at_least, at_most| StopWhen::Metric {
            name: name.to_owned(),
            from_sequence,
            at_least,
            at_most,
        };
        let given = vec![
            rule(StopReason::EarlyStop, bounds("acc", 3, Some(0.5), None)),
            rule(StopReason::Budget, bounds("loss", 0, Some(0.0), Some(9.0))),
        ];
        rules.replace(given, 10 * SECOND, now);
        #[rustfmt::skip]
        let table = [
            ("good enough",        "acc",  Intermediate, 3, 0.5,           None),
            ("too small",          "acc",  Intermediate, 3, 0.49,          Some(StopReason::EarlyStop)),
            ("too early to say",   "acc",  Intermediate, 2, 0.49,          None),
            ("its final result",   "acc",  Final,        3, 0.0,           None),
            ("another metric",     "mcc",  Intermediate, 3, 0.0,           None),
            ("within",             "loss", Intermediate, 0, 9.0,           None),
            ("too large",          "loss", Intermediate, 0, 9.5,           Some(StopReason::Budget)),
            ("beyond all numbers", "loss", Intermediate, 0, f64::INFINITY, Some(StopReason::Budget)),
            ("no number",          "loss", Intermediate, 0, f64::NAN,      Some(StopReason::Budget)),
        ];
        for (says, name, kind, sequence, value, expected) in table {
            let name = name.to_owned();
            let metric = Metric { name, kind, sequence, value: value.into(), derived: false };
            assert_eq!(rules.broken_by(&metric, now), expected, "{says}");
            assert_eq!(rules.broken_by(&metric, now + 10 * SECOND), None, "{says}: expired");
        }
    }
}
