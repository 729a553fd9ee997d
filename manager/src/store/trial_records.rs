//! SQL of trials and their timelines.

use rusqlite::{Connection, OptionalExtension, Row, params};
use serde_json::Value;
use trial_protocol::{AttemptId, StopReason, TrialJobId};

use super::database::Database;
use super::error::Error;
use super::readers::{
    parse_column, parse_json_column, parse_optional_column, read_optional_unsigned, read_unsigned,
    to_storable,
};
use super::rows::{NewTrial, TrialChange, TrialEventRow, TrialRow};
use crate::job_state::JobState;

pub(super) const TRIAL_COLUMNS: &str = "id, sequence, parameter_id, parameters, attempt, state, intent, \
     created_at_ms, started_at_ms, ended_at_ms, message, exit_code, retries";

/// The maximum duration that is accepted, in milliseconds. No real trial runs that long, and adding it to a time
/// cannot overflow.
const MAX_DURATION_MS: i64 = 1 << 53;

/// The trials and their timelines.
#[derive(Clone, Debug)]
pub struct TrialRecords {
    database: Database,
}

impl TrialRecords {
    pub(super) fn new(database: Database) -> Self {
        Self { database }
    }

    /// Stores new trials in state WAITING, before they are submitted: all or none.
    pub async fn insert(&self, trials: Vec<NewTrial>) -> Result<(), Error> {
        self.database
            .write(move |c| {
                for new in &trials {
                    let sequence = to_storable("trial sequence", new.sequence)?;
                    let parameter_id =
                        new.parameter_id.map(|id| to_storable("parameter id", id)).transpose()?;
                    if find_trial_key(c, &new.id)?.is_some() {
                        return Err(Error::Exists(format!("trial {}", new.id)));
                    }
                    c.prepare_cached(
                        "INSERT INTO trial \
                         (id, sequence, parameter_id, parameters, attempt, state, created_at_ms) \
                         VALUES (?, ?, ?, ?, ?, ?, ?)",
                    )?
                    .execute(params![
                        new.id.as_str(),
                        sequence,
                        parameter_id,
                        new.parameters.to_string(),
                        new.attempt.as_str(),
                        JobState::Waiting.as_str(),
                        new.created_at_ms,
                    ])?;
                    append_event(c, c.last_insert_rowid(), new.created_at_ms, None)?;
                }
                Ok(())
            })
            .await
    }

    /// Stores changes of trials in their rows and in their timelines, all or none.
    pub async fn change(&self, changes: Vec<(TrialJobId, TrialChange)>) -> Result<(), Error> {
        self.database
            .write(move |c| changes.iter().try_for_each(|(id, change)| apply_change(c, id, change)))
            .await
    }

    /// Stores a change and increments the trial's retry counter.
    pub async fn retry(&self, id: &TrialJobId, change: TrialChange) -> Result<(), Error> {
        let id = id.clone();
        self.database
            .write(move |c| {
                apply_change(c, &id, &change)?;
                c.prepare_cached("UPDATE trial SET retries = retries + 1 WHERE id = ?")?
                    .execute([id.as_str()])?;
                Ok(())
            })
            .await
    }

    /// Stores the reason for which the manager is about to stop each trial, all or none. `None` clears the reason.
    pub async fn set_intents(
        &self,
        intents: &[(TrialJobId, Option<StopReason>)],
        at_ms: i64,
    ) -> Result<(), Error> {
        let intents = intents.to_vec();
        self.database
            .write(move |c| {
                for (id, intent) in &intents {
                    let key = trial_key(c, id)?;
                    c.prepare_cached("UPDATE trial SET intent = ? WHERE key = ?")?
                        .execute(params![intent.map(reason_word), key])?;
                    append_event(c, key, at_ms, None)?;
                }
                Ok(())
            })
            .await
    }

    /// Returns all trials, ordered by sequence.
    pub async fn all(&self) -> Result<Vec<TrialRow>, Error> {
        self.database.read(select_trials).await
    }

    /// Returns the trial with this id, if it exists.
    pub async fn get(&self, id: &TrialJobId) -> Result<Option<TrialRow>, Error> {
        let id = id.clone();
        self.database
            .read(move |c| {
                let sql = format!("SELECT {TRIAL_COLUMNS} FROM trial WHERE id = ?");
                let mut statement = c.prepare_cached(&sql)?;
                statement.query_and_then([id.as_str()], trial_row)?.next().transpose()
            })
            .await
    }

    /// Returns a trial's timeline, oldest event first.
    pub async fn events(&self, id: &TrialJobId) -> Result<Vec<TrialEventRow>, Error> {
        let id = id.clone();
        self.database
            .read(move |c| {
                let key = trial_key(c, &id)?;
                let mut statement =
                    c.prepare_cached("SELECT * FROM trial_event WHERE trial = ? ORDER BY key")?;
                statement.query_and_then([key], event_row)?.collect()
            })
            .await
    }
}

/// Changes a trial's row and appends the change to its timeline.
fn apply_change(c: &Connection, id: &TrialJobId, change: &TrialChange) -> Result<(), Error> {
    let key = trial_key(c, id)?;
    if let Some(attempt) = &change.attempt {
        c.prepare_cached(
            "UPDATE trial SET attempt = ?, started_at_ms = NULL, ended_at_ms = NULL, exit_code = NULL \
             WHERE key = ?",
        )?
        .execute(params![attempt.as_str(), key])?;
    }
    let started = (change.state == JobState::Running).then_some(change.at_ms);
    let reported_start = change.reported.started_at_ms.map(|at_ms| at_ms.min(change.at_ms));
    let ended = change.state.is_final().then_some(change.at_ms);
    c.prepare_cached(
        "UPDATE trial SET state = ?, message = ?, exit_code = coalesce(?, exit_code), \
         started_at_ms = coalesce(max(created_at_ms, ?), started_at_ms, ?), ended_at_ms = ? WHERE key = ?",
    )?
    .execute(params![
        change.state.as_str(),
        change.message,
        change.exit_code,
        reported_start,
        started,
        ended,
        key,
    ])?;
    if let Some(duration) = change.reported.duration_ms {
        c.prepare_cached(
            "UPDATE trial SET ended_at_ms = min(ended_at_ms, started_at_ms + ?) \
             WHERE key = ? AND started_at_ms IS NOT NULL",
        )?
        .execute(params![i64::try_from(duration).unwrap_or(i64::MAX).min(MAX_DURATION_MS), key])?;
    }
    append_event(c, key, change.at_ms, change.exit_code)
}

/// Appends the trial's current state to its timeline. Watchers of the timeline thus notice the change.
pub(super) fn append_event(
    c: &Connection,
    key: i64,
    at_ms: i64,
    exit_code: Option<i32>,
) -> Result<(), Error> {
    c.prepare_cached(
        "INSERT INTO trial_event (trial, at_ms, state, attempt, intent, message, exit_code) \
         SELECT key, ?, state, attempt, intent, message, ? FROM trial WHERE key = ?",
    )?
    .execute(params![at_ms, exit_code, key])?;
    Ok(())
}

/// Reads all trials, ordered by sequence.
pub(super) fn select_trials(c: &Connection) -> Result<Vec<TrialRow>, Error> {
    let sql = format!("SELECT {TRIAL_COLUMNS} FROM trial ORDER BY sequence, key");
    let mut statement = c.prepare_cached(&sql)?;
    statement.query_and_then([], trial_row)?.collect()
}

/// Returns the trial's key, or an error if the trial does not exist.
pub(super) fn trial_key(c: &Connection, id: &TrialJobId) -> Result<i64, Error> {
    find_trial_key(c, id)?.ok_or_else(|| Error::UnknownTrial(id.clone()))
}

fn find_trial_key(c: &Connection, id: &TrialJobId) -> Result<Option<i64>, Error> {
    let mut statement = c.prepare_cached("SELECT key FROM trial WHERE id = ?")?;
    Ok(statement.query_row([id.as_str()], |row| row.get(0)).optional()?)
}

pub(super) fn trial_row(row: &Row<'_>) -> Result<TrialRow, Error> {
    Ok(TrialRow {
        id: parse_column(row, "id", TrialJobId::new)?,
        sequence: read_unsigned(row, "sequence")?,
        parameter_id: read_optional_unsigned(row, "parameter_id")?,
        parameters: parse_json_column(row, "parameters")?,
        attempt: parse_column(row, "attempt", AttemptId::new)?,
        state: parse_column(row, "state", str::parse)?,
        intent: parse_optional_column(row, "intent", parse_reason)?,
        created_at_ms: row.get("created_at_ms")?,
        started_at_ms: row.get("started_at_ms")?,
        ended_at_ms: row.get("ended_at_ms")?,
        message: row.get("message")?,
        exit_code: row.get("exit_code")?,
        retries: row.get("retries")?,
    })
}

fn event_row(row: &Row<'_>) -> Result<TrialEventRow, Error> {
    Ok(TrialEventRow {
        at_ms: row.get("at_ms")?,
        state: parse_column(row, "state", str::parse)?,
        attempt: parse_column(row, "attempt", AttemptId::new)?,
        intent: parse_optional_column(row, "intent", parse_reason)?,
        message: row.get("message")?,
        exit_code: row.get("exit_code")?,
    })
}

/// Returns a stop reason as the wire protocol spells it.
fn reason_word(reason: StopReason) -> String {
    match serde_json::to_value(reason) {
        Ok(Value::String(word)) => word,
        other => unreachable!("a unit variant is written as a text, not {other:?}"),
    }
}

fn parse_reason(word: &str) -> Result<StopReason, serde_json::Error> {
    serde_json::from_value(Value::from(word))
}
