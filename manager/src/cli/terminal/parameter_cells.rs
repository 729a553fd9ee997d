//! PURE: the parameters of trials as lines and as columns.

use serde_json::Value;

use super::cells::{cell, heading, short_cell};
use super::plain_text::pluralize;
use super::table::ColumnFit;
use crate::view;

/// Returns a trial's parameters as names and values, for a line each.
pub(in crate::cli) fn parameters(trial: &Value) -> Vec<(String, String)> {
    let flat = view::flatten_parameters(&trial["parameters"]).into_iter();
    flat.map(|(name, value)| (format!("  {}", heading(&name)), cell(value))).collect()
}

/// Returns a trial's parameters as names and short values, for a common line.
pub(in crate::cli) fn parameter_cells(trial: &Value) -> Vec<(String, String)> {
    let flat = view::flatten_parameters(&trial["parameters"]).into_iter();
    flat.map(|(name, value)| (heading(&name), short_cell(value))).collect()
}

/// The columns of a table for the parameters of its trials.
#[derive(Debug, Default, PartialEq, Eq)]
pub(in crate::cli) struct ParameterColumns {
    names: Vec<String>,
    /// The number of parameters without a column.
    omitted: usize,
}

impl ParameterColumns {
    /// Returns at most `most` columns for these parameters, in the order of their first occurrence.
    pub(in crate::cli) fn new<'a>(all: impl Iterator<Item = &'a Value>, most: usize) -> Self {
        let mut names: Vec<String> = Vec::new();
        for (name, _) in all.flat_map(view::flatten_parameters) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        let omitted = names.len().saturating_sub(most);
        names.truncate(most);
        Self { names, omitted }
    }

    /// Returns the headings.
    pub(in crate::cli) fn heads(&self) -> impl Iterator<Item = (String, ColumnFit)> {
        self.names.iter().map(|name| (heading(name), ColumnFit::Optional))
    }

    /// Returns the cells for the parameters of a trial. A cell is empty if the trial has no parameter of that name.
    pub(in crate::cli) fn cells(&self, parameters: &Value) -> impl Iterator<Item = String> {
        let flat = view::flatten_parameters(parameters);
        self.names.iter().map(move |name| {
            let found = flat.iter().find(|(known, _)| known == name);
            found.map(|(_, value)| short_cell(value)).unwrap_or_default()
        })
    }

    /// Returns a note on the number of parameters that are not shown. `left_out` columns had no room in the terminal,
    /// and `whole` names the output with all parameters. Empty if all are shown.
    pub(in crate::cli) fn omission_note(&self, left_out: usize, whole: &str) -> String {
        match self.omitted + left_out {
            0 => String::new(),
            count => format!("{}; {whole}\n", pluralize(count, "more parameter")),
        }
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
        let names = ["a", "b", "c._name", "c.size"].map(str::to_owned);
        let columns =
            |names: &[String], omitted| ParameterColumns { names: names.to_vec(), omitted };
        assert_eq!(ParameterColumns::new(all.iter(), 9), columns(&names, 0));
        assert_eq!(ParameterColumns::new(all.iter(), 3), columns(&names[..3], 1));
    }
}
