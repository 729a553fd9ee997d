//! The API's own description, `OpenAPI` 3.1, made from the handlers' declarations.

use axum::Json;
use serde_json::{Value, json};
use utoipa::OpenApi;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};

use super::super::auth::User;
use super::super::home::list;
use super::super::{auth, ticket};
use super::{act, curves, experiment, export, files, follow, log, points, timeline, trials};

#[derive(OpenApi)]
#[openapi(
    info(
        title = "trial-manager",
        description = "Refusals are `application/problem+json` (RFC 9457) with a stable `code`. On the loopback \
                       interface reading needs no token; everything else needs the user's, as a bearer token."
    ),
    paths(
        list::experiments,
        experiment::experiment,
        experiment::configuration,
        points::points_route,
        curves::curves,
        timeline::timeline_route,
        experiment::importance,
        export::export,
        export::origins,
        follow::events,
        trials::list,
        trials::one,
        trials::metrics,
        trials::samples,
        log::part,
        log::whole,
        files::list,
        files::file,
        follow::trial_events,
        act::add,
        act::kill,
        act::retry,
        act::flush,
        act::log_level,
        act::stop,
        act::limit,
        act::import,
        act::search_space,
        auth::begin_session,
        auth::end_session,
        ticket::issue,
        json,
    )
)]
struct Api;

/// The description.
pub(in crate::api) fn document() -> Value {
    let mut document = Api::openapi();
    let token = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
    if let Some(components) = &mut document.components {
        components.add_security_scheme("token", token);
    }
    let mut document = serde_json::to_value(document).unwrap_or_default();
    document["components"]["schemas"]["Problem"] = problem();
    let paths = document.get_mut("paths").and_then(Value::as_object_mut);
    for (path, methods) in paths.into_iter().flatten() {
        for (_, operation) in methods.as_object_mut().into_iter().flatten() {
            complete(path, operation);
        }
    }
    document
}

/// Refusals as `error.rs` makes them.
fn problem() -> Value {
    json!({
        "type": "object",
        "description": "Why a request was refused (RFC 9457).",
        "required": ["type", "title", "status", "code", "detail"],
        "properties": {
            "type": {"type": "string"},
            "title": {"type": "string", "description": "What the status means."},
            "status": {"type": "integer", "description": "The answer's status."},
            "code": {"type": "string", "description": "A stable word for the reason, such as `unknown-trial`."},
            "detail": {"type": "string", "description": "What was wrong, for a person."},
        },
    })
}

/// Says of an operation what is so of every one: what ids and keys look like, and the refusals that any may meet.
fn complete(path: &str, operation: &mut Value) {
    let parameters = operation.get_mut("parameters").and_then(Value::as_array_mut);
    for parameter in parameters.into_iter().flatten() {
        let schema = match parameter.get("name").and_then(Value::as_str) {
            Some("trial") => json!({"type": "string", "pattern": "^[A-Za-z0-9_-]{1,32}$"}),
            Some("stream") => json!({"type": "string", "enum": ["stdout", "stderr"]}),
            Some("order") => json!({"type": "string", "enum": ["asc", "desc"]}),
            Some("Idempotency-Key") => {
                parameter["description"] =
                    json!("A request repeated under the same key is not carried out again.");
                json!({"type": "string", "pattern": "^[!-~]{1,255}$"})
            }
            _ => continue,
        };
        parameter["schema"] = schema;
    }
    let Some(answers) = operation.get_mut("responses").and_then(Value::as_object_mut) else {
        return;
    };
    let common = [
        ("400", "something in the request is not right"),
        ("401", "no token, or none of this experiment's"),
        ("403", "a good token for something else, or another site's page"),
        ("503", "the database cannot be read or written, or the manager is going away"),
    ];
    let unknown = path.contains("{trial}").then_some(("404", "no such trial"));
    for (status, meaning) in common.into_iter().chain(unknown) {
        answers.entry(status).or_insert_with(|| json!({ "description": meaning }));
    }
    for (status, answer) in answers.iter_mut() {
        if status.starts_with(['4', '5']) {
            let schema = json!({"$ref": "#/components/schemas/Problem"});
            answer["content"] = json!({"application/problem+json": {"schema": schema}});
        } else if status == "202" {
            answer["description"] = json!("under way");
            answer["content"] = json!({"application/json": {"schema": {"type": "object"}}});
        }
    }
    answers.sort_keys();
}

/// This description
#[utoipa::path(
    get, path = "/api/v1/openapi.json", tag = "description",
    responses((status = 200, body = Object)),
)]
pub(in crate::api) async fn json(_: User) -> Json<Value> {
    Json(document())
}
