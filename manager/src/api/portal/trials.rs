//! The table of trials, one page at a time, and the comparison of selected trials' curves.

use std::collections::HashMap;

use axum::extract::{RawQuery, State};
use axum::response::Response;
use maud::{Markup, html};
use serde_json::Value;
use trial_protocol::TrialJobId;

use super::super::user::{
    CheckedQuery, ListQuery, SortOrder, TrialPage, axes, machines, present_view, trial_page,
};
use super::super::{Error, Shared, percent};
use super::base::url;
use super::columns::{self, Column, ColumnContent};
use super::display;
use super::page::{PageRefusal, Viewer, list_end, page, time};
use super::parts::KnownParts;
use super::plot_place::{plot_keys, plot_place};
use crate::job_state::JobState;
use crate::search::goals::Goals;
use crate::view::state_names::EXTERNAL_ENDS;
use crate::view::{self, TrialSummary};

/// The parameter of the query that names a column. It may occur several times.
const COLUMN_PARAMETER: &str = "column";
/// The maximum length of a reason in the table, in characters.
const MAX_REASON_CHARS: usize = 160;
/// The maximum number of trials in a comparison.
const MAX_COMPARED: usize = 20;
/// The states of the filter: each entry selects the trials in any of its states.
const STATE_FILTERS: [&[JobState]; 9] = [
    &[JobState::Waiting],
    &[JobState::Running],
    &[JobState::Succeeded],
    &[JobState::Failed],
    &[JobState::EarlyStopped],
    &[JobState::UserCanceled],
    &[JobState::SysCanceled],
    &[JobState::Lost],
    &EXTERNAL_ENDS,
];

/// A request for the table: the selection of trials, and the columns.
struct TableRequest {
    query: ListQuery,
    /// The keys of the columns. `None` means the default ones.
    columns: Option<Vec<String>>,
}

impl TableRequest {
    /// Reads a page's query: the query of the API's list, and `column` once for each column.
    fn read(query: &str) -> Result<Self, Error> {
        let CheckedQuery(pairs) = CheckedQuery::<Vec<(String, String)>>::of_text(query)?;
        let (columns, others): (Vec<_>, Vec<_>) =
            pairs.into_iter().partition(|(name, _)| name == COLUMN_PARAMETER);
        let keys: Vec<_> =
            columns.into_iter().map(|(_, key)| key).filter(|key| !key.is_empty()).collect();
        let member = |(name, value): &(String, String)| {
            format!("{}={}", percent::encode(name), percent::encode(value))
        };
        let others = others.iter().map(member).collect::<Vec<_>>().join("&");
        let CheckedQuery(query) = CheckedQuery::of_text(&others)?;
        Ok(Self { query, columns: Some(keys).filter(|keys| !keys.is_empty()) })
    }
}

/// A list that can be sorted and selected from. The heading of a column links to the same list in another order.
pub(super) struct SortableList<'a> {
    request: &'a TableRequest,
    /// The columns of all trials of the experiment, and the shown ones.
    columns: Vec<Column>,
    shown: Vec<Column>,
    /// The machines of the trials, by the trial's position, if they are shown.
    hosts: HashMap<u64, String>,
}

impl SortableList<'_> {
    fn heading(&self, column: &str, name: &str, kind: Option<&str>) -> Markup {
        let query = &self.request.query;
        let current = query.sort.as_deref().unwrap_or("sequence") == column;
        let descending = query.order == Some(SortOrder::Descending);
        let order = if current && !descending { "desc" } else { "asc" };
        let sorted = match (current, descending) {
            (false, _) => None,
            (true, false) => Some("ascending"),
            (true, true) => Some("descending"),
        };
        let link = link(self.request, &[("sort", column), ("order", order)]);
        html! { th class=[kind] scope="col" aria-sort=[sorted] { a href=(link) { (display::sanitize(name)) } } }
    }
}

/// Returns the list's address with changed parameters. Without `cursor`, the link leads to the first page.
fn link(request: &TableRequest, other: &[(&str, &str)]) -> String {
    let limit = request.query.limit.map(|limit| limit.to_string());
    let own =
        filter_parameters(&request.query).chain(limit.as_deref().map(|limit| ("limit", limit)));
    let kept = own.filter(|(name, _)| other.iter().all(|(given, _)| given != name));
    let columns = request.columns.iter().flatten().map(|key| (COLUMN_PARAMETER, key.as_str()));
    let pairs = kept.chain(other.iter().copied()).filter(|(_, value)| !value.is_empty());
    url(&format!("/trials?{}", encode_query(pairs.chain(columns))))
}

fn encode_query<'a>(pairs: impl Iterator<Item = (&'a str, &'a str)>) -> String {
    let pairs = pairs.map(|(name, value)| format!("{name}={}", percent::encode(value)));
    pairs.collect::<Vec<_>>().join("&")
}

/// Returns the address of a file with all trials of a list, on all its pages.
fn file_link(query: &ListQuery, format: &str) -> String {
    let own = filter_parameters(query).filter(|(_, value)| !value.is_empty());
    let pairs = std::iter::once(("format", format)).chain(own);
    url(&format!("/api/v1/experiment/export?{}", encode_query(pairs)))
}

/// Renders links to files with these trials, or with all if there are none, and to the report of all.
pub(super) fn downloads(trials: &[&TrialSummary]) -> Markup {
    let chosen: Vec<_> = trials.iter().map(|trial| format!("&trial={}", trial.id)).collect();
    let chosen = chosen.concat();
    let file = |format: &str| url(&format!("/api/v1/experiment/export?format={format}{chosen}"));
    html! {
        "Download: " a href=(file("csv")) download { "CSV" }
        ", " a href=(file("json")) download { "JSON" }
        @if trials.is_empty() { ", " a href=(url("/report.html")) { "report" } }
    }
}

/// Returns the parameters of a query that filter and sort trials.
fn filter_parameters(query: &ListQuery) -> impl Iterator<Item = (&str, &str)> {
    let own = [
        ("state", query.state.as_deref()),
        ("cause", query.cause.as_deref()),
        ("q", query.q.as_deref()),
        ("filter", query.filter.as_deref()),
        ("sort", query.sort.as_deref()),
        ("order", query.order.map(SortOrder::as_str)),
    ];
    own.into_iter().filter_map(|(name, value)| Some((name, value?)))
}

/// Renders a table of trials. Each row is a part. With `list`, the table can be sorted and selected from.
pub(super) fn table(
    known: &KnownParts,
    (trials, goals): (&[&TrialSummary], &Goals),
    now_ms: i64,
    list: Option<&SortableList<'_>>,
) -> Markup {
    if trials.is_empty() {
        return html! { p.hint { "No trials match." } };
    }
    let (own, own_shown);
    let (all, shown) = if let Some(list) = list {
        (&list.columns, &list.shown)
    } else {
        own = columns::available_columns(trials, &[], goals);
        own_shown = columns::shown_columns(&own, None, trials);
        (&own, &own_shown)
    };
    let chosen = list.and_then(|list| list.request.columns.as_deref());
    let more = if chosen.is_none() { columns::hidden_parameters(all) } else { 0 };
    let heading = |column: &Column| match list.filter(|_| column.is_sortable()) {
        Some(list) => list.heading(&column.key, &column.name, number_class(column.numeric)),
        None => {
            html! { th class=[number_class(column.numeric)] scope="col" { (display::sanitize(&column.name)) } }
        }
    };
    let sequence = Column::sequence();
    html! {
        div.scroll tabindex="0" role="region" aria-label="Trials" {
            table.cards.trials {
                thead {
                    tr {
                        @if list.is_some() { th scope="col" { span.hidden { "Selected" } input type="checkbox" data-all="trial" aria-label="select all trials on this page" hidden; } }
                        (heading(&sequence))
                        @for column in shown { (heading(column)) }
                    }
                }
                tbody {
                    @for trial in trials {
                        @let host = list.and_then(|list| list.hosts.get(&trial.sequence));
                        @let row = known.part(row(trial, host.map(String::as_str), shown, now_ms, list.is_some()));
                        tr data-part=(row.mark) { (row.content) }
                    }
                }
            }
        }
        @if more > 0 { p.hint { (more) " more parameters are not shown. Select them under Columns, or open a trial." } }
    }
}

/// Renders a trial's cells: its number, and one for each column.
fn row(
    trial: &TrialSummary,
    host: Option<&str>,
    shown: &[Column],
    now_ms: i64,
    selectable: bool,
) -> Markup {
    let parameters = view::flatten_parameters(&trial.parameters);
    html! {
        @if selectable {
            td.selection { input type="checkbox" name="trial" value=(trial.id) form="compare"
                aria-label={ "select trial " (trial.sequence) }; }
        }
        td.number.first data-label="Trial" { a href={ (url("/trials/")) (trial.id) } { (trial.sequence) } }
        @for column in shown { (cell(trial, host, column, &parameters, now_ms)) }
    }
}

/// Renders the cell of a column.
fn cell(
    trial: &TrialSummary,
    host: Option<&str>,
    column: &Column,
    parameters: &[(String, &Value)],
    now_ms: i64,
) -> Markup {
    let label = display::sanitize(&column.name);
    let moment = |at: Option<i64>| html! { td data-label=(label) { @if let Some(at) = at { (time(at, now_ms)) } } };
    match &column.kind {
        ColumnContent::Sequence => html! { td.number { (trial.sequence) } },
        ColumnContent::Id => html! { td { code { (trial.id) } } },
        ColumnContent::State => html! {
            td {
                span.state data-state=(trial.state.as_str()) { (display::state(trial.state)) }
                @if let Some(cause) = cause_words(trial) { " " small { (cause) } }
            }
        },
        ColumnContent::Final => {
            // If a limit is broken, the counting value is infinite. The objective's own number is more useful.
            let own = |last: &Value| display::short_result(last.get(&column.name).unwrap_or(last));
            html! { td.number data-label=(label) { (trial.final_value.as_ref().map(own).unwrap_or_default()) } }
        }
        ColumnContent::Mean => html! {
            td.number data-label=(label) title=[trial.estimate.as_ref().map(display::estimate)] {
                (trial.estimate.as_ref().map(display::short_estimate).unwrap_or_default())
            }
        },
        ColumnContent::Latest => html! {
            td.number data-label=(label) {
                (trial.latest.as_ref().map(display::short_result).unwrap_or_default())
                @if let Some(step) = trial.latest_step { small { " @" (step) } }
            }
        },
        ColumnContent::Duration => {
            html! { td.number data-label=(label) { (display::span_if_any(trial.duration_ms(now_ms))) } }
        }
        ColumnContent::Created => moment(Some(trial.created_at_ms)),
        ColumnContent::Started => moment(trial.started_at_ms),
        ColumnContent::Ended => moment(trial.ended_at_ms),
        ColumnContent::Attempt => html! { td data-label=(label) { code { (trial.attempt) } } },
        ColumnContent::Machine => {
            html! { td data-label=(label) { (display::sanitize(host.unwrap_or_default())) } }
        }
        ColumnContent::Metric { name, .. } => {
            let value = columns::metric(trial, name);
            html! { td.number data-label=(label) { (value.map(display::short_value).unwrap_or_default()) } }
        }
        ColumnContent::Parameter(name) => {
            let value = parameters.iter().find(|(known, _)| known == name);
            html! {
                td class=[number_class(column.numeric)] data-label=(label) {
                    (value.map(|(_, value)| display::short_value(value)).unwrap_or_default())
                }
            }
        }
        ColumnContent::Reason => reason_cell(trial),
    }
}

/// Returns the class of cells that contain numbers.
fn number_class(numeric: bool) -> Option<&'static str> {
    numeric.then_some("number")
}

/// Returns the cause of a failure in a few words.
fn cause_words(trial: &TrialSummary) -> Option<&str> {
    let failed = trial.state == JobState::Failed;
    trial.cause.as_deref().filter(|_| failed).map(display::cause)
}

/// Renders the reason for a trial's state: one shortened line, with the whole text as the tooltip.
fn reason_cell(trial: &TrialSummary) -> Markup {
    let stopping = trial.stopping.as_ref().map(|reason| format!("being stopped: {reason}"));
    let reasons: Vec<_> = [stopping, trial.message.clone()].into_iter().flatten().collect();
    let reasons = display::sanitize(&reasons.join(": ")).replace('\n', " ");
    let line: String = reasons.chars().take(MAX_REASON_CHARS).collect();
    html! { td.why title=[(!reasons.is_empty()).then_some(&reasons)] { span { (line) } } }
}

/// `GET /trials`: shows the table of trials.
pub(super) async fn list(
    viewer: Viewer,
    State(shared): State<Shared>,
    RawQuery(query): RawQuery,
) -> Result<Response, PageRefusal> {
    let request = TableRequest::read(query.as_deref().unwrap_or_default())?;
    let query = &request.query;
    // Read before the rows: a change in between is then sent twice rather than never.
    let snapshot = shared.state.trial_cache.refresh().await?;
    let (found, fault) = match trial_page(&shared, query).await {
        // A fault in an expression is shown beside the expression.
        Err(Error::BadRequest(detail)) if detail.starts_with("filter: ") => {
            (TrialPage::default(), Some(detail))
        }
        found => (found?, None),
    };
    let rows: Vec<_> = found.trials.iter().collect();
    let has_machines = request.columns.iter().flatten().any(|key| key == columns::MACHINE_KEY);
    let hosts = if has_machines { machines(&shared).await? } else { HashMap::new() };
    let all: Vec<_> = snapshot.trials.iter().map(AsRef::as_ref).collect();
    let columns =
        columns::available_columns(&all, &axes(&shared).await?, shared.state.trial_cache.goals());
    let shown = columns::shown_columns(&columns, request.columns.as_deref(), &all);
    let list = SortableList { request: &request, columns, shown, hosts };
    let content = html! {
        h1 { "Trials" }
        div.bar {
            (filter_form(&request))
            (selection_actions(&viewer, &link(&request, &[])))
        }
        (column_form(&list))
        @if let Some(fault) = &fault { p.problem role="alert" { (display::sentence(&display::sanitize(fault))) } }
        div #list data-live data-change=(snapshot.through) {
            p.hint {
                (found.total) @if found.total == 1 { " trial" } @else { " trials" }
                @if is_filtered(query) { ", " a href=(link(&request, &[("state", ""), ("cause", ""), ("q", ""), ("filter", "")])) { "clear filters" } }
                ". Download: " a href=(file_link(query, "csv")) download { "CSV" }
                ", " a href=(file_link(query, "json")) download { "JSON" }
                ", " a href=(url("/report.html")) download { "report" }
            }
            (table(&viewer.known_parts, (&rows, shared.state.trial_cache.goals()), shared.state.clock.now_ms(), Some(&list)))
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
        (list_end())
    };
    Ok(page(&viewer, "Trials", Some("trials"), &content))
}

/// Renders the form that selects the columns of the table.
fn column_form(list: &SortableList<'_>) -> Markup {
    let SortableList { request, columns, shown, .. } = list;
    let is_shown = |column: &Column| shown.iter().any(|one| one.key == column.key);
    html! {
        details.columns {
            summary { "Columns" }
            form.inline method="get" action=(url("/trials")) {
                (hidden_fields(request, &["state", "q", "filter", "cause", "sort", "order"]))
                @for column in columns {
                    label { input type="checkbox" name=(COLUMN_PARAMETER) value=(column.key) checked[is_shown(column)]; " " (display::sanitize(&column.name)) }
                }
                button.second { "Apply" }
                a data-usual href=(link(&TableRequest { query: request.query.clone(), columns: None }, &[])) { "Default columns" }
            }
        }
    }
}

/// Renders hidden fields with the parameters of the query that the form itself does not set.
fn hidden_fields(request: &TableRequest, names: &[&str]) -> Markup {
    let query = &request.query;
    let all = [
        ("state", query.state.as_deref()),
        ("q", query.q.as_deref()),
        ("filter", query.filter.as_deref()),
        ("cause", query.cause.as_deref()),
        ("sort", query.sort.as_deref()),
        ("order", query.order.map(SortOrder::as_str)),
    ];
    let kept = all.into_iter().filter(|(name, _)| names.contains(name));
    let kept = kept.filter_map(|(name, value)| Some((name, value?)));
    html! {
        @for (name, value) in kept.filter(|(_, value)| !value.is_empty()) {
            input type="hidden" name=(name) value=(value);
        }
    }
}

/// Returns the value of the query's `state` that selects the trials in these states.
pub(super) fn states_value(states: &[JobState]) -> String {
    states.iter().map(|state| state.as_str()).collect::<Vec<_>>().join(",")
}

/// Renders the form that filters trials.
fn filter_form(request: &TableRequest) -> Markup {
    let query = &request.query;
    let state = query.state.as_deref().unwrap_or_default();
    let values = STATE_FILTERS.map(|states| (states_value(states), states));
    let is_listed = values.iter().any(|(value, _)| value == state);
    html! {
        form.inline method="get" action=(url("/trials")) role="search" {
            label { "State "
                select name="state" {
                    option value="" { "all" }
                    @for (value, states) in values { option value=(value) selected[state == value] { (display::states(states)) } }
                    @if !state.is_empty() && !is_listed {
                        option value=(state) selected { (state) }
                    }
                }
            }
            label { "Contains " input type="search" name="q" value=[query.q.as_deref()]; }
            label.expression { "Filter " input name="filter" value=[query.filter.as_deref()] placeholder="lr < 0.01 and duration > 5m" spellcheck="false" autocapitalize="off"; }
            @if let Some(cause) = query.cause.as_deref().filter(|cause| !cause.is_empty()) {
                label { input type="checkbox" name="cause" value=(cause) checked; " " (display::cause(cause)) " only" }
            }
            (hidden_fields(request, &["sort", "order"]))
            @for key in request.columns.iter().flatten() { input type="hidden" name=(COLUMN_PARAMETER) value=(key); }
            button { "Apply" }
        }
    }
}

/// Renders the actions on the selected trials. A change leads back to the list at `here`.
fn selection_actions(viewer: &Viewer, here: &str) -> Markup {
    let query = here.split_once('?').map_or("", |(_, query)| query);
    let change = |what: &str| url(&format!("/chosen/{what}?{query}"));
    html! {
        form.inline #compare method="get" action=(url("/compare")) data-chosen="trial" {
            button.second { "Compare" }
            button.second formaction=(url("/api/v1/experiment/export")) name="format" value="csv" { "CSV" }
            button.second formaction=(url("/api/v1/experiment/export")) name="format" value="json" { "JSON" }
            @if viewer.may_change {
                button.second formmethod="post" formaction=(change("rerun")) { "Rerun" }
                button.danger formmethod="post" formaction=(change("stop")) data-confirm="Stop the selected trials?" { "Stop" }
            }
            span.hint.away role="status" {}
        }
    }
}

fn is_filtered(query: &ListQuery) -> bool {
    let filters = [&query.state, &query.cause, &query.q, &query.filter];
    filters.into_iter().flatten().any(|text| !text.trim().is_empty())
}

/// `GET /compare?trial=a&trial=b`: shows the comparison of trials.
pub(super) async fn compare(
    viewer: Viewer,
    State(shared): State<Shared>,
    RawQuery(query): RawQuery,
) -> Result<Response, PageRefusal> {
    let query = query.unwrap_or_default();
    let ids = query.split('&').filter_map(|pair| pair.strip_prefix("trial="));
    let chosen = ids.clone().count();
    let snapshot = shared.state.trial_cache.refresh().await?;
    let mut rows = Vec::new();
    for id in ids.take(MAX_COMPARED) {
        let named = TrialJobId::new(id).map_err(|error| Error::BadRequest(error.to_string()))?;
        rows.push(snapshot.find(id).ok_or(Error::UnknownTrial(named))?);
    }
    let mode = present_view(&shared, &snapshot).await?.optimize_mode;
    let content = html! {
        h1 { "Compare trials" }
        @if rows.is_empty() {
            p { "First select up to " (MAX_COMPARED) " trials in " a href=(url("/trials")) { "the list" } "." }
        } @else {
            @if chosen > MAX_COMPARED { p.hint { "Showing the first " (MAX_COMPARED) " of " (chosen) " selected trials." } }
            p hidden { label { "Metric " select #metric {} } }
            (plot_place("compare", "Intermediate results", "wide", &html! {}))
            (plot_keys())
            p.hint { (downloads(&rows)) }
            div #compared data-change=(snapshot.through) data-mode=(mode) {
                @for row in &rows { span data-trial=(row.id) data-sequence=(row.sequence) data-metric=[row.metric.as_deref()] {} }
            }
            div #list data-live { (table(&viewer.known_parts, (&rows, shared.state.trial_cache.goals()), shared.state.clock.now_ms(), None)) }
        }
    };
    Ok(page(&viewer, "Compare", Some("trial-comparison"), &content))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_keep_the_query() {
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
