//! The overview of an experiment with several objectives: the Pareto front as a table.

use maud::{Markup, html};

use super::base::url;
use super::display;
use crate::view::ExperimentView;
use crate::view::pareto::value_of;

/// The maximum number of trials in the table.
const MAX_ROWS: usize = 50;

/// Renders the trials that no other trial dominates, from the best to the worst of the first objective.
pub(super) fn front_table(shown: &ExperimentView) -> Markup {
    html! {
        div.best {
            @if shown.pareto.is_empty() {
                p { "No trial has succeeded with a numeric result for each objective yet." }
            } @else {
                p {
                    "Best trials: " strong { (shown.pareto.len()) }
                        ". No other trial dominates " @if shown.pareto.len() == 1 { "it." } @else { "them. None of them is better than another in every objective." }
                }
                div.scroll tabindex="0" role="region" aria-label="Best trials" {
                    table.cards {
                        thead {
                            tr {
                                th.number scope="col" { "Trial" }
                                @for objective in &shown.objectives {
                                    th.number scope="col" {
                                        (display::sanitize(&objective.metric))
                                        " " small { (objective.direction) }
                                    }
                                }
                                th scope="col" { "Parameters" }
                            }
                        }
                        tbody {
                            @for trial in shown.pareto.iter().take(MAX_ROWS) {
                                tr {
                                    td.number.first data-label="Trial" { a href=(url(&format!("/trials/{}", trial.id))) { (trial.sequence) } }
                                    @for objective in &shown.objectives {
                                        td.number data-label=(display::sanitize(&objective.metric)) {
                                            (value_of(trial.final_value.as_ref(), &objective.metric)
                                                .as_ref().map(display::value).unwrap_or_default())
                                        }
                                    }
                                    td.wrap { (parameters_line(&trial.parameters)) }
                                }
                            }
                        }
                    }
                }
                @if shown.pareto.len() > MAX_ROWS {
                    p.hint { "Showing the first " (MAX_ROWS) ". The API and " code { "experiment show --output json" } " return all." }
                }
            }
        }
    }
}

/// Returns the parameters in one line.
fn parameters_line(parameters: &serde_json::Value) -> String {
    let flat = crate::view::flatten_parameters(parameters);
    let pairs: Vec<_> = flat
        .iter()
        .map(|(name, value)| format!("{} {}", display::sanitize(name), display::value(value)))
        .collect();
    pairs.join(", ")
}
