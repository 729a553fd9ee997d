//! The places of the plots that scripts draw, and the data that browsers load for them.

use maud::{Markup, html};

use super::base::url;

/// The instructions for the pointer and the keyboard.
pub(in crate::api) const PLOT_KEYS: &str = "Point at a mark to see its trial, click it to open the trial, drag to zoom. \
    By keyboard: arrow keys go from mark to mark, Up and Down from panel to panel, Enter opens the trial, + and − zoom, \
    Escape resets the view.";

/// Renders the place of a plot on the page, with the markup below it.
pub(in crate::api) fn plot_place(name: &str, title: &str, width: &str, below: &Markup) -> Markup {
    html! {
        section.(width) {
            h2 id={ (name) "-title" } { (title) }
            figure.chart.plot data-plot=(name) aria-labelledby={ (name) "-title" } {}
            (below)
        }
    }
}

/// Returns the path of the trials in columns.
pub(super) fn points_path(columns: &str) -> String {
    format!("/api/v1/experiment/points?columns={columns}")
}

/// Renders a link by which the browser loads the data at this path of the API together with the scripts.
pub(super) fn preload(path: &str) -> Markup {
    html! { link rel="preload" as="fetch" crossorigin href=(url(path)); }
}
