//! PURE: trials filtered, sorted and cut into pages. A cursor names the last row that was shown by its sorting key. So
//! rows that come and go meanwhile neither repeat nor hide others.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use trial_protocol::Cause;

use super::TrialSummary;
use super::UNKNOWN_CAUSE;
use super::filter::{FIELDS, Filter, FilterError};
use crate::job_state::JobState;
use crate::util::nearest::advice;

/// A column to sort by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Column {
    /// Position in the experiment.
    Sequence,
    /// Id.
    Id,
    /// State.
    State,
    /// Final result, as a number.
    Final,
    /// Latest intermediate result, as a number.
    Latest,
    /// When it began to run.
    Started,
    /// When it ended.
    Ended,
    /// The time that it ran.
    Duration,
    /// A parameter's value.
    Parameter(String),
}

impl Column {
    /// The names of columns, parameters aside.
    pub const NAMES: [&str; 8] =
        ["sequence", "id", "state", "final", "latest", "started", "ended", "duration"];
    /// The words for columns; anything after `parameters.` is a parameter's name.
    pub const WORDS: &str = "sequence, id, state, final, latest, started, ended, duration or \
                             parameters.NAME";

    /// The column of that word.
    pub fn parse(word: &str) -> Option<Self> {
        Some(match word {
            "sequence" => Self::Sequence,
            "id" => Self::Id,
            "state" => Self::State,
            "final" => Self::Final,
            "latest" => Self::Latest,
            "started" => Self::Started,
            "ended" => Self::Ended,
            "duration" => Self::Duration,
            _ => Self::Parameter(word.strip_prefix("parameters.")?.to_owned()),
        })
    }
}

/// Which trials are wanted, and in which order.
#[derive(Debug, Clone, PartialEq)]
pub struct TableQuery {
    /// Only these states; empty: all.
    pub states: Vec<JobState>,
    /// Only those whose verdict has this cause; [`UNKNOWN_CAUSE`]: those without one. `None`: all.
    pub cause: Option<String>,
    /// Only trials whose id, parameters, message or cause hold this text, in any case. `None`: all.
    pub text: Option<String>,
    /// Only those that the expression chooses. `None`: all.
    pub filter: Option<Filter>,
    /// Sorted by.
    pub by: Column,
    /// The largest first.
    pub descending: bool,
}

/// The key by which a row is sorted. Rows without a value come last in either direction.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
enum SortKey {
    Number(f64),
    Text(String),
    Missing(()),
}

/// Where a row stands: by what it is sorted, and by its position in the experiment.
#[derive(Debug, Serialize, Deserialize)]
struct PageStart(SortKey, u64);

/// The last row of a page, and when the first page was made. All pages tell how long a trial has run so far as of that
/// time; else rows would pass one another between two pages.
#[derive(Debug, Serialize, Deserialize)]
struct Cursor(PageStart, i64);

/// A name that cannot be meant.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unknown {
    /// A text that is no cursor of this API.
    #[error("the cursor is not one that this list gave")]
    Cursor,
    /// A parameter that no trial has, and those that some have.
    #[error("sort: no trial has a parameter {0:?}; there are {1}")]
    Parameter(String, String),
    /// A cause that no trial has and no agent names, and those that some have.
    #[error("cause: no trial has {0:?}; there are {1}")]
    Cause(String, String),
    /// A name in the expression that no trial has.
    #[error("filter: {0}")]
    Filter(FilterError),
}

/// One page.
#[derive(Debug)]
pub struct Page<'a> {
    /// The trials on it.
    pub rows: Vec<&'a TrialSummary>,
    /// Trials on all pages together.
    pub total: usize,
    /// The position of the first trial of this page among them, from 0.
    pub first: usize,
    /// The next page's cursor. `None`: this is the last.
    pub next: Option<String>,
}

/// The page of at most `limit` trials after `cursor`.
pub fn page<'a>(
    trials: &'a [Arc<TrialSummary>],
    wanted: &TableQuery,
    cursor: Option<&str>,
    limit: usize,
    now_ms: i64,
) -> Result<Page<'a>, Unknown> {
    known(trials, wanted)?;
    let after = cursor.map(read_cursor).transpose()?;
    let (after, now_ms) = after.map_or((None, now_ms), |Cursor(place, at)| (Some(place), at));
    let text = wanted.text.as_ref().map(|text| text.to_lowercase());
    let mut rows: Vec<(PageStart, &TrialSummary)> = trials
        .iter()
        .filter(|trial| wanted.states.is_empty() || wanted.states.contains(&trial.state))
        .filter(|trial| wanted.cause.as_ref().is_none_or(|cause| cause == cause_of(trial)))
        .filter(|trial| wanted.filter.as_ref().is_none_or(|filter| filter.matches(trial, now_ms)))
        .filter(|trial| text.as_ref().is_none_or(|text| mentions(trial, text)))
        .map(|trial| (PageStart(key(trial, &wanted.by, now_ms), trial.sequence), trial.as_ref()))
        .collect();
    let order = |a: &PageStart, b: &PageStart| compare(a, b, wanted.descending);
    rows.sort_by(|(a, _), (b, _)| order(a, b));
    let total = rows.len();
    let from =
        after.map_or(0, |after| rows.partition_point(|(place, _)| order(place, &after).is_le()));
    let more = rows.len() > from.saturating_add(limit);
    rows.truncate(from.saturating_add(limit));
    let rows = rows.split_off(from.min(rows.len()));
    let next = rows.last().filter(|_| more).map(|(place, _)| write_cursor(place, now_ms));
    Ok(Page { rows: rows.into_iter().map(|(_, trial)| trial).collect(), total, first: from, next })
}

/// Checks that the filter and the order name columns that can be meant. Nothing is known where there is no trial yet.
fn known(trials: &[Arc<TrialSummary>], wanted: &TableQuery) -> Result<(), Unknown> {
    let words = |all: BTreeSet<String>| Vec::from_iter(all).join(", ");
    if let Column::Parameter(name) = &wanted.by {
        let names = |trial: &TrialSummary| -> Vec<String> {
            super::flat(&trial.parameters).into_iter().map(|(name, _)| name).collect()
        };
        if !trials.is_empty() && !trials.iter().any(|trial| names(trial).contains(name)) {
            let all = trials.iter().flat_map(|trial| names(trial)).collect();
            return Err(Unknown::Parameter(name.clone(), words(all)));
        }
    }
    if let Some(filter) = wanted.filter.as_ref().filter(|_| !trials.is_empty()) {
        known_names(trials, filter)?;
    }
    let Some(cause) = wanted.cause.as_deref().filter(|cause| *cause != UNKNOWN_CAUSE) else {
        return Ok(());
    };
    let named = serde_json::from_value(Value::from(cause)).unwrap_or(Cause::Other) != Cause::Other;
    if named || trials.is_empty() || trials.iter().any(|trial| cause_of(trial) == cause) {
        return Ok(());
    }
    let all = trials.iter().map(|trial| cause_of(trial).to_owned()).collect();
    Err(Unknown::Cause(cause.to_owned(), words(all)))
}

/// Checks that each name of an expression is a parameter's or a metric's of some trial.
fn known_names(trials: &[Arc<TrialSummary>], filter: &Filter) -> Result<(), Unknown> {
    let unknown = filter.names();
    if unknown.is_empty() {
        return Ok(());
    }
    let mut all: BTreeSet<String> = BTreeSet::new();
    for trial in trials {
        all.extend(super::flat(&trial.parameters).into_iter().map(|(name, _)| name));
        all.extend(trial.metric.clone());
    }
    let is_known = |name: &str| all.contains(name.strip_prefix("parameters.").unwrap_or(name));
    match unknown.into_iter().find(|(name, _)| !is_known(name)) {
        None => Ok(()),
        Some((name, position)) => {
            let names = all.iter().map(String::as_str).chain(FIELDS);
            let problem = format!("no trial has {name:?}; {}", advice(name, names));
            Err(Unknown::Filter(FilterError { position, problem }))
        }
    }
}

/// The cause of a trial's end, for counting and for choosing.
pub(super) fn cause_of(trial: &TrialSummary) -> &str {
    trial.cause.as_deref().unwrap_or(UNKNOWN_CAUSE)
}

fn mentions(trial: &TrialSummary, text: &str) -> bool {
    let holds = |said: &str| said.to_lowercase().contains(text);
    holds(&trial.id)
        || trial.message.as_deref().is_some_and(holds)
        || trial.cause.as_deref().is_some_and(holds)
        || holds(&trial.parameters.to_string())
}

fn key(trial: &TrialSummary, by: &Column, now_ms: i64) -> SortKey {
    // Times and positions are far below 2^53.
    let number = |value: i64| SortKey::Number(value.to_string().parse().unwrap_or(f64::NAN));
    let time = |value: Option<i64>| value.map_or(SortKey::Missing(()), number);
    match by {
        Column::Sequence => number(i64::try_from(trial.sequence).unwrap_or(i64::MAX)),
        Column::Id => SortKey::Text(trial.id.clone()),
        Column::State => SortKey::Text(trial.state.as_str().to_owned()),
        Column::Final => measured(trial.last.as_ref()),
        Column::Latest => measured(trial.latest.as_ref()),
        Column::Started => time(trial.started_at_ms),
        Column::Ended => time(trial.ended_at_ms),
        // As of then: one that has ended since ran on.
        Column::Duration => {
            let until = trial.ended_at_ms.map_or(now_ms, |ended| ended.min(now_ms));
            time(trial.started_at_ms.map(|begun| until.saturating_sub(begun).max(0)))
        }
        Column::Parameter(name) => {
            let flat = super::flat(&trial.parameters);
            match flat.into_iter().find(|(known, _)| known == name) {
                Some((_, Value::Number(number))) => {
                    number.as_f64().map_or(SortKey::Missing(()), SortKey::Number)
                }
                Some((_, Value::String(text))) => SortKey::Text(text.clone()),
                Some((_, Value::Null)) | None => SortKey::Missing(()),
                Some((_, value)) => SortKey::Text(value.to_string()),
            }
        }
    }
}

fn measured(value: Option<&Value>) -> SortKey {
    let number = value.and_then(|value| trial_protocol::MetricValue::from(value.clone()).number());
    // JSON has no infinity, and a cursor is JSON.
    match number.filter(|number| !number.is_nan()) {
        Some(number) => SortKey::Number(number.clamp(f64::MIN, f64::MAX)),
        None => SortKey::Missing(()),
    }
}

fn compare(
    PageStart(a, first): &PageStart,
    PageStart(b, second): &PageStart,
    descending: bool,
) -> Ordering {
    let direct = |order: Ordering| if descending { order.reverse() } else { order };
    let by_key = match (a, b) {
        (SortKey::Missing(()), SortKey::Missing(())) => Ordering::Equal,
        (SortKey::Missing(()), _) => Ordering::Greater,
        (_, SortKey::Missing(())) => Ordering::Less,
        (SortKey::Number(a), SortKey::Number(b)) => direct(a.total_cmp(b)),
        (SortKey::Text(a), SortKey::Text(b)) => direct(a.cmp(b)),
        (SortKey::Number(_), SortKey::Text(_)) => direct(Ordering::Less),
        (SortKey::Text(_), SortKey::Number(_)) => direct(Ordering::Greater),
    };
    by_key.then(direct(first.cmp(second)))
}

fn write_cursor(place: &PageStart, now_ms: i64) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(serde_json::to_vec(&(place, now_ms)).unwrap_or_default())
}

fn read_cursor(text: &str) -> Result<Cursor, Unknown> {
    let bytes = BASE64_URL_SAFE_NO_PAD.decode(text).map_err(|_| Unknown::Cursor)?;
    serde_json::from_slice(&bytes).map_err(|_| Unknown::Cursor)
}

#[cfg(test)]
mod tests;
