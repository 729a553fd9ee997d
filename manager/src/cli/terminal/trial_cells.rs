//! PURE: members of a trial as text for a cell: its results, duration and place, and the version of its code.

use serde_json::Value;
use trial_protocol::OBJECTIVE;

use super::cells::{duration, heading, member_text, short_cell, short_member, shorten};
use super::plain_text::printable;
use crate::view;

/// The maximum width of the name of a metric at the head of a column.
const HEADING_WIDTH: usize = 24;

/// Returns the heading of the results: the name of their metric, or `final` if trials report none by name.
pub(in crate::cli) fn result_name(mut metrics: impl Iterator<Item = String>) -> String {
    let name = metrics.find(|name| !name.is_empty() && name != OBJECTIVE);
    name.map_or_else(|| "final".to_owned(), |name| short_heading(&name))
}

/// Returns a name for the head of a column.
pub(in crate::cli) fn short_heading(name: &str) -> String {
    shorten(&heading(name), HEADING_WIDTH)
}

/// Returns a trial's result for a column. Of an object, it is the member `metric`, or else the one that counts.
pub(in crate::cli) fn result_text(trial: &Value, name: &str, metric: &str) -> String {
    let Some(value) = trial.get(name) else { return String::new() };
    counting_value(value, metric)
}

/// Returns a result for a column. Of an object, it is the member `metric`, or else the one that counts.
pub(in crate::cli) fn counting_value(result: &Value, metric: &str) -> String {
    let member = result.get(metric).or_else(|| result.get(OBJECTIVE));
    short_cell(member.unwrap_or(result))
}

/// Returns the mean of a trial's point with its confidence interval, or `None` if points are not repeated.
pub(in crate::cli) fn estimate(trial: &Value) -> Option<String> {
    let estimate = trial.get("estimate").filter(|estimate| !estimate.is_null())?;
    let within =
        estimate.get("half_width").map(|half_width| format!(" ± {}", short_cell(half_width)));
    let (mean, within) = (short_member(estimate, "mean"), within.unwrap_or_default());
    Some(format!("{mean}{within}, the mean of {} trials", member_text(estimate, "results")))
}

/// Returns the duration of a trial's current attempt.
pub(in crate::cli) fn trial_duration(trial: &Value) -> String {
    let at = |name: &str| trial.get(name).and_then(Value::as_i64);
    duration(at("started_at_ms"), at("ended_at_ms"))
}

/// Returns the place of a trial: its machine, after the index of its training service if there are several services.
pub(in crate::cli) fn trial_place(trial: &Value) -> String {
    let part =
        trial.get("training_service").map(|part| format!("[{}]", member_text(part, "index")));
    let host = Some(member_text(trial, "host")).filter(|host| !host.is_empty());
    part.into_iter().chain(host).collect::<Vec<_>>().join(" ")
}

/// Returns the name of one of several training services.
pub(in crate::cli) fn part_name(part: &Value) -> String {
    format!("[{}] {}", member_text(part, "index"), member_text(part, "platform"))
}

/// Returns a short description of a version of the code.
pub(in crate::cli) fn code(version: &Value) -> String {
    let known = serde_json::from_value(version.clone()).ok();
    let description =
        known.map(|version| printable(&view::code::describe_version(&version))).unwrap_or_default();
    match version.get("trials").and_then(Value::as_str) {
        Some(trials) => {
            let plural = if trials.contains(['-', ',']) { "s" } else { "" };
            format!("{description}: trial{plural} {}", printable(trials))
        }
        None => description,
    }
}
