//! The routes of users, below `/api/v1`: the experiment, its trials, their curves and output, and changes to them.
//! [`view`](crate::view) defines the responses.

mod changes;
mod curves;
pub(super) mod document;
pub(super) mod download;
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

use axum::middleware::from_fn;
use axum::routing::{MethodRouter, post};
use utoipa::openapi::Deprecated;
use utoipa_axum::router::{OpenApiRouter, UtoipaMethodRouterExt as _};
use utoipa_axum::routes;

use super::Shared;
use super::access::log_in;
use super::server::response_memory::limit_long_lists;
pub(super) use changes::{Change, ChangeLog, IdempotencyKey, add_trial};
pub(super) use experiment::{
    axes, importance_by, improvements_of, parameter_importance, present_view, search_space,
};
pub(super) use files::{code_diff, files};
pub(super) use log::{LineTimeView, LogQuery, LogView, log_view, output_attempt, whole_log};
pub(super) use query_extractor::{
    CheckedQuery, SortOrder, TrialPath, deserialize_filled, large_json_body,
};
pub(super) use timeline::machines;
pub(super) use trials::{
    ListQuery, MetricView, TrialPage, ValuesQuery, metric_page, requested_attempt, trial_page,
};

/// Returns the users' routes. Each handler describes its own route.
pub(super) fn routes() -> OpenApiRouter<Shared> {
    let in_turn = || from_fn(limit_long_lists);
    let router = OpenApiRouter::new()
        .routes(routes!(experiment::experiment, changes::limit))
        .routes(routes!(experiment::configuration))
        .routes(routes!(export::export))
        .routes(routes!(export::origins))
        .routes(routes!(points::points_route))
        .routes(routes!(curves::curves))
        .routes(routes!(timeline::timeline_route))
        .routes(routes!(experiment::importance))
        .routes(routes!(changes::stop))
        .routes(routes!(changes::import))
        .routes(routes!(changes::search_space))
        .routes(routes!(follow::events))
        .routes(routes!(trials::list).layer(in_turn()))
        .routes(routes!(changes::add))
        .routes(routes!(trials::one))
        .routes(routes!(trials::metrics).layer(in_turn()))
        .routes(routes!(trials::samples).layer(in_turn()))
        .routes(routes!(log::part))
        .routes(routes!(log::whole))
        .routes(routes!(files::diff))
        .routes(routes!(files::list))
        .routes(routes!(files::file))
        .routes(routes!(follow::trial_events))
        .routes(routes!(changes::stop_trial))
        .routes(routes!(changes::rerun_trial))
        .routes(routes!(changes::flush))
        .routes(routes!(changes::log_level))
        .routes(routes!(log_in::begin_session, log_in::end_session))
        .routes(routes!(log_in::issue_ticket))
        .routes(routes!(document::json));
    let (former, path) = ("/api/v1/trials/{trial}/kill", "/api/v1/trials/{trial}/stop");
    let router = with_former_path(router, (former, "kill"), path, post(changes::stop_trial));
    let (former, path) = ("/api/v1/trials/{trial}/retry", "/api/v1/trials/{trial}/rerun");
    with_former_path(router, (former, "retry"), path, post(changes::rerun_trial))
}

/// Also serves a change at its former path, and describes it there as deprecated, with its former operation id.
fn with_former_path(
    router: OpenApiRouter<Shared>,
    (former, operation_id): (&str, &str),
    path: &str,
    handler: MethodRouter<Shared>,
) -> OpenApiRouter<Shared> {
    let mut router = router.route(former, handler);
    let paths = &mut router.get_openapi_mut().paths.paths;
    if let Some(mut item) = paths.get(path).cloned() {
        if let Some(operation) = &mut item.post {
            operation.operation_id = Some(operation_id.to_owned());
            operation.deprecated = Some(Deprecated::True);
        }
        paths.insert(former.to_owned(), item);
    }
    router
}
