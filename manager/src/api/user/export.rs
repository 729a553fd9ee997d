//! All trials in a form for other programs, as `experiment export` writes it.

use std::collections::{BTreeMap, HashSet};

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::{RawQuery, State};
use axum::response::Response;
use futures_util::StreamExt as _;
use serde_json::Value;
use trial_protocol::TrialJobId;

use super::super::access::auth::User;
use super::super::{Error, Shared};
use super::download::{FileFormat, FileQuery, attachment};
use super::trials::{ListQuery, ValuesQuery, metric_page, table_query};
use crate::view::Snapshot;
use crate::view::export::{json_entry, trials_csv};
use crate::view::origin::{self, TrialOrigin};
use crate::view::table;

/// The number of metrics that are read at once.
const METRICS_PER_READ: u32 = 10_000;

/// Returns the machine, the training service and the code of each trial
///
/// Trials for which none of these is known are omitted.
#[utoipa::path(
    get, path = "/api/v1/experiment/origins", tag = "experiment",
    responses((status = 200, body = BTreeMap<String, TrialOrigin>)),
)]
pub(super) async fn origins(
    _: User,
    State(shared): State<Shared>,
) -> Result<Json<BTreeMap<String, TrialOrigin>>, Error> {
    let snapshot = shared.state.trial_cache.refresh().await?;
    Ok(Json(origins_of(&shared, &snapshot).await?))
}

async fn origins_of(
    shared: &Shared,
    snapshot: &Snapshot,
) -> Result<BTreeMap<String, TrialOrigin>, Error> {
    let store = &shared.state.store;
    let (hosts, codes) =
        (store.queries().attempt_hosts().await?, store.attempt_records().all_codes().await?);
    Ok(origin::origins(snapshot, &hosts, &store.attempt_records().all_parts().await?, &codes))
}

/// Returns trials with their results, as a file
///
/// CSV has a line for each trial. JSON also has every metric, and `experiment import` reads it.
#[utoipa::path(
    get, path = "/api/v1/experiment/export", tag = "experiment",
    params(
        ("format" = Option<String>, Query, description = "`csv` (default) or `json`"),
        ("trial" = Option<String>, Query, description = "only this trial; may occur several times"),
        ("filter" = Option<String>, Query, description = "only trials that match an expression, as in the list of trials; `state`, `cause`, `q`, `sort` and `order` work as in the list, too"),
    ),
    responses((status = 200, body = String, content_type = "text/csv"), (status = 400, description = "unknown format")),
)]
pub(super) async fn export(
    _: User,
    State(shared): State<Shared>,
    RawQuery(query): RawQuery,
) -> Result<Response, Error> {
    let FileQuery { format, selected, list: query } =
        FileQuery::<ListQuery>::read(&query.unwrap_or_default(), "trial")?;
    let selected: HashSet<_> = selected.iter().map(String::as_str).collect();
    let snapshot = shared.state.trial_cache.refresh().await?;
    let now_ms = shared.state.clock.now_ms();
    let listed = table::page(&snapshot.trials, &table_query(&query)?, None, usize::MAX, now_ms)
        .map_err(|error| Error::BadRequest(error.to_string()))?;
    let is_selected = |id: &str| selected.is_empty() || selected.contains(id);
    let trials = listed.rows.into_iter().filter(|trial| is_selected(&trial.id));
    let origins = origins_of(&shared, &snapshot).await?;
    let trials = trials.map(|trial| {
        let mut value = serde_json::to_value(trial).unwrap_or_default();
        if let Some(origin) = origins.get(&trial.id) {
            origin.add_to(&mut value);
        }
        value
    });
    let trials: Vec<Value> = trials.collect();
    let experiment =
        shared.state.server_info.folder.file_name().unwrap_or_default().to_string_lossy();
    let name = match trials.as_slice() {
        [one] if !selected.is_empty() => format!("{experiment}-trial-{}", one["sequence"]),
        _ => experiment.into_owned(),
    };
    let body = match format {
        FileFormat::Csv => Body::from(trials_csv(&trials)),
        FileFormat::Json => Body::from_stream(stream_json(shared, trials)),
    };
    Ok(attachment(&name, format, body))
}

/// Returns the trials with their metrics as pieces of a JSON list. Only one trial is in memory at a time.
fn stream_json(
    shared: Shared,
    trials: Vec<Value>,
) -> impl futures_util::Stream<Item = std::io::Result<Bytes>> {
    let none = trials.is_empty();
    let entries = futures_util::stream::iter(trials.into_iter().enumerate());
    let entries = entries.then(move |(place, trial)| {
        let shared = shared.clone();
        async move {
            let before = if place == 0 { "[\n" } else { ",\n" };
            let metrics = read_metrics(&shared, &trial).await;
            let metrics = metrics.map_err(|error| std::io::Error::other(error.parts().2))?;
            Ok(Bytes::from(format!("{before}{}", json_entry(&trial, &metrics))))
        }
    });
    let end = if none { "[]\n" } else { "\n]\n" };
    entries.chain(futures_util::stream::once(async move { Ok(Bytes::from(end)) }))
}

async fn read_metrics(shared: &Shared, trial: &Value) -> Result<Vec<Value>, Error> {
    let id = trial.get("id").and_then(Value::as_str).unwrap_or_default();
    let id = TrialJobId::new(id).map_err(|error| Error::BadRequest(error.to_string()))?;
    let (mut all, mut after) = (Vec::new(), None);
    loop {
        let page = metric_page(shared, &id, &ValuesQuery::page(after, METRICS_PER_READ)).await?;
        let values = page.metrics.into_iter();
        all.extend(values.map(|metric| serde_json::to_value(metric).unwrap_or_default()));
        match page.next.and_then(|next| i64::try_from(next).ok()) {
            Some(next) => after = Some(next),
            None => return Ok(all),
        }
    }
}
