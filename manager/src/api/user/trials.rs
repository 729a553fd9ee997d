//! Trials: a page of the list, one trial in detail, its curves and its samples.

use std::collections::HashMap;

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use trial_protocol::{MetricKind, TrialJobId};
use utoipa::{IntoParams, ToSchema};

use super::super::access::auth::User;
use super::super::{Error, Shared};
use super::query_extractor::{
    CheckedQuery, SortOrder, TrialPath, deserialize_filled, number_within,
};
use crate::experiment::result::value_of;
use crate::job_state::JobState;
use crate::store::{AttemptRow, MetricRow, ReportRow};
use crate::view::curve::CurveDownsampler;
use crate::view::filter::Filter;
use crate::view::table::{self, Column, TableQuery};
use crate::view::{self, TrialDetail, TrialSummary};

/// The default and the maximum number of trials on a page.
const PAGE_BOUNDS: (u32, u32) = (100, 1000);
/// The default and the maximum number of metrics or samples on a page.
const VALUE_BOUNDS: (u32, u32) = (1000, 10_000);
/// The number of values that are read at once for a thinned curve.
const VALUES_PER_READ: u32 = 10_000;

/// The filters and the order of the list of trials.
#[derive(Debug, Clone, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(in crate::api) struct ListQuery {
    /// Only trials in these states, such as `RUNNING,FAILED`.
    pub(in crate::api) state: Option<String>,
    /// Only trials whose verdict has this cause, such as `oom-cuda`. `unknown` means trials without a verdict.
    pub(in crate::api) cause: Option<String>,
    /// Only trials whose id, parameters, message or cause contain this text.
    pub(in crate::api) q: Option<String>,
    /// Only trials that match an expression, such as `lr < 0.01 and activation == "relu"`. The names are those of
    /// parameters and metrics, `number`, `id`, `state`, `cause`, `duration` (in seconds, or with a unit: `10m`),
    /// `final`, `latest`, `step`.
    pub(in crate::api) filter: Option<String>,
    /// `sequence` (default), `id`, `state`, `final`, `latest`, `started`, `ended`, `duration`, `parameters.NAME` or
    /// `metrics.NAME`.
    pub(in crate::api) sort: Option<String>,
    /// `asc` (default) or `desc`. Trials without a value are at the end.
    #[serde(default, deserialize_with = "deserialize_filled")]
    #[param(value_type = Option<String>)]
    pub(in crate::api) order: Option<SortOrder>,
    /// The number of trials on the page, 1 to 1000; 100 by default.
    #[param(minimum = 1, maximum = 1000)]
    pub(in crate::api) limit: Option<u32>,
    /// The `next` of the previous page.
    pub(in crate::api) cursor: Option<String>,
}

/// A page of trials.
#[derive(Debug, Default, Serialize, ToSchema)]
pub(in crate::api) struct TrialPage {
    /// The trials on this page.
    pub(in crate::api) trials: Vec<TrialSummary>,
    /// The number of trials on all pages together.
    pub(in crate::api) total: usize,
    /// The cursor of the next page. Absence means that this is the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::api) next: Option<String>,
    /// The number of this page, from 1.
    pub(in crate::api) page: usize,
    /// The number of pages.
    pub(in crate::api) pages: usize,
}

/// Checks the filters and the order of a request.
pub(super) fn table_query(query: &ListQuery) -> Result<TableQuery, Error> {
    let bad = |problem: String| Error::BadRequest(problem);
    let words = query.state.as_deref().unwrap_or_default().split(',').map(str::trim);
    let states = words.filter(|word| !word.is_empty()).map(str::parse::<JobState>);
    let states = states
        .collect::<Result<_, _>>()
        .map_err(|error| bad(format!("state: {error}; expected {}", JobState::words())))?;
    let sort = query.sort.as_deref().filter(|word| !word.is_empty()).unwrap_or("sequence");
    let by = Column::of_word(sort);
    let descending = query.order == Some(SortOrder::Descending);
    let text = query.q.clone().filter(|text| !text.is_empty());
    let cause = query.cause.clone().filter(|cause| !cause.is_empty());
    let filter = query.filter.as_deref().filter(|text| !text.trim().is_empty());
    let filter = filter.map(Filter::parse).transpose();
    let filter = filter.map_err(|error| bad(format!("filter: {error}")))?;
    Ok(TableQuery { states, cause, text, filter, by, descending })
}

/// Returns the page that the request names.
pub(in crate::api) async fn trial_page(
    shared: &Shared,
    query: &ListQuery,
) -> Result<TrialPage, Error> {
    let wanted = table_query(query)?;
    let limit = number_within("limit", query.limit, PAGE_BOUNDS.0, PAGE_BOUNDS.1)?;
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let snapshot = shared.state.trial_cache.refresh().await?;
    let now_ms = shared.state.clock.now_ms();
    let cursor = query.cursor.as_deref().filter(|cursor| !cursor.is_empty());
    let page = table::page(&snapshot.trials, &wanted, cursor, limit, now_ms)
        .map_err(|error| Error::BadRequest(error.to_string()))?;
    let trials = page.rows.into_iter().cloned().collect();
    let (at, pages) = (page.first.div_ceil(limit) + 1, page.total.div_ceil(limit).max(1));
    Ok(TrialPage { trials, total: page.total, next: page.next, page: at, pages })
}

/// Returns trials, filtered and sorted, one page at a time
#[utoipa::path(
    get, path = "/api/v1/trials", tag = "trials", params(ListQuery),
    responses((status = 200, body = TrialPage), (status = 400, description = "a filter or the cursor cannot be read")),
)]
pub(super) async fn list(
    _: User,
    State(shared): State<Shared>,
    CheckedQuery(query): CheckedQuery<ListQuery>,
) -> Result<Json<TrialPage>, Error> {
    Ok(Json(trial_page(&shared, &query).await?))
}

/// Returns a trial: parameters, attempts, timeline, verdict with its evidence
#[utoipa::path(
    get, path = "/api/v1/trials/{trial}", tag = "trials", params(("trial", description = "the trial's id, or its number")),
    responses((status = 200, body = TrialDetail), (status = 404, description = "no such trial")),
)]
pub(super) async fn one(
    _: User,
    State(shared): State<Shared>,
    TrialPath(id): TrialPath,
) -> Result<Json<TrialDetail>, Error> {
    let state = &shared.state;
    let detail = view::detail(&state.trial_cache, &state.store, &id).await?;
    Ok(Json(detail.ok_or(Error::UnknownTrial(id))?))
}

/// The selection of an attempt's values.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(in crate::api) struct ValuesQuery {
    /// The attempt; the current one by default, or for metrics `ATTEMPT-legacy` if an old keeper reports them.
    attempt: Option<String>,
    /// Only metrics with this name.
    name: Option<String>,
    /// Only `intermediate` or `final` metrics.
    r#type: Option<String>,
    /// Only values after this `seq`.
    after: Option<i64>,
    /// The number of values on the page, 1 to 10000; 1000 by default.
    #[param(minimum = 1, maximum = 10000)]
    limit: Option<u32>,
    /// The approximate number of points, 1 to 10000. Returns the whole curve of each metric, thinned, instead of a
    /// page. A curve keeps at least four points.
    #[param(minimum = 1, maximum = 10000)]
    points: Option<u32>,
}

impl ValuesQuery {
    /// Requests a page of at most `limit` values after `after`.
    pub(in crate::api) fn page(after: Option<i64>, limit: u32) -> Self {
        Self { after, limit: Some(limit), ..Self::default() }
    }

    /// Requests whole curves with about `points` points.
    pub(in crate::api) fn thinned(points: u32) -> Self {
        Self { points: Some(points), ..Self::default() }
    }

    /// Requests the curves of intermediate results, with about `points` points.
    pub(in crate::api) fn intermediate(points: u32) -> Self {
        Self { r#type: Some("intermediate".to_owned()), ..Self::thinned(points) }
    }
}

/// One value of one metric.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(in crate::api) struct MetricView {
    /// The value's position among the attempt's facts.
    pub(in crate::api) seq: u64,
    /// The name of the metric.
    pub(in crate::api) name: String,
    /// `intermediate` or `final`.
    pub(in crate::api) r#type: MetricWord,
    /// The step, from 0.
    pub(in crate::api) step: u64,
    /// The value as reported. `"NaN"`, `"Infinity"` and `"-Infinity"` replace values that JSON lacks.
    pub(in crate::api) value: Value,
    /// The time, in milliseconds since the Unix epoch, by the agent's clock.
    pub(in crate::api) observed_at_ms: i64,
}

/// The kind of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(in crate::api) enum MetricWord {
    /// A value of one step.
    Intermediate,
    /// The result of the trial.
    Final,
}

impl MetricView {
    /// Returns whether the value is the result of the whole trial.
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

/// The metrics of one attempt.
#[derive(Debug, Default, Serialize, ToSchema)]
pub(in crate::api) struct MetricPage {
    /// The attempt. Absence means that no attempt has reported.
    pub(in crate::api) attempt: Option<String>,
    /// The metrics, in the order in which they were reported.
    pub(in crate::api) metrics: Vec<MetricView>,
    /// The `after` of the next page. Absence means that this is the last page.
    pub(in crate::api) next: Option<u64>,
}

/// Returns the attempt that the request names, if it has reported; the current one by default.
pub(in crate::api) async fn requested_attempt(
    shared: &Shared,
    id: &TrialJobId,
    name: Option<&str>,
) -> Result<Option<AttemptRow>, Error> {
    let state = &shared.state;
    let row = state.store.trials().get(id).await?;
    let row = row.ok_or_else(|| Error::UnknownTrial(id.clone()))?;
    let mut attempts = state.store.queries().attempts(id).await?;
    let wanted = name.unwrap_or_else(|| row.attempt.as_str());
    let found = attempts.iter().position(|attempt| attempt.attempt.as_str() == wanted);
    match (found, name) {
        (Some(at), _) => Ok(Some(attempts.swap_remove(at))),
        (None, None) => Ok(None),
        (None, Some(name)) => {
            Err(Error::BadRequest(format!("trial {id} has no attempt {name:?} with reports")))
        }
    }
}

/// Returns the metrics that the request names.
pub(in crate::api) async fn metric_page(
    shared: &Shared,
    id: &TrialJobId,
    query: &ValuesQuery,
) -> Result<MetricPage, Error> {
    let limit = number_within("limit", query.limit, VALUE_BOUNDS.0, VALUE_BOUNDS.1)?;
    let kind = match query.r#type.as_deref() {
        None => None,
        Some("intermediate") => Some(MetricKind::Intermediate),
        Some("final") => Some(MetricKind::Final),
        Some(other) => {
            let detail = format!("type must be intermediate or final, not {other:?}");
            return Err(Error::BadRequest(detail));
        }
    };
    let store = &shared.state.store;
    let attempt = match query.attempt.as_deref() {
        None => store.queries().reporting_attempt(id).await?,
        named => requested_attempt(shared, id, named).await?,
    };
    let Some(attempt) = attempt else { return Ok(MetricPage::default()) };
    let wanted = |row: &MetricRow| {
        kind.is_none_or(|kind| kind == row.metric.kind)
            && query.name.as_ref().is_none_or(|name| *name == row.metric.name)
    };
    let mut after = query.after.unwrap_or(-1);
    let name = Some(attempt.attempt.to_string());
    let Some(points) = query.points else {
        let rows = store.queries().metrics_after(attempt.key, after, limit).await?;
        let full = rows.len() >= usize::try_from(limit).unwrap_or(usize::MAX);
        let next = rows.last().filter(|_| full).map(|row| row.seq);
        let metrics = rows.into_iter().filter(wanted).map(MetricView::from).collect();
        return Ok(MetricPage { attempt: name, metrics, next });
    };
    let points = number_within("points", Some(points), points, VALUE_BOUNDS.1)?;
    let points = usize::try_from(points).unwrap_or(usize::MAX);
    let objective = shared.state.trial_cache.objective();
    // The store does not order values, so the whole attempt is read. Only the thinned part is held in memory.
    let mut curves: HashMap<String, CurveDownsampler<MetricRow>> = HashMap::new();
    loop {
        let rows = store.queries().metrics_after(attempt.key, after, VALUES_PER_READ).await?;
        let Some(last) = rows.last() else { break };
        after = i64::try_from(last.seq).unwrap_or(i64::MAX);
        for row in rows.into_iter().filter(wanted) {
            let number = value_of(&row.metric, objective).number();
            let curve = curves.entry(row.metric.name.clone());
            curve.or_insert_with(|| CurveDownsampler::new(points)).add(row, number);
        }
    }
    let thinned = curves.into_values().flat_map(CurveDownsampler::finish);
    let mut metrics: Vec<_> = thinned.map(MetricView::from).collect();
    metrics.sort_by_key(|metric| metric.seq);
    Ok(MetricPage { attempt: name, metrics, next: None })
}

/// Returns a trial's metrics: a page of them, or whole curves with fewer points
#[utoipa::path(
    get, path = "/api/v1/trials/{trial}/metrics", tag = "trials",
    params(("trial", description = "the trial's id, or its number"), ValuesQuery),
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

/// A sample of the agent.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(in crate::api) struct SampleView {
    /// The sample's position on the attempt's bulk lane.
    pub(in crate::api) seq: u64,
    /// The time, in milliseconds since the Unix epoch, by the agent's clock.
    pub(in crate::api) observed_at_ms: i64,
    /// `process`, `cgroup` and `gpus`, as far as each could be read. Absence means unknown.
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

/// The samples of one attempt.
#[derive(Debug, Default, Serialize, ToSchema)]
pub(in crate::api) struct SamplePage {
    /// The attempt. Absence means that no attempt has reported.
    pub(in crate::api) attempt: Option<String>,
    /// The samples, oldest first.
    pub(in crate::api) samples: Vec<SampleView>,
    /// The `after` of the next page. Absence means that this is the last page.
    pub(in crate::api) next: Option<u64>,
}

/// Returns the samples that the request names.
pub(in crate::api) async fn sample_page(
    shared: &Shared,
    id: &TrialJobId,
    query: &ValuesQuery,
) -> Result<SamplePage, Error> {
    let limit = number_within("limit", query.limit, VALUE_BOUNDS.0, VALUE_BOUNDS.1)?;
    let Some(attempt) = requested_attempt(shared, id, query.attempt.as_deref()).await? else {
        return Ok(SamplePage::default());
    };
    let store = &shared.state.store;
    let mut after = query.after.unwrap_or(-1);
    let name = Some(attempt.attempt.to_string());
    let mut thinned = match query.points {
        None => None,
        Some(points) => {
            let points = number_within("points", Some(points), points, VALUE_BOUNDS.1)?;
            Some(CurveDownsampler::new(usize::try_from(points).unwrap_or(usize::MAX)))
        }
    };
    loop {
        let rows = store.queries().samples_after(&attempt, after, limit).await?;
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
            let number = memory_of(&sample);
            curve.add(sample, number);
        }
        if !full {
            break;
        }
    }
    let samples = thinned.map(CurveDownsampler::finish).unwrap_or_default();
    Ok(SamplePage { attempt: name, samples, next: None })
}

/// Returns the value whose peaks a thinned series of samples keeps.
fn memory_of(sample: &SampleView) -> Option<f64> {
    let process = sample.sample.pointer("/process/memory_bytes");
    sample.sample.pointer("/cgroup/memory_bytes").or(process)?.as_f64()
}

/// Returns a trial's samples: memory, processor, GPUs
#[utoipa::path(
    get, path = "/api/v1/trials/{trial}/samples", tag = "trials",
    params(("trial", description = "the trial's id, or its number"), ValuesQuery),
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
