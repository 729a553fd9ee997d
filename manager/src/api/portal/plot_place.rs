//! The places of the plots that scripts draw, and the data that browsers load for them.

use maud::{Markup, html};

use super::base::url;

/// The instructions for the pointer and the keyboard.
const PLOT_KEYS: &str = "Point at a mark to see its trial, click it to open the trial, drag to zoom. \
    By keyboard: arrow keys go from mark to mark, Up and Down from panel to panel, Enter opens the trial, + and − zoom, \
    Escape resets the view.";

/// Renders the place of the optimisation history, with the improvements in a table.
pub(super) fn history_place(improvements: &Markup) -> Markup {
    plot_place("history", "Optimisation history", "broad", improvements)
}

/// The instructions for parallel coordinates.
const PARALLEL_KEYS: &str = "Each line is a trial. Point at a line to see the trial, click it to open the trial. Drag along an axis to select a \
    range; click the axis to clear it. By keyboard, arrow keys go from line to line, and Enter opens the trial. Each axis has two ends: \
    arrow keys move an end, Page Up and Page Down move it further, Home and End all the way. Escape clears the range.";

/// Renders the place of the parallel coordinates, with the instructions.
pub(super) fn parallel_place(width: &str) -> Markup {
    let keys = help("parallel-keys", PARALLEL_KEYS);
    plot_place("parallel", "Parameters and results", width, &keys)
}

/// Renders instructions, which plots name as their description. They are closed, because they fill half of a phone's
/// screen.
fn help(id: &str, text: &str) -> Markup {
    html! {
        details.help {
            summary { "Pointer and keyboard" }
            p.hint id=(id) { (text) }
        }
    }
}

/// Renders the instructions for plots.
pub(in crate::api) fn plot_keys() -> Markup {
    help("plot-keys", PLOT_KEYS)
}

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
