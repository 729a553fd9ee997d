//! Queries for charts of attempts over time: the steps of all attempts, and the machines on which they ran.

use rusqlite::params;

use super::super::read::parsed;
use super::super::{Error, Store};
use crate::job_state::JobState;

pub(super) const STEPS_OF_ALL: &str = "SELECT key, trial, at_ms, state, attempt, message \
     FROM trial_event WHERE key > ? ORDER BY key LIMIT ?";
pub(super) const HOSTS: &str = "SELECT a.key, a.trial, a.name, \
     CASE WHEN json_valid(r.body) THEN r.body ->> '$.host' END AS host \
     FROM attempt a CROSS JOIN report r INDEXED BY report_beside_metrics ON r.attempt = a.key \
     WHERE a.key > ? AND r.lane = 0 AND r.kind <> 'metric' AND r.kind = 'started' \
     ORDER BY a.key LIMIT ?";

/// The number of rows per read, so that no reader holds a connection for long.
const ROWS: u32 = 10_000;

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

impl Store {
    /// Returns the steps of all attempts, in the order in which they were stored.
    pub async fn attempt_steps(&self) -> Result<Vec<AttemptStep>, Error> {
        let mut steps = Vec::new();
        let mut after = 0;
        loop {
            let page = self
                .read(move |c| {
                    let mut statement = c.prepare_cached(STEPS_OF_ALL)?;
                    let rows = statement.query_and_then(params![after, ROWS], |row| {
                        let step = AttemptStep {
                            trial: row.get("trial")?,
                            at_ms: row.get("at_ms")?,
                            state: parsed(row, "state", str::parse)?,
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
                .read(move |c| {
                    let mut statement = c.prepare_cached(HOSTS)?;
                    let rows = statement.query_and_then(params![after, ROWS], |row| {
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
