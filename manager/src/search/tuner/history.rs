//! The set of parameters that a tuner has proposed.

use std::collections::HashSet;

use serde_json::Value;

use crate::search::search_space::Parameters;

/// The proposed parameters, in a form that does not depend on the order of their names.
#[derive(Debug, Clone, Default)]
pub(super) struct History(HashSet<String>);

impl History {
    /// Adds parameters. Returns `false` if the history already contains them.
    pub(super) fn insert(&mut self, parameters: &Parameters) -> bool {
        let mut text = String::new();
        write_sorted(parameters, &mut text);
        self.0.insert(text)
    }
}

/// Writes JSON with the members of every object in the order of their names.
fn write_sorted(members: &Parameters, text: &mut String) {
    let mut members: Vec<_> = members.iter().collect();
    members.sort_by_key(|(name, _)| *name);
    for (name, value) in members {
        text.push_str(&Value::from(name.as_str()).to_string());
        match value {
            Value::Object(inner) => {
                text.push('{');
                write_sorted(inner, text);
                text.push('}');
            }
            Value::Null
            | Value::Bool(_)
            | Value::Number(_)
            | Value::String(_)
            | Value::Array(_) => text.push_str(&value.to_string()),
        }
        text.push(',');
    }
}
