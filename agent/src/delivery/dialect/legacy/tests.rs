use proptest::prelude::*;
use serde_json::json;
use trial_protocol::{ExperimentId, Metric, MetricKind, TrialJobId};

use super::*;
use crate::spool::Dialect;

/// Returns the metrics that the server reads (NNI 3.0, `clusterJobRestServer.ts`): the first match, up to the first
/// apostrophe.
fn read_by_the_server(body: &str) -> Option<String> {
    let body: Value = serde_json::from_str(body).unwrap();
    if body["tag"] != "trial" {
        return None;
    }
    let (_, rest) = body["msg"].as_str().unwrap().split_once("NNISDK_MEb'")?;
    rest.split_once('\'').map(|(metrics, _)| metrics.to_owned())
}

fn sender() -> Sender {
    Sender {
        experiment: ExperimentId::new("exp").unwrap(),
        trial: TrialJobId::new("tri").unwrap(),
        dialect: Dialect::Nni,
    }
}

#[test]
fn bodies_equal_those_of_nnis_keeper() {
    let fail = VersionComparison::Mismatch { manager: "2.9".to_owned(), keeper: "3.0".to_owned() };
    #[rustfmt::skip]
    let table = [
        (version_call_body(&VersionComparison::Match), r#"{"tag": "VCSuccess"}"#),
        (version_call_body(&fail), r#"{"tag": "VCFail", "msg": "NNIManager version is 2.9, TrialKeeper version is 3.0, NNI version does not match!"}"#),
        (line_bodies(Tag::Trial, "one \"two\"").concat(), r#"{"tag": "trial", "stdOutputType": "Stdout", "msg": "one \"two\""}"#),
        (line_bodies(Tag::Trial, "").concat(), r#"{"tag": "trial", "stdOutputType": "Stdout", "msg": ""}"#),
        (line_bodies(Tag::Keeper, "x").concat(), r#"{"tag": "trial_keeper", "stdOutputType": "Stdout", "msg": "x"}"#),
        (metric_body(r#"{"type": "FINAL", "value": "1"}"#), r#"{"tag": "trial", "stdOutputType": "Stdout", "msg": "NNISDK_MEb'{\"type\": \"FINAL\", \"value\": \"1\"}'"}"#),
    ];
    for (written, expected) in table {
        assert_eq!(written, expected);
        serde_json::from_str::<Value>(&written).unwrap();
    }
}

#[test]
fn the_server_reads_a_metric_with_apostrophes_whole() {
    let object = r#"{"type": "FINAL", "value": "{\"default\": 1, \"it's\": \"o'k\"}"}"#;
    let read = read_by_the_server(&metric_body(object)).unwrap();
    let value = |text: &str| serde_json::from_str::<Value>(text).unwrap();
    assert_eq!(value(&read), value(object));
}

#[test]
fn long_lines_are_split_into_requests_that_the_server_accepts() {
    for text in ["é".repeat(100_000), "\u{1}".repeat(50_000), "x".repeat(MAX_LINE_BYTES)] {
        let bodies = line_bodies(Tag::Trial, &text);
        assert!(bodies.iter().all(|body| body.len() < 100 * 1024));
        let parts = bodies.iter().map(|body| {
            serde_json::from_str::<Value>(body).unwrap()["msg"].as_str().unwrap().to_owned()
        });
        assert_eq!(parts.collect::<String>(), text);
    }
    assert_eq!(line_bodies(Tag::Trial, &"x".repeat(MAX_LINE_BYTES)).len(), 1);
}

#[test]
fn other_metrics_are_written_as_the_sdk_writes_them() {
    #[rustfmt::skip]
    let table = [
        (json!(0.5),                                   json!(4),    r#"{"parameter_id": 4, "trial_job_id": "tri", "type": "FINAL", "sequence": 2, "value": "0.5"}"#),
        (json!({"default": "NaN", "n": [1, "a'b"]}),   Value::Null, r#"{"parameter_id": null, "trial_job_id": "tri", "type": "FINAL", "sequence": 2, "value": "{\"default\": NaN, \"n\": [1, \"a'b\"]}"}"#),
    ];
    for (value, id, expected) in table {
        let found = Metric {
            name: "default".to_owned(),
            kind: MetricKind::Final,
            sequence: 2,
            value: value.clone().into(),
            derived: false,
        };
        let written = metric_object(&id, &sender(), &found);
        assert_eq!(written, expected);
        let crate::collect::SdkRecord::Metric(back) =
            crate::collect::read_record(written.as_bytes()).unwrap()
        else {
            panic!("a metric")
        };
        assert_eq!(back.value, found.value);
    }
}

#[test]
fn a_metric_that_is_too_large_keeps_the_number_that_counts() {
    let body = |value: &str| {
        let value = serde_json::to_string(value).unwrap();
        metric_body(&format!(
            r#"{{"parameter_id": 1, "type": "FINAL", "sequence": 0, "value": {value}}}"#
        ))
    };
    #[rustfmt::skip]
    let table = [
        ("an object",            body(r#"{"default": 0.5, "big": "it's"}"#), Some(r#"{"default": 0.5}"#)),
        ("not finite",           body(r#"{"big": 1, "default": NaN}"#),      Some(r#"{"default": NaN}"#)),
        ("nothing to leave out", body(r#"{"default": 0.5}"#),                None),
        ("no number",            body(r#"{"a": 0.5, "b": 1}"#),              None),
        ("a plain value",        body("\"text\""),                           None),
        ("no metric",            line_bodies(Tag::Trial, "x").concat(),      None),
    ];
    for (case, body, value) in table {
        let less = reduce_metric_body(&body).map(|body| {
            let read = read_by_the_server(&body).unwrap();
            let read: Value = serde_json::from_str(&read).unwrap();
            assert_eq!((&read["parameter_id"], &read["type"]), (&json!(1), &json!("FINAL")));
            read["value"].as_str().unwrap().to_owned()
        });
        assert_eq!(less.as_deref(), value, "{case}");
    }
}

#[test]
fn only_refused_metrics_are_retried() {
    #[rustfmt::skip]
    let table = [
        // status, a metric, a line
        (200, PostOutcome::Accepted,   PostOutcome::Accepted),
        (413, PostOutcome::Rejected,   PostOutcome::Rejected),
        (400, PostOutcome::RetryLater, PostOutcome::Rejected),
        (500, PostOutcome::RetryLater, PostOutcome::Rejected),
        (404, PostOutcome::RetryLater, PostOutcome::RetryLater),
        (502, PostOutcome::RetryLater, PostOutcome::RetryLater),
        (503, PostOutcome::RetryLater, PostOutcome::RetryLater),
        (301, PostOutcome::RetryLater, PostOutcome::RetryLater),
    ];
    for (status, of_metric, of_line) in table {
        assert_eq!(
            (post_outcome(status, true), post_outcome(status, false)),
            (of_metric, of_line),
            "{status}"
        );
    }
}

proptest! {
    #[test]
    fn no_line_of_text_is_taken_for_a_metric_or_a_version_call(text in ".*") {
        for tag in [Tag::Trial, Tag::Keeper] {
            for body in line_bodies(tag, &text) {
                prop_assert!(!body.starts_with(VERSION_PREFIX));
                serde_json::from_str::<Value>(&body).unwrap();
            }
        }
        drop(reduce_metric_body(&text));
    }
}
