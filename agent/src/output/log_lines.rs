//! PURE: converts the bytes of one output stream into log chunks to send.
//!
//! * Of a line that a progress bar overwrites (`\r`), only the last state is kept. The current state of a long-running
//!   bar is shown every [`SHOW_INTERVAL`].
//! * The length of a line is limited. A longer line is cut, and the cut is marked.
//! * Secrets are masked wherever a line contains them. Of a secret with several lines, each line is masked.
//! * Bytes above the rate limit are dropped and counted. The offsets of the chunks show what was dropped. They do not
//!   count overwritten, masked and cut text.
//!
//! Chunks consist of whole lines. An unfinished line waits for its end, or for the end of the stream.

use std::time::Duration;

use trial_protocol::{LogChunk, LogText, Stream};

use crate::util::last_bytes::MAX_KEPT_BYTES;
use crate::util::numbers::{to_f64, to_u64};
use crate::util::secrets::Secrets;
use crate::verdict::EVIDENCE_TAIL_BYTES;

mod base64;

/// The size of a chunk from which it is sent, in bytes.
const CHUNK_BYTES: usize = 64 * 1024;

/// The minimum number of chunks that the rate limit allows in a second. A chunk above the limit is dropped as a whole.
const CHUNKS_A_SECOND: u64 = 8;

/// The interval at which a repeatedly overwritten line is shown.
const SHOW_INTERVAL: Duration = Duration::from_secs(10);

/// The settings for cutting a stream into chunks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spec {
    /// The maximum length of a line that is sent whole, in bytes.
    pub line_bytes: usize,
    /// The rate limit in bytes per second. It is also the limit for one moment, unless a line is longer.
    pub bytes_per_second: u64,
    /// The secrets to mask.
    pub secrets: Secrets,
}

/// The state of one stream.
#[derive(Debug)]
pub struct LogChunker {
    stream: Stream,
    spec: Spec,
    /// The unfinished line, without its overwritten states.
    line: Vec<u8>,
    /// The number of bytes cut off the line.
    cut_bytes: u64,
    /// `true` after a carriage return: it ends the line only if no newline follows.
    after_return: bool,
    /// `true` if the line has overwritten another one.
    redrawn: bool,
    /// The time at which an overwritten line was last shown, and whether it is unchanged since.
    shown_at: Duration,
    shown: bool,
    /// Finished lines.
    chunk: Vec<u8>,
    /// The offset of the chunk: the bytes of all chunks before it, including the dropped ones.
    offset_bytes: u64,
    budget_bytes: f64,
    budget_updated_at: Duration,
    shed_bytes: u64,
}

impl LogChunker {
    /// Creates the state of `stream` before its first byte.
    pub fn new(stream: Stream, spec: Spec) -> Self {
        let budget_bytes = to_f64(spec.bytes_per_second);
        Self {
            stream,
            spec,
            line: Vec::new(),
            cut_bytes: 0,
            after_return: false,
            redrawn: false,
            shown_at: Duration::ZERO,
            shown: false,
            chunk: Vec::new(),
            offset_bytes: 0,
            budget_bytes,
            budget_updated_at: Duration::ZERO,
            shed_bytes: 0,
        }
    }

    /// Adds the next bytes of the stream, and appends complete chunks to `chunks`. `now` is from a monotonic clock.
    pub fn feed(&mut self, mut bytes: &[u8], now: Duration, chunks: &mut Vec<LogChunk>) {
        while !bytes.is_empty() {
            if self.after_return {
                match bytes[0] {
                    // A terminal ends a line with `\r\n`. After another return, this is still one line.
                    b'\r' => {
                        bytes = &bytes[1..];
                        continue;
                    }
                    b'\n' => {}
                    // The next character overwrites the line.
                    _ => {
                        self.begin_line();
                        self.redrawn = true;
                    }
                }
                self.after_return = false;
            }
            let end = memchr::memchr2(b'\n', b'\r', bytes);
            self.extend_line(&bytes[..end.unwrap_or(bytes.len())]);
            let Some(end) = end else { return };
            if bytes[end] == b'\n' {
                self.end_line(now, chunks);
            } else {
                self.after_return = true;
            }
            bytes = &bytes[end + 1..];
        }
    }

    /// Appends the buffered lines to `chunks`, and the unfinished line too if `ended`.
    pub fn flush(&mut self, ended: bool, now: Duration, chunks: &mut Vec<LogChunk>) {
        if ended && (!self.line.is_empty() || self.cut_bytes > 0) {
            self.append_line_to_chunk();
        } else if self.redrawn
            && !self.line.is_empty()
            && now.saturating_sub(self.shown_at) >= SHOW_INTERVAL
        {
            self.shown_at = now;
            self.append_line_to_chunk();
            self.chunk.push(b'\n');
            self.shown = true;
        }
        self.append_chunk(now, chunks);
    }

    /// Returns the number of bytes dropped because of the rate limit.
    pub fn shed_bytes(&self) -> u64 {
        self.shed_bytes
    }

    fn extend_line(&mut self, bytes: &[u8]) {
        self.shown &= bytes.is_empty();
        // A secret may extend beyond the cut of a line.
        let longest = self.spec.line_bytes.saturating_add(self.spec.secrets.longest_secret());
        let room = longest.saturating_sub(self.line.len());
        let fits = bytes.len().min(room);
        self.line.extend_from_slice(&bytes[..fits]);
        self.cut_bytes += to_u64(bytes.len() - fits);
    }

    fn begin_line(&mut self) {
        self.line.clear();
        self.cut_bytes = 0;
        self.redrawn = false;
        self.shown = false;
    }

    fn end_line(&mut self, now: Duration, chunks: &mut Vec<LogChunk>) {
        if self.shown {
            // The shown line and its newline are complete now.
            self.begin_line();
            return;
        }
        self.append_line_to_chunk();
        self.chunk.push(b'\n');
        self.begin_line();
        if self.chunk.len() >= self.chunk_bytes() {
            self.append_chunk(now, chunks);
        }
    }

    /// Returns the target length of a chunk, in bytes.
    fn chunk_bytes(&self) -> usize {
        let allowed = self.spec.bytes_per_second / CHUNKS_A_SECOND;
        usize::try_from(allowed).unwrap_or(usize::MAX).min(CHUNK_BYTES)
    }

    fn append_line_to_chunk(&mut self) {
        if self.chunk.is_empty() {
            // Growth by doubling would allocate up to twice the needed capacity.
            self.chunk.reserve_exact(CHUNK_BYTES + self.spec.line_bytes.min(CHUNK_BYTES));
        }
        self.spec.secrets.mask(&mut self.line);
        let length = self.line.len();
        // The end of a cut line may be the beginning of a secret.
        let whole = if self.cut_bytes > 0 {
            length.saturating_sub(self.spec.secrets.longest_secret())
        } else {
            length
        };
        self.line.truncate(whole.min(self.spec.line_bytes));
        self.cut_bytes += to_u64(length - self.line.len());
        self.chunk.append(&mut self.line);
        if self.cut_bytes > 0 {
            let mark = format!(" [... {} bytes cut]", self.cut_bytes);
            self.chunk.extend_from_slice(mark.as_bytes());
            self.cut_bytes = 0;
        }
    }

    fn append_chunk(&mut self, now: Duration, chunks: &mut Vec<LogChunk>) {
        if self.chunk.is_empty() {
            return;
        }
        let rate = to_f64(self.spec.bytes_per_second);
        let passed = now.saturating_sub(std::mem::replace(&mut self.budget_updated_at, now));
        // A line longer than the limit of a second is sent after the corresponding number of seconds.
        let most = rate.max(to_f64(to_u64(self.spec.line_bytes)));
        self.budget_bytes = (self.budget_bytes + rate * passed.as_secs_f64()).min(most);
        let bytes = std::mem::take(&mut self.chunk);
        let length = to_u64(bytes.len());
        let offset_bytes = self.offset_bytes;
        self.offset_bytes += length;
        let cost = to_f64(length);
        if cost > self.budget_bytes {
            self.shed_bytes += length;
            return;
        }
        self.budget_bytes -= cost;
        chunks.push(chunk(self.stream, offset_bytes, bytes));
    }
}

/// Returns a log chunk of the given bytes.
fn chunk(stream: Stream, offset_bytes: u64, bytes: Vec<u8>) -> LogChunk {
    let text = match String::from_utf8(bytes) {
        Ok(text) => LogText::Text(text),
        Err(error) => LogText::Base64(base64::encode(error.as_bytes())),
    };
    LogChunk { stream, offset_bytes, text }
}

/// Returns the end of a stream of `total` bytes whose log is not sent: the whole lines of `tail`, in which secrets are
/// already masked. `None` if the verdict has room for the whole tail.
pub fn last_lines(stream: Stream, total: u64, tail: &[u8]) -> Option<LogChunk> {
    if tail.len() <= EVIDENCE_TAIL_BYTES {
        return None;
    }
    // Computed from the printed bytes, because masking changes the length of the tail.
    let missing = total.saturating_sub(to_u64(MAX_KEPT_BYTES));
    // A partial first line could be the end of a secret.
    let cut = if missing == 0 { None } else { memchr::memchr(b'\n', tail) };
    let begins = cut.map_or(0, |newline| newline + 1);
    Some(chunk(stream, missing + to_u64(begins), tail[begins..].to_vec()))
}

#[cfg(test)]
mod tests;
