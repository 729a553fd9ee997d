//! PURE: the bytes of one output stream -> pieces of log, fit to be sent.
//!
//! * A line that a progress bar overwrites (`\r`) becomes its last state. A bar that goes on is shown now and then
//!   ([`SHOWN_EVERY`]) as it stands.
//! * A line is bounded: what is longer is cut, and the cut is marked.
//! * Values of secrets are masked, wherever a line holds them; of one with several lines, each line is.
//! * More than the rate allows is shed, and counted. Positions tell of every gap.
//!
//! Bytes are gathered to pieces of whole lines. What is unfinished waits until [`Lines::flush`].

use std::time::Duration;

use trial_protocol::{LogChunk, LogText, Stream};

use crate::util::last_bytes::KEPT_BYTES;
use crate::verdict::EVIDENCE_TAIL_BYTES;

mod base64;

/// A piece is sent when it is this long, in bytes.
const PIECE_BYTES: usize = 64 * 1024;

/// Pieces that the rate allows in a second, or more: a piece that is too much is left out as a whole.
const PIECES_A_SECOND: u64 = 8;

/// The interval at which a line that is overwritten again and again is shown.
const SHOWN_EVERY: Duration = Duration::from_secs(10);

/// The shortest line of a secret with several lines that is one, in bytes.
const SECRET_LINE_BYTES: usize = 8;

/// The text in place of a secret.
const MASK: &[u8] = b"***";

/// Texts that must not leave the machine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Secrets(Vec<Vec<u8>>);

/// The way in which a stream is cut into pieces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spec {
    /// The longest line that is sent whole, in bytes.
    pub line_bytes: usize,
    /// Bytes a second that are sent; in one moment at most as many, or one line.
    pub bytes_per_second: u64,
    /// The secrets to mask.
    pub secrets: Secrets,
}

/// One stream on its way to be sent.
#[derive(Debug)]
pub struct Lines {
    stream: Stream,
    spec: Spec,
    /// The line that is not finished, without what was overwritten.
    line: Vec<u8>,
    /// The offset of its first byte in the stream.
    line_start: u64,
    /// Bytes of it that were cut off.
    cut: u64,
    /// A carriage return came last: it ends the line only if no newline follows.
    returned: bool,
    /// The line has overwritten another one.
    redrawn: bool,
    /// The time at which such a line was last shown, and whether nothing has come since.
    shown_at: Duration,
    shown: bool,
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
    /// The secrets, and the lines of those that have several (a key in PEM), since logs are looked at line by line.
    /// Those that are too short to be one are left out, since they would mask everything.
    pub fn new(values: impl IntoIterator<Item = Vec<u8>>) -> Self {
        let mut values: Vec<_> = values.into_iter().filter(|value| value.len() >= 4).collect();
        let lines: Vec<_> = values
            .iter()
            .filter(|value| value.trim_ascii().contains(&b'\n'))
            .flat_map(|value| value.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii))
            .filter(|line| line.len() >= SECRET_LINE_BYTES)
            .map(<[u8]>::to_vec)
            .collect();
        let ends = values.iter().map(|value| value.trim_ascii().to_vec());
        values = ends.filter(|value| value.len() >= 4).chain(lines).collect();
        // One that contains another is masked first, or a part of it would remain.
        values.sort_by_key(|value| std::cmp::Reverse(value.len()));
        values.dedup();
        Self(values)
    }

    /// The length of the longest.
    fn longest(&self) -> usize {
        self.0.first().map_or(0, Vec::len)
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
            redrawn: false,
            shown_at: Duration::ZERO,
            shown: false,
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
                match bytes[0] {
                    // A terminal's own way to end a line that ended with a return before: still one line.
                    b'\r' => {
                        self.position += 1;
                        bytes = &bytes[1..];
                        continue;
                    }
                    b'\n' => {}
                    // What stood there is overwritten.
                    _ => {
                        self.begin_line();
                        self.redrawn = true;
                    }
                }
                self.returned = false;
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
        } else if self.redrawn
            && !self.line.is_empty()
            && now.saturating_sub(self.shown_at) >= SHOWN_EVERY
        {
            self.shown_at = now;
            // A gap (what was overwritten) is told by the position of a piece.
            self.send(now, pieces);
            self.move_line();
            self.piece.push(b'\n');
            self.line_start = self.position;
            self.shown = true;
        }
        self.send(now, pieces);
    }

    /// Bytes that the rate did not allow.
    pub fn shed_bytes(&self) -> u64 {
        self.shed_bytes
    }

    fn extend_line(&mut self, bytes: &[u8]) {
        self.shown &= bytes.is_empty();
        // Where a line is cut, a secret may go on.
        let longest = self.spec.line_bytes.saturating_add(self.spec.secrets.longest());
        let room = longest.saturating_sub(self.line.len());
        let fits = bytes.len().min(room);
        self.line.extend_from_slice(&bytes[..fits]);
        self.cut += count(bytes.len() - fits);
        self.position += count(bytes.len());
    }

    fn begin_line(&mut self) {
        self.line.clear();
        self.cut = 0;
        self.redrawn = false;
        self.shown = false;
        self.line_start = self.position;
    }

    fn end_line(&mut self, now: Duration, pieces: &mut Vec<LogChunk>) {
        if self.shown {
            // With its end, which has come now.
            self.begin_line();
            return;
        }
        // A gap (what was overwritten) is told by the position of the next piece.
        let joined = self.piece.is_empty() || self.line_start == self.piece_end();
        if !joined {
            self.send(now, pieces);
        }
        self.move_line();
        self.piece.push(b'\n');
        self.begin_line();
        if self.piece.len() >= self.piece_bytes() || self.piece_end() != self.position {
            self.send(now, pieces);
        }
    }

    /// The offset of the next byte of the piece, if it is the stream's own.
    fn piece_end(&self) -> u64 {
        self.piece_start.saturating_add(count(self.piece.len()))
    }

    /// Returns the length of a piece, in bytes.
    fn piece_bytes(&self) -> usize {
        let allowed = self.spec.bytes_per_second / PIECES_A_SECOND;
        usize::try_from(allowed).unwrap_or(usize::MAX).min(PIECE_BYTES)
    }

    fn move_line(&mut self) {
        if self.piece.is_empty() {
            self.piece_start = self.line_start;
            // RotatingFile by doubling it would have twice the room in the end.
            self.piece.reserve_exact(PIECE_BYTES + self.spec.line_bytes.min(PIECE_BYTES));
        }
        self.spec.secrets.mask(&mut self.line);
        let length = self.line.len();
        // What was cut off may be the end of a secret.
        let whole =
            if self.cut > 0 { length.saturating_sub(self.spec.secrets.longest()) } else { length };
        self.line.truncate(whole.min(self.spec.line_bytes));
        self.cut += count(length - self.line.len());
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
        // A line that is longer than what a second allows comes after as many seconds.
        let most = rate.max(as_f64(count(self.spec.line_bytes)));
        self.budget = (self.budget + rate * passed.as_secs_f64()).min(most);
        let bytes = std::mem::take(&mut self.piece);
        let cost = as_f64(count(bytes.len()));
        if cost > self.budget {
            self.shed_bytes += count(bytes.len());
            return;
        }
        self.budget -= cost;
        pieces.push(chunk(self.stream, self.piece_start, bytes));
    }
}

/// A piece of log as it is sent.
fn chunk(stream: Stream, offset_bytes: u64, bytes: Vec<u8>) -> LogChunk {
    let text = match String::from_utf8(bytes) {
        Ok(text) => LogText::Text(text),
        Err(error) => LogText::Base64(base64::encode(error.as_bytes())),
    };
    LogChunk { stream, offset_bytes, text }
}

/// The end of a stream of `total` bytes of which no log is sent: `tail`, in whole lines, without secrets already. `None` if
/// the verdict has room for it.
pub fn last_lines(stream: Stream, total: u64, tail: &[u8]) -> Option<LogChunk> {
    if tail.len() <= EVIDENCE_TAIL_BYTES {
        return None;
    }
    // By what was printed: masked, the tail has another length.
    let missing = total.saturating_sub(count(KEPT_BYTES));
    // A line that is cut could be the end of a secret.
    let cut = if missing == 0 { None } else { memchr::memchr(b'\n', tail) };
    let begins = cut.map_or(0, |newline| newline + 1);
    Some(chunk(stream, missing + count(begins), tail[begins..].to_vec()))
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
