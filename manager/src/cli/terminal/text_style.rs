//! PURE: the style of text in a terminal: its width, colours and hyperlinks.

use unicode_width::UnicodeWidthStr as _;

/// The maximum width of a sentence's line.
pub(in crate::cli) const MAX_SENTENCE_WIDTH: usize = 90;
/// The minimum width of a sentence's line in a narrow terminal.
pub(in crate::cli) const MIN_SENTENCE_WIDTH: usize = 24;

/// The properties of the output that determine the style of text.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::cli) struct TextStyle {
    /// The width of the terminal. `None` for a file or a pipe, whose lines may have any length.
    pub(in crate::cli) width: Option<usize>,
    /// `true` if the terminal shows colours and the user wants them.
    pub(in crate::cli) colours: bool,
    /// `true` if the terminal supports hyperlinks.
    pub(in crate::cli) links: bool,
}

impl TextStyle {
    /// Wraps a sentence to the space next to `indent` columns of other text.
    pub(in crate::cli) fn wrap(self, sentence: &str, indent: usize) -> String {
        let room = self.width.map_or(MAX_SENTENCE_WIDTH, |width| width.saturating_sub(indent));
        wrap(sentence, room.clamp(MIN_SENTENCE_WIDTH, MAX_SENTENCE_WIDTH)).join("\n")
    }

    /// Returns text in the colour of a state, as the API or a page names it: `FAILED`, `failed`.
    pub(in crate::cli) fn paint(self, state: &str, text: &str) -> String {
        let code = match state {
            "SUCCEEDED" | "DONE" | "succeeded" => 32,
            "FAILED" | "ERROR" | "UNREADABLE" | "failed" => 31,
            "RUNNING" | "running" => 36,
            "EARLY_STOPPED" | "INTERRUPTED" | "LOST" | "UNKNOWN" | "stopped early" | "lost"
            | "unknown" => 33,
            _ => return text.to_owned(),
        };
        if self.colours { format!("\u{1b}[{code}m{text}\u{1b}[0m") } else { text.to_owned() }
    }

    /// Returns text with a hyperlink (OSC 8,
    /// <https://gist.github.com/egmontkob/eb114294efbcd5adb1944c9f3cb5feda>). Terminals accept only printable ASCII
    /// characters in an address.
    pub(in crate::cli) fn link(self, page: &str, text: &str) -> String {
        let is_sound = !page.is_empty() && page.bytes().all(|byte| byte.is_ascii_graphic());
        if self.links && is_sound {
            format!("\u{1b}]8;;{page}\u{1b}\\{text}\u{1b}]8;;\u{1b}\\")
        } else {
            text.to_owned()
        }
    }
}

/// Wraps a line at blanks. A word that is longer than `width` is not broken.
pub(in crate::cli) fn wrap(line: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in line.split(' ') {
        let last = lines.len() - 1;
        if lines[last].is_empty() {
            lines[last].push_str(word);
        } else if lines[last].width() + 1 + word.width() > width {
            lines.push(word.to_owned());
        } else {
            lines[last].push(' ');
            lines[last].push_str(word);
        }
    }
    lines
}
