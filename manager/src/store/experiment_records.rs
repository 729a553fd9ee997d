//! SQL of the experiment and the results that were imported into it.

use rusqlite::{Connection, Row, params};
use serde_json::Value;
use trial_protocol::ExperimentId;

use super::database::Database;
use super::error::Error;
use super::notifications::{self, NewNotification};
use super::readers::{parse_column, parse_json_column, read_unsigned, to_storable};
use super::rows::{ExperimentRow, ImportedRow};

/// The experiment of the database and its imported results.
#[derive(Clone, Debug)]
pub struct ExperimentRecords {
    database: Database,
}

impl ExperimentRecords {
    pub(super) fn new(database: Database) -> Self {
        Self { database }
    }

    /// Stores the experiment of this database.
    pub async fn create(&self, row: ExperimentRow) -> Result<(), Error> {
        self.database
            .write(move |c| {
                if let Some(there) = select_experiment(c)? {
                    return Err(Error::Exists(format!("experiment {}", there.id)));
                }
                c.prepare_cached(
                    "INSERT INTO experiment \
                     (id, canonical, seed, state, created_at_ms, ended_at_ms, elapsed_ms) \
                     VALUES (?, ?, ?, ?, ?, ?, ?)",
                )?
                .execute(params![
                    row.id.as_str(),
                    row.canonical.to_string(),
                    row.seed.cast_signed(),
                    row.state,
                    row.created_at_ms,
                    row.ended_at_ms,
                    to_storable("elapsed time", row.elapsed_ms)?,
                ])?;
                Ok(())
            })
            .await
    }

    /// Returns the experiment of this database. `None` if the database is new.
    pub async fn row(&self) -> Result<Option<ExperimentRow>, Error> {
        self.database.read(select_experiment).await
    }

    /// Replaces the experiment's checked file. `reopened_elapsed_ms` is the running time of
    /// an experiment that was done and runs again. Both changes are made, or neither.
    pub async fn set_canonical(
        &self,
        canonical: Value,
        reopened_elapsed_ms: Option<u64>,
    ) -> Result<(), Error> {
        self.database
            .write(move |c| {
                let changed = c
                    .prepare_cached("UPDATE experiment SET canonical = ?")?
                    .execute([canonical.to_string()])?;
                check_experiment(changed)?;
                reopened_elapsed_ms
                    .map_or(Ok(()), |elapsed_ms| update_state(c, "RUNNING", elapsed_ms, None))
            })
            .await
    }

    /// Stores the experiment's state and its running time, and a notification: both or neither. `DONE`, `STOPPED`
    /// and `ERROR`, NNI's names for an end, set the end time to `at_ms`; any other state clears it.
    pub async fn set_state(
        &self,
        state: &str,
        elapsed_ms: u64,
        at_ms: i64,
        new: Option<NewNotification>,
    ) -> Result<(), Error> {
        let ended_at_ms = matches!(state, "DONE" | "STOPPED" | "ERROR").then_some(at_ms);
        let state = state.to_owned();
        self.database
            .write(move |c| {
                update_state(c, &state, elapsed_ms, ended_at_ms)?;
                new.iter().try_for_each(|new| notifications::insert(c, new))
            })
            .await
    }

    /// Stores the experiment's running time.
    pub async fn set_elapsed(&self, elapsed_ms: u64) -> Result<(), Error> {
        self.database
            .write(move |c| {
                let changed = c
                    .prepare_cached("UPDATE experiment SET elapsed_ms = ?")?
                    .execute([to_storable("elapsed time", elapsed_ms)?])?;
                check_experiment(changed)
            })
            .await
    }

    /// Stores the problem of an external tuner or assessor together with its notification: both or neither. `None`
    /// clears the problem.
    pub async fn set_trouble(
        &self,
        trouble: Option<String>,
        new: Option<NewNotification>,
    ) -> Result<(), Error> {
        self.database
            .write(move |c| {
                let changed =
                    c.prepare_cached("UPDATE experiment SET trouble = ?")?.execute([&trouble])?;
                check_experiment(changed)?;
                new.iter().try_for_each(|new| notifications::insert(c, new))
            })
            .await
    }

    /// Stores imported results, all or none.
    pub async fn insert_imported(&self, rows: Vec<ImportedRow>, at_ms: i64) -> Result<(), Error> {
        self.database
            .write(move |c| {
                let mut statement = c.prepare_cached(
                    "INSERT INTO imported (parameters, value, at_ms) VALUES (?, ?, ?)",
                )?;
                for row in &rows {
                    let (parameters, value) = (row.parameters.to_string(), row.value.to_string());
                    statement.execute(params![parameters, value, at_ms])?;
                }
                Ok(())
            })
            .await
    }

    /// Returns all imported results, in the order of their import.
    pub async fn imported_rows(&self) -> Result<Vec<ImportedRow>, Error> {
        self.database
            .read(|c| {
                let mut statement =
                    c.prepare_cached("SELECT parameters, value FROM imported ORDER BY key")?;
                let read = |row: &Row<'_>| {
                    Ok(ImportedRow {
                        parameters: parse_json_column(row, "parameters")?,
                        value: parse_json_column(row, "value")?,
                    })
                };
                statement.query_and_then([], read)?.collect()
            })
            .await
    }
}

/// Reads the experiment. `None` if the database is new.
pub(super) fn select_experiment(c: &Connection) -> Result<Option<ExperimentRow>, Error> {
    let mut statement = c.prepare_cached("SELECT * FROM experiment")?;
    let mut rows = statement.query([])?;
    let Some(row) = rows.next()? else { return Ok(None) };
    Ok(Some(ExperimentRow {
        id: parse_column(row, "id", ExperimentId::new)?,
        canonical: parse_json_column(row, "canonical")?,
        seed: row.get::<_, i64>("seed")?.cast_unsigned(),
        state: row.get("state")?,
        created_at_ms: row.get("created_at_ms")?,
        ended_at_ms: row.get("ended_at_ms")?,
        elapsed_ms: read_unsigned(row, "elapsed_ms")?,
        trouble: row.get("trouble")?,
    }))
}

fn update_state(
    c: &Connection,
    state: &str,
    elapsed_ms: u64,
    ended_at_ms: Option<i64>,
) -> Result<(), Error> {
    let changed = c
        .prepare_cached("UPDATE experiment SET state = ?, elapsed_ms = ?, ended_at_ms = ?")?
        .execute(params![state, to_storable("elapsed time", elapsed_ms)?, ended_at_ms])?;
    check_experiment(changed)
}

/// Checks that an update has changed the experiment's row.
fn check_experiment(changed: usize) -> Result<(), Error> {
    if changed == 0 { Err(Error::NoExperiment) } else { Ok(()) }
}
