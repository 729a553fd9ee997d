//! PURE: the explanation of a trial's state: verdict, evidence and timeline.

use std::fmt::Write as _;

use serde_json::Value;

use crate::cli::terminal::cells::{
    bytes, cell, duration, full_text, heading, list_items, member_text, moment,
};
use crate::cli::terminal::description::{name_values, state, wrapped};
use crate::cli::terminal::plain_text::printable;
use crate::cli::terminal::table::{ColumnFit, table};
use crate::cli::terminal::text_style::TextStyle;

/// The width of the longest label of a verdict's own members, and the gap after it.
const VERDICT_INDENT: usize = 14;

/// Returns the why of a trial's state: verdict, evidence and timeline.
pub(in crate::cli) fn explanation(one: &Value, style: TextStyle) -> String {
    let violations = list_items(one, "violations").filter_map(Value::as_str).map(printable);
    let own = [
        ("state", state(one, style)),
        ("why", wrapped(one, "message", style, VERDICT_INDENT)),
        ("violates", violations.collect::<Vec<_>>().join("\n")),
    ];
    let mut shown = name_values(own);
    if let Some(verdict) = one.get("verdict").filter(|verdict| !verdict.is_null()) {
        // The verdict's message is shown only if it differs from the trial's message above.
        let own_message = verdict.get("message") != one.get("message");
        shown.push_str(&verdict_text(verdict, own_message, style));
    }
    shown.push('\n');
    let rows = list_items(one, "timeline").map(|entry| {
        let why = full_text(entry, "message");
        vec![moment(entry, "at_ms"), member_text(entry, "by"), member_text(entry, "what"), why]
    });
    let heads = [
        ("time (UTC)", ColumnFit::Text),
        ("by", ColumnFit::Text),
        ("what", ColumnFit::Text),
        ("why", ColumnFit::Sentence),
    ];
    shown.push_str(&table(heads, rows, style));
    shown
}

/// Returns a verdict with its evidence: measurements, then the ends of the streams.
fn verdict_text(verdict: &Value, own_message: bool, style: TextStyle) -> String {
    let message = own_message.then(|| wrapped(verdict, "message", style, VERDICT_INDENT));
    let ran = duration(Some(0), verdict.get("duration_ms").and_then(Value::as_i64));
    let known = [
        ("message", message.unwrap_or_default()),
        ("cause", member_text(verdict, "cause")),
        ("class", member_text(verdict, "class")),
        ("confidence", member_text(verdict, "confidence")),
        ("exit", exit_text(verdict)),
        ("stop", member_text(verdict, "stop")),
        ("duration", ran),
    ];
    let known = known.into_iter().map(|(name, value)| (format!("  {name}"), value));
    let mut shown = format!("\nverdict\n{}", name_values(known));
    let evidence = || verdict.get("evidence").and_then(Value::as_object).into_iter().flatten();
    if evidence().next().is_some() {
        shown.push_str("evidence\n");
    }
    let is_stream = |name: &str| name.ends_with("_tail");
    let measured = evidence().filter(|(name, _)| !is_stream(name));
    let measured = measured.map(|(name, value)| measurement(name, value));
    shown.push_str(&name_values(measured.map(|(name, value)| (format!("  {name}"), value))));
    for (name, value) in evidence().filter(|(name, _)| is_stream(name)) {
        writeln!(shown, "  {}", heading(&name.replace('_', " "))).unwrap_or_default();
        for line in value.as_str().unwrap_or_default().lines() {
            writeln!(shown, "    | {}", printable(line)).unwrap_or_default();
        }
    }
    shown
}

/// Returns the exit of a verdict, such as `code 3` or `signal 9`.
fn exit_text(verdict: &Value) -> String {
    let exit = verdict.get("exit").unwrap_or(&Value::Null);
    let number = |name: &str| exit.get(name).map(|number| format!("{name} {}", cell(number)));
    number("code").or_else(|| number("signal")).unwrap_or_else(|| cell(exit))
}

/// Returns the label and the text of a measurement. The end of its name is the unit.
fn measurement(name: &str, value: &Value) -> (String, String) {
    let label = |name: &str| heading(&name.replace('_', " "));
    match (name.strip_suffix("_bytes"), value.as_f64()) {
        (Some(name), Some(amount)) => (label(name), bytes(amount)),
        // Not shortened: the platform's own message explains why the trial ended.
        _ => {
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            (label(name), printable(&text))
        }
    }
}
