//! PURE: NNI's search spaces: parse, validate, sample.

use serde_json::{Map, Value};

/// One point of a search space: parameter name -> value.
pub type Parameters = Map<String, Value>;

/// A checked search space.
#[derive(Debug, Clone, PartialEq)]
pub struct SearchSpace;

/// Why a search space is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {problem}")]
pub struct Error {
    /// Where, such as `lr._value[1]`.
    pub path: String,
    /// What is wrong and what is allowed.
    pub problem: String,
}

impl SearchSpace {
    /// Checks and takes in NNI's form, `{"lr": {"_type": "loguniform", "_value": [1e-4, 0.1]}}`.
    pub fn parse(_json: &Value) -> Result<Self, Error> {
        Ok(Self)
    }
}
