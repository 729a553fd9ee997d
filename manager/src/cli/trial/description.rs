//! PURE: the description of a trial.

use serde_json::Value;

use crate::cli::terminal::cells::{list_items, member_text, moment, printable_lines};
use crate::cli::terminal::description::{LABEL_WIDTH, linked_id, name_values, state, wrapped};
use crate::cli::terminal::parameter_cells::parameters;
use crate::cli::terminal::plain_text::printable;
use crate::cli::terminal::text_style::TextStyle;
use crate::cli::terminal::trial_cells::{code, estimate, part_name, trial_duration};
use crate::util::shell::command_line;

/// Returns the description of a trial.
pub(super) fn trial(one: &Value, style: TextStyle) -> String {
    let command = list_items(one, "command").filter_map(Value::as_str).map(str::to_owned);
    let command = command_line(&command.collect::<Vec<_>>());
    let own = [
        ("trial", member_text(one, "sequence")),
        ("id", linked_id(one, style)),
        ("state", state(one, style)),
        ("why", wrapped(one, "message", style, LABEL_WIDTH)),
        ("metric", member_text(one, "metric")),
        ("final", full_result(one, "final")),
        ("mean", estimate(one).unwrap_or_default()),
        ("latest", full_result(one, "latest")),
        ("started (UTC)", moment(one, "started_at_ms")),
        ("ended (UTC)", moment(one, "ended_at_ms")),
        ("time", trial_duration(one)),
        ("exit code", member_text(one, "exit_code")),
        ("being stopped", member_text(one, "stopping")),
        ("command", printable_lines(&command).join("\n")),
        ("host", member_text(one, "host")),
        ("service", one.get("training_service").map(part_name).unwrap_or_default()),
        ("code", one.get("code").map(code).unwrap_or_default()),
        ("attempt", member_text(one, "attempt")),
        ("attempts", list_items(one, "attempts").count().to_string()),
    ];
    let own = own.into_iter().map(|(name, value)| (name.to_owned(), value));
    name_values(own.chain(parameters(one)))
}

/// Returns a result with all its digits, and an object with all its members.
fn full_result(of: &Value, name: &str) -> String {
    match of.get(name) {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => printable(text),
        Some(value) => printable(&value.to_string()),
    }
}
