//! PURE: reads NNI's metric file, `$NNI_SYS_DIR/.nni/metrics` (NNI 3.0, `nni/runtime/trial_command_channel`).
//!
//! The file is a sequence of records: `ME`, the payload's length in bytes as six decimal digits, and the payload, which
//! is the SDK's metric object and a newline. The reader waits for the rest of an incomplete record. It skips bytes that
//! are not a record, up to the next readable one, and reports each such stretch once.

use super::sdk::{self, SdkRecord};
use super::{EXCERPT_BYTES, Finding, Source};
use crate::util::numbers::to_u64;

/// The length of `ME` and six digits.
const HEADER_BYTES: usize = 8;

/// Reads the records of one file, given its bytes in any portions.
#[derive(Debug, Default)]
pub struct MetricFileReader {
    /// The bytes about which no decision was made: at most one record, about 1 MB.
    carry: Vec<u8>,
    /// The length from which reading the carry can decide more.
    next_parse_length: usize,
    corrupt: Option<CorruptBytes>,
}

/// A stretch of bytes that contains no record.
#[derive(Debug)]
struct CorruptBytes {
    head: Vec<u8>,
    length: u64,
}

/// The content at the start of the available bytes.
enum NextContent {
    /// A record of this many bytes.
    SdkRecord { length: usize, record: SdkRecord },
    /// A possible record, to be decided when this many bytes are available.
    Wait { for_bytes: usize },
    /// At least this many bytes that are not a record.
    Corrupt { length: usize },
}

impl MetricFileReader {
    /// Returns a reader for the beginning of a file.
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads the next bytes of the file and appends the findings that they complete.
    pub fn feed(&mut self, bytes: &[u8], found: &mut Vec<Finding>) {
        self.carry.extend_from_slice(bytes);
        if self.carry.len() >= self.next_parse_length {
            self.read(false, found);
        }
    }

    /// Ends the file. An incomplete record is skipped, but may contain another record.
    pub fn finish(&mut self, found: &mut Vec<Finding>) {
        self.read(true, found);
        self.report_corrupt(found);
    }

    fn read(&mut self, ended: bool, found: &mut Vec<Finding>) {
        let mut at = 0;
        self.next_parse_length = loop {
            let rest = &self.carry[at..];
            match parse_next(rest) {
                NextContent::SdkRecord { length, record } => {
                    self.report_corrupt(found);
                    if let SdkRecord::Metric(metric) = record {
                        found.push(Finding::Metric(metric));
                    }
                    at += length;
                }
                NextContent::Corrupt { length } => {
                    self.skip_corrupt(at, length);
                    at += length;
                }
                NextContent::Wait { .. } if ended && !rest.is_empty() => {
                    let length = corrupt_length(rest);
                    self.skip_corrupt(at, length);
                    at += length;
                }
                NextContent::Wait { for_bytes } => break for_bytes,
            }
        };
        self.carry.drain(..at);
    }

    fn skip_corrupt(&mut self, at: usize, length: usize) {
        let corrupt = self.corrupt.get_or_insert(CorruptBytes { head: Vec::new(), length: 0 });
        let room = EXCERPT_BYTES - corrupt.head.len();
        corrupt.head.extend_from_slice(&self.carry[at..at + length.min(room)]);
        corrupt.length = corrupt.length.saturating_add(to_u64(length));
    }

    fn report_corrupt(&mut self, found: &mut Vec<Finding>) {
        if let Some(CorruptBytes { head, length }) = self.corrupt.take() {
            let why = format!("{length} bytes of the metric file are not a record");
            found.push(Finding::unreadable(Source::Sdk, &head, why));
        }
    }
}

fn parse_next(bytes: &[u8]) -> NextContent {
    let corrupt = || NextContent::Corrupt { length: corrupt_length(bytes) };
    let Some(header) = bytes.first_chunk::<HEADER_BYTES>() else {
        return if can_be_header(bytes) { NextContent::Wait { for_bytes: 0 } } else { corrupt() };
    };
    if !can_be_header(header) {
        return corrupt();
    }
    let length =
        header[2..].iter().fold(0, |length, digit| 10 * length + usize::from(digit - b'0'));

    // A damaged length must not swallow the next records. The end of the object must therefore agree with the length,
    // as soon as it is available.
    let payload = &bytes[HEADER_BYTES..];
    let payload = &payload[..payload.len().min(length)];
    let object = sdk::object_length(payload);
    let plausible = payload.first().is_none_or(|byte| *byte == b'{')
        && object.is_none_or(|end| payload[end..].trim_ascii().is_empty());
    if !plausible {
        return corrupt();
    }
    if payload.len() < length {
        let whole = HEADER_BYTES + length;
        // The threshold doubles, so that a record that arrives byte by byte is not read a million times.
        let for_bytes = if object.is_some() { bytes.len() + 1 } else { whole.min(2 * bytes.len()) };
        return NextContent::Wait { for_bytes };
    }
    match object.map(|end| sdk::read_record(&payload[..end])) {
        Some(Ok(record)) => NextContent::SdkRecord { length: HEADER_BYTES + length, record },
        Some(Err(_)) | None => corrupt(),
    }
}

/// Returns whether `bytes`, at most a header's length, may be a header or the start of one.
fn can_be_header(bytes: &[u8]) -> bool {
    let marks = bytes.len().min(2);
    bytes[..marks] == b"ME"[..marks] && bytes[marks..].iter().all(u8::is_ascii_digit)
}

/// Returns the distance to the next byte that may start a record. The first byte starts none.
fn corrupt_length(bytes: &[u8]) -> usize {
    let after = memchr::memchr(b'M', bytes.get(1..).unwrap_or_default());
    after.map_or(bytes.len(), |after| 1 + after)
}

#[cfg(test)]
mod tests;
