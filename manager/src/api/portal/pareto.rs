//! The overview of an experiment with several objectives: the Pareto front as a table.

use maud::{Markup, html};

use super::base::url;
use super::words;
use crate::view::ExperimentView;
use crate::view::pareto::value_of;

/// The trials of a front that are shown.
const SHOWN: usize = 50;

/// The trials that no other one dominates, from the best of the first objective to its worst.
pub(super) fn front(shown: &ExperimentView) -> Markup {
    html! {
        div.best {
            @if shown.pareto.is_empty() {
                p { "No trial has succeeded with a number for each objective yet." }
            } @else {
                p {
                    "Best trials: " strong { (shown.pareto.len()) }
                    @if shown.pareto.len() == 1 { " that no other" } @else { " that no others" }
                    " dominate. None of them is better than another in every objective."
                }
                div.scroll tabindex="0" role="region" aria-label="Best trials" {
                    table {
                        thead {
                            tr {
                                th.number scope="col" { "Trial" }
                                @for objective in &shown.objectives {
                                    th.number scope="col" {
                                        (words::tame(&objective.metric))
                                        " " small { (objective.direction) }
                                    }
                                }
                                th scope="col" { "Parameters" }
                            }
                        }
                        tbody {
                            @for trial in shown.pareto.iter().take(SHOWN) {
                                tr {
                                    td.number { a href=(url(&format!("/trials/{}", trial.id))) { (trial.sequence) } }
                                    @for objective in &shown.objectives {
                                        td.number {
                                            (value_of(trial.last.as_ref(), &objective.metric)
                                                .as_ref().map(words::value).unwrap_or_default())
                                        }
                                    }
                                    td.wrap { (parameters(&trial.parameters)) }
                                }
                            }
                        }
                    }
                }
                @if shown.pareto.len() > SHOWN {
                    p.hint { "The first " (SHOWN) "; the API and " code { "experiment show --output json" } " have all." }
                }
            }
        }
    }
}

/// The parameters in one line.
fn parameters(parameters: &serde_json::Value) -> String {
    let flat = crate::view::flat(parameters);
    let pairs: Vec<_> = flat
        .iter()
        .map(|(name, value)| format!("{} {}", words::tame(name), words::value(value)))
        .collect();
    pairs.join(", ")
}
