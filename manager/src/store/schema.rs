//! Opens a database file: identifies it, checks that this build supports it, and migrates it.

use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags};

use super::Error;

/// The identification of TrialKeeper in SQLite's header (`PRAGMA application_id`): `TKdb`.
const APPLICATION_ID: i64 = 0x544b_6462;

/// The migrations. A database at version N contains the first N. Append only.
pub(super) const MIGRATIONS: &[&str] = &[
    include_str!("../../migrations/0001_initial.sql"),
    include_str!("../../migrations/0002_reading.sql"),
    include_str!("../../migrations/0003_notifications.sql"),
    include_str!("../../migrations/0004_steering.sql"),
    include_str!("../../migrations/0005_trouble.sql"),
    include_str!("../../migrations/0006_timeline.sql"),
    include_str!("../../migrations/0007_sessions.sql"),
    include_str!("../../migrations/0008_code.sql"),
    include_str!("../../migrations/0009_image.sql"),
    include_str!("../../migrations/0010_training_service.sql"),
];

/// The maximum size of a file that is checked completely when it is opened (some tenths of a second). Only
/// `trial-manager check` checks larger files.
const MAX_FULL_CHECK_BYTES: u64 = 64 << 20;

/// The time that a statement waits while another process, such as `sqlite3` or a backup, has locked the file.
pub(super) const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// The number of tries for a lock that another process holds, and the pause between them. Together they exceed the
/// time that a process needs to check the lock, or to replace itself after a fork, on a busy machine.
const LOCK_TRIES: u32 = 100;
const LOCK_RETRY_PAUSE: Duration = Duration::from_millis(10);

/// The writer's connection, and the lock that excludes other managers while it exists.
pub(super) struct WriterConnection {
    pub(super) connection: Connection,
    pub(super) lock: File,
}

/// Opens the database for writing: locks it, checks that it is an undamaged database of TrialKeeper, and migrates it.
pub(super) fn open_writer(path: &Path) -> Result<WriterConnection, Error> {
    let lock = acquire_lock(path)?;
    restrict_to_owner(path)
        .map_err(|source| Error::Lock { path: path.to_owned(), source: Arc::new(source) })?;
    let failed = |error| open_error(path, error);
    let mut connection = Connection::open_with_flags(
        path,
        OpenFlags::SQLITE_OPEN_READ_WRITE
            | OpenFlags::SQLITE_OPEN_CREATE
            | OpenFlags::SQLITE_OPEN_NO_MUTEX,
    )
    .map_err(failed)?;
    connection.busy_timeout(BUSY_TIMEOUT).map_err(failed)?;
    let version = recognise_schema(&connection, path)?;
    if version > 0 && fs::metadata(path).is_ok_and(|file| file.len() <= MAX_FULL_CHECK_BYTES) {
        let found = run_check(&connection, "quick_check(1)").map_err(failed)?;
        if let Some(problem) = found.into_iter().next() {
            return Err(Error::Damaged { path: path.to_owned(), problem });
        }
    }
    configure_writer(&connection).map_err(failed)?;
    migrate(&mut connection, version, MIGRATIONS).map_err(failed)?;
    Ok(WriterConnection { connection, lock })
}

/// Opens the database for reading. The file must exist.
pub(super) fn open_reader(path: &Path) -> Result<Connection, Error> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let failed = |error| open_error(path, error);
    let mut connection = Connection::open_with_flags(path, flags).map_err(failed)?;
    if is_on_read_only_disk(&connection) && is_complete_without_log(path) {
        let uri = immutable_uri(path);
        let flags = flags | OpenFlags::SQLITE_OPEN_URI;
        connection = Connection::open_with_flags(uri, flags).map_err(failed)?;
    }
    connection.busy_timeout(BUSY_TIMEOUT)?;
    compile_once(&connection)?;
    Ok(connection)
}

/// Returns whether SQLite cannot create the files beside the database that coordinate it with a writer.
fn is_on_read_only_disk(connection: &Connection) -> bool {
    let read = connection.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(()));
    let code = read.err().and_then(|error| error.sqlite_error_code());
    matches!(code, Some(ErrorCode::ReadOnly | ErrorCode::CannotOpen))
}

/// Returns whether no process writes to the database, and its file contains all commits.
fn is_complete_without_log(path: &Path) -> bool {
    let log = fs::metadata(path_with_suffix(path, "-wal"));
    is_locked(path) == Some(false) && log.map_or_else(|_| path.is_file(), |log| log.len() == 0)
}

/// Returns the URI of a database that cannot change, for which SQLite needs no other file
/// (<https://www.sqlite.org/uri.html>, `immutable`).
fn immutable_uri(path: &Path) -> String {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    reqwest::Url::from_file_path(path)
        .map_or_else(|()| String::new(), |url| format!("{url}?immutable=1"))
}

/// Checks that this build can read the database: it belongs to TrialKeeper, and no migration is missing.
pub(super) fn check_reader(path: &Path) -> Result<(), Error> {
    let connection = open_reader(path)?;
    let found = recognise_schema(&connection, path)?;
    if found == 0 {
        return Err(Error::EmptyDatabase { path: path.to_owned() });
    }
    let known = i64::try_from(MIGRATIONS.len()).unwrap_or(i64::MAX);
    if found < known {
        return Err(Error::OlderSchema { path: path.to_owned(), found, known });
    }
    Ok(())
}

/// Returns the file's schema version, or 0 for an empty file. Fails if this build does not support the file.
pub(super) fn recognise_schema(connection: &Connection, path: &Path) -> Result<i64, Error> {
    let pragma = |name| connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
    let failed = |error| open_error(path, error);
    let version = pragma("user_version").map_err(failed)?;
    let application = pragma("application_id").map_err(failed)?;
    let tables: i64 = connection
        .query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))
        .map_err(failed)?;
    if application != APPLICATION_ID && (application != 0 || version != 0 || tables != 0) {
        return Err(Error::ForeignDatabase { path: path.to_owned() });
    }
    let known = i64::try_from(MIGRATIONS.len()).unwrap_or(i64::MAX);
    if version > known {
        return Err(Error::NewerSchema { path: path.to_owned(), found: version, known });
    }
    Ok(version)
}

/// Returns the problems that one of SQLite's checks finds; empty if there are none.
pub(super) fn run_check(connection: &Connection, check: &str) -> rusqlite::Result<Vec<String>> {
    let mut statement = connection.prepare(&format!("PRAGMA {check}"))?;
    let lines = statement.query_map([], |row| row.get::<_, String>(0))?;
    lines.filter(|line| !matches!(line.as_deref(), Ok("ok"))).collect()
}

/// Migrates a database from `version` to the newest of `migrations`, each migration in its own transaction.
pub(super) fn migrate(
    connection: &mut Connection,
    version: i64,
    migrations: &[&str],
) -> rusqlite::Result<()> {
    for (from, step) in (0_i64..).zip(migrations).filter(|(from, _)| *from >= version) {
        let transaction = connection.transaction()?;
        transaction.execute_batch(step)?;
        transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
        transaction.pragma_update(None, "user_version", from + 1)?;
        transaction.commit()?;
    }
    Ok(())
}

/// Configures the writer's connection.
fn configure_writer(connection: &Connection) -> rusqlite::Result<()> {
    // This pragma returns a row with the resulting mode, so a plain update would fail.
    connection.pragma_update_and_check(None, "journal_mode", "WAL", |_| Ok(()))?;
    // With WAL, NORMAL would lose the last commits in a power failure; an ack promises durability.
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.pragma_update(None, "foreign_keys", true)?;
    // Checkpoints once per 32 MiB of log: a page that changes in many commits is copied into the file only once.
    connection.pragma_update(None, "wal_autocheckpoint", 8192)?;
    compile_once(connection)
}

/// Makes SQLite compile each statement only once. Without its "query planner stability guarantee", SQLite recompiles
/// many statements for each value, to choose a better plan. Compiling costs several times as much as running them.
pub(super) fn compile_once(connection: &Connection) -> rusqlite::Result<()> {
    connection.set_prepared_statement_cache_capacity(64);
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true).map(drop)
}

/// Makes the database readable only by its owner, whatever the umask is. SQLite creates the files beside it with the
/// same permissions.
fn restrict_to_owner(path: &Path) -> io::Result<()> {
    if !path.exists() {
        File::options().create(true).truncate(false).write(true).mode(0o600).open(path)?;
    }
    for suffix in ["", "-wal", "-shm"] {
        let name = path_with_suffix(path, suffix);
        let Ok(file) = fs::metadata(&name) else { continue };
        // A folder at the database's path is not changed: SQLite's error names it.
        if file.is_file() && file.permissions().mode() & 0o077 != 0 {
            fs::set_permissions(&name, fs::Permissions::from_mode(0o600))?;
        }
    }
    Ok(())
}

/// Takes the lock file beside the database. SQLite's own locks would admit a second writer between two commits.
fn acquire_lock(path: &Path) -> Result<File, Error> {
    let lock_path = lock_file_path(path);
    let failed = |source| Error::Lock { path: lock_path.clone(), source: Arc::new(source) };
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(&lock_path)
        .map_err(failed)?;
    for tries in 1.. {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            // Another process may hold the lock for a moment only: it checks whether it is held, or was forked
            // from the previous holder and has not called `exec` yet.
            Err(TryLockError::WouldBlock) if tries < LOCK_TRIES => {
                std::thread::park_timeout(LOCK_RETRY_PAUSE);
            }
            Err(TryLockError::WouldBlock) => break,
            Err(TryLockError::Error(source)) => return Err(failed(source)),
        }
    }
    Err(Error::InUse { path: path.to_owned() })
}

/// Returns whether a process holds the lock file beside the database. `None` if that cannot be determined.
pub(super) fn is_locked(path: &Path) -> Option<bool> {
    let file = match File::open(lock_file_path(path)) {
        Ok(file) => file,
        // The first writer of the database creates the lock file.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Some(false),
        Err(_) => return None,
    };
    match file.try_lock_shared() {
        Ok(()) => Some(false),
        Err(TryLockError::WouldBlock) => Some(true),
        Err(TryLockError::Error(_)) => None,
    }
}

fn lock_file_path(path: &Path) -> PathBuf {
    path_with_suffix(path, ".lock")
}

/// Returns the path of a file that belongs to the database at `path`.
pub(super) fn path_with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

fn open_error(path: &Path, source: rusqlite::Error) -> Error {
    let path = path.to_owned();
    match source.sqlite_error_code() {
        Some(ErrorCode::NotADatabase) => Error::ForeignDatabase { path },
        Some(ErrorCode::DatabaseCorrupt) => Error::Damaged { path, problem: source.to_string() },
        _ => Error::Open { path, source: Arc::new(source) },
    }
}
