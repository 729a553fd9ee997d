//! PURE: foreign text and numbers of things as plain text for a terminal.

use crate::view::is_direction_mark;

/// Returns a number of things in words, such as `3 trials`.
pub(in crate::cli) fn counted(number: usize, thing: &str) -> String {
    format!("{number} {thing}{}", if number == 1 { "" } else { "s" })
}

/// Replaces control characters and direction marks, because a trial's output must not control the terminal.
pub(in crate::cli) fn printable(text: &str) -> String {
    let is_control = |c: char| c.is_control() && c != '\t' || is_direction_mark(c);
    text.chars().map(|c| if is_control(c) { '\u{fffd}' } else { c }).collect()
}
