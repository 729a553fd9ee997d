//! PURE: which of a trial's metrics are its results, and which trial is the best.

use std::collections::BTreeMap;

use trial_protocol::{AttemptId, Metric, MetricKind, MetricValue, OBJECTIVE};

use crate::tuner::OptimizeMode;

/// What a trial achieved.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TrialResult {
    /// The metric that counts, where there is one.
    pub name: Option<String>,
    /// Its final result: the first one it reported.
    pub last: Option<MetricValue>,
    /// Its intermediate results, in order.
    pub intermediate: Vec<MetricValue>,
}

/// Picks the results of `attempt` from a trial's metrics, given in the order in which they were
/// reported.
///
/// The first final result counts. Intermediate results are those of the same metric; of a trial
/// without a final one, those of the configured `objective`, else of NNI's SDK, else of the only metric
/// there is.
pub fn pick<'a>(
    metrics: impl Iterator<Item = (&'a AttemptId, &'a Metric)> + Clone,
    attempt: &AttemptId,
    objective: Option<&str>,
) -> TrialResult {
    let own = metrics.filter(|(of, _)| *of == attempt).map(|(_, metric)| metric);
    let wanted = |metric: &&Metric| {
        metric.kind == MetricKind::Final
            && (objective.is_none_or(|name| name == metric.name) || metric.name == OBJECTIVE)
    };
    let last = own.clone().find(wanted);
    let name = match (last, objective) {
        (Some(metric), _) => metric.name.as_str(),
        (None, Some(objective)) => objective,
        (None, None) => sole_name(own.clone()).unwrap_or(OBJECTIVE),
    };
    let steps = own.filter(|metric| metric.kind == MetricKind::Intermediate && metric.name == name);
    let mut steps: Vec<_> = steps.collect();
    steps.sort_by_key(|metric| metric.sequence);
    TrialResult {
        name: last.map(|metric| metric.name.clone()),
        last: last.map(|metric| metric.value.clone()),
        intermediate: steps.into_iter().map(|metric| metric.value.clone()).collect(),
    }
}

fn sole_name<'a>(mut metrics: impl Iterator<Item = &'a Metric>) -> Option<&'a str> {
    let first = metrics.next()?.name.as_str();
    metrics.all(|metric| metric.name == first).then_some(first)
}

/// A running trial's intermediate results, in the order of their sequence.
#[derive(Debug, Clone, Default)]
pub struct Steps {
    /// The metric that counts; without a configured objective NNI's SDK's, else the first that came.
    name: Option<String>,
    values: BTreeMap<u64, f64>,
}

impl Steps {
    /// No results yet.
    pub fn new(objective: Option<&str>) -> Self {
        Self { name: objective.map(str::to_owned), values: BTreeMap::new() }
    }

    /// Takes in a metric; `true` if it is a new step of the one that counts.
    pub fn enter(&mut self, metric: &Metric) -> bool {
        if metric.kind != MetricKind::Intermediate {
            return false;
        }
        let name = self.name.get_or_insert_with(|| metric.name.clone());
        if *name != metric.name {
            return false;
        }
        let number = metric.value.number().unwrap_or(f64::NAN);
        self.values.insert(metric.sequence, number).is_none()
    }

    /// The results without a gap from the first on: what an assessor can compare.
    pub fn history(&self) -> Vec<f64> {
        let unbroken = (0..).zip(&self.values).take_while(|(at, (sequence, _))| at == *sequence);
        unbroken.map(|(_, (_, number))| *number).collect()
    }
}

/// Whether `candidate` is better than `best`. A value without a number, or NaN, is never better.
pub fn is_better(mode: OptimizeMode, candidate: Option<f64>, best: Option<f64>) -> bool {
    let Some(candidate) = candidate.filter(|number| !number.is_nan()) else { return false };
    match (best.filter(|number| !number.is_nan()), mode) {
        (None, _) => true,
        (Some(best), OptimizeMode::Maximize) => candidate > best,
        (Some(best), OptimizeMode::Minimize) => candidate < best,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metric(name: &str, kind: MetricKind, sequence: u64, value: f64) -> Metric {
        Metric { name: name.to_owned(), kind, sequence, value: value.into(), derived: false }
    }

    #[test]
    fn the_first_final_result_and_its_own_steps_count() {
        use MetricKind::{Final, Intermediate};
        let (first, second) = (AttemptId::new("a-1").unwrap(), AttemptId::new("a-2").unwrap());
        let metrics = [
            (&first, metric("default", Final, 0, 9.0)),
            (&second, metric("loss", Intermediate, 0, 8.0)),
            (&second, metric("default", Intermediate, 1, 2.0)),
            (&second, metric("default", Intermediate, 0, 1.0)),
            (&second, metric("default", Final, 0, 3.0)),
            (&second, metric("default", Final, 0, 4.0)),
        ];
        let all = metrics.iter().map(|(attempt, metric)| (*attempt, metric));
        let result = pick(all, &second, None);
        assert_eq!(result.last, Some(3.0.into()));
        assert_eq!(result.intermediate, vec![1.0.into(), 2.0.into()]);
    }

    #[test]
    fn a_trial_without_a_final_result_shows_its_steps() {
        use MetricKind::Intermediate;
        let attempt = AttemptId::new("a-1").unwrap();
        let of = |names: &[&str]| {
            names.iter().map(|name| metric(name, Intermediate, 0, 1.0)).collect::<Vec<_>>()
        };
        #[rustfmt::skip]
        let table = [
            ("the only name",         of(&["acc"]),            None,        1),
            ("the SDK's among more",  of(&["acc", "default"]), None,        1),
            ("none to choose",        of(&["acc", "loss"]),    None,        0),
            ("the configured one",    of(&["acc", "loss"]),    Some("acc"), 1),
        ];
        for (says, metrics, objective, steps) in table {
            let all = metrics.iter().map(|metric| (&attempt, metric));
            let result = pick(all, &attempt, objective);
            assert_eq!((result.last, result.intermediate.len()), (None, steps), "{says}");
        }
    }

    #[test]
    fn steps_are_compared_without_gaps() {
        use MetricKind::{Final, Intermediate};
        let mut steps = Steps::new(None);
        assert!(steps.enter(&metric("acc", Intermediate, 0, 0.1)));
        assert!(!steps.enter(&metric("acc", Intermediate, 0, 0.1)), "said twice");
        assert!(!steps.enter(&metric("loss", Intermediate, 1, 9.0)), "another metric");
        assert!(!steps.enter(&metric("acc", Final, 0, 9.0)));
        assert!(steps.enter(&metric("acc", Intermediate, 2, 0.3)));
        assert_eq!(steps.history(), [0.1]);
        assert!(steps.enter(&metric("acc", Intermediate, 1, 0.2)));
        assert_eq!(steps.history(), [0.1, 0.2, 0.3]);
    }

    #[test]
    fn only_numbers_compete() {
        use OptimizeMode::{Maximize, Minimize};
        let nan = Some(f64::NAN);
        #[rustfmt::skip]
        let table = [
            ("anything beats nothing",      Maximize, Some(0.0), None,      true),
            ("larger when maximising",      Maximize, Some(2.0), Some(1.0), true),
            ("not smaller",                 Maximize, Some(1.0), Some(2.0), false),
            ("smaller when minimising",     Minimize, Some(1.0), Some(2.0), true),
            ("the first of equals stays",   Minimize, Some(1.0), Some(1.0), false),
            ("NaN never wins",              Maximize, nan,       None,      false),
            ("NaN always loses",            Maximize, Some(0.0), nan,       true),
            ("infinity is a number",        Maximize, Some(f64::INFINITY), Some(1.0), true),
            ("nothing never wins",          Minimize, None,      None,      false),
        ];
        for (says, mode, candidate, best, better) in table {
            assert_eq!(is_better(mode, candidate, best), better, "{says}");
        }
    }
}
