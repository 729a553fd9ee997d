//! The tables of improvements and of the importance of parameters, for each objective.

use maud::{Markup, html};
use trial_protocol::{Direction, MetricValue};

use super::super::user::{importance_by, improvements_of, parameter_importance};
use super::display;
use crate::job_state::JobState;
use crate::search::class_args::parse_direction;
use crate::view::curve::{Improvement, improvements};
use crate::view::importance::{IMPORTANCE_METHOD, Importance, MIN_RESULTS};
use crate::view::pareto::value_of;
use crate::view::space::ParameterAxis;
use crate::view::{ExperimentView, Snapshot, TrialSummary};

/// The data of one objective.
pub(super) struct GoalTable {
    /// The name of the objective, if there are several.
    name: Option<String>,
    improvements: Vec<Improvement>,
    importance: Vec<Importance>,
}

/// Returns the data of each objective.
pub(super) fn goal_tables(
    snapshot: &Snapshot,
    shown: &ExperimentView,
    axes: &[ParameterAxis],
) -> Vec<GoalTable> {
    if shown.objectives.is_empty() {
        return vec![GoalTable {
            name: None,
            improvements: improvements_of(snapshot, shown.optimize_mode == "maximize"),
            importance: parameter_importance(snapshot, axes, shown.optimize_mode),
        }];
    }
    let of = |metric: &str, direction: &str| {
        let number = |trial: &TrialSummary| {
            let final_value =
                trial.final_value.as_ref().filter(|_| trial.state == JobState::Succeeded);
            let number = MetricValue::from(value_of(final_value, metric)?).number();
            number.filter(|number| number.is_finite())
        };
        let results = snapshot.trials.iter();
        let results = results.filter_map(|trial| Some((trial.sequence, number(trial)?)));
        GoalTable {
            name: Some(metric.to_owned()),
            improvements: improvements(
                results,
                parse_direction(direction).unwrap_or(Direction::Maximize),
            ),
            importance: importance_by(snapshot, axes, direction, number),
        }
    };
    shown.objectives.iter().map(|one| of(&one.metric, one.direction)).collect()
}

/// Renders a part of each objective. A script hides the parts of objectives that are not selected.
fn parts_of_goals(tables: &[GoalTable], part: impl Fn(&GoalTable) -> Markup) -> Markup {
    html! {
        @for (at, table) in tables.iter().enumerate() {
            div data-objective=[table.name.is_some().then_some(at)] {
                @if let Some(name) = &table.name { h3 { (display::sanitize(name)) } }
                (part(table))
            }
        }
    }
}

/// Renders the improvements, below their summary.
pub(super) fn improvement_tables(tables: &[GoalTable]) -> Markup {
    let count: usize = tables.iter().map(|table| table.improvements.len()).sum();
    let several = tables.len() > 1;
    html! {
        summary {
            @if several { "Improvements" } @else { (count) @if count == 1 { " improvement" } @else { " improvements" } }
            " as a table"
        }
        (parts_of_goals(tables, |table| improvement_table(&table.improvements)))
    }
}

/// Returns whether no objective has an improvement.
pub(super) fn has_no_improvement(tables: &[GoalTable]) -> bool {
    tables.iter().all(|table| table.improvements.is_empty())
}

/// Renders the importance of the parameters.
pub(super) fn importance_tables(tables: &[GoalTable]) -> Markup {
    parts_of_goals(tables, |table| importance_table(&table.importance))
}

fn improvement_table(improvements: &[Improvement]) -> Markup {
    html! {
        table {
            thead { tr { th.number scope="col" { "Trial" } th.number scope="col" { "Result" } } }
            tbody {
                @for step in improvements.iter().rev() {
                    tr { td.number { (step.sequence) } td.number { (display::number(step.value)) } }
                }
            }
        }
    }
}

/// Renders the meaning of an importance, or the reason why there is none.
pub(super) fn importance_hint(importance: &[Importance]) -> Markup {
    html! {
        p.hint {
            @if importance.is_empty() {
                "Shown as soon as " (MIN_RESULTS) " trials have different results."
            } @else {
                "Each parameter's share in deciding whether a trial is among the best tenth. Method: " (IMPORTANCE_METHOD) ". All shares add up to 100 %."
            }
        }
    }
}

fn importance_table(importance: &[Importance]) -> Markup {
    html! {
        (importance_hint(importance))
        @if !importance.is_empty() {
            table {
                tbody {
                    @for one in importance {
                        tr {
                            th scope="row" { (display::sanitize(&one.name)) }
                            td { meter value=(one.share) aria-label=(display::sanitize(&one.name)) {} }
                            td.number { (format!("{:.0} %", one.share * 100.0)) }
                        }
                    }
                }
            }
        }
    }
}
