//! Trials: a page of the list, one trial with all that explains it, its curves and its samples.

use std::collections::HashMap;

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use trial_protocol::{MetricKind, TrialJobId};
use utoipa::{IntoParams, ToSchema};

use super::super::auth::User;
use super::super::{Error, Shared};
use super::query_extractor::{CheckedQuery, TrialPath, bounded};
use crate::experiment::result::value_of;
use crate::job_state::JobState;
use crate::store::{AttemptRow, MetricRow, ReportRow};
use crate::view::curve::Thinner;
use crate::view::filter::Filter;
use crate::view::table::{self, Column, TableQuery};
use crate::view::{self, TrialDetail, TrialSummary};

/// Rows on a page unless asked otherwise, and at most.
const ROWS: (u32, u32) = (100, 1000);
/// Metrics or samples on a page unless asked otherwise, and at most.
const VALUES: (u32, u32) = (1000, 10_000);
/// Values that a thinned curve is made from at a time.
const CHUNK: u32 = 10_000;

/// Which trials.
#[derive(Debug, Clone, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(in crate::api) struct ListQuery {
    /// Only these states, such as `RUNNING,FAILED`.
    pub(in crate::api) state: Option<String>,
    /// Only trials whose verdict has this cause, such as `oom-cuda`; `unknown`: those without a verdict.
    pub(in crate::api) cause: Option<String>,
    /// Only trials whose id, parameters, message or cause hold this text.
    pub(in crate::api) q: Option<String>,
    /// Only trials that an expression chooses, such as `lr < 0.01 and activation == "relu"`. Names are those of parameters,
    /// the metric's own, `number`, `id`, `state`, `cause`, `duration` (in seconds, or with a unit: `10m`), `final`, `latest`, `step`.
    pub(in crate::api) filter: Option<String>,
    /// `sequence` (default), `id`, `state`, `final`, `latest`, `started`, `ended`, `duration`, or
    /// `parameters.NAME`.
    pub(in crate::api) sort: Option<String>,
    /// `asc` (default) or `desc`. Trials without a value come last.
    pub(in crate::api) order: Option<String>,
    /// Trials on the page, 1 to 1000; 100 by default.
    #[param(minimum = 1, maximum = 1000)]
    pub(in crate::api) limit: Option<u32>,
    /// `next` of the page before.
    pub(in crate::api) cursor: Option<String>,
}

/// A page of trials.
#[derive(Debug, Default, Serialize, ToSchema)]
pub(in crate::api) struct TrialPage {
    /// The trials on it.
    pub(in crate::api) trials: Vec<TrialSummary>,
    /// Trials on all pages together.
    pub(in crate::api) total: usize,
    /// The next page's cursor. Absence means that this is the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::api) next: Option<String>,
    /// Which page it is, from 1.
    pub(in crate::api) page: usize,
    /// Pages.
    pub(in crate::api) pages: usize,
}

/// Checks which trials the request names, and in which order.
pub(super) fn wanted(query: &ListQuery) -> Result<TableQuery, Error> {
    let bad = |problem: String| Error::BadRequest(problem);
    let words = query.state.as_deref().unwrap_or_default().split(',').map(str::trim);
    let states = words.filter(|word| !word.is_empty()).map(str::parse::<JobState>);
    let states = states
        .collect::<Result<_, _>>()
        .map_err(|error| bad(format!("state: {error}; there are {}", JobState::words())))?;
    let sort = query.sort.as_deref().filter(|word| !word.is_empty()).unwrap_or("sequence");
    let by = Column::parse(sort)
        .ok_or_else(|| bad(format!("sort is {sort:?}; one can sort by {}", Column::WORDS)))?;
    let descending = match query.order.as_deref() {
        None | Some("asc" | "") => false,
        Some("desc") => true,
        Some(other) => return Err(bad(format!("order is {other:?}; asc or desc is possible"))),
    };
    let text = query.q.clone().filter(|text| !text.is_empty());
    let cause = query.cause.clone().filter(|cause| !cause.is_empty());
    let filter = query.filter.as_deref().filter(|text| !text.trim().is_empty());
    let filter = filter.map(Filter::parse).transpose();
    let filter = filter.map_err(|error| bad(format!("filter: {error}")))?;
    Ok(TableQuery { states, cause, text, filter, by, descending })
}

/// The page that the request names.
pub(in crate::api) async fn page(shared: &Shared, query: &ListQuery) -> Result<TrialPage, Error> {
    let wanted = wanted(query)?;
    let limit = bounded("limit", query.limit, ROWS.0, ROWS.1)?;
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let snapshot = shared.state.board.refresh().await?;
    let now_ms = shared.state.clock.now_ms();
    let cursor = query.cursor.as_deref().filter(|cursor| !cursor.is_empty());
    let page = table::page(&snapshot.trials, &wanted, cursor, limit, now_ms)
        .map_err(|error| Error::BadRequest(error.to_string()))?;
    let trials = page.rows.into_iter().cloned().collect();
    let (at, pages) = (page.first.div_ceil(limit) + 1, page.total.div_ceil(limit).max(1));
    Ok(TrialPage { trials, total: page.total, next: page.next, page: at, pages })
}

/// Trials, filtered, sorted, a page at a time
#[utoipa::path(
    get, path = "/api/v1/trials", tag = "trials", params(ListQuery),
    responses((status = 200, body = TrialPage), (status = 400, description = "a filter or the cursor cannot be read")),
)]
pub(super) async fn list(
    _: User,
    State(shared): State<Shared>,
    CheckedQuery(query): CheckedQuery<ListQuery>,
) -> Result<Json<TrialPage>, Error> {
    Ok(Json(page(&shared, &query).await?))
}

/// One trial: parameters, attempts, timeline, verdict with its evidence
#[utoipa::path(
    get, path = "/api/v1/trials/{trial}", tag = "trials", params(("trial", description = "the trial's id")),
    responses((status = 200, body = TrialDetail), (status = 404, description = "no such trial")),
)]
pub(super) async fn one(
    _: User,
    State(shared): State<Shared>,
    TrialPath(id): TrialPath,
) -> Result<Json<TrialDetail>, Error> {
    let state = &shared.state;
    let detail = view::detail(&state.board, &state.store, &id).await?;
    Ok(Json(detail.ok_or(Error::UnknownTrial(id))?))
}

/// Which attempt's values.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(in crate::api) struct ValuesQuery {
    /// Which attempt; the current one by default, of metrics `ATTEMPT-legacy` where an old keeper reports them.
    attempt: Option<String>,
    /// Only metrics of this name.
    name: Option<String>,
    /// Only `intermediate` or `final` metrics.
    r#type: Option<String>,
    /// Only what came after this `seq`.
    after: Option<i64>,
    /// Values on the page, 1 to 10000; 1000 by default.
    #[param(minimum = 1, maximum = 10000)]
    limit: Option<u32>,
    /// Instead of a page: the whole curve of each metric, thinned to about so many points, 4 to 10000.
    #[param(minimum = 1, maximum = 10000)]
    points: Option<u32>,
}

impl ValuesQuery {
    /// The page of at most `limit` values that came after `after`.
    pub(in crate::api) fn page(after: Option<i64>, limit: u32) -> Self {
        Self { after, limit: Some(limit), ..Self::default() }
    }

    /// Whole curves of about so many points.
    pub(in crate::api) fn thinned(points: u32) -> Self {
        Self { points: Some(points), ..Self::default() }
    }

    /// The curves of intermediate results, of about so many points.
    pub(super) fn intermediate(points: u32) -> Self {
        Self { r#type: Some("intermediate".to_owned()), ..Self::thinned(points) }
    }
}

/// One value of one metric.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(in crate::api) struct MetricView {
    /// Its position among the attempt's facts.
    pub(in crate::api) seq: u64,
    /// The name of the metric.
    pub(in crate::api) name: String,
    /// `intermediate` or `final`.
    pub(in crate::api) r#type: MetricWord,
    /// Which step, from 0.
    pub(in crate::api) step: u64,
    /// The value as reported; `"NaN"`, `"Infinity"` and `"-Infinity"` stand for what JSON lacks.
    pub(in crate::api) value: Value,
    /// When, in milliseconds since the Unix epoch, by the agent's clock.
    pub(in crate::api) observed_at_ms: i64,
}

/// Says whether a value is one step's or the whole trial's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(in crate::api) enum MetricWord {
    /// A value of one step.
    Intermediate,
    /// The result of the trial.
    Final,
}

impl MetricView {
    /// Returns whether it speaks of the whole trial.
    pub(in crate::api) fn is_final(&self) -> bool {
        self.r#type == MetricWord::Final
    }
}

impl From<MetricRow> for MetricView {
    fn from(row: MetricRow) -> Self {
        Self {
            seq: row.seq,
            name: row.metric.name,
            r#type: match row.metric.kind {
                MetricKind::Intermediate => MetricWord::Intermediate,
                MetricKind::Final => MetricWord::Final,
            },
            step: row.metric.sequence,
            value: row.metric.value.as_json().clone(),
            observed_at_ms: row.observed_at_ms,
        }
    }
}

/// Metrics of one attempt.
#[derive(Debug, Default, Serialize, ToSchema)]
pub(in crate::api) struct MetricPage {
    /// Which attempt. Absence means that none was heard of.
    pub(in crate::api) attempt: Option<String>,
    /// The metrics, in the order in which they were reported.
    pub(in crate::api) metrics: Vec<MetricView>,
    /// `after` of the next page. Absence means that this is the last.
    pub(in crate::api) next: Option<u64>,
}

/// The attempt that the request names, if it was heard of; the current one by default.
pub(in crate::api) async fn attempt(
    shared: &Shared,
    id: &TrialJobId,
    name: Option<&str>,
) -> Result<Option<AttemptRow>, Error> {
    let state = &shared.state;
    let row = state.store.trial(id).await?;
    let row = row.ok_or_else(|| Error::UnknownTrial(id.clone()))?;
    let mut attempts = state.store.attempts(id).await?;
    let wanted = name.unwrap_or_else(|| row.attempt.as_str());
    let found = attempts.iter().position(|attempt| attempt.attempt.as_str() == wanted);
    match (found, name) {
        (Some(at), _) => Ok(Some(attempts.swap_remove(at))),
        (None, None) => Ok(None),
        (None, Some(name)) => {
            Err(Error::BadRequest(format!("trial {id} has no attempt {name:?} that was heard of")))
        }
    }
}

/// The metrics that the request names.
pub(in crate::api) async fn metric_page(
    shared: &Shared,
    id: &TrialJobId,
    query: &ValuesQuery,
) -> Result<MetricPage, Error> {
    let limit = bounded("limit", query.limit, VALUES.0, VALUES.1)?;
    let kind = match query.r#type.as_deref() {
        None => None,
        Some("intermediate") => Some(MetricKind::Intermediate),
        Some("final") => Some(MetricKind::Final),
        Some(other) => {
            let detail = format!("type is {other:?}; intermediate or final is possible");
            return Err(Error::BadRequest(detail));
        }
    };
    let store = &shared.state.store;
    let attempt = match query.attempt.as_deref() {
        None => store.reporting(id).await?,
        named => attempt(shared, id, named).await?,
    };
    let Some(attempt) = attempt else { return Ok(MetricPage::default()) };
    let wanted = |row: &MetricRow| {
        kind.is_none_or(|kind| kind == row.metric.kind)
            && query.name.as_ref().is_none_or(|name| *name == row.metric.name)
    };
    let mut after = query.after.unwrap_or(-1);
    let name = Some(attempt.attempt.to_string());
    let Some(points) = query.points else {
        let rows = store.metrics_after(attempt.key, after, limit).await?;
        let full = rows.len() >= usize::try_from(limit).unwrap_or(usize::MAX);
        let next = rows.last().filter(|_| full).map(|row| row.seq);
        let metrics = rows.into_iter().filter(wanted).map(MetricView::from).collect();
        return Ok(MetricPage { attempt: name, metrics, next });
    };
    let points = bounded("points", Some(points), points, VALUES.1)?;
    let points = usize::try_from(points).unwrap_or(usize::MAX);
    let objective = shared.state.board.objective();
    // The store has no order of values: the whole attempt is read, but no more of it held than is answered.
    let mut curves: HashMap<String, Thinner<MetricRow>> = HashMap::new();
    loop {
        let rows = store.metrics_after(attempt.key, after, CHUNK).await?;
        let Some(last) = rows.last() else { break };
        after = i64::try_from(last.seq).unwrap_or(i64::MAX);
        for row in rows.into_iter().filter(wanted) {
            let number = value_of(&row.metric, objective).number();
            let curve = curves.entry(row.metric.name.clone());
            curve.or_insert_with(|| Thinner::new(points)).add(row, number);
        }
    }
    let thinned = curves.into_values().flat_map(Thinner::finish);
    let mut metrics: Vec<_> = thinned.map(MetricView::from).collect();
    metrics.sort_by_key(|metric| metric.seq);
    Ok(MetricPage { attempt: name, metrics, next: None })
}

/// A trial's metrics: a page of them, or whole curves with fewer points
#[utoipa::path(
    get, path = "/api/v1/trials/{trial}/metrics", tag = "trials",
    params(("trial", description = "the trial's id"), ValuesQuery),
    responses((status = 200, body = MetricPage), (status = 404, description = "no such trial")),
)]
pub(super) async fn metrics(
    _: User,
    State(shared): State<Shared>,
    TrialPath(id): TrialPath,
    CheckedQuery(query): CheckedQuery<ValuesQuery>,
) -> Result<Json<MetricPage>, Error> {
    Ok(Json(metric_page(&shared, &id, &query).await?))
}

/// A reading by the agent.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(in crate::api) struct SampleView {
    /// Its position on the attempt's bulk lane.
    pub(in crate::api) seq: u64,
    /// When, in milliseconds since the Unix epoch, by the agent's clock.
    pub(in crate::api) observed_at_ms: i64,
    /// `process`, `cgroup` and `gpus`, each as far as it could be read; what is absent is unknown.
    pub(in crate::api) sample: Value,
}

impl From<ReportRow> for SampleView {
    fn from(row: ReportRow) -> Self {
        let mut sample = row.body;
        if let Some(members) = sample.as_object_mut() {
            members.remove("kind");
        }
        Self { seq: row.seq, observed_at_ms: row.observed_at_ms, sample }
    }
}

/// Samples of one attempt.
#[derive(Debug, Default, Serialize, ToSchema)]
pub(in crate::api) struct SamplePage {
    /// Which attempt. Absence means that none was heard of.
    pub(in crate::api) attempt: Option<String>,
    /// The samples, oldest first.
    pub(in crate::api) samples: Vec<SampleView>,
    /// `after` of the next page. Absence means that this is the last.
    pub(in crate::api) next: Option<u64>,
}

/// The samples that the request names.
pub(in crate::api) async fn sample_page(
    shared: &Shared,
    id: &TrialJobId,
    query: &ValuesQuery,
) -> Result<SamplePage, Error> {
    let limit = bounded("limit", query.limit, VALUES.0, VALUES.1)?;
    let Some(attempt) = attempt(shared, id, query.attempt.as_deref()).await? else {
        return Ok(SamplePage::default());
    };
    let store = &shared.state.store;
    let mut after = query.after.unwrap_or(-1);
    let name = Some(attempt.attempt.to_string());
    let mut thinned = match query.points {
        None => None,
        Some(points) => {
            let points = bounded("points", Some(points), points, VALUES.1)?;
            Some(Thinner::new(usize::try_from(points).unwrap_or(usize::MAX)))
        }
    };
    loop {
        let rows = store.samples_after(&attempt, after, limit).await?;
        let Some(last) = rows.last() else { break };
        let full = rows.len() >= usize::try_from(limit).unwrap_or(usize::MAX);
        let next = last.seq;
        after = i64::try_from(next).unwrap_or(i64::MAX);
        let samples = rows.into_iter().map(SampleView::from);
        let Some(curve) = &mut thinned else {
            let samples = samples.collect();
            return Ok(SamplePage { attempt: name, samples, next: full.then_some(next) });
        };
        for sample in samples {
            let number = memory(&sample);
            curve.add(sample, number);
        }
        if !full {
            break;
        }
    }
    let samples = thinned.map(Thinner::finish).unwrap_or_default();
    Ok(SamplePage { attempt: name, samples, next: None })
}

/// Returns the value whose peaks a thinned run of samples keeps.
fn memory(sample: &SampleView) -> Option<f64> {
    let process = sample.sample.pointer("/process/memory_bytes");
    sample.sample.pointer("/cgroup/memory_bytes").or(process)?.as_f64()
}

/// A trial's samples: memory, processor, GPUs
#[utoipa::path(
    get, path = "/api/v1/trials/{trial}/samples", tag = "trials",
    params(("trial", description = "the trial's id"), ValuesQuery),
    responses((status = 200, body = SamplePage), (status = 404, description = "no such trial")),
)]
pub(super) async fn samples(
    _: User,
    State(shared): State<Shared>,
    TrialPath(id): TrialPath,
    CheckedQuery(query): CheckedQuery<ValuesQuery>,
) -> Result<Json<SamplePage>, Error> {
    Ok(Json(sample_page(&shared, &id, &query).await?))
}
