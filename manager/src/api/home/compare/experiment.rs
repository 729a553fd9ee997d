//! An experiment of the comparison: its curves, settings and best parameters.

use std::collections::BTreeMap;

use serde_json::Value;
use trial_protocol::{Direction, ExperimentId};

use super::super::catalog::CatalogEntry;
use super::super::{Home, list};
use crate::api::Error;
use crate::api::portal::display;
use crate::api::portal::plot::StepCurve;
use crate::search::class_args::parse_direction;
use crate::view::curve::improvements;
use crate::view::export::format_value;
use crate::view::{self, Snapshot};

/// An experiment of the comparison.
pub(super) struct ComparedExperiment {
    pub(super) entry: CatalogEntry,
    /// The experiment's name. If another experiment has the same name, the id is added.
    pub(super) name: String,
    pub(super) begun_ms: i64,
    /// The end of the experiment, or the present time.
    pub(super) until_ms: i64,
    pub(super) over_trials: StepCurve,
    /// The best result over the milliseconds since the start.
    pub(super) over_time: StepCurve,
    pub(super) settings: BTreeMap<String, String>,
    /// The parameters of the best trial, shortened.
    pub(super) parameters: BTreeMap<String, String>,
    /// The same parameters in full.
    pub(super) exact_parameters: BTreeMap<String, String>,
}

pub(super) async fn read_column(
    home: &Home,
    entries: &[CatalogEntry],
    id: &ExperimentId,
) -> Result<ComparedExperiment, Error> {
    let open = home.experiment(id).await?;
    let entry = entries.iter().find(|entry| entry.summary.id == id.as_str()).cloned();
    let entry = entry.ok_or(Error::NotFound)?;
    let row = open.store.experiment().row().await?.ok_or(Error::NotFound)?;
    let snapshot = open.trial_cache.refresh().await?;
    let direction = parse_direction(&entry.summary.optimize_mode).unwrap_or(Direction::Maximize);
    let until_ms = entry.summary.ended_at_ms.unwrap_or_else(|| home.0.clock.now_ms());
    let name = list::display_name(&entry.summary).to_owned();
    let begun_ms = row.created_at_ms;
    let (over_trials, over_time) = best_so_far_curves(&snapshot, direction, begun_ms, until_ms);
    let mut settings = BTreeMap::new();
    flatten("", &view::redact_secrets(&row.canonical), &mut settings);
    let best = entry.summary.best.as_ref();
    let best = best.and_then(|best| snapshot.trials.iter().find(|trial| trial.id == best.id));
    let parameters =
        best.map(|best| view::flatten_parameters(&best.parameters)).unwrap_or_default();
    let of = |written: fn(&Value) -> String| -> BTreeMap<String, String> {
        parameters.iter().map(|(name, value)| (name.clone(), written(value))).collect()
    };
    let (parameters, exact_parameters) = (of(display::short_value), of(format_value));
    #[rustfmt::skip]
    let column = ComparedExperiment { entry, name, begun_ms, until_ms, over_trials, over_time, settings, parameters, exact_parameters };
    Ok(column)
}

/// Adds the id to each name that several experiments have.
pub(super) fn distinguish_names(columns: &mut [ComparedExperiment]) {
    let names: Vec<String> = columns.iter().map(|column| column.name.clone()).collect();
    for column in columns {
        if names.iter().filter(|name| **name == column.name).count() > 1 {
            column.name = format!("{} ({})", column.name, column.entry.summary.id);
        }
    }
}

fn to_f64(value: &impl ToString) -> f64 {
    value.to_string().parse().unwrap_or(f64::NAN)
}

/// Returns the best result over trials, by their position, and over the milliseconds since the start of the
/// experiment.
fn best_so_far_curves(
    snapshot: &Snapshot,
    direction: Direction,
    begun_ms: i64,
    until_ms: i64,
) -> (StepCurve, StepCurve) {
    let since = |ms: i64| to_f64(&ms.saturating_sub(begun_ms).max(0));
    let competing = view::competing_trials(snapshot).into_iter();
    let mut ends: Vec<_> = competing
        .filter_map(|(trial, number)| Some((trial.ended_at_ms?, trial.sequence, number)))
        .collect();
    let best = |results: Vec<(u64, f64)>| improvements(results.into_iter(), direction);
    let by_trial = best(ends.iter().map(|(_, sequence, value)| (*sequence, *value)).collect());
    let points = by_trial.iter().map(|step| (to_f64(&step.sequence), step.value)).collect();
    let until = to_f64(&snapshot.trials.len().saturating_sub(1));
    let over_trials = StepCurve { name: String::new(), points, until };
    ends.sort_by_key(|(at, sequence, _)| (*at, *sequence));
    let numbered = (0_u64..).zip(&ends).map(|(place, (.., value))| (place, *value));
    let steps = best(numbered.collect());
    let at = |place: u64| usize::try_from(place).ok().and_then(|place| ends.get(place));
    let points = steps.iter().filter_map(|step| Some((since(at(step.sequence)?.0), step.value)));
    let over_time =
        StepCurve { name: String::new(), points: points.collect(), until: since(until_ms) };
    (over_trials, over_time)
}

/// Collects the members of a configuration by their paths.
fn flatten(path: &str, value: &Value, into: &mut BTreeMap<String, String>) {
    match value {
        // A range of the search space is a single setting.
        Value::Object(members) if !members.contains_key("_type") && !members.is_empty() => {
            for (name, value) in members {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                flatten(&path, value, into);
            }
        }
        Value::Object(range) if range.contains_key("_type") => {
            let text = |name: &str| range.get(name).map(display::value).unwrap_or_default();
            into.insert(path.to_owned(), format!("{} {}", text("_type"), text("_value")));
        }
        value @ (Value::Null
        | Value::Bool(_)
        | Value::Number(_)
        | Value::String(_)
        | Value::Array(_)
        | Value::Object(_)) => drop(into.insert(path.to_owned(), display::value(value))),
    }
}

/// Returns the name of the results.
pub(super) fn result_name(column: &ComparedExperiment) -> String {
    display::sanitize(column.entry.summary.metric.as_deref().unwrap_or("result"))
}

/// A function that returns a group of an experiment's members.
pub(super) type Members = fn(&ComparedExperiment) -> &BTreeMap<String, String>;

/// Returns the names of all members, those with different values first.
pub(super) fn partition_members(
    columns: &[ComparedExperiment],
    of: Members,
) -> (Vec<&String>, Vec<&String>) {
    let mut names: Vec<&String> = columns.iter().flat_map(|column| of(column).keys()).collect();
    names.sort();
    names.dedup();
    let differs = |name: &&String| {
        columns.windows(2).any(|pair| of(&pair[0]).get(*name) != of(&pair[1]).get(*name))
    };
    names.into_iter().partition(differs)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_configuration_is_flattened_to_paths() {
        let mut settings = BTreeMap::new();
        let canonical = json!({"tuner": {"name": "TPE", "classArgs": {}}, "searchSpace": {"lr": {"_type": "uniform", "_value": [0, 1]}}});
        flatten("", &canonical, &mut settings);
        let found: Vec<_> =
            settings.iter().map(|(name, value)| format!("{name}={value}")).collect();
        assert_eq!(found, ["searchSpace.lr=uniform [0,1]", "tuner.classArgs={}", "tuner.name=TPE"]);
    }
}
