//! The output of NNI 3.0's own SDK (`fixtures/sdk`, recorded from the package on `PyPI`), replayed through the
//! collectors. The findings must not depend on the SDK's channel.

use serde_json::{Value, json};
use trial_protocol::{MetricKind, OBJECTIVE, Stream};

use super::{
    CollectSpec, CollectedMetric, Finding, MetricFileReader, SdkRecord, Source, StreamScanner,
};

fn sdk_metric(kind: MetricKind, sequence: u64, value: Value) -> Finding {
    let (name, kind) = (OBJECTIVE.to_owned(), Some(kind));
    let sequence = Some(sequence);
    Finding::Metric(CollectedMetric {
        source: Source::Sdk,
        name,
        kind,
        sequence,
        value: value.into(),
    })
}

/// Returns the reports of `trial_used.py`.
fn expected_reports() -> Vec<Finding> {
    use MetricKind::{Final, Intermediate};
    vec![
        sdk_metric(Intermediate, 0, json!(0.5)),
        sdk_metric(
            Intermediate,
            1,
            json!({"default": 0.75, "loss": 1.25, "note": "it's \"quoted\""}),
        ),
        sdk_metric(Intermediate, 2, json!("NaN")),
        sdk_metric(Final, 0, json!({"default": 0.875, "loss": 1.0})),
    ]
}

fn read_stdout(bytes: &[u8], portion: usize) -> Vec<Finding> {
    let mut scanner = StreamScanner::new(&CollectSpec::default(), Stream::Stdout);
    let mut found = Vec::new();
    for portion in bytes.chunks(portion) {
        scanner.feed(portion, &mut found);
    }
    scanner.finish(&mut found);
    found
}

fn read_metric_file(bytes: &[u8], portion: usize) -> Vec<Finding> {
    let mut reader = MetricFileReader::new();
    let mut found = Vec::new();
    for portion in bytes.chunks(portion) {
        reader.feed(portion, &mut found);
    }
    reader.finish(&mut found);
    found
}

#[test]
fn every_channel_of_the_sdk_gives_the_same_metrics() {
    let stdout: [(&str, &[u8]); 4] = [
        ("frameworkcontroller", include_bytes!("../../fixtures/sdk/stdout_fc.txt")),
        ("remote", include_bytes!("../../fixtures/sdk/stdout_remote.txt")),
        ("pai", include_bytes!("../../fixtures/sdk/stdout_pai.txt")),
        ("local reuse", include_bytes!("../../fixtures/sdk/stdout_local_reuse.txt")),
    ];
    for (platform, bytes) in stdout {
        for portion in [1, 2, 3, 7, 64, bytes.len()] {
            assert_eq!(
                read_stdout(bytes, portion),
                expected_reports(),
                "{platform}, {portion} at a time"
            );
        }
    }

    let file = include_bytes!("../../fixtures/sdk/local.metrics.bin");
    for portion in [1, 2, 3, 7, 64, file.len()] {
        assert_eq!(
            read_metric_file(file, portion),
            expected_reports(),
            "file, {portion} at a time"
        );
    }

    let http = include_str!("../../fixtures/sdk/v3_http_channel.jsonl");
    let mut found = Vec::new();
    for line in http.lines() {
        let request: Value = serde_json::from_str(line).unwrap();
        let body: Value =
            serde_json::from_str(request["body"].as_str().unwrap()).unwrap_or_default();
        if let Some(text) = body["metric"].as_str() {
            match super::read_record(text.as_bytes()).unwrap() {
                SdkRecord::Metric(metric) => found.push(Finding::Metric(metric)),
                SdkRecord::ParameterRequest => panic!("a metric is not a request"),
            }
        }
    }
    assert_eq!(found, expected_reports(), "HTTP");
}

#[test]
fn every_type_of_value_survives() {
    let bytes = include_bytes!("../../fixtures/sdk/value_types.metrics.bin");
    let values = [
        json!(1),
        json!(0.5),
        json!("Infinity"),
        json!("-Infinity"),
        json!(true),
        json!(null),
        json!("text"),
        json!("it's"),
        json!("uni\u{e9}\u{4e2d}"),
        json!([1, 2]),
        json!({"default": 0.1, "z": {"a": 1}}),
        json!(0.25),
        json!(0.25),
        json!(3),
        json!({"__ndarray__": [1.0, 2.0], "dtype": "float64", "shape": [2]}),
        json!({"__complex__": [1.0, 2.0]}),
        json!({"__date__": null, "year": 2024, "month": 1, "day": 2}),
        json!({"__set__": [1, 2]}),
        json!([1, 2]),
    ];
    let mut expected: Vec<_> = (0..)
        .zip(values)
        .map(|(sequence, value)| sdk_metric(MetricKind::Intermediate, sequence, value))
        .collect();
    expected.push(sdk_metric(MetricKind::Final, 0, json!(1)));
    for portion in [1, 5, bytes.len()] {
        assert_eq!(read_metric_file(bytes, portion), expected, "{portion} at a time");
    }
}

#[test]
fn a_request_for_parameters_is_no_metric() {
    let bytes = include_bytes!("../../fixtures/sdk/stdout_multiphase.txt");
    let expected = [
        sdk_metric(MetricKind::Final, 0, json!(0.0)),
        sdk_metric(MetricKind::Final, 0, json!(1.0)),
    ];
    assert_eq!(read_stdout(bytes, bytes.len()), expected);
}

#[test]
fn output_of_the_sdk_without_a_manager_counts_as_text() {
    for bytes in [
        include_bytes!("../../fixtures/sdk/stdout_standalone.txt").as_slice(),
        include_bytes!("../../fixtures/sdk/stdout_unittest.txt"),
        include_bytes!("../../fixtures/sdk/local.trial.log"),
    ] {
        let of_sdk = |finding: &Finding| {
            !matches!(finding, Finding::Metric(CollectedMetric { source: Source::Text, .. }))
        };
        let found = read_stdout(bytes, bytes.len());
        assert!(!found.iter().any(of_sdk), "{found:?}");
    }
}
