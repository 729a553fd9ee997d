//! The table of trials, a page of it at a time, and chosen trials' curves side by side.

use axum::extract::{RawQuery, State};
use axum::response::Response;
use maud::{Markup, html};
use serde_json::Value;
use trial_protocol::{OBJECTIVE, TrialJobId};

use super::super::user::{CheckedQuery, ListQuery, TrialPage, trial_page};
use super::super::{Error, Shared, percent};
use super::base::url;
use super::page::{Refusal, Viewer, page, time};
use super::parts::Has;
use super::words;
use crate::job_state::JobState;
use crate::view::{self, TrialSummary};

/// Parameters that have a column.
const COLUMNS: usize = 12;
/// Characters of a reason that the table shows at most.
const WHY: usize = 160;
/// Trials that are compared at once.
const COMPARED: usize = 20;
/// States of trials that ended, or fell silent, for reasons outside of them.
pub(super) const AWAY: &str = "USER_CANCELED,SYS_CANCELED,LOST";
/// States that one can ask for, and what they are called.
const STATES: [(&str, &str); 9] = [
    ("WAITING", "waiting"),
    ("RUNNING", "running"),
    ("SUCCEEDED", "succeeded"),
    ("FAILED", "failed"),
    ("EARLY_STOPPED", "stopped early"),
    ("USER_CANCELED", "cancelled"),
    ("SYS_CANCELED", "interrupted"),
    ("LOST", "lost"),
    (AWAY, "any of the last three"),
];

/// Where a column's heading leads: the same list, sorted otherwise.
pub(super) struct Sorting<'a> {
    query: &'a ListQuery,
}

impl Sorting<'_> {
    fn heading(&self, column: &str, name: &str, kind: Option<&str>) -> Markup {
        let current = self.query.sort.as_deref().unwrap_or("sequence") == column;
        let descending = self.query.order.as_deref() == Some("desc");
        let order = if current && !descending { "desc" } else { "asc" };
        let sorted = match (current, descending) {
            (false, _) => None,
            (true, false) => Some("ascending"),
            (true, true) => Some("descending"),
        };
        let link = link(self.query, &[("sort", column), ("order", order)]);
        html! { th class=[kind] scope="col" aria-sort=[sorted] { a href=(link) { (words::tame(name)) } } }
    }
}

/// The list with other members of its query; without a cursor unless one is given.
fn link(query: &ListQuery, other: &[(&str, &str)]) -> String {
    let own = [
        ("state", query.state.as_deref()),
        ("cause", query.cause.as_deref()),
        ("q", query.q.as_deref()),
        ("filter", query.filter.as_deref()),
        ("sort", query.sort.as_deref()),
        ("order", query.order.as_deref()),
    ];
    let limit = query.limit.map(|limit| limit.to_string());
    let own = own.into_iter().chain([("limit", limit.as_deref())]);
    let kept = own.filter(|(name, _)| other.iter().all(|(given, _)| given != name));
    let kept = kept.filter_map(|(name, value)| Some((name, value?)));
    let pairs = kept.chain(other.iter().copied()).filter(|(_, value)| !value.is_empty());
    let pairs: Vec<_> =
        pairs.map(|(name, value)| format!("{name}={}", percent::encoded(value))).collect();
    url(&format!("/trials?{}", pairs.join("&")))
}

/// A table of trials, each row a part; with `sorting`, one that can be sorted and chosen from.
pub(super) fn table(
    has: &Has,
    trials: &[&TrialSummary],
    now_ms: i64,
    sorting: Option<&Sorting<'_>>,
) -> Markup {
    if trials.is_empty() {
        return html! { p.hint { "No trials match." } };
    }
    // Each parameter with whether all of its values are numbers, which are set to the right.
    let mut names: Vec<(String, bool)> = Vec::new();
    let rows: Vec<_> = trials.iter().map(|trial| view::flat(&trial.parameters)).collect();
    for (name, value) in rows.iter().flatten() {
        match names.iter_mut().find(|(known, _)| known == name) {
            Some((_, numeric)) => *numeric &= value.is_number(),
            None => names.push((name.clone(), value.is_number())),
        }
    }
    let more = names.len().saturating_sub(COLUMNS);
    names.truncate(COLUMNS);
    let heading = |column: &str, name: &str, numeric: bool| match sorting {
        Some(sorting) => sorting.heading(column, name, number(numeric)),
        None => html! { th class=[number(numeric)] scope="col" { (words::tame(name)) } },
    };
    html! {
        div.scroll tabindex="0" role="region" aria-label="Trials" {
            table.trials {
                thead {
                    tr {
                        @if sorting.is_some() { th scope="col" { span.hidden { "Chosen" } } }
                        (heading("sequence", "Trial", true)) (heading("id", "Id", false)) (heading("state", "State", false))
                        (heading("final", &result_name(trials), true)) (heading("latest", "Latest", true)) (heading("duration", "Time", true)) (heading("started", "Begun", false))
                        @for (name, numeric) in &names { (heading(&format!("parameters.{name}"), name, *numeric)) }
                        th scope="col" { "Why" }
                    }
                }
                tbody {
                    @for (trial, parameters) in trials.iter().zip(&rows) {
                        @let row = has.part(row(trial, parameters, &names, now_ms, sorting.is_some()));
                        tr data-part=(row.mark) { (row.content) }
                    }
                }
            }
        }
        @if more > 0 { p.hint { (more) " more parameters are on each trial's own page." } }
    }
}

/// The name of the results: the metric's own, where trials report one by name.
fn result_name(trials: &[&TrialSummary]) -> String {
    let mut metrics = trials.iter().filter_map(|trial| trial.metric.as_deref());
    metrics.find(|name| *name != OBJECTIVE).unwrap_or("Result").to_owned()
}

/// A trial's cells: its own, one for each of `names`, and why it stands where it does.
fn row(
    trial: &TrialSummary,
    parameters: &[(String, &Value)],
    names: &[(String, bool)],
    now_ms: i64,
    choosable: bool,
) -> Markup {
    html! {
        @if choosable {
            td { input type="checkbox" name="trial" value=(trial.id) form="compare"
                aria-label={ "choose trial " (trial.sequence) }; }
        }
        td.number { a href={ (url("/trials/")) (trial.id) } { (trial.sequence) } }
        td { code { (trial.id) } }
        td {
            span.state data-state=(trial.state.as_str()) { (words::state(trial.state)) }
            @if let Some(cause) = cause(trial) { " " small { (cause) } }
        }
        td.number { (trial.last.as_ref().map(words::brief).unwrap_or_default()) }
        td.number {
            (trial.latest.as_ref().map(words::brief).unwrap_or_default())
            @if let Some(step) = trial.latest_step { small { " @" (step) } }
        }
        td.number { (words::span_if_any(trial.duration_ms(now_ms))) }
        td { @if let Some(at) = trial.started_at_ms { (time(at, now_ms)) } }
        @for (name, numeric) in names {
            @let value = parameters.iter().find(|(known, _)| known == name);
            td class=[number(*numeric)] { (value.map(|(_, value)| words::brief(value)).unwrap_or_default()) }
        }
        (why(trial))
    }
}

/// Returns the class of cells that hold numbers.
fn number(numeric: bool) -> Option<&'static str> {
    numeric.then_some("number")
}

/// The cause of a failure in a few words.
fn cause(trial: &TrialSummary) -> Option<&str> {
    let failed = trial.state == JobState::Failed;
    trial.cause.as_deref().filter(|_| failed).map(words::cause)
}

/// Why a trial stands where it does: a line that is cut to its room, and whole where one points.
fn why(trial: &TrialSummary) -> Markup {
    let stopping = trial.stopping.as_ref().map(|reason| format!("to be stopped: {reason}"));
    let said: Vec<_> = [stopping, trial.message.clone()].into_iter().flatten().collect();
    let said = words::tame(&said.join(": ")).replace('\n', " ");
    let line: String = said.chars().take(WHY).collect();
    html! { td.why title=[(!said.is_empty()).then_some(&said)] { span { (line) } } }
}

/// `GET /trials`.
pub(super) async fn list(
    viewer: Viewer,
    State(shared): State<Shared>,
    CheckedQuery(query): CheckedQuery<ListQuery>,
) -> Result<Response, Refusal> {
    // Before the rows are read: a change that comes between is told once more, rather than never.
    let change = shared.state.board.refresh().await?.through;
    let (found, fault) = match trial_page(&shared, &query).await {
        // What is wrong with an expression is said where it was written.
        Err(Error::BadRequest(detail)) if detail.starts_with("filter: ") => {
            (TrialPage::default(), Some(detail))
        }
        found => (found?, None),
    };
    let rows: Vec<_> = found.trials.iter().collect();
    let sorting = Sorting { query: &query };
    let content = html! {
        h1 { "Trials" }
        div.bar {
            (filters(&query))
            (chosen_actions(&viewer))
        }
        @if let Some(fault) = &fault { p.problem role="alert" { (words::sentence(&words::tame(fault))) } }
        div #list data-live data-change=(change) {
            p.hint {
                (found.total) @if found.total == 1 { " trial" } @else { " trials" }
                @if is_filtered(&query) { ", " a href=(link(&query, &[("state", ""), ("cause", ""), ("q", ""), ("filter", "")])) { "clear the filter" } }
                ". As a file: " a href=(url("/api/v1/experiment/export?format=csv")) download { "CSV" }
                ", " a href=(url("/api/v1/experiment/export?format=json")) download { "JSON" }
                ", " a href=(url("/report.html")) download { "report" }
            }
            (table(&viewer.has, &rows, shared.state.clock.now_ms(), Some(&sorting)))
            @if query.cursor.is_some() || found.next.is_some() {
                nav.pages aria-label="Pages of the list" {
                    @if query.cursor.is_some() { a href=(link(&query, &[])) { "First" } }
                    span { "Page " (found.page) " of " (found.pages) }
                    @if let Some(next) = &found.next {
                        a rel="next" href=(link(&query, &[("cursor", next)])) { "Next" }
                    }
                }
            }
        }
    };
    Ok(page(&viewer, "Trials", Some("list"), &content))
}

/// The form that chooses trials.
fn filters(query: &ListQuery) -> Markup {
    let state = query.state.as_deref().unwrap_or_default();
    html! {
        form.inline method="get" action=(url("/trials")) role="search" {
            label { "State "
                select name="state" {
                    option value="" { "all" }
                    @for (word, name) in STATES { option value=(word) selected[state == word] { (name) } }
                    @if !state.is_empty() && STATES.iter().all(|(word, _)| *word != state) {
                        option value=(state) selected { (state) }
                    }
                }
            }
            label { "Contains " input type="search" name="q" value=[query.q.as_deref()]; }
            label.expression { "Filter " input name="filter" value=[query.filter.as_deref()] placeholder="lr < 0.01 and duration > 5m" spellcheck="false" autocapitalize="off"; }
            @if let Some(cause) = query.cause.as_deref().filter(|cause| !cause.is_empty()) {
                label { input type="checkbox" name="cause" value=(cause) checked; " " (words::cause(cause)) " only" }
            }
            @if let Some(sort) = &query.sort { input type="hidden" name="sort" value=(sort); }
            @if let Some(order) = &query.order { input type="hidden" name="order" value=(order); }
            button { "Show" }
        }
    }
}

/// The actions on the trials that are chosen in the list.
fn chosen_actions(viewer: &Viewer) -> Markup {
    html! {
        form.inline #compare method="get" action=(url("/compare")) data-chosen="trial" {
            button.second { "Compare" }
            button.second formaction=(url("/api/v1/experiment/export")) name="format" value="csv" { "CSV" }
            @if viewer.may_change {
                button.second formmethod="post" formaction=(url("/chosen/retry")) { "Run again" }
                button.danger formmethod="post" formaction=(url("/chosen/kill")) { "Stop" }
            }
        }
    }
}

fn is_filtered(query: &ListQuery) -> bool {
    let filters = [&query.state, &query.cause, &query.q, &query.filter];
    filters.into_iter().flatten().any(|text| !text.trim().is_empty())
}

/// `GET /compare?trial=a&trial=b`.
pub(super) async fn compare(
    viewer: Viewer,
    State(shared): State<Shared>,
    RawQuery(query): RawQuery,
) -> Result<Response, Refusal> {
    let query = query.unwrap_or_default();
    let ids = query.split('&').filter_map(|pair| pair.strip_prefix("trial="));
    let chosen = ids.clone().count();
    let snapshot = shared.state.board.refresh().await?;
    let mut rows = Vec::new();
    for id in ids.take(COMPARED) {
        let named = TrialJobId::new(id).map_err(|error| Error::BadRequest(error.to_string()))?;
        rows.push(snapshot.find(id).ok_or(Error::UnknownTrial(named))?);
    }
    let content = html! {
        h1 { "Trials side by side" }
        @if rows.is_empty() {
            p { "Choose up to " (COMPARED) " trials in " a href=(url("/trials")) { "the list" } " first." }
        } @else {
            h2 #curves-title { "Intermediate results" }
            @if chosen > COMPARED { p.hint { "Of the " (chosen) " chosen trials the first " (COMPARED) " are shown." } }
            p hidden { label { "Metric " select #metric {} } }
            figure.chart data-chart="compare" aria-labelledby="curves-title" {}
            p.hint { "A name below the chart shows or hides its curve." }
            div #compared data-change=(snapshot.through) {
                @for row in &rows { span data-trial=(row.id) data-sequence=(row.sequence) data-metric=[row.metric.as_deref()] {} }
            }
            div #list data-live { (table(&viewer.has, &rows, shared.state.clock.now_ms(), None)) }
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
