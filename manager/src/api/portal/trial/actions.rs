//! The forms that stop or rerun a trial, or run one with other parameters.

use maud::{Markup, html};
use serde_json::Value;

use super::super::base::url;
use super::super::display;
use super::super::page::Viewer;
use crate::search::user_point;
use crate::view::{self, TrialDetail};

pub(super) fn actions(viewer: &Viewer, detail: &TrialDetail) -> Markup {
    let trial = &detail.summary;
    html! {
        @if viewer.may_change {
            @if trial.state.is_final() {
                form.inline method="post" action={ (url("/trials/")) (trial.id) "/rerun" } { button { "Rerun" } }
            } @else {
                form.inline method="post" action={ (url("/trials/")) (trial.id) "/stop" } data-confirm="Stop this trial?" {
                    button.danger { "Stop this trial" }
                }
            }
            details {
                summary { "Run with other parameters" }
                form.point method="post" action=(url("/points")) {
                    @for (name, value) in view::flatten_parameters(&trial.parameters) {
                        label { (display::sanitize(&name)) " " input name=(name) value=(input_text(value)) autocomplete="off"; }
                    }
                    button { "Run this point" }
                }
                p.hint { "The new trial runs before the tuner's next ones. The value of an empty field is drawn from the search space." }
            }
        }
    }
}

/// Returns a parameter in the form of an input field. A text that would be read as another type is in quotes.
fn input_text(value: &Value) -> String {
    match value {
        Value::String(text) if user_point::parse_written_value(text) == *value => text.clone(),
        value @ (Value::Null
        | Value::Bool(_)
        | Value::Number(_)
        | Value::String(_)
        | Value::Array(_)
        | Value::Object(_)) => value.to_string(),
    }
}
