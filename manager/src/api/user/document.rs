//! The API's own description, `OpenAPI` 3.1, generated from the handlers' declarations.

use std::sync::LazyLock;

use axum::Json;
use serde_json::{Value, json};
use utoipa::OpenApi;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};

use super::super::access::auth::User;
use crate::api::described_routes;

#[derive(OpenApi)]
#[openapi(info(
    title = "trial-manager",
    description = "Refusals are `application/problem+json` (RFC 9457) with a stable `code`. On the loopback \
                       interface, reading needs no token. All other requests need the user's token as a bearer token."
))]
struct Api;

/// Returns the description.
pub(in crate::api) fn document() -> &'static Value {
    static DOCUMENT: LazyLock<Value> = LazyLock::new(generate);
    &DOCUMENT
}

fn generate() -> Value {
    let mut document = Api::openapi();
    document.merge(described_routes());
    let token = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
    if let Some(components) = &mut document.components {
        components.add_security_scheme("token", token);
    }
    let mut document = serde_json::to_value(document).unwrap_or_default();
    document["components"]["schemas"]["Problem"] = problem_schema();
    let paths = document.get_mut("paths").and_then(Value::as_object_mut);
    for (path, methods) in paths.into_iter().flatten() {
        for (_, operation) in methods.as_object_mut().into_iter().flatten() {
            complete_operation(path, operation);
        }
    }
    document
}

/// Returns the schema of the refusals that `error.rs` creates.
fn problem_schema() -> Value {
    json!({
        "type": "object",
        "description": "The reason why a request was refused (RFC 9457).",
        "required": ["type", "title", "status", "code", "detail"],
        "properties": {
            "type": {"type": "string"},
            "title": {"type": "string", "description": "The meaning of the status."},
            "status": {"type": "integer", "description": "The HTTP status of the response."},
            "code": {"type": "string", "description": "A stable code of the reason, such as `unknown-trial`."},
            "detail": {"type": "string", "description": "The problem, for a person."},
        },
    })
}

/// Adds the common parts to an operation: the form of ids and keys, and the refusals that are possible for every
/// operation.
fn complete_operation(path: &str, operation: &mut Value) {
    let parameters = operation.get_mut("parameters").and_then(Value::as_array_mut);
    for parameter in parameters.into_iter().flatten() {
        let schema = match parameter.get("name").and_then(Value::as_str) {
            Some("trial") => json!({"type": "string", "pattern": "^[A-Za-z0-9_-]{1,32}$"}),
            Some("stream") => json!({"type": "string", "enum": ["stdout", "stderr"]}),
            Some("order") => json!({"type": "string", "enum": ["asc", "desc"]}),
            Some("Idempotency-Key") => {
                parameter["description"] =
                    json!("A request repeated with the same key is not carried out again.");
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
        ("400", "the request is not valid"),
        ("401", "no token, or a token that does not belong to this experiment"),
        (
            "403",
            "a valid token that does not allow this request, or a request of another site's page",
        ),
        ("503", "the database cannot be read or written, or the manager is stopping"),
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
            answer["description"] = json!("accepted");
            answer["content"] = json!({"application/json": {"schema": {"type": "object"}}});
        }
    }
    answers.sort_keys();
}

/// Returns this description
#[utoipa::path(
    get, path = "/api/v1/openapi.json", tag = "description",
    responses((status = 200, body = Object)),
)]
pub(in crate::api) async fn json(_: User) -> Json<Value> {
    Json(document().clone())
}
