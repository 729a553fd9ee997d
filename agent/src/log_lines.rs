//! PURE: the bytes of one output stream -> pieces of log, fit to be sent.
//!
//! * A line that a progress bar overwrites (`\r`) becomes its last state.
//! * A line is bounded: what is longer is cut, and the cut is marked.
//! * Values of secrets are masked, wherever a line holds them.
//! * More than the rate allows is shed, and counted. Positions tell of every gap.
//!
//! Bytes are gathered to pieces of whole lines. What is unfinished waits until [`Lines::flush`].

use std::time::Duration;

use trial_protocol::{LogChunk, LogText, Stream};

mod base64;

/// A piece is sent when it is this long, in bytes.
const PIECE_BYTES: usize = 64 * 1024;

/// What stands where a secret stood.
const MASK: &[u8] = b"***";

/// Texts that must not leave the machine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Secrets(Vec<Vec<u8>>);

/// How a stream is cut into pieces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spec {
    /// The longest line that is sent whole, in bytes.
    pub line_bytes: usize,
    /// Bytes a second that are sent; in one moment at most as many.
    pub bytes_per_second: u64,
    /// What is masked.
    pub secrets: Secrets,
}

/// One stream on its way to be sent.
#[derive(Debug)]
pub struct Lines {
    stream: Stream,
    spec: Spec,
    /// The line that is not finished, without what was overwritten.
    line: Vec<u8>,
    /// Where its first byte stood in the stream.
    line_start: u64,
    /// Bytes of it that were cut off.
    cut: u64,
    /// A carriage return came last: it ends the line only if no newline follows.
    returned: bool,
    /// Finished lines.
    piece: Vec<u8>,
    piece_start: u64,
    /// Bytes of the stream so far.
    position: u64,
    budget: f64,
    filled: Duration,
    shed_bytes: u64,
}

impl Secrets {
    /// The secrets; those that are too short to be one are left out, since they would mask everything.
    pub fn new(values: impl IntoIterator<Item = Vec<u8>>) -> Self {
        let mut values: Vec<_> = values.into_iter().filter(|value| value.len() >= 4).collect();
        // One that contains another is masked first, or a part of it would remain.
        values.sort_by_key(|value| std::cmp::Reverse(value.len()));
        Self(values)
    }

    /// Replaces every secret in `text`.
    pub fn mask_text(&self, text: String) -> String {
        if self.0.is_empty() {
            return text;
        }
        let mut bytes = text.into_bytes();
        self.mask(&mut bytes);
        String::from_utf8(bytes)
            .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
    }

    /// Replaces every secret in `bytes`.
    pub fn mask(&self, bytes: &mut Vec<u8>) {
        for secret in &self.0 {
            let finder = memchr::memmem::Finder::new(secret);
            if finder.find(bytes).is_none() {
                continue;
            }
            let mut masked = Vec::with_capacity(bytes.len());
            let mut rest = bytes.as_slice();
            while let Some(at) = finder.find(rest) {
                masked.extend_from_slice(&rest[..at]);
                masked.extend_from_slice(MASK);
                rest = &rest[at + secret.len()..];
            }
            masked.extend_from_slice(rest);
            *bytes = masked;
        }
    }
}

impl Lines {
    /// Nothing of `stream` yet.
    pub fn new(stream: Stream, spec: Spec) -> Self {
        let budget = as_f64(spec.bytes_per_second);
        Self {
            stream,
            spec,
            line: Vec::new(),
            line_start: 0,
            cut: 0,
            returned: false,
            piece: Vec::new(),
            piece_start: 0,
            position: 0,
            budget,
            filled: Duration::ZERO,
            shed_bytes: 0,
        }
    }

    /// Takes the next bytes of the stream, and appends the pieces that are complete. `now` is of a
    /// monotonic clock.
    pub fn feed(&mut self, mut bytes: &[u8], now: Duration, pieces: &mut Vec<LogChunk>) {
        while !bytes.is_empty() {
            if self.returned {
                self.returned = false;
                if bytes[0] != b'\n' {
                    // What stood there is overwritten.
                    self.begin_line();
                }
            }
            let end = memchr::memchr2(b'\n', b'\r', bytes);
            self.extend_line(&bytes[..end.unwrap_or(bytes.len())]);
            let Some(end) = end else { return };
            self.position += 1;
            if bytes[end] == b'\n' {
                self.end_line(now, pieces);
            } else {
                self.returned = true;
            }
            bytes = &bytes[end + 1..];
        }
    }

    /// Appends what waits, the line that is not finished too if `ended`.
    pub fn flush(&mut self, ended: bool, now: Duration, pieces: &mut Vec<LogChunk>) {
        if ended && (!self.line.is_empty() || self.cut > 0) {
            self.move_line();
        }
        self.send(now, pieces);
    }

    /// Bytes that the rate did not allow.
    pub fn shed_bytes(&self) -> u64 {
        self.shed_bytes
    }

    fn extend_line(&mut self, bytes: &[u8]) {
        let room = self.spec.line_bytes.saturating_sub(self.line.len());
        let fits = bytes.len().min(room);
        self.line.extend_from_slice(&bytes[..fits]);
        self.cut += count(bytes.len() - fits);
        self.position += count(bytes.len());
    }

    fn begin_line(&mut self) {
        self.line.clear();
        self.cut = 0;
        self.line_start = self.position;
    }

    fn end_line(&mut self, now: Duration, pieces: &mut Vec<LogChunk>) {
        // A gap (what was overwritten) is told by the position of the next piece.
        let joined = self.piece.is_empty() || self.line_start == self.piece_end();
        if !joined {
            self.send(now, pieces);
        }
        self.move_line();
        self.piece.push(b'\n');
        self.begin_line();
        if self.piece.len() >= PIECE_BYTES || self.piece_end() != self.position {
            self.send(now, pieces);
        }
    }

    /// Where the next byte of the piece would stand, if it is the stream's own.
    fn piece_end(&self) -> u64 {
        self.piece_start.saturating_add(count(self.piece.len()))
    }

    fn move_line(&mut self) {
        if self.piece.is_empty() {
            self.piece_start = self.line_start;
            // Grown by doubling it would have twice the room in the end.
            self.piece.reserve_exact(PIECE_BYTES + self.spec.line_bytes.min(PIECE_BYTES));
        }
        self.spec.secrets.mask(&mut self.line);
        self.piece.append(&mut self.line);
        if self.cut > 0 {
            let mark = format!(" [... {} bytes cut]", self.cut);
            self.piece.extend_from_slice(mark.as_bytes());
            self.cut = 0;
        }
    }

    fn send(&mut self, now: Duration, pieces: &mut Vec<LogChunk>) {
        if self.piece.is_empty() {
            return;
        }
        let rate = as_f64(self.spec.bytes_per_second);
        let passed = now.saturating_sub(std::mem::replace(&mut self.filled, now));
        self.budget = (self.budget + rate * passed.as_secs_f64()).min(rate);
        let bytes = std::mem::take(&mut self.piece);
        let cost = as_f64(count(bytes.len()));
        if cost > self.budget {
            self.shed_bytes += count(bytes.len());
            return;
        }
        self.budget -= cost;
        let text = match String::from_utf8(bytes) {
            Ok(text) => LogText::Text(text),
            Err(error) => LogText::Base64(base64::encode(error.as_bytes())),
        };
        pieces.push(LogChunk { stream: self.stream, offset_bytes: self.piece_start, text });
    }
}

fn count(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}

#[expect(clippy::as_conversions, clippy::cast_precision_loss, reason = "a rate need not be exact")]
fn as_f64(number: u64) -> f64 {
    number as f64
}

#[cfg(test)]
mod tests;
