//! PURE: finds metrics in the bytes of one output stream, at the speed of `memchr`.
//!
//! The scanner searches a chunk as a whole for the few bytes that a metric needs (NNI's marker, `=`, `:`, `{`,
//! `epoch`). Ordinary output is therefore never split into lines. Only the unterminated tail of a chunk is kept. If the
//! tail grows too long, only the bytes that may still become a marker are kept.
//!
//! A line is a sequence of *pieces*: ordinary text, with marked records (`NNISDK_MEb'{...}'`) in between. Two processes
//! that print at the same time cause such lines. Within ordinary text, only the text after the last carriage return
//! counts, so a progress bar is read in its last state. All decisions depend only on the line's bytes, never on the
//! portions in which they arrived.

use std::borrow::Cow;

use memchr::memmem;
use trial_protocol::Stream;

use super::sdk::{self, SdkRecord};
use super::{
    CollectSpec, CollectedMetric, EXCERPT_BYTES, Finding, MAX_LINE_BYTES, Source, ansi,
    epoch_table, json_lines, text,
};

/// The mark before each record of NNI's SDK on stdout, and the apostrophe after it.
pub const METRIC_MARKER: &[u8] = b"NNISDK_MEb'";
pub(super) const METRIC_MARKER_END: u8 = b'\'';

/// The number of bytes that are added to the tail at once.
const PORTION_BYTES: usize = 64 * 1024;

/// Limits of a line, in bytes.
#[derive(Debug, Clone, Copy)]
struct LineLimits {
    /// The length from which an unterminated line is read before it ends.
    early_read_bytes: usize,
    /// The maximum length of a piece that is read.
    piece: usize,
}

const LINE_LIMITS: LineLimits =
    LineLimits { early_read_bytes: PORTION_BYTES, piece: MAX_LINE_BYTES };

/// Finds metrics in one output stream, given its bytes in any portions.
#[derive(Debug)]
pub struct StreamScanner {
    spec: CollectSpec,
    limits: LineLimits,
    /// `true` if ordinary text may contain metrics. This applies only to stdout, because stderr is full of warnings
    /// that quote code.
    reads_text: bool,
    marker: memmem::Finder<'static>,
    /// Finds the line with a table's column names. That line has no byte that other metrics need.
    table_begin: memmem::Finder<'static>,
    table: epoch_table::EpochTable,
    /// The unterminated line so far, without the parts that were already decided.
    carry: Vec<u8>,
    /// The length from which reading the carry can decide more.
    next_parse_length: usize,
    /// The reason for not reading the current piece, if it began before the carry.
    skip_reason: Option<SkipReason>,
    /// `true` if a line that is too long was reported.
    long_line_reported: bool,
    /// The metrics of one JSON line, kept to reuse its memory.
    json_metrics: Vec<CollectedMetric>,
}

/// The reasons for not reading a piece whose end may be missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SkipReason {
    /// The piece cannot be a metric.
    NoMetric,
    /// The piece is too long. `may_have_metrics` means that it may have contained metrics.
    TooLong { may_have_metrics: bool },
}

/// The result of reading the bytes after a marker.
enum MarkerResult {
    /// A record of this many bytes, including the apostrophe.
    SdkRecord(usize, SdkRecord),
    /// Not a record.
    Broken(String),
    /// More bytes are needed for a decision.
    Unfinished,
}

impl StreamScanner {
    /// Returns a scanner for `stream` with the collectors that `spec` enables.
    pub fn new(spec: &CollectSpec, stream: Stream) -> Self {
        Self {
            spec: spec.clone(),
            limits: LINE_LIMITS,
            reads_text: stream == Stream::Stdout
                && (spec.text || spec.json_lines || !spec.patterns.is_empty()),
            marker: memmem::Finder::new(METRIC_MARKER),
            table_begin: memmem::Finder::new(epoch_table::FIRST_COLUMN),
            table: epoch_table::EpochTable::default(),
            carry: Vec::new(),
            next_parse_length: LINE_LIMITS.early_read_bytes,
            skip_reason: None,
            long_line_reported: false,
            json_metrics: Vec::new(),
        }
    }

    /// Reads the next bytes of the stream and appends the findings that they complete.
    pub fn feed(&mut self, bytes: &[u8], found: &mut Vec<Finding>) {
        let mut rest = bytes;
        if self.is_within_line() {
            let Some(newline) = memchr::memchr(b'\n', rest) else {
                return self.extend(rest, found);
            };
            self.extend(&rest[..newline], found);
            self.end_line(found);
            rest = &rest[newline + 1..];
        }
        let whole = memchr::memrchr(b'\n', rest).map_or(0, |newline| newline + 1);
        self.scan(&rest[..whole], found);
        self.extend(&rest[whole..], found);
    }

    /// Ends the stream, whose last line may lack a newline.
    pub fn finish(&mut self, found: &mut Vec<Finding>) {
        self.end_line(found);
    }

    fn is_within_line(&self) -> bool {
        self.skip_reason.is_some() || !self.carry.is_empty()
    }

    /// Searches a block of complete lines.
    fn scan(&mut self, block: &[u8], found: &mut Vec<Finding>) {
        let mut at = 0;
        let mut record = self.marker.find(block);
        let mut table = self.next_table(block);
        while at < block.len() {
            let metric_byte = self.next_metric_byte(&block[at..]).map(|after| at + after);
            let Some(hit) = [record, table, metric_byte].into_iter().flatten().min() else {
                return;
            };
            let start =
                memchr::memrchr(b'\n', &block[at..hit]).map_or(at, |newline| at + newline + 1);
            let end =
                memchr::memchr(b'\n', &block[hit..]).map_or(block.len(), |length| hit + length);
            self.read_line(&block[start..end], found);
            at = (end + 1).min(block.len());
            if record.is_some_and(|record| record < at) {
                record = self.marker.find(&block[at..]).map(|after| at + after);
            }
            if table.is_some_and(|table| table < at) {
                table = self.next_table(&block[at..]).map(|after| at + after);
            }
        }
    }

    /// Returns the position of the next possible table.
    fn next_table(&self, block: &[u8]) -> Option<usize> {
        (self.reads_text && self.spec.text).then(|| self.table_begin.find(block))?
    }

    /// Returns the position of the next byte that a metric in ordinary text needs.
    fn next_metric_byte(&self, block: &[u8]) -> Option<usize> {
        match &self.spec {
            _ if !self.reads_text => None,
            // A regular expression may match anything.
            CollectSpec { patterns, .. } if !patterns.is_empty() => Some(0),
            CollectSpec { text: true, .. } => memchr::memchr3(b'=', b':', b'{', block),
            CollectSpec { text: false, .. } => memchr::memchr(b'{', block),
        }
    }

    fn read_line(&mut self, line: &[u8], found: &mut Vec<Finding>) {
        self.read_pieces(line, true, found);
        self.skip_reason = None;
    }

    /// Appends bytes to the unterminated line.
    fn extend(&mut self, bytes: &[u8], found: &mut Vec<Finding>) {
        for portion in bytes.chunks(PORTION_BYTES) {
            self.carry.extend_from_slice(portion);
            if self.carry.len() < self.next_parse_length {
                continue;
            }
            let carry = std::mem::take(&mut self.carry);
            let done = self.read_pieces(&carry, false, found);
            self.carry = carry;
            self.carry.drain(..done);
            // The threshold doubles, so that a long line that arrives byte by byte is not read a million times. Beyond
            // the limit, everything is decided.
            let most = self.limits.piece + METRIC_MARKER.len() + 1;
            self.next_parse_length =
                (2 * self.carry.len()).clamp(self.limits.early_read_bytes, most);
        }
    }

    fn end_line(&mut self, found: &mut Vec<Finding>) {
        if self.is_within_line() {
            let mut carry = std::mem::take(&mut self.carry);
            self.read_line(&carry, found);
            carry.clear();
            if carry.capacity() <= 2 * PORTION_BYTES {
                self.carry = carry;
            }
        }
        self.next_parse_length = self.limits.early_read_bytes;
    }

    /// Reads the pieces of `line` from left to right as far as they are decided, and returns the position reached.
    /// `ended` means that the line is complete.
    fn read_pieces(&mut self, line: &[u8], ended: bool, found: &mut Vec<Finding>) -> usize {
        let mut at = 0;
        while let Some(length) = self.marker.find(&line[at..]) {
            self.read_text(&line[at..at + length], found);
            at += length;
            let body = &line[at + METRIC_MARKER.len()..];
            match self.read_marked(body, ended) {
                MarkerResult::SdkRecord(length, record) => {
                    if let SdkRecord::Metric(metric) = record {
                        found.push(Finding::Metric(metric));
                    }
                    self.skip_reason = None;
                    at += METRIC_MARKER.len() + length;
                }
                MarkerResult::Broken(why) => {
                    // The next bytes are the remains of the record, unless they are another record.
                    found.push(Finding::unreadable(Source::Sdk, &line[at..], why));
                    self.skip_reason = Some(SkipReason::NoMetric);
                    at += METRIC_MARKER.len();
                }
                MarkerResult::Unfinished => {
                    self.skip_reason = None;
                    return at;
                }
            }
        }
        if ended {
            self.read_text(&line[at..], found);
            return line.len();
        }

        // The last bytes may be the start of a marker, which is not part of this piece.
        let tail = partial_marker_length(&line[at..]);
        let sure = &line[at..line.len() - tail];
        let overwritten = last_state_start(sure);
        if overwritten > 0 {
            self.skip_reason = None;
            at += overwritten;
        }
        let sure = &sure[overwritten..];
        self.skip_reason = self.skip_reason_for(sure);
        if self.skip_reason.is_some() {
            // A carriage return ends the skipped state, unless a newline follows it.
            at = line.len() - tail - usize::from(sure.ends_with(b"\r"));
        }
        at
    }

    /// Returns the reason for not reading a piece that continues or begins with `part`, if there is one.
    fn skip_reason_for(&self, part: &[u8]) -> Option<SkipReason> {
        let may_have_metrics = || self.next_metric_byte(part).is_some();
        match self.skip_reason {
            _ if !self.reads_text => Some(SkipReason::NoMetric),
            Some(SkipReason::NoMetric) => self.skip_reason,
            Some(SkipReason::TooLong { may_have_metrics: before }) => {
                Some(SkipReason::TooLong { may_have_metrics: before || may_have_metrics() })
            }
            None if part.len() > self.limits.piece => {
                Some(SkipReason::TooLong { may_have_metrics: may_have_metrics() })
            }
            None => None,
        }
    }

    fn read_marked(&self, body: &[u8], ended: bool) -> MarkerResult {
        let body = &body[..body.len().min(self.limits.piece)];
        let full = body.len() == self.limits.piece;
        let decided = ended || full;
        let broken = |why: String| {
            // The excerpt must not depend on how many bytes have arrived.
            let shown = decided || body.len() >= EXCERPT_BYTES;
            if shown { MarkerResult::Broken(why) } else { MarkerResult::Unfinished }
        };
        if !body.starts_with(b"{") {
            return broken("no object follows the marker".to_owned());
        }
        match sdk::object_length(body) {
            None if full => broken(format!("its object is over {} bytes long", self.limits.piece)),
            None if ended => broken("its object does not end on the line".to_owned()),
            None => MarkerResult::Unfinished,
            Some(length) => match body.get(length) {
                Some(&METRIC_MARKER_END) => match sdk::read_record(&body[..length]) {
                    Ok(record) => MarkerResult::SdkRecord(length + 1, record),
                    Err(why) => broken(why),
                },
                None if !decided => MarkerResult::Unfinished,
                Some(_) | None => broken("no apostrophe follows its object".to_owned()),
            },
        }
    }

    /// Reads a piece of ordinary text. It is complete unless its beginning was skipped.
    fn read_text(&mut self, piece: &[u8], found: &mut Vec<Finding>) {
        if !self.reads_text {
            return;
        }
        let overwritten = last_state_start(piece);
        let piece = &piece[overwritten..];
        if overwritten > 0 {
            self.skip_reason = None;
        }
        match self.skip_reason_for(piece) {
            None => {}
            Some(SkipReason::TooLong { may_have_metrics: true }) => {
                return self.report_long_line(found);
            }
            Some(_) => return,
        }
        let piece: Cow<'_, [u8]> = ansi::strip(piece);
        let text = json_lines::text_before_report(&piece);
        let (text, report) = piece.split_at(text.unwrap_or(piece.len()));
        self.read_metrics(text, found);
        if !report.is_empty() {
            self.read_metrics(report, found);
        }
    }

    /// Reads the metrics of text without escape sequences.
    fn read_metrics(&mut self, piece: &[u8], found: &mut Vec<Finding>) {
        let objective = self.spec.objective.as_deref();
        let mut matched = false;
        if !self.spec.patterns.is_empty() {
            let line = String::from_utf8_lossy(piece);
            for pattern in &self.spec.patterns {
                matched |= pattern.read(&line, objective, found);
            }
        }
        if matched {
            return;
        }
        let direction = self.spec.direction;
        if self.spec.json_lines
            && json_lines::read(piece, objective, direction, &mut self.json_metrics)
        {
            found.extend(self.json_metrics.drain(..).map(Finding::Metric));
        } else if self.spec.text {
            let is_table = self.table.read(piece, |name, epoch, value| {
                found.push(Finding::Metric(CollectedMetric {
                    source: Source::Text,
                    name: name.to_owned(),
                    kind: None,
                    sequence: Some(epoch),
                    value,
                }));
            });
            if is_table {
                return;
            }
            text::find_pairs(piece, objective, |name, value| {
                if self.spec.is_variable(name, &value) {
                    return;
                }
                let name = name.to_owned();
                let (kind, sequence) = (None, None);
                found.push(Finding::Metric(CollectedMetric {
                    source: Source::Text,
                    name,
                    kind,
                    sequence,
                    value,
                }));
            });
        }
    }

    /// Reports, once, that a line was not read.
    fn report_long_line(&mut self, found: &mut Vec<Finding>) {
        if !std::mem::replace(&mut self.long_line_reported, true) {
            let why = format!(
                "a line of more than {} bytes is not searched for metrics",
                self.limits.piece
            );
            found.push(Finding::unreadable(Source::Text, b"", why));
        }
    }
}

/// Returns the start of the last state of a piece in which carriage returns overwrite text. Carriage returns at the end
/// belong to the newline.
pub(super) fn last_state_start(piece: &[u8]) -> usize {
    let returns = piece.iter().rev().take_while(|byte| **byte == b'\r').count();
    let states = &piece[..piece.len() - returns];
    memchr::memrchr(b'\r', states).map_or(0, |last| last + 1)
}

/// Returns the number of bytes at the end of `piece` that may be the start of a marker.
pub(super) fn partial_marker_length(piece: &[u8]) -> usize {
    let longest = piece.len().min(METRIC_MARKER.len() - 1);
    (1..=longest).rev().find(|length| piece.ends_with(&METRIC_MARKER[..*length])).unwrap_or(0)
}

#[cfg(test)]
mod tests;
