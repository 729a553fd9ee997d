//! The list of a home's experiments, as a page and as JSON, with the search, the filters and the order of the
//! request.

use std::cmp::Ordering;

use axum::Json;
use axum::extract::{RawQuery, State};
use axum::response::Response;
use maud::{Markup, html};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::super::access::auth::User;
use super::super::portal::base::url;
use super::super::user::download::{FileFormat, FileQuery, attachment};
use super::super::portal::{PageRefusal, Viewer, display, page as render_page, time};
use super::super::user::{CheckedQuery, SortOrder, deserialize_filled};
use super::super::{Error, percent};
use super::Home;
use super::catalog::CatalogEntry;
use crate::view::export::csv_lines;
use crate::view::{self, ExperimentSummary};

/// The number of experiments per page.
const PAGE_ROWS: usize = 200;

/// The states of the filter, and their names.
const STATE_FILTERS: [(&str, &str); 5] = [
    ("running", "running"),
    ("interrupted", "interrupted"),
    ("done", "done"),
    ("stopped", "stopped"),
    ("failed", "failed or unreadable"),
];

/// The columns of the exported list.
const CSV_COLUMNS: [&str; 18] = [
    "id",
    "name",
    "state",
    "metric",
    "optimize_mode",
    "best",
    "best_trial",
    "trials",
    "ended",
    "failed",
    "max_trial_number",
    "owner",
    "platform",
    "tags",
    "created_at_ms",
    "ended_at_ms",
    "archived",
    "notes",
];

/// The filters, the order and the page of the list.
#[derive(Debug, Clone, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(in crate::api) struct ExperimentQuery {
    /// Only experiments whose id, name, owner, platform, tags or notes contain this text.
    q: Option<String>,
    /// Only experiments in this state: `running`, `interrupted`, `done`, `stopped` or `failed`.
    state: Option<String>,
    /// Only experiments of this owner.
    owner: Option<String>,
    /// Only experiments with this tag.
    tag: Option<String>,
    /// `true`: only archived experiments, which the list otherwise omits.
    archived: Option<bool>,
    /// `created` (default), `name`, `state`, `best`, `progress`, `owner` or `platform`.
    sort: Option<String>,
    /// `asc` or `desc`. By default, the newest and the largest come first, and names are in alphabetical order.
    #[serde(default, deserialize_with = "deserialize_filled")]
    #[param(value_type = Option<String>)]
    order: Option<SortOrder>,
    /// The number of the page, from 1. A page has 200 experiments.
    page: Option<usize>,
}

/// An experiment in a home's list.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::api) struct ListedExperiment {
    #[serde(flatten)]
    summary: ExperimentSummary,
    /// `running`, `interrupted`, `done`, `stopped` or `failed`.
    standing: &'static str,
    /// The path of the experiment's pages. Its API is below `api/v1` of this path.
    path: String,
    /// `true` if the experiment is archived.
    archived: bool,
    /// The notes about the experiment, in Markdown.
    notes: String,
}

/// A page of a home's experiments.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::api) struct ExperimentPage {
    /// The experiments on this page.
    experiments: Vec<ListedExperiment>,
    /// The number of experiments on all pages together.
    total: usize,
    /// The number of pages.
    pages: usize,
}

/// Returns the state of an experiment in one word.
pub(super) fn standing(entry: &CatalogEntry) -> &'static str {
    match entry.summary.state.as_str() {
        "DONE" => "done",
        "STOPPED" => "stopped",
        "ERROR" | "UNREADABLE" => "failed",
        view::INTERRUPTED => "interrupted",
        _ => "running",
    }
}

/// Returns the best result of an experiment, for sorting.
fn best_value(entry: &CatalogEntry) -> Option<f64> {
    entry.summary.best.as_ref().map(|best| best.value)
}

/// Returns the share of the trials that have ended, from 0 to 1.
fn ended_share(entry: &CatalogEntry) -> Option<f64> {
    let most = entry.summary.max_trial_number.filter(|most| *most > 0)?;
    let number = |count: u64| count.to_string().parse::<f64>().unwrap_or(0.0);
    let ended = u64::try_from(entry.summary.ended).unwrap_or(u64::MAX);
    Some((number(ended) / number(most)).min(1.0))
}

/// Returns the displayed name of an experiment.
pub(super) fn display_name(summary: &ExperimentSummary) -> &str {
    summary.name.as_deref().unwrap_or(&summary.id)
}

impl ExperimentQuery {
    fn trimmed(value: Option<&String>) -> Option<&str> {
        value.map(|text| text.trim()).filter(|text| !text.is_empty())
    }

    fn matches(&self, entry: &CatalogEntry) -> bool {
        let summary = &entry.summary;
        let is = |wanted: Option<&str>, value: &str| wanted.is_none_or(|wanted| wanted == value);
        let text = Self::trimmed(self.q.as_ref()).map(str::to_lowercase);
        let holds = |text: &String| {
            let own = [&summary.id, &summary.platform, &entry.annotation.notes];
            let own =
                own.into_iter().chain(&summary.name).chain(&summary.owner).chain(entry.tags());
            own.into_iter().any(|value| value.to_lowercase().contains(text))
        };
        entry.annotation.archived == self.archived.unwrap_or(false)
            && is(Self::trimmed(self.state.as_ref()), standing(entry))
            && is(Self::trimmed(self.owner.as_ref()), summary.owner.as_deref().unwrap_or_default())
            && Self::trimmed(self.tag.as_ref())
                .is_none_or(|tag| entry.tags().iter().any(|known| known == tag))
            && text.as_ref().is_none_or(holds)
    }

    fn order(&self, one: &CatalogEntry, other: &CatalogEntry) -> Result<Ordering, String> {
        let (a, b) = (&one.summary, &other.summary);
        let numbers = |a: Option<f64>, b: Option<f64>| match (a, b) {
            (Some(a), Some(b)) => b.total_cmp(&a),
            (a, b) => b.is_some().cmp(&a.is_some()),
        };
        let named = self.sort.as_deref().filter(|sort| !sort.is_empty()).unwrap_or("created");
        let natural = match named {
            "created" => b.created_at_ms.cmp(&a.created_at_ms),
            "name" => display_name(a).to_lowercase().cmp(&display_name(b).to_lowercase()),
            "state" => standing(one).cmp(standing(other)),
            "best" => numbers(best_value(one), best_value(other)),
            "progress" => numbers(ended_share(one), ended_share(other)),
            "owner" => a.owner.cmp(&b.owner),
            "platform" => a.platform.cmp(&b.platform),
            other => {
                return Err(format!(
                    "sort must be created, name, state, best, progress, owner or platform, not {other:?}"
                ));
            }
        };
        let falls = matches!(named, "created" | "best" | "progress");
        let natural = match self.order {
            Some(SortOrder::Ascending) if falls => natural.reverse(),
            Some(SortOrder::Descending) if !falls => natural.reverse(),
            Some(SortOrder::Ascending | SortOrder::Descending) | None => natural,
        };
        Ok(natural.then_with(|| a.id.cmp(&b.id)))
    }

    /// Returns the entries that match the query, in its order.
    fn select(&self, entries: Vec<CatalogEntry>) -> Result<Vec<CatalogEntry>, Error> {
        let mut chosen: Vec<_> = entries.into_iter().filter(|entry| self.matches(entry)).collect();
        let mut fault = None;
        chosen.sort_by(|one, other| {
            self.order(one, other).unwrap_or_else(|problem| {
                fault = Some(problem);
                Ordering::Equal
            })
        });
        match fault {
            Some(problem) => Err(Error::BadRequest(problem)),
            None => Ok(chosen),
        }
    }

    /// Returns the list's address with changed parameters. Without `page`, the link leads to the first page.
    fn link(&self, other: &[(&str, &str)]) -> String {
        self.address("/", other)
    }

    /// Returns the address of a route with the parameters of this list, some of them changed.
    fn address(&self, path: &str, other: &[(&str, &str)]) -> String {
        let archived = self.archived.map(|archived| archived.to_string());
        let own = [
            ("q", self.q.as_deref()),
            ("state", self.state.as_deref()),
            ("owner", self.owner.as_deref()),
            ("tag", self.tag.as_deref()),
            ("archived", archived.as_deref()),
            ("sort", self.sort.as_deref()),
            ("order", self.order.map(SortOrder::as_str)),
        ];
        let kept = own.into_iter().filter(|(name, _)| other.iter().all(|(given, _)| given != name));
        let kept = kept.filter_map(|(name, value)| Some((name, value?)));
        let pairs = kept.chain(other.iter().copied()).filter(|(_, value)| !value.is_empty());
        let pairs: Vec<_> =
            pairs.map(|(name, value)| format!("{name}={}", percent::encode(value))).collect();
        let query = if pairs.is_empty() { String::new() } else { format!("?{}", pairs.join("&")) };
        url(&format!("{path}{query}"))
    }
}

fn to_listed(entry: CatalogEntry) -> ListedExperiment {
    ListedExperiment {
        standing: standing(&entry),
        path: url(&format!("/e/{}/", entry.summary.id)),
        archived: entry.annotation.archived,
        notes: entry.annotation.notes.clone(),
        summary: ExperimentSummary { tags: entry.tags().to_vec(), ..entry.summary },
    }
}

/// Returns the experiments of a data directory, searched, filtered and sorted, one page at a time
///
/// Only a home has this route: `trial-manager serve` without an id. The API of an experiment is below its `path`.
#[utoipa::path(
    get, path = "/api/v1/experiments", tag = "home", params(ExperimentQuery),
    responses((status = 200, body = ExperimentPage)),
)]
pub(in crate::api) async fn experiments(
    _: User,
    State(home): State<Home>,
    CheckedQuery(query): CheckedQuery<ExperimentQuery>,
) -> Result<Json<ExperimentPage>, Error> {
    let chosen = query.select(home.0.catalog.refresh(&home).await)?;
    let (total, pages) = (chosen.len(), chosen.len().div_ceil(PAGE_ROWS).max(1));
    let from = query.page.unwrap_or(1).clamp(1, pages) - 1;
    let listed = chosen.into_iter().skip(from * PAGE_ROWS).take(PAGE_ROWS).map(to_listed);
    Ok(Json(ExperimentPage { experiments: listed.collect(), total, pages }))
}

/// Returns a data directory's experiments as a file, on all pages of the list
///
/// Only a home has this route. `sort`, `order` and the filters work as in the list.
#[utoipa::path(
    get, path = "/api/v1/experiments/export", tag = "home",
    params(ExperimentQuery, ("format" = Option<String>, Query, description = "`csv` (default) or `json`")),
    responses((status = 200, body = String, content_type = "text/csv"), (status = 400, description = "unknown format")),
)]
pub(in crate::api) async fn export(
    _: User,
    State(home): State<Home>,
    RawQuery(query): RawQuery,
) -> Result<Response, Error> {
    let FileQuery { format, list: query, .. } =
        FileQuery::<ExperimentQuery>::read(&query.unwrap_or_default(), "")?;
    let chosen = query.select(home.0.catalog.refresh(&home).await)?;
    let listed: Vec<_> = chosen.into_iter().map(to_listed).collect();
    let text = match format {
        FileFormat::Csv => csv_lines(&CSV_COLUMNS, listed.iter().map(csv_fields)),
        FileFormat::Json => serde_json::to_string_pretty(&listed).unwrap_or_default(),
    };
    Ok(attachment("experiments", format, text))
}

/// Returns the fields of an experiment, in the order of [`CSV_COLUMNS`].
fn csv_fields(experiment: &ListedExperiment) -> [String; CSV_COLUMNS.len()] {
    let ListedExperiment { summary, standing, archived, notes, .. } = experiment;
    let text = |text: Option<&str>| text.unwrap_or_default().to_owned();
    let best = summary.best.as_ref();
    let most = summary.max_trial_number.map(|most| most.to_string());
    let created_at_ms = Some(summary.created_at_ms).filter(|at_ms| *at_ms > 0);
    [
        summary.id.clone(),
        text(summary.name.as_deref()),
        (*standing).to_owned(),
        text(summary.metric.as_deref()),
        summary.optimize_mode.clone(),
        best.map(|best| best.value.to_string()).unwrap_or_default(),
        text(best.map(|best| best.id.as_str())),
        summary.trials.to_string(),
        summary.ended.to_string(),
        summary.failed.to_string(),
        most.unwrap_or_default(),
        text(summary.owner.as_deref()),
        summary.platform.clone(),
        summary.tags.join(" "),
        created_at_ms.map(|at_ms| at_ms.to_string()).unwrap_or_default(),
        summary.ended_at_ms.map(|at_ms| at_ms.to_string()).unwrap_or_default(),
        archived.to_string(),
        notes.clone(),
    ]
}

/// `GET /`: shows the list of experiments.
pub(super) async fn page(
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
fn state_badge(entry: &CatalogEntry) -> (&'static str, &'static str) {
    let summary = &entry.summary;
    let has_result = summary.best.is_some() || summary.front.is_some_and(|front| front > 0);
    match standing(entry) {
        "running" => ("RUNNING", "running"),
        "interrupted" => (view::INTERRUPTED, "interrupted"),
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

#[cfg(test)]
mod tests {
    use super::super::catalog::Annotation;
    use super::*;

    fn entry(id: &str, state: &str, owner: &str, best: Option<f64>) -> CatalogEntry {
        let best =
            best.map(|value| crate::view::BestTrial { id: "t".to_owned(), sequence: 0, value });
        let summary = ExperimentSummary {
            state: state.to_owned(),
            owner: Some(owner.to_owned()),
            tags: vec!["vision".to_owned()],
            best,
            ..ExperimentSummary::unreadable(id, String::new())
        };
        CatalogEntry { summary, is_running: id == "c", annotation: Annotation::default() }
    }

    fn selected_ids(query: &ExperimentQuery) -> Vec<String> {
        let entries = vec![
            entry("a", "DONE", "ann", Some(0.5)),
            entry("b", view::INTERRUPTED, "bob", None),
            entry("c", "RUNNING", "ann", Some(0.7)),
        ];
        query.select(entries).unwrap().into_iter().map(|entry| entry.summary.id).collect()
    }

    #[test]
    fn experiments_are_filtered_and_sorted_by_the_query() {
        let text = |text: &str| Some(text.to_owned());
        let all = ExperimentQuery::default;
        assert_eq!(selected_ids(&ExperimentQuery { owner: text("ann"), ..all() }), ["a", "c"]);
        assert_eq!(selected_ids(&ExperimentQuery { state: text("running"), ..all() }), ["c"]);
        assert_eq!(selected_ids(&ExperimentQuery { state: text("interrupted"), ..all() }), ["b"]);
        assert_eq!(selected_ids(&ExperimentQuery { q: text("BOB"), ..all() }), ["b"]);
        assert_eq!(selected_ids(&ExperimentQuery { tag: text("vision"), ..all() }).len(), 3);
        assert_eq!(selected_ids(&ExperimentQuery { archived: Some(true), ..all() }).len(), 0);
        assert_eq!(selected_ids(&ExperimentQuery { sort: text("best"), ..all() }), ["c", "a", "b"]);
        let other =
            ExperimentQuery { sort: text("best"), order: Some(SortOrder::Ascending), ..all() };
        assert_eq!(selected_ids(&other)[..], ["b", "a", "c"]);
        let wrong = ExperimentQuery { sort: text("size"), ..all() };
        assert!(wrong.select(vec![entry("a", "", "", None), entry("b", "", "", None)]).is_err());
    }

    #[test]
    fn a_search_without_a_result_and_a_troubled_stop_look_different() {
        let failed = |best: Option<f64>, failed: usize, front: Option<usize>| {
            let one = entry("a", "DONE", "ann", best);
            CatalogEntry { summary: ExperimentSummary { front, failed, ..one.summary }, ..one }
        };
        let stopped = |trouble: Option<&str>| {
            let one = entry("a", "STOPPED", "ann", None);
            let trouble = trouble.map(str::to_owned);
            CatalogEntry { summary: ExperimentSummary { trouble, ..one.summary }, ..one }
        };
        #[rustfmt::skip]
        let table = [
            (failed(Some(0.5), 1, None),       ("DONE", "done")),
            (failed(None, 0, None),            ("DONE", "done")),
            (failed(None, 3, Some(2)),         ("DONE", "done")),
            (failed(None, 3, None),            ("FAILED", "done, no result")),
            (failed(None, 3, Some(0)),         ("FAILED", "done, no result")),
            (stopped(None),                    ("STOPPED", "stopped")),
            (stopped(Some("3 trials failed")), ("STOPPING", "stopped")),
        ];
        for (entry, expected) in table {
            assert_eq!(state_badge(&entry), expected, "{:?}", entry.summary);
        }
    }

    #[test]
    fn links_keep_the_query() {
        let query = ExperimentQuery { q: Some("a b".to_owned()), ..ExperimentQuery::default() };
        assert_eq!(query.link(&[("sort", "name"), ("order", "")]), "/?q=a%20b&sort=name");
        assert_eq!(ExperimentQuery::default().link(&[]), "/");
    }
}
