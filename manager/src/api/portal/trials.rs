//! The table of trials, a page of it at a time, and chosen trials' curves side by side.

use std::collections::HashMap;

use axum::extract::{RawQuery, State};
use axum::response::Response;
use maud::{Markup, html};
use serde_json::Value;
use trial_protocol::TrialJobId;

use super::super::user::{CheckedQuery, ListQuery, TrialPage, machines, trial_page};
use super::super::{Error, Shared, percent};
use super::base::url;
use super::columns::{self, Column, ColumnContent};
use super::page::{PageRefusal, Viewer, page, time};
use super::parts::Has;
use super::words;
use crate::job_state::JobState;
use crate::search::goals::Goals;
use crate::view::{self, TrialSummary};

/// The member of the query that names a column; it stands there once for each.
const COLUMN: &str = "column";
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

/// A request for the table: which trials, and which columns of them.
struct TableRequest {
    query: ListQuery,
    /// The keys of the columns. `None`: the usual ones.
    columns: Option<Vec<String>>,
}

impl TableRequest {
    /// Reads a page's query: that of the API's list, and `column` once for each column.
    fn read(query: &str) -> Result<Self, Error> {
        let CheckedQuery(pairs) = CheckedQuery::<Vec<(String, String)>>::of_text(query)?;
        let (columns, others): (Vec<_>, Vec<_>) =
            pairs.into_iter().partition(|(name, _)| name == COLUMN);
        let keys: Vec<_> =
            columns.into_iter().map(|(_, key)| key).filter(|key| !key.is_empty()).collect();
        let member = |(name, value): &(String, String)| {
            format!("{}={}", percent::encoded(name), percent::encoded(value))
        };
        let others = others.iter().map(member).collect::<Vec<_>>().join("&");
        let CheckedQuery(query) = CheckedQuery::of_text(&others)?;
        Ok(Self { query, columns: Some(keys).filter(|keys| !keys.is_empty()) })
    }
}

/// A list that can be sorted and chosen from, and where a column's heading leads: the same list, sorted otherwise.
pub(super) struct Sorting<'a> {
    request: &'a TableRequest,
    /// The machines of trials by the trial's position, where they are shown.
    hosts: HashMap<u64, String>,
}

impl Sorting<'_> {
    fn heading(&self, column: &str, name: &str, kind: Option<&str>) -> Markup {
        let query = &self.request.query;
        let current = query.sort.as_deref().unwrap_or("sequence") == column;
        let descending = query.order.as_deref() == Some("desc");
        let order = if current && !descending { "desc" } else { "asc" };
        let sorted = match (current, descending) {
            (false, _) => None,
            (true, false) => Some("ascending"),
            (true, true) => Some("descending"),
        };
        let link = link(self.request, &[("sort", column), ("order", order)]);
        html! { th class=[kind] scope="col" aria-sort=[sorted] { a href=(link) { (words::tame(name)) } } }
    }
}

/// The list with other members of its query; without a cursor unless one is given.
fn link(request: &TableRequest, other: &[(&str, &str)]) -> String {
    let limit = request.query.limit.map(|limit| limit.to_string());
    let own = choice(&request.query).chain(limit.as_deref().map(|limit| ("limit", limit)));
    let kept = own.filter(|(name, _)| other.iter().all(|(given, _)| given != name));
    let columns = request.columns.iter().flatten().map(|key| (COLUMN, key.as_str()));
    let pairs = kept.chain(other.iter().copied()).filter(|(_, value)| !value.is_empty());
    url(&format!("/trials?{}", encoded(pairs.chain(columns))))
}

fn encoded<'a>(pairs: impl Iterator<Item = (&'a str, &'a str)>) -> String {
    let pairs = pairs.map(|(name, value)| format!("{name}={}", percent::encoded(value)));
    pairs.collect::<Vec<_>>().join("&")
}

/// The address of all trials that a list shows on its pages, as a file.
fn file_link(query: &ListQuery, format: &str) -> String {
    let own = choice(query).filter(|(_, value)| !value.is_empty());
    let pairs = std::iter::once(("format", format)).chain(own);
    url(&format!("/api/v1/experiment/export?{}", encoded(pairs)))
}

/// The members of a query that choose and sort trials.
fn choice(query: &ListQuery) -> impl Iterator<Item = (&str, &str)> {
    let own = [
        ("state", query.state.as_deref()),
        ("cause", query.cause.as_deref()),
        ("q", query.q.as_deref()),
        ("filter", query.filter.as_deref()),
        ("sort", query.sort.as_deref()),
        ("order", query.order.as_deref()),
    ];
    own.into_iter().filter_map(|(name, value)| Some((name, value?)))
}

/// A table of trials, each row a part; with `sorting`, one that can be sorted and chosen from.
pub(super) fn table(
    has: &Has,
    (trials, goals): (&[&TrialSummary], &Goals),
    now_ms: i64,
    sorting: Option<&Sorting<'_>>,
) -> Markup {
    if trials.is_empty() {
        return html! { p.hint { "No trials match." } };
    }
    let all = columns::of(trials, goals);
    let chosen = sorting.and_then(|sorting| sorting.request.columns.as_deref());
    let shown = columns::shown(&all, chosen);
    let more = if chosen.is_none() { columns::beyond(&all) } else { 0 };
    let heading = |column: &Column| match sorting.filter(|_| column.is_sortable()) {
        Some(sorting) => sorting.heading(&column.key, &column.name, number(column.numeric)),
        None => {
            html! { th class=[number(column.numeric)] scope="col" { (words::tame(&column.name)) } }
        }
    };
    let sequence = Column::sequence();
    html! {
        div.scroll tabindex="0" role="region" aria-label="Trials" {
            table.trials {
                thead {
                    tr {
                        @if sorting.is_some() { th scope="col" { span.hidden { "Chosen" } input type="checkbox" data-all="trial" aria-label="choose all trials on this page" hidden; } }
                        (heading(&sequence))
                        @for column in &shown { (heading(column)) }
                    }
                }
                tbody {
                    @for trial in trials {
                        @let host = sorting.and_then(|sorting| sorting.hosts.get(&trial.sequence));
                        @let row = has.part(row(trial, host.map(String::as_str), &shown, now_ms, sorting.is_some()));
                        tr data-part=(row.mark) { (row.content) }
                    }
                }
            }
        }
        @if more > 0 { p.hint { (more) " more parameters are on each trial's own page, or can be chosen as columns." } }
    }
}

/// A trial's cells: its number, and one for each column.
fn row(
    trial: &TrialSummary,
    host: Option<&str>,
    shown: &[Column],
    now_ms: i64,
    choosable: bool,
) -> Markup {
    let parameters = view::flat(&trial.parameters);
    html! {
        @if choosable {
            td { input type="checkbox" name="trial" value=(trial.id) form="compare"
                aria-label={ "choose trial " (trial.sequence) }; }
        }
        td.number { a href={ (url("/trials/")) (trial.id) } { (trial.sequence) } }
        @for column in shown { (cell(trial, host, column, &parameters, now_ms)) }
    }
}

/// The cell of a column.
fn cell(
    trial: &TrialSummary,
    host: Option<&str>,
    column: &Column,
    parameters: &[(String, &Value)],
    now_ms: i64,
) -> Markup {
    let moment = |at: Option<i64>| html! { td { @if let Some(at) = at { (time(at, now_ms)) } } };
    match &column.kind {
        ColumnContent::Sequence => html! { td.number { (trial.sequence) } },
        ColumnContent::Id => html! { td { code { (trial.id) } } },
        ColumnContent::State => html! {
            td {
                span.state data-state=(trial.state.as_str()) { (words::state(trial.state)) }
                @if let Some(cause) = cause(trial) { " " small { (cause) } }
            }
        },
        ColumnContent::Final => {
            // The value that counts is infinite where a limit is broken; the objective's own number says more.
            let own = |last: &Value| words::brief_result(last.get(&column.name).unwrap_or(last));
            html! { td.number { (trial.last.as_ref().map(own).unwrap_or_default()) } }
        }
        ColumnContent::Latest => html! {
            td.number {
                (trial.latest.as_ref().map(words::brief_result).unwrap_or_default())
                @if let Some(step) = trial.latest_step { small { " @" (step) } }
            }
        },
        ColumnContent::Duration => {
            html! { td.number { (words::span_if_any(trial.duration_ms(now_ms))) } }
        }
        ColumnContent::Created => moment(Some(trial.created_at_ms)),
        ColumnContent::Started => moment(trial.started_at_ms),
        ColumnContent::Ended => moment(trial.ended_at_ms),
        ColumnContent::Attempt => html! { td { code { (trial.attempt) } } },
        ColumnContent::Machine => html! { td { (words::tame(host.unwrap_or_default())) } },
        ColumnContent::Metric { name, .. } => {
            let value = columns::member(trial, name);
            html! { td.number { (value.map(words::brief).unwrap_or_default()) } }
        }
        ColumnContent::Parameter(name) => {
            let value = parameters.iter().find(|(known, _)| known == name);
            html! {
                td class=[number(column.numeric)] {
                    (value.map(|(_, value)| words::brief(value)).unwrap_or_default())
                }
            }
        }
        ColumnContent::Why => why(trial),
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
    RawQuery(query): RawQuery,
) -> Result<Response, PageRefusal> {
    let request = TableRequest::read(query.as_deref().unwrap_or_default())?;
    let query = &request.query;
    // Before the rows are read: a change that comes between is told once more, rather than never.
    let change = shared.state.board.refresh().await?.through;
    let (found, fault) = match trial_page(&shared, query).await {
        // What is wrong with an expression is said where it was written.
        Err(Error::BadRequest(detail)) if detail.starts_with("filter: ") => {
            (TrialPage::default(), Some(detail))
        }
        found => (found?, None),
    };
    let rows: Vec<_> = found.trials.iter().collect();
    let has_machines = request.columns.iter().flatten().any(|key| key == columns::MACHINE);
    let hosts = if has_machines { machines(&shared).await? } else { HashMap::new() };
    let sorting = Sorting { request: &request, hosts };
    let content = html! {
        h1 { "Trials" }
        div.bar {
            (filters(&request))
            (chosen_actions(&viewer, &link(&request, &[])))
        }
        (chooser(&request, &columns::of(&rows, shared.state.board.goals())))
        @if let Some(fault) = &fault { p.problem role="alert" { (words::sentence(&words::tame(fault))) } }
        div #list data-live data-change=(change) {
            p.hint {
                (found.total) @if found.total == 1 { " trial" } @else { " trials" }
                @if is_filtered(query) { ", " a href=(link(&request, &[("state", ""), ("cause", ""), ("q", ""), ("filter", "")])) { "clear the filter" } }
                ". As a file: " a href=(file_link(query, "csv")) download { "CSV" }
                ", " a href=(file_link(query, "json")) download { "JSON" }
                ", " a href=(url("/report.html")) download { "report" }
            }
            (table(&viewer.has, (&rows, shared.state.board.goals()), shared.state.clock.now_ms(), Some(&sorting)))
            @if query.cursor.is_some() || found.next.is_some() {
                nav.pages aria-label="Pages of the list" {
                    @if query.cursor.is_some() { a href=(link(&request, &[])) { "First" } }
                    span { "Page " (found.page) " of " (found.pages) }
                    @if let Some(next) = &found.next {
                        a rel="next" href=(link(&request, &[("cursor", next)])) { "Next" }
                    }
                }
            }
        }
    };
    Ok(page(&viewer, "Trials", Some("list"), &content))
}

/// The form that chooses the columns of the table.
fn chooser(request: &TableRequest, all: &[Column]) -> Markup {
    let shown = columns::shown(all, request.columns.as_deref());
    let is_shown = |column: &Column| shown.iter().any(|one| one.key == column.key);
    html! {
        details.columns {
            summary { "Columns" }
            form.inline method="get" action=(url("/trials")) {
                (kept(request, &["state", "q", "filter", "cause", "sort", "order"]))
                @for column in all {
                    label { input type="checkbox" name=(COLUMN) value=(column.key) checked[is_shown(column)]; " " (words::tame(&column.name)) }
                }
                button.second { "Show these" }
                a data-usual href=(link(&TableRequest { query: request.query.clone(), columns: None }, &[])) { "The usual columns" }
            }
        }
    }
}

/// Hidden members of a form: those of the query that its own fields leave alone.
fn kept(request: &TableRequest, names: &[&str]) -> Markup {
    let query = &request.query;
    let all = [
        ("state", &query.state),
        ("q", &query.q),
        ("filter", &query.filter),
        ("cause", &query.cause),
        ("sort", &query.sort),
        ("order", &query.order),
    ];
    let kept = all.into_iter().filter(|(name, _)| names.contains(name));
    let kept = kept.filter_map(|(name, value)| Some((name, value.as_deref()?)));
    html! {
        @for (name, value) in kept.filter(|(_, value)| !value.is_empty()) {
            input type="hidden" name=(name) value=(value);
        }
    }
}

/// The form that chooses trials.
fn filters(request: &TableRequest) -> Markup {
    let query = &request.query;
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
            (kept(request, &["sort", "order"]))
            @for key in request.columns.iter().flatten() { input type="hidden" name=(COLUMN) value=(key); }
            button { "Show" }
        }
    }
}

/// The actions on the trials that are chosen in the list at `here`. A change leads back there.
fn chosen_actions(viewer: &Viewer, here: &str) -> Markup {
    let query = here.split_once('?').map_or("", |(_, query)| query);
    let change = |what: &str| url(&format!("/chosen/{what}?{query}"));
    html! {
        form.inline #compare method="get" action=(url("/compare")) data-chosen="trial" {
            button.second { "Compare" }
            button.second formaction=(url("/api/v1/experiment/export")) name="format" value="csv" { "CSV" }
            button.second formaction=(url("/api/v1/experiment/export")) name="format" value="json" { "JSON" }
            @if viewer.may_change {
                button.second formmethod="post" formaction=(change("retry")) { "Run again" }
                button.danger formmethod="post" formaction=(change("kill")) data-confirm="Stop the chosen trials?" { "Stop" }
            }
            span.hint.away role="status" {}
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
) -> Result<Response, PageRefusal> {
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
            div #list data-live { (table(&viewer.has, (&rows, shared.state.board.goals()), shared.state.clock.now_ms(), None)) }
        }
    };
    Ok(page(&viewer, "Compare", Some("compare"), &content))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_keep_what_was_asked_for() {
        let text =
            "state=FAILED&q=a%26b%3Dc+d&cursor=x&column=final&column=parameters.l%20r&column=";
        let request = TableRequest::read(text).unwrap();
        let found = link(&request, &[("sort", "parameters.l r"), ("order", "desc")]);
        let columns = "column=final&column=parameters.l%20r";
        let expected = format!(
            "/trials?state=FAILED&q=a%26b%3Dc%20d&sort=parameters.l%20r&order=desc&{columns}"
        );
        assert_eq!(found, expected);
        assert_eq!(TableRequest::read("column=&column").unwrap().columns, None);
        assert!(TableRequest::read("nothing=1&column=final").is_err());
    }
}
