//! PURE: the columns of the table of trials: columns that every trial has, its parameters and the members of its
//! results.

use std::collections::HashMap;

use serde_json::{Map, Value};
use trial_protocol::OBJECTIVE;

use super::display;
use crate::search::goals::Goals;
use crate::view::space::ParameterAxis;
use crate::view::{self, TrialSummary};

/// The number of parameters with a column if the request names no columns.
const DEFAULT_PARAMETERS: usize = 12;
/// The maximum number of columns to choose from.
const MAX_COLUMNS: usize = 200;
/// The place of the column of means and of further objectives: after the result.
const MEAN_PLACE: usize = 3;
/// The key of the column of machines.
pub(super) const MACHINE_KEY: &str = "machine";

/// The content of a column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ColumnContent {
    Sequence,
    Id,
    State,
    Final,
    /// The mean of the results with the same parameters.
    Mean,
    Latest,
    Duration,
    Created,
    Started,
    Ended,
    Attempt,
    Machine,
    /// Another metric: a member of results that are objects, or one that the trial reports by its name.
    Metric {
        name: String,
        is_objective: bool,
    },
    Parameter(String),
    /// The reason for the trial's state.
    Reason,
}

/// A column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Column {
    /// The column's name in an address.
    pub(super) key: String,
    /// The column's heading.
    pub(super) name: String,
    pub(super) kind: ColumnContent,
    /// `true` if all values are numbers, which are aligned to the right.
    pub(super) numeric: bool,
}

impl Column {
    fn new(key: &str, name: &str, kind: ColumnContent, numeric: bool) -> Self {
        Self { key: key.to_owned(), name: name.to_owned(), kind, numeric }
    }

    /// Returns the column of the trials' numbers, which is always the first.
    pub(super) fn sequence() -> Self {
        Self::new("sequence", "Trial", ColumnContent::Sequence, true)
    }

    /// Returns whether the list can be sorted by this column.
    pub(super) fn is_sortable(&self) -> bool {
        view::table::Column::parse(&self.key).is_some()
    }

    fn is_default(&self) -> bool {
        !matches!(
            self.kind,
            ColumnContent::Created
                | ColumnContent::Ended
                | ColumnContent::Attempt
                | ColumnContent::Machine
                | ColumnContent::Metric { is_objective: false, .. }
        )
    }
}

/// Returns a metric of a trial, preferably of its final result.
pub(super) fn metric<'a>(trial: &'a TrialSummary, name: &str) -> Option<&'a Value> {
    let member = result_objects(trial).find_map(|members| members.get(name));
    member.or_else(|| trial.metrics.get(name))
}

/// Returns a trial's results that are objects, the final one first.
fn result_objects(trial: &TrialSummary) -> impl Iterator<Item = &Map<String, Value>> {
    let all = [&trial.reported_final, &trial.final_value, &trial.reported_latest, &trial.latest];
    all.into_iter().flatten().filter_map(Value::as_object)
}

/// Returns all columns that the trials can have, in their order: parameters in the order of the search space. Of
/// several objectives, the first is the result, and the others follow it.
pub(super) fn available_columns(
    trials: &[&TrialSummary],
    space: &[ParameterAxis],
    goals: &Goals,
) -> Vec<Column> {
    let mut columns = vec![
        Column::new("id", "Id", ColumnContent::Id, false),
        Column::new("state", "State", ColumnContent::State, false),
        Column::new("final", &result_name(trials), ColumnContent::Final, true),
        Column::new("latest", "Latest", ColumnContent::Latest, true),
        Column::new("duration", "Duration", ColumnContent::Duration, true),
        Column::new("created", "Created", ColumnContent::Created, false),
        Column::new("started", "Started", ColumnContent::Started, false),
        Column::new("ended", "Ended", ColumnContent::Ended, false),
        Column::new(MACHINE_KEY, "Machine", ColumnContent::Machine, false),
        Column::new("attempt", "Attempt", ColumnContent::Attempt, false),
    ];
    let (objectives, others): (Vec<_>, Vec<_>) =
        metric_columns(trials, goals).into_iter().partition(Column::is_default);
    columns.splice(MEAN_PLACE..MEAN_PLACE, objectives);
    columns.extend(others);
    if trials.iter().any(|trial| trial.estimate.is_some()) {
        columns.insert(MEAN_PLACE, Column::new("mean", "Mean", ColumnContent::Mean, true));
    }
    columns.extend(parameter_columns(trials, space));
    columns.truncate(MAX_COLUMNS);
    columns.push(Column::new("why", "Reason", ColumnContent::Reason, false));
    columns
}

/// Returns the columns in the request, or the default ones for these trials.
pub(super) fn shown_columns(
    all: &[Column],
    asked: Option<&[String]>,
    trials: &[&TrialSummary],
) -> Vec<Column> {
    if let Some(asked) = asked {
        return all.iter().filter(|column| asked.contains(&column.key)).cloned().collect();
    }
    let mut parameters = 0;
    let usual = all.iter().filter(|column| {
        parameters += usize::from(matches!(column.kind, ColumnContent::Parameter(_)));
        column.is_default()
            && (parameters <= DEFAULT_PARAMETERS
                || !matches!(column.kind, ColumnContent::Parameter(_)))
    });
    let mut usual = usual.cloned().collect();
    remove_redundant(&mut usual, trials);
    usual
}

/// Returns whether the latest result of a trial is its final one, or missing. If a trial violates a constraint, the
/// objective's own value is final.
pub(super) fn is_latest_final(trial: &TrialSummary) -> bool {
    let named = |last: &Value| last.get(trial.metric.as_deref()?).cloned();
    let last = trial
        .final_value
        .as_ref()
        .map(|last| display::result(&named(last).unwrap_or(last.clone())));
    trial.latest.is_none() || trial.latest.as_ref().map(display::result) == last
}

/// Removes default columns that tell nothing about trials that have all ended: the latest results if each equals the
/// final one, and the reasons if there are none. While trials run, all columns stay: a new one would change each row.
fn remove_redundant(columns: &mut Vec<Column>, trials: &[&TrialSummary]) {
    let has_reason = |trial: &&TrialSummary| trial.message.is_some() || trial.stopping.is_some();
    if !trials.iter().all(|trial| trial.state.is_final()) {
        return;
    }
    let (repeated, reasons) =
        (trials.iter().all(|trial| is_latest_final(trial)), trials.iter().any(has_reason));
    columns.retain(|column| match column.kind {
        ColumnContent::Latest => !repeated,
        ColumnContent::Reason => reasons,
        ColumnContent::Sequence
        | ColumnContent::Id
        | ColumnContent::State
        | ColumnContent::Final
        | ColumnContent::Mean
        | ColumnContent::Duration
        | ColumnContent::Created
        | ColumnContent::Started
        | ColumnContent::Ended
        | ColumnContent::Attempt
        | ColumnContent::Machine
        | ColumnContent::Metric { .. }
        | ColumnContent::Parameter(_) => true,
    });
}

/// Returns the number of parameters without a column among the default ones.
pub(super) fn hidden_parameters(all: &[Column]) -> usize {
    let parameters = all.iter().filter(|column| matches!(column.kind, ColumnContent::Parameter(_)));
    parameters.count().saturating_sub(DEFAULT_PARAMETERS)
}

/// Returns the name of the results: the metric's own name, if trials report one by name.
fn result_name(trials: &[&TrialSummary]) -> String {
    let mut metrics = trials.iter().filter_map(|trial| trial.metric.as_deref());
    metrics.find(|name| *name != OBJECTIVE).unwrap_or("Result").to_owned()
}

fn metric_columns(trials: &[&TrialSummary], goals: &Goals) -> Vec<Column> {
    let mut names: Vec<&str> = goals.objectives.iter().map(|one| one.metric.as_str()).collect();
    for trial in trials {
        let members = result_objects(trial).flat_map(Map::keys);
        for name in members.chain(trial.metrics.keys()) {
            // The metric that counts is the result.
            let counts = name == OBJECTIVE || trial.metric.as_ref() == Some(name);
            if names.len() < MAX_COLUMNS && !counts && !names.contains(&name.as_str()) {
                names.push(name);
            }
        }
    }
    if !goals.objectives.is_empty() {
        names.remove(0);
    }
    let column = |name: &str| {
        let is_objective = goals.objectives.iter().any(|objective| objective.metric == name);
        let kind = ColumnContent::Metric { name: name.to_owned(), is_objective };
        Column::new(&format!("metrics.{name}"), name, kind, true)
    };
    names.into_iter().map(column).collect()
}

fn parameter_columns(trials: &[&TrialSummary], space: &[ParameterAxis]) -> Vec<Column> {
    let mut found = Parameters::default();
    for ParameterAxis { name, options, .. } in space {
        let mut options = options.iter().flatten();
        found.add(name, options.all(Value::is_number));
    }
    for trial in trials {
        let members = trial.parameters.as_object().into_iter().flatten();
        // Most parameters have no members. Their names need no copy.
        for (name, value) in members {
            if value.is_object() {
                let whole = Value::Object(Map::from_iter([(name.clone(), value.clone())]));
                for (path, inner) in view::flatten_parameters(&whole) {
                    found.add(&path, inner.is_number());
                }
            } else {
                found.add(name, value.is_number());
            }
        }
    }
    found.columns
}

/// The columns of parameters, and the place of each by its name.
#[derive(Default)]
struct Parameters {
    columns: Vec<Column>,
    places: HashMap<String, usize>,
}

impl Parameters {
    fn add(&mut self, name: &str, numeric: bool) {
        if let Some(place) = self.places.get(name) {
            self.columns[*place].numeric &= numeric;
        } else if self.columns.len() < MAX_COLUMNS {
            self.places.insert(name.to_owned(), self.columns.len());
            let kind = ColumnContent::Parameter(name.to_owned());
            self.columns.push(Column::new(&format!("parameters.{name}"), name, kind, numeric));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use std::collections::BTreeMap;

    use super::*;
    use crate::job_state::JobState;
    use crate::search::goals::Objective;
    use crate::search::repeats::Estimate;
    use crate::search::search_space::SearchSpace;
    use crate::view::space;
    use crate::view::summary;
    use trial_protocol::Direction;

    #[test]
    fn columns_are_those_of_the_search_space_and_of_all_trials() {
        let nested = json!([{"_name": "conv", "size": {"_type": "choice", "_value": [3, 5]}}, {"_name": "dense"}]);
        let spec = json!({
            "lr": {"_type": "loguniform", "_value": [0.001, 0.1]}, "layer": {"_type": "choice", "_value": nested},
            "kind": {"_type": "choice", "_value": ["a", "b"]},
        });
        let axes = space::axes(&SearchSpace::parse(&spec).unwrap());
        let trial = |parameters: Value, last: Value, estimate: Option<Estimate>| {
            let mut trial = summary(0, 0);
            (trial.parameters, trial.final_value, trial.estimate) =
                (parameters, Some(last), estimate);
            trial
        };
        let one = trial(json!({"kind": "a", "lr": 0.1}), json!({"default": 1, "f1": 2}), None);
        let nested = json!({"lr": 0.2, "own": {"x": "y"}});
        let two = trial(nested.clone(), json!(3), None);
        let estimate = Estimate { results: 2, wanted: 2, mean: 0.5, half_width: Some(0.1) };
        let repeated = trial(nested, json!(3), Some(estimate));
        let of = |trials: &[&TrialSummary], axes: &[ParameterAxis]| -> Vec<String> {
            let columns = available_columns(trials, axes, &Goals::default()).into_iter().skip(2);
            columns
                .map(|column| format!("{}{}", column.key, if column.numeric { "#" } else { "" }))
                .collect()
        };
        let fixed = ["latest#", "duration#", "created", "started", "ended", "machine", "attempt"];
        let expected = |before: &[&str], after: &[&str]| -> Vec<String> {
            [before, &fixed, after, &["why"]].concat().into_iter().map(str::to_owned).collect()
        };
        let spaced = [
            "parameters.lr#",
            "parameters.layer._name",
            "parameters.layer.size#",
            "parameters.kind",
        ];
        assert_eq!(of(&[], &axes), expected(&["final#"], &spaced));
        let with_own = [&["metrics.f1#"][..], &spaced[..], &["parameters.own.x"]].concat();
        assert_eq!(of(&[&one, &two], &axes), expected(&["final#"], &with_own));
        let bare = ["parameters.lr#", "parameters.own.x"];
        assert_eq!(of(&[&repeated], &[]), expected(&["final#", "mean#"], &bare));
    }

    #[test]
    fn metrics_reported_by_name_have_columns() {
        let goal =
            |metric: &str| Objective { metric: metric.to_owned(), direction: Direction::Minimize };
        let two = Goals { objectives: vec![goal("loss"), goal("size")], ..Goals::default() };
        let mut trial = summary(0, 0);
        trial.metric = Some("loss".to_owned());
        trial.metrics =
            BTreeMap::from(["epoch", "loss", "size"].map(|name| (name.to_owned(), json!(1))));
        let keys = |goals: &Goals| -> Vec<(String, bool)> {
            let all = available_columns(&[&trial], &[], goals);
            let metrics = all.iter().filter(|column| column.key.starts_with("metrics."));
            metrics.map(|column| (column.key.clone(), column.is_default())).collect()
        };
        let named = |keys: &[(&str, bool)]| -> Vec<(String, bool)> {
            keys.iter().map(|(key, usual)| ((*key).to_owned(), *usual)).collect()
        };
        let plain = named(&[("metrics.epoch", false), ("metrics.size", false)]);
        assert_eq!(keys(&Goals::default()), plain);
        assert_eq!(keys(&two), named(&[("metrics.size", true), ("metrics.epoch", false)]));
        assert_eq!(metric(&trial, "epoch"), Some(&json!(1)));
        assert_eq!(
            available_columns(&[&trial], &[], &two)[3].key,
            "metrics.size",
            "objectives stand together"
        );
    }

    #[test]
    fn columns_that_tell_nothing_are_left_out() {
        let trial = |last: Value, latest: Value, message: Option<&str>| {
            let mut trial = summary(0, 0);
            (trial.final_value, trial.latest) = (Some(last), Some(latest));
            trial.message = message.map(str::to_owned);
            trial.state = JobState::Succeeded;
            trial
        };
        let mut running = trial(json!(1), json!(1), None);
        running.state = JobState::Running;
        let (same, other) = (trial(json!(1), json!(1), None), trial(json!(1), json!(2), Some("x")));
        for (trials, expected) in [
            (vec![&same], [false, false]),
            (vec![&same, &other], [true, true]),
            (vec![&same, &running], [true, true]),
            (vec![], [false, false]),
        ] {
            let columns =
                shown_columns(&available_columns(&trials, &[], &Goals::default()), None, &trials);
            let has = |key| columns.iter().any(|column: &Column| column.key == key);
            assert_eq!([has("latest"), has("why")], expected);
        }
    }
}
