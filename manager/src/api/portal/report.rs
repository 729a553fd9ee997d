//! The report: the whole search as one page that needs no manager. The page contains its style, and its plot as a
//! picture.

use axum::extract::State;
use axum::http::{HeaderValue, header};
use axum::response::{Html, IntoResponse as _, Response};
use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::super::user::{improvements_of, shown};
use super::super::{Error, Shared};
use super::page::{PageRefusal, Viewer};
use super::plot::{Steps, plot};
use super::words;
use crate::search::tuner::OptimizeMode;
use crate::view::{self, ExperimentView, Snapshot, TrialSummary};

/// The maximum number of the best trials in the report.
const LISTED: usize = 25;
/// Allows only the style within the page.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// `GET /report.html`: sends the report.
pub(super) async fn report(
    _: Viewer,
    State(shared): State<Shared>,
) -> Result<Response, PageRefusal> {
    let snapshot = shared.state.board.refresh().await?;
    let view = shown(&shared, &snapshot).await?;
    let row = shared.state.store.experiment().await?.ok_or(Error::NotFound)?;
    let configuration = view::without_secrets(&row.canonical);
    let configuration = serde_json::to_string_pretty(&configuration).unwrap_or_default();
    let made = words::moment(shared.state.clock.now_ms());
    let page = document(&view, &snapshot, &configuration, &made);
    let mut response = Html(page.into_string()).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

/// Returns the trials that compete for the best, the best first.
fn ranked(snapshot: &Snapshot, maximize: bool) -> Vec<&TrialSummary> {
    let mut ranked = view::competing(snapshot);
    ranked.sort_by(|(_, a), (_, b)| if maximize { b.total_cmp(a) } else { a.total_cmp(b) });
    ranked.into_iter().map(|(trial, _)| trial).collect()
}

fn document(view: &ExperimentView, snapshot: &Snapshot, configuration: &str, made: &str) -> Markup {
    let title = words::sanitize(view.name.as_deref().unwrap_or(&view.id));
    let maximize = view.optimize_mode == OptimizeMode::Maximize.as_str();
    let ranked = ranked(snapshot, maximize);
    let number = |value: u64| value.to_string().parse().unwrap_or(f64::NAN);
    let steps = improvements_of(snapshot, maximize);
    let points = steps.iter().map(|step| (number(step.sequence), step.value)).collect();
    let last = snapshot.trials.last().map_or(0, |trial| trial.sequence);
    let curve = Steps { name: title.clone(), points, until: number(last) };
    let mut causes: Vec<_> = view.causes.iter().collect();
    causes.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) " · report" }
                style { (PreEscaped(include_str!("../../../portal/report.css"))) }
            }
            body {
                h1 { (title) }
                p.hint { "Experiment " code { (view.id) } ", " (words::experiment_state(&view.state)) ". Created " (made) " UTC." }
                (facts(view))
                h2 { "Best so far" }
                (plot("Best so far", "trial", &[curve], words::number))
                h2 { "Best trials" }
                (best(&ranked))
                h2 { "Failures by cause" }
                @if causes.is_empty() { p { "No trial has failed." } } @else {
                    table { tbody { @for (cause, count) in causes { tr { th scope="row" { (words::cause(cause)) } td.number { (count) } } } } }
                }
                h2 { "Configuration" }
                pre { (words::sanitize(configuration)) }
            }
        }
    }
}

fn facts(view: &ExperimentView) -> Markup {
    let count = |state: &str| view.counts.get(state).copied().unwrap_or_default();
    html! {
        dl {
            @if let Some(best) = &view.best {
                div { dt { "Best (" @if view.optimize_mode == "minimize" { "smallest" } @else { "largest" } ")" } dd { (words::competing(best)) } }
            }
            div { dt { "Trials" } dd { (view.trials) } }
            div { dt { "Succeeded" } dd { (count("SUCCEEDED")) } }
            div { dt { "Failed" } dd { (count("FAILED")) } }
            div { dt { "Run time" } dd { (words::span(view.elapsed_ms)) } }
            div { dt { "Started" } dd { (words::moment(view.created_at_ms)) " UTC" } }
        }
        @if let Some(trouble) = &view.trouble { p { (words::sanitize(trouble)) } }
    }
}

fn best(ranked: &[&TrialSummary]) -> Markup {
    let shown = &ranked[..ranked.len().min(LISTED)];
    let mut names: Vec<String> = Vec::new();
    for trial in shown {
        let new = view::flat(&trial.parameters).into_iter().map(|(name, _)| name);
        names.extend(new.filter(|name| !names.contains(name)).collect::<Vec<_>>());
    }
    html! {
        @if shown.is_empty() { p { "No trial has succeeded with a numeric result." } } @else {
            div.scroll {
                table {
                    thead { tr { th.number scope="col" { "Trial" } th.number scope="col" { "Result" } @for name in &names { th scope="col" { (words::sanitize(name)) } } } }
                    tbody {
                        @for trial in shown {
                            @let values = view::flat(&trial.parameters);
                            tr {
                                th.number scope="row" { (trial.sequence) }
                                td.number { (words::competing(trial)) }
                                @for name in &names { td { (values.iter().find(|(known, _)| known == name).map(|(_, value)| words::brief(value)).unwrap_or_default()) } }
                            }
                        }
                    }
                }
            }
            @if ranked.len() > LISTED { p.hint { "Showing the best " (LISTED) " of " (ranked.len()) "." } }
        }
    }
}
