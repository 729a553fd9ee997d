//! The comparison of experiments: the place of the plots, and tables of the results, the best parameters and the
//! settings that differ. Without a script, fixed plots show the best result over trials and over time.

mod experiment;
mod file;
mod plots;
mod tables;

use axum::extract::{RawQuery, State};
use axum::response::Response;
use maud::{Markup, html};
use serde::de::IgnoredAny;
use trial_protocol::ExperimentId;

use self::experiment::{ComparedExperiment, distinguish_names, read_column};
use self::file::{json_of, table_of};
use self::plots::{script_data, static_plots};
use self::tables::tables;
use super::super::Error;
use super::super::access::auth::User;
use super::super::portal::base::url;
use super::super::portal::{self, PageRefusal, Viewer, display, page as render_page};
use super::super::user::download::{FileFormat, FileQuery, attachment};
use super::Home;

/// The maximum number of experiments in a comparison.
const MAX_COMPARED: usize = 8;

/// `GET /compare?experiment=a&experiment=b`: shows the comparison of experiments.
pub(super) async fn page(
    viewer: Viewer,
    State(home): State<Home>,
    RawQuery(query): RawQuery,
) -> Result<Response, PageRefusal> {
    let (_, ids) = read_selection(&query.unwrap_or_default())?;
    let (columns, unreadable) = read_columns(&home, &ids).await?;
    let content = html! {
        h1 { "Compare experiments" }
        @for problem in &unreadable { p.trouble { (display::sanitize(problem)) } }
        @if columns.is_empty() {
            p { "First select up to " (MAX_COMPARED) " experiments in " a href=(url("/")) { "the list" } "." }
        } @else {
            @if ids.len() > MAX_COMPARED { p.hint { "Showing the first " (MAX_COMPARED) " of " (ids.len()) " selected experiments." } }
            (comparability_warning(&columns))
            p.hint { "Download: " a href=(file_link(&columns, "csv")) download { "CSV" } ", " a href=(file_link(&columns, "json")) download { "JSON" } }
            (comparison(&columns))
        }
    };
    Ok(render_page(&viewer, "Compare", Some("experiment-comparison"), &content))
}

/// Returns the format of the file and the ids of the selected experiments.
fn read_selection(query: &str) -> Result<(FileFormat, Vec<String>), Error> {
    let FileQuery { format, selected, list: IgnoredAny } = FileQuery::read(query, "experiment")?;
    Ok((format, selected))
}

/// Returns the address of a file with the comparison.
fn file_link(columns: &[ComparedExperiment], format: &str) -> String {
    let ids = columns.iter().map(|column| format!("&experiment={}", column.entry.summary.id));
    let ids: String = ids.collect();
    url(&format!("/api/v1/experiments/comparison?format={format}{ids}"))
}

/// Reads the experiments. Also returns the problems of those that cannot be read.
async fn read_columns(
    home: &Home,
    ids: &[String],
) -> Result<(Vec<ComparedExperiment>, Vec<String>), Error> {
    let entries = home.0.catalog.refresh(home).await;
    let (mut columns, mut unreadable) = (Vec::new(), Vec::new());
    for id in ids.iter().take(MAX_COMPARED) {
        let id =
            ExperimentId::new(id.as_str()).map_err(|error| Error::BadRequest(error.to_string()))?;
        match read_column(home, &entries, &id).await {
            Ok(column) => columns.push(column),
            // The experiment may have been removed since its selection.
            Err(error) => unreadable.push(format!("{id}: {}", error.parts().2)),
        }
    }
    distinguish_names(&mut columns);
    Ok((columns, unreadable))
}

/// Returns a comparison of experiments as a file: their results, the parameters of their best trials, and their
/// settings
///
/// Only a home has this route. Compares up to eight experiments. A CSV file has a column for each of them.
#[utoipa::path(
    get, path = "/api/v1/experiments/comparison", tag = "home",
    params(
        ("experiment" = Vec<String>, Query, description = "the id of an experiment; once for each"),
        ("format" = Option<String>, Query, description = "`csv` (default) or `json`"),
    ),
    responses((status = 200, body = String, content_type = "text/csv"), (status = 400, description = "unknown format")),
)]
pub(in crate::api) async fn export(
    _: User,
    State(home): State<Home>,
    RawQuery(query): RawQuery,
) -> Result<Response, Error> {
    let (format, ids) = read_selection(&query.unwrap_or_default())?;
    let (columns, unreadable) = read_columns(&home, &ids).await?;
    if let Some(problem) = unreadable.first() {
        return Err(Error::BadRequest(problem.clone()));
    }
    let text = match format {
        FileFormat::Csv => table_of(&columns),
        FileFormat::Json => serde_json::to_string_pretty(&json_of(&columns)).unwrap_or_default(),
    };
    Ok(attachment("comparison", format, text))
}

fn comparability_warning(columns: &[ComparedExperiment]) -> Markup {
    let mixed = |of: fn(&ComparedExperiment) -> Option<&str>| {
        columns.windows(2).any(|pair| of(&pair[0]) != of(&pair[1]))
    };
    let metrics = mixed(|column| column.entry.summary.metric.as_deref());
    let directions = mixed(|column| Some(column.entry.summary.optimize_mode.as_str()));
    html! {
        @if metrics || directions {
            p.trouble {
                "These experiments optimise different "
                @if metrics && directions { "metrics in different directions" } @else if metrics { "metrics" } @else { "directions" }
                ", so the curves do not show which one is better."
            }
        }
    }
}

/// Renders the plots, which a script replaces by interactive ones, and the tables.
fn comparison(columns: &[ComparedExperiment]) -> Markup {
    html! {
        span #comparison hidden data-live data-experiments=(script_data(columns).to_string()) {}
        (portal::plot_keys())
        div.plots {
            section.wide {
                h2 #histories-title { "Optimisation history" }
                figure.chart.plot data-plot="histories" aria-labelledby="histories-title" { (static_plots(columns)) }
            }
            (portal::plot_place("best-curves", "Intermediate results of the best trials", "wide", &html! {}))
        }
        div #tables data-live { (tables(columns)) }
    }
}
