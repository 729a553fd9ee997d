//! The page of plots. A script (`manager/portal/plots*.js`) draws them. This module renders the content that needs no
//! script: the improvements, the importance of the parameters, and the failures by cause.

use axum::extract::State;
use axum::response::Response;
use maud::html;

use super::super::Shared;
use super::super::user::{axes, improvements_of, parameter_importance, shown};
use super::overview::{causes, importance_table, improvement_table, result_name};
use super::page::{PageRefusal, Viewer, page};
use super::plot_place::{
    PLOT_KEYS, SEARCH_SCRIPTS, history_place, parallel_place, plot_place, points_path, preload,
    preload_scripts,
};
use crate::view::ExperimentView;

/// The scripts of the plots that only this page has.
const SCRIPTS: [&str; 5] =
    ["plots", "plots-contour", "plots-curves", "plots-pareto", "plots-timeline"];
/// The columns that the plots need.
const COLUMNS: &str = "started,ended,cause,latest,space";

/// `GET /plots`: shows the plots.
pub(super) async fn plots(
    viewer: Viewer,
    State(shared): State<Shared>,
) -> Result<Response, PageRefusal> {
    let snapshot = shared.state.board.refresh().await?;
    let shown = shown(&shared, &snapshot).await?;
    let axes = axes(&shared).await?;
    let importance = parameter_importance(&snapshot, &axes, shown.optimize_mode);
    let improvements = improvements_of(&snapshot, shown.optimize_mode == "maximize");
    let steps = viewer.has.part(improvement_table(&improvements));
    let importance = viewer.has.part(importance_table(&importance));
    let failures = viewer.has.part(causes(&shown));
    let objectives = if shown.objectives.is_empty() { "" } else { ",objectives" };
    let points = points_path(&format!("{COLUMNS}{objectives}"));
    let content = html! {
        (preload(&points))
        (preload_scripts(&SEARCH_SCRIPTS))
        (preload_scripts(&SCRIPTS))
        h1 { "Plots" }
        p.hint #plot-keys { (PLOT_KEYS) }
        div.plots #summary data-mode=(shown.optimize_mode) data-name=(result_name(&shown)) data-points=(points) {
            (history_place(&html! {
                details #improvements data-live data-part=(steps.mark) hidden[improvements.is_empty()] { (steps.content) }
            }))
            @if !shown.objectives.is_empty() {
                (plot_place("pareto", "Pareto front", "broad", &html! {
                    span #front hidden data-live data-front=(front(&shown)) {}
                }))
            }
            (parallel_place())
            section.half {
                h2 { "Parameter importance" }
                div #importance data-live data-part=(importance.mark) { (importance.content) }
            }
            section.half {
                h2 { "Failures by cause" }
                div #causes data-live data-part=(failures.mark) { (failures.content) }
            }
            (plot_place("slice", "Result by each parameter", "wide", &html! {}))
            (plot_place("contour", "Result by two parameters", "half", &html! {}))
            (plot_place("durations", "Duration of trials", "half", &html! {}))
            (plot_place("curves", "Intermediate results", "wide", &html! {}))
            (plot_place("timeline", "Timeline", "wide", &html! {}))
        }
    };
    Ok(page(&viewer, "Plots", Some("plots"), &content))
}

/// Returns the positions of the trials on the Pareto front, in the form that the script reads.
fn front(shown: &ExperimentView) -> String {
    let front: Vec<_> = shown.pareto.iter().map(|trial| trial.sequence.to_string()).collect();
    front.join(" ")
}
