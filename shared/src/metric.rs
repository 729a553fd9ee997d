//! A metric of the trial: a number (or an object with `default`), exactly as reported.

use serde::{Deserialize, Serialize};
use serde_json::{Number, Value};

/// The name of a metric that a trial reports through NNI's SDK, which gives no name.
pub const OBJECTIVE: &str = "default";

/// The subject of a metric: a step or the whole trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MetricKind {
    /// A value of one step; NNI's `PERIODICAL`.
    Intermediate,
    /// The result of the trial; NNI's `FINAL`. The first one counts.
    Final,
}

/// One value of one metric.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Metric {
    /// The name of the quantity, at most 256 bytes; [`OBJECTIVE`] for NNI's SDK.
    pub name: String,
    /// The kind: a value of one step or of the whole trial. The JSON name is `type`, as in NNI's own metric lines,
    /// because the report's own `kind` is in the same JSON object.
    #[serde(rename = "type")]
    pub kind: MetricKind,
    /// Position among the metrics of this name and kind, from 0. Source: the SDK if it numbers them, else the agent, in
    /// the order of arrival.
    pub sequence: u64,
    /// The value as reported.
    pub value: MetricValue,
    /// `true` if the agent or the manager derived the value (from the last intermediate result) and the trial did not
    /// report it. Absence means `false`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub derived: bool,
}

/// The value of a metric: any JSON value. A float that JSON cannot represent is one of the strings `"NaN"`,
/// `"Infinity"` and `"-Infinity"`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct MetricValue(Value);

/// The error of an unreadable metric value.
#[derive(Debug, thiserror::Error)]
#[error("not a JSON value (NaN, Infinity and -Infinity are allowed)")]
pub struct ValueError(#[from] serde_json::Error);

impl MetricValue {
    /// Parses the output of Python's `json.dumps`: JSON that may also contain the bare words `NaN`, `Infinity` and
    /// `-Infinity` as values.
    pub fn parse(text: &str) -> Result<Self, ValueError> {
        match serde_json::from_str(text) {
            Ok(value) => Ok(Self(value)),
            // The bare words are rare, so the strict parser runs first.
            Err(_) => Ok(Self(serde_json::from_str(&quote_bare_words(text))?)),
        }
    }

    /// The value as JSON.
    pub fn as_json(&self) -> &Value {
        &self.0
    }

    /// The number for tuners and assessors: the value itself, or the member `default` of an object. `None` if there is
    /// no number. The three strings count as the floats that they represent.
    pub fn number(&self) -> Option<f64> {
        let scalar = match self.0.as_object() {
            Some(members) => members.get("default")?,
            None => &self.0,
        };
        match scalar {
            Value::Number(number) => number.as_f64(),
            Value::String(word) => match word.as_str() {
                "NaN" => Some(f64::NAN),
                "Infinity" => Some(f64::INFINITY),
                "-Infinity" => Some(f64::NEG_INFINITY),
                _ => None,
            },
            Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
        }
    }
}

impl From<f64> for MetricValue {
    fn from(number: f64) -> Self {
        Self(match Number::from_f64(number) {
            Some(number) => Value::Number(number),
            None if number.is_nan() => Value::from("NaN"),
            None if number > 0.0 => Value::from("Infinity"),
            None => Value::from("-Infinity"),
        })
    }
}

impl From<Value> for MetricValue {
    fn from(value: Value) -> Self {
        Self(value)
    }
}

/// Puts quotes around `NaN`, `Infinity` and `-Infinity` outside strings.
fn quote_bare_words(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 16);
    let mut rest = text;
    let mut in_string = false;
    while let Some(first) = rest.chars().next() {
        let word = ["NaN", "Infinity", "-Infinity"].into_iter().find(|word| rest.starts_with(word));
        match (first, word) {
            (_, Some(word)) if !in_string => {
                quoted.push('"');
                quoted.push_str(word);
                quoted.push('"');
                rest = &rest[word.len()..];
                continue;
            }
            ('\\', _) if in_string => {
                // The escaped character, which may be a quote, is part of the string.
                let length = 1 + rest[1..].chars().next().map_or(0, char::len_utf8);
                quoted.push_str(&rest[..length]);
                rest = &rest[length..];
                continue;
            }
            ('"', _) => in_string = !in_string,
            _ => {}
        }
        quoted.push(first);
        rest = &rest[first.len_utf8()..];
    }
    quoted
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn values_are_read_as_python_writes_them() {
        #[rustfmt::skip]
        let table = [
            ("a float",              "0.5",                          json!(0.5),                    Some(0.5)),
            ("an integer",           "1",                            json!(1),                      Some(1.0)),
            ("a large integer",      "18446744073709551615",         json!(u64::MAX),               Some(18_446_744_073_709_551_615.0)),
            ("a dictionary",         r#"{"default": 0.7, "l": 1}"#,  json!({"default": 0.7, "l": 1}), Some(0.7)),
            ("one without default",  r#"{"l": 1}"#,                  json!({"l": 1}),               None),
            ("NaN",                  "NaN",                          json!("NaN"),                  Some(f64::NAN)),
            ("minus infinity",       "-Infinity",                    json!("-Infinity"),            Some(f64::NEG_INFINITY)),
            ("NaN inside",           r#"{"default": NaN}"#,          json!({"default": "NaN"}),     Some(f64::NAN)),
            ("NaN in a string",      r#"{"s": "a \"NaN", "x": Infinity}"#, json!({"s": "a \"NaN", "x": "Infinity"}), None),
            ("a boolean",            "true",                         json!(true),                   None),
            ("null",                 "null",                         json!(null),                   None),
            ("an apostrophe",        r#""it's""#,                    json!("it's"),                 None),
        ];
        for (case, text, value, number) in table {
            let read = MetricValue::parse(text).unwrap();
            assert_eq!(read.as_json(), &value, "{case}");
            assert_eq!(read.number().map(f64::to_bits), number.map(f64::to_bits), "{case}");
        }
    }

    #[test]
    fn other_texts_are_errors() {
        for text in ["", "Inf", "nan", "{", "0.5 1", "[NaN", "\\"] {
            assert!(MetricValue::parse(text).is_err(), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn random_numbers_never_panic(text in ".*") {
            drop(MetricValue::parse(&text));
        }

        #[test]
        fn every_float_survives(number: f64) {
            let value = MetricValue::from(number);
            let json = serde_json::to_string(&value).unwrap();
            let back: MetricValue = serde_json::from_str(&json).unwrap();
            let (back, number) = (back.number().unwrap(), number);
            prop_assert!(back.to_bits() == number.to_bits() || back.is_nan() && number.is_nan());
        }
    }
}
