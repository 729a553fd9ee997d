//! The parts of a program's output that a message quotes.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::Path;

use super::super::launch::file_length;

/// The number of lines of a silent program's output that a message shows.
const MAX_SHOWN_LINES: usize = 3;

/// Returns the last lines of a text, as the end of a message; empty if the text has none.
pub(super) fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let last: Vec<String> = lines[lines.len().saturating_sub(MAX_SHOWN_LINES)..]
        .iter()
        .map(|line| excerpt(line))
        .collect();
    if last.is_empty() { String::new() } else { format!("; it last wrote: {}", last.join(" / ")) }
}

/// Returns the last 64 KiB that were written to a file since `at`. `None` if nothing was written, or the file is
/// unreadable.
pub(super) fn written_since(path: &Path, at: u64) -> Option<String> {
    const LAST: u64 = 64 << 10;
    let mut file = File::open(path).ok()?;
    let from = at.max(file_length(path).saturating_sub(LAST));
    file.seek(SeekFrom::Start(from)).ok()?;
    let mut bytes = Vec::new();
    file.take(LAST).read_to_end(&mut bytes).ok()?;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    (!text.trim().is_empty()).then_some(text)
}

/// Returns the line of a file that contains a Python program's error message, if it was written since `at`.
pub(super) fn find_error_line(path: &Path, at: u64) -> Option<String> {
    let text = written_since(path, at)?;
    let error = |line: &&str| {
        let name = line.split(':').next().unwrap_or_default();
        let last = name.rsplit('.').next().unwrap_or_default();
        !name.contains(' ') && (last.ends_with("Error") || last.ends_with("Exception"))
    };
    let no_module = |line: &&str| line.contains("No module named");
    let found = text.lines().rev().find(|line| error(line) || no_module(line));
    found.map(|line| excerpt(line.trim()))
}

/// Returns the beginning of a foreign text on a single line.
pub(super) fn excerpt(text: &str) -> String {
    let line: String =
        text.chars().take(300).map(|c| if c.is_control() { ' ' } else { c }).collect();
    line
}
