//! PURE: the description of a single object, such as a trial: lines of names and values.

use std::fmt::Write as _;

use serde_json::Value;

use super::cells::{member_text, printable_lines};
use super::text_style::TextStyle;

/// The member of a trial or an experiment with the address of its page, if known.
pub(in crate::cli) const PAGE_MEMBER: &str = "page";
/// The width of the longest label of a trial or an experiment, and the gap after it.
pub(in crate::cli) const LABEL_WIDTH: usize = 15;

/// Returns lines of names and values. A value may have several lines; a name without a value is left out.
pub(in crate::cli) fn name_values(
    pairs: impl IntoIterator<Item = (impl Into<String>, String)>,
) -> String {
    let pairs = pairs.into_iter().filter(|(_, value)| !value.is_empty());
    let pairs: Vec<(String, String)> = pairs.map(|(name, value)| (name.into(), value)).collect();
    let width = pairs.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    pairs.into_iter().fold(String::new(), |mut text, (name, value)| {
        let value = value.replace('\n', &format!("\n{:width$}  ", ""));
        writeln!(text, "{name:width$}  {value}").unwrap_or_default();
        text
    })
}

/// Returns a member in full length, wrapped to the space next to `indent` columns of other text.
pub(in crate::cli) fn wrapped(of: &Value, name: &str, style: TextStyle, indent: usize) -> String {
    let text = of.get(name).and_then(Value::as_str).unwrap_or_default();
    let lines = printable_lines(text).into_iter().map(|line| style.wrap(&line, indent));
    lines.collect::<Vec<_>>().join("\n")
}

/// Returns the member `state` in its colour.
pub(in crate::cli) fn state(of: &Value, style: TextStyle) -> String {
    let state = member_text(of, "state");
    style.paint(&state, &state)
}

/// Returns the id as a hyperlink to the page, if known.
pub(in crate::cli) fn linked_id(of: &Value, style: TextStyle) -> String {
    style.link(&member_text(of, PAGE_MEMBER), &member_text(of, "id"))
}
