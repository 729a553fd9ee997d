//! PURE: reads a JSON object on a separate line.
//!
//! Members whose value is a number (or `NaN`, `Infinity`, `-Infinity`, bare or as a string) are metrics of that name.
//! An object with a number at `default` is one metric, kept as a whole, as in NNI. `global_step`, `step` and `epoch`
//! number the other members. `type` is `intermediate` or `final` (or NNI's words for them).
//!
//! If the objective is a number in a string, as Katib's users write it (`{"acc": "0.93", "global_step": "0"}`), all
//! numbers of the object may be in strings.
//!
//! In a final line with several metrics, only the result of [`main_metric`] is final. The others are recorded as
//! intermediate.

use serde_json::{Map, Value};
use trial_protocol::{Direction, MetricKind, MetricValue, OBJECTIVE};

use super::objective::main_metric;
use super::{CollectedMetric, MAX_NAME_BYTES, Source, text};

/// Members that contain the step of a line, the finest first.
const STEP_MEMBERS: [&str; 3] = ["global_step", "step", "epoch"];

/// The beginning of a report of the Python module `trialkeeper`.
const REPORT_PREFIX: &[u8] = b"{\"type\": \"";

/// Returns the length of the text before a report that follows the unfinished line of a progress bar or of
/// `print(…, end="")`. `None`: the line is no such report.
pub(super) fn text_before_report(line: &[u8]) -> Option<usize> {
    let line = line.trim_ascii_end();
    if line.trim_ascii_start().starts_with(b"{") || !line.ends_with(b"}") {
        return None;
    }
    line.windows(REPORT_PREFIX.len()).rposition(|part| part == REPORT_PREFIX)
}

/// Appends the metrics of `line`. Returns `false` if the line is not a JSON object.
pub(super) fn read(
    line: &[u8],
    objective: Option<&str>,
    direction: Option<Direction>,
    found: &mut Vec<CollectedMetric>,
) -> bool {
    let line = line.trim_ascii();
    if !(line.starts_with(b"{") && line.ends_with(b"}")) {
        return false;
    }
    let Some(value) = std::str::from_utf8(line).ok().and_then(|text| MetricValue::parse(text).ok())
    else {
        return false;
    };
    let Value::Object(members) = value.as_json() else {
        return false;
    };

    let kind = match members.get("type").and_then(Value::as_str) {
        Some("final" | "FINAL") => Some(MetricKind::Final),
        Some("intermediate" | "PERIODICAL") => Some(MetricKind::Intermediate),
        Some(_) | None => None,
    };
    let in_texts = objective.and_then(|name| members.get(name)?.as_str());
    let as_text = if in_texts.and_then(text::parse_number).is_some() {
        text::parse_number
    } else {
        |_: &str| None
    };
    let sequence = STEP_MEMBERS.iter().find_map(|name| {
        let step = members.get(*name)?;
        whole_number(step).or_else(|| whole_number(as_text(step.as_str()?)?.as_json()))
    });

    let metrics = if value.number().is_some() {
        vec![(OBJECTIVE, value.clone())]
    } else {
        numeric_members(members, as_text)
    };
    let names: Vec<_> = metrics.iter().map(|(name, _)| *name).collect();
    // A final line with a single value needs no further choice.
    let final_name = match names.as_slice() {
        [only] if objective.is_none() => Some(*only),
        names => main_metric(names, objective, direction),
    };
    for (name, value) in metrics {
        let kind = match kind {
            Some(MetricKind::Final) if Some(name) != final_name => Some(MetricKind::Intermediate),
            other => other,
        };
        found.push(CollectedMetric {
            source: Source::Json,
            name: name.to_owned(),
            kind,
            sequence,
            value,
        });
    }
    true
}

fn numeric_members(
    members: &Map<String, Value>,
    as_text: fn(&str) -> Option<MetricValue>,
) -> Vec<(&str, MetricValue)> {
    let named = members.iter().filter(|(name, _)| {
        !STEP_MEMBERS.contains(&name.as_str()) && (1..=MAX_NAME_BYTES).contains(&name.len())
    });
    let scalar = named.filter(|(_, value)| value.is_number() || value.is_string());
    let read = |value: &Value| {
        let text = value.as_str().and_then(as_text);
        text.unwrap_or_else(|| MetricValue::from(value.clone()))
    };
    let metrics = scalar.map(|(name, value)| (name.as_str(), read(value)));
    metrics.filter(|(_, value)| value.number().is_some()).collect()
}

/// Returns `3` and `3.0` as 3. `0.5`, `-1` and `"3"` are not whole numbers.
fn whole_number(value: &Value) -> Option<u64> {
    /// The limit below which every integer is exact as a float, 2^53.
    const MAX_EXACT_INTEGER: f64 = 9_007_199_254_740_992.0;
    value.as_u64().or_else(|| {
        let float =
            value.as_f64().filter(|f| f.fract() == 0.0 && (0.0..MAX_EXACT_INTEGER).contains(f))?;
        // Printed without a fraction, because no conversion from float to integer rules out truncation.
        format!("{float:.0}").parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    type Expected = (&'static str, Option<MetricKind>, Option<u64>, Value);

    fn all(line: &str, objective: Option<&str>) -> Option<Vec<CollectedMetric>> {
        let mut found = Vec::new();
        read(line.as_bytes(), objective, None, &mut found).then_some(found)
    }

    #[test]
    fn objects_become_metrics() {
        use MetricKind::{Final, Intermediate};
        #[rustfmt::skip]
        let table: [(&str, Option<&[Expected]>); 21] = [
            (r#"{"acc": 0.9}"#,                            Some(&[("acc", None, None, json!(0.9))])),
            (r#"  {"acc": 1, "loss": -2.5e3} "#,           Some(&[("acc", None, None, json!(1)), ("loss", None, None, json!(-2500.0))])),
            (r#"{"loss": NaN, "acc": "Infinity"}"#,        Some(&[("loss", None, None, json!("NaN")), ("acc", None, None, json!("Infinity"))])),
            (r#"{"epoch": 3, "acc": 0.9}"#,                Some(&[("acc", None, Some(3), json!(0.9))])),
            (r#"{"epoch": 3.0, "acc": 0.9}"#,              Some(&[("acc", None, Some(3), json!(0.9))])),
            (r#"{"epoch": 0.5, "acc": 0.9}"#,              Some(&[("acc", None, None, json!(0.9))])),
            (r#"{"epoch": -1, "acc": 0.9}"#,               Some(&[("acc", None, None, json!(0.9))])),
            (r#"{"epoch": 3, "step": 40, "acc": 0.9}"#,    Some(&[("acc", None, Some(40), json!(0.9))])),
            (r#"{"step": 4, "global_step": 99, "a": 1}"#,  Some(&[("a", None, Some(99), json!(1))])),
            (r#"{"type": "intermediate", "acc": 0.9}"#,    Some(&[("acc", Some(Intermediate), None, json!(0.9))])),
            (r#"{"type": "PERIODICAL", "acc": 0.9}"#,      Some(&[("acc", Some(Intermediate), None, json!(0.9))])),
            (r#"{"type": "final", "acc": 0.9}"#,           Some(&[("acc", Some(Final), None, json!(0.9))])),
            (r#"{"type": "FINAL", "loss": 1, "acc": 2}"#,  Some(&[("loss", Some(Intermediate), None, json!(1)), ("acc", Some(Final), None, json!(2))])),
            (r#"{"type": "train", "acc": 0.9}"#,           Some(&[("acc", None, None, json!(0.9))])),
            (r#"{"default": 0.7, "loss": 1, "step": 2}"#,  Some(&[("default", None, Some(2), json!({"default": 0.7, "loss": 1, "step": 2}))])),
            (r#"{"default": "x", "loss": 1}"#,             Some(&[("loss", None, None, json!(1))])),
            (r#"{"msg": "a=1", "ok": true, "n": null}"#,   Some(&[])),
            (r#"{"train": {"loss": 1}, "l": [1]}"#,        Some(&[])),
            ("{'acc': 0.9}",                               None),
            ("{acc=0.9}",                                  None),
            (r#"x {"acc": 0.9}"#,                          None),
        ];
        for (line, expected) in table {
            let expected = expected.map(|metrics| {
                let found = metrics.iter().map(|(name, kind, sequence, value)| CollectedMetric {
                    source: Source::Json,
                    name: (*name).to_owned(),
                    kind: *kind,
                    sequence: *sequence,
                    value: value.clone().into(),
                });
                found.collect::<Vec<_>>()
            });
            assert_eq!(all(line, None), expected, "{line}");
        }
    }

    #[test]
    fn only_the_objective_of_a_final_line_is_final() {
        let line = r#"{"type": "final", "acc": 0.9, "loss": 0.1}"#;
        let finals = |objective| {
            let found = all(line, objective).unwrap();
            let finals = found.into_iter().filter(|found| found.kind == Some(MetricKind::Final));
            finals.map(|found| found.name).collect::<Vec<_>>()
        };
        assert_eq!(finals(Some("loss")), ["loss"]);
        assert_eq!(finals(None), ["acc"]);
        assert_eq!(finals(Some("f1")), [""; 0]);
    }

    #[test]
    fn an_objective_in_a_string_is_read_as_in_katib() {
        let line = r#"{"acc": "0.93", "path": "", "global_step": "2", "loss": "0.2", "time": 5}"#;
        let summarized = |objective| {
            let found = all(line, objective).unwrap();
            let summarized = |found: CollectedMetric| {
                (found.name, found.sequence, found.value.as_json().clone())
            };
            found.into_iter().map(summarized).collect::<Vec<_>>()
        };
        let time = |step| ("time".to_owned(), step, json!(5));
        assert_eq!(summarized(None), [time(None)]);
        assert_eq!(summarized(Some("path")), [time(None)]);
        let acc = ("acc".to_owned(), Some(2), json!(0.93));
        let loss = ("loss".to_owned(), Some(2), json!(0.2));
        assert_eq!(summarized(Some("acc")), [acc, loss, time(Some(2))]);
    }

    proptest! {
        #[test]
        fn lines_of_random_bytes_never_panic(bytes: Vec<u8>) {
            read(&bytes, None, None, &mut Vec::new());
        }

        #[test]
        fn random_objects_yield_only_numbers(line in r#"\{"[a-z]{0,3}": [0-9a-z"\-.{}\[\], :]{0,20}\}"#) {
            let mut found = Vec::new();
            read(line.as_bytes(), None, None, &mut found);
            prop_assert!(found.iter().all(|found| found.value.number().is_some()));
        }
    }
}
