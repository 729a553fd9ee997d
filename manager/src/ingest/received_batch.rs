//! Parses the bytes of a batch into a [`ReceivedBatch`]. It is strict about the fields that identify a report, and
//! lenient about the body: an unreadable report must not block the reports behind it.

use serde::Deserialize;
use serde_json::value::RawValue;
use trial_protocol::{
    AttemptId, ExperimentId, Lane, Offer, Report, ReportBatch, ReportBody, TrialJobId,
};

use crate::store::ReceivedBatch;

/// The error for bytes that are not a batch.
#[derive(Debug, thiserror::Error)]
#[error("not a batch of reports: {0}")]
pub struct BatchError(#[from] serde_json::Error);

/// A [`ReportBatch`] with unparsed bodies.
#[derive(Deserialize)]
struct WireBatch {
    offer: Offer,
    experiment: ExperimentId,
    trial: TrialJobId,
    attempt: AttemptId,
    lane: Lane,
    #[serde(default)]
    reports: Vec<WireReport>,
    #[serde(default)]
    obeyed: Vec<u64>,
    acknowledged: Option<u64>,
    forgotten: Option<u64>,
}

#[derive(Deserialize)]
struct WireReport {
    seq: u64,
    observed_at_ms: i64,
    body: Box<RawValue>,
}

/// Parses a batch.
pub(crate) fn parse_batch(bytes: &[u8]) -> Result<ReceivedBatch, BatchError> {
    let wire: WireBatch = serde_json::from_slice(bytes)?;
    let mut bodies = Vec::with_capacity(wire.reports.len());
    let mut reports = Vec::with_capacity(wire.reports.len());
    for WireReport { seq, observed_at_ms, body: raw } in wire.reports {
        let body = parse_body(raw.get()).unwrap_or(ReportBody::Unknown);
        reports.push(Report { seq, observed_at_ms, body });
        bodies.push(raw);
    }
    Ok(ReceivedBatch {
        batch: ReportBatch {
            offer: wire.offer,
            experiment: wire.experiment,
            trial: wire.trial,
            attempt: wire.attempt,
            lane: wire.lane,
            reports,
            obeyed: wire.obeyed,
            acknowledged: wire.acknowledged,
            forgotten: wire.forgotten,
        },
        bodies,
        required_attempt: None,
    })
}

/// The beginning of a metric as an agent writes it.
const METRIC_PREFIX: &str = r#"{"kind":"metric","#;

fn parse_body(raw: &str) -> serde_json::Result<ReportBody> {
    if raw.starts_with(METRIC_PREFIX) {
        // Has the same result, but is faster for the most frequent kind: for a tagged enumeration, serde would copy
        // the entire body to find the tag.
        return serde_json::from_str(raw).map(ReportBody::Metric);
    }
    serde_json::from_str(raw)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BATCH_HEAD: &str = r#"{"offer":{"oldest":1,"newest":1},"experiment":"e","trial":"t","attempt":"a","lane":"facts""#;

    #[test]
    fn the_documents_of_the_wire_protocol_are_read() {
        let golden = [
            include_str!("../../../shared/fixtures/v1/report-batch-facts.json"),
            include_str!("../../../shared/fixtures/v1/report-batch-bulk.json"),
            include_str!("../../../shared/fixtures/v1/report-batch-heartbeat.json"),
        ];
        for document in golden {
            let expected: ReportBatch = serde_json::from_str(document).unwrap();
            let received_batch = parse_batch(document.as_bytes()).unwrap();
            assert_eq!(received_batch.batch, expected);
            for (report, raw) in expected.reports.iter().zip(&received_batch.bodies) {
                let body: ReportBody = serde_json::from_str(raw.get()).unwrap();
                assert_eq!(body, report.body);
            }
        }
    }

    #[test]
    fn an_unreadable_body_is_kept_unchanged() {
        let deep = format!("{}{}", "[".repeat(300), "]".repeat(300));
        #[rustfmt::skip]
        let bodies = [
            ("a later kind",         r#"{"kind":"gpu_lost","which":[0]}"#),
            ("an invalid metric",     r#"{"kind":"metric","name":7}"#),
            ("no kind",              "{}"),
            ("no object",            "7"),
            ("too large a number",   r#"{"kind":"note","code":1e999}"#),
            ("an unpaired surrogate", r#"{"kind":"note","code":"\ud800","message":""}"#),
            ("very deep",            deep.as_str()),
        ];
        for (case, body) in bodies {
            let text = format!(
                r#"{BATCH_HEAD},"reports":[{{"seq":3,"observed_at_ms":-1,"body":{body}}}]}}"#
            );
            let received_batch =
                parse_batch(text.as_bytes()).unwrap_or_else(|error| panic!("{case}: {error}"));
            let expected = Report { seq: 3, observed_at_ms: -1, body: ReportBody::Unknown };
            assert_eq!(received_batch.batch.reports, [expected], "{case}");
            assert_eq!(received_batch.bodies[0].get(), body, "{case}");
        }
    }

    #[test]
    fn the_fields_that_identify_a_report_must_be_valid() {
        #[rustfmt::skip]
        let table = [
            ("no JSON",            "{".to_owned()),
            ("not an object",      "[]".to_owned()),
            ("no fields",          "{}".to_owned()),
            ("a trial with a path", BATCH_HEAD.replace(r#""t""#, r#""../t""#) + "}"),
            ("an unknown lane",    BATCH_HEAD.replace("facts", "fast") + "}"),
            ("a negative seq",     format!(r#"{BATCH_HEAD},"reports":[{{"seq":-1,"observed_at_ms":0,"body":{{}}}}]}}"#)),
            ("a report without body", format!(r#"{BATCH_HEAD},"reports":[{{"seq":1,"observed_at_ms":0}}]}}"#)),
            ("text behind",        format!("{BATCH_HEAD}}} x")),
        ];
        for (case, text) in table {
            assert!(parse_batch(text.as_bytes()).is_err(), "{case}");
        }
        assert!(parse_batch(format!("{BATCH_HEAD}}}").as_bytes()).is_ok());
    }

    proptest! {
        #[test]
        fn batches_of_random_bytes_never_panic(bytes: Vec<u8>, at in 0..100_usize) {
            drop(parse_batch(&bytes));
            let mut text = format!(r#"{BATCH_HEAD},"reports":[{{"seq":3,"observed_at_ms":0,"body":{{}}}}]}}"#).into_bytes();
            let at = at.min(text.len());
            text.splice(at..at, bytes);
            drop(parse_batch(&text));
        }
    }
}
