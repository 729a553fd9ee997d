//! A pool of connections for readers, so that reading never waits for writing.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use rusqlite::types::Type;
use rusqlite::{Connection, Row};
use serde_json::Value;
use tokio::sync::Semaphore;

use super::Error;
use super::schema;

/// The number of idle connections that are kept. More are opened on demand and closed after use.
const MAX_IDLE_CONNECTIONS: usize = 4;

/// The maximum number of concurrent readers; others wait. Each reader needs a thread, a connection with its page
/// cache, and the memory that the allocator keeps per thread.
const MAX_READERS: usize = 8;

/// The readers' connections.
#[derive(Debug)]
pub(super) struct Readers {
    path: PathBuf,
    idle: Mutex<Vec<Connection>>,
    permits: Arc<Semaphore>,
}

impl Readers {
    pub(super) fn new(path: &Path) -> Self {
        let permits = Arc::new(Semaphore::new(MAX_READERS));
        Self { path: path.to_owned(), idle: Mutex::new(Vec::new()), permits }
    }

    /// Runs `work` on a connection, on a thread where it may block.
    pub(super) async fn read<T: Send + 'static>(
        self: Arc<Self>,
        work: impl FnOnce(&Connection) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let permit = Arc::clone(&self.permits).acquire_owned().await.map_err(|_| Error::Closed)?;
        let reading = tokio::task::spawn_blocking(move || {
            // The permit is held until the work ends, even if the caller has dropped the future.
            let _permit = permit;
            self.read_here(work)
        });
        reading.await.unwrap_or(Err(Error::Closed))
    }

    fn read_here<T>(&self, work: impl FnOnce(&Connection) -> Result<T, Error>) -> Result<T, Error> {
        let kept = self.idle().pop();
        let connection = match kept {
            Some(connection) => connection,
            None => schema::open_reader(&self.path)?,
        };
        let result = work(&connection);
        let mut idle = self.idle();
        if idle.len() < MAX_IDLE_CONNECTIONS {
            idle.push(connection);
        }
        result
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Closes the idle connections.
    pub(super) fn close(&self) {
        self.idle().clear();
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().expect("nothing panics while it holds this")
    }
}

/// Parses a text column.
pub(super) fn parse_column<'r, T, E: fmt::Display>(
    row: &'r Row<'_>,
    column: &'static str,
    parse: impl FnOnce(&'r str) -> Result<T, E>,
) -> Result<T, Error> {
    let text = row.get_ref(column)?.as_str().map_err(|error| unreadable_error(column, error))?;
    parse(text).map_err(|problem| unreadable_error(column, problem))
}

/// Parses a column that may be NULL.
pub(super) fn parse_optional_column<'r, T, E: fmt::Display>(
    row: &'r Row<'_>,
    column: &'static str,
    parse: impl FnOnce(&'r str) -> Result<T, E>,
) -> Result<Option<T>, Error> {
    if row.get_ref(column)?.data_type() == Type::Null {
        return Ok(None);
    }
    parse_column(row, column, parse).map(Some)
}

/// Parses a JSON column.
pub(super) fn parse_json_column(row: &Row<'_>, column: &'static str) -> Result<Value, Error> {
    parse_column(row, column, serde_json::from_str::<Value>)
}

/// Reads a column whose number is never negative.
pub(super) fn read_unsigned(row: &Row<'_>, column: &'static str) -> Result<u64, Error> {
    let number: i64 = row.get(column)?;
    u64::try_from(number).map_err(|problem| unreadable_error(column, problem))
}

/// Reads an unsigned number from a column that may be NULL.
pub(super) fn read_optional_unsigned(
    row: &Row<'_>,
    column: &'static str,
) -> Result<Option<u64>, Error> {
    let number: Option<i64> = row.get(column)?;
    number.map(u64::try_from).transpose().map_err(|problem| unreadable_error(column, problem))
}

/// Converts a number to SQLite's signed integer type.
pub(super) fn to_storable(what: &'static str, value: u64) -> Result<i64, Error> {
    i64::try_from(value).map_err(|_| Error::TooLarge { what, value })
}

pub(super) fn unreadable_error(what: &'static str, problem: impl fmt::Display) -> Error {
    Error::Unreadable { what, problem: problem.to_string() }
}
