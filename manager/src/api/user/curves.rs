//! The curves of many trials in one response, thinned and bounded.

use std::collections::HashMap;

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use trial_protocol::{Direction, TrialJobId};
use utoipa::{IntoParams, ToSchema};

use super::super::access::auth::User;
use super::super::{Error, Shared};
use super::experiment::present_view;
use super::query_extractor::{CheckedQuery, number_within};
use super::trials::{ValuesQuery, metric_page};
use crate::search::class_args::parse_direction;
use crate::view::chosen_curves;
use crate::view::curve::points_of;

/// The default and the maximum number of points of a curve.
const POINT_BOUNDS: (u32, u32) = (100, 1000);
/// The default and the maximum number of trials.
const TRIAL_BOUNDS: (u32, u32) = (200, 1000);
/// The maximum number of reports that are read for one response, which takes about half a second.
const MAX_REPORTS: u64 = 200_000;
/// The maximum number of metrics with curves. A page has as many panels.
const MAX_METRICS: usize = 12;

/// The size of the response.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(in crate::api) struct CurvesQuery {
    /// The number of points of each curve, 1 to 1000; 100 by default. A curve keeps at least four
    /// points.
    #[param(minimum = 1, maximum = 1000)]
    points: Option<u32>,
    /// The number of trials, 1 to 1000; 200 by default. One half are the best succeeded trials, the other half the
    /// newest.
    #[param(minimum = 1, maximum = 1000)]
    trials: Option<u32>,
    /// Only this metric, one of `names`. All by default.
    metric: Option<String>,
}

/// The curves of many trials.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::api) struct Curves {
    /// The metrics, at most twelve: the metric that counts first, the others by name.
    metrics: Vec<MetricCurves>,
    /// The names of all metrics with curves, in the same order.
    names: Vec<String>,
    /// The number of trials whose curves were read.
    shown: usize,
    /// The number of trials of the experiment.
    of: usize,
}

/// The curves of one metric.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::api) struct MetricCurves {
    /// The name of the metric. A member of an object is `metric.member`.
    name: String,
    /// `true` if the metric is the objective.
    counts: bool,
    /// The curves, by position of the trial.
    curves: Vec<TrialCurve>,
}

/// A trial's curve.
#[derive(Debug, Default, Serialize, ToSchema)]
pub(in crate::api) struct TrialCurve {
    /// The trial's position in the experiment.
    sequence: u64,
    /// The steps, from 0.
    steps: Vec<u64>,
    /// The value at each step; null if it is not finite.
    values: Vec<Option<f64>>,
}

/// Returns the intermediate results of the best and the newest trials
///
/// The curves are thinned, and the time is bounded: fewer trials are read if they are long.
#[utoipa::path(
    get, path = "/api/v1/experiment/curves", tag = "experiment", params(CurvesQuery),
    responses((status = 200, body = Curves)),
)]
pub(super) async fn curves(
    _: User,
    State(shared): State<Shared>,
    CheckedQuery(query): CheckedQuery<CurvesQuery>,
) -> Result<Json<Curves>, Error> {
    let points = number_within("points", query.points, POINT_BOUNDS.0, POINT_BOUNDS.1)?;
    let count = number_within("trials", query.trials, TRIAL_BOUNDS.0, TRIAL_BOUNDS.1)?;
    let snapshot = shared.state.trial_cache.refresh().await?;
    let direction = present_view(&shared, &snapshot).await?.optimize_mode;
    let direction = parse_direction(direction).unwrap_or(Direction::Maximize);
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    let mut chosen = chosen_curves(&snapshot, direction, count);
    let keys = chosen.iter().map(|trial| trial.key()).collect();
    let counts = shared.state.store.queries().report_counts(keys, MAX_REPORTS).await?;
    // A single trial is read whatever its length.
    chosen.truncate(counts.len().max(1));
    chosen.sort_by_key(|trial| trial.sequence);
    let counting = chosen.iter().find_map(|trial| trial.metric.clone());
    let mut metrics: HashMap<String, Vec<TrialCurve>> = HashMap::new();
    for trial in &chosen {
        let Ok(id) = TrialJobId::new(&trial.id) else { continue };
        let page = metric_page(&shared, &id, &ValuesQuery::intermediate(points)).await?;
        for metric in page.metrics {
            for (name, value) in points_of(&metric.name, &metric.value) {
                let curves = metrics.entry(name).or_default();
                if curves.last().is_none_or(|curve| curve.sequence != trial.sequence) {
                    curves.push(TrialCurve { sequence: trial.sequence, ..TrialCurve::default() });
                }
                if let Some(curve) = curves.last_mut() {
                    curve.steps.push(metric.step);
                    curve.values.push(Some(value).filter(|value| value.is_finite()));
                }
            }
        }
    }
    let metrics = metrics.into_iter().map(|(name, curves)| {
        let counts = Some(&name) == counting.as_ref();
        MetricCurves { name, counts, curves }
    });
    let mut metrics: Vec<_> = metrics.collect();
    metrics.sort_by(|a, b| b.counts.cmp(&a.counts).then_with(|| a.name.cmp(&b.name)));
    let names = metrics.iter().map(|metric| metric.name.clone()).collect();
    metrics.retain(|metric| query.metric.as_ref().is_none_or(|name| *name == metric.name));
    metrics.truncate(MAX_METRICS);
    Ok(Json(Curves { metrics, names, shown: chosen.len(), of: snapshot.trials.len() }))
}
