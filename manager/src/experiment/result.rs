//! PURE: the results among a trial's metrics, and the best trial.

use std::collections::BTreeMap;

use serde_json::{Map, Value};
use trial_protocol::{AttemptId, Direction, Metric, MetricKind, MetricValue, OBJECTIVE};

use crate::search::goals::Goals;
use crate::util::ids;

/// The results of a trial.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TrialResult {
    /// The metric that counts, if there is one.
    pub name: Option<String>,
    /// The final result: the first one that the trial reported.
    pub final_value: Option<MetricValue>,
    /// The final result in its reported form: the complete object if one of its members counts.
    pub reported: Option<Box<MetricValue>>,
    /// The intermediate results, in order.
    pub intermediate: Vec<MetricValue>,
}

/// Picks the results of `attempt` from a trial's metrics, which are in the order of their reports.
///
/// The first final result counts. NNI's SDK may report an object. Its value is the member that the configured
/// `objective` names, if that member is a number, and otherwise the member `default`. The intermediate results are
/// those of the same metric. For a trial without a final result, they are those of the configured `objective`, of NNI's
/// SDK, or of the trial's only metric.
///
/// The metrics of NNI's own keeper count only if the attempt's agent has reported none. If both see the trial's output,
/// both report the same metrics.
pub fn pick_result<'a>(
    metrics: impl Iterator<Item = (&'a AttemptId, &'a Metric)> + Clone,
    attempt: &AttemptId,
    objective: Option<&str>,
) -> TrialResult {
    let own = metrics_of_attempt(metrics, attempt);
    let own = own.iter().copied();
    let wanted = |metric: &&Metric| {
        metric.kind == MetricKind::Final
            && (objective.is_none_or(|name| name == metric.name) || metric.name == OBJECTIVE)
    };
    let first_final = own.clone().find(wanted);
    let printed = |name: &str| {
        own.clone().any(|metric| metric.kind == MetricKind::Intermediate && metric.name == name)
    };
    let name = match (first_final, objective) {
        (Some(metric), _) => metric.name.as_str(),
        (None, Some(objective)) if printed(objective) => objective,
        // The SDK's metric, if it has the objective as a member.
        (None, Some(objective))
            if own.clone().any(|metric| object_member(metric, objective).is_some()) =>
        {
            OBJECTIVE
        }
        (None, Some(objective)) => objective,
        (None, None) => sole_name(own.clone()).unwrap_or(OBJECTIVE),
    };
    let steps =
        own.clone().filter(|metric| metric.kind == MetricKind::Intermediate && metric.name == name);
    let mut steps: Vec<_> = steps.collect();
    steps.sort_by_key(|metric| metric.sequence);
    let is_member =
        |metric: &Metric| objective.is_some_and(|name| object_member(metric, name).is_some());
    TrialResult {
        name: first_final.map(|metric| match objective {
            Some(objective) if is_member(metric) => objective.to_owned(),
            _ => metric.name.clone(),
        }),
        final_value: first_final.map(|metric| value_of(metric, objective)),
        reported: first_final.map(|metric| Box::new(metric.value.clone())),
        intermediate: steps.into_iter().map(|metric| value_of(metric, objective)).collect(),
    }
}

/// Returns the metrics that an attempt's agent has reported. If there are none, returns those of NNI's own keeper.
fn metrics_of_attempt<'a>(
    metrics: impl Iterator<Item = (&'a AttemptId, &'a Metric)> + Clone,
    attempt: &AttemptId,
) -> Vec<&'a Metric> {
    let reported =
        |who: &AttemptId| metrics.clone().any(|(of, metric)| of == who && !metric.derived);
    let keeper = ids::legacy_attempt(attempt);
    let keeper = (!reported(attempt) && reported(&keeper)).then_some(&keeper);
    let own = metrics.filter(|(of, _)| *of == attempt || Some(*of) == keeper);
    own.map(|(_, metric)| metric).collect()
}

/// Picks results as [`pick_result`] does. With several objectives or constraints, the final result is an object with
/// each of their metrics. Each value is the member of the final report, the metric's own final value, or its latest
/// value. The object's member `default` is the first objective's number, or infinitely bad if a constraint is violated.
/// Such a result is never the best.
pub fn pick_result_with_goals<'a>(
    metrics: impl Iterator<Item = (&'a AttemptId, &'a Metric)> + Clone,
    attempt: &AttemptId,
    objective: Option<&str>,
    goals: &Goals,
) -> TrialResult {
    let result = pick_result(metrics.clone(), attempt, objective);
    apply_goals(result, metrics, attempt, objective, goals)
}

/// Converts a result of one number to one of several objectives or constraints, as [`pick_result_with_goals`] does.
pub fn apply_goals<'a>(
    mut result: TrialResult,
    metrics: impl Iterator<Item = (&'a AttemptId, &'a Metric)> + Clone,
    attempt: &AttemptId,
    objective: Option<&str>,
    goals: &Goals,
) -> TrialResult {
    let (false, Some(last)) = (goals.is_default(), &result.final_value) else { return result };
    let own = metrics_of_attempt(metrics, attempt);
    let reported = result.reported.as_ref().and_then(|reported| reported.as_json().as_object());
    let value = |name: &str| {
        let named = || own.iter().filter(|metric| metric.name == name);
        let latest = || named().filter(|metric| metric.kind == MetricKind::Intermediate);
        let is_final = |metric: &&&Metric| metric.kind == MetricKind::Final;
        let by_name = || {
            let own = named().find(is_final).or_else(|| latest().max_by_key(|m| m.sequence));
            own.map(|metric| metric.value.as_json())
        };
        // The value of a stopped trial is a member of a step that NNI's SDK reported.
        let in_step = || {
            let steps = own.iter().filter(|metric| metric.kind == MetricKind::Intermediate);
            let members =
                steps.filter_map(|metric| Some((metric.sequence, object_member(metric, name)?)));
            members.max_by_key(|(sequence, _)| *sequence).map(|(_, value)| value.as_json().clone())
        };
        let found = reported.and_then(|members| members.get(name)).or_else(by_name).cloned();
        let found = found.or_else(in_step);
        found.or_else(|| (objective == Some(name)).then(|| last.as_json().clone()))
    };
    let names = goals.metrics();
    let mut members: Map<String, Value> =
        names.into_iter().filter_map(|name| Some((name.to_owned(), value(name)?))).collect();
    let direction = goals.objectives.first().map_or(Direction::Maximize, |first| first.direction);
    let merit = goals.merit(&MetricValue::from(Value::Object(members.clone())), direction);
    let worst = match direction {
        Direction::Maximize => f64::NEG_INFINITY,
        Direction::Minimize => f64::INFINITY,
    };
    let counts = match merit {
        Some(merit) if !merit.is_feasible() => MetricValue::from(worst),
        Some(_) | None => last.clone(),
    };
    members.insert(OBJECTIVE.to_owned(), counts.as_json().clone());
    result.final_value = Some(MetricValue::from(Value::Object(members)));
    result
}

/// Returns the member `name` of an object that NNI's SDK reported, if it is a number.
fn object_member(metric: &Metric, name: &str) -> Option<MetricValue> {
    if metric.name != OBJECTIVE {
        return None;
    }
    let member = MetricValue::from(metric.value.as_json().as_object()?.get(name)?.clone());
    member.number().is_some().then_some(member)
}

/// Returns whether a metric has this name, or is an object of NNI's SDK with a member of this name.
pub fn has_name(metric: &Metric, name: &str) -> bool {
    metric.name == name || object_member(metric, name).is_some()
}

/// Returns the part of a metric that belongs to `name`.
pub fn value_of(metric: &Metric, name: Option<&str>) -> MetricValue {
    name.and_then(|name| object_member(metric, name)).unwrap_or_else(|| metric.value.clone())
}

fn sole_name<'a>(mut metrics: impl Iterator<Item = &'a Metric>) -> Option<&'a str> {
    let first = metrics.next()?.name.as_str();
    metrics.all(|metric| metric.name == first).then_some(first)
}

/// The intermediate results of a running trial, in the order of their sequence.
#[derive(Debug, Clone, Default)]
pub struct Steps {
    objective: Option<String>,
    /// The name of the metric that counts: the configured objective, or the SDK's metric that has the objective as a
    /// member. Without an objective, the first metric that arrives.
    name: Option<String>,
    values: BTreeMap<u64, f64>,
}

impl Steps {
    /// Returns an empty list.
    pub fn new(objective: Option<&str>) -> Self {
        let objective = objective.map(str::to_owned);
        Self { objective, name: None, values: BTreeMap::new() }
    }

    /// Returns the metric that counts, once it is known.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Returns the name of the metric that counts, unless a member of its values counts.
    pub fn plain_name(&self) -> Option<&str> {
        let name = self.name.as_deref()?;
        self.objective.as_deref().is_none_or(|objective| objective == name).then_some(name)
    }

    /// Adds a metric. Returns `true` if it is a new step of the metric that counts.
    pub fn insert(&mut self, metric: &Metric) -> bool {
        if metric.kind != MetricKind::Intermediate {
            return false;
        }
        let objective = self.objective.as_deref();
        let counts = match &self.name {
            Some(name) => *name == metric.name,
            None => objective
                .is_none_or(|name| name == metric.name || object_member(metric, name).is_some()),
        };
        if !counts {
            return false;
        }
        let number = value_of(metric, objective).number().unwrap_or(f64::NAN);
        self.name.get_or_insert_with(|| metric.name.clone());
        self.values.insert(metric.sequence, number).is_none()
    }

    /// Returns the results from the first one up to the first gap, which an assessor can compare.
    pub fn history(&self) -> Vec<f64> {
        let unbroken = (0..).zip(&self.values).take_while(|(at, (sequence, _))| at == *sequence);
        unbroken.map(|(_, (_, number))| *number).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::search::goals::{Constraint, Objective};

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
        let result = pick_result(all, &second, None);
        assert_eq!(result.final_value, Some(3.0.into()));
        assert_eq!(result.intermediate, vec![1.0.into(), 2.0.into()]);
    }

    #[test]
    fn an_old_keeper_counts_if_the_agent_reported_nothing() {
        use MetricKind::{Final, Intermediate};
        let [agent, keeper, before] =
            ["k-2", "k-2-legacy", "k-1-legacy"].map(|name| AttemptId::new(name).unwrap());
        let step = |value| metric("default", Intermediate, 0, value);
        let last = |value| metric("default", Final, 0, value);
        let concluded = Metric { derived: true, ..last(0.5) };
        let nothing: (Option<MetricValue>, Vec<MetricValue>) = (None, vec![]);
        #[rustfmt::skip]
        let table = [
            ("the keeper alone",         vec![(&keeper, step(0.5)), (&keeper, last(0.7))],                     (Some(0.7.into()), vec![0.5.into()])),
            ("the agent as well",        vec![(&keeper, step(0.5)), (&agent, step(0.5)), (&agent, last(0.7))], (Some(0.7.into()), vec![0.5.into()])),
            ("an earlier attempt",        vec![(&before, step(0.5)), (&before, last(0.7))],                     nothing),
            ("derived from its steps",    vec![(&keeper, step(0.5)), (&agent, concluded)],                      (Some(0.5.into()), vec![0.5.into()])),
        ];
        for (case, metrics, expected) in table {
            let all = metrics.iter().map(|(attempt, metric)| (*attempt, metric));
            let result = pick_result(all, &agent, None);
            assert_eq!((result.final_value, result.intermediate), expected, "{case}");
        }
    }

    #[test]
    fn a_trial_without_a_final_result_has_its_steps() {
        use MetricKind::Intermediate;
        let attempt = AttemptId::new("a-1").unwrap();
        let of = |names: &[&str]| {
            names.iter().map(|name| metric(name, Intermediate, 0, 1.0)).collect::<Vec<_>>()
        };
        #[rustfmt::skip]
        let table = [
            ("the only name",         of(&["acc"]),            None,        1),
            ("the SDK's, and another", of(&["acc", "default"]), None,        1),
            ("several, none configured", of(&["acc", "loss"]),    None,        0),
            ("the configured one",    of(&["acc", "loss"]),    Some("acc"), 1),
        ];
        for (case, metrics, objective, steps) in table {
            let all = metrics.iter().map(|metric| (&attempt, metric));
            let result = pick_result(all, &attempt, objective);
            assert_eq!((result.final_value, result.intermediate.len()), (None, steps), "{case}");
        }
    }

    #[test]
    fn an_objective_may_be_a_member_of_the_sdks_object() {
        use MetricKind::{Final, Intermediate};
        let attempt = AttemptId::new("a-1").unwrap();
        let object = |kind, sequence| {
            let value = serde_json::json!({"default": 9, "loss": 0.5, "note": "x"});
            Metric { value: value.into(), ..metric("default", kind, sequence, 0.0) }
        };
        let steps = [object(Intermediate, 0), object(Intermediate, 1)];
        let all = [steps[0].clone(), steps[1].clone(), object(Final, 0)];
        let of = |metrics: &[Metric], objective| {
            let result =
                pick_result(metrics.iter().map(|metric| (&attempt, metric)), &attempt, objective);
            let numbers: Vec<_> = result.intermediate.iter().map(MetricValue::number).collect();
            (result.name, result.final_value.and_then(|value| value.number()), numbers)
        };
        let named = |name: &str| Some(name.to_owned());
        let (half, nine) = (vec![Some(0.5); 2], vec![Some(9.0); 2]);
        assert_eq!(of(&all, Some("loss")), (named("loss"), Some(0.5), half.clone()));
        assert_eq!(of(&steps, Some("loss")), (None, None, half), "while the trial runs");
        assert_eq!(of(&all, None), (named("default"), Some(9.0), nine.clone()));
        assert_eq!(of(&all, Some("note")), (named("default"), Some(9.0), nine), "no number");

        let mut live = Steps::new(Some("loss"));
        assert!(!live.insert(&metric("acc", Intermediate, 0, 0.1)), "another metric");
        assert!(live.insert(&steps[0]) && live.insert(&steps[1]));
        assert_eq!(live.history(), [0.5, 0.5]);
    }

    #[test]
    fn with_several_objectives_a_result_contains_all_their_metrics() {
        use MetricKind::{Final, Intermediate};
        let attempt = AttemptId::new("a-1").unwrap();
        let objective = |name: &str, direction| Objective { metric: name.to_owned(), direction };
        let goals = Goals {
            objectives: vec![
                objective("loss", Direction::Minimize),
                objective("speed", Direction::Maximize),
            ],
            constraints: vec![Constraint {
                metric: "memory".to_owned(),
                min: None,
                max: Some(16.0),
            }],
        };
        let object = serde_json::json!({"loss": 0.5, "speed": 3, "memory": 8, "note": "x"});
        let reported = vec![Metric { value: object.into(), ..metric("default", Final, 0, 0.0) }];
        let printed = |memory| {
            vec![
                metric("speed", Intermediate, 0, 1.0),
                metric("memory", Final, 0, memory),
                metric("speed", Intermediate, 1, 3.0),
                metric("loss", Final, 0, 0.5),
            ]
        };
        let kept = serde_json::json!({"loss": 0.5, "speed": 3.0, "memory": 8.0, "default": 0.5});
        #[rustfmt::skip]
        let table = [
            ("one report",      reported,                                      Some(0.5)),
            ("separate metrics",  printed(8.0),                                  Some(0.5)),
            ("too much memory", printed(20.0),                                 Some(f64::INFINITY)),
            ("one is missing",  vec![metric("loss", Final, 0, 0.5)],           Some(0.5)),
            ("no final one",    vec![metric("speed", Intermediate, 0, 1.0)],   None),
        ];
        for (case, metrics, number) in table {
            let all = metrics.iter().map(|metric| (&attempt, metric));
            let result = pick_result_with_goals(all, &attempt, Some("loss"), &goals);
            assert_eq!(result.final_value.as_ref().and_then(MetricValue::number), number, "{case}");
            if case == "separate metrics" {
                assert_eq!(
                    result.final_value.map(|last| last.as_json().clone()),
                    Some(kept.clone())
                );
            }
        }
    }

    #[test]
    fn a_stopped_trial_has_the_latest_value_of_each_objective() {
        use MetricKind::Intermediate;
        let attempt = AttemptId::new("a-1").unwrap();
        let objective =
            |name: &str| Objective { metric: name.to_owned(), direction: Direction::Minimize };
        let goals =
            Goals { objectives: vec![objective("loss"), objective("size")], constraints: vec![] };
        let step = |sequence, loss: f64, size: f64| {
            let object = serde_json::json!({"loss": loss, "size": size});
            Metric { value: object.into(), ..metric("default", Intermediate, sequence, 0.0) }
        };
        let named = vec![
            metric("loss", Intermediate, 0, 9.0),
            metric("size", Intermediate, 0, 5.0),
            metric("size", Intermediate, 1, 4.0),
            metric("loss", Intermediate, 1, 3.0),
        ];
        for metrics in [named, vec![step(0, 9.0, 5.0), step(1, 3.0, 4.0)]] {
            let all = metrics.iter().map(|metric| (&attempt, metric));
            let found = pick_result_with_goals(all.clone(), &attempt, Some("loss"), &goals);
            let derived = TrialResult { final_value: found.intermediate.last().cloned(), ..found };
            let result = apply_goals(derived, all, &attempt, Some("loss"), &goals);
            let merit = goals.merit(&result.final_value.unwrap(), Direction::Minimize).unwrap();
            assert_eq!(merit.losses, [3.0, 4.0]);
        }
    }

    #[test]
    fn the_history_ends_at_the_first_gap() {
        use MetricKind::{Final, Intermediate};
        let mut steps = Steps::new(None);
        assert!(steps.insert(&metric("acc", Intermediate, 0, 0.1)));
        assert!(!steps.insert(&metric("acc", Intermediate, 0, 0.1)), "a repeated step");
        assert!(!steps.insert(&metric("loss", Intermediate, 1, 9.0)), "another metric");
        assert!(!steps.insert(&metric("acc", Final, 0, 9.0)));
        assert!(steps.insert(&metric("acc", Intermediate, 2, 0.3)));
        assert_eq!(steps.history(), [0.1]);
        assert!(steps.insert(&metric("acc", Intermediate, 1, 0.2)));
        assert_eq!(steps.history(), [0.1, 0.2, 0.3]);
    }
}
