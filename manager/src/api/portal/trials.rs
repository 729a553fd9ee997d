//! The table of trials, a page of it at a time, and chosen trials' curves side by side.

use axum::extract::{RawQuery, State};
use axum::response::Response;
use maud::{Markup, html};

use super::super::user::{Asked, ListQuery, trial_page};
use super::super::{Error, Shared};
use super::page::{Refusal, Viewer, page};
use super::words;
use crate::view::{self, TrialSummary};

/// Parameters that have a column.
const COLUMNS: usize = 8;
/// Trials that are compared at once.
const COMPARED: usize = 20;
/// States that one can ask for.
const STATES: [&str; 8] = [
    "WAITING",
    "RUNNING",
    "SUCCEEDED",
    "FAILED",
    "EARLY_STOPPED",
    "USER_CANCELED",
    "SYS_CANCELED",
    "LOST",
];

/// Where a column's heading leads: the same list, sorted otherwise.
pub(super) struct Sorting<'a> {
    query: &'a ListQuery,
}

impl Sorting<'_> {
    fn heading(&self, column: &str, name: &str) -> Markup {
        let current = self.query.sort.as_deref().unwrap_or("sequence") == column;
        let descending = self.query.order.as_deref() == Some("desc");
        let order = if current && !descending { "desc" } else { "asc" };
        let sorted = match (current, descending) {
            (false, _) => None,
            (true, false) => Some("ascending"),
            (true, true) => Some("descending"),
        };
        let link = link(self.query, &[("sort", column), ("order", order)]);
        html! { th scope="col" aria-sort=[sorted] { a href=(link) { (words::tame(name)) } } }
    }
}

/// The list with other members of its query; without a cursor unless one is given.
fn link(query: &ListQuery, other: &[(&str, &str)]) -> String {
    let own = [
        ("state", query.state.as_deref()),
        ("q", query.q.as_deref()),
        ("sort", query.sort.as_deref()),
        ("order", query.order.as_deref()),
    ];
    let limit = query.limit.map(|limit| limit.to_string());
    let own = own.into_iter().chain([("limit", limit.as_deref())]);
    let kept = own.filter(|(name, _)| other.iter().all(|(given, _)| given != name));
    let kept = kept.filter_map(|(name, value)| Some((name, value?)));
    let pairs = kept.chain(other.iter().copied()).filter(|(_, value)| !value.is_empty());
    let pairs: Vec<_> = pairs.map(|(name, value)| format!("{name}={}", escaped(value))).collect();
    format!("/trials?{}", pairs.join("&"))
}

/// Percent-encoded (RFC 3986, section 2.1).
fn escaped(text: &str) -> String {
    use std::fmt::Write as _;
    text.bytes().fold(String::new(), |mut escaped, byte| {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            write!(escaped, "%{byte:02X}").unwrap_or_default();
        }
        escaped
    })
}

/// A table of trials; with `sorting`, one that can be sorted and chosen from.
pub(super) fn table(
    trials: &[&TrialSummary],
    now_ms: i64,
    sorting: Option<&Sorting<'_>>,
) -> Markup {
    let mut names: Vec<String> = Vec::new();
    for (name, _) in trials.iter().flat_map(|trial| view::flat(&trial.parameters)) {
        if names.len() < COLUMNS && !names.contains(&name) {
            names.push(name);
        }
    }
    let heading = |column: &str, name: &str| match sorting {
        Some(sorting) => sorting.heading(column, name),
        None => html! { th scope="col" { (words::tame(name)) } },
    };
    html! {
        div.scroll tabindex="0" role="region" aria-label="Trials" {
            table.trials {
                thead {
                    tr {
                        @if sorting.is_some() { th scope="col" { span.hidden { "Chosen" } } }
                        (heading("sequence", "Trial")) (heading("id", "Id")) (heading("state", "State"))
                        (heading("final", "Final")) (heading("latest", "Latest")) (heading("duration", "Time"))
                        @for name in &names { (heading(&format!("parameters.{name}"), name)) }
                        th scope="col" { "Why" }
                    }
                }
                tbody {
                    @for trial in trials {
                        tr {
                            @if sorting.is_some() {
                                td { input type="checkbox" name="trial" value=(trial.id) form="compare"
                                    aria-label={ "choose trial " (trial.sequence) }; }
                            }
                            td.number { a href={ "/trials/" (trial.id) } { (trial.sequence) } }
                            td { code { (trial.id) } }
                            td { span.state data-state=(trial.state.as_str()) { (words::state(trial.state)) } }
                            td.number { (trial.last.as_ref().map(words::brief).unwrap_or_default()) }
                            td.number {
                                (trial.latest.as_ref().map(words::brief).unwrap_or_default())
                                @if let Some(step) = trial.latest_step { small { " @" (step) } }
                            }
                            td.number { (words::span_if_any(trial.duration_ms(now_ms))) }
                            @for name in &names {
                                td.number { (parameter(trial, name)) }
                            }
                            td.why { (why(trial)) }
                        }
                    }
                }
            }
        }
    }
}

fn parameter(trial: &TrialSummary, name: &str) -> String {
    let flat = view::flat(&trial.parameters);
    flat.iter().find(|(known, _)| known == name).map_or_else(String::new, |(_, v)| words::brief(v))
}

/// Why a trial stands where it does, in a line.
fn why(trial: &TrialSummary) -> String {
    let stopping = trial.stopping.as_ref().map(|reason| format!("to be stopped: {reason}"));
    let cause = trial.cause.clone().filter(|cause| cause != "succeeded");
    let said: Vec<_> = [stopping, cause, trial.message.clone()].into_iter().flatten().collect();
    words::tame(&said.join(": ")).replace('\n', " ").chars().take(160).collect()
}

/// `GET /trials`.
pub(super) async fn list(
    viewer: Viewer,
    State(shared): State<Shared>,
    Asked(query): Asked<ListQuery>,
) -> Result<Response, Refusal> {
    let found = trial_page(&shared, &query).await?;
    let change = shared.state.board.refresh().await?.through;
    let rows: Vec<_> = found.trials.iter().collect();
    let sorting = Sorting { query: &query };
    let state = query.state.as_deref().unwrap_or_default();
    let content = html! {
        h1 { "Trials" }
        form.inline method="get" action="/trials" role="search" {
            label { "State "
                select name="state" {
                    option value="" { "all" }
                    @for word in STATES { option value=(word) selected[state == word] { (word) } }
                }
            }
            label { "Holds " input type="search" name="q" value=[query.q.as_deref()]; }
            @if let Some(sort) = &query.sort { input type="hidden" name="sort" value=(sort); }
            @if let Some(order) = &query.order { input type="hidden" name="order" value=(order); }
            button { "Show" }
        }
        form.inline #compare method="get" action="/compare" {
            button { "Compare the chosen trials" }
        }
        div #list data-live data-change=(change) {
            p.hint { (found.total) " trials" }
            (table(&rows, shared.state.clock.now_ms(), Some(&sorting)))
            @if query.cursor.is_some() || found.next.is_some() {
                nav.pages aria-label="Pages of the list" {
                    @if query.cursor.is_some() { a href=(link(&query, &[])) { "First" } }
                    @if let Some(next) = &found.next {
                        a rel="next" href=(link(&query, &[("cursor", next)])) { "Next" }
                    }
                }
            }
        }
    };
    Ok(page(&viewer, "Trials", Some("list"), &content))
}

/// `GET /compare?trial=a&trial=b`.
pub(super) async fn compare(
    viewer: Viewer,
    State(shared): State<Shared>,
    RawQuery(query): RawQuery,
) -> Result<Response, Refusal> {
    let query = query.unwrap_or_default();
    let ids = query.split('&').filter_map(|pair| pair.strip_prefix("trial="));
    let snapshot = shared.state.board.refresh().await?;
    let mut rows = Vec::new();
    for id in ids.take(COMPARED) {
        let unknown = || Error::BadRequest(format!("there is no trial {id}"));
        rows.push(snapshot.find(id).ok_or_else(unknown)?);
    }
    let content = html! {
        h1 { "Trials side by side" }
        @if rows.is_empty() {
            p { "Choose trials in " a href="/trials" { "the list" } " first." }
        } @else {
            h2 #curves-title { "Intermediate results" }
            figure.chart data-chart="compare" role="img" aria-labelledby="curves-title" {}
            (table(&rows, shared.state.clock.now_ms(), None))
        }
    };
    Ok(page(&viewer, "Compare", Some("compare"), &content))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_keep_what_was_asked_for() {
        let query = ListQuery {
            state: Some("FAILED".to_owned()),
            q: Some("a&b=c d".to_owned()),
            cursor: Some("x".to_owned()),
            ..ListQuery::default()
        };
        let found = link(&query, &[("sort", "parameters.l r"), ("order", "desc")]);
        assert_eq!(found, "/trials?state=FAILED&q=a%26b%3Dc%20d&sort=parameters.l%20r&order=desc");
    }
}
