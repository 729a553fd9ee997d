//! Standard output: the result of a command, as a table for people or as JSON or YAML for programs.

use std::fmt::Write as _;
use std::io::{IsTerminal as _, Write as _};
use std::os::fd::AsFd as _;

use rustix::termios::tcgetwinsize;
use serde_json::Value;

use super::super::selection::{Error, Format};
use super::plain_text::printable;
use super::text_style::TextStyle;
use crate::view;

/// Prints `value` in the given format. `table` renders it as a table.
pub(in crate::cli) fn print_value(
    format: Format,
    value: &Value,
    table: impl FnOnce(&Value, TextStyle) -> String,
) -> Result<(), Error> {
    let text = match format {
        Format::Table => table(value, text_style()),
        Format::Json => format!("{}\n", escaped_json(&format!("{value:#}"))),
        Format::Yaml => serde_saphyr::to_string(value).unwrap_or_default(),
    };
    write_stdout(text.as_bytes())
}

/// Returns the width of the terminal at standard output, and whether it shows colours and hyperlinks. The variable
/// `NO_COLOR` turns colours off (<https://no-color.org>).
pub(in crate::cli) fn text_style() -> TextStyle {
    let stdout = std::io::stdout();
    if !stdout.is_terminal() {
        return TextStyle::default();
    }
    let is_set = |name: &str| std::env::var(name).is_ok_and(|value| !value.is_empty());
    let is_dumb = std::env::var("TERM").is_ok_and(|kind| kind == "dumb");
    let size = tcgetwinsize(stdout.as_fd()).ok().filter(|size| size.ws_col > 0);
    TextStyle {
        width: Some(size.map_or(80, |size| usize::from(size.ws_col))),
        colours: !is_set("NO_COLOR") && !is_dumb,
        links: supports_hyperlinks::on(supports_hyperlinks::Stream::Stdout),
    }
}

/// Returns an address for standard error, as a hyperlink if the terminal supports them.
pub(in crate::cli) fn stderr_link(url: &str) -> String {
    let links = supports_hyperlinks::on(supports_hyperlinks::Stream::Stderr);
    TextStyle { links, ..TextStyle::default() }.link(url, &printable(url))
}

/// Returns the width of the terminal at standard error, or 80 if the terminal does not report its size.
pub(in crate::cli) fn stderr_width() -> usize {
    let size = tcgetwinsize(std::io::stderr().as_fd()).ok().filter(|size| size.ws_col > 0);
    size.map_or(80, |size| usize::from(size.ws_col))
}

/// Escapes the characters in JSON that are valid there but would control a terminal.
fn escaped_json(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        // All of these characters have four hexadecimal digits. A raw line end occurs only between members.
        if c.is_control() && c != '\n' || view::is_direction_mark(c) {
            write!(escaped, "\\u{:04x}", u32::from(c)).unwrap_or_default();
        } else {
            escaped.push(c);
        }
    }
    escaped
}

/// Writes to standard output. A closed pipe is not an error; a full disk is.
pub(in crate::cli) fn write_stdout(bytes: &[u8]) -> Result<(), Error> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(Error::Output(error)),
        Ok(()) | Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn escaped_json_has_no_control_characters_and_the_same_content() {
        let value = json!({"a\u{9b}31m": ["\u{1b}[2J\n\t\u{7f}", "x\u{202e}y\u{61c}", "é€😀"]});
        let text = escaped_json(&format!("{value:#}"));
        let is_control = |c: char| c.is_control() && c != '\n' || view::is_direction_mark(c);
        assert!(!text.contains(is_control) && text.contains("é€😀"), "{text}");
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), value);
        let yaml = serde_saphyr::to_string(&value).unwrap();
        assert!(!yaml.contains(|c: char| c.is_control() && c != '\n'), "{yaml:?}");
    }
}
