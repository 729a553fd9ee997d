//! PURE: splits one output stream into lines, for a manager that receives them one by one.
//!
//! A metric with the SDK's marker becomes the object that the trial printed, regardless of other text on the line.
//! Everything else is text. Decisions depend only on the line's bytes, never on the portions in which they arrived.

use memchr::memmem;

use super::scanner::{METRIC_MARKER, METRIC_MARKER_END, last_state_start, partial_marker_length};
use super::sdk::{self, SdkRecord};
use super::{EXCERPT_BYTES, EXCERPT_CHARS, MAX_LINE_BYTES};

/// The maximum length of a line, in bytes. A longer line is split. A line with a marker may be as long as the SDK
/// admits.
const MAX_TEXT_BYTES: usize = 64 * 1024;
const MAX_MARKED_BYTES: usize = MAX_LINE_BYTES;

/// A line of the trial, or a part of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Line {
    /// Text without trailing white space, lossy.
    Text(String),
    /// A metric of the SDK: the JSON object as the trial printed it.
    Metric(String),
    /// A marker without a readable metric after it.
    Unreadable {
        /// The first characters, lossy.
        excerpt: String,
        /// The problem with it.
        why: String,
    },
}

/// Splits one stream into lines.
#[derive(Debug)]
pub struct LineCutter {
    marker: memmem::Finder<'static>,
    includes_text: bool,
    /// The unterminated line so far, without the parts that were already returned.
    carry: Vec<u8>,
    /// `true` if a part of this line was already returned.
    within_line: bool,
}

impl LineCutter {
    /// Returns a cutter for metrics, and if `includes_text` is set, also for all other text.
    pub fn new(includes_text: bool) -> Self {
        let marker = memmem::Finder::new(METRIC_MARKER);
        Self { marker, includes_text, carry: Vec::new(), within_line: false }
    }

    /// Reads the next bytes of the stream and appends the lines that they complete.
    pub fn feed(&mut self, bytes: &[u8], lines: &mut Vec<Line>) {
        let mut rest = bytes;
        while let Some(newline) = memchr::memchr(b'\n', rest) {
            let line = &rest[..newline];
            if self.carry.is_empty() && !self.within_line && line.len() < MAX_TEXT_BYTES {
                self.cut_line(line, lines);
            } else {
                self.extend(line, lines);
                self.end_line(lines);
            }
            rest = &rest[newline + 1..];
        }
        self.extend(rest, lines);
    }

    /// Ends the stream, whose last line may lack a newline.
    pub fn finish(&mut self, lines: &mut Vec<Line>) {
        if !self.carry.is_empty() {
            self.end_line(lines);
        }
    }

    fn extend(&mut self, bytes: &[u8], lines: &mut Vec<Line>) {
        for portion in bytes.chunks(MAX_TEXT_BYTES) {
            self.carry.extend_from_slice(portion);
            while let Some(length) = self.overlong_bytes() {
                let rest = self.carry.split_off(length);
                let part = std::mem::replace(&mut self.carry, rest);
                self.cut_line(&part, lines);
                self.within_line = true;
            }
        }
    }

    /// Returns the number of bytes to cut off the carry, if it is too long.
    fn overlong_bytes(&self) -> Option<usize> {
        let head = self.carry.get(..MAX_TEXT_BYTES)?;
        match self.marker.find(head) {
            // The last bytes may be the start of a marker.
            None => Some(MAX_TEXT_BYTES - partial_marker_length(head)),
            Some(0) => (self.carry.len() >= MAX_MARKED_BYTES).then_some(MAX_MARKED_BYTES),
            Some(before) => Some(before),
        }
    }

    fn end_line(&mut self, lines: &mut Vec<Line>) {
        let line = std::mem::take(&mut self.carry);
        if !(line.is_empty() && self.within_line) {
            self.cut_line(&line, lines);
        }
        self.within_line = false;
        if line.capacity() <= 2 * MAX_TEXT_BYTES {
            self.carry = line;
            self.carry.clear();
        }
    }

    fn cut_line(&self, line: &[u8], lines: &mut Vec<Line>) {
        let mut rest = line;
        let mut marked = false;
        while let Some(before) = self.marker.find(rest) {
            self.push_text(&rest[..before], true, lines);
            marked = true;
            let body = &rest[before + METRIC_MARKER.len()..];
            let (line, length) = match read_marked(body) {
                Ok((line, length)) => (line, length),
                Err(why) => {
                    let next = self.marker.find(body).unwrap_or(body.len());
                    let head = &rest[before..][..EXCERPT_BYTES.min(rest.len() - before)];
                    let excerpt =
                        String::from_utf8_lossy(head).chars().take(EXCERPT_CHARS).collect();
                    (Line::Unreadable { excerpt, why }, next)
                }
            };
            lines.push(line);
            rest = &body[length..];
        }
        self.push_text(rest, marked, lines);
    }

    /// Appends ordinary text. A blank part of a line is omitted.
    fn push_text(&self, piece: &[u8], is_part: bool, lines: &mut Vec<Line>) {
        if !self.includes_text {
            return;
        }
        let piece = piece[last_state_start(piece)..].trim_ascii_end();
        if !(is_part && piece.is_empty()) {
            lines.push(Line::Text(String::from_utf8_lossy(piece).into_owned()));
        }
    }
}

/// Parses the record after a marker, and returns its length.
fn read_marked(body: &[u8]) -> Result<(Line, usize), String> {
    let length = sdk::object_length(body).filter(|_| body.starts_with(b"{"));
    let length = length.ok_or_else(|| "no whole object follows the marker".to_owned())?;
    if body.get(length) != Some(&METRIC_MARKER_END) {
        return Err("no apostrophe follows its object".to_owned());
    }
    match sdk::read_record(&body[..length])? {
        SdkRecord::Metric(_) => {
            let object = String::from_utf8_lossy(&body[..length]).into_owned();
            Ok((Line::Metric(object), length + 1))
        }
        SdkRecord::ParameterRequest => Err("a request for parameters is not answered".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn cut_lines(bytes: &[u8], portion: usize, includes_text: bool) -> Vec<Line> {
        let mut cutter = LineCutter::new(includes_text);
        let mut lines = Vec::new();
        for portion in bytes.chunks(portion.max(1)) {
            cutter.feed(portion, &mut lines);
        }
        cutter.finish(&mut lines);
        lines
    }

    const RECORD: &str = r#"{"type": "FINAL", "sequence": 0, "value": "\"it's\""}"#;

    #[test]
    fn lines_are_split_and_metrics_are_found_anywhere() {
        let text = |text: &str| Line::Text(text.to_owned());
        let metric = || Line::Metric(RECORD.to_owned());
        let broken = |excerpt: &str, why: &str| Line::Unreadable {
            excerpt: excerpt.to_owned(),
            why: why.to_owned(),
        };
        let marked = format!("NNISDK_MEb'{RECORD}'");
        #[rustfmt::skip]
        let table = [
            ("nothing",             String::new(),                   vec![]),
            ("two lines",           "one\ntwo\n".to_owned(),         vec![text("one"), text("two")]),
            ("an empty line",       "\n".to_owned(),                 vec![text("")]),
            ("no newline",          "a\nb".to_owned(),               vec![text("a"), text("b")]),
            ("white space",         "  a \t\r\n".to_owned(),         vec![text("  a")]),
            ("a progress bar",      "1%\r2%\r3%\r\n".to_owned(),     vec![text("3%")]),
            ("a metric",            format!("{marked}\n"),           vec![metric()]),
            ("a metric, unended",   marked.clone(),                  vec![metric()]),
            ("text around it",      format!("a {marked} b\n"),       vec![text("a"), metric(), text(" b")]),
            ("two on one line",     format!("{marked}{marked}\n"),   vec![metric(), metric()]),
            ("a broken one before", format!("NNISDK_MEb'{{{marked}\n"), vec![broken(&format!("NNISDK_MEb'{{{marked}"), "no whole object follows the marker"), metric()]),
            ("no apostrophe",       "NNISDK_MEb'{}\n".to_owned(),    vec![broken("NNISDK_MEb'{}", "no apostrophe follows its object")]),
            ("no metric",           "NNISDK_MEb'{}'\n".to_owned(),   vec![broken("NNISDK_MEb'{}'", "it has no type")]),
            ("a request",           "NNISDK_MEb'{\"type\": \"REQUEST_PARAMETER\"}'\n".to_owned(), vec![broken("NNISDK_MEb'{\"type\": \"REQUEST_PARAMETER\"}'", "a request for parameters is not answered")]),
        ];
        for (case, bytes, lines) in table {
            for portion in [1, 2, 3, 7, bytes.len()] {
                assert_eq!(
                    cut_lines(bytes.as_bytes(), portion, true),
                    lines,
                    "{case}, {portion} at a time"
                );
                let metrics: Vec<_> =
                    lines.iter().filter(|line| !matches!(line, Line::Text(_))).cloned().collect();
                assert_eq!(
                    cut_lines(bytes.as_bytes(), portion, false),
                    metrics,
                    "{case}, metrics only"
                );
            }
        }
    }

    #[test]
    fn long_lines_are_split_only_at_the_limit() {
        let long = "x".repeat(MAX_TEXT_BYTES - 5);
        let value = "y".repeat(900_000);
        let metric = format!(r#"{{"type": "FINAL", "value": "\"{value}\""}}"#);
        let line = format!("{long}NNISDK_MEb'{metric}'\n{long}{long}\nend\n");
        let mut expected = vec![Line::Text(long.clone()), Line::Metric(metric)];
        expected.push(Line::Text("x".repeat(MAX_TEXT_BYTES)));
        expected.push(Line::Text("x".repeat(MAX_TEXT_BYTES - 10)));
        expected.push(Line::Text("end".to_owned()));
        for portion in [997, 64 * 1024, line.len()] {
            assert!(cut_lines(line.as_bytes(), portion, true) == expected, "{portion} at a time");
        }
    }

    proptest! {
        #[test]
        fn portions_do_not_matter(pieces in proptest::collection::vec(
            prop_oneof![Just("NNISDK_MEb'".to_owned()), Just(RECORD.to_owned()), Just("'".to_owned()), Just("\n".to_owned()), Just("\r".to_owned()), ".{0,9}"],
            0..20,
        ), portion in 1_usize..40) {
            let bytes = pieces.concat();
            prop_assert_eq!(cut_lines(bytes.as_bytes(), portion, true), cut_lines(bytes.as_bytes(), bytes.len(), true));
        }

        #[test]
        fn random_bytes_are_cut_into_lines_without_panic(bytes: Vec<u8>) {
            cut_lines(&bytes, 7, true);
        }
    }
}
