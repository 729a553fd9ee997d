//! The portal: pages for users. They are complete without JavaScript, and a script keeps them up to date. Everything
//! is part of this program; no page contacts another host. [`view`](crate::view) determines the content of a page,
//! and an API route the effect of a button.

mod actions;
mod api_page;
mod assets;
pub(super) mod base;
mod columns;
pub(super) mod display;
mod figures;
mod goal_tables;
mod overview;
mod page;
mod pareto;
mod parts;
pub(super) mod plot;
mod plot_place;
mod plots;
mod report;
mod trial;
mod trials;

use axum::Router;
use axum::extract::{FromRef, Request};
use axum::http::header;
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};

use super::access::log_in::LogIn;
use super::{Error, Shared};
pub(super) use actions::read_user_form;
pub(super) use page::{PageRefusal, Viewer, page, refusal, refused_as_page, time};
pub(super) use plot_place::{plot_keys, plot_place};

/// Returns the portal's routes.
pub(super) fn routes() -> Router<Shared> {
    Router::new()
        .route("/", get(overview::overview))
        .route("/configuration", get(overview::configuration))
        .route("/report.html", get(report::report))
        .route("/trials", get(trials::list))
        .route("/plots", get(plots::plots))
        .route("/compare", get(trials::compare))
        .route("/trials/{trial}", get(trial::trial))
        .route("/trials/{trial}/stop", post(actions::stop_trial))
        .route("/trials/{trial}/rerun", post(actions::rerun_trial))
        .route("/chosen/stop", post(actions::stop_selected))
        .route("/chosen/rerun", post(actions::rerun_selected))
        .route("/points", post(actions::add_point))
        .route("/limits", post(actions::limits))
        .route("/stop", post(actions::stop))
        .merge(log_in_routes())
        .layer(axum::middleware::map_response(page::refused_as_page))
        .merge(asset_routes())
}

/// Returns the routes for logging in and out, and for the API's description as a page.
pub(super) fn log_in_routes<S: Clone + Send + Sync + 'static>() -> Router<S>
where
    LogIn: FromRef<S>,
{
    Router::new()
        .route("/login", get(actions::login_page).post(actions::login))
        .route("/logout", post(actions::logout))
        .route("/api", get(api_page::page))
}

/// Returns the routes of the style and the scripts.
pub(super) fn asset_routes<S: Clone + Send + Sync + 'static>() -> Router<S> {
    Router::new().route("/assets/{name}", get(assets::asset))
}

/// Responds to a request for an unknown address. A browser that requests a page gets a page.
pub(super) async fn not_found(request: Request) -> Response {
    let accept = request.headers().get(header::ACCEPT).and_then(|value| value.to_str().ok());
    let wants_page = accept.is_some_and(|kinds| kinds.contains("text/html"));
    if wants_page && !request.uri().path().starts_with("/api/") {
        return page::refusal(&Error::NotFound);
    }
    Error::NotFound.into_response()
}
