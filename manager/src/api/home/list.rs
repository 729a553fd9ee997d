//! The list of a home's experiments, as a page and as JSON, with the search, the filters and the order of the
//! request.

mod csv;
mod page;

use std::cmp::Ordering;

use axum::Json;
use axum::extract::{RawQuery, State};
use axum::response::Response;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use self::csv::{CSV_COLUMNS, csv_fields};
pub(super) use self::page::page;
use super::super::access::auth::User;
use super::super::portal::base::url;
use super::super::user::download::{FileFormat, FileQuery, attachment};
use super::super::user::{CheckedQuery, SortOrder, deserialize_filled};
use super::super::{Error, percent};
use super::Home;
use super::catalog::CatalogEntry;
use crate::view::export::csv_lines;
use crate::view::{self, ExperimentSummary};

/// The number of experiments per page.
const PAGE_ROWS: usize = 200;

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
        view::INTERRUPTED_STATE => "interrupted",
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

#[cfg(test)]
mod tests {
    use super::super::catalog::Annotation;
    use super::page::state_badge;
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
            entry("b", view::INTERRUPTED_STATE, "bob", None),
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
