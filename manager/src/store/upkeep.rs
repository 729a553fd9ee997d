//! Copies and checks a database, whether or not a manager is using it.

use std::fs::File;
use std::path::Path;

use rusqlite::Connection;

use super::schema;
use super::{Error, Store, gap, reports, trials};

/// The problem of a database without an experiment.
const BLANK: &str = "the experiment's record is lost: the database holds no experiment, as a file trialkeeper.db does \
     whose trialkeeper.db-wal was removed or left behind; restore a backup";

/// The number of problems that are listed; more would not help.
const LISTED: usize = 100;

impl Store {
    /// Writes a copy of the database as it is now to `to`, which must not exist. It has no waiter.
    pub async fn backup(&self, to: &Path) -> Result<(), Error> {
        let (from, to) = (self.inner.readers.path().to_owned(), to.to_owned());
        let copying = tokio::task::spawn_blocking(move || backup(&from, &to));
        copying.await.unwrap_or(Err(Error::Closed))
    }

    /// Copies a database without a running manager, or beside one. Blocks.
    pub fn backup_file(from: &Path, to: &Path) -> Result<(), Error> {
        backup(from, to)
    }

    /// Everything that is wrong with the database, a line each; nothing if all is well. Reads all of it.
    pub async fn check(&self) -> Result<Vec<String>, Error> {
        let path = self.inner.readers.path().to_owned();
        let checking = tokio::task::spawn_blocking(move || check(&path));
        checking.await.unwrap_or(Err(Error::Closed))
    }

    /// Returns whether the database at `path` holds nothing at all, not even tables: it is new, or its log was lost.
    /// Changes nothing.
    pub fn is_blank(path: &Path) -> Result<bool, Error> {
        let connection = schema::open_reader(path)?;
        Ok(schema::recognise(&connection, path)? == 0)
    }

    /// Checks a database without a running manager, or beside one. Blocks.
    pub fn check_file(path: &Path) -> Result<Vec<String>, Error> {
        check(path)
    }
}

/// Writes a copy of the database at `from`, complete as of now, to `to`, which must not exist.
fn backup(from: &Path, to: &Path) -> Result<(), Error> {
    let connection = schema::open_reader(from)?;
    schema::recognise(&connection, from)?;
    let failed = |problem: &dyn std::fmt::Display| Error::Backup {
        path: to.to_owned(),
        problem: problem.to_string(),
    };
    if to.exists() {
        return Err(failed(&"there is something of that name already"));
    }
    let folder = to.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    // Aside first: whatever bears the backup's name is whole and on the disk.
    let aside = tempfile::NamedTempFile::new_in(folder).map_err(|error| failed(&error))?;
    let name = aside.path().to_str().ok_or_else(|| failed(&"its folder's name is not UTF-8"))?;
    connection.execute("VACUUM INTO ?", [name]).map_err(|error| failed(&error))?;
    aside.as_file().sync_all().map_err(|error| failed(&error))?;
    aside.persist_noclobber(to).map_err(|error| failed(&error.error))?;
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(|error| failed(&error))
}

/// Everything that is wrong with the database at `path`; nothing if all is well. Reads all of it.
fn check(path: &Path) -> Result<Vec<String>, Error> {
    let connection = schema::open_reader(path)?;
    if schema::recognise(&connection, path)? == 0 {
        return Ok(vec![BLANK.to_owned()]);
    }
    let mut problems = schema::problems(&connection, &format!("integrity_check({LISTED})"))?;
    if problems.is_empty() {
        problems = meanings(&connection)?;
    }
    Ok(problems)
}

/// A line for each attempt of which reports are gone for good.
fn losses(c: &Connection) -> Result<Vec<String>, Error> {
    let query = format!(
        "SELECT t.id, a.name, r.body ->> 'message' FROM report r JOIN attempt a ON r.attempt = a.key \
         JOIN trial t ON a.trial = t.key WHERE r.lane = 0 AND r.kind = 'note' AND json_valid(r.body) \
         AND r.body ->> 'code' = ? ORDER BY a.key, r.seq LIMIT {LISTED}"
    );
    let mut statement = c.prepare(&query)?;
    let lines = statement.query_map([gap::LOST], |row| {
        let (trial, attempt, message): (String, String, String) =
            (row.get(0)?, row.get(1)?, row.get(2)?);
        Ok(format!("trial {trial}, attempt {attempt}: {message}"))
    })?;
    Ok(lines.collect::<Result<_, _>>()?)
}

/// Checks what SQLite cannot know: whether the rows have a meaning here.
fn meanings(c: &Connection) -> Result<Vec<String>, Error> {
    let mut problems = Vec::new();
    // What was judged and concluded stands behind all that an agent may say.
    let more = format!(
        "SELECT count(*) FROM attempt a WHERE coalesce(a.facts_through, -1) < (SELECT coalesce(max(seq), -1) \
         FROM report WHERE attempt = a.key AND lane = 0 AND seq < {})",
        reports::JUDGED
    );
    for (broken, query) in [
        ("rows point to rows that are not there", "SELECT count(*) FROM pragma_foreign_key_check"),
        ("reports are not JSON", "SELECT count(*) FROM report WHERE NOT json_valid(body)"),
        ("attempts have more reports than they are noted to have", more.as_str()),
        (
            "attempts are noted to have ended, or not to have, against their reports",
            "SELECT count(*) FROM attempt a WHERE a.ended <> EXISTS \
             (SELECT 1 FROM report WHERE attempt = a.key AND lane = 0 AND kind = 'ended')",
        ),
        // Stored by an earlier build.
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
    problems.extend(losses(c)?);
    // The experiment is recorded before any trial.
    if matches!(trials::experiment(c), Ok(None))
        && trials::trials(c).is_ok_and(|all| all.is_empty())
    {
        problems.push(BLANK.to_owned());
    }
    // There may be more metrics than memory has room for.
    let metrics = reports::each_metric(c, |_, _| ());
    let unreadable = [trials::experiment(c).err(), trials::trials(c).err(), metrics.err()];
    problems.extend(unreadable.into_iter().flatten().map(|error| error.to_string()));
    Ok(problems)
}
