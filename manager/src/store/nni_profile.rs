//! Writes the experiment's record in the format of NNI's manager, as far as `nnictl` reads it: one row of one table
//! in `db/nni.sqlite`.
//!
//! Source: nni 3.0, `ts/nni_manager/core/sqlDatabase.ts` (the table), `nni/tools/nnictl/config_utils.py` (the
//! reader).

use std::path::Path;
use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension as _};
use serde_json::Value;

use super::{Error, ExperimentRow};

/// The limits that a user may change while an experiment runs, and that `nnictl update` reads.
const CHANGEABLE_LIMITS: [&str; 4] =
    ["trialConcurrency", "maxTrialNumber", "maxExperimentDuration", "searchSpace"];

/// Replaces the experiment's row, and creates the file if it is missing. `folder` is the data directory. `posted` is
/// the configuration that NNI's client sent; `None` keeps the stored configuration and updates only its limits.
pub fn write_nni_profile(
    path: &Path,
    folder: &Path,
    row: &ExperimentRow,
    posted: Option<&Value>,
) -> Result<(), Error> {
    write(path, folder, row, posted)
        .map_err(|source| Error::Open { path: path.to_owned(), source: Arc::new(source) })
}

fn write(
    path: &Path,
    folder: &Path,
    row: &ExperimentRow,
    posted: Option<&Value>,
) -> Result<(), rusqlite::Error> {
    let mut connection = Connection::open(path)?;
    let transaction = connection.transaction()?;
    transaction.execute_batch(
        "CREATE TABLE IF NOT EXISTS ExperimentProfile (params text, id text, execDuration integer, startTime integer, \
         endTime integer, logDir text, nextSequenceId integer, revision integer)",
    )?;
    let id = row.id.as_str();
    let stored: Option<String> = transaction
        .query_row("SELECT params FROM ExperimentProfile WHERE id = ?1", [id], |row| row.get(0))
        .optional()?;
    let stored = stored.and_then(|text| serde_json::from_str(&text).ok());
    let mut params: Value = posted.cloned().or(stored).unwrap_or_else(|| row.canonical.clone());
    for limit in CHANGEABLE_LIMITS {
        if let (Some(value), Some(params)) = (row.canonical.get(limit), params.as_object_mut()) {
            params.insert(limit.to_owned(), value.clone());
        }
    }
    transaction.execute("DELETE FROM ExperimentProfile WHERE id = ?1", [id])?;
    transaction.execute(
        "INSERT INTO ExperimentProfile VALUES (?1, ?2, ?3, ?4, ?5, ?6, 0, 1)",
        rusqlite::params![
            params.to_string(),
            id,
            i64::try_from(row.elapsed_ms / 1000).unwrap_or(i64::MAX),
            row.created_at_ms,
            row.ended_at_ms,
            folder.to_string_lossy(),
        ],
    )?;
    transaction.commit()
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use trial_protocol::ExperimentId;

    use super::*;

    #[test]
    fn a_profile_keeps_the_posted_configuration_and_updates_its_limits() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("nni.sqlite");
        let mut row = ExperimentRow {
            id: ExperimentId::new("e1").unwrap(),
            canonical: json!({"maxTrialNumber": 3, "objective": "ours"}),
            seed: 1,
            state: "RUNNING".to_owned(),
            created_at_ms: 7,
            ended_at_ms: None,
            elapsed_ms: 4_200,
            trouble: None,
        };
        let posted = json!({"maxTrialNumber": 2, "tuner": {"name": "TPE"}});
        write_nni_profile(&path, folder.path(), &row, Some(&posted)).unwrap();
        row.canonical["maxTrialNumber"] = json!(9);
        write_nni_profile(&path, folder.path(), &row, None).unwrap();
        let connection = Connection::open(&path).unwrap();
        let params: Vec<String> = connection
            .prepare("SELECT params FROM ExperimentProfile WHERE id = 'e1' ORDER BY revision DESC")
            .unwrap()
            .query_map([], |row| row.get(0))
            .unwrap()
            .map(Result::unwrap)
            .collect();
        assert_eq!(params, [r#"{"maxTrialNumber":9,"tuner":{"name":"TPE"}}"#]);
    }
}
