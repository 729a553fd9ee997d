//! The errors of the store, and their remedies.

use std::path::PathBuf;
use std::sync::Arc;

use rusqlite::ErrorCode;
use trial_protocol::{AttemptId, TrialJobId};

/// An error of the store. Nothing of a failed write is stored.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// The file or its folder cannot be used.
    #[error("cannot open the database {}; check that its folder exists, is writable and has free space", .path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// The error of SQLite or the system.
        #[source]
        source: Arc<rusqlite::Error>,
    },
    /// The lock file beside the database cannot be created.
    #[error("cannot lock the database with {}", .path.display())]
    Lock {
        /// The lock file.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: Arc<std::io::Error>,
    },
    /// Another manager uses the database.
    #[error("the database {} is in use by another trial-manager; stop that manager first", .path.display())]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// The file is not a database of TrialKeeper.
    #[error("{} is not a database of trial-manager; move it away or choose another --data-dir", .path.display())]
    ForeignDatabase {
        /// The file.
        path: PathBuf,
    },
    /// A newer trial-manager wrote the database.
    #[error(
        "the database {} has schema {found} and this trial-manager supports at most {known}; use a newer trial-manager",
        .path.display()
    )]
    NewerSchema {
        /// The file.
        path: PathBuf,
        /// Its schema.
        found: i64,
        /// The newest schema of this build.
        known: i64,
    },
    /// The database has no tables yet.
    #[error(
        "the database {} is empty, because its manager ended before it recorded the experiment; \
         `trial-manager experiment rm` removes the experiment",
        .path.display()
    )]
    EmptyDatabase {
        /// The file.
        path: PathBuf,
    },
    /// An older trial-manager wrote the database, and a reader cannot migrate it.
    #[error(
        "the database {} has schema {found} and this trial-manager reads {known}; `trial-manager resume` migrates it",
        .path.display()
    )]
    OlderSchema {
        /// The file.
        path: PathBuf,
        /// Its schema.
        found: i64,
        /// The schema of this build.
        known: i64,
    },
    /// The file is a database of TrialKeeper and damaged.
    #[error("the database {} is damaged ({problem}); restore a backup or move it away", .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The first problem that SQLite's check found.
        problem: String,
    },
    /// An entry with this identifier already exists.
    #[error("{0} already exists in the database")]
    Exists(String),
    /// The trial does not exist.
    #[error("there is no trial {0}")]
    UnknownTrial(TrialJobId),
    /// The request is about an attempt that is no longer the trial's current one.
    #[error("the trial's current attempt is {0}")]
    Superseded(AttemptId),
    /// There is no experiment yet.
    #[error("the database contains no experiment")]
    NoExperiment,
    /// A number that SQLite cannot store. A correct agent never sends such a number.
    #[error("{what} is {value}, more than 2^63 - 1")]
    TooLarge {
        /// The name of the number.
        what: &'static str,
        /// The number.
        value: u64,
    },
    /// The open file is no longer the one at its path: the file was removed or replaced.
    #[error(
        "the database {} was removed or replaced while this manager had it open, so nothing can be stored; put the file \
         back, or stop this manager and restore a backup",
        .path.display()
    )]
    Displaced {
        /// The path of the file.
        path: PathBuf,
    },
    /// Too many writes are waiting.
    #[error("too many writes are waiting for the database; try again later")]
    Overloaded,
    /// The store was closed, or its writer has died.
    #[error("the database is closed")]
    Closed,
    /// A stored value that this build cannot interpret.
    #[error("the database's {what} cannot be read: {problem}")]
    Unreadable {
        /// The name of the value.
        what: &'static str,
        /// The problem.
        problem: String,
    },
    /// A backup could not be written.
    #[error("cannot write the backup {}: {problem}", .path.display())]
    Backup {
        /// The file.
        path: PathBuf,
        /// The problem.
        problem: String,
    },
    /// An SQLite operation failed.
    #[error("the database failed: {}", .kind.as_str())]
    Failed {
        /// The kind of failure.
        kind: FailureKind,
        /// SQLite's error.
        #[source]
        source: Arc<rusqlite::Error>,
    },
}

/// The kinds of failure that need different remedies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureKind {
    /// No space is left (`SQLITE_FULL`).
    Full,
    /// The disk fails or is no longer writable (`SQLITE_IOERR`, `SQLITE_READONLY`, `SQLITE_CANTOPEN`).
    Disk,
    /// The file is damaged (`SQLITE_CORRUPT`, `SQLITE_NOTADB`).
    Damaged,
    /// Another process has locked the file (`SQLITE_BUSY`, `SQLITE_LOCKED`).
    Busy,
    /// Any other failure, which is a fault of this program.
    Internal,
}

impl FailureKind {
    /// Returns a message for the operator, with the remedy.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Full => "no space is left on its disk; free some space",
            Self::Disk => "its disk cannot be read or written; see the system's log",
            Self::Damaged => "its file is damaged; restore a backup",
            Self::Busy => "another process has locked it; stop that process",
            Self::Internal => "a fault of this program",
        }
    }

    fn from_sqlite(error: &rusqlite::Error) -> Self {
        match error.sqlite_error_code() {
            Some(ErrorCode::DiskFull) => Self::Full,
            Some(
                ErrorCode::SystemIoFailure
                | ErrorCode::ReadOnly
                | ErrorCode::CannotOpen
                | ErrorCode::PermissionDenied,
            ) => Self::Disk,
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => Self::Damaged,
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Self::Busy,
            _ => Self::Internal,
        }
    }
}

impl From<rusqlite::Error> for Error {
    fn from(source: rusqlite::Error) -> Self {
        Self::Failed { kind: FailureKind::from_sqlite(&source), source: Arc::new(source) }
    }
}

impl Error {
    /// Returns whether the request itself was wrong. Such an error occurs before anything is written. It does not
    /// affect the database or the other writes of the same commit.
    pub(super) fn is_refusal(&self) -> bool {
        match self {
            Self::Exists(_)
            | Self::UnknownTrial(_)
            | Self::Superseded(_)
            | Self::NoExperiment
            | Self::TooLarge { .. } => true,
            Self::Open { .. }
            | Self::Lock { .. }
            | Self::InUse { .. }
            | Self::ForeignDatabase { .. }
            | Self::NewerSchema { .. }
            | Self::EmptyDatabase { .. }
            | Self::OlderSchema { .. }
            | Self::Damaged { .. }
            | Self::Displaced { .. }
            | Self::Overloaded
            | Self::Closed
            | Self::Unreadable { .. }
            | Self::Backup { .. }
            | Self::Failed { .. } => false,
        }
    }

    /// Returns whether the error may be temporary, or disappear once an operator has freed space.
    pub fn is_temporary(&self) -> bool {
        match self.failure_kind() {
            Some(FailureKind::Full | FailureKind::Disk | FailureKind::Busy) => true,
            Some(FailureKind::Damaged | FailureKind::Internal) => false,
            None => matches!(self, Self::Displaced { .. }),
        }
    }

    /// Returns the kind of failure if SQLite failed.
    pub fn failure_kind(&self) -> Option<FailureKind> {
        if let Self::Failed { kind, .. } = self { Some(*kind) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use rusqlite::ffi;

    use super::*;

    #[test]
    fn sqlite_codes_are_classified() {
        #[rustfmt::skip]
        let table = [
            (ffi::SQLITE_FULL,           FailureKind::Full),
            (ffi::SQLITE_IOERR,          FailureKind::Disk),
            (ffi::SQLITE_IOERR_FSYNC,    FailureKind::Disk),
            (ffi::SQLITE_READONLY,       FailureKind::Disk),
            (ffi::SQLITE_CANTOPEN,       FailureKind::Disk),
            (ffi::SQLITE_CORRUPT,        FailureKind::Damaged),
            (ffi::SQLITE_NOTADB,         FailureKind::Damaged),
            (ffi::SQLITE_BUSY,           FailureKind::Busy),
            (ffi::SQLITE_BUSY_SNAPSHOT,  FailureKind::Busy),
            (ffi::SQLITE_CONSTRAINT,     FailureKind::Internal),
        ];
        for (code, class) in table {
            let error = Error::from(rusqlite::Error::SqliteFailure(ffi::Error::new(code), None));
            assert_eq!(error.failure_kind(), Some(class), "{code}");
        }
    }
}
