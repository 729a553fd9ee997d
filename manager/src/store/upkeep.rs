//! Copies and checks a database, whether or not a manager uses it.

use std::fs::File;
use std::path::Path;

use rusqlite::Connection;

use super::schema;
use super::{Error, experiment_records, gap, report_records, rows, trial_records};

/// The problem that is reported for a database without an experiment.
const NO_EXPERIMENT: &str = "the experiment's record is lost: the database contains no experiment. This happens if \
     trialkeeper.db-wal was removed or left behind; restore a backup";

/// The maximum number of listed problems.
const MAX_PROBLEMS: usize = 100;

/// Returns whether the database at `path` is completely empty, without tables: it is new, or its log was lost. Changes
/// nothing.
pub fn is_blank(path: &Path) -> Result<bool, Error> {
    let connection = schema::open_reader(path)?;
    Ok(schema::recognise_schema(&connection, path)? == 0)
}

/// Writes a copy of the database at `from` in its present state to `to`, which must not exist. Blocks, but no
/// writer waits for it.
pub fn backup(from: &Path, to: &Path) -> Result<(), Error> {
    let connection = schema::open_reader(from)?;
    schema::recognise_schema(&connection, from)?;
    let failed = |problem: &dyn std::fmt::Display| Error::Backup {
        path: to.to_owned(),
        problem: problem.to_string(),
    };
    if to.exists() {
        return Err(failed(&"a file with that name already exists"));
    }
    let folder = to.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    // Written under a temporary name first: a file with the backup's name is always complete and on the disk.
    let temporary = tempfile::NamedTempFile::new_in(folder).map_err(|error| failed(&error))?;
    let name =
        temporary.path().to_str().ok_or_else(|| failed(&"its folder's name is not UTF-8"))?;
    connection.execute("VACUUM INTO ?", [name]).map_err(|error| failed(&error))?;
    temporary.as_file().sync_all().map_err(|error| failed(&error))?;
    temporary.persist_noclobber(to).map_err(|error| failed(&error.error))?;
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(|error| failed(&error))
}

/// Returns all problems of the database at `path`; empty if there are none. Reads the entire database.
pub fn check(path: &Path) -> Result<Vec<String>, Error> {
    let connection = schema::open_reader(path)?;
    if schema::recognise_schema(&connection, path)? == 0 {
        return Ok(vec![NO_EXPERIMENT.to_owned()]);
    }
    let mut problems = schema::run_check(&connection, &format!("integrity_check({MAX_PROBLEMS})"))?;
    if problems.is_empty() {
        problems = find_inconsistencies(&connection)?;
    }
    Ok(problems)
}

/// Returns a line for each attempt with lost reports.
fn list_losses(c: &Connection) -> Result<Vec<String>, Error> {
    let query = format!(
        "SELECT t.id, a.name, r.body ->> 'message' FROM report r JOIN attempt a ON r.attempt = a.key \
         JOIN trial t ON a.trial = t.key WHERE r.lane = 0 AND r.kind = 'note' AND json_valid(r.body) \
         AND r.body ->> 'code' = ? ORDER BY a.key, r.seq LIMIT {MAX_PROBLEMS}"
    );
    let mut statement = c.prepare(&query)?;
    let lines = statement.query_map([gap::REPORTS_LOST_CODE], |row| {
        let (trial, attempt, message): (String, String, String) =
            (row.get(0)?, row.get(1)?, row.get(2)?);
        Ok(format!("trial {trial}, attempt {attempt}: {message}"))
    })?;
    Ok(lines.collect::<Result<_, _>>()?)
}

/// Checks what SQLite cannot: that the rows are consistent.
fn find_inconsistencies(c: &Connection) -> Result<Vec<String>, Error> {
    let mut problems = Vec::new();
    // The manager's verdicts and derived metrics have the highest numbers, after all reports of an agent.
    let more = format!(
        "SELECT count(*) FROM attempt a WHERE coalesce(a.facts_through, -1) < (SELECT coalesce(max(seq), -1) \
         FROM report WHERE attempt = a.key AND lane = 0 AND seq < {})",
        rows::OWN_VERDICT_SEQ
    );
    for (broken, query) in [
        ("rows refer to missing rows", "SELECT count(*) FROM pragma_foreign_key_check"),
        ("reports are not JSON", "SELECT count(*) FROM report WHERE NOT json_valid(body)"),
        ("attempts have more reports than their records show", more.as_str()),
        (
            "attempts are recorded as ended or not ended, but their reports differ",
            "SELECT count(*) FROM attempt a WHERE a.ended <> EXISTS \
             (SELECT 1 FROM report WHERE attempt = a.key AND lane = 0 AND kind = 'ended')",
        ),
        // Only earlier builds stored such parts.
        (
            "parts of trials' output end beyond 2^63-1 bytes, and are not shown",
            "SELECT count(*) FROM log_chunk WHERE offset_bytes > 9223372036854775807 - length(bytes)",
        ),
    ] {
        let count: i64 = c.query_row(query, [], |row| row.get(0))?;
        if count > 0 {
            problems.push(format!("{count} {broken}"));
        }
    }
    problems.extend(list_losses(c)?);
    // The experiment is recorded before any trial.
    if matches!(experiment_records::select_experiment(c), Ok(None))
        && trial_records::select_trials(c).is_ok_and(|all| all.is_empty())
    {
        problems.push(NO_EXPERIMENT.to_owned());
    }
    let unreadable = [
        experiment_records::select_experiment(c).err(),
        trial_records::select_trials(c).err(),
        report_records::check_metrics(c).err(),
    ];
    problems.extend(unreadable.into_iter().flatten().map(|error| error.to_string()));
    Ok(problems)
}
