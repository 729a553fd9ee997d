//! PURE: encodes and decodes records. The format is at the head of [`spool`](super).

use std::sync::Arc;

use crate::util::numbers::to_u64;

/// The first bytes of a segment.
pub const SEGMENT_MAGIC: &[u8; 8] = b"TKSPOOL1";
/// The number of bytes of a record before its payload: length, checksum, seq.
pub const RECORD_HEADER_BYTES: usize = 16;
/// The maximum length of a payload. A longer one indicates damage. A metric of NNI's SDK has at most a million
/// characters, which escaping may multiply by six.
const MAX_PAYLOAD_BYTES: usize = 64 << 20;

/// A report as stored and delivered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Position in its lane.
    pub seq: u64,
    /// The report as JSON.
    pub json: Arc<str>,
}

/// The result of decoding the first bytes of a slice.
#[derive(Debug, PartialEq, Eq)]
pub enum DecodeResult {
    /// A record, and its length in bytes.
    Whole(Record, usize),
    /// An incomplete record, or no bytes. The writer may not have finished, or was interrupted.
    Incomplete,
    /// Bytes that are no record.
    Damaged,
}

/// Returns the number of bytes that a record takes on the disk.
pub fn disk_size(record: &Record) -> u64 {
    to_u64(RECORD_HEADER_BYTES + record.json.len())
}

/// Appends a record to `bytes`.
pub fn encode(record: &Record, bytes: &mut Vec<u8>) {
    let payload = record.json.as_bytes();
    let length = u32::try_from(payload.len()).expect("reports are far shorter than 4 GiB");
    let seq = record.seq.to_le_bytes();
    bytes.extend_from_slice(&length.to_le_bytes());
    bytes.extend_from_slice(&checksum(seq, payload).to_le_bytes());
    bytes.extend_from_slice(&seq);
    bytes.extend_from_slice(payload);
}

/// Reads the record at the front of `bytes`.
pub fn decode(bytes: &[u8]) -> DecodeResult {
    let Some((header, rest)) = bytes.split_first_chunk::<RECORD_HEADER_BYTES>() else {
        return DecodeResult::Incomplete;
    };
    let [l0, l1, l2, l3, c0, c1, c2, c3, seq @ ..] = *header;
    let length = usize::try_from(u32::from_le_bytes([l0, l1, l2, l3])).unwrap_or(usize::MAX);
    if length > MAX_PAYLOAD_BYTES {
        return DecodeResult::Damaged;
    }
    let Some(payload) = rest.get(..length) else { return DecodeResult::Incomplete };
    if checksum(seq, payload) != u32::from_le_bytes([c0, c1, c2, c3]) {
        return DecodeResult::Damaged;
    }
    match std::str::from_utf8(payload) {
        Ok(json) => {
            let record = Record { seq: u64::from_le_bytes(seq), json: json.into() };
            DecodeResult::Whole(record, RECORD_HEADER_BYTES + length)
        }
        Err(_) => DecodeResult::Damaged,
    }
}

fn checksum(seq: [u8; 8], payload: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&seq), payload)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn records_of_random_bytes_never_panic(bytes: Vec<u8>) {
            decode(&bytes);
        }

        #[test]
        fn records_are_read_back_and_damage_is_found(
            seq: u64,
            json: String,
            after: Vec<u8>,
            at: proptest::sample::Index,
            flip in 1..=u8::MAX,
        ) {
            let record = Record { seq, json: json.into() };
            let mut bytes = Vec::new();
            encode(&record, &mut bytes);
            let length = bytes.len();
            prop_assert_eq!(u64::try_from(length).unwrap(), disk_size(&record));
            prop_assert_eq!(decode(&bytes[..at.index(length)]), DecodeResult::Incomplete);
            bytes.extend(after);
            prop_assert_eq!(decode(&bytes), DecodeResult::Whole(record, length));
            bytes[at.index(length)] ^= flip;
            let is_whole = matches!(decode(&bytes), DecodeResult::Whole(..));
            prop_assert!(!is_whole, "a byte has changed");
        }
    }
}
