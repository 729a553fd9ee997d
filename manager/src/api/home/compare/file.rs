//! PURE: the file of a comparison: a CSV table with a column for each experiment, or JSON.

use serde_json::{Value, json};

use super::super::list;
use super::experiment::{ComparedExperiment, Members, partition_members};
use crate::view::export::{self, format_value};

/// Returns the comparison as a table with a column for each experiment.
pub(super) fn table_of(columns: &[ComparedExperiment]) -> String {
    let row = |part: &str, name: &str, values: Vec<String>| -> Vec<String> {
        [part.to_owned(), name.to_owned()].into_iter().chain(values).collect()
    };
    let of = |value: &dyn Fn(&ComparedExperiment) -> String| columns.iter().map(value).collect();
    let mut rows = vec![
        row("part", "name", of(&|column| column.name.clone())),
        row("result", "id", of(&|column| column.entry.summary.id.clone())),
    ];
    let names = columns.first().map(result_facts).into_iter().flatten().map(|(name, _)| name);
    rows.extend(names.enumerate().map(|(at, name)| {
        row("result", name, of(&|column| format_value(&result_facts(column)[at].1)))
    }));
    let parts: [(&str, Members); 2] =
        [("parameter", |column| &column.exact_parameters), ("setting", |column| &column.settings)];
    for (part, members) in parts {
        let (different, same) = partition_members(columns, members);
        rows.extend(different.into_iter().chain(same).map(|name| {
            row(part, name, of(&|column| members(column).get(name).cloned().unwrap_or_default()))
        }));
    }
    export::csv_rows(rows.into_iter())
}

pub(super) fn json_of(columns: &[ComparedExperiment]) -> Value {
    let member = |column: &ComparedExperiment| {
        let mut member = json!({
            "id": column.entry.summary.id, "name": column.name,
            "parameters": column.exact_parameters, "settings": column.settings,
        });
        if let Some(members) = member.as_object_mut() {
            members.extend(result_facts(column).map(|(name, value)| (name.to_owned(), value)));
        }
        member
    };
    columns.iter().map(member).collect()
}

/// The facts of the table of results, with their names.
fn result_facts(column: &ComparedExperiment) -> [(&'static str, Value); 8] {
    let summary = &column.entry.summary;
    let best = summary.best.as_ref();
    [
        ("state", json!(list::standing(&column.entry))),
        ("metric", json!(summary.metric)),
        ("optimize_mode", json!(summary.optimize_mode)),
        ("best", json!(best.map(|best| best.value))),
        ("best_trial", json!(best.map(|best| &best.id))),
        ("ended", json!(summary.ended)),
        ("failed", json!(summary.failed)),
        ("elapsed_ms", json!(summary.elapsed_ms)),
    ]
}
