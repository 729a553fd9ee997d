//! The results of a trial: a tile for each number, the places of the curves, and a table.

use maud::{Markup, html};
use serde_json::Value;
use trial_protocol::OBJECTIVE;

use super::super::super::user::MetricView;
use super::super::page::{exact_time, time_zone};
use super::super::{columns, display};
use crate::search::goals::Goals;
use crate::view::TrialSummary;

/// The maximum number of members of a result that have a tile of their own.
const MAX_MEMBER_TILES: usize = 8;

/// Renders the tiles of a trial's results. With several counting metrics, each has a tile with the limit that it
/// breaks. Otherwise the tiles are the result and the other numbers of the same report.
pub(super) fn result_tiles(last: Option<&Value>, metric: Option<&str>, goals: &Goals) -> Markup {
    let none = || "none".to_owned();
    let members = last.and_then(Value::as_object);
    let counted = members.filter(|members| goals.is_default() && members.contains_key(OBJECTIVE));
    let beside = counted.into_iter().flatten().filter(|(name, _)| *name != OBJECTIVE);
    html! {
        @for name in goals.metrics() {
            @let value = members.and_then(|members| members.get(name));
            @let broken = goals.describe_violated_limit(name, last);
            @let direction = goals.objectives.iter().find(|objective| objective.metric == name);
            div data-kind=[broken.is_some().then_some("bad")] {
                dt { "Final " (display::sanitize(name)) @if let Some(objective) = direction { " " small { (objective.direction.as_str()) } } }
                dd { (value.map_or_else(none, display::value)) @if let Some(limit) = broken { " " small { (limit) } } }
            }
        }
        @if goals.is_default() {
            div { dt { "Final " @match metric.filter(|name| *name != OBJECTIVE) { Some(name) => (display::sanitize(name)), None => "result" } } dd { (last.map_or_else(none, display::result)) } }
            @for (name, value) in beside.take(MAX_MEMBER_TILES) {
                div { dt { "Final " (display::sanitize(name)) } dd { (display::short_value(value)) } }
            }
        }
    }
}

/// Renders the tile of the latest result.
pub(super) fn latest_tile(trial: &TrialSummary, goals: &Goals) -> Markup {
    let metric = trial.metric.as_ref().filter(|_| !goals.is_default());
    let value = trial.latest.as_ref().map_or_else(|| "–".to_owned(), display::result);
    html! {
        div {
            dt { "Latest " @if let Some(metric) = metric { (display::sanitize(metric)) } @else { "step" } }
            dd { (value) @if let Some(step) = trial.latest_step { " " small { "@" (step) } } }
        }
    }
}

/// Returns whether the latest result of a trial is its final result.
pub(super) fn is_repeated(trial: &TrialSummary) -> bool {
    trial.state.is_final() && columns::is_latest_final(trial)
}

/// Returns the names of the counting metrics, if there are several, in the form that the script reads.
pub(super) fn goal_names(goals: &Goals) -> Option<String> {
    let names = goals.metrics();
    (names.len() > 1).then(|| Value::from(names).to_string())
}

/// Renders the places for the curves of several counting metrics. The script shows those that have a curve.
pub(super) fn goal_charts(goals: &Goals) -> Markup {
    let names = goals.metrics();
    html! {
        @if names.len() > 1 {
            div.machine {
                @for (at, name) in names.iter().enumerate() {
                    figure.chart hidden data-chart={ "goal-" (at) } aria-label=(display::sanitize(name)) {}
                }
            }
        }
    }
}

pub(super) fn results_table(metrics: &[MetricView]) -> Markup {
    html! {
        details #results hidden[metrics.is_empty()] {
            summary { "As a table" }
            div.scroll tabindex="0" role="region" aria-label="Results" {
                table {
                    thead { tr { th scope="col" { "Metric" } th.number scope="col" { "Step" } th.number scope="col" { "Value" } th scope="col" { "Time (" (time_zone()) ")" } } }
                    tbody {
                        @for metric in metrics {
                            tr {
                                td { (display::metric(&metric.name)) }
                                td.number { @if metric.is_final() { "final" } @else { (metric.step) } }
                                td.number { (display::short_value(&metric.value)) }
                                td { (exact_time(metric.observed_at_ms)) }
                            }
                        }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use trial_protocol::Direction;

    use super::*;
    use crate::job_state::JobState;
    use crate::search::goals::{Constraint, Objective};
    use crate::view;

    #[test]
    fn each_objective_has_its_name_and_value() {
        let objective =
            |metric: &str, direction| Objective { metric: metric.to_owned(), direction };
        let two = Goals {
            objectives: vec![
                objective("loss", Direction::Minimize),
                objective("<b>", Direction::Maximize),
            ],
            constraints: vec![Constraint {
                metric: "memory".to_owned(),
                min: None,
                max: Some(16.0),
            }],
        };
        let kept = json!({"default": 1, "loss": 1, "<b>": 0.5, "memory": 16});
        let broken = json!({"default": "Infinity", "loss": 1, "<b>": 0.5, "memory": 40});
        let bare = json!({"default": 0.5, "f1": 0.25});
        #[rustfmt::skip]
        let table: [(&Goals, Option<Value>, &[&str]); 6] = [
            (&two, Some(kept.clone()), &["<dt>Final loss <small>minimize</small></dt><dd>1</dd>", "<dt>Final &lt;b&gt; <small>maximize</small></dt><dd>0.5</dd>"]),
            (&two, Some(kept), &["<div><dt>Final memory</dt><dd>16</dd>"]),
            (&two, Some(broken), &["<div data-kind=\"bad\"><dt>Final memory</dt><dd>40 <small>above 16</small></dd>"]),
            (&two, None, &["<dt>Final memory</dt><dd>none</dd>"]),
            (&Goals::default(), Some(bare), &["<dt>Final result</dt><dd>0.5</dd>", "<dt>Final f1</dt><dd>0.25</dd>"]),
            (&Goals::default(), Some(json!(0.5)), &["<dt>Final result</dt><dd>0.5</dd>"]),
        ];
        for (goals, last, parts) in table {
            let page = result_tiles(last.as_ref(), None, goals).into_string();
            for part in parts {
                assert!(page.contains(part), "{part} in {page}");
            }
            assert!(!page.contains('{'), "{page}");
        }
        let named = result_tiles(Some(&json!(0.5)), Some("acc"), &Goals::default());
        assert!(named.into_string().contains("<dt>Final acc</dt><dd>0.5</dd>"));
    }

    #[test]
    fn the_latest_result_is_shown_unless_it_is_the_final_one() {
        let trial = |state, last: Option<f64>, latest: Option<f64>| {
            let mut trial = view::summary(0, 0);
            (trial.state, trial.final_value) = (state, last.map(Value::from));
            trial.latest = latest.map(Value::from);
            trial
        };
        let (running, done) = (JobState::Running, JobState::Succeeded);
        for (trial, expected) in [
            (trial(running, None, None), false),
            (trial(running, None, Some(0.5)), false),
            (trial(done, Some(0.5), Some(0.5)), true),
            (trial(done, Some(0.5), None), true),
            (trial(done, Some(0.5), Some(0.4)), false),
            (trial(JobState::Failed, None, Some(0.4)), false),
        ] {
            assert_eq!(is_repeated(&trial), expected, "{trial:?}");
        }
        let mut running = trial(running, None, Some(0.5));
        (running.metric, running.latest_step) = (Some("acc".to_owned()), Some(3));
        let tile = latest_tile(&running, &Goals::default()).into_string();
        assert_eq!(tile, "<div><dt>Latest step</dt><dd>0.5 <small>@3</small></dd></div>");
    }
}
