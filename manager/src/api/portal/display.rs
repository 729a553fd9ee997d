//! PURE: numbers, times and foreign text in a readable form.

use serde_json::Value;
use trial_protocol::OBJECTIVE;

use crate::search::repeats::Estimate;
pub(in crate::api) use crate::view::format_duration;
pub(in crate::api) use crate::view::state_names::{
    all_trial_states as all_states, experiment_state, trial_state as state, trial_states as states,
};
use crate::view::{TrialSummary, is_direction_mark};

/// The maximum length of a value in a table, in characters.
const BRIEF_CHARS: usize = 40;
/// The maximum length of a line with several members in an outline, in characters.
const OUTLINE_WIDTH: usize = 80;

/// Makes foreign text harmless to display. Escape sequences of terminals are removed. Control characters and marks
/// that change the direction of writing are replaced by symbols.
pub(in crate::api) fn sanitize(text: &str) -> String {
    let mut tamed = String::with_capacity(text.len());
    let mut rest = text.chars().peekable();
    while let Some(character) = rest.next() {
        match character {
            '\n' | '\t' => tamed.push(character),
            '\r' if rest.peek() == Some(&'\n') => {}
            '\u{1b}' if rest.peek() == Some(&'[') => {
                rest.next();
                // A control sequence ends with a byte of 0x40 to 0x7e (ECMA-48, section 5.4).
                while rest.next().is_some_and(|part| !('\u{40}'..='\u{7e}').contains(&part)) {}
            }
            '\0'..='\u{1f}' => {
                tamed.push(char::from_u32(0x2400 + u32::from(character)).unwrap_or('\u{fffd}'));
            }
            '\u{7f}' => tamed.push('\u{2421}'),
            '\u{80}'..='\u{9f}' => tamed.push('\u{fffd}'),
            _ if is_direction_mark(character) => tamed.push('\u{fffd}'),
            _ => tamed.push(character),
        }
    }
    tamed
}

/// Converts a fragment to a sentence, with a capital letter and a full stop.
pub(in crate::api) fn sentence(fragment: &str) -> String {
    let end = if fragment.ends_with(['.', '!', '?', '"']) { "" } else { "." };
    capitalized(fragment) + end
}

/// Makes the first letter a capital.
pub(in crate::api) fn capitalized(fragment: &str) -> String {
    let mut letters = fragment.chars();
    let first = letters.next().into_iter().flat_map(char::to_uppercase);
    first.chain(letters.by_ref()).collect()
}

/// Returns the name of a metric for users. The metric of NNI's SDK has no name of its own.
pub(in crate::api) fn metric(name: &str) -> String {
    if name == OBJECTIVE { "result".to_owned() } else { sanitize(name) }
}

/// Formats a value on one line.
pub(in crate::api) fn value(value: &Value) -> String {
    match value {
        Value::String(text) => sanitize(text).replace('\n', " "),
        Value::Number(number) => match number.as_f64().filter(|_| number.is_f64()) {
            Some(number) => self::number(number),
            None => number.to_string(),
        },
        Value::Null => String::new(),
        Value::Bool(_) | Value::Array(_) | Value::Object(_) => sanitize(&value.to_string()),
    }
}

/// Formats a JSON value over several lines. A member that fits stays on one line.
pub(in crate::api) fn outline(value: &Value) -> String {
    outline_at(value, 0)
}

fn outline_at(value: &Value, depth: usize) -> String {
    let short = in_one_line(value);
    if depth > 0 && short.chars().count() + 2 * depth <= OUTLINE_WIDTH {
        return short;
    }
    let inner = "  ".repeat(depth + 1);
    let lines = |parts: Vec<String>, ends: [&str; 2]| {
        let parts = parts.iter().map(|part| format!("{inner}{part}"));
        let parts = parts.collect::<Vec<_>>().join(",\n");
        format!("{}\n{parts}\n{}{}", ends[0], "  ".repeat(depth), ends[1])
    };
    match value {
        Value::Array(all) if !all.is_empty() => {
            lines(all.iter().map(|one| outline_at(one, depth + 1)).collect(), ["[", "]"])
        }
        Value::Object(members) if !members.is_empty() => {
            let member = |(name, value): (&String, &Value)| {
                format!("{}: {}", Value::from(name.as_str()), outline_at(value, depth + 1))
            };
            lines(members.iter().map(member).collect(), ["{", "}"])
        }
        Value::Null
        | Value::Bool(_)
        | Value::Number(_)
        | Value::String(_)
        | Value::Array(_)
        | Value::Object(_) => short,
    }
}

/// Formats a JSON value on one line.
pub(in crate::api) fn in_one_line(value: &Value) -> String {
    match value {
        Value::Array(all) => {
            format!("[{}]", all.iter().map(in_one_line).collect::<Vec<_>>().join(", "))
        }
        Value::Object(members) => {
            let member = |(name, value): (&String, &Value)| {
                format!("{}: {}", Value::from(name.as_str()), in_one_line(value))
            };
            format!("{{{}}}", members.iter().map(member).collect::<Vec<_>>().join(", "))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.to_string(),
    }
}

/// Formats a result as one value. Of an object with a counting value, the result is that value. Any other object
/// shows each member with its name.
pub(in crate::api) fn result(result: &Value) -> String {
    let Some(members) = result.as_object() else { return value(result) };
    match members.get(OBJECTIVE) {
        Some(counts) => value(counts),
        None => {
            let all = members
                .iter()
                .map(|(name, member)| format!("{} {}", sanitize(name), value(member)));
            all.collect::<Vec<_>>().join(", ")
        }
    }
}

/// Formats the result with which a trial competes for the best. If points are repeated, this is the mean of its
/// point.
pub(in crate::api) fn competing(trial: &TrialSummary) -> String {
    match &trial.estimate {
        Some(mean) => estimate(mean),
        None => trial.final_value.as_ref().map(result).unwrap_or_default(),
    }
}

/// Formats a mean with its confidence.
pub(in crate::api) fn estimate(estimate: &Estimate) -> String {
    let Estimate { results, wanted, .. } = estimate;
    format!("{}, the mean of {results} of {wanted} trials", short_estimate(estimate))
}

/// Formats a mean with its confidence for a column.
pub(in crate::api) fn short_estimate(estimate: &Estimate) -> String {
    let within = estimate.half_width.map(|half_width| format!(" ± {}", rate(half_width)));
    format!("{}{}", number(estimate.mean), within.unwrap_or_default())
}

/// Formats a value for a column.
pub(in crate::api) fn short_value(value: &Value) -> String {
    cut_to_column(self::value(value))
}

/// Formats a result for a column.
pub(in crate::api) fn short_result(result: &Value) -> String {
    cut_to_column(self::result(result))
}

/// Shortens a text to the width of a column.
fn cut_to_column(text: String) -> String {
    if text.chars().count() <= BRIEF_CHARS {
        return text;
    }
    text.chars().take(BRIEF_CHARS - 1).chain(['…']).collect()
}

/// Formats a number with five significant digits.
pub(in crate::api) fn number(number: f64) -> String {
    let rounded: f64 = format!("{number:.4e}").parse().unwrap_or(number);
    if rounded == 0.0 || (1e-4..1e7).contains(&rounded.abs()) {
        rounded.to_string()
    } else {
        format!("{rounded:e}")
    }
}

/// Formats a number with three significant digits, or without decimals from 100 on.
pub(in crate::api) fn rate(number: f64) -> String {
    match number.abs() {
        size if size >= 100.0 => format!("{number:.0}"),
        _ => {
            let rounded: f64 = format!("{number:.2e}").parse().unwrap_or(number);
            rounded.to_string()
        }
    }
}

/// Formats a span of time that may be unknown.
pub(in crate::api) fn span_if_any(ms: Option<i64>) -> String {
    ms.and_then(|ms| u64::try_from(ms).ok()).map_or_else(String::new, format_duration)
}

/// Formats a time, in UTC.
pub(in crate::api) fn moment(ms: i64) -> String {
    match jiff::Timestamp::from_millisecond(ms) {
        Ok(at) => at.strftime("%Y-%m-%d %H:%M:%S").to_string(),
        Err(_) => ms.to_string(),
    }
}

/// Formats the time since a moment in its largest full unit. A time in the future is `just now`.
pub(in crate::api) fn ago(at_ms: i64, now_ms: i64) -> String {
    let seconds = now_ms.saturating_sub(at_ms) / 1000;
    let units = [(86_400, "d"), (3_600, "h"), (60, "min")];
    match units.into_iter().find(|(length, _)| seconds >= *length) {
        Some((length, unit)) => format!("{} {unit} ago", seconds / length),
        None => "just now".to_owned(),
    }
}

/// Formats an amount of memory.
pub(in crate::api) fn bytes(bytes: f64) -> String {
    let units = [(1e9, "GB"), (1e6, "MB"), (1e3, "kB")];
    match units.into_iter().find(|(size, _)| bytes >= *size) {
        Some((size, unit)) => format!("{:.1} {unit}", bytes / size),
        None => format!("{bytes} B"),
    }
}

/// Returns a verdict's cause in plain words. A cause that this build does not support is returned unchanged.
pub(in crate::api) fn cause(cause: &str) -> &str {
    match cause {
        "exit" => "the command failed",
        "signal" => "killed by a signal",
        "oom-kernel" => "out of memory",
        "oom-cuda" => "out of GPU memory",
        "stopped" => "stopped",
        "early-stopped" => "stopped early",
        "preempted" => "preempted by the platform",
        "deadline" => "the time limit was reached",
        "stalled" => "no progress",
        "gpu-lost" => "a GPU was lost",
        "disk-full" => "a disk was full",
        "not-executable" => "the command cannot be executed",
        "not-found" => "the command was not found",
        "keeper-error" => "the agent failed",
        "unknown" => "the agent reported no cause",
        _ => cause,
    }
}

/// Returns the prospect of a retry, from the verdict's class.
pub(in crate::api) fn class(class: &str) -> &str {
    match class {
        "none" => "nothing failed",
        "user-error" => "would fail in the same way",
        "transient" => "may succeed",
        "permanent" => "would fail until the machine is repaired",
        _ => class,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn foreign_text_is_harmless() {
        #[rustfmt::skip]
        let table = [
            ("plain\ttext\r\n",              "plain\ttext\n"),
            ("\u{1b}[1;31mred\u{1b}[0m",     "red"),
            ("bell\u{7} \u{1b}]0;title",     "bell\u{2407} \u{241b}]0;title"),
            ("evil\u{202e}gpj.exe",          "evil\u{fffd}gpj.exe"),
            ("a\u{61c}b\u{200f}c\u{2069}",    "a\u{fffd}b\u{fffd}c\u{fffd}"),
            ("\u{1b}[",                      ""),
        ];
        for (text, tamed) in table {
            assert_eq!(sanitize(text), tamed);
        }
    }

    #[test]
    fn numbers_and_times_are_short() {
        #[rustfmt::skip]
        let table = [
            (json!(0.123_456_789), "0.12346"), (json!(1e-9), "1e-9"), (json!(12_345_678), "12345678"),
            (json!(0.0), "0"), (json!("a\nb"), "a b"), (json!(null), ""), (json!([1]), "[1]"),
        ];
        for (value, text) in table {
            assert_eq!(super::value(&value), text);
        }
        assert_eq!([0.0, 9.876, 32.14, 2487.2].map(rate), ["0", "9.88", "32.1", "2487"]);
        assert_eq!(moment(0), "1970-01-01 00:00:00");
        assert_eq!(bytes(1_500_000.0), "1.5 MB");
    }

    #[test]
    fn a_result_of_several_metrics_is_the_counting_one() {
        #[rustfmt::skip]
        let table = [
            (json!(0.25), "0.25"), (json!({"default": 1, "loss": 1, "latency": 9}), "1"),
            (json!({"f1": 0.5, "loss": 2}), "f1 0.5, loss 2"), (json!({"default": "-Infinity"}), "-Infinity"), (json!({}), ""),
        ];
        for (value, text) in table {
            assert_eq!(result(&value), text, "{value}");
        }
    }

    #[test]
    fn an_outline_has_lines_that_fit() {
        let long = "x".repeat(80);
        #[rustfmt::skip]
        let table = [
            (json!({"a": [1, 0.5], "b": {"c": "d"}}), "{\n  \"a\": [1, 0.5],\n  \"b\": {\"c\": \"d\"}\n}".to_owned()),
            (json!({"a": [long]}), format!("{{\n  \"a\": [\n    \"{long}\"\n  ]\n}}")),
            (json!({}), "{}".to_owned()), (json!(1), "1".to_owned()),
        ];
        for (value, text) in table {
            assert_eq!(outline(&value), text);
            assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), value);
        }
    }

    #[test]
    fn an_age_is_shown_in_its_largest_unit() {
        let table = [
            (0, "just now"),
            (90, "1 min ago"),
            (7_300, "2 h ago"),
            (200_000, "2 d ago"),
            (-5, "just now"),
        ];
        for (seconds, expected) in table {
            assert_eq!(ago(0, seconds * 1000), expected);
        }
    }

    proptest! {
        #[test]
        fn only_line_ends_and_tabs_remain_as_control_characters(text in any::<String>()) {
            let harmless = |c: char| !c.is_control() || c == '\n' || c == '\t';
            prop_assert!(sanitize(&text).chars().all(harmless));
        }
    }
}
