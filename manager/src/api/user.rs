//! The routes of users, below `/api/v1`: the experiment, its trials, their curves and output, and to change
//! something about them. What it all looks like is in [`view`](crate::view).

mod act;
mod curves;
pub(super) mod document;
mod experiment;
mod export;
mod files;
mod follow;
mod log;
mod points;
mod query_extractor;
mod silent_agent_output;
mod timeline;
mod trials;

use axum::Router;
use axum::middleware::from_fn;
use axum::routing::{get, post, put};

use super::Shared;
use super::answers::make_in_turn;
pub(super) use act::{Change, Changes, add_trial};
pub(super) use experiment::{improvements_of, parameter_importance, shown};
pub(super) use files::files;
pub(super) use log::{LogQuery, speaker, view as log_view, whole_log};
pub(super) use points::axes;
pub(super) use query_extractor::{CheckedQuery, TrialPath, large_json_body};
pub(super) use trials::{
    ListQuery, TrialPage, ValuesQuery, attempt, metric_page, page as trial_page,
};

/// The users' routes.
pub(super) fn routes() -> Router<Shared> {
    let in_turn = || from_fn(make_in_turn);
    Router::new()
        .route("/api/v1/experiment", get(experiment::experiment).patch(act::limit))
        .route("/api/v1/experiment/configuration", get(experiment::configuration))
        .route("/api/v1/experiment/export", get(export::export))
        .route("/api/v1/experiment/origins", get(export::origins))
        .route("/api/v1/experiment/points", get(points::points_route))
        .route("/api/v1/experiment/curves", get(curves::curves))
        .route("/api/v1/experiment/timeline", get(timeline::timeline_route))
        .route("/api/v1/experiment/importance", get(experiment::importance))
        .route("/api/v1/experiment/stop", post(act::stop))
        .route("/api/v1/experiment/import", post(act::import))
        .route("/api/v1/experiment/search-space", put(act::search_space))
        .route("/api/v1/events", get(follow::events))
        .route("/api/v1/trials", get(trials::list).layer(in_turn()).post(act::add))
        .route("/api/v1/trials/{trial}", get(trials::one))
        .route("/api/v1/trials/{trial}/metrics", get(trials::metrics).layer(in_turn()))
        .route("/api/v1/trials/{trial}/samples", get(trials::samples).layer(in_turn()))
        .route("/api/v1/trials/{trial}/log", get(log::part))
        .route("/api/v1/trials/{trial}/log/{stream}", get(log::whole))
        .route("/api/v1/trials/{trial}/files", get(files::list))
        .route("/api/v1/trials/{trial}/file", get(files::file))
        .route("/api/v1/trials/{trial}/events", get(follow::trial_events))
        .route("/api/v1/trials/{trial}/kill", post(act::kill))
        .route("/api/v1/trials/{trial}/retry", post(act::retry))
        .route("/api/v1/trials/{trial}/flush", post(act::flush))
        .route("/api/v1/trials/{trial}/log-level", post(act::log_level))
        .route("/api/v1/openapi.json", get(document::json))
}
