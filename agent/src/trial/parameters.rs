//! PURE: the trial's parameters, as NNI's record and as plain values.

use serde_json::{Map, Value};
use trial_protocol::MetricValue;

/// The parameters of one trial.
#[derive(Debug, Clone, PartialEq)]
pub struct Parameters {
    /// NNI's record, `{"parameter_id": ..., "parameters": {...}}`, byte for byte as received. The SDK reads it from
    /// `parameter.cfg`.
    pub record: String,
    /// The parameters themselves.
    pub values: Map<String, Value>,
}

/// The errors of reading parameters.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The text is not JSON.
    #[error("not JSON; NNI's record or a plain object of parameters is expected")]
    Json(#[source] trial_protocol::ValueError),
    /// The JSON is not an object.
    #[error("no JSON object; NNI's record or a plain object of parameters is expected")]
    Shape,
}

impl Parameters {
    /// Returns no parameters, for a trial that runs without a search.
    pub fn none() -> Self {
        Self::plain(Map::new())
    }

    /// Returns the parameters that are numbers. Members of nested choices are named `outer.inner`.
    pub fn numbers(&self) -> Vec<(String, MetricValue)> {
        let mut numbers = Vec::new();
        let mut rest: Vec<(String, &Value)> =
            self.values.iter().map(|(name, value)| (name.clone(), value)).collect();
        while let Some((name, value)) = rest.pop() {
            match value {
                Value::Number(_) => numbers.push((name, MetricValue::from(value.clone()))),
                Value::Object(members) => {
                    let inner = members.iter().map(|(own, value)| (format!("{name}.{own}"), value));
                    rest.extend(inner);
                }
                Value::Null | Value::Bool(_) | Value::String(_) | Value::Array(_) => {}
            }
        }
        numbers
    }

    /// Reads NNI's record, or a plain object of parameters.
    pub fn parse(text: &str) -> Result<Self, Error> {
        // The SDK's JSON may contain NaN, so the parser is the one for metrics.
        let value = MetricValue::parse(text).map_err(Error::Json)?;
        let Value::Object(members) = value.as_json() else { return Err(Error::Shape) };
        match members.get("parameters") {
            Some(Value::Object(values)) if members.contains_key("parameter_id") => {
                Ok(Self { record: text.to_owned(), values: values.clone() })
            }
            Some(_) if members.contains_key("parameter_id") => Err(Error::Shape),
            _ => Ok(Self::plain(members.clone())),
        }
    }

    fn plain(values: Map<String, Value>) -> Self {
        let record = serde_json::json!({
            "parameter_id": 0,
            "parameter_source": "algorithm",
            "parameters": &values,
            "parameter_index": 0,
        });
        Self { record: record.to_string(), values }
    }

    /// Returns the record's `parameter_id`, or null.
    pub fn id(&self) -> Value {
        let record: Option<Map<String, Value>> = MetricValue::parse(&self.record)
            .ok()
            .and_then(|record| record.as_json().as_object().cloned());
        record.and_then(|mut record| record.remove("parameter_id")).unwrap_or_default()
    }

    /// Returns the parameters as one JSON object.
    pub fn to_json(&self) -> String {
        serde_json::to_string(&self.values).expect("a map of JSON values is JSON")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn records_and_plain_objects_are_read() {
        let record = r#"{"parameter_id": 3, "parameters": {"lr": 0.1}, "parameter_index": 0}"#;
        #[rustfmt::skip]
        let table = [
            ("NNI's record",                      record,                  json!({"lr": 0.1})),
            ("a plain object",                    r#"{"lr": 0.1}"#,        json!({"lr": 0.1})),
            ("a parameter called parameters",     r#"{"parameters": {}}"#, json!({"parameters": {}})),
            ("an empty object",                   "{}",                    json!({})),
        ];
        for (case, text, values) in table {
            let read = Parameters::parse(text).unwrap();
            assert_eq!(Value::Object(read.values.clone()), values, "{case}");
            let again = Parameters::parse(&read.record).unwrap();
            assert_eq!(again.values, read.values, "{case}: the record has the same values");
        }
        assert_eq!(
            Parameters::parse(record).unwrap().record,
            record,
            "the record is kept as it came"
        );
    }

    #[test]
    fn other_texts_are_refused() {
        for text in ["", "[]", "1", "{", r#"{"parameter_id": 1, "parameters": 7}"#] {
            assert!(Parameters::parse(text).is_err(), "{text:?}");
        }
    }
}
