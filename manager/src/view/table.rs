//! PURE: trials filtered, sorted and divided into pages. A cursor contains the sort key of the last row of a page. So
//! rows that appear or disappear meanwhile neither repeat nor hide other rows.

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
use super::filter::{self, Filter, FilterError, TRIAL_FIELDS};
use crate::job_state::JobState;
use crate::util::nearest::suggest_names;

/// A column to sort by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Column {
    /// The position in the experiment.
    Sequence,
    /// The id.
    Id,
    /// The state.
    State,
    /// The final result, as a number.
    Final,
    /// The latest intermediate result, as a number.
    Latest,
    /// The time at which the trial started to run.
    Started,
    /// The time at which the trial ended.
    Ended,
    /// The run time.
    Duration,
    /// The value of a parameter.
    Parameter(String),
    /// The value of a metric: the final one, or else the latest.
    Metric(String),
    /// The value of a parameter or, if there is none of that name, of a metric.
    ParameterOrMetric(String),
}

impl Column {
    /// The names of columns other than parameters and metrics.
    pub const NAMES: [&str; 8] =
        ["sequence", "id", "state", "final", "latest", "started", "ended", "duration"];
    /// The names of columns, for messages. The text after the full stop is the name of a parameter or metric.
    pub const WORDS: &str = "sequence, id, state, final, latest, started, ended, duration, \
                             parameters.NAME or metrics.NAME";

    /// Returns the column with this name. A name without `parameters.` or `metrics.` may be that of a parameter or a
    /// metric.
    pub fn of_word(word: &str) -> Self {
        Self::parse(word).unwrap_or_else(|| Self::ParameterOrMetric(word.to_owned()))
    }

    /// Returns the column with this complete name.
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
            _ => match word.strip_prefix("metrics.") {
                Some(metric) => Self::Metric(metric.to_owned()),
                None => Self::Parameter(word.strip_prefix("parameters.")?.to_owned()),
            },
        })
    }
}

/// The filters and the order of the trials.
#[derive(Debug, Clone, PartialEq)]
pub struct TableQuery {
    /// Only trials in these states. Empty means all.
    pub states: Vec<JobState>,
    /// Only trials whose verdict has this cause; [`UNKNOWN_CAUSE`] means trials without a verdict. `None` means all.
    pub cause: Option<String>,
    /// Only trials whose id, parameters, message or cause contain this text, in any case. `None` means all.
    pub text: Option<String>,
    /// Only trials that match the expression. `None` means all.
    pub filter: Option<Filter>,
    /// The column by which the trials are sorted.
    pub by: Column,
    /// `true` if the largest value is first.
    pub descending: bool,
}

/// The key by which a row is sorted. Rows without a value are at the end in either direction.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
enum SortKey {
    Number(f64),
    Text(String),
    Missing(()),
}

/// The position of a row: its sort key, and its position in the experiment.
#[derive(Debug, Serialize, Deserialize)]
struct PageStart(SortKey, u64);

/// The last row of a page, and the time of the first page. All pages use this time for the durations of running
/// trials; otherwise rows would change their order between two pages.
#[derive(Debug, Serialize, Deserialize)]
struct Cursor(PageStart, i64);

/// A name that does not exist.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QueryError {
    /// A text that is not a cursor of this API.
    #[error("the cursor does not belong to this list")]
    Cursor,
    /// A parameter that no trial has, and the existing ones.
    #[error("sort: no trial has a parameter {0:?}; the parameters are {1}")]
    Parameter(String, String),
    /// A metric that no trial has, and the existing ones.
    #[error("sort: no trial has a metric {0:?}; the metrics are {1}")]
    Metric(String, String),
    /// A name that is no column, no parameter and no metric.
    #[error("sort is {0:?}; expected {words}", words = Column::WORDS)]
    Column(String),
    /// A cause that no trial has and no agent reports, and the existing ones.
    #[error("cause: no trial has the cause {0:?}; the causes are {1}")]
    Cause(String, String),
    /// A name in the expression that no trial has.
    #[error("filter: {0}")]
    Filter(FilterError),
}

/// A page of trials.
#[derive(Debug)]
pub struct Page<'a> {
    /// The trials on this page.
    pub rows: Vec<&'a TrialSummary>,
    /// The number of trials on all pages together.
    pub total: usize,
    /// The position of the page's first trial among all trials of the list, from 0.
    pub first: usize,
    /// The cursor of the next page. `None` if this is the last page.
    pub next: Option<String>,
}

/// Returns the page of at most `limit` trials after `cursor`.
pub fn page<'a>(
    trials: &'a [Arc<TrialSummary>],
    wanted: &TableQuery,
    cursor: Option<&str>,
    limit: usize,
    now_ms: i64,
) -> Result<Page<'a>, QueryError> {
    check_names(trials, wanted)?;
    let after = cursor.map(read_cursor).transpose()?;
    let (after, now_ms) = after.map_or((None, now_ms), |Cursor(place, at)| (Some(place), at));
    let text = wanted.text.as_ref().map(|text| text.to_lowercase());
    let mut rows: Vec<(PageStart, &TrialSummary)> = trials
        .iter()
        .filter(|trial| wanted.states.is_empty() || wanted.states.contains(&trial.state))
        .filter(|trial| wanted.cause.as_ref().is_none_or(|cause| cause == cause_of(trial)))
        .filter(|trial| wanted.filter.as_ref().is_none_or(|filter| filter.matches(trial, now_ms)))
        .filter(|trial| text.as_ref().is_none_or(|text| has_text(trial, text)))
        .map(|trial| {
            (PageStart(sort_key(trial, &wanted.by, now_ms), trial.sequence), trial.as_ref())
        })
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

/// Checks that the filter and the order use existing columns. Without trials, all names are accepted.
fn check_names(trials: &[Arc<TrialSummary>], wanted: &TableQuery) -> Result<(), QueryError> {
    let words = |all: BTreeSet<String>| Vec::from_iter(all).join(", ");
    check_order(trials, &wanted.by)?;
    if let Some(filter) = wanted.filter.as_ref().filter(|_| !trials.is_empty()) {
        check_filter_names(trials, filter)?;
    }
    let Some(cause) = wanted.cause.as_deref().filter(|cause| *cause != UNKNOWN_CAUSE) else {
        return Ok(());
    };
    let named = serde_json::from_value(Value::from(cause)).unwrap_or(Cause::Other) != Cause::Other;
    if named || trials.is_empty() || trials.iter().any(|trial| cause_of(trial) == cause) {
        return Ok(());
    }
    let all = trials.iter().map(|trial| cause_of(trial).to_owned()).collect();
    Err(QueryError::Cause(cause.to_owned(), words(all)))
}

/// Checks that a trial has the parameter or the metric of the order.
fn check_order(trials: &[Arc<TrialSummary>], by: &Column) -> Result<(), QueryError> {
    let words = |all: BTreeSet<&str>| Vec::from_iter(all).join(", ");
    let has_parameter = |name: &str| trials.iter().any(|trial| parameter(trial, name).is_some());
    let has_metric = |name: &str| trials.iter().any(|trial| filter::metric(trial, name).is_some());
    match by {
        _ if trials.is_empty() => Ok(()),
        Column::Parameter(name) if !has_parameter(name) => {
            let all: Vec<_> = trials
                .iter()
                .flat_map(|trial| super::flatten_parameters(&trial.parameters))
                .collect();
            let names = all.iter().map(|(name, _)| name.as_str()).collect();
            Err(QueryError::Parameter(name.clone(), words(names)))
        }
        Column::Metric(name) if !has_metric(name) => {
            let names = trials.iter().flat_map(|trial| trial.metrics.keys());
            Err(QueryError::Metric(name.clone(), words(names.map(String::as_str).collect())))
        }
        Column::ParameterOrMetric(name) if !has_parameter(name) && !has_metric(name) => {
            Err(QueryError::Column(name.clone()))
        }
        Column::Sequence
        | Column::Id
        | Column::State
        | Column::Final
        | Column::Latest
        | Column::Started
        | Column::Ended
        | Column::Duration
        | Column::Parameter(_)
        | Column::Metric(_)
        | Column::ParameterOrMetric(_) => Ok(()),
    }
}

/// Checks that each name of an expression is a parameter or a metric of a trial.
fn check_filter_names(trials: &[Arc<TrialSummary>], filter: &Filter) -> Result<(), QueryError> {
    let unknown = filter.names();
    if unknown.is_empty() {
        return Ok(());
    }
    let mut all: BTreeSet<String> = BTreeSet::new();
    for trial in trials {
        all.extend(super::flatten_parameters(&trial.parameters).into_iter().map(|(name, _)| name));
        all.extend(trial.metric.clone());
        all.extend(trial.metrics.keys().cloned());
    }
    let is_known = |name: &str| {
        let own = name.strip_prefix("parameters.").or_else(|| name.strip_prefix("metrics."));
        all.contains(name) || own.is_some_and(|own| all.contains(own))
    };
    match unknown.into_iter().find(|(name, _)| !is_known(name)) {
        None => Ok(()),
        Some((name, position)) => {
            let names = all.iter().map(String::as_str).chain(TRIAL_FIELDS);
            let problem = format!("no trial has {name:?}; {}", suggest_names(name, names));
            Err(QueryError::Filter(FilterError { position, problem }))
        }
    }
}

/// Returns the cause of a trial's end, for counting and filtering.
pub(super) fn cause_of(trial: &TrialSummary) -> &str {
    trial.cause.as_deref().unwrap_or(UNKNOWN_CAUSE)
}

fn has_text(trial: &TrialSummary, text: &str) -> bool {
    let holds = |said: &str| said.to_lowercase().contains(text);
    holds(&trial.id)
        || trial.message.as_deref().is_some_and(holds)
        || trial.cause.as_deref().is_some_and(holds)
        || holds(&trial.parameters.to_string())
}

fn sort_key(trial: &TrialSummary, by: &Column, now_ms: i64) -> SortKey {
    // Times and positions are far below 2^53.
    let number = |value: i64| SortKey::Number(value.to_string().parse().unwrap_or(f64::NAN));
    let time = |value: Option<i64>| value.map_or(SortKey::Missing(()), number);
    match by {
        Column::Sequence => number(i64::try_from(trial.sequence).unwrap_or(i64::MAX)),
        Column::Id => SortKey::Text(trial.id.clone()),
        Column::State => SortKey::Text(trial.state.as_str().to_owned()),
        Column::Final => metric_key(trial.final_value.as_ref()),
        Column::Latest => metric_key(trial.latest.as_ref()),
        Column::Started => time(trial.started_at_ms),
        Column::Ended => time(trial.ended_at_ms),
        // Computed as of `now_ms`, even if the trial has ended since.
        Column::Duration => {
            let until = trial.ended_at_ms.map_or(now_ms, |ended| ended.min(now_ms));
            time(trial.started_at_ms.map(|begun| until.saturating_sub(begun).max(0)))
        }
        Column::Parameter(name) => {
            parameter(trial, name).map_or(SortKey::Missing(()), parameter_key)
        }
        Column::Metric(name) => metric_key(filter::metric(trial, name)),
        Column::ParameterOrMetric(name) => match parameter(trial, name) {
            Some(value) => parameter_key(value),
            None => metric_key(filter::metric(trial, name)),
        },
    }
}

/// Returns the value of a parameter.
fn parameter<'a>(trial: &'a TrialSummary, name: &str) -> Option<&'a Value> {
    let flat = super::flatten_parameters(&trial.parameters);
    flat.into_iter().find(|(known, _)| known == name).map(|(_, value)| value)
}

/// Returns the key of a parameter's value.
fn parameter_key(value: &Value) -> SortKey {
    match value {
        Value::Number(number) => number.as_f64().map_or(SortKey::Missing(()), SortKey::Number),
        Value::String(text) => SortKey::Text(text.clone()),
        Value::Null => SortKey::Missing(()),
        Value::Bool(_) | Value::Array(_) | Value::Object(_) => SortKey::Text(value.to_string()),
    }
}

fn metric_key(value: Option<&Value>) -> SortKey {
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

fn read_cursor(text: &str) -> Result<Cursor, QueryError> {
    let bytes = BASE64_URL_SAFE_NO_PAD.decode(text).map_err(|_| QueryError::Cursor)?;
    serde_json::from_slice(&bytes).map_err(|_| QueryError::Cursor)
}

#[cfg(test)]
mod tests;
