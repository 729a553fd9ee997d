//! PURE: parses NNI's metric object, which is the same in all channels of its SDK (NNI 3.0, `nni/trial.py`).
//!
//! ```json
//! {"parameter_id": 0, "trial_job_id": "abcde", "type": "PERIODICAL", "sequence": 0, "value": "0.5"}
//! ```
//!
//! `value` is a string that contains JSON again, with Python's bare `NaN` and `Infinity`. A value that is not a string
//! is used directly. Ids are ignored, because the agent knows its trial.

use serde_json::Value;
use trial_protocol::{MetricKind, MetricValue, OBJECTIVE};

use super::{CollectedMetric, Source};

/// A readable record of the SDK.
#[derive(Debug, Clone, PartialEq)]
pub enum SdkRecord {
    /// A metric.
    Metric(CollectedMetric),
    /// `REQUEST_PARAMETER`: the trial requests another point of the search space, which cannot be answered over stdout.
    ParameterRequest,
}

/// Parses one metric object. The error names the problem.
pub fn read_record(text: &[u8]) -> Result<SdkRecord, String> {
    let text = std::str::from_utf8(text).map_err(|_| "not UTF-8".to_owned())?;
    let record = MetricValue::parse(text).map_err(|_| "not valid JSON".to_owned())?;
    let Value::Object(members) = record.as_json() else {
        return Err("not a JSON object".to_owned());
    };

    let kind = match members.get("type").and_then(Value::as_str) {
        Some("PERIODICAL") => MetricKind::Intermediate,
        Some("FINAL") => MetricKind::Final,
        Some("REQUEST_PARAMETER") => return Ok(SdkRecord::ParameterRequest),
        Some(_) => return Err("its type is neither PERIODICAL nor FINAL".to_owned()),
        None => return Err("it has no type".to_owned()),
    };
    let value = match members.get("value") {
        Some(Value::String(inner)) => {
            MetricValue::parse(inner).map_err(|_| "its value does not hold JSON".to_owned())?
        }
        Some(other) => MetricValue::from(other.clone()),
        None => return Err("it has no value".to_owned()),
    };
    let sequence = members.get("sequence").and_then(Value::as_u64);
    let found = CollectedMetric {
        source: Source::Sdk,
        name: OBJECTIVE.to_owned(),
        kind: Some(kind),
        sequence,
        value,
    };
    Ok(SdkRecord::Metric(found))
}

/// Returns the length of the JSON object at the start of `bytes`, including its braces, or `None` if it does not end
/// here.
///
/// The function only counts braces outside strings, so the text may still not be JSON. But if it is JSON, it ends here.
pub(super) fn object_length(bytes: &[u8]) -> Option<usize> {
    let mut depth = 0_usize;
    let mut in_string = false;
    let mut escaped = false;
    for (index, byte) in bytes.iter().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'{' if !in_string => depth += 1,
            b'}' if !in_string => {
                depth = depth.checked_sub(1)?;
                if depth == 0 {
                    return Some(index + 1);
                }
            }
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn records_are_read_or_refused_with_a_reason() {
        use MetricKind::{Final, Intermediate};
        let metric = |kind, sequence, value: Value| {
            let name = OBJECTIVE.to_owned();
            let kind = Some(kind);
            let value = value.into();
            Ok(SdkRecord::Metric(CollectedMetric {
                source: Source::Sdk,
                name,
                kind,
                sequence,
                value,
            }))
        };
        let refused = |why: &str| Err(why.to_owned());
        #[rustfmt::skip]
        let table = [
            ("a step",            r#"{"type": "PERIODICAL", "sequence": 3, "value": "0.5"}"#, metric(Intermediate, Some(3), json!(0.5))),
            ("the end",           r#"{"type": "FINAL", "sequence": 0, "value": "{\"default\": NaN}"}"#, metric(Final, Some(0), json!({"default": "NaN"}))),
            ("an apostrophe",     r#"{"type": "FINAL", "sequence": 0, "value": "\"it's\""}"#, metric(Final, Some(0), json!("it's"))),
            ("a value in clear",  r#"{"type": "FINAL", "value": 0.5}"#,           metric(Final, None, json!(0.5))),
            ("NaN in clear",      r#"{"type": "FINAL", "value": NaN}"#,           metric(Final, None, json!("NaN"))),
            ("a request",         r#"{"type": "REQUEST_PARAMETER", "sequence": 0, "parameter_index": 1}"#, Ok(SdkRecord::ParameterRequest)),
            ("another type",      r#"{"type": "OTHER", "value": "1"}"#,           refused("its type is neither PERIODICAL nor FINAL")),
            ("no type",           r#"{"value": "1"}"#,                            refused("it has no type")),
            ("no value",          r#"{"type": "FINAL"}"#,                         refused("it has no value")),
            ("a value unquoted",  r#"{"type": "FINAL", "value": "text"}"#,        refused("its value does not hold JSON")),
            ("no object",         "[1]",                                          refused("not a JSON object")),
            ("no JSON",           r#"{"type": "FINAL", }"#,                       refused("not valid JSON")),
        ];
        for (case, text, record) in table {
            assert_eq!(read_record(text.as_bytes()), record, "{case}");
        }
        assert_eq!(read_record(b"{\"\xff\": 1}"), refused("not UTF-8"));
    }

    #[test]
    fn an_object_ends_at_its_own_brace() {
        #[rustfmt::skip]
        let table = [
            ("empty",              "{}'",                   Some(2)),
            ("nested",             r#"{"a": {"b": 1}} x"#,  Some(15)),
            ("a brace in text",    r#"{"a": "}"}"#,         Some(10)),
            ("an escaped quote",   r#"{"a": "\"}"}'"#,      Some(12)),
            ("an escaped escape",  r#"{"a": "\\"}'"#,       Some(11)),
            ("unfinished",         r#"{"a": "}"#,           None),
            ("no beginning",       "}",                     None),
            ("nothing",            "",                      None),
        ];
        for (case, text, length) in table {
            assert_eq!(object_length(text.as_bytes()), length, "{case}");
        }
    }

    proptest! {
        #[test]
        fn sdk_records_of_random_bytes_never_panic(bytes: Vec<u8>) {
            drop(read_record(&bytes));
            object_length(&bytes);
        }
    }
}
