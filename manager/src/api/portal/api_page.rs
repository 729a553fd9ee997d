//! The API's description as a page.

use axum::response::Response;
use maud::html;
use serde_json::Value;

use super::super::user::document;
use super::page::{Viewer, page as dressed};
use super::words;

/// `GET /api`.
fn described(viewer: &Viewer) -> Response {
    let document = serde_json::to_value(document::document()).unwrap_or_default();
    let text = |value: &Value, name: &str| {
        value.get(name).and_then(Value::as_str).map(words::tame).unwrap_or_default()
    };
    let paths = document.get("paths").and_then(Value::as_object);
    let operations = paths.into_iter().flatten().flat_map(|(path, methods)| {
        let methods = methods.as_object().into_iter().flatten();
        methods.map(move |(method, operation)| (path, method.to_uppercase(), operation))
    });
    let content = html! {
        h1 { "API" }
        p { (text(&document["info"], "description")) }
        p { a href="/api/v1/openapi.json" { "The whole description for programs (OpenAPI 3.1)" } }
        @for (path, method, operation) in operations {
            section {
                h2 { code { (method) " " (path) } }
                p { (text(operation, "summary")) }
                @let more = text(operation, "description");
                @if !more.is_empty() { p.hint { (more) } }
                @let parameters = operation.get("parameters").and_then(Value::as_array);
                @if let Some(parameters) = parameters {
                    table {
                        thead { tr { th scope="col" { "Parameter" } th scope="col" { "In" } th scope="col" { "Meaning" } } }
                        tbody {
                            @for parameter in parameters {
                                tr {
                                    th scope="row" { code { (text(parameter, "name")) } }
                                    td { (text(parameter, "in")) }
                                    td { (text(parameter, "description")) }
                                }
                            }
                        }
                    }
                }
            }
        }
    };
    dressed(viewer, "API", None, &content)
}

pub(super) async fn page(viewer: Viewer) -> Response {
    described(&viewer)
}
