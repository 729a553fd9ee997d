//! A disk without free space, for tests. Its limit is in a file beside the database, so it outlives a restarted store.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::error::Error;
use super::file_identity::FileIdentity;
use super::schema::path_with_suffix;
use super::writer::CommitGuard;
use super::{Database, Store};

/// The disk under a database.
#[derive(Debug)]
struct SimulatedDisk {
    database: PathBuf,
    identity: Arc<FileIdentity>,
}

impl CommitGuard for SimulatedDisk {
    fn check(&self) -> Result<(), Error> {
        if let Ok(limit) = std::fs::read_to_string(limit_file(&self.database)) {
            let limit: u64 = limit.parse().unwrap();
            let log = std::fs::metadata(path_with_suffix(&self.database, "-wal"));
            if log.map_or(0, |log| log.len()) >= limit {
                let full = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_FULL);
                return Err(rusqlite::Error::SqliteFailure(full, None).into());
            }
        }
        self.identity.check()
    }
}

fn limit_file(database: &Path) -> PathBuf {
    path_with_suffix(database, "-limit")
}

/// Opens a store whose disk [`fill`] and [`limit_log`] fill.
pub(crate) fn open(path: &Path) -> Result<Store, Error> {
    let disk = |identity| Arc::new(SimulatedDisk { database: path.to_owned(), identity });
    Database::open_guarded(path, disk).map(Store::new)
}

/// Makes every commit fail as on a full disk.
pub(crate) fn fill(database: &Path) {
    limit_log(database, 0);
}

/// Makes commits succeed again.
pub(crate) fn empty(database: &Path) {
    std::fs::remove_file(limit_file(database)).unwrap();
}

/// Makes commits fail as on a full disk while the log beside the database has at least this number of bytes.
pub(crate) fn limit_log(database: &Path, bytes: u64) {
    std::fs::write(limit_file(database), bytes.to_string()).unwrap();
}

/// Lets a database grow by `pages` more pages.
pub(crate) async fn leave_room(database: &Database, pages: i64) {
    let limited = database.write(move |c| {
        let used: i64 = c.pragma_query_value(None, "page_count", |row| row.get(0))?;
        c.pragma_update_and_check(None, "max_page_count", used + pages, |_| Ok(()))?;
        Ok(())
    });
    limited.await.unwrap();
}
