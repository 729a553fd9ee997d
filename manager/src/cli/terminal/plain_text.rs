//! PURE: foreign text and numbers of things as plain text for a terminal.

use crate::view::is_direction_mark;

/// Returns a number of things in words, such as `3 trials`.
pub(in crate::cli) fn pluralize(number: usize, thing: &str) -> String {
    format!("{number} {thing}{}", if number == 1 { "" } else { "s" })
}

/// Replaces control characters and direction marks, because a trial's output must not control the terminal.
pub(in crate::cli) fn printable(text: &str) -> String {
    let is_control = |c: char| c.is_control() && c != '\t' || is_direction_mark(c);
    text.chars().map(|c| if is_control(c) { '\u{fffd}' } else { c }).collect()
}

#[cfg(test)]
pub(in crate::cli) mod tests {
    use super::*;

    /// Returns a long text that clears the screen, changes the colour and the direction, and rings the bell.
    pub(in crate::cli) fn hostile_text() -> String {
        format!("\u{1b}[2J\u{9b}31m\u{202e}{}\u{7}", "x".repeat(1000))
    }

    /// Asserts that a shown text does not control the terminal and is not much longer than a [`hostile_text`].
    pub(in crate::cli) fn assert_harmless(shown: &str) {
        let steers = |c: char| c.is_control() && c != '\n' || is_direction_mark(c);
        assert!(!shown.contains(steers), "{shown:?}");
        // Reasons are shown in full length.
        assert!(shown.len() < 20_000, "{} bytes", shown.len());
    }
}
