//! All trials in columns, for charts.

use std::collections::HashMap;

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use trial_protocol::MetricValue;
use utoipa::{IntoParams, ToSchema};

use super::super::access::auth::User;
use super::super::{Error, Shared};
use super::experiment::{axes, final_result, improvements_of, present_view, provisional_result};
use super::query_extractor::CheckedQuery;
use crate::job_state::JobState;
use crate::search::repeats::Estimate;
use crate::view::attempts::AttemptSpan;
use crate::view::curve::Improvement;
use crate::view::pareto::{ObjectiveView, value_of};
use crate::view::space::ParameterAxis;
use crate::view::{self, Snapshot, TrialSummary};

/// The maximum number of columns for parameters. A chart has as many axes.
const MAX_PARAMETER_COLUMNS: usize = 40;

/// The columns that a response contains only if the request names them.
const OPTIONAL_COLUMNS: [&str; 9] =
    ["created", "started", "ended", "cause", "latest", "host", "attempts", "space", "objectives"];

/// The requested columns.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(in crate::api) struct PointsQuery {
    /// Additional columns, separated by commas: any of `created`, `started`, `ended`, `cause`, `latest`, `host`,
    /// `attempts`, `space`, `objectives`.
    columns: Option<String>,
}

/// All trials in columns, for charts. The same position in each column belongs to the same trial.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::api) struct Points {
    /// The positions in the experiment.
    sequence: Vec<u64>,
    /// The ids.
    id: Vec<String>,
    /// The states.
    state: Vec<&'static str>,
    /// The final results of succeeded trials as numbers; null if there is none, or none that is finite.
    #[serde(rename = "final")]
    last: Vec<Option<f64>>,
    /// A column for each of the first 40 parameters, in the order in which trials have them. Numbers have six digits.
    /// A value is null if the trial has no such parameter.
    #[schema(value_type = Object)]
    parameters: Map<String, Value>,
    /// The means of the complete points, if points are repeated: the number with which each trial competes for the
    /// best. Null if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    means: Option<Vec<Option<f64>>>,
    /// The results that were better than all before them, or the means if points are repeated.
    improvements: Vec<Improvement>,
    /// The number of the newest change in this response.
    change: i64,
    /// The requested additional columns.
    #[serde(flatten)]
    more: OptionalColumns,
}

/// Columns that only a request for them returns. Times are in milliseconds since the Unix epoch.
#[derive(Debug, Default, Serialize, ToSchema)]
struct OptionalColumns {
    /// The time at which each trial was recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    created: Option<Vec<i64>>,
    /// The time at which its current attempt started to run; null if it has not.
    #[serde(skip_serializing_if = "Option::is_none")]
    started: Option<Vec<Option<i64>>>,
    /// The time at which it ended; null if it has not.
    #[serde(skip_serializing_if = "Option::is_none")]
    ended: Option<Vec<Option<i64>>>,
    /// The cause of its end, such as `oom-cuda`; null without a verdict.
    #[serde(skip_serializing_if = "Option::is_none")]
    cause: Option<Vec<Option<String>>>,
    /// The latest result of trials that have not succeeded: running, stopped early or failed. Null if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    latest: Option<Vec<Option<f64>>>,
    /// The machine or pod of the latest attempt that ran; null if none is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    host: Option<Vec<Option<String>>>,
    /// The number of attempts.
    #[serde(skip_serializing_if = "Option::is_none")]
    attempts: Option<Vec<u32>>,
    /// The parameters of the search space, in its order.
    #[serde(skip_serializing_if = "Option::is_none")]
    space: Option<Vec<ParameterAxis>>,
    /// The objectives of an experiment with several objectives; otherwise empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    objectives: Option<Vec<ObjectiveColumn>>,
}

/// One of several objectives, with its values.
#[derive(Debug, Serialize, ToSchema)]
struct ObjectiveColumn {
    #[serde(flatten)]
    objective: ObjectiveView,
    /// The values of succeeded trials; null if there is none, or none that is finite.
    values: Vec<Option<f64>>,
}

/// Returns the column of an objective.
fn objective_column(snapshot: &Snapshot, objective: ObjectiveView) -> ObjectiveColumn {
    let value = |trial: &TrialSummary| {
        let last = trial.final_value.as_ref().filter(|_| trial.state == JobState::Succeeded);
        let number = MetricValue::from(value_of(last, &objective.metric)?).number();
        number.filter(|number| number.is_finite())
    };
    let values = snapshot.trials.iter().map(|trial| value(trial)).collect();
    ObjectiveColumn { objective, values }
}

/// Rounds a value to the precision of a chart.
fn round_value(value: &Value) -> Value {
    let text = value.as_f64().filter(|_| value.is_f64()).map(|number| format!("{number:.5e}"));
    let number = text.and_then(|text| text.parse::<f64>().ok());
    number.map_or_else(|| value.clone(), Value::from)
}

fn points(snapshot: &Snapshot, maximize: bool, more: OptionalColumns) -> Points {
    let trials = &snapshot.trials;
    let mut parameters = Map::new();
    for (at, trial) in trials.iter().enumerate() {
        for (name, value) in view::flatten_parameters(&trial.parameters) {
            if parameters.len() >= MAX_PARAMETER_COLUMNS && !parameters.contains_key(&name) {
                continue;
            }
            let empty = || Value::Array(vec![Value::Null; trials.len()]);
            if let Value::Array(column) = parameters.entry(name).or_insert_with(empty) {
                column[at] = round_value(value);
            }
        }
    }
    Points {
        sequence: trials.iter().map(|trial| trial.sequence).collect(),
        id: trials.iter().map(|trial| trial.id.clone()).collect(),
        state: trials.iter().map(|trial| trial.state.as_str()).collect(),
        last: trials.iter().map(|trial| final_result(trial)).collect(),
        parameters,
        means: (snapshot.repeats > 1).then(|| trials.iter().map(|trial| mean(trial)).collect()),
        improvements: improvements_of(snapshot, maximize),
        change: snapshot.through,
        more,
    }
}

/// Returns the mean of a trial's point, once the point is complete.
fn mean(trial: &TrialSummary) -> Option<f64> {
    trial.estimate.filter(Estimate::is_complete).map(|estimate| estimate.mean)
}

/// Returns the names of the columns in a query.
fn column_names(query: &PointsQuery) -> Result<Vec<&str>, Error> {
    let words = query.columns.as_deref().unwrap_or_default().split(',').map(str::trim);
    let names: Vec<_> = words.filter(|word| !word.is_empty()).collect();
    match names.iter().find(|name| !OPTIONAL_COLUMNS.contains(name)) {
        None => Ok(names),
        Some(other) => Err(Error::BadRequest(format!(
            "columns: unknown column {other:?}; the columns are {}",
            OPTIONAL_COLUMNS.join(", ")
        ))),
    }
}

/// Returns a column with a value of each trial, if the request names it.
fn column_if_requested<T>(
    wanted: bool,
    snapshot: &Snapshot,
    of: impl Fn(&TrialSummary) -> T,
) -> Option<Vec<T>> {
    wanted.then(|| snapshot.trials.iter().map(|trial| of(trial)).collect())
}

async fn optional_columns(
    shared: &Shared,
    snapshot: &Snapshot,
    names: &[&str],
    objectives: Vec<ObjectiveView>,
) -> Result<OptionalColumns, Error> {
    let has = |name: &str| names.contains(&name);
    let spans = if has("host") || has("attempts") {
        super::timeline::spans(shared, snapshot).await?
    } else {
        Vec::new()
    };
    let mut last: HashMap<u64, AttemptSpan> = HashMap::new();
    for mut span in spans {
        let before = last.remove(&span.sequence);
        span.host = span.host.or(before.and_then(|before| before.host));
        last.insert(span.sequence, span);
    }
    let host = |trial: &TrialSummary| last.get(&trial.sequence).and_then(|span| span.host.clone());
    let attempts = |trial: &TrialSummary| last.get(&trial.sequence).map_or(0, |span| span.number);
    Ok(OptionalColumns {
        created: column_if_requested(has("created"), snapshot, |trial| trial.created_at_ms),
        started: column_if_requested(has("started"), snapshot, |trial| trial.started_at_ms),
        ended: column_if_requested(has("ended"), snapshot, |trial| trial.ended_at_ms),
        cause: column_if_requested(has("cause"), snapshot, |trial| trial.cause.clone()),
        latest: column_if_requested(has("latest"), snapshot, provisional_result),
        host: column_if_requested(has("host"), snapshot, host),
        attempts: column_if_requested(has("attempts"), snapshot, attempts),
        space: if has("space") { Some(axes(shared).await?) } else { None },
        objectives: has("objectives")
            .then(|| objectives.into_iter().map(|one| objective_column(snapshot, one)).collect()),
    })
}

/// Returns all trials in columns, for charts
#[utoipa::path(
    get, path = "/api/v1/experiment/points", tag = "experiment", params(PointsQuery),
    responses((status = 200, body = Points)),
)]
pub(super) async fn points_route(
    _: User,
    State(shared): State<Shared>,
    CheckedQuery(query): CheckedQuery<PointsQuery>,
) -> Result<Json<Points>, Error> {
    let names = column_names(&query)?;
    let snapshot = shared.state.trial_cache.refresh().await?;
    let shown = present_view(&shared, &snapshot).await?;
    let maximize = shown.optimize_mode == "maximize";
    let more = optional_columns(&shared, &snapshot, &names, shown.objectives).await?;
    Ok(Json(points(&snapshot, maximize, more)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn numbers_are_rounded_to_the_precision_of_a_chart() {
        let table = [
            (json!(0.123_456_789), json!(0.123_457)),
            (json!(-1.234_567_89e-9), json!(-1.234_57e-9)),
            (json!(123_456_789), json!(123_456_789)),
            (json!(32.0), json!(32.0)),
            (json!("relu"), json!("relu")),
        ];
        for (value, shown) in table {
            assert_eq!(round_value(&value), shown);
        }
    }
}
