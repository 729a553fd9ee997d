//! The experiment as a whole: its view, its configuration, and the importance of its parameters.

use axum::Json;
use axum::extract::State;
use serde_json::Value;
use trial_protocol::{Direction, MetricValue};

use super::super::access::auth::User;
use super::super::{Error, Shared};
use crate::config;
use crate::job_state::JobState;
use crate::search::class_args::parse_direction;
use crate::search::search_space::SearchSpace;
use crate::util::clock::to_ms;
use crate::util::errors::error_chain;
use crate::util::layout::PACKAGES_FILE;
use crate::view::curve::Improvement;
use crate::view::importance::{self, Importance};
use crate::view::service_part;
use crate::view::space::{self, ParameterAxis};
use crate::view::{self, ExperimentView, Snapshot, TrialSummary};

/// The maximum number of versions of the code in the view.
const MAX_CODE_VERSIONS: u32 = 20;

/// Returns the present view of the experiment.
pub(in crate::api) async fn present_view(
    shared: &Shared,
    snapshot: &Snapshot,
) -> Result<ExperimentView, Error> {
    let state = &shared.state;
    let row = state.store.experiment().row().await?.ok_or(Error::NotFound)?;
    let spec = config::from_canonical(&row.canonical)
        .map_err(|error| Error::Unwritable(error.to_string()))?;
    let running = state.handle.elapsed().filter(|_| row.ended_at_ms.is_none());
    let elapsed = running.map_or(row.elapsed_ms, to_ms);
    let versions = state.store.attempt_records().code_versions(MAX_CODE_VERSIONS).await?;
    let now_ms = state.clock.now_ms();
    let shown = view::experiment_view(&row, &spec, snapshot, &versions, elapsed, now_ms);
    let is_interrupted = running.is_none()
        && view::is_interrupted(row.ended_at_ms, state.store.database().has_writer());
    // A write error makes the store unable to record the trouble, so the view reports it here.
    let ill = state.store.database().write_error().map(|error| {
        format!("{}: no trial is started or ended until this is fixed", error_chain(&error))
    });
    let parts = spec.training_service.section().parts();
    let training_services = if parts.is_empty() {
        Vec::new()
    } else {
        let status = state.service.get().map(|service| service.parts()).unwrap_or_default();
        let placed = state.store.attempt_records().all_parts().await?;
        service_part::views(parts, snapshot, &placed, &status)
    };
    let packages = state.server_info.folder.join(PACKAGES_FILE);
    let packages = packages.is_file().then(|| packages.display().to_string());
    let trouble = ill.or(shown.trouble);
    let shown = ExperimentView { trouble, packages_file: packages, training_services, ..shown };
    Ok(if is_interrupted { shown.interrupted() } else { shown })
}

/// Returns the experiment that this manager serves
#[utoipa::path(
    get, path = "/api/v1/experiment", tag = "experiment",
    responses((status = 200, body = ExperimentView)),
)]
pub(super) async fn experiment(
    _: User,
    State(shared): State<Shared>,
) -> Result<Json<ExperimentView>, Error> {
    let snapshot = shared.state.trial_cache.refresh().await?;
    Ok(Json(present_view(&shared, &snapshot).await?))
}

/// Returns the experiment's configuration, checked and complete, without secrets
#[utoipa::path(
    get, path = "/api/v1/experiment/configuration", tag = "experiment",
    responses((status = 200, body = Object)),
)]
pub(super) async fn configuration(
    _: User,
    State(shared): State<Shared>,
) -> Result<Json<Value>, Error> {
    let row = shared.state.store.experiment().row().await?.ok_or(Error::NotFound)?;
    Ok(Json(view::redact_secrets(&row.canonical)))
}

/// Returns the finite final result of a succeeded trial.
pub(super) fn final_result(trial: &TrialSummary) -> Option<f64> {
    trial.number().filter(|number| trial.state == JobState::Succeeded && number.is_finite())
}

/// Returns every result that was better than all before it.
pub(in crate::api) fn improvements_of(snapshot: &Snapshot, maximize: bool) -> Vec<Improvement> {
    let direction = if maximize { Direction::Maximize } else { Direction::Minimize };
    view::improvements(snapshot, direction)
}

/// Returns the importance of each parameter for reaching the best tenth of the results, by PED-ANOVA
///
/// The shares add up to 1. Trials that were stopped early count with their latest result. The list is empty with
/// fewer than eight results, or if all results are equal.
#[utoipa::path(
    get, path = "/api/v1/experiment/importance", tag = "experiment",
    responses((status = 200, body = Vec<Importance>)),
)]
pub(super) async fn importance(
    _: User,
    State(shared): State<Shared>,
) -> Result<Json<Vec<Importance>>, Error> {
    let snapshot = shared.state.trial_cache.refresh().await?;
    let direction = present_view(&shared, &snapshot).await?.optimize_mode;
    Ok(Json(parameter_importance(&snapshot, &axes(&shared).await?, direction)))
}

/// Returns the importance of each parameter among the trials that succeeded or were stopped early.
pub(in crate::api) fn parameter_importance(
    snapshot: &Snapshot,
    axes: &[ParameterAxis],
    direction: &str,
) -> Vec<Importance> {
    let number = |trial: &TrialSummary| match trial.state {
        JobState::EarlyStopped => provisional_result(trial),
        JobState::Waiting
        | JobState::Running
        | JobState::Succeeded
        | JobState::Failed
        | JobState::UserCanceled
        | JobState::SysCanceled
        | JobState::Lost
        | JobState::Unknown => final_result(trial),
    };
    importance_by(snapshot, axes, direction, number)
}

/// Returns the importance of each parameter for the numbers of the trials.
pub(in crate::api) fn importance_by(
    snapshot: &Snapshot,
    axes: &[ParameterAxis],
    direction: &str,
    number: impl Fn(&TrialSummary) -> Option<f64>,
) -> Vec<Importance> {
    let trials = snapshot.trials.iter();
    let results: Vec<_> = trials
        .filter_map(|trial| Some((view::flatten_parameters(&trial.parameters), number(trial)?)))
        .collect();
    let direction = parse_direction(direction).unwrap_or(Direction::Maximize);
    importance::importance(&results, axes, direction)
}

/// Returns the latest finite result of a trial that has not succeeded.
pub(super) fn provisional_result(trial: &TrialSummary) -> Option<f64> {
    let latest = || MetricValue::from(trial.latest.clone()?).number();
    let number = trial.number().or_else(latest).filter(|number| number.is_finite());
    number.filter(|_| trial.state != JobState::Succeeded)
}

/// Returns the parameters of the search space, in its order. Empty if the space has a form of the tuner's own.
pub(in crate::api) async fn axes(shared: &Shared) -> Result<Vec<ParameterAxis>, Error> {
    Ok(search_space(shared).await?.map(|space| space::axes(&space)).unwrap_or_default())
}

/// Returns the search space. `None` if it has a form of the tuner's own.
pub(in crate::api) async fn search_space(shared: &Shared) -> Result<Option<SearchSpace>, Error> {
    let row = shared.state.store.experiment().row().await?.ok_or(Error::NotFound)?;
    let space = row.canonical.get("searchSpace").map(SearchSpace::parse);
    Ok(space.and_then(Result::ok))
}
