//! SQL of what the pages, the API and the command line show: by index, a bounded part at a time. It
//! changes nothing.

mod attempts;
mod log;
#[cfg(test)]
mod tests;

use rusqlite::{Connection, OptionalExtension, Row, params};
use trial_protocol::{AttemptId, Lane, Metric, MetricKind, OBJECTIVE, TrialJobId, Verdict};

use super::gap;
use super::read::{json, parsed, unsigned, unsigned_if_any};
use super::reports::{CONCLUDED, JUDGED, metric_row};
use super::trials::{TRIAL_COLUMNS, known, trial_row};
use super::{Error, MetricRow, ReportRow, Store, TrialRow};
use crate::util::ids;
pub use attempts::{AttemptHost, AttemptStep};
pub use log::{LineTime, LogPart};

/// The number of an attempt's last reports that are searched for its latest intermediate results; and where a metric
/// that counts is named and not among them.
const LATEST: u32 = 16;
const LATEST_NAMED: u32 = 256;

const CHANGES: &str = "SELECT key, trial FROM trial_event WHERE key > ? ORDER BY key LIMIT ?";
const HEARD: &str = "SELECT a.key, a.facts_through FROM trial t \
     JOIN attempt a ON a.trial = t.key AND a.name = t.attempt WHERE t.key = ?";
const OLD_KEEPER: &str = "SELECT a.key, a.facts_through FROM trial t \
     JOIN attempt a ON a.trial = t.key AND a.name = t.attempt || ?2 WHERE t.key = ?1";
const REPORTED: &str = "SELECT 1 FROM report \
     WHERE attempt = ? AND lane = 0 AND seq < ? AND kind = 'metric' LIMIT 1";
const ATTEMPTS: &str = "SELECT key, name, last_heard_ms, facts_through, bulk_through, ended \
     FROM attempt WHERE trial = ? ORDER BY key";
// The planner prefers the primary key of a table without row ids to any other index. It would pass over all metrics of
// an attempt to find the few reports that are none. So the statements name their index.
const SUMS: &str = "SELECT kind, body, seq FROM report INDEXED BY report_that_sums_up \
     WHERE attempt = ? AND lane = 0 AND sums_up = 1 ORDER BY seq";
const LAST_REPORTS: &str =
    "SELECT kind, body FROM report WHERE attempt = ? AND lane = 0 ORDER BY seq DESC LIMIT ?";
const LANE: &str = "SELECT seq, observed_at_ms, stored_at_ms, kind, body FROM report \
     WHERE attempt = ? AND lane = ? AND seq > ? ORDER BY seq LIMIT ?";
const METRICS: &str = "SELECT a.name, r.seq, r.observed_at_ms, r.stored_at_ms, r.body FROM report r \
     JOIN attempt a ON a.key = r.attempt \
     WHERE r.attempt = ? AND r.lane = 0 AND r.seq > ? AND r.kind = 'metric' ORDER BY r.seq LIMIT ?";
// To read a report as JSON costs five times as much as to see that it begins as agents write one of that name.
const STEPS: &str = "SELECT count(*) FROM report \
     WHERE attempt = ?1 AND lane = 0 AND kind = 'metric' AND sums_up = 0 \
     AND (?2 IS NULL OR substr(body, 1, length(?3)) = ?3 \
          OR CASE WHEN json_valid(body) THEN body ->> '$.name' = ?2 END)";
const TIMELINE: &str = "SELECT seq, observed_at_ms, stored_at_ms, kind, body FROM report \
     INDEXED BY report_beside_metrics \
     WHERE attempt = ? AND lane = 0 AND kind <> 'metric' ORDER BY seq LIMIT ?";

/// A step of some trial's life: which trial it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change {
    /// Its number; numbers rise in the order in which the steps were stored, and are never used again.
    pub number: i64,
    /// The trial's own number in the store.
    pub trial: i64,
}

/// A trial with what its current attempt's reports amount to.
#[derive(Debug, Clone, PartialEq)]
pub struct TrialSummaryRow {
    /// The trial's own number in the store.
    pub key: i64,
    /// The trial.
    pub row: TrialRow,
    /// Rises with the facts that are stored of the current attempt. `None`: nothing has arrived.
    pub facts_through: Option<u64>,
    /// The current attempt's final results, in the order in which it reported them.
    pub finals: Vec<Metric>,
    /// Its last few intermediate results, the latest first.
    pub latest: Vec<Metric>,
    /// The verdict. `None` if it has not, or no agent lived to tell.
    pub verdict: Option<Box<Verdict>>,
    /// A sentence about its reports that are gone for good. `None`: none are.
    pub lost: Option<String>,
}

/// An incarnation of a trial that was heard of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttemptRow {
    /// Its number in the store; later ones were heard of later.
    pub key: i64,
    /// Its name.
    pub attempt: AttemptId,
    /// The time at which it last spoke, by the manager's clock.
    pub last_heard_ms: i64,
    /// The number up to which its facts are stored. `None`: none has arrived.
    pub facts_through: Option<u64>,
    /// The number up to which its bulk lane is stored.
    pub bulk_through: Option<u64>,
    /// `true` if its last fact, the verdict, is stored.
    pub ended: bool,
}

impl Store {
    /// The trials' steps after number `after`, oldest first, at most `limit`.
    pub async fn changes(&self, after: i64, limit: u32) -> Result<Vec<Change>, Error> {
        self.read(move |c| {
            let mut statement = c.prepare_cached(CHANGES)?;
            let rows = statement.query_and_then(params![after, limit], |row| {
                Ok::<_, Error>(Change { number: row.get("key")?, trial: row.get("trial")? })
            })?;
            rows.collect()
        })
        .await
    }

    /// These trials, by their own numbers; one that is not there is left out. `names` are the metrics that count, if they
    /// are named.
    pub async fn glances(
        &self,
        keys: Vec<i64>,
        names: Vec<String>,
    ) -> Result<Vec<TrialSummaryRow>, Error> {
        self.read(move |c| {
            let one = |key: &i64| glance(c, *key, &names).transpose();
            keys.iter().filter_map(one).collect()
        })
        .await
    }

    /// For each of these trials, what rises with the facts that are stored of its current attempt.
    pub async fn facts_through(&self, keys: Vec<i64>) -> Result<Vec<(i64, Option<u64>)>, Error> {
        self.read(move |c| {
            keys.iter().map(|key| Ok((*key, Voices::of(c, *key)?.facts()))).collect()
        })
        .await
    }

    /// The attempt whose metrics are a trial's: the current one, or what an old keeper said of it where its agent has
    /// reported none. `None`: neither was heard of.
    pub async fn reporting(&self, id: &TrialJobId) -> Result<Option<AttemptRow>, Error> {
        let id = id.clone();
        self.read(move |c| {
            let key = known(c, &id)?;
            let Voices { agent, keeper } = Voices::of(c, key)?;
            let reported = |attempt: i64| {
                let mut statement = c.prepare_cached(REPORTED)?;
                Ok::<bool, Error>(statement.exists(params![attempt, CONCLUDED])?)
            };
            let voice = match (agent, keeper) {
                (Some(agent), Some(keeper)) => {
                    if reported(agent.0)? || !reported(keeper.0)? {
                        agent
                    } else {
                        keeper
                    }
                }
                (Some(only), None) | (None, Some(only)) => only,
                (None, None) => return Ok(None),
            };
            Ok(attempts(c, key)?.into_iter().find(|attempt| attempt.key == voice.0))
        })
        .await
    }

    /// The attempts of a trial that were heard of, in the order in which they were.
    pub async fn attempts(&self, id: &TrialJobId) -> Result<Vec<AttemptRow>, Error> {
        let id = id.clone();
        self.read(move |c| attempts(c, known(c, &id)?)).await
    }

    /// The metrics of one attempt after seq `after` (all: -1), at most `limit`. A report that says it is
    /// a metric and is none is left out.
    pub async fn metrics_after(
        &self,
        attempt: i64,
        after: i64,
        limit: u32,
    ) -> Result<Vec<MetricRow>, Error> {
        self.read(move |c| {
            let mut statement = c.prepare_cached(METRICS)?;
            let rows = statement.query_and_then(params![attempt, after, limit], metric_row)?;
            rows.filter_map(Result::transpose).collect()
        })
        .await
    }

    /// Returns the number of intermediate results that one attempt has reported of the metric `name`, or of all. Takes
    /// as long as reading them.
    pub async fn steps(&self, attempt: i64, name: Option<&str>) -> Result<u64, Error> {
        let name = name.map(str::to_owned);
        let begins = name.as_ref().map(|name| {
            format!(r#"{{"kind":"metric","name":{},"#, serde_json::Value::from(name.as_str()))
        });
        self.read(move |c| {
            let mut statement = c.prepare_cached(STEPS)?;
            statement
                .query_row(params![attempt, name, begins], |row| Ok(unsigned(row, "count(*)")))?
        })
        .await
    }

    /// The samples of one attempt after seq `after` (all: -1), at most `limit`.
    pub async fn samples_after(
        &self,
        attempt: &AttemptRow,
        after: i64,
        limit: u32,
    ) -> Result<Vec<ReportRow>, Error> {
        let attempt = attempt.clone();
        self.read(move |c| {
            let mut statement = c.prepare_cached(LANE)?;
            let rows = statement
                .query_and_then(params![attempt.key, 1, after, limit], |row| {
                    report_row(row, &attempt.attempt, Lane::Bulk)
                })?
                .filter(|row| row.as_ref().map_or(true, |row| row.kind == "sample"));
            rows.collect()
        })
        .await
    }

    /// Returns the reports of one attempt that are no metrics: start, notes, losses, verdict; at most `limit`.
    pub async fn told(&self, attempt: &AttemptRow, limit: u32) -> Result<Vec<ReportRow>, Error> {
        let attempt = attempt.clone();
        self.read(move |c| {
            let mut statement = c.prepare_cached(TIMELINE)?;
            let rows = statement.query_and_then(params![attempt.key, limit], |row| {
                report_row(row, &attempt.attempt, Lane::Facts)
            })?;
            rows.collect()
        })
        .await
    }
}

fn glance(c: &Connection, key: i64, names: &[String]) -> Result<Option<TrialSummaryRow>, Error> {
    let sql = format!("SELECT {TRIAL_COLUMNS} FROM trial WHERE key = ?");
    let mut statement = c.prepare_cached(&sql)?;
    let Some(row) = statement.query_and_then([key], trial_row)?.next().transpose()? else {
        return Ok(None);
    };
    let mut glance = TrialSummaryRow {
        key,
        row,
        facts_through: None,
        finals: Vec::new(),
        latest: Vec::new(),
        verdict: None,
        lost: None,
    };
    let voices = Voices::of(c, key)?;
    glance.facts_through = voices.facts();
    if let Some((attempt, _)) = voices.agent {
        look(c, attempt, names, &mut glance)?;
    }
    if let Some((attempt, _)) = voices.keeper
        && glance.latest.is_empty()
        && glance.finals.iter().all(|metric| metric.derived)
    {
        look(c, attempt, names, &mut glance)?;
    }
    Ok(Some(glance))
}

/// Adds what an attempt's reports amount to.
fn look(
    c: &Connection,
    attempt: i64,
    names: &[String],
    glance: &mut TrialSummaryRow,
) -> Result<(), Error> {
    let mut statement = c.prepare_cached(SUMS)?;
    let mut rows = statement.query([attempt])?;
    while let Some(row) = rows.next()? {
        // What is not readable as what it says it is says nothing.
        if row.get_ref("kind")?.as_str() == Ok("ended") {
            let verdict = parsed(row, "body", serde_json::from_str).ok();
            glance.verdict = match glance.verdict.take() {
                // The manager's own, which comes last, outranks the agent's.
                Some(before) if row.get::<_, i64>("seq")? != JUDGED => Some(before),
                before => verdict.or(before),
            };
        } else if row.get_ref("kind")?.as_str() == Ok("note") {
            let body: String = row.get("body")?;
            glance.lost = gap::lost_in(&body).or(glance.lost.take());
        } else if let Ok(metric) = parsed(row, "body", serde_json::from_str::<Metric>) {
            glance.finals.push(metric);
        }
    }
    let mut statement = c.prepare_cached(LAST_REPORTS)?;
    let mut rows = statement.query(params![attempt, LATEST_NAMED])?;
    let mut seen = 0;
    while let Some(row) = rows.next()? {
        // Others may be reported at every batch, and the one that counts once an epoch.
        let missing = names.iter().any(|name| {
            glance.latest.iter().all(|metric| metric.name != *name && metric.name != OBJECTIVE)
        });
        if seen >= LATEST && !missing {
            break;
        }
        seen += 1;
        if row.get_ref("kind")?.as_str() == Ok("metric")
            && let Ok(metric) = parsed(row, "body", serde_json::from_str::<Metric>)
            && metric.kind == MetricKind::Intermediate
            && glance.latest.iter().all(|known| known.name != metric.name)
        {
            glance.latest.push(metric);
        }
    }
    Ok(())
}

/// The sources of a trial's current attempt: each one's number, and how far its facts are stored.
struct Voices {
    agent: Option<(i64, Option<u64>)>,
    /// NNI's own keeper, see [`ids::of_old_keeper`].
    keeper: Option<(i64, Option<u64>)>,
}

impl Voices {
    fn of(c: &Connection, key: i64) -> Result<Self, Error> {
        let voice = |row: &Row<'_>| {
            Ok::<_, Error>((row.get("key")?, unsigned_if_any(row, "facts_through")?))
        };
        let mut agents = c.prepare_cached(HEARD)?;
        let agent = agents.query_and_then([key], voice)?.next().transpose()?;
        let mut keepers = c.prepare_cached(OLD_KEEPER)?;
        let keeper =
            keepers.query_and_then(params![key, ids::OLD_KEEPER], voice)?.next().transpose()?;
        Ok(Self { agent, keeper })
    }

    /// Rises with the facts of both.
    fn facts(&self) -> Option<u64> {
        let told = |voice: Option<(i64, Option<u64>)>| voice.and_then(|(_, through)| through);
        match (told(self.agent), told(self.keeper)) {
            (Some(agent), Some(keeper)) => Some(agent.saturating_add(keeper).saturating_add(1)),
            (one, other) => one.or(other),
        }
    }
}

fn attempts(c: &Connection, trial: i64) -> Result<Vec<AttemptRow>, Error> {
    let mut statement = c.prepare_cached(ATTEMPTS)?;
    let rows = statement.query_and_then([trial], |row| {
        Ok(AttemptRow {
            key: row.get("key")?,
            attempt: parsed(row, "name", AttemptId::new)?,
            last_heard_ms: row.get("last_heard_ms")?,
            facts_through: unsigned_if_any(row, "facts_through")?,
            bulk_through: unsigned_if_any(row, "bulk_through")?,
            ended: row.get("ended")?,
        })
    })?;
    rows.collect()
}

fn report_row(row: &Row<'_>, attempt: &AttemptId, lane: Lane) -> Result<ReportRow, Error> {
    Ok(ReportRow {
        attempt: attempt.clone(),
        lane,
        seq: unsigned(row, "seq")?,
        observed_at_ms: row.get("observed_at_ms")?,
        stored_at_ms: row.get("stored_at_ms")?,
        kind: row.get("kind")?,
        body: json(row, "body").or_else(|_| row.get("body").map(serde_json::Value::String))?,
    })
}

/// The number of the newest step of any trial; 0 before the first.
pub(super) fn newest_change(c: &Connection) -> Result<i64, Error> {
    let sql = "SELECT key FROM trial_event ORDER BY key DESC LIMIT 1";
    Ok(c.prepare_cached(sql)?.query_row([], |row| row.get(0)).optional()?.unwrap_or(0))
}
