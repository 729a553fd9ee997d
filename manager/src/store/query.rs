//! SQL of the data that the pages, the API and the command line show. All queries read, use an index and are bounded.

mod log;
#[cfg(test)]
mod tests;

use rusqlite::{Connection, OptionalExtension, Row, params};
use trial_protocol::{AttemptId, Lane, Metric, MetricKind, OBJECTIVE, TrialJobId, Verdict};

use super::database::Database;
use super::error::Error;
use super::gap;
use super::readers::{parse_column, parse_json_column, read_optional_unsigned, read_unsigned};
use super::report_records::metric_row;
use super::rows::{DERIVED_METRIC_SEQ, MetricRow, OWN_VERDICT_SEQ, ReportRow, TrialRow};
use super::trial_records::{TRIAL_COLUMNS, trial_key, trial_row};
use crate::job_state::JobState;
use crate::util::ids;
pub use log::{LineTime, LogPart, LogQueries};

/// The number of an attempt's last reports that are searched for its latest intermediate results.
/// `LATEST_REPORTS_FOR_NAMES` applies if a named objective metric is not among the first `LATEST_REPORTS`.
const LATEST_REPORTS: u32 = 16;
const LATEST_REPORTS_FOR_NAMES: u32 = 256;

const SELECT_CHANGES: &str =
    "SELECT key, trial FROM trial_event WHERE key > ? ORDER BY key LIMIT ?";
const SELECT_CURRENT_ATTEMPT: &str = "SELECT a.key, a.facts_through FROM trial t \
     JOIN attempt a ON a.trial = t.key AND a.name = t.attempt WHERE t.key = ?";
const SELECT_OLD_KEEPER_ATTEMPT: &str = "SELECT a.key, a.facts_through FROM trial t \
     JOIN attempt a ON a.trial = t.key AND a.name = t.attempt || ?2 WHERE t.key = ?1";
const HAS_METRIC: &str = "SELECT 1 FROM report \
     WHERE attempt = ? AND lane = 0 AND seq < ? AND kind = 'metric' LIMIT 1";
const COUNT_FACTS: &str =
    "SELECT count(*) FROM (SELECT 1 FROM report WHERE attempt = ? AND lane = 0 LIMIT ?)";
const SELECT_ATTEMPTS: &str = "SELECT key, name, last_heard_ms, facts_through, bulk_through, ended \
     FROM attempt WHERE trial = ? ORDER BY key";
// The planner prefers the primary key of a `WITHOUT ROWID` table to any other index. To find the few reports that are
// not metrics, it would read all metrics of an attempt. So these statements name their index.
const SELECT_SUMMARY_REPORTS: &str = "SELECT kind, body, seq FROM report INDEXED BY report_that_sums_up \
     WHERE attempt = ? AND lane = 0 AND sums_up = 1 ORDER BY seq";
const SELECT_LAST_REPORTS: &str =
    "SELECT kind, body FROM report WHERE attempt = ? AND lane = 0 ORDER BY seq DESC LIMIT ?";
const SELECT_SAMPLES: &str = "SELECT seq, observed_at_ms, stored_at_ms, kind, body FROM report \
     WHERE attempt = ? AND lane = 1 AND seq > ? AND kind = 'sample' ORDER BY seq LIMIT ?";
const SELECT_METRICS: &str = "SELECT a.name, r.seq, r.observed_at_ms, r.stored_at_ms, r.body FROM report r \
     JOIN attempt a ON a.key = r.attempt \
     WHERE r.attempt = ? AND r.lane = 0 AND r.seq > ? AND r.kind = 'metric' ORDER BY r.seq";
// Parsing a report as JSON costs five times as much as comparing its prefix with the text that agents write for this
// metric.
const COUNT_STEPS: &str = "SELECT count(*) FROM report \
     WHERE attempt = ?1 AND lane = 0 AND kind = 'metric' AND sums_up = 0 \
     AND (?2 IS NULL OR substr(body, 1, length(?3)) = ?3 \
          OR CASE WHEN json_valid(body) THEN body ->> '$.name' = ?2 END)";
const SELECT_OTHER_REPORTS: &str = "SELECT seq, observed_at_ms, stored_at_ms, kind, body FROM report \
     INDEXED BY report_beside_metrics \
     WHERE attempt = ? AND lane = 0 AND kind <> 'metric' ORDER BY seq LIMIT ?";

const SELECT_ATTEMPT_STEPS: &str = "SELECT key, trial, at_ms, state, attempt, message \
     FROM trial_event WHERE key > ? ORDER BY key LIMIT ?";
const SELECT_ATTEMPT_HOSTS: &str = "SELECT a.key, a.trial, a.name, \
     CASE WHEN json_valid(r.body) THEN r.body ->> '$.host' END AS host \
     FROM attempt a CROSS JOIN report r INDEXED BY report_beside_metrics ON r.attempt = a.key \
     WHERE a.key > ? AND r.lane = 0 AND r.kind <> 'metric' AND r.kind = 'started' \
     ORDER BY a.key LIMIT ?";

const SELECT_VERDICTS: &str = "SELECT a.name, r.seq, r.stored_at_ms, r.body \
     FROM attempt a CROSS JOIN report r INDEXED BY report_beside_metrics ON r.attempt = a.key \
     WHERE a.trial = ? AND r.lane = 0 AND r.kind <> 'metric' AND r.kind = 'ended'";

/// The number of rows per read, so that no reader holds a connection for long.
const PAGE_ROWS: u32 = 10_000;

/// A change of a trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrialRevision {
    /// The number of the change. Numbers rise in the order in which the changes were stored, and are never reused.
    pub number: i64,
    /// The trial's key in the store.
    pub trial: i64,
}

/// A trial with a summary of its current attempt's reports.
#[derive(Debug, Clone, PartialEq)]
pub struct TrialSummaryRow {
    /// The trial's key in the store.
    pub key: i64,
    /// The trial.
    pub row: TrialRow,
    /// A number that rises with each stored fact of the current attempt. `None` if no fact has arrived.
    pub facts_through: Option<u64>,
    /// The final results of the current attempt, in the order in which they were reported.
    pub finals: Vec<Metric>,
    /// The last few intermediate results, the latest first.
    pub latest: Vec<Metric>,
    /// The verdict. `None` if the attempt has not ended, or its agent died before it could report.
    pub verdict: Option<Box<Verdict>>,
    /// A message about lost reports. `None` if no report is lost.
    pub lost: Option<String>,
}

/// An attempt of a trial that has sent at least one report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttemptRow {
    /// The attempt's key in the store. Keys rise in the order of the first report.
    pub key: i64,
    /// The attempt's identifier.
    pub attempt: AttemptId,
    /// The time of the last report, by the manager's clock.
    pub last_heard_ms: i64,
    /// The number up to which the facts lane is stored. `None` if no fact has arrived.
    pub facts_through: Option<u64>,
    /// The number up to which the bulk lane is stored.
    pub bulk_through: Option<u64>,
    /// `true` if the verdict, which is the last fact, is stored.
    pub ended: bool,
}

/// A step in the life of an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttemptStep {
    /// The trial's key in the store.
    pub trial: i64,
    /// The time in milliseconds since the Unix epoch, by the manager's clock.
    pub at_ms: i64,
    /// The trial's new state.
    pub state: JobState,
    /// The attempt's identifier, as the manager chose it.
    pub attempt: String,
    /// The reason, as text for users.
    pub message: Option<String>,
}

/// The machine of an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttemptHost {
    /// The trial's key in the store.
    pub trial: i64,
    /// The attempt's identifier, as its agent reported it.
    pub attempt: String,
    /// The machine or pod. `None` if the agent did not report any.
    pub host: Option<String>,
}

/// The queries of trials and attempts.
#[derive(Clone, Debug)]
pub struct Queries {
    database: Database,
}

impl Queries {
    pub(super) fn new(database: Database) -> Self {
        Self { database }
    }

    /// Returns the number of the latest change of any trial, or 0 if there is none.
    pub async fn newest_change(&self) -> Result<i64, Error> {
        self.database
            .read(|c| {
                let sql = "SELECT key FROM trial_event ORDER BY key DESC LIMIT 1";
                let newest = c.prepare_cached(sql)?.query_row([], |row| row.get(0)).optional()?;
                Ok(newest.unwrap_or(0))
            })
            .await
    }

    /// Returns at most `limit` changes of trials after number `after`, oldest first.
    pub async fn changes(&self, after: i64, limit: u32) -> Result<Vec<TrialRevision>, Error> {
        self.database
            .read(move |c| {
                let mut statement = c.prepare_cached(SELECT_CHANGES)?;
                let rows = statement.query_and_then(params![after, limit], |row| {
                    Ok::<_, Error>(TrialRevision {
                        number: row.get("key")?,
                        trial: row.get("trial")?,
                    })
                })?;
                rows.collect()
            })
            .await
    }

    /// Returns summaries of the trials with these keys; unknown keys are skipped. `names` are the objective's
    /// metrics, if the experiment names any.
    pub async fn summaries(
        &self,
        keys: Vec<i64>,
        names: Vec<String>,
    ) -> Result<Vec<TrialSummaryRow>, Error> {
        self.database
            .read(move |c| {
                let one = |key: &i64| summarise(c, *key, &names).transpose();
                keys.iter().filter_map(one).collect()
            })
            .await
    }

    /// Returns, for each of these trials, a number that rises with each stored fact of its current attempt.
    pub async fn facts_through(&self, keys: Vec<i64>) -> Result<Vec<(i64, Option<u64>)>, Error> {
        self.database
            .read(move |c| {
                keys.iter().map(|key| Ok((*key, ReportSources::of(c, *key)?.facts()))).collect()
            })
            .await
    }

    /// Returns the numbers of facts of the current attempts of these trials, in order, as long as they add up to at
    /// most `most`. The numbers of an attempt's reports do not start at 0, so they are counted.
    pub async fn report_counts(&self, keys: Vec<i64>, most: u64) -> Result<Vec<u64>, Error> {
        self.database
            .read(move |c| {
                let (mut counts, mut left) = (Vec::new(), most);
                for key in keys {
                    let sources = ReportSources::of(c, key)?;
                    let mut count = 0;
                    for (attempt, _) in [sources.agent, sources.keeper].into_iter().flatten() {
                        let mut statement = c.prepare_cached(COUNT_FACTS)?;
                        let bound = i64::try_from(left.saturating_add(1)).unwrap_or(i64::MAX);
                        let facts: i64 =
                            statement.query_row(params![attempt, bound], |r| r.get(0))?;
                        count += facts.unsigned_abs();
                    }
                    let Some(rest) = left.checked_sub(count) else { break };
                    counts.push(count);
                    left = rest;
                }
                Ok(counts)
            })
            .await
    }

    /// Returns the attempt that provides a trial's metrics: the current attempt, or the old keeper's if only the
    /// keeper has reported metrics. `None` if neither has reported.
    pub async fn reporting_attempt(&self, id: &TrialJobId) -> Result<Option<AttemptRow>, Error> {
        let id = id.clone();
        self.database
            .read(move |c| {
                let key = trial_key(c, &id)?;
                let ReportSources { agent, keeper } = ReportSources::of(c, key)?;
                let reported = |attempt: i64| {
                    let mut statement = c.prepare_cached(HAS_METRIC)?;
                    Ok::<bool, Error>(statement.exists(params![attempt, DERIVED_METRIC_SEQ])?)
                };
                let source =
                    match (agent, keeper) {
                        (Some(agent), Some(keeper)) => {
                            if reported(agent.0)? || !reported(keeper.0)? { agent } else { keeper }
                        }
                        (Some(only), None) | (None, Some(only)) => only,
                        (None, None) => return Ok(None),
                    };
                Ok(attempts(c, key)?.into_iter().find(|attempt| attempt.key == source.0))
            })
            .await
    }

    /// Returns the attempts of a trial that have reported, in the order of their first report.
    pub async fn attempts(&self, id: &TrialJobId) -> Result<Vec<AttemptRow>, Error> {
        let id = id.clone();
        self.database.read(move |c| attempts(c, trial_key(c, &id)?)).await
    }

    /// Returns the verdicts on all attempts of a trial, in the order in which they were stored. Reports that are not
    /// valid verdicts are skipped.
    pub async fn verdicts(&self, id: &TrialJobId) -> Result<Vec<(AttemptId, Verdict)>, Error> {
        let id = id.clone();
        self.database
            .read(move |c| {
                let mut statement = c.prepare_cached(SELECT_VERDICTS)?;
                let rows = statement.query_and_then([trial_key(c, &id)?], |row| {
                    let place: (i64, u64) = (row.get("stored_at_ms")?, read_unsigned(row, "seq")?);
                    let attempt = parse_column(row, "name", AttemptId::new)?;
                    Ok::<_, Error>((
                        place,
                        attempt,
                        parse_column(row, "body", serde_json::from_str).ok(),
                    ))
                })?;
                let mut rows = rows.collect::<Result<Vec<_>, Error>>()?;
                rows.sort_by_key(|(place, ..)| *place);
                let verdict = |(_, attempt, verdict): (_, _, Option<_>)| Some((attempt, verdict?));
                Ok(rows.into_iter().filter_map(verdict).collect())
            })
            .await
    }

    /// Returns at most `limit` metrics of an attempt after seq `after` (-1 for all). Reports that are not valid
    /// metrics are skipped and do not count. Fewer than `limit` metrics mean that there are no more.
    pub async fn metrics_after(
        &self,
        attempt: i64,
        after: i64,
        limit: u32,
    ) -> Result<Vec<MetricRow>, Error> {
        self.database
            .read(move |c| {
                let mut statement = c.prepare_cached(SELECT_METRICS)?;
                let rows = statement.query_and_then(params![attempt, after], metric_row)?;
                let limit = usize::try_from(limit).unwrap_or(usize::MAX);
                // SQLite reads a row at a time, so no row after the last returned metric is read.
                rows.filter_map(Result::transpose).take(limit).collect()
            })
            .await
    }

    /// Returns the number of intermediate results of an attempt for the metric `name`, or for all metrics. It takes
    /// as long as reading all of them.
    pub async fn count_steps(&self, attempt: i64, name: Option<&str>) -> Result<u64, Error> {
        let name = name.map(str::to_owned);
        let begins = name.as_ref().map(|name| {
            format!(r#"{{"kind":"metric","name":{},"#, serde_json::Value::from(name.as_str()))
        });
        self.database
            .read(move |c| {
                let mut statement = c.prepare_cached(COUNT_STEPS)?;
                statement.query_row(params![attempt, name, begins], |row| {
                    Ok(read_unsigned(row, "count(*)"))
                })?
            })
            .await
    }

    /// Returns at most `limit` samples of an attempt after seq `after` (-1 for all).
    pub async fn samples_after(
        &self,
        attempt: &AttemptRow,
        after: i64,
        limit: u32,
    ) -> Result<Vec<ReportRow>, Error> {
        let attempt = attempt.clone();
        self.database
            .read(move |c| {
                let mut statement = c.prepare_cached(SELECT_SAMPLES)?;
                let rows = statement.query_and_then(params![attempt.key, after, limit], |row| {
                    report_row(row, &attempt.attempt, Lane::Bulk)
                })?;
                rows.collect()
            })
            .await
    }

    /// Returns at most `limit` reports of an attempt that are not metrics: start, notes, losses, verdict.
    pub async fn other_reports(
        &self,
        attempt: &AttemptRow,
        limit: u32,
    ) -> Result<Vec<ReportRow>, Error> {
        let attempt = attempt.clone();
        self.database
            .read(move |c| {
                let mut statement = c.prepare_cached(SELECT_OTHER_REPORTS)?;
                let rows = statement.query_and_then(params![attempt.key, limit], |row| {
                    report_row(row, &attempt.attempt, Lane::Facts)
                })?;
                rows.collect()
            })
            .await
    }

    /// Returns the steps of all attempts, in the order in which they were stored.
    pub async fn attempt_steps(&self) -> Result<Vec<AttemptStep>, Error> {
        let mut steps = Vec::new();
        let mut after = 0;
        loop {
            let page = self
                .database
                .read(move |c| {
                    let mut statement = c.prepare_cached(SELECT_ATTEMPT_STEPS)?;
                    let rows = statement.query_and_then(params![after, PAGE_ROWS], |row| {
                        let step = AttemptStep {
                            trial: row.get("trial")?,
                            at_ms: row.get("at_ms")?,
                            state: parse_column(row, "state", str::parse)?,
                            attempt: row.get("attempt")?,
                            message: row.get("message")?,
                        };
                        Ok::<(i64, AttemptStep), Error>((row.get("key")?, step))
                    })?;
                    rows.collect::<Result<Vec<_>, _>>()
                })
                .await?;
            let Some((last, _)) = page.last() else { return Ok(steps) };
            after = *last;
            steps.extend(page.into_iter().map(|(_, step)| step));
        }
    }

    /// Returns the machines of all attempts whose agents have reported their start.
    pub async fn attempt_hosts(&self) -> Result<Vec<AttemptHost>, Error> {
        let mut hosts = Vec::new();
        let mut after = 0;
        loop {
            let page = self
                .database
                .read(move |c| {
                    let mut statement = c.prepare_cached(SELECT_ATTEMPT_HOSTS)?;
                    let rows = statement.query_and_then(params![after, PAGE_ROWS], |row| {
                        let host = AttemptHost {
                            trial: row.get("trial")?,
                            attempt: row.get("name")?,
                            host: row.get("host")?,
                        };
                        Ok::<(i64, AttemptHost), Error>((row.get("key")?, host))
                    })?;
                    rows.collect::<Result<Vec<_>, _>>()
                })
                .await?;
            let Some((last, _)) = page.last() else { return Ok(hosts) };
            after = *last;
            hosts.extend(page.into_iter().map(|(_, host)| host));
        }
    }
}

fn summarise(c: &Connection, key: i64, names: &[String]) -> Result<Option<TrialSummaryRow>, Error> {
    let sql = format!("SELECT {TRIAL_COLUMNS} FROM trial WHERE key = ?");
    let mut statement = c.prepare_cached(&sql)?;
    let Some(row) = statement.query_and_then([key], trial_row)?.next().transpose()? else {
        return Ok(None);
    };
    let mut summary = TrialSummaryRow {
        key,
        row,
        facts_through: None,
        finals: Vec::new(),
        latest: Vec::new(),
        verdict: None,
        lost: None,
    };
    let sources = ReportSources::of(c, key)?;
    summary.facts_through = sources.facts();
    if let Some((attempt, _)) = sources.agent {
        add_reports(c, attempt, names, &mut summary)?;
    }
    if let Some((attempt, _)) = sources.keeper
        && summary.latest.is_empty()
        && summary.finals.iter().all(|metric| metric.derived)
    {
        add_reports(c, attempt, names, &mut summary)?;
    }
    Ok(Some(summary))
}

/// Adds a summary of an attempt's reports.
fn add_reports(
    c: &Connection,
    attempt: i64,
    names: &[String],
    summary: &mut TrialSummaryRow,
) -> Result<(), Error> {
    let mut statement = c.prepare_cached(SELECT_SUMMARY_REPORTS)?;
    let mut rows = statement.query([attempt])?;
    while let Some(row) = rows.next()? {
        // A body that cannot be parsed as its kind is ignored.
        if row.get_ref("kind")?.as_str() == Ok("ended") {
            let verdict = parse_column(row, "body", serde_json::from_str).ok();
            summary.verdict = match summary.verdict.take() {
                // The manager's own verdict, which sorts last, takes precedence over the agent's.
                Some(before) if row.get::<_, i64>("seq")? != OWN_VERDICT_SEQ => Some(before),
                before => verdict.or(before),
            };
        } else if row.get_ref("kind")?.as_str() == Ok("note") {
            let body: String = row.get("body")?;
            summary.lost = gap::lost_reports_message(&body).or(summary.lost.take());
        } else if let Ok(metric) = parse_column(row, "body", serde_json::from_str::<Metric>) {
            summary.finals.push(metric);
        }
    }
    let mut statement = c.prepare_cached(SELECT_LAST_REPORTS)?;
    let mut rows = statement.query(params![attempt, LATEST_REPORTS_FOR_NAMES])?;
    let mut seen = 0;
    while let Some(row) = rows.next()? {
        // Other metrics may be reported for each batch, and the objective only once per epoch.
        let missing = names.iter().any(|name| {
            summary.latest.iter().all(|metric| metric.name != *name && metric.name != OBJECTIVE)
        });
        if seen >= LATEST_REPORTS && !missing {
            break;
        }
        seen += 1;
        if row.get_ref("kind")?.as_str() == Ok("metric")
            && let Ok(metric) = parse_column(row, "body", serde_json::from_str::<Metric>)
            && metric.kind == MetricKind::Intermediate
            && summary.latest.iter().all(|known| known.name != metric.name)
        {
            summary.latest.push(metric);
        }
    }
    Ok(())
}

/// The sources of reports on a trial's current attempt: the key of each, and the number up to which its facts are
/// stored.
struct ReportSources {
    agent: Option<(i64, Option<u64>)>,
    /// The source for NNI's own keeper, see [`ids::legacy_attempt`].
    keeper: Option<(i64, Option<u64>)>,
}

impl ReportSources {
    fn of(c: &Connection, key: i64) -> Result<Self, Error> {
        let source = |row: &Row<'_>| {
            Ok::<_, Error>((row.get("key")?, read_optional_unsigned(row, "facts_through")?))
        };
        let mut agents = c.prepare_cached(SELECT_CURRENT_ATTEMPT)?;
        let agent = agents.query_and_then([key], source)?.next().transpose()?;
        let mut keepers = c.prepare_cached(SELECT_OLD_KEEPER_ATTEMPT)?;
        let keeper = keepers
            .query_and_then(params![key, ids::LEGACY_KEEPER_SUFFIX], source)?
            .next()
            .transpose()?;
        Ok(Self { agent, keeper })
    }

    /// Returns a number that rises with the facts of both sources.
    fn facts(&self) -> Option<u64> {
        let through_of =
            |source: Option<(i64, Option<u64>)>| source.and_then(|(_, through)| through);
        match (through_of(self.agent), through_of(self.keeper)) {
            (Some(agent), Some(keeper)) => Some(agent.saturating_add(keeper).saturating_add(1)),
            (one, other) => one.or(other),
        }
    }
}

fn attempts(c: &Connection, trial: i64) -> Result<Vec<AttemptRow>, Error> {
    let mut statement = c.prepare_cached(SELECT_ATTEMPTS)?;
    let rows = statement.query_and_then([trial], |row| {
        Ok(AttemptRow {
            key: row.get("key")?,
            attempt: parse_column(row, "name", AttemptId::new)?,
            last_heard_ms: row.get("last_heard_ms")?,
            facts_through: read_optional_unsigned(row, "facts_through")?,
            bulk_through: read_optional_unsigned(row, "bulk_through")?,
            ended: row.get("ended")?,
        })
    })?;
    rows.collect()
}

fn report_row(row: &Row<'_>, attempt: &AttemptId, lane: Lane) -> Result<ReportRow, Error> {
    Ok(ReportRow {
        attempt: attempt.clone(),
        lane,
        seq: read_unsigned(row, "seq")?,
        observed_at_ms: row.get("observed_at_ms")?,
        stored_at_ms: row.get("stored_at_ms")?,
        kind: row.get("kind")?,
        body: parse_json_column(row, "body")
            .or_else(|_| row.get("body").map(serde_json::Value::String))?,
    })
}
