//! The API's own description, `OpenAPI` 3.1, made from the handlers' declarations.

use axum::Json;
use utoipa::OpenApi;
use utoipa::openapi::OpenApi as Document;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};

use super::super::auth::User;
use super::{act, experiment, follow, log, trials};

#[derive(OpenApi)]
#[openapi(
    info(
        title = "trial-manager",
        description = "Refusals are `application/problem+json` (RFC 9457) with a stable `code`. On the loopback \
                       interface reading needs no token; everything else needs the user's, as a bearer token."
    ),
    paths(
        experiment::experiment,
        experiment::configuration,
        experiment::points_route,
        experiment::importance,
        follow::events,
        trials::list,
        trials::one,
        trials::metrics,
        trials::samples,
        log::part,
        log::whole,
        follow::trial_events,
        act::kill,
        act::retry,
        act::flush,
        act::log_level,
        act::stop,
        act::limit,
        act::import,
        act::search_space,
        json,
    )
)]
struct Api;

/// The description.
pub(in crate::api) fn document() -> Document {
    let mut document = Api::openapi();
    let token = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
    if let Some(components) = &mut document.components {
        components.add_security_scheme("token", token);
    }
    document
}

/// This description
#[utoipa::path(
    get, path = "/api/v1/openapi.json", tag = "description",
    responses((status = 200, body = Object)),
)]
pub(super) async fn json(_: User) -> Json<Document> {
    Json(document())
}
