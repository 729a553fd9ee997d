//! PURE: parses commands of NNI's channel, version 3, in JSON.
//!
//! `{"type": "request_parameter"}` is answered with `{"type": "parameter", "parameter": "<record>"}`, and `{"type":
//! "metric", "metric": "<metric object>"}` is a metric. Both strings contain JSON again.

use serde_json::{Value, json};

use crate::collect::{Finding, SdkRecord, Source, read_record};

/// A request of a trial.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum ChannelCommand {
    /// The trial requests its parameters.
    RequestParameter,
    /// A metric, or an unreadable command.
    Finding(Finding),
}

/// Parses a command.
pub(super) fn parse(body: &[u8]) -> ChannelCommand {
    let unreadable =
        |why: String| ChannelCommand::Finding(Finding::unreadable(Source::Sdk, body, why));
    let Ok(command) = serde_json::from_slice::<Value>(body) else {
        return unreadable("a command on the SDK's channel is not valid JSON".to_owned());
    };
    match command["type"].as_str() {
        Some("request_parameter") => ChannelCommand::RequestParameter,
        Some("metric") => match command["metric"].as_str().map(|text| read_record(text.as_bytes()))
        {
            Some(Ok(SdkRecord::Metric(metric))) => ChannelCommand::Finding(Finding::Metric(metric)),
            Some(Ok(SdkRecord::ParameterRequest)) => ChannelCommand::RequestParameter,
            Some(Err(why)) => unreadable(why),
            None => unreadable("the metric command has no metric".to_owned()),
        },
        Some(_) | None => unreadable("a command of an unknown type".to_owned()),
    }
}

/// Returns the answer to a request for parameters. `record` is JSON, sent as a string.
pub(super) fn parameter_answer(record: &str) -> String {
    json!({"type": "parameter", "parameter": record}).to_string()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn commands_are_read_or_refused_with_a_reason() {
        let why = |body: &str| match parse(body.as_bytes()) {
            ChannelCommand::RequestParameter => "a request".to_owned(),
            ChannelCommand::Finding(Finding::Metric(metric)) => metric.value.as_json().to_string(),
            ChannelCommand::Finding(Finding::Unreadable { why, .. }) => why,
        };
        #[rustfmt::skip]
        let table = [
            (r#"{"type": "request_parameter"}"#,                                        "a request"),
            (r#"{"type": "metric", "metric": "{\"type\": \"FINAL\", \"value\": \"1\"}"}"#, "1"),
            (r#"{"type": "metric", "metric": "{\"type\": \"FINAL\"}"}"#,                "it has no value"),
            (r#"{"type": "metric"}"#,                                                   "the metric command has no metric"),
            (r#"{"type": "other"}"#,                                                    "a command of an unknown type"),
            ("[]",                                                                      "a command of an unknown type"),
            ("",                                                                        "a command on the SDK's channel is not valid JSON"),
        ];
        for (body, expected) in table {
            assert_eq!(why(body), expected, "{body}");
        }
    }

    #[test]
    fn the_answer_holds_the_record_as_text() {
        let record = r#"{"parameters": {"s": "it's \"quoted\""}}"#;
        let answer: Value = serde_json::from_str(&parameter_answer(record)).unwrap();
        assert_eq!(answer["parameter"], record);
    }

    proptest! {
        #[test]
        fn commands_of_random_bytes_never_panic(body: Vec<u8>) {
            parse(&body);
        }
    }
}
