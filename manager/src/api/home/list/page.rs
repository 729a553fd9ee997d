//! The list of experiments as a page.

use axum::extract::State;
use axum::response::Response;
use maud::{Markup, html};

use super::{ExperimentQuery, PAGE_ROWS, display_name, standing};
use crate::api::home::Home;
use crate::api::home::catalog::CatalogEntry;
use crate::api::portal::base::url;
use crate::api::portal::{PageRefusal, Viewer, display, page as render_page, time};
use crate::api::user::{CheckedQuery, SortOrder};
use crate::view;

/// The states of the filter, and their names.
const STATE_FILTERS: [(&str, &str); 5] = [
    ("running", "running"),
    ("interrupted", "interrupted"),
    ("done", "done"),
    ("stopped", "stopped"),
    ("failed", "failed or unreadable"),
];

/// `GET /`: shows the list of experiments.
pub(in crate::api::home) async fn page(
    viewer: Viewer,
    State(home): State<Home>,
    CheckedQuery(query): CheckedQuery<ExperimentQuery>,
) -> Result<Response, PageRefusal> {
    let entries = home.0.catalog.refresh(&home).await;
    let archive = entries.iter().filter(|entry| entry.annotation.archived).count();
    let known = entries.len();
    let mut owners: Vec<_> =
        entries.iter().filter_map(|entry| entry.summary.owner.clone()).collect();
    owners.sort();
    owners.dedup();
    let chosen = query.select(entries)?;
    let (total, pages) = (chosen.len(), chosen.len().div_ceil(PAGE_ROWS).max(1));
    let at = query.page.unwrap_or(1).clamp(1, pages);
    let rows: Vec<_> = chosen.into_iter().skip((at - 1) * PAGE_ROWS).take(PAGE_ROWS).collect();
    let in_archive = query.archived == Some(true);
    let file = |format: &str| query.address("/api/v1/experiments/export", &[("format", format)]);
    let content = html! {
        h1 { @if in_archive { "Archive" } @else { "Experiments" } }
        div.bar {
            (filters(&query, &owners))
            form.inline #compare method="get" action=(url("/compare")) data-chosen="experiment" {
                button.second { "Compare" }
                @if viewer.may_change {
                    button.second formmethod="post" formaction=(url("/archive")) name="archived" value=(if in_archive { "false" } else { "true" }) {
                        @if in_archive { "Remove from archive" } @else { "Archive" }
                    }
                }
                span.hint.away role="status" {}
            }
        }
        div #list data-live {
            p.hint {
                (total) @if total == 1 { " experiment" } @else { " experiments" }
                @if query.is_filtered() { ", " a href=(url("/")) { "clear filters" } }
                @if !in_archive && archive > 0 { ", " a href=(url("/?archived=true")) { (archive) " archived" } }
                @if total > 0 { ". Download: " a href=(file("csv")) download { "CSV" } ", " a href=(file("json")) download { "JSON" } }
            }
            @if known == 0 {
                p { "No experiments yet. To start one, run " code { "trial-manager run FILE" } "." }
            } @else if rows.is_empty() {
                p { "No experiments match." }
            } @else {
                (table(&query, &rows, &viewer, home.0.clock.now_ms()))
            }
            @if pages > 1 { (page_links(&query, at, pages)) }
        }
    };
    Ok(render_page(&viewer, "Experiments", Some("experiments"), &content))
}

impl ExperimentQuery {
    fn is_filtered(&self) -> bool {
        let filters = [&self.q, &self.state, &self.owner, &self.tag];
        filters.into_iter().any(|filter| Self::trimmed(filter.as_ref()).is_some())
    }
}

fn page_links(query: &ExperimentQuery, at: usize, pages: usize) -> Markup {
    let to = |page: usize| query.link(&[("page", &page.to_string())]);
    html! {
        nav.pages aria-label="Pages of the list" {
            @if at > 1 { a rel="prev" href=(to(at - 1)) { "Previous" } }
            span { "Page " (at) " of " (pages) }
            @if at < pages { a rel="next" href=(to(at + 1)) { "Next" } }
        }
    }
}

fn filters(query: &ExperimentQuery, owners: &[String]) -> Markup {
    let state = query.state.as_deref().unwrap_or_default();
    let owner = query.owner.as_deref().unwrap_or_default();
    html! {
        form.inline method="get" action=(url("/")) role="search" {
            label { "Search " input type="search" name="q" value=[query.q.as_deref()] placeholder="name, tag, owner, note"; }
            label { "State "
                select name="state" {
                    option value="" { "all" }
                    @for (word, name) in STATE_FILTERS { option value=(word) selected[state == word] { (name) } }
                }
            }
            @if owners.len() > 1 || !owner.is_empty() {
                label { "Owner "
                    select name="owner" {
                        option value="" { "all" }
                        @for one in owners { option value=(one) selected[one == owner] { (display::sanitize(one)) } }
                    }
                }
            }
            @if let Some(tag) = query.tag.as_deref().filter(|tag| !tag.is_empty()) {
                label { input type="checkbox" name="tag" value=(tag) checked; " tag " (display::sanitize(tag)) }
            }
            @if query.archived == Some(true) { input type="hidden" name="archived" value="true"; }
            @if let Some(sort) = &query.sort { input type="hidden" name="sort" value=(sort); }
            @if let Some(order) = query.order { input type="hidden" name="order" value=(order.as_str()); }
            button { "Apply" }
        }
    }
}

fn table(query: &ExperimentQuery, rows: &[CatalogEntry], viewer: &Viewer, now_ms: i64) -> Markup {
    let heading = |column: &str, name: &str, kind: Option<&str>| {
        let current = query.sort.as_deref().filter(|sort| !sort.is_empty()).unwrap_or("created");
        let falls = matches!(column, "created" | "best" | "progress");
        let descending = query.order.map_or(falls, |order| order == SortOrder::Descending);
        let sorted =
            (current == column).then_some(if descending { "descending" } else { "ascending" });
        let turned = match (current == column, descending) {
            (true, true) => "asc",
            (true, false) => "desc",
            (false, _) => "",
        };
        let link = query.link(&[("sort", column), ("order", turned)]);
        html! { th class=[kind] scope="col" aria-sort=[sorted] { a href=(link) { (name) } } }
    };
    html! {
        div.scroll tabindex="0" role="region" aria-label="Experiments" {
            table.cards.experiments {
                thead {
                    tr {
                        th scope="col" { span.hidden { "Selected" } }
                        (heading("name", "Experiment", None)) (heading("state", "State", None))
                        (heading("best", "Best", Some("number"))) (heading("progress", "Trials", None))
                        (heading("owner", "Owner", None)) (heading("platform", "Platform", None))
                        (heading("created", "Started", None)) th scope="col" { "Notes" }
                    }
                }
                tbody {
                    @for entry in rows {
                        @let part = viewer.known_parts.part(row(query, entry, now_ms));
                        tr data-part=(part.mark) { (part.content) }
                    }
                }
            }
        }
    }
}

/// Returns the colour of an experiment's state, as the name of a state with this colour, and the words for it.
pub(super) fn state_badge(entry: &CatalogEntry) -> (&'static str, &'static str) {
    let summary = &entry.summary;
    let has_result = summary.best.is_some() || summary.front.is_some_and(|front| front > 0);
    match standing(entry) {
        "running" => ("RUNNING", "running"),
        "interrupted" => (view::INTERRUPTED_STATE, "interrupted"),
        "done" if summary.failed > 0 && !has_result => ("FAILED", "done, no result"),
        "done" => ("DONE", "done"),
        "failed" => ("FAILED", "failed"),
        // The manager recorded the cause, such as several failures in a row. A user's stop has none.
        other if summary.trouble.is_some() => ("STOPPING", other),
        other => ("STOPPED", other),
    }
}

fn row(query: &ExperimentQuery, entry: &CatalogEntry, now_ms: i64) -> Markup {
    let summary = &entry.summary;
    let id = &summary.id;
    let (state, word) = state_badge(entry);
    let first = entry.annotation.notes.lines().find(|line| !line.trim().is_empty());
    let first: String =
        first.unwrap_or_default().trim_start_matches('#').trim().chars().take(60).collect();
    html! {
        td.selection { input type="checkbox" name="experiment" value=(id) form="compare" aria-label={ "select experiment " (id) }; }
        th scope="row" {
            a href=(url(&format!("/e/{id}/"))) { (display::sanitize(display_name(summary))) }
            @if summary.name.is_some() { " " code.quiet { (id) } }
            @for tag in entry.tags() { " " a.tag href=(query.link(&[("tag", tag)])) { (display::sanitize(tag)) } }
            @if let Some(trouble) = &summary.trouble { br; small { (display::sanitize(trouble)) } }
        }
        td.badge { span.state data-state=(state) { (word) } }
        td.number data-label="Best" {
            @if let Some(best) = &summary.best {
                a href=(url(&format!("/e/{id}/trials/{}", best.id))) title={ "trial " (best.sequence) } { (display::number(best.value)) }
                @if let Some(metric) = &summary.metric { " " small { (display::sanitize(metric)) } }
            } @else if let Some(front) = summary.front {
                a href=(url(&format!("/e/{id}/"))) { (front) } " " small { "on the front" }
            }
        }
        td.progress data-label="Trials" {
            span.number {
                (summary.ended) @if let Some(most) = summary.max_trial_number { small { " of " (most) } }
                @if summary.failed > 0 { " " small.bad { (summary.failed) " failed" } }
            }
            @if let Some(most) = summary.max_trial_number {
                progress value=(summary.ended) max=(most) aria-label={ "trials of " (id) " that have ended" } {}
            }
        }
        td.owner data-label="Owner" { (summary.owner.as_deref().map(display::sanitize).unwrap_or_default()) }
        td data-label="Platform" { (summary.platform) }
        td data-label="Started" { @if summary.created_at_ms > 0 { (time(summary.created_at_ms, now_ms)) } }
        td.note { a href=(url(&format!("/about/{id}"))) { @if first.is_empty() { "Notes" } @else { (display::sanitize(&first)) } } }
    }
}
