//! The experiment as a whole: its numbers, its configuration, and columns for charts.

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::super::auth::User;
use super::super::{Error, Shared};
use crate::config;
use crate::job_state::JobState;
use crate::search::tuner::OptimizeMode;
use crate::util::errors::chain;
use crate::util::layout::PACKAGES_FILE;
use crate::view::curve::{Improvement, improvements};
use crate::view::importance::{self, Importance};
use crate::view::{self, ExperimentView, Snapshot};

/// The most versions of the code that are shown.
const VERSIONS: u32 = 20;

/// Returns the view of the experiment as of now.
pub(in crate::api) async fn shown(
    shared: &Shared,
    snapshot: &Snapshot,
) -> Result<ExperimentView, Error> {
    let state = &shared.state;
    let row = state.store.experiment().await?.ok_or(Error::NotFound)?;
    let spec = config::from_canonical(&row.canonical)
        .map_err(|error| Error::Unwritable(error.to_string()))?;
    let running = state.handle.elapsed().filter(|_| row.ended_at_ms.is_none());
    let elapsed = running
        .map_or(row.elapsed_ms, |elapsed| u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX));
    let versions = state.store.code_versions(VERSIONS).await?;
    let now_ms = state.clock.now_ms();
    let shown = view::experiment(&row, &spec, snapshot, &versions, elapsed, now_ms);
    let left = if running.is_some() { None } else { view::left(&row, state.store.has_writer()) };
    // What the store cannot record cannot be read from it either.
    let ill = state.store.write_error().map(|error| {
        format!("{}: no trial is started or ended until that is mended", chain(&error))
    });
    let packages = state.place.folder.join(PACKAGES_FILE);
    let packages = packages.is_file().then(|| packages.display().to_string());
    Ok(ExperimentView { trouble: left.or(ill).or(shown.trouble), packages_file: packages, ..shown })
}

/// The experiment that this manager serves
#[utoipa::path(
    get, path = "/api/v1/experiment", tag = "experiment",
    responses((status = 200, body = ExperimentView)),
)]
pub(super) async fn experiment(
    _: User,
    State(shared): State<Shared>,
) -> Result<Json<ExperimentView>, Error> {
    let snapshot = shared.state.board.refresh().await?;
    Ok(Json(shown(&shared, &snapshot).await?))
}

/// Its configuration, checked and complete, without secrets
#[utoipa::path(
    get, path = "/api/v1/experiment/configuration", tag = "experiment",
    responses((status = 200, body = Object)),
)]
pub(super) async fn configuration(
    _: User,
    State(shared): State<Shared>,
) -> Result<Json<Value>, Error> {
    let row = shared.state.store.experiment().await?.ok_or(Error::NotFound)?;
    Ok(Json(view::without_secrets(&row.canonical)))
}

/// All trials in columns, for charts: the same place in each column is the same trial.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::api) struct Points {
    /// Positions in the experiment.
    pub(in crate::api) sequence: Vec<u64>,
    /// Ids.
    pub(in crate::api) id: Vec<String>,
    /// States.
    pub(in crate::api) state: Vec<&'static str>,
    /// Final results of succeeded trials as numbers; null where there is none, or none that is finite.
    #[serde(rename = "final")]
    pub(in crate::api) last: Vec<Option<f64>>,
    /// A column for each of the first 40 parameters, in the order in which trials have them, numbers to six digits; null where a
    /// trial has no such parameter.
    #[schema(value_type = Object)]
    pub(in crate::api) parameters: Map<String, Value>,
    /// Results that were better than all before them.
    pub(in crate::api) improvements: Vec<Improvement>,
    /// The number of the newest change that is in.
    pub(in crate::api) change: i64,
}

/// Columns of parameters: as many as a chart has axes for.
const COLUMNS: usize = 40;

/// A value as finely as a chart shows it.
fn seen(value: &Value) -> Value {
    let rounded = value.as_f64().filter(|_| value.is_f64()).map(|number| format!("{number:.5e}"));
    let rounded = rounded.and_then(|text| text.parse::<f64>().ok());
    rounded.map_or_else(|| value.clone(), Value::from)
}

/// All trials in columns.
pub(in crate::api) fn points(snapshot: &Snapshot, maximize: bool) -> Points {
    let trials = &snapshot.trials;
    let mut parameters = Map::new();
    for (at, trial) in trials.iter().enumerate() {
        for (name, value) in view::flat(&trial.parameters) {
            if parameters.len() >= COLUMNS && !parameters.contains_key(&name) {
                continue;
            }
            let empty = || Value::Array(vec![Value::Null; trials.len()]);
            if let Value::Array(column) = parameters.entry(name).or_insert_with(empty) {
                column[at] = seen(value);
            }
        }
    }
    Points {
        sequence: trials.iter().map(|trial| trial.sequence).collect(),
        id: trials.iter().map(|trial| trial.id.clone()).collect(),
        state: trials.iter().map(|trial| trial.state.as_str()).collect(),
        last: trials.iter().map(|trial| result(trial)).collect(),
        parameters,
        improvements: improvements_of(snapshot, maximize),
        change: snapshot.through,
    }
}

fn result(trial: &view::TrialSummary) -> Option<f64> {
    trial.number().filter(|number| trial.state == JobState::Succeeded && number.is_finite())
}

/// Every result that was better than all before it.
pub(in crate::api) fn improvements_of(snapshot: &Snapshot, maximize: bool) -> Vec<Improvement> {
    let trials = snapshot.trials.iter();
    let results = trials.filter_map(|trial| Some((trial.sequence, result(trial)?)));
    improvements(results, if maximize { OptimizeMode::Maximize } else { OptimizeMode::Minimize })
}

/// All trials in columns, for charts
#[utoipa::path(
    get, path = "/api/v1/experiment/points", tag = "experiment",
    responses((status = 200, body = Points)),
)]
pub(super) async fn points_route(
    _: User,
    State(shared): State<Shared>,
) -> Result<Json<Points>, Error> {
    let snapshot = shared.state.board.refresh().await?;
    let maximize = shown(&shared, &snapshot).await?.optimize_mode == "maximize";
    Ok(Json(points(&snapshot, maximize)))
}

/// Returns the share of the spread of the results that each parameter explains by itself
///
/// Empty with fewer than eight results. What two parameters do only together is not seen.
#[utoipa::path(
    get, path = "/api/v1/experiment/importance", tag = "experiment",
    responses((status = 200, body = Vec<Importance>)),
)]
pub(super) async fn importance(
    _: User,
    State(shared): State<Shared>,
) -> Result<Json<Vec<Importance>>, Error> {
    let snapshot = shared.state.board.refresh().await?;
    Ok(Json(parameter_importance(&snapshot)))
}

/// The importance of each parameter among the succeeded trials.
pub(in crate::api) fn parameter_importance(snapshot: &Snapshot) -> Vec<Importance> {
    let succeeded = snapshot.trials.iter().filter(|trial| trial.state == JobState::Succeeded);
    let results: Vec<_> = succeeded
        .filter_map(|trial| Some((view::flat(&trial.parameters), trial.number()?)))
        .collect();
    importance::importance(&results)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_chart_is_given_what_can_be_seen() {
        let table = [
            (json!(0.123_456_789), json!(0.123_457)),
            (json!(-1.234_567_89e-9), json!(-1.234_57e-9)),
            (json!(123_456_789), json!(123_456_789)),
            (json!(32.0), json!(32.0)),
            (json!("relu"), json!("relu")),
        ];
        for (value, shown) in table {
            assert_eq!(seen(&value), shown);
        }
    }
}
