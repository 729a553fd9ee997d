//! The API's description as a page, generated from the document that programs read.

use axum::response::Response;
use maud::{Markup, html};
use serde_json::Value;

use super::super::user::document;
use super::base::url;
use super::display;
use super::page::{Viewer, page as dressed};

/// `GET /api`: shows the description of the API.
pub(super) async fn page(viewer: Viewer) -> Response {
    let document = document::document();
    let paths = document.get("paths").and_then(Value::as_object);
    let operations: Vec<_> = paths
        .into_iter()
        .flatten()
        .flat_map(|(path, methods)| {
            let methods = methods.as_object().into_iter().flatten();
            methods.map(move |(method, operation)| (path, method.to_uppercase(), operation))
        })
        .collect();
    let schemas = document.pointer("/components/schemas").and_then(Value::as_object);
    let content = html! {
        h1 { "API" }
        p { (render_text(&document["info"], "description")) }
        p { a href=(url("/api/v1/openapi.json")) { "The complete description for programs (OpenAPI 3.1)" } }
        @for (path, method, operation) in &operations {
            section { (operation_section(path, method, operation)) }
        }
        h2 { "Schemas" }
        @for (name, schema) in schemas.into_iter().flatten() { (schema_section(name, schema)) }
    };
    dressed(&viewer, "API", None, &content)
}

fn operation_section(path: &str, method: &str, operation: &Value) -> Markup {
    let parameters = operation.get("parameters").and_then(Value::as_array);
    let body = operation.pointer("/requestBody/content/application~1json/schema");
    let answers = operation.get("responses").and_then(Value::as_object);
    html! {
        h2 { code { (method) " " (path) } }
        p { (render_text(operation, "summary")) "." }
        @if operation.get("description").is_some() { p.hint { (render_text(operation, "description")) } }
        @if parameters.is_some() || body.is_some() {
            div.scroll tabindex="0" role="region" aria-label={ "Parameters of " (method) " " (path) } {
                table.cards {
                    thead { tr { th scope="col" { "Parameter" } th scope="col" { "In" } th scope="col" { "Meaning" } } }
                    tbody {
                        @for parameter in parameters.into_iter().flatten() {
                            tr {
                                th scope="row" { code { (text(parameter, "name")) } }
                                td { (text(parameter, "in")) }
                                td.meaning { (render_text(parameter, "description")) }
                            }
                        }
                        @if let Some(schema) = body {
                            tr { th scope="row" { (type_name(schema)) } td { "body" } td.meaning { (render_text(&operation["requestBody"], "description")) } }
                        }
                    }
                }
            }
        }
        p.hint {
            "Responses: "
            @for (at, (status, answer)) in answers.into_iter().flatten().enumerate() {
                @if at > 0 { "; " }
                @let content = answer.get("content").and_then(Value::as_object).and_then(|content| content.iter().next());
                @let description = render_text(answer, "description");
                code { (status) } " "
                @match content {
                    Some((media, one)) if media == "application/json" => (type_name(&one["schema"])),
                    Some((media, _)) if media != "application/problem+json" => {
                        (media) @if !text(answer, "description").is_empty() { ", " (description) }
                    },
                    _ => (description),
                }
            }
        }
    }
}

/// Renders the members of a named schema, or the words of an enumeration.
fn schema_section(name: &str, schema: &Value) -> Markup {
    let parts = schema.get("allOf").and_then(Value::as_array);
    let parts = parts.map_or_else(|| vec![schema], |parts| parts.iter().collect());
    let words = schema.get("enum").and_then(Value::as_array);
    html! {
        section id={ "schema-" (name) } {
            h3 { code { (name) } }
            p.hint {
                (render_text(schema, "description"))
                @for word in words.into_iter().flatten() { " " code { (display::value(word)) } }
            }
            @for other in parts.iter().filter(|part| part.get("$ref").is_some()) { p { "All members of " (type_name(other)) ", and:" } }
            div.scroll tabindex="0" role="region" aria-label={ "Members of " (name) } hidden[words.is_some()] {
                table.cards {
                    tbody {
                        @for (member, inner) in parts.iter().filter_map(|part| part["properties"].as_object()).flatten() {
                            tr { th scope="row" { code { (member) } } td { (type_name(inner)) } td.meaning { (render_text(inner, "description")) } }
                        }
                    }
                }
            }
        }
    }
}

/// Returns the type of the values that a schema describes, in a word. The name of a schema links to its members.
fn type_name(schema: &Value) -> Markup {
    if let Some(name) = schema.get("$ref").and_then(Value::as_str) {
        let name = name.rsplit('/').next().unwrap_or(name);
        return html! { a href={ "#schema-" (name) } { code { (name) } } };
    }
    let options = schema.get("oneOf").or_else(|| schema.get("anyOf")).and_then(Value::as_array);
    if let Some(options) = options {
        let named = options.iter().find(|option| option.get("$ref").is_some());
        return html! { (named.map_or_else(|| html! { "any" }, type_name)) };
    }
    let words = match &schema["type"] {
        Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).find(|kind| *kind != "null"),
        Value::String(kind) => Some(kind.as_str()),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => None,
    };
    html! {
        (words.unwrap_or("any"))
        @if let Some(items) = schema.get("items") { " of " (type_name(items)) }
    }
}

fn text(value: &Value, name: &str) -> String {
    value.get(name).and_then(Value::as_str).map(display::sanitize).unwrap_or_default()
}

/// Renders a text of the description. Text between backticks becomes code.
fn render_text(value: &Value, name: &str) -> Markup {
    let text = text(value, name);
    html! {
        @for (at, part) in text.split('`').enumerate() {
            @if at % 2 == 1 { code { (part) } } @else { (part) }
        }
    }
}
