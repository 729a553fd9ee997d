//! The page of plots. A script (`manager/portal/plots*.js`) draws them. This module renders the content that needs no
//! script: the improvements, the importance of the parameters, and the failures by cause.

use std::collections::BTreeMap;

use axum::extract::State;
use axum::response::Response;
use maud::{Markup, html};

use super::super::Shared;
use super::super::user::{axes, present_view};
use super::base::url;
use super::display;
use super::goal_tables::{goal_tables, has_no_improvement, importance_tables, improvement_tables};
use super::overview::{causes_table, result_name};
use super::page::{PageRefusal, Viewer, page};
use super::plot_place::{
    history_place, parallel_place, plot_keys, plot_place, points_path, preload,
};
use super::trials::downloads;
use crate::view::{ExperimentView, Snapshot};

/// The columns that the plots need.
const PLOT_COLUMNS: &str = "started,ended,cause,latest,space";

/// `GET /plots`: shows the plots.
pub(super) async fn plots(
    viewer: Viewer,
    State(shared): State<Shared>,
) -> Result<Response, PageRefusal> {
    let snapshot = shared.state.trial_cache.refresh().await?;
    let shown = present_view(&shared, &snapshot).await?;
    let axes = axes(&shared).await?;
    let tables = goal_tables(&snapshot, &shown, &axes);
    let steps = viewer.known_parts.part(improvement_tables(&tables));
    let importance =
        viewer.known_parts.part(html! { summary { "As a table" } (importance_tables(&tables)) });
    let failures =
        viewer.known_parts.part(html! { summary { "As a table" } (causes_table(&shown)) });
    let best = html! { summary { "Best trials as a table" } (super::pareto::front_table(&shown)) };
    let best = viewer.known_parts.part(best);
    let objectives = if shown.objectives.is_empty() { "" } else { ",objectives" };
    let points = points_path(&format!("{PLOT_COLUMNS}{objectives}"));
    let content = html! {
        (preload(&points))
        h1 { "Plots" }
        p.hint { (downloads(&[])) }
        (plot_keys())
        noscript {
            p {
                "Without JavaScript, this page has tables of the improvements, the importance of parameters, the failures and the durations"
                @if !shown.objectives.is_empty() { ", and of the Pareto front" }
                ". The results, the parameters, the times and the machine of each trial are in the " a href=(url("/trials")) { "table of trials" }
                "; the intermediate results and the attempts are on the page of each trial."
            }
        }
        div.plots #summary data-mode=(shown.optimize_mode) data-name=(result_name(&shown)) data-points=(points) {
            (history_place(&html! {
                details #improvements data-live data-part=(steps.mark) hidden[has_no_improvement(&tables)] { (steps.content) }
            }))
            @if !shown.objectives.is_empty() {
                (plot_place("pareto", "Pareto front", "broad", &html! {
                    span #front hidden data-live data-front=(front_positions(&shown)) {}
                    details #front-table data-live data-part=(best.mark) { (best.content) }
                }))
            }
            (parallel_place(if shown.objectives.is_empty() { "broad" } else { "wide" }))
            (plot_place("importance-bars", "Parameter importance", "half", &html! {
                details #importance data-live data-part=(importance.mark) { (importance.content) }
            }))
            (plot_place("failures", "Failures by cause", "half", &html! {
                details #causes data-live data-part=(failures.mark) { (failures.content) }
            }))
            (plot_place("slice", "Result by each parameter", "wide", &html! {}))
            (plot_place("contour", "Result by two parameters", "half", &html! {}))
            (plot_place("durations", "Duration of trials", "half", &html! { noscript { (durations_table(&snapshot)) } }))
            (plot_place("curves", "Intermediate results", "wide", &html! {}))
            (plot_place("timeline", "Timeline", "wide", &html! {}))
        }
    };
    Ok(page(&viewer, "Plots", Some("plots"), &content))
}

/// Renders the durations of ended trials by state.
fn durations_table(snapshot: &Snapshot) -> Markup {
    let mut groups: BTreeMap<&str, Vec<i64>> = BTreeMap::new();
    for trial in &snapshot.trials {
        let duration_ms = trial.ended_at_ms.and_then(|ended_at_ms| trial.duration_ms(ended_at_ms));
        groups.entry(display::state(trial.state)).or_default().extend(duration_ms);
    }
    for lengths in groups.values_mut() {
        lengths.sort_unstable();
    }
    groups.retain(|_, lengths| !lengths.is_empty());
    html! {
        table {
            thead { tr {
                th scope="col" { "State" }
                @for name in ["Trials", "Shortest", "Median", "Longest"] { th.number scope="col" { (name) } }
            } }
            tbody {
                @for (state, lengths) in &groups {
                    tr {
                        th scope="row" { (state) }
                        td.number { (lengths.len()) }
                        @for at in [0, lengths.len() / 2, lengths.len() - 1] { td.number { (display::span_if_any(lengths.get(at).copied())) } }
                    }
                }
            }
        }
    }
}

/// Returns the positions of the trials on the Pareto front, in the form that the script reads.
fn front_positions(shown: &ExperimentView) -> String {
    let front: Vec<_> = shown.pareto.iter().map(|trial| trial.sequence.to_string()).collect();
    front.join(" ")
}
