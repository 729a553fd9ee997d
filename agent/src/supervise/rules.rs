//! PURE: the manager's rules for stopping the trial, which apply even while the manager cannot be reached. The time is
//! an argument.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use trial_protocol::{Direction, Metric, MetricKind, StopReason, StopRule, StopWhen};

/// The active rules, and the results of the trial so far.
#[derive(Debug, Default)]
pub struct Rules {
    /// Each rule with its expiry time. `None`: the time is too far away to represent.
    rules: Vec<(StopRule, Option<Instant>)>,
    /// The history of each metric, by name. Rules may arrive late and apply to all results.
    histories: HashMap<String, MetricHistory>,
}

/// A violated rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleViolation {
    /// The reason in the rule.
    pub reason: StopReason,
    /// The description of the violation, for the user.
    pub why: String,
}

/// The intermediate results of a metric.
#[derive(Debug)]
struct MetricHistory {
    /// The number of results, without a gap from the first on. After a gap, the count stops, because the number of
    /// results is then unknown.
    results: u64,
    largest: f64,
    smallest: f64,
}

impl MetricHistory {
    fn new() -> Self {
        Self { results: 0, largest: f64::NEG_INFINITY, smallest: f64::INFINITY }
    }

    /// Adds a result. Returns `true` if it is the next one.
    fn add(&mut self, metric: &Metric) -> bool {
        if metric.sequence != self.results {
            return false;
        }
        self.results += 1;
        let number = metric.value.number().unwrap_or(f64::NAN);
        // NaN changes neither value.
        self.largest = self.largest.max(number);
        self.smallest = self.smallest.min(number);
        true
    }

    /// Returns a description if the best result is worse than the bound for this number of results.
    fn worse_than_bound(
        &self,
        direction: Option<Direction>,
        from_results: u64,
        bounds: &[f64],
    ) -> Option<String> {
        let at = usize::try_from(self.results.checked_sub(from_results.max(1))?).ok()?;
        let bound = *bounds.get(at)?;
        let (best, worse) = match direction? {
            Direction::Maximize => (self.largest, self.largest < bound),
            Direction::Minimize => (self.smallest, self.smallest > bound),
        };
        let results = self.results;
        worse.then(|| {
            format!(
                "its best of {results} results, {best}, is worse than the manager's bound {bound}"
            )
        })
    }
}

impl Rules {
    /// Replaces all rules. They hold for `lease` from `now`, or a shorter time.
    pub fn replace(&mut self, rules: Vec<StopRule>, lease: Duration, now: Instant) {
        let until = |rule: &StopRule| {
            let own = rule.lease_ms.map_or(lease, |ms| Duration::from_millis(ms).min(lease));
            now.checked_add(own)
        };
        self.rules = rules
            .into_iter()
            .map(|rule| {
                let until = until(&rule);
                (rule, until)
            })
            .collect();
    }

    fn active_rules(&self, now: Instant) -> impl Iterator<Item = &(StopRule, Option<Instant>)> {
        self.rules.iter().filter(move |(_, until)| until.is_none_or(|until| now < until))
    }

    /// Returns the time of the next rule on the run time, for a trial started at `started`.
    pub fn next_due(&self, started: Instant, now: Instant) -> Option<Instant> {
        let due = self.active_rules(now).filter_map(|(rule, until)| match rule.when {
            StopWhen::RunningFor { ms } => {
                let due = started.checked_add(Duration::from_millis(ms))?;
                until.is_none_or(|until| due < until).then_some(due)
            }
            StopWhen::Metric { .. } | StopWhen::Best { .. } | StopWhen::Unknown => None,
        });
        due.min()
    }

    /// Returns the reason of a rule on the run time that applies now, for a trial started at `started`.
    pub fn overdue_reason(&self, started: Instant, now: Instant) -> Option<StopReason> {
        let ran = now.saturating_duration_since(started);
        let fits = |rule: &StopRule| match rule.when {
            StopWhen::RunningFor { ms } => ran >= Duration::from_millis(ms),
            StopWhen::Metric { .. } | StopWhen::Best { .. } | StopWhen::Unknown => false,
        };
        self.active_rules(now).find(|(rule, _)| fits(rule)).map(|(rule, _)| rule.reason)
    }

    /// Adds a metric of the trial, and returns the rule that it violates, if any.
    pub fn violation_of(&mut self, metric: &Metric, now: Instant) -> Option<RuleViolation> {
        if metric.kind != MetricKind::Intermediate {
            return None;
        }
        if !self.histories.contains_key(&metric.name) {
            self.histories.insert(metric.name.clone(), MetricHistory::new());
        }
        let next = self.histories.get_mut(&metric.name)?.add(metric);
        let history = self.histories.get(&metric.name).filter(|_| next);
        for (rule, _) in self.active_rules(now) {
            let why = match &rule.when {
                StopWhen::Metric { name, from_sequence, at_least, at_most }
                    if *name == metric.name && metric.sequence >= *from_sequence =>
                {
                    let number = metric.value.number().unwrap_or(f64::NAN);
                    let out = number.is_nan()
                        || at_least.is_some_and(|least| number < least)
                        || at_most.is_some_and(|most| number > most);
                    out.then(|| {
                        format!("result {} of {name} is out of bounds: {number}", metric.sequence)
                    })
                }
                StopWhen::Best { name, direction, from_results, bounds }
                    if *name == metric.name =>
                {
                    history.and_then(|history| {
                        history.worse_than_bound(*direction, *from_results, bounds)
                    })
                }
                StopWhen::Metric { .. }
                | StopWhen::Best { .. }
                | StopWhen::RunningFor { .. }
                | StopWhen::Unknown => None,
            };
            if let Some(why) = why {
                return Some(RuleViolation { reason: rule.reason, why });
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn rule(reason: StopReason, when: StopWhen) -> StopRule {
        StopRule { reason, lease_ms: None, when }
    }

    #[test]
    fn overdue_trials_follow_the_table() {
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
        for (case, given, lease, gone, overdue, due) in table {
            let mut rules = Rules::default();
            rules.replace(given, lease * SECOND, started);
            assert_eq!(rules.overdue_reason(started, started + gone * SECOND), overdue, "{case}");
            let due = due.map(|due| started + due * SECOND);
            assert_eq!(rules.next_due(started, started), due, "{case}");
            assert_eq!(rules.next_due(started, started + lease * SECOND), None, "{case}: expired");
            rules.replace(Vec::new(), SECOND, started);
            assert_eq!(
                rules.overdue_reason(started, started + gone * SECOND),
                None,
                "{case}: replaced"
            );
        }
    }

    #[test]
    fn a_very_long_lease_does_not_overflow() {
        let mut rules = Rules::default();
        let now = Instant::now();
        let never = rule(StopReason::Deadline, StopWhen::RunningFor { ms: u64::MAX });
        rules.replace(vec![never], Duration::from_millis(u64::MAX), now);
        assert_eq!(rules.overdue_reason(now, now + SECOND), None);
        assert!(rules.next_due(now, now).is_none_or(|due| due > now));
    }

    #[test]
    fn rule_violations_follow_the_table() {
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
        for (case, name, kind, sequence, value, expected) in table {
            let name = name.to_owned();
            let metric = Metric { name, kind, sequence, value: value.into(), derived: false };
            let broken = rules.violation_of(&metric, now).map(|broken| broken.reason);
            assert_eq!(broken, expected, "{case}");
            assert_eq!(rules.violation_of(&metric, now + 10 * SECOND), None, "{case}: expired");
        }
    }

    fn step(name: &str, sequence: u64, value: f64) -> Metric {
        let kind = MetricKind::Intermediate;
        Metric { name: name.to_owned(), kind, sequence, value: value.into(), derived: false }
    }

    /// A name, the direction, sequences and results, and the index of the result that violates the rule.
    type Row<'a> = (&'a str, Option<Direction>, &'a [(u64, f64)], Option<usize>);

    #[test]
    fn bounds_on_the_best_result_follow_the_table() {
        const LARGER: Option<Direction> = Some(Direction::Maximize);
        const SMALLER: Option<Direction> = Some(Direction::Minimize);
        const NAN: f64 = f64::NAN;
        #[rustfmt::skip]
        let table: [Row<'_>; 11] = [
            ("good enough",              LARGER,  &[(0, 0.1), (1, 0.5), (2, 0.7)],            None),
            ("too small after two",      LARGER,  &[(0, 0.1), (1, 0.4)],                      Some(1)),
            ("its best counts",          LARGER,  &[(0, 0.9), (1, 0.1), (2, 0.1)],            None),
            ("good enough, then not",    LARGER,  &[(0, 0.1), (1, 0.6), (2, 0.6)],            Some(2)),
            ("no bound after the last",  LARGER,  &[(0, 0.7), (1, 0.7), (2, 0.7), (3, 0.0)],  None),
            ("NaN is the worst",         LARGER,  &[(0, NAN), (1, NAN)],                      Some(1)),
            ("and hides no number",      LARGER,  &[(0, 0.8), (1, NAN)],                      None),
            ("small is good",            SMALLER, &[(0, 0.9), (1, 0.5), (2, 0.7)],            None),
            ("too large",                SMALLER, &[(0, 0.9), (1, 0.6)],                      Some(1)),
            ("an unknown order",         None,    &[(0, NAN), (1, NAN), (2, NAN)],            None),
            ("a gap stops the count",    LARGER,  &[(0, 0.1), (2, 0.1), (3, 0.1)],            None),
        ];
        let now = Instant::now();
        for (case, direction, results, breaks) in table {
            let mut rules = Rules::default();
            // Results before the rule count too.
            let (before, after) = results.split_at(1);
            assert_eq!(
                rules.violation_of(&step("m", before[0].0, before[0].1), now),
                None,
                "{case}"
            );
            let bounds = if direction == SMALLER { vec![0.5, 0.5] } else { vec![0.5, 0.7] };
            let when = StopWhen::Best { name: "m".to_owned(), direction, from_results: 2, bounds };
            rules.replace(vec![rule(StopReason::EarlyStop, when)], SECOND, now);
            let mut broken = None;
            for (at, (sequence, value)) in (1..).zip(after) {
                assert_eq!(rules.violation_of(&step("other", at, -1.0), now), None, "{case}");
                let breaks = rules.violation_of(&step("m", *sequence, *value), now);
                broken = broken.or(breaks.map(|_| usize::try_from(at).unwrap()));
            }
            assert_eq!(broken, breaks, "{case}");
        }
    }

    #[test]
    fn a_rule_may_expire_before_the_others() {
        let now = Instant::now();
        let mut rules = Rules::default();
        let bounds = vec![1.0; 9];
        let when = StopWhen::Best {
            name: "m".to_owned(),
            direction: Some(Direction::Maximize),
            from_results: 1,
            bounds,
        };
        let short =
            |ms| StopRule { lease_ms: Some(ms), ..rule(StopReason::EarlyStop, when.clone()) };
        let hour = rule(StopReason::Deadline, StopWhen::RunningFor { ms: 5_000 });
        rules.replace(vec![short(2_000), hour.clone()], 10 * SECOND, now);
        let broken = rules.violation_of(&step("m", 0, 0.0), now + SECOND).unwrap();
        assert_eq!(broken.reason, StopReason::EarlyStop);
        assert!(
            broken.why.contains("its best of 1 results, 0, is worse than the manager's bound 1"),
            "{}",
            broken.why
        );
        assert_eq!(rules.violation_of(&step("m", 1, 0.0), now + 2 * SECOND), None, "expired");
        assert_eq!(rules.overdue_reason(now, now + 6 * SECOND), Some(StopReason::Deadline));
        // The rule does not outlive the lease of all rules.
        rules.replace(vec![short(u64::MAX)], SECOND, now);
        assert_eq!(rules.violation_of(&step("m", 2, 0.0), now + SECOND), None);
    }
}
