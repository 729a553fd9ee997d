//! PURE: the list of trials.

use std::collections::BTreeSet;

use serde_json::Value;
use trial_protocol::OBJECTIVE;

use crate::cli::terminal::cells::{member_text, short_cell};
use crate::cli::terminal::description::PAGE_MEMBER;
use crate::cli::terminal::parameter_cells::ParameterColumns;
use crate::cli::terminal::table::{ColumnFit, Columns};
use crate::cli::terminal::text_style::TextStyle;
use crate::cli::terminal::trial_cells::{
    result_name, result_text, short_heading, trial_duration, trial_place,
};

/// The maximum number of parameters with a column.
const MAX_PARAMETER_COLUMNS: usize = 6;
/// The maximum number of other numbers of a result with a column.
const MAX_OTHER_RESULTS: usize = 4;

/// Returns a list of trials.
pub(super) fn trials(all: &Value, style: TextStyle) -> String {
    let all = all.as_array().map(Vec::as_slice).unwrap_or_default();
    let parameters =
        ParameterColumns::new(all.iter().map(|trial| &trial["parameters"]), MAX_PARAMETER_COLUMNS);
    // The reason of a failure is more important to the user than the numbers, so it is on their left.
    let has_reasons = all.iter().any(|trial| !member_text(trial, "message").is_empty());
    let heads =
        [("trial", ColumnFit::Number), ("id", ColumnFit::Link), ("state", ColumnFit::State)];
    let why = has_reasons.then_some(("why", ColumnFit::Sentence));
    let result = result_name(all.iter().map(|trial| member_text(trial, "metric")));
    let others = other_results(all);
    let numbers = [("latest", ColumnFit::OptionalNumber), ("time", ColumnFit::OptionalNumber)];
    let places: BTreeSet<String> =
        all.iter().map(trial_place).filter(|place| !place.is_empty()).collect();
    let has_places = places.len() > 1;
    let owned = |(name, fit): (&str, ColumnFit)| (name.to_owned(), fit);
    let heads = heads.into_iter().chain(why).map(owned).chain([(result, ColumnFit::Number)]);
    let heads =
        heads.chain(others.iter().map(|name| (short_heading(name), ColumnFit::OptionalNumber)));
    let heads = heads.chain(numbers.into_iter().map(owned));
    let heads = heads.chain(has_places.then_some(("where", ColumnFit::Optional)).map(owned));
    let mut columns = Columns::new(heads.chain(parameters.heads()));
    for trial in all {
        let own = ["sequence", "id", "state"].into_iter().map(|name| member_text(trial, name));
        let why = has_reasons.then(|| member_text(trial, "message"));
        let metric = member_text(trial, "metric");
        let member = |name: &String| {
            trial.get("final").and_then(|last| last.get(name)).map(short_cell).unwrap_or_default()
        };
        let results = [result_text(trial, "final", &metric)].into_iter();
        let results = results.chain(others.iter().map(member));
        let results = results.chain([result_text(trial, "latest", &metric)]);
        let row = own.chain(why).chain(results).chain([trial_duration(trial)]);
        let row = row.chain(has_places.then(|| trial_place(trial)));
        let row = row.chain(parameters.cells(&trial["parameters"]));
        columns.push_linked(row.collect(), member_text(trial, PAGE_MEMBER));
    }
    let (text, left_out) = columns.render(style);
    text + &parameters.omission_note(left_out, "`trial show` and `-o json` show all")
}

/// Returns the names of the other numbers of results that are objects, such as further objectives.
fn other_results(trials: &[Value]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for trial in trials {
        let metric = member_text(trial, "metric");
        let members = trial.get("final").and_then(Value::as_object).into_iter().flatten();
        for (name, value) in members {
            let is_new = name != OBJECTIVE && *name != metric && !names.contains(name);
            if is_new && value.is_number() && names.len() < MAX_OTHER_RESULTS {
                names.push(name.clone());
            }
        }
    }
    names
}
