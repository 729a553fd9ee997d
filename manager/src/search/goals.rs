//! PURE: several objectives and constraints, and the merit of a trial's result.

use serde_json::Value;
use trial_protocol::{Direction, MetricValue};

/// One of several objectives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Objective {
    /// The metric's name.
    pub metric: String,
    /// The direction in which the metric is better.
    pub direction: Direction,
}

/// A limit that a result must satisfy.
#[derive(Debug, Clone, PartialEq)]
pub struct Constraint {
    /// The metric's name.
    pub metric: String,
    /// The smallest allowed value, if any.
    pub min: Option<f64>,
    /// The largest allowed value, if any.
    pub max: Option<f64>,
}

/// The named objectives and the constraints of an experiment. Empty for most experiments.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Goals {
    /// The objectives. If empty, the experiment has a single objective of any name.
    pub objectives: Vec<Objective>,
    /// The limits that results must satisfy.
    pub constraints: Vec<Constraint>,
}

/// The merit of a result. Smaller is better, whatever the direction of the objectives.
#[derive(Debug, Clone, PartialEq)]
pub struct Merit {
    /// The losses, one for each objective. Infinite if the metric is NaN.
    pub losses: Vec<f64>,
    /// The sum of the amounts by which the result exceeds the limits, 0 if it satisfies all constraints.
    pub violation: f64,
}

impl Goals {
    /// Returns whether the experiment has a single unnamed objective and no constraints.
    pub fn is_default(&self) -> bool {
        self.objectives.is_empty() && self.constraints.is_empty()
    }

    /// Returns whether the search has several objectives.
    pub fn has_several_objectives(&self) -> bool {
        self.objectives.len() > 1
    }

    /// Returns the distinct names of all metrics that count, objectives first.
    pub fn metrics(&self) -> Vec<&str> {
        let objectives = self.objectives.iter().map(|objective| objective.metric.as_str());
        let constraints = self.constraints.iter().map(|constraint| constraint.metric.as_str());
        let mut names: Vec<&str> = Vec::new();
        for name in objectives.chain(constraints) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names
    }

    /// Returns a sentence about each metric of a result that violates a constraint: the metric, its value and the
    /// limit.
    pub fn violations(&self, result: &MetricValue) -> Vec<String> {
        let mut names: Vec<&str> = Vec::new();
        for constraint in &self.constraints {
            if !names.contains(&constraint.metric.as_str()) {
                names.push(&constraint.metric);
            }
        }
        let sentence = |name: &str| {
            let limit = self.describe_violated_limit(name, Some(result.as_json()))?;
            let value = result.as_json().get(name);
            Some(value.map_or_else(
                || format!("{name} is not reported, so it counts as {limit}"),
                |value| {
                    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                    format!("{name} is {text}, {limit}")
                },
            ))
        };
        names.into_iter().filter_map(sentence).collect()
    }

    /// Returns a description of the limit that a metric's value violates, if any.
    pub fn describe_violated_limit(&self, metric: &str, result: Option<&Value>) -> Option<String> {
        let result = MetricValue::from(result?.clone());
        let mut limits = self.constraints.iter().filter(|limit| limit.metric == metric);
        let limit = limits.find(|limit| limit.violation(&result) > 0.0)?;
        Some(match (limit.min, limit.max) {
            (Some(min), Some(max)) => format!("not between {min} and {max}"),
            (Some(min), None) => format!("below {min}"),
            (None, Some(max)) => format!("above {max}"),
            (None, None) => return None,
        })
    }

    /// Returns the merit of a result. `direction` applies if there is a single objective. Returns `None` if an
    /// objective is missing or infinitely good, because such a result contains no information about its parameters.
    pub fn merit(&self, value: &MetricValue, direction: Direction) -> Option<Merit> {
        let losses: Option<Vec<f64>> = if self.has_several_objectives() {
            let losses = self.objectives.iter();
            losses
                .map(|objective| {
                    loss(member_number(value, &objective.metric)?, objective.direction)
                })
                .collect()
        } else {
            // An imported result may be a plain number.
            let named = self.objectives.first().and_then(|one| member_number(value, &one.metric));
            Some(vec![loss(named.or_else(|| value.number())?, direction)?])
        };
        let violations = self.constraints.iter().map(|limit| limit.violation(value));
        Some(Merit { losses: losses?, violation: violations.sum() })
    }
}

impl Constraint {
    /// Returns the amount by which a result exceeds the limit, or infinity if the metric is missing or not a number.
    fn violation(&self, value: &MetricValue) -> f64 {
        let Some(number) = member_number(value, &self.metric).filter(|number| !number.is_nan())
        else {
            return f64::INFINITY;
        };
        let over = self.max.map_or(0.0, |max| number - max);
        let under = self.min.map_or(0.0, |min| min - number);
        over.max(under).max(0.0)
    }
}

impl Merit {
    /// Returns whether the result satisfies all constraints.
    pub fn is_feasible(&self) -> bool {
        self.violation <= 0.0
    }

    /// Returns whether this merit is better than `other` in an objective and worse in none. A result that satisfies the
    /// constraints dominates each result that does not. Of two results that do not, the one with the smaller violation
    /// dominates.
    pub fn dominates(&self, other: &Self) -> bool {
        if self.violation > 0.0 || other.violation > 0.0 {
            return self.violation < other.violation;
        }
        let pairs = || self.losses.iter().zip(&other.losses);
        pairs().all(|(a, b)| a <= b) && pairs().any(|(a, b)| a < b)
    }

    /// Compares merits by violation, then objective by objective. In this order, a merit always precedes the merits
    /// that it dominates.
    pub fn compare(&self, other: &Self) -> std::cmp::Ordering {
        let first = self.violation.total_cmp(&other.violation);
        let pairs = self.losses.iter().zip(&other.losses);
        pairs.fold(first, |order, (a, b)| order.then(a.total_cmp(b)))
    }
}

/// Returns a member of a result as a number.
fn member_number(value: &MetricValue, name: &str) -> Option<f64> {
    let member = value.as_json().as_object()?.get(name)?;
    MetricValue::from(member.clone()).number()
}

/// Returns the loss for a metric. NaN, the result of a diverged trial, is an infinite loss, from which the tuner
/// learns. Returns `None` for an infinitely good metric, because such a value contains no information about the
/// parameters.
fn loss(number: f64, direction: Direction) -> Option<f64> {
    let loss = match direction {
        Direction::Minimize => number,
        Direction::Maximize => -number,
    };
    if loss.is_nan() { Some(f64::INFINITY) } else { Some(loss).filter(|l| *l > f64::NEG_INFINITY) }
}

/// Returns whether `candidate` is better than `best`. A missing number, NaN or an infinity is never better: the last
/// two usually result from an error such as a division by zero.
pub fn is_better(direction: Direction, candidate: Option<f64>, best: Option<f64>) -> bool {
    let Some(candidate) = candidate.filter(|number| number.is_finite()) else { return false };
    match (best.filter(|number| number.is_finite()), direction) {
        (None, _) => true,
        (Some(best), Direction::Maximize) => candidate > best,
        (Some(best), Direction::Minimize) => candidate < best,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn goals() -> Goals {
        let objective =
            |metric: &str, direction| Objective { metric: metric.to_owned(), direction };
        let limit = |metric: &str, min, max| Constraint { metric: metric.to_owned(), min, max };
        Goals {
            objectives: vec![
                objective("loss", Direction::Minimize),
                objective("speed", Direction::Maximize),
            ],
            constraints: vec![limit("memory", None, Some(16.0)), limit("speed", Some(2.0), None)],
        }
    }

    #[test]
    fn a_result_has_a_loss_for_each_objective_and_a_violation() {
        let infinite = f64::INFINITY;
        #[rustfmt::skip]
        let table = [
            ("kept",              json!({"loss": 1, "speed": 3, "memory": 16}),     Some((vec![1.0, -3.0], 0.0))),
            ("two exceeded",      json!({"loss": 1, "speed": 1, "memory": 18}),     Some((vec![1.0, -1.0], 3.0))),
            ("a limit unknown",   json!({"loss": 1, "speed": 3}),                   Some((vec![1.0, -3.0], infinite))),
            ("diverged",          json!({"loss": "NaN", "speed": 3, "memory": 0}),  Some((vec![infinite, -3.0], 0.0))),
            ("objective missing", json!({"loss": 1, "memory": 1}),                  None),
            ("no object",         json!(3),                                         None),
        ];
        for (label, value, expected) in table {
            let merit = goals().merit(&MetricValue::from(value), Direction::Minimize);
            assert_eq!(merit.map(|merit| (merit.losses, merit.violation)), expected, "{label}");
        }
        assert_eq!(goals().metrics(), ["loss", "speed", "memory"]);
        let plain = Goals::default().merit(&MetricValue::from(2.0), Direction::Maximize);
        assert_eq!(plain, Some(Merit { losses: vec![-2.0], violation: 0.0 }));
    }

    #[test]
    fn each_violation_has_the_value_and_the_limit() {
        #[rustfmt::skip]
        let table = [
            (json!({"loss": 1, "speed": 3, "memory": 16}),        vec![]),
            (json!({"loss": 1, "speed": 1.5, "memory": 18.25}),   vec!["memory is 18.25, above 16", "speed is 1.5, below 2"]),
            (json!({"loss": 1, "speed": "NaN", "memory": 1}),     vec!["speed is NaN, below 2"]),
            (json!({"loss": 1, "speed": 3}),                      vec!["memory is not reported, so it counts as above 16"]),
        ];
        for (value, expected) in table {
            assert_eq!(goals().violations(&MetricValue::from(value.clone())), expected, "{value}");
        }
    }

    #[test]
    fn results_within_the_limits_dominate_results_outside() {
        let merit = |losses: [f64; 2], violation| Merit { losses: losses.to_vec(), violation };
        #[rustfmt::skip]
        let table = [
            ("better in one",     merit([1.0, 2.0], 0.0), merit([1.0, 3.0], 0.0), true),
            ("equal",             merit([1.0, 2.0], 0.0), merit([1.0, 2.0], 0.0), false),
            ("neither",           merit([1.0, 3.0], 0.0), merit([2.0, 2.0], 0.0), false),
            ("kept or exceeded",  merit([9.0, 9.0], 0.0), merit([1.0, 1.0], 0.1), true),
            ("the other way",     merit([1.0, 1.0], 0.1), merit([9.0, 9.0], 0.0), false),
            ("less exceeded",     merit([9.0, 9.0], 1.0), merit([1.0, 1.0], 2.0), true),
        ];
        for (label, one, other, dominates) in table {
            assert_eq!(one.dominates(&other), dominates, "{label}");
        }
    }

    #[test]
    fn only_numbers_compete() {
        use Direction::{Maximize, Minimize};
        let nan = Some(f64::NAN);
        #[rustfmt::skip]
        let table = [
            ("a number beats no result",     Maximize, Some(0.0), None,      true),
            ("larger when maximising",      Maximize, Some(2.0), Some(1.0), true),
            ("not smaller",                 Maximize, Some(1.0), Some(2.0), false),
            ("smaller when minimising",     Minimize, Some(1.0), Some(2.0), true),
            ("the first of two equal ones",  Minimize, Some(1.0), Some(1.0), false),
            ("NaN never wins",              Maximize, nan,       None,      false),
            ("NaN always loses",            Maximize, Some(0.0), nan,       true),
            ("infinity never wins",         Maximize, Some(f64::INFINITY), Some(1.0), false),
            ("nor negative infinity",        Minimize, Some(f64::NEG_INFINITY), None, false),
            ("infinity always loses",       Maximize, Some(1.0), Some(f64::INFINITY), true),
            ("no result never wins",         Minimize, None,      None,      false),
        ];
        for (case, direction, candidate, best, better) in table {
            assert_eq!(is_better(direction, candidate, best), better, "{case}");
        }
    }
}
