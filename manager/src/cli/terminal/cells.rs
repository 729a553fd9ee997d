//! PURE: values of the API as text for a cell. Control characters in foreign text are replaced.

use serde_json::Value;
use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

use super::plain_text::printable;
use crate::view;

/// The maximum number of characters in a cell.
const CELL_WIDTH: usize = 60;
/// The maximum number of characters in a column of values.
const VALUE_WIDTH: usize = 20;

/// Returns a member as text, empty if it is absent.
pub(in crate::cli) fn member_text(of: &Value, name: &str) -> String {
    of.get(name).map(cell).unwrap_or_default()
}

/// Returns a value on one line of limited width.
pub(in crate::cli) fn cell(value: &Value) -> String {
    let text = match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => value.to_string(),
    };
    cut(&printable(&text), CELL_WIDTH)
}

/// Shortens a text to at most `width` characters.
pub(in crate::cli) fn cut(text: &str, width: usize) -> String {
    if text.chars().nth(width).is_none() {
        return text.to_owned();
    }
    text.chars().take(width.saturating_sub(1)).chain(['…']).collect()
}

/// Shortens a name to at most `width` columns. The beginning and the end stay, because similar names differ at either.
pub(in crate::cli) fn shorten(name: &str, width: usize) -> String {
    if name.width() <= width {
        return name.to_owned();
    }
    let room = width.saturating_sub(1);
    let fitting = |letters: &mut dyn Iterator<Item = char>, room: usize| {
        let mut used = 0;
        let fits = |letter: &char| {
            used += letter.width().unwrap_or(0);
            used <= room
        };
        letters.take_while(fits).collect::<Vec<_>>()
    };
    let first = fitting(&mut name.chars(), room.div_ceil(2));
    let last = fitting(&mut name.chars().rev(), room / 2);
    first.into_iter().chain(['…']).take(width).chain(last.into_iter().rev()).collect()
}

/// Returns a foreign name as a printable heading.
pub(in crate::cli) fn heading(name: &str) -> String {
    cut(&printable(name), CELL_WIDTH)
}

/// Returns a value for a column. Floats have four significant digits; commands that show a single object show all
/// digits.
pub(in crate::cli) fn short_cell(value: &Value) -> String {
    let rounded = value.as_f64().filter(|_| value.is_f64()).and_then(|number| {
        let number: f64 = format!("{number:.3e}").parse().ok()?;
        Some(if (1e-4..1e6).contains(&number.abs()) || number == 0.0 {
            number.to_string()
        } else {
            format!("{number:e}")
        })
    });
    rounded.unwrap_or_else(|| cut(&cell(value), VALUE_WIDTH))
}

/// Returns a member for a column.
pub(in crate::cli) fn short_member(of: &Value, name: &str) -> String {
    of.get(name).map(short_cell).unwrap_or_default()
}

/// Returns the lines of a text, each printable.
pub(in crate::cli) fn printable_lines(text: &str) -> Vec<String> {
    text.trim_end().lines().map(printable).collect()
}

/// Returns a member in full length, for a column that wraps its lines.
pub(in crate::cli) fn full_text(of: &Value, name: &str) -> String {
    printable_lines(of.get(name).and_then(Value::as_str).unwrap_or_default()).join("\n")
}

/// Returns a time in UTC.
pub(in crate::cli) fn moment(of: &Value, name: &str) -> String {
    let ms = of.get(name).and_then(Value::as_i64);
    let at = ms.and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
    at.map(|at| at.strftime("%Y-%m-%d %H:%M:%S").to_string()).unwrap_or_default()
}

/// Returns the time between two moments, such as `17 min 48 s`. Empty if either of them is unknown.
pub(in crate::cli) fn duration(from_ms: Option<i64>, to_ms: Option<i64>) -> String {
    let span = from_ms.zip(to_ms).map(|(from, to)| to.saturating_sub(from));
    span.map_or_else(String::new, |ms| view::format_duration(u64::try_from(ms).unwrap_or(0)))
}

/// Returns an amount of memory in MB or GB.
pub(in crate::cli) fn bytes(amount: f64) -> String {
    if amount < 1e9 { format!("{:.0} MB", amount / 1e6) } else { format!("{:.1} GB", amount / 1e9) }
}

pub(in crate::cli) fn list_items<'a>(of: &'a Value, name: &str) -> impl Iterator<Item = &'a Value> {
    of.get(name).and_then(Value::as_array).into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_column_shows_four_digits() {
        #[rustfmt::skip]
        let table = [
            (json!(0.284_934_476_086_128_8), "0.2849"),
            (json!(0.000_030_557_031_8),     "3.056e-5"),
            (json!(123_456.789),             "123500"),
            (json!(-2.5e30),                 "-2.5e30"),
            (json!(0.0),                     "0"),
            (json!(16),                      "16"),
            (json!("relu"),                  "relu"),
            (json!("a\nb"),                  "a\u{fffd}b"),
            (json!([1, 2]),                  "[1,2]"),
        ];
        for (value, text) in table {
            assert_eq!(short_cell(&value), text, "{value}");
        }
    }
}
