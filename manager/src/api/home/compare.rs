//! The comparison of experiments: the best result over trials and over time, and the settings that differ.

use std::collections::BTreeMap;

use axum::extract::{RawQuery, State};
use axum::response::Response;
use maud::{Markup, html};
use serde_json::Value;
use trial_protocol::ExperimentId;

use super::super::Error;
use super::super::portal::base::url;
use super::super::portal::plot::{Steps, plot};
use super::super::portal::{PageRefusal, Viewer, page as dressed, words};
use super::catalog::Entry;
use super::{Home, list};
use crate::search::tuner::OptimizeMode;
use crate::view::curve::improvements;
use crate::view::{self, Snapshot};

/// The maximum number of experiments in a comparison.
const COMPARED: usize = 8;

/// An experiment of the comparison.
struct ComparedExperiment {
    entry: Entry,
    /// The experiment's name. If another experiment has the same name, the id is added.
    name: String,
    over_trials: Steps,
    over_time: Steps,
    settings: BTreeMap<String, String>,
}

/// `GET /compare?experiment=a&experiment=b`: shows the comparison of experiments.
pub(super) async fn page(
    viewer: Viewer,
    State(home): State<Home>,
    RawQuery(query): RawQuery,
) -> Result<Response, PageRefusal> {
    let query = query.unwrap_or_default();
    let ids: Vec<_> =
        query.split('&').filter_map(|pair| pair.strip_prefix("experiment=")).collect();
    let entries = home.0.catalog.refresh(&home).await;
    let (mut columns, mut unreadable) = (Vec::new(), Vec::new());
    for id in ids.iter().take(COMPARED) {
        let id = ExperimentId::new(*id).map_err(|error| Error::BadRequest(error.to_string()))?;
        match column(&home, &entries, &id).await {
            Ok(column) => columns.push(column),
            // The experiment may have been removed since its selection.
            Err(error) => unreadable.push(format!("{id}: {}", error.parts().2)),
        }
    }
    distinguish_names(&mut columns);
    let content = html! {
        h1 { "Compare experiments" }
        @for problem in &unreadable { p.trouble { (words::sanitize(problem)) } }
        @if columns.is_empty() {
            p { "First select up to " (COMPARED) " experiments in " a href=(url("/")) { "the list" } "." }
        } @else {
            @if ids.len() > COMPARED { p.hint { "Showing the first " (COMPARED) " of " (ids.len()) " selected experiments." } }
            (warning(&columns))
            (comparison(&columns))
        }
    };
    Ok(dressed(&viewer, "Compare", None, &content))
}

async fn column(
    home: &Home,
    entries: &[Entry],
    id: &ExperimentId,
) -> Result<ComparedExperiment, Error> {
    let open = home.experiment(id).await?;
    let entry = entries.iter().find(|entry| entry.summary.id == id.as_str()).cloned();
    let entry = entry.ok_or(Error::NotFound)?;
    let row = open.store.experiment().await?.ok_or(Error::NotFound)?;
    let snapshot = open.board.refresh().await?;
    let mode =
        OptimizeMode::from_word(&entry.summary.optimize_mode).unwrap_or(OptimizeMode::Maximize);
    let until_ms = entry.summary.ended_at_ms.unwrap_or_else(|| home.0.clock.now_ms());
    let name = list::name(&entry.summary).to_owned();
    let (over_trials, over_time) = curves(&snapshot, mode, row.created_at_ms, until_ms);
    let mut settings = BTreeMap::new();
    flatten("", &view::without_secrets(&row.canonical), &mut settings);
    Ok(ComparedExperiment { entry, name, over_trials, over_time, settings })
}

/// Adds the id to each name that several experiments have.
fn distinguish_names(columns: &mut [ComparedExperiment]) {
    let names: Vec<String> = columns.iter().map(|column| column.name.clone()).collect();
    for column in columns {
        if names.iter().filter(|name| **name == column.name).count() > 1 {
            column.name = format!("{} ({})", column.name, column.entry.summary.id);
        }
    }
}

fn number(value: &impl ToString) -> f64 {
    value.to_string().parse().unwrap_or(f64::NAN)
}

/// Returns the best result over trials, by their position, and over the hours since the start of the experiment.
fn curves(snapshot: &Snapshot, mode: OptimizeMode, begun_ms: i64, until_ms: i64) -> (Steps, Steps) {
    let hours = |ms: i64| number(&ms.saturating_sub(begun_ms).max(0)) / 3_600_000.0;
    let competing = view::competing(snapshot).into_iter();
    let mut ends: Vec<_> = competing
        .filter_map(|(trial, number)| Some((trial.ended_at_ms?, trial.sequence, number)))
        .collect();
    let best = |results: Vec<(u64, f64)>| improvements(results.into_iter(), mode);
    let by_trial = best(ends.iter().map(|(_, sequence, value)| (*sequence, *value)).collect());
    let points = by_trial.iter().map(|step| (number(&step.sequence), step.value)).collect();
    let until = number(&snapshot.trials.len().saturating_sub(1));
    let over_trials = Steps { name: String::new(), points, until };
    ends.sort_by_key(|(at, sequence, _)| (*at, *sequence));
    let numbered = (0_u64..).zip(&ends).map(|(place, (.., value))| (place, *value));
    let steps = best(numbered.collect());
    let at = |place: u64| usize::try_from(place).ok().and_then(|place| ends.get(place));
    let points = steps.iter().filter_map(|step| Some((hours(at(step.sequence)?.0), step.value)));
    let over_time = Steps { name: String::new(), points: points.collect(), until: hours(until_ms) };
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
            let text = |name: &str| range.get(name).map(words::value).unwrap_or_default();
            into.insert(path.to_owned(), format!("{} {}", text("_type"), text("_value")));
        }
        value @ (Value::Null
        | Value::Bool(_)
        | Value::Number(_)
        | Value::String(_)
        | Value::Array(_)
        | Value::Object(_)) => drop(into.insert(path.to_owned(), words::value(value))),
    }
}

fn warning(columns: &[ComparedExperiment]) -> Markup {
    let mixed = |of: fn(&ComparedExperiment) -> Option<&str>| {
        columns.windows(2).any(|pair| of(&pair[0]) != of(&pair[1]))
    };
    let metrics = mixed(|column| column.entry.summary.metric.as_deref());
    let directions = mixed(|column| Some(column.entry.summary.optimize_mode.as_str()));
    html! {
        @if metrics || directions {
            p.trouble {
                "These experiments optimise different "
                @if metrics && directions { "metrics in different directions" } @else if metrics { "metrics" } @else { "directions" }
                ", so the curves do not show which one is better."
            }
        }
    }
}

fn comparison(columns: &[ComparedExperiment]) -> Markup {
    let curves = |of: fn(&ComparedExperiment) -> &Steps| -> Vec<Steps> {
        let named = |column: &ComparedExperiment| {
            let Steps { points, until, .. } = of(column);
            Steps { name: column.name.clone(), points: points.clone(), until: *until }
        };
        columns.iter().map(named).collect()
    };
    let metric = columns.first().and_then(|column| column.entry.summary.metric.clone());
    let metric = words::sanitize(metric.as_deref().unwrap_or("result"));
    let mut names: Vec<&String> =
        columns.iter().flat_map(|column| column.settings.keys()).collect();
    names.sort();
    names.dedup();
    let differs = |name: &String| {
        columns.windows(2).any(|pair| pair[0].settings.get(name) != pair[1].settings.get(name))
    };
    let (different, same): (Vec<&String>, Vec<&String>) =
        names.into_iter().partition(|name| differs(name));
    html! {
        div.overview {
            section.broad {
                h2 { "Best " (metric) " over trials" }
                (plot("Best so far over trials", "trial", &curves(|column| &column.over_trials), words::number))
            }
            section.broad {
                h2 { "Best " (metric) " over time" }
                (plot("Best so far over time", "hours since the start", &curves(|column| &column.over_time), words::rate))
            }
        }
        h2 { "Settings" }
        (table(columns, &different, true))
        @if !same.is_empty() {
            details {
                summary { (same.len()) " identical settings" }
                (table(columns, &same, false))
            }
        }
    }
}

fn table(columns: &[ComparedExperiment], names: &[&String], with_results: bool) -> Markup {
    html! {
        div.scroll tabindex="0" role="region" aria-label=(if with_results { "Results and different settings" } else { "Identical settings" }) {
            table.compared {
                thead {
                    tr {
                        th scope="col" { span.hidden { "Setting" } }
                        @for (at, column) in columns.iter().enumerate() {
                            th scope="col" {
                                span class={ "mark c" (at % 8) } aria-hidden="true" {} " "
                                a href=(url(&format!("/e/{}/", column.entry.summary.id))) { (words::sanitize(&column.name)) }
                            }
                        }
                    }
                }
                tbody {
                    @if with_results { (results(columns)) }
                    @for name in names {
                        tr class=[with_results.then_some("differs")] {
                            th scope="row" { (words::sanitize(name)) }
                            @for column in columns {
                                td.wrap { @match column.settings.get(*name) { Some(value) => (words::sanitize(value)), None => small { "not set" } } }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn results(columns: &[ComparedExperiment]) -> Markup {
    html! {
        tr { th scope="row" { "State" } @for column in columns { td { (list::standing(&column.entry)) } } }
        tr { th scope="row" { "Best" } @for column in columns { td { @if let Some(best) = &column.entry.summary.best { strong { (words::number(best.value)) } " (trial " (best.sequence) ")" } } } }
        tr { th scope="row" { "Trials" } @for column in columns { td { (column.entry.summary.ended) @if column.entry.summary.failed > 0 { ", " (column.entry.summary.failed) " failed" } } } }
        tr { th scope="row" { "Running time" } @for column in columns { td { (words::span(column.entry.summary.elapsed_ms)) } } }
    }
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
