//! The display of several objectives: the trials that no other trial dominates.

use serde::Serialize;
use serde_json::Value;
use trial_protocol::{Direction, MetricValue};
use utoipa::ToSchema;

use super::{Snapshot, TrialSummary};
use crate::job_state::JobState;
use crate::search::goals::{Goals, Merit};
use crate::search::pareto::sort_into_fronts;

/// One of several objectives.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct ObjectiveView {
    /// The metric.
    pub metric: String,
    /// `maximize` or `minimize`.
    pub direction: &'static str,
}

/// Returns the objectives of an experiment with several objectives; otherwise none.
pub fn objectives(goals: &Goals) -> Vec<ObjectiveView> {
    let several = goals.objectives.iter().filter(|_| goals.has_several_objectives());
    several
        .map(|one| ObjectiveView { metric: one.metric.clone(), direction: one.direction.as_str() })
        .collect()
}

/// Returns the succeeded trials that keep the constraints and that no other such trial dominates, from the best to
/// the worst of the first objective. Empty with one objective.
pub fn front(snapshot: &Snapshot, goals: &Goals) -> Vec<TrialSummary> {
    if !goals.has_several_objectives() {
        return Vec::new();
    }
    let succeeded = snapshot.trials.iter().filter(|trial| trial.state == JobState::Succeeded);
    let results =
        succeeded.filter_map(|trial| Some((trial, MetricValue::from(trial.final_value.clone()?))));
    let results: Vec<_> = results.collect();
    let values = results.iter().map(|(_, value)| value);
    front_of(values, goals).into_iter().map(|at| TrialSummary::clone(results[at].0)).collect()
}

/// Returns the positions of the results on the front, from the best to the worst of the first objective. Empty with
/// one objective.
pub fn front_of<'a>(results: impl Iterator<Item = &'a MetricValue>, goals: &Goals) -> Vec<usize> {
    if !goals.has_several_objectives() {
        return Vec::new();
    }
    let merits = results.enumerate().filter_map(|(at, value)| {
        // Each objective has its own direction, so this one has no effect.
        let merit = goals.merit(value, Direction::Maximize)?;
        let counts = merit.is_feasible() && merit.losses.iter().all(|loss| loss.is_finite());
        counts.then_some((at, merit))
    });
    let (positions, merits): (Vec<usize>, Vec<Merit>) = merits.unzip();
    let front = sort_into_fronts(&merits.iter().collect::<Vec<_>>(), 1).into_iter().next();
    front.unwrap_or_default().into_iter().map(|at| positions[at]).collect()
}

/// Returns the value of a metric in a result.
pub fn value_of(result: Option<&Value>, metric: &str) -> Option<Value> {
    result?.as_object()?.get(metric).cloned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::search::goals::{Constraint, Objective};

    #[test]
    fn the_front_contains_feasible_results_that_nothing_dominates() {
        let objective =
            |metric: &str, direction| Objective { metric: metric.to_owned(), direction };
        let one = Goals {
            objectives: vec![objective("loss", Direction::Minimize)],
            constraints: vec![Constraint {
                metric: "memory".to_owned(),
                min: None,
                max: Some(4.0),
            }],
        };
        let mut two = one.clone();
        two.objectives.push(objective("speed", Direction::Maximize));
        let results: Vec<MetricValue> = [
            json!({"loss": 3, "speed": 9, "memory": 1}),
            json!({"loss": 1, "speed": 5, "memory": 1}),
            json!({"loss": 2, "speed": 4, "memory": 1}),
            json!({"loss": 0, "speed": 9, "memory": 5}),
            json!({"loss": "NaN", "speed": 99, "memory": 1}),
            json!({"loss": 0, "memory": 1}),
            json!(7),
        ]
        .map(MetricValue::from)
        .into();
        assert_eq!(front_of(results.iter(), &two), [1, 0]);
        assert_eq!(front_of(results.iter(), &one), [0_usize; 0]);
    }
}
