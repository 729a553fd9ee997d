//! PURE: the list of experiments.

use serde_json::Value;

use crate::cli::terminal::cells::{full_text, member_text, moment, short_member};
use crate::cli::terminal::table::{ColumnFit, Columns};
use crate::cli::terminal::text_style::TextStyle;

/// Returns a list of experiments.
pub(super) fn experiments(all: &Value, style: TextStyle) -> String {
    let all = all.as_array().map(Vec::as_slice).unwrap_or_default();
    let any = |name: &str| all.iter().any(|one| one.get(name).is_some_and(Value::is_string));
    let (run, troubled) = (any("url"), any("trouble"));
    let row = |one: &Value| {
        let count = |name: &str| one.get(name).and_then(Value::as_u64);
        let shown = |name: &str| count(name).filter(|count| *count > 0);
        let cell = |count: Option<u64>| count.map(|count| count.to_string()).unwrap_or_default();
        let most = count("max_trial_number").map(|most| format!(" of {most}")).unwrap_or_default();
        let own = vec![
            member_text(one, "id"),
            member_text(one, "state"),
            moment(one, "created_at_ms"),
            member_text(one, "name"),
            count("trials").map(|trials| format!("{trials}{most}")).unwrap_or_default(),
            cell(count("succeeded")),
            cell(shown("failed")),
            cell(shown("running")),
            one.get("best").map(|best| short_member(best, "value")).unwrap_or_default(),
        ];
        let url = run.then(|| member_text(one, "url"));
        own.into_iter().chain(url).chain(troubled.then(|| full_text(one, "trouble"))).collect()
    };
    let heads = [
        ("id", ColumnFit::Link),
        ("state", ColumnFit::State),
        ("created (UTC)", ColumnFit::Text),
        ("name", ColumnFit::Text),
        ("trials", ColumnFit::OptionalNumber),
        ("succeeded", ColumnFit::OptionalNumber),
        ("failed", ColumnFit::OptionalNumber),
        ("running", ColumnFit::OptionalNumber),
        ("best", ColumnFit::OptionalNumber),
    ];
    let run = run.then_some(("address", ColumnFit::Text));
    let trouble = troubled.then_some(("trouble", ColumnFit::Sentence));
    let heads = heads.into_iter().chain(run).chain(trouble);
    let mut columns = Columns::new(heads);
    for one in all {
        columns.push_linked(row(one), member_text(one, "url"));
    }
    columns.render(style).0
}
