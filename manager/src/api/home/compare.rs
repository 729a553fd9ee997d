//! The comparison of experiments: the place of the plots, and tables of the results, the best parameters and the
//! settings that differ. Without a script, fixed plots show the best result over trials and over time.

use std::collections::BTreeMap;

use axum::extract::{RawQuery, State};
use axum::response::Response;
use maud::{Markup, html};
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use trial_protocol::{Direction, ExperimentId};

use super::super::Error;
use super::super::access::auth::User;
use super::super::portal::base::url;
use super::super::portal::plot::{StepCurve, plot};
use super::super::portal::{self, PageRefusal, Viewer, display, page as render_page};
use super::super::user::download::{FileFormat, FileQuery, attachment};
use super::catalog::CatalogEntry;
use super::{Home, list};
use crate::search::class_args::parse_direction;
use crate::view::curve::improvements;
use crate::view::export::{self, format_value};
use crate::view::{self, Snapshot};

/// The scripts that the page needs, which browsers load in advance.
const COMPARISON_SCRIPTS: [&str; 7] = [
    "points",
    "plots-compare",
    "plots-curves",
    "plots-frame",
    "plots-kinds",
    "plots-scale",
    "plots-surface",
];

/// The maximum number of experiments in a comparison.
const MAX_COMPARED: usize = 8;

/// An experiment of the comparison.
struct ComparedExperiment {
    entry: CatalogEntry,
    /// The experiment's name. If another experiment has the same name, the id is added.
    name: String,
    begun_ms: i64,
    /// The end of the experiment, or the present time.
    until_ms: i64,
    over_trials: StepCurve,
    /// The best result over the milliseconds since the start.
    over_time: StepCurve,
    settings: BTreeMap<String, String>,
    /// The parameters of the best trial, shortened.
    parameters: BTreeMap<String, String>,
    /// The same parameters in full.
    exact_parameters: BTreeMap<String, String>,
}

/// `GET /compare?experiment=a&experiment=b`: shows the comparison of experiments.
pub(super) async fn page(
    viewer: Viewer,
    State(home): State<Home>,
    RawQuery(query): RawQuery,
) -> Result<Response, PageRefusal> {
    let (_, ids) = read_selection(&query.unwrap_or_default())?;
    let (columns, unreadable) = read_columns(&home, &ids).await?;
    let content = html! {
        h1 { "Compare experiments" }
        @for problem in &unreadable { p.trouble { (display::sanitize(problem)) } }
        @if columns.is_empty() {
            p { "First select up to " (MAX_COMPARED) " experiments in " a href=(url("/")) { "the list" } "." }
        } @else {
            @if ids.len() > MAX_COMPARED { p.hint { "Showing the first " (MAX_COMPARED) " of " (ids.len()) " selected experiments." } }
            (comparability_warning(&columns))
            p.hint { "Download: " a href=(file_link(&columns, "csv")) download { "CSV" } ", " a href=(file_link(&columns, "json")) download { "JSON" } }
            (comparison(&columns))
        }
    };
    Ok(render_page(&viewer, "Compare", Some("comparison"), &content))
}

/// Returns the format of the file and the ids of the selected experiments.
fn read_selection(query: &str) -> Result<(FileFormat, Vec<String>), Error> {
    let FileQuery { format, selected, list: IgnoredAny } = FileQuery::read(query, "experiment")?;
    Ok((format, selected))
}

/// Returns the address of a file with the comparison.
fn file_link(columns: &[ComparedExperiment], format: &str) -> String {
    let ids = columns.iter().map(|column| format!("&experiment={}", column.entry.summary.id));
    let ids: String = ids.collect();
    url(&format!("/api/v1/experiments/comparison?format={format}{ids}"))
}

/// Reads the experiments. Also returns the problems of those that cannot be read.
async fn read_columns(
    home: &Home,
    ids: &[String],
) -> Result<(Vec<ComparedExperiment>, Vec<String>), Error> {
    let entries = home.0.catalog.refresh(home).await;
    let (mut columns, mut unreadable) = (Vec::new(), Vec::new());
    for id in ids.iter().take(MAX_COMPARED) {
        let id =
            ExperimentId::new(id.as_str()).map_err(|error| Error::BadRequest(error.to_string()))?;
        match read_column(home, &entries, &id).await {
            Ok(column) => columns.push(column),
            // The experiment may have been removed since its selection.
            Err(error) => unreadable.push(format!("{id}: {}", error.parts().2)),
        }
    }
    distinguish_names(&mut columns);
    Ok((columns, unreadable))
}

/// Returns a comparison of experiments as a file: their results, the parameters of their best trials, and their
/// settings
///
/// Only a home has this route. Compares up to eight experiments. A CSV file has a column for each of them.
#[utoipa::path(
    get, path = "/api/v1/experiments/comparison", tag = "home",
    params(
        ("experiment" = Vec<String>, Query, description = "the id of an experiment; once for each"),
        ("format" = Option<String>, Query, description = "`csv` (default) or `json`"),
    ),
    responses((status = 200, body = String, content_type = "text/csv"), (status = 400, description = "unknown format")),
)]
pub(in crate::api) async fn export(
    _: User,
    State(home): State<Home>,
    RawQuery(query): RawQuery,
) -> Result<Response, Error> {
    let (format, ids) = read_selection(&query.unwrap_or_default())?;
    let (columns, unreadable) = read_columns(&home, &ids).await?;
    if let Some(problem) = unreadable.first() {
        return Err(Error::BadRequest(problem.clone()));
    }
    let text = match format {
        FileFormat::Csv => table_of(&columns),
        FileFormat::Json => serde_json::to_string_pretty(&json_of(&columns)).unwrap_or_default(),
    };
    Ok(attachment("comparison", format, text))
}

/// The facts of the table of results, with their names.
fn result_facts(column: &ComparedExperiment) -> [(&'static str, Value); 8] {
    let summary = &column.entry.summary;
    let best = summary.best.as_ref();
    [
        ("state", json!(list::standing(&column.entry))),
        ("metric", json!(summary.metric)),
        ("optimize_mode", json!(summary.optimize_mode)),
        ("best", json!(best.map(|best| best.value))),
        ("best_trial", json!(best.map(|best| &best.id))),
        ("ended", json!(summary.ended)),
        ("failed", json!(summary.failed)),
        ("elapsed_ms", json!(summary.elapsed_ms)),
    ]
}

fn json_of(columns: &[ComparedExperiment]) -> Value {
    let member = |column: &ComparedExperiment| {
        let mut member = json!({
            "id": column.entry.summary.id, "name": column.name,
            "parameters": column.exact_parameters, "settings": column.settings,
        });
        if let Some(members) = member.as_object_mut() {
            members.extend(result_facts(column).map(|(name, value)| (name.to_owned(), value)));
        }
        member
    };
    columns.iter().map(member).collect()
}

/// Returns the comparison as a table with a column for each experiment.
fn table_of(columns: &[ComparedExperiment]) -> String {
    let row = |part: &str, name: &str, values: Vec<String>| -> Vec<String> {
        [part.to_owned(), name.to_owned()].into_iter().chain(values).collect()
    };
    let of = |value: &dyn Fn(&ComparedExperiment) -> String| columns.iter().map(value).collect();
    let mut rows = vec![
        row("part", "name", of(&|column| column.name.clone())),
        row("result", "id", of(&|column| column.entry.summary.id.clone())),
    ];
    let names = columns.first().map(result_facts).into_iter().flatten().map(|(name, _)| name);
    rows.extend(names.enumerate().map(|(at, name)| {
        row("result", name, of(&|column| format_value(&result_facts(column)[at].1)))
    }));
    let parts: [(&str, Members); 2] =
        [("parameter", |column| &column.exact_parameters), ("setting", |column| &column.settings)];
    for (part, members) in parts {
        let (different, same) = partition_members(columns, members);
        rows.extend(different.into_iter().chain(same).map(|name| {
            row(part, name, of(&|column| members(column).get(name).cloned().unwrap_or_default()))
        }));
    }
    export::csv_rows(rows.into_iter())
}

async fn read_column(
    home: &Home,
    entries: &[CatalogEntry],
    id: &ExperimentId,
) -> Result<ComparedExperiment, Error> {
    let open = home.experiment(id).await?;
    let entry = entries.iter().find(|entry| entry.summary.id == id.as_str()).cloned();
    let entry = entry.ok_or(Error::NotFound)?;
    let row = open.store.experiment().await?.ok_or(Error::NotFound)?;
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
    let (parameters, exact_parameters) = (of(display::brief), of(format_value));
    #[rustfmt::skip]
    let column = ComparedExperiment { entry, name, begun_ms, until_ms, over_trials, over_time, settings, parameters, exact_parameters };
    Ok(column)
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

fn comparability_warning(columns: &[ComparedExperiment]) -> Markup {
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

/// Renders the plots, which a script replaces by interactive ones, and the tables.
fn comparison(columns: &[ComparedExperiment]) -> Markup {
    html! {
        @for script in COMPARISON_SCRIPTS { link rel="modulepreload" href=(url(&format!("/assets/{script}.js"))); }
        span #comparison hidden data-live data-experiments=(script_data(columns).to_string()) {}
        (portal::plot_keys())
        div.plots {
            section.wide {
                h2 #histories-title { "Optimisation history" }
                figure.chart.plot data-plot="histories" aria-labelledby="histories-title" { (static_plots(columns)) }
            }
            (portal::plot_place("best-curves", "Intermediate results of the best trials", "wide", &html! {}))
        }
        div #tables data-live { (tables(columns)) }
    }
}

/// Returns the data that the script needs to fetch and draw the experiments.
fn script_data(columns: &[ComparedExperiment]) -> Value {
    let column = |column: &ComparedExperiment| {
        let ComparedExperiment { entry, name, begun_ms, until_ms, .. } = column;
        json!({
            "id": entry.summary.id, "name": name, "mode": entry.summary.optimize_mode, "metric": result_name(column),
            "begun": begun_ms, "until": until_ms, "runs": entry.is_running,
        })
    };
    columns.iter().map(column).collect()
}

/// Returns the name of the results.
fn result_name(column: &ComparedExperiment) -> String {
    display::sanitize(column.entry.summary.metric.as_deref().unwrap_or("result"))
}

/// Renders the plots for browsers without JavaScript.
fn static_plots(columns: &[ComparedExperiment]) -> Markup {
    let curves = |of: fn(&ComparedExperiment) -> &StepCurve, unit: f64| -> Vec<StepCurve> {
        let named = |column: &ComparedExperiment| {
            let StepCurve { points, until, .. } = of(column);
            let points = points.iter().map(|(place, value)| (place / unit, *value)).collect();
            StepCurve { name: column.name.clone(), points, until: until / unit }
        };
        columns.iter().map(named).collect()
    };
    let (unit, in_unit) = time_unit(columns.iter().map(|column| column.over_time.until));
    html! {
        div.plots {
            (plot("Best so far over trials", "trial", &curves(|column| &column.over_trials, 1.0), display::number))
            (plot("Best so far over time", &format!("{in_unit} since the start"), &curves(|column| &column.over_time, unit), display::rate))
        }
    }
}

/// Returns the unit of a time axis up to the longest of these times, in milliseconds, and its name.
fn time_unit(times: impl Iterator<Item = f64>) -> (f64, &'static str) {
    const TIME_UNITS: [(f64, &str); 4] =
        [(86_400e3, "days"), (3600e3, "hours"), (60e3, "minutes"), (1e3, "seconds")];
    let longest = times.fold(0.0, f64::max);
    TIME_UNITS.into_iter().find(|(unit, _)| longest >= 2.0 * unit).unwrap_or(TIME_UNITS[3])
}

/// A function that returns a group of an experiment's members.
type Members = fn(&ComparedExperiment) -> &BTreeMap<String, String>;

/// Returns the names of all members, those with different values first.
fn partition_members(columns: &[ComparedExperiment], of: Members) -> (Vec<&String>, Vec<&String>) {
    let mut names: Vec<&String> = columns.iter().flat_map(|column| of(column).keys()).collect();
    names.sort();
    names.dedup();
    let differs = |name: &&String| {
        columns.windows(2).any(|pair| of(&pair[0]).get(*name) != of(&pair[1]).get(*name))
    };
    names.into_iter().partition(differs)
}

fn tables(columns: &[ComparedExperiment]) -> Markup {
    let (different, same) = partition_members(columns, |column| &column.settings);
    let (mut parameters, equal) = partition_members(columns, |column| &column.parameters);
    parameters.extend(equal);
    html! {
        h2 { "Results" }
        (table(columns, "Results", &result_rows(columns)))
        @if !parameters.is_empty() {
            h2 { "Parameters of the best trial" }
            (table(columns, "Parameters of the best trial", &member_rows(columns, &parameters, false, |column| &column.parameters)))
        }
        h2 { "Settings" }
        @if different.is_empty() { p { "All settings are identical." } } @else {
            (table(columns, "Different settings", &member_rows(columns, &different, true, |column| &column.settings)))
        }
        @if !same.is_empty() {
            details {
                summary { (same.len()) @if same.len() == 1 { " identical setting" } @else { " identical settings" } }
                (table(columns, "Identical settings", &member_rows(columns, &same, false, |column| &column.settings)))
            }
        }
    }
}

/// Renders a table with a column for each experiment.
fn table(columns: &[ComparedExperiment], title: &str, rows: &Markup) -> Markup {
    html! {
        div.scroll tabindex="0" role="region" aria-label=(title) {
            table.compared {
                thead {
                    tr {
                        th scope="col" { span.hidden { "Name" } }
                        @for (at, column) in columns.iter().enumerate() {
                            th scope="col" {
                                span class={ "mark c" (at % 8) } aria-hidden="true" {}
                                a href=(url(&format!("/e/{}/", column.entry.summary.id))) { (display::sanitize(&column.name)) }
                            }
                        }
                    }
                }
                tbody { (rows) }
            }
        }
    }
}

fn member_rows(
    columns: &[ComparedExperiment],
    names: &[&String],
    are_different: bool,
    of: Members,
) -> Markup {
    html! {
        @for name in names {
            tr class=[are_different.then_some("differs")] {
                th scope="row" { (display::sanitize(name)) }
                @for column in columns {
                    td.wrap { @match of(column).get(*name) { Some(value) => (display::sanitize(value)), None => small { "not set" } } }
                }
            }
        }
    }
}

/// Returns the name of the results of all experiments.
fn result_names(columns: &[ComparedExperiment]) -> String {
    let first = columns.first().map(result_name).unwrap_or_default();
    if columns.iter().all(|column| result_name(column) == first) {
        first
    } else {
        "result".to_owned()
    }
}

fn best_cell(column: &ComparedExperiment) -> Markup {
    let summary = &column.entry.summary;
    html! {
        @if let Some(best) = &summary.best {
            strong { (display::number(best.value)) } ", "
            a href=(url(&format!("/e/{}/trials/{}", summary.id, best.id))) { "trial " (best.sequence) }
        } @else { small { "none yet" } }
    }
}

fn result_rows(columns: &[ComparedExperiment]) -> Markup {
    html! {
        tr { th scope="row" { "State" } @for column in columns { td { (list::standing(&column.entry)) } } }
        tr { th scope="row" { "Best " (result_names(columns)) } @for column in columns { td { (best_cell(column)) } } }
        tr { th scope="row" { "Trials" } @for column in columns { td { (column.entry.summary.ended) @if column.entry.summary.failed > 0 { ", " (column.entry.summary.failed) " failed" } } } }
        tr { th scope="row" { "Run time" } @for column in columns { td { (display::span(column.entry.summary.elapsed_ms)) } } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_axis_has_the_largest_unit_that_gives_several_ticks() {
        let table = [
            (0.0, "seconds"),
            (90e3, "seconds"),
            (300e3, "minutes"),
            (8e6, "hours"),
            (3e8, "days"),
        ];
        for (longest, expected) in table {
            assert_eq!(time_unit([1.0, longest].into_iter()).1, expected, "{longest}");
        }
    }

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
