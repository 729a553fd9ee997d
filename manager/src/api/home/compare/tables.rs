//! PURE: the tables of a comparison: results, the best parameters, and the settings.

use maud::{Markup, html};

use super::super::list;
use super::experiment::{ComparedExperiment, Members, partition_members, result_name};
use crate::api::portal::base::url;
use crate::api::portal::display;

pub(super) fn tables(columns: &[ComparedExperiment]) -> Markup {
    let (different, same) = partition_members(columns, |column| &column.settings);
    let (mut parameters, equal) = partition_members(columns, |column| &column.parameters);
    parameters.extend(equal);
    html! {
        h2 { "Results" }
        (table(columns, "Results", &result_rows(columns)))
        @if !parameters.is_empty() {
            h2 { "Parameters of the best trial" }
            (table(columns, "Parameters of the best trial", &member_rows(columns, &parameters, false, |column| &column.parameters)))
        }
        h2 { "Settings" }
        @if different.is_empty() { p { "All settings are identical." } } @else {
            (table(columns, "Different settings", &member_rows(columns, &different, true, |column| &column.settings)))
        }
        @if !same.is_empty() {
            details {
                summary { (same.len()) @if same.len() == 1 { " identical setting" } @else { " identical settings" } }
                (table(columns, "Identical settings", &member_rows(columns, &same, false, |column| &column.settings)))
            }
        }
    }
}

/// Renders a table with a column for each experiment.
fn table(columns: &[ComparedExperiment], title: &str, rows: &Markup) -> Markup {
    html! {
        div.scroll tabindex="0" role="region" aria-label=(title) {
            table.compared {
                thead {
                    tr {
                        th scope="col" { span.hidden { "Name" } }
                        @for (at, column) in columns.iter().enumerate() {
                            th scope="col" {
                                span class={ "mark c" (at % 8) } aria-hidden="true" {}
                                a href=(url(&format!("/e/{}/", column.entry.summary.id))) { (display::sanitize(&column.name)) }
                            }
                        }
                    }
                }
                tbody { (rows) }
            }
        }
    }
}

fn member_rows(
    columns: &[ComparedExperiment],
    names: &[&String],
    are_different: bool,
    of: Members,
) -> Markup {
    html! {
        @for name in names {
            tr class=[are_different.then_some("differs")] {
                th scope="row" { (display::sanitize(name)) }
                @for column in columns {
                    td.wrap { @match of(column).get(*name) { Some(value) => (display::sanitize(value)), None => small { "not set" } } }
                }
            }
        }
    }
}

/// Returns the name of the results of all experiments.
fn result_names(columns: &[ComparedExperiment]) -> String {
    let first = columns.first().map(result_name).unwrap_or_default();
    if columns.iter().all(|column| result_name(column) == first) {
        first
    } else {
        "result".to_owned()
    }
}

fn best_cell(column: &ComparedExperiment) -> Markup {
    let summary = &column.entry.summary;
    html! {
        @if let Some(best) = &summary.best {
            strong { (display::number(best.value)) } ", "
            a href=(url(&format!("/e/{}/trials/{}", summary.id, best.id))) { "trial " (best.sequence) }
        } @else { small { "none yet" } }
    }
}

fn result_rows(columns: &[ComparedExperiment]) -> Markup {
    html! {
        tr { th scope="row" { "State" } @for column in columns { td { (list::standing(&column.entry)) } } }
        tr { th scope="row" { "Best " (result_names(columns)) } @for column in columns { td { (best_cell(column)) } } }
        tr { th scope="row" { "Trials" } @for column in columns { td { (column.entry.summary.ended) @if column.entry.summary.failed > 0 { ", " (column.entry.summary.failed) " failed" } } } }
        tr { th scope="row" { "Run time" } @for column in columns { td { (display::format_duration(column.entry.summary.elapsed_ms)) } } }
    }
}
