//! PURE: converts a line of a trial's output, as the Python keeper sends it, into reports. Source: NNI 3.0,
//! `nni/runtime/trial_command_channel` and `nni/trial.py`.

use serde::Deserialize;
use serde_json::Value;
use trial_protocol::{
    LogChunk, LogText, Metric, MetricKind, MetricValue, OBJECTIVE, ReportBody, Stream, TrialJobId,
};

/// The mark before a metric's JSON. An apostrophe follows the JSON.
const METRIC_MARKER: &str = "NNISDK_MEb'";

/// The maximum length of a malformed text in a message to the user, in characters.
const MAX_TEXT_CHARS: usize = 200;

/// The content of a line, by lane.
#[derive(Debug, Default, PartialEq)]
pub(super) struct LineContent {
    pub(super) facts: Vec<ReportBody>,
    pub(super) bulk: Vec<ReportBody>,
}

/// A metric as NNI's SDK writes it.
#[derive(Deserialize)]
struct NniMetric {
    trial_job_id: String,
    r#type: String,
    #[serde(default)]
    sequence: u64,
    /// The value as JSON in a text. A bare value is also accepted.
    #[serde(default)]
    value: Option<Value>,
}

impl LineContent {
    /// Creates the content of a line that is only output.
    pub(super) fn log(stream: Stream, mut line: String) -> Self {
        line.push('\n');
        // The offset within the stream is determined when the report is numbered.
        let chunk = LogChunk { stream, offset_bytes: 0, text: LogText::Text(line) };
        Self { facts: Vec::new(), bulk: vec![ReportBody::Log(chunk)] }
    }
}

/// Reads a line of the trial's own output. Text beside metrics is output. A metric that cannot be read becomes a
/// note, and stays in the output.
pub(super) fn read_line(trial: &TrialJobId, stream: Stream, line: &str) -> LineContent {
    if let Some(rest) = line.strip_prefix(METRIC_MARKER)
        && let Some(fact) = read_single_metric(trial, rest)
    {
        return LineContent { facts: vec![fact], bulk: Vec::new() };
    }
    let (mut facts, mut beside) = (Vec::new(), String::new());
    let mut rest = line;
    // Several processes of a trial may write to one line.
    while let Some(at) = rest.find(METRIC_MARKER) {
        let text = &rest[at + METRIC_MARKER.len()..];
        // The JSON parser determines the end of the JSON, which may contain apostrophes.
        let mut values = serde_json::Deserializer::from_str(text).into_iter::<Value>();
        let value = values.next();
        let after = text.get(values.byte_offset()..).and_then(|rest| rest.strip_prefix('\''));
        let (fact, after) = match (value, after) {
            (Some(Ok(value)), Some(after)) => (metric_report(trial, value), after),
            (Some(Err(error)), _) => (unreadable_metric(&error.to_string(), text), text),
            _ => (unreadable_metric("it does not end with an apostrophe", text), text),
        };
        let is_metric = matches!(fact, ReportBody::Metric(_));
        beside.push_str(if is_metric { &rest[..at] } else { &rest[..rest.len() - after.len()] });
        facts.push(fact);
        rest = after;
    }
    beside.push_str(rest);
    let nothing = !facts.is_empty() && beside.trim().is_empty();
    let bulk = if nothing { Vec::new() } else { LineContent::log(stream, beside).bulk };
    LineContent { facts, bulk }
}

/// Reads the most frequent line with a metric: only the metric. Returns `None` for any other line, and for a metric
/// that cannot be read. The caller then reads the line in full.
fn read_single_metric(trial: &TrialJobId, rest: &str) -> Option<ReportBody> {
    let metric = serde_json::from_str(rest.trim_end().strip_suffix('\'')?).ok()?;
    to_metric(trial, metric).ok().map(ReportBody::Metric)
}

/// Reads a metric that arrived without surrounding output.
pub(super) fn read_bare_metric(trial: &TrialJobId, text: &str) -> ReportBody {
    match serde_json::from_str(text) {
        Ok(value) => metric_report(trial, value),
        Err(error) => unreadable_metric(&error.to_string(), text),
    }
}

fn metric_report(trial: &TrialJobId, value: Value) -> ReportBody {
    let text = value.to_string();
    let metric = serde_json::from_value::<NniMetric>(value).map_err(|error| error.to_string());
    match metric.and_then(|metric| to_metric(trial, metric)) {
        Ok(metric) => ReportBody::Metric(metric),
        Err(problem) => unreadable_metric(&problem, &text),
    }
}

fn to_metric(trial: &TrialJobId, metric: NniMetric) -> Result<Metric, String> {
    if metric.trial_job_id != trial.as_str() {
        return Err("it is for another trial".to_owned());
    }
    let kind = match metric.r#type.as_str() {
        "PERIODICAL" => MetricKind::Intermediate,
        "FINAL" => MetricKind::Final,
        _ => return Err("its type is neither PERIODICAL nor FINAL".to_owned()),
    };
    let value = match metric.value {
        None => return Err("it has no value".to_owned()),
        Some(Value::String(text)) => {
            MetricValue::parse(&text).map_err(|error| format!("its value is {error}"))?
        }
        Some(bare) => serde_json::from_value(bare).map_err(|error| error.to_string())?,
    };
    Ok(Metric {
        name: OBJECTIVE.to_owned(),
        kind,
        sequence: metric.sequence,
        value,
        derived: false,
    })
}

fn unreadable_metric(problem: &str, text: &str) -> ReportBody {
    ReportBody::Note {
        code: "metric-unreadable".to_owned(),
        message: format!("a metric cannot be read: {problem}: {}", shortened(text)),
    }
}

/// Shortens a text from a client to a length for messages.
pub(super) fn shortened(text: &str) -> String {
    let mut short: String = text.chars().take(MAX_TEXT_CHARS).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn trial_id() -> TrialJobId {
        TrialJobId::new("abcde").unwrap()
    }

    fn log_reports(text: &str) -> Vec<ReportBody> {
        LineContent::log(Stream::Stdout, text.to_owned()).bulk
    }

    #[test]
    fn metrics_are_found_in_lines() {
        let periodical = r#"{"parameter_id": 0, "trial_job_id": "abcde", "type": "PERIODICAL", "sequence": 3, "value": "0.5"}"#;
        let apostrophe = r#"{"trial_job_id": "abcde", "type": "FINAL", "sequence": 0, "value": "{\"default\": NaN, \"who\": \"it's'\"}"}"#;
        let bare = r#"{"trial_job_id": "abcde", "type": "FINAL", "sequence": 0, "value": 7}"#;
        #[rustfmt::skip]
        let table = [
            ("NNI's own bytes",    format!("{METRIC_MARKER}{periodical}'"),       MetricKind::Intermediate, 3, json!(0.5), ""),
            ("an apostrophe",      format!("{METRIC_MARKER}{apostrophe}'"),       MetricKind::Final, 0, json!({"default": "NaN", "who": "it's'"}), ""),
            ("a bare value",       format!("{METRIC_MARKER}{bare}'"),             MetricKind::Final, 0, json!(7), ""),
            ("text before it",     format!("epoch 1 {METRIC_MARKER}{bare}'"),     MetricKind::Final, 0, json!(7), "epoch 1 "),
            ("text on both sides", format!("[{METRIC_MARKER}{bare}']"),           MetricKind::Final, 0, json!(7), "[]"),
        ];
        for (case, line, kind, sequence, value, beside) in table {
            let content = read_line(&trial_id(), Stream::Stdout, &line);
            let value = serde_json::from_value(value).unwrap();
            let name = "default".to_owned();
            let metric = Metric { name, kind, sequence, value, derived: false };
            assert_eq!(content.facts, [ReportBody::Metric(metric)], "{case}");
            let expected = if beside.is_empty() { Vec::new() } else { log_reports(beside) };
            assert_eq!(content.bulk, expected, "{case}");
        }
    }

    #[test]
    fn all_metrics_on_a_line_are_read() {
        let of = |sequence: u64| {
            format!(
                r#"{METRIC_MARKER}{{"trial_job_id": "abcde", "type": "PERIODICAL", "sequence": {sequence}, "value": "1"}}'"#
            )
        };
        let (none, foreign) = (format!("{METRIC_MARKER}{{'"), of(7).replace("abcde", "other"));
        #[rustfmt::skip]
        let table = [
            ("one after the other",      format!("{}{}", of(0), of(1)),             vec![Some(0), Some(1)],       String::new()),
            ("with output between",      format!("a{}b{}c", of(0), of(1)),          vec![Some(0), Some(1)],       "abc".to_owned()),
            ("after a malformed one",    format!("{none}{}", of(1)),                vec![None, Some(1)],          none.clone()),
            ("after another trial's",    format!("{}{foreign}{}", of(0), of(2)),   vec![Some(0), None, Some(2)], foreign.clone()),
        ];
        for (case, line, sequences, beside) in table {
            let content = read_line(&trial_id(), Stream::Stdout, &line);
            let sequence = |fact: &ReportBody| {
                if let ReportBody::Metric(metric) = fact { Some(metric.sequence) } else { None }
            };
            let found: Vec<_> = content.facts.iter().map(sequence).collect();
            assert_eq!(found, sequences, "{case}");
            let expected = if beside.is_empty() { Vec::new() } else { log_reports(&beside) };
            assert_eq!(content.bulk, expected, "{case}");
        }
    }

    #[test]
    fn a_malformed_metric_becomes_output_and_a_note() {
        #[rustfmt::skip]
        let table = [
            (r#"{"trial_job_id": "other", "type": "FINAL", "value": "1"}'"#, "it is for another trial"),
            (r#"{"trial_job_id": "abcde", "type": "FINAL"}'"#,               "it has no value"),
            (r#"{"trial_job_id": "abcde", "type": "FINAL", "value": "x"}'"#, "its value is not a JSON value (NaN, Infinity and -Infinity are allowed)"),
            (r#"{"trial_job_id": "abcde", "type": "REQUEST_PARAMETER"}'"#,   "its type is neither PERIODICAL nor FINAL"),
            (r#"{"type": "FINAL"}'"#,                                        "missing field `trial_job_id`"),
            (r#"{"trial_job_id": "abcde", "type": "FINAL", "value": "1"}"#,  "it does not end with an apostrophe"),
            (r"{",                                                           "EOF while parsing an object at line 1 column 1"),
        ];
        for (json, problem) in table {
            let line = format!("{METRIC_MARKER}{json}");
            let content = read_line(&trial_id(), Stream::Stdout, &line);
            let [ReportBody::Note { code, message }] = content.facts.as_slice() else {
                panic!("{json}: {content:?}")
            };
            assert_eq!(code, "metric-unreadable");
            let expected = format!("a metric cannot be read: {problem}: ");
            assert!(message.starts_with(&expected), "{message}");
            assert_eq!(content.bulk, log_reports(&line), "the output is complete");
        }
        assert_eq!(read_line(&trial_id(), Stream::Stdout, "plain").facts, []);
        assert_eq!(read_line(&trial_id(), Stream::Stdout, "").bulk, log_reports(""));
    }

    #[test]
    fn long_texts_are_shortened_between_characters() {
        assert_eq!(shortened("short"), "short");
        assert_eq!(shortened(&"é".repeat(300)), "é".repeat(200) + "…");
    }

    proptest! {
        #[test]
        fn random_lines_of_an_old_keeper_never_panic(before in ".*", text in ".*", json in "\\{\"[a-z_]{0,12}\": ?[0-9\"a-z'\\[]{0,9}\\}?'?") {
            drop(read_line(&trial_id(), Stream::Stderr, &text));
            drop(read_line(&trial_id(), Stream::Stderr, &format!("{before}{METRIC_MARKER}{text}")));
            drop(read_line(&trial_id(), Stream::Stderr, &format!("{before}{METRIC_MARKER}{json}")));
            drop(read_bare_metric(&trial_id(), &text));
        }
    }
}
