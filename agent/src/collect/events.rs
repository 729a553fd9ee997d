//! PURE: reads metrics from `TensorBoard`'s event files.
//!
//! A file is a sequence of `TFRecords` (TensorFlow, `tensorflow/core/lib/io/record_writer.h`). All integers are
//! little-endian:
//!
//! ```text
//! u64  length of the data
//! u32  masked CRC-32C of these 8 bytes
//! ...  data: one protobuf `Event`
//! u32  masked CRC-32C of the data
//! ```
//!
//! The reader waits for the rest of an incomplete record. It skips bytes whose checksum is wrong, and reports each such
//! stretch once. After a broken length, it finds the next record by that record's own checksum. Records that are too
//! large for scalars (a graph, images) are skipped. The first of them that may also contain scalars is reported.

mod event;

use super::{CollectedMetric, EXCERPT_BYTES, Finding, MAX_LINE_BYTES, MAX_NAME_BYTES, Source};
use crate::util::numbers::to_u64;

/// The length and its checksum.
const HEADER_BYTES: usize = 12;

/// The checksum of the data.
const FOOTER_BYTES: usize = 4;

/// The number of bytes that are added to the carry at once.
const PORTION_BYTES: usize = 256 * 1024;

/// The number of bytes of a record that identify its content.
const PEEK_BYTES: usize = 32;

/// Reads the records of one event file, given its bytes in any portions.
#[derive(Debug, Default)]
pub struct EventFileReader {
    /// The current record, as far as it has arrived.
    carry: Vec<u8>,
    /// The remaining bytes of a record that is too large.
    bytes_to_skip: u64,
    /// `true` if a summary that is too large was reported.
    large_event_reported: bool,
    corrupt: Option<CorruptBytes>,
}

/// A stretch of bytes that fail their checksums.
#[derive(Debug)]
struct CorruptBytes {
    head: Vec<u8>,
    length: u64,
    why: &'static str,
}

/// The content at the start of the available bytes.
enum NextContent<'a> {
    Record { data: &'a [u8] },
    TooLarge { length: u64, is_summary: bool },
    Corrupt { length: usize, why: &'static str },
    Wait,
}

impl EventFileReader {
    /// Returns a reader for the beginning of a file.
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads the next bytes of the file and appends the findings that they complete.
    pub fn feed(&mut self, bytes: &[u8], found: &mut Vec<Finding>) {
        for portion in bytes.chunks(PORTION_BYTES) {
            let passed =
                portion.len().min(usize::try_from(self.bytes_to_skip).unwrap_or(usize::MAX));
            self.bytes_to_skip -= to_u64(passed);
            self.carry.extend_from_slice(&portion[passed..]);
            self.read(found);
        }
    }

    /// Ends the file. An incomplete record is not an error, because the writer may have been killed.
    pub fn finish(&mut self, found: &mut Vec<Finding>) {
        self.report_corrupt(found);
    }

    fn read(&mut self, found: &mut Vec<Finding>) {
        let carry = std::mem::take(&mut self.carry);
        let mut at = 0;
        loop {
            let rest = &carry[at..];
            match parse_next(rest) {
                NextContent::Record { data } => match event::read_scalars(data) {
                    Ok(scalars) => {
                        self.report_corrupt(found);
                        found.extend(scalars.iter().filter_map(metric).map(Finding::Metric));
                        at += HEADER_BYTES + data.len() + FOOTER_BYTES;
                    }
                    Err(event::MalformedEvent) => {
                        let length = HEADER_BYTES + data.len() + FOOTER_BYTES;
                        self.skip_corrupt(&rest[..length], "are not events");
                        at += length;
                    }
                },
                NextContent::TooLarge { length, is_summary } => {
                    self.report_corrupt(found);
                    if is_summary && !std::mem::replace(&mut self.large_event_reported, true) {
                        let why = format!(
                            "an event of more than {MAX_LINE_BYTES} bytes is skipped, with any scalars in it"
                        );
                        found.push(Finding::unreadable(Source::Events, b"", why));
                    }
                    let passed = rest.len().min(usize::try_from(length).unwrap_or(usize::MAX));
                    self.bytes_to_skip = length - to_u64(passed);
                    at += passed;
                }
                NextContent::Corrupt { length, why } => {
                    self.skip_corrupt(&rest[..length], why);
                    at += length;
                }
                NextContent::Wait => break,
            }
        }
        self.carry = carry;
        self.carry.drain(..at);
    }

    fn skip_corrupt(&mut self, bytes: &[u8], why: &'static str) {
        let corrupt = self.corrupt.get_or_insert(CorruptBytes { head: Vec::new(), length: 0, why });
        let room = EXCERPT_BYTES - corrupt.head.len();
        corrupt.head.extend_from_slice(&bytes[..bytes.len().min(room)]);
        corrupt.length = corrupt.length.saturating_add(to_u64(bytes.len()));
    }

    fn report_corrupt(&mut self, found: &mut Vec<Finding>) {
        if let Some(CorruptBytes { head, length, why }) = self.corrupt.take() {
            let why = format!("{length} bytes of the event file {why}");
            found.push(Finding::unreadable(Source::Events, &head, why));
        }
    }
}

fn parse_next(bytes: &[u8]) -> NextContent<'_> {
    let Some((header, rest)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
        return NextContent::Wait;
    };
    let (length, checksum) = header.split_at(8);
    if masked_crc(length).to_le_bytes() != checksum {
        // Skips one byte at a time. The next record's own checksum identifies its start.
        return NextContent::Corrupt { length: 1, why: "fail their checksum" };
    }
    let length = length.iter().rev().fold(0, |length, byte| length << 8 | u64::from(*byte));
    let Some(size) = usize::try_from(length).ok().filter(|size| *size <= MAX_LINE_BYTES) else {
        let Some(head) = rest.get(..PEEK_BYTES) else { return NextContent::Wait };
        let length = length.saturating_add(to_u64(HEADER_BYTES + FOOTER_BYTES));
        return NextContent::TooLarge { length, is_summary: event::begins_summary(head) };
    };
    let Some((data, rest)) = rest.split_at_checked(size) else {
        return NextContent::Wait;
    };
    let Some(checksum) = rest.first_chunk::<FOOTER_BYTES>() else {
        return NextContent::Wait;
    };
    if masked_crc(data).to_le_bytes() == *checksum {
        NextContent::Record { data }
    } else {
        let length = HEADER_BYTES + size + FOOTER_BYTES;
        NextContent::Corrupt { length, why: "fail their checksum" }
    }
}

fn metric(scalar: &event::Scalar<'_>) -> Option<CollectedMetric> {
    let &event::Scalar { tag, step, value } = scalar;
    let named = (1..=MAX_NAME_BYTES).contains(&tag.len());
    named.then(|| CollectedMetric {
        source: Source::Events,
        name: tag.to_owned(),
        kind: None,
        sequence: u64::try_from(step).ok(),
        value: value.into(),
    })
}

/// Returns the checksum in the form of `TFRecords`: rotated and offset, so that a record inside another one is not
/// recognised as a record.
fn masked_crc(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

#[cfg(test)]
mod tests;
