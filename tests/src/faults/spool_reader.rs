//! Reads an agent's spool, by the format description at the head of the agent's `spool.rs`. This independent
//! reader detects errors of the writer.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use trial_protocol::{MetricKind, Report, ReportBody};

/// The magic bytes before a segment's records.
const SEGMENT_MAGIC: &[u8] = b"TKSPOOL1";
/// The length of a record's header: length, checksum and seq.
const RECORD_HEADER_BYTES: usize = 16;

/// Returns the values of all intermediate metrics in the spool, of all attempts.
pub fn metric_values(spool: &Path) -> BTreeSet<i64> {
    let attempts = fs::read_dir(spool).into_iter().flatten().flatten();
    let lanes = attempts.flat_map(|attempt| fs::read_dir(attempt.path()).into_iter().flatten());
    let names = lanes.flatten().map(|entry| entry.path()).filter(|path| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.starts_with("facts-") && Path::new(name).extension().is_some_and(|kind| kind == "seg")
    });
    names.flat_map(|path| segment_values(&fs::read(path).unwrap_or_default())).collect()
}

fn segment_values(bytes: &[u8]) -> Vec<i64> {
    let mut values = Vec::new();
    let Some(mut rest) = bytes.strip_prefix(SEGMENT_MAGIC) else { return values };
    while rest.len() >= RECORD_HEADER_BYTES {
        let length = u32::from_le_bytes(rest[..4].try_into().expect("four bytes"));
        let end =
            RECORD_HEADER_BYTES + usize::try_from(length).expect("usize has at least 32 bits");
        let Some(payload) = rest.get(RECORD_HEADER_BYTES..end) else { break };
        let Ok(report) = serde_json::from_slice::<Report>(payload) else { break };
        if let ReportBody::Metric(metric) = report.body
            && metric.kind == MetricKind::Intermediate
        {
            values.extend(metric.value.number().map(to_integer));
        }
        rest = &rest[end..];
    }
    values
}

/// Converts a value that a test's trial printed to an integer.
pub fn to_integer(value: f64) -> i64 {
    format!("{value:.0}").parse().expect("a whole number in decimal digits")
}
