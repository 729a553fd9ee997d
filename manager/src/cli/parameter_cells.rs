//! PURE: the parameters of trials as lines and as columns.

use serde_json::Value;

use super::terminal::cells::{brief, cell, heading};
use super::terminal::plain_text::counted;
use crate::view;

/// Returns a trial's parameters as names and values, for a line each.
pub(super) fn parameters(trial: &Value) -> Vec<(String, String)> {
    let flat =
        view::flatten_parameters(trial.get("parameters").unwrap_or(&Value::Null)).into_iter();
    flat.map(|(name, value)| (format!("  {}", heading(&name)), cell(value))).collect()
}

/// Returns a trial's parameters as names and short values, for a common line.
pub(super) fn parameter_cells(trial: &Value) -> Vec<(String, String)> {
    let flat =
        view::flatten_parameters(trial.get("parameters").unwrap_or(&Value::Null)).into_iter();
    flat.map(|(name, value)| (heading(&name), brief(value))).collect()
}

/// Returns the parameters with a column, in the order of their first occurrence, and the number of parameters without a
/// column.
pub(super) fn parameter_columns<'a>(
    all: impl Iterator<Item = &'a Value>,
    most: usize,
) -> (Vec<String>, usize) {
    let mut names: Vec<String> = Vec::new();
    for (name, _) in all.flat_map(view::flatten_parameters) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let more = names.len().saturating_sub(most);
    names.truncate(most);
    (names, more)
}

/// Returns a parameter for a column. Empty if the trial has no parameter of that name.
pub(super) fn parameter(flat: &[(String, &Value)], name: &str) -> String {
    let found = flat.iter().find(|(known, _)| known == name);
    found.map(|(_, value)| brief(value)).unwrap_or_default()
}

/// Returns a note on the number of parameters without a column. Empty if there are none.
pub(super) fn omitted_parameters_note(parameters: usize, whole: &str) -> String {
    match parameters {
        0 => String::new(),
        _ => format!("{}; {whole}\n", counted(parameters, "more parameter")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn parameters_of_different_branches_each_have_a_column() {
        let all =
            [json!({"a": 1, "b": 2}), json!({"b": 1, "c": {"_name": "x", "size": 3}}), json!(null)];
        assert_eq!(
            parameter_columns(all.iter(), 9),
            (["a", "b", "c._name", "c.size"].map(str::to_owned).to_vec(), 0)
        );
        assert_eq!(parameter_columns(all.iter(), 3).1, 1);
    }
}
