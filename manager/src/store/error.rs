//! The errors of the store, and what the caller may do about each.

use std::path::PathBuf;
use std::sync::Arc;

use rusqlite::ErrorCode;
use trial_protocol::{AttemptId, TrialJobId};

/// The reason that the store did not do as asked. Nothing of a failed write is stored.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// The file or its folder cannot be used at all.
    #[error("cannot open the database {}; does its folder exist, may this user write there, and is there room?", .path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// The error of SQLite or the system.
        #[source]
        source: Arc<rusqlite::Error>,
    },
    /// The lock file beside the database cannot be made.
    #[error("cannot lock the database with {}", .path.display())]
    Lock {
        /// The lock file.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: Arc<std::io::Error>,
    },
    /// Another manager works on it.
    #[error("the database {} is in use by another trial-manager; stop that one first", .path.display())]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// The file is something else.
    #[error("{} is not a database of trial-manager; move it away or choose another --data-dir", .path.display())]
    NotOurs {
        /// The file.
        path: PathBuf,
    },
    /// A newer trial-manager wrote it.
    #[error(
        "the database {} has schema {found} and this trial-manager knows up to {known}; use a newer trial-manager",
        .path.display()
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its schema.
        found: i64,
        /// The newest schema of this build.
        known: i64,
    },
    /// An older trial-manager wrote it, and reading alone cannot bring it up to date.
    #[error(
        "the database {} has schema {found} and this trial-manager reads {known}; `trial-manager resume` \
         brings it up to date",
        .path.display()
    )]
    Older {
        /// The file.
        path: PathBuf,
        /// Its schema.
        found: i64,
        /// The schema of this build.
        known: i64,
    },
    /// The file is TrialKeeper's, and broken.
    #[error("the database {} is damaged ({problem}); restore a backup or move it away", .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The first thing that SQLite's check found.
        problem: String,
    },
    /// There is something of that name already.
    #[error("{0} is in the database already")]
    Exists(String),
    /// No such trial.
    #[error("there is no trial {0}")]
    UnknownTrial(TrialJobId),
    /// Another attempt of the trial is the current one.
    #[error("the trial's attempt is {0} by now")]
    Superseded(AttemptId),
    /// There is no experiment yet.
    #[error("the database holds no experiment")]
    NoExperiment,
    /// A number that SQLite cannot hold, which no honest agent sends.
    #[error("{what} is {value}, more than 2^63 - 1")]
    TooLarge {
        /// The number.
        what: &'static str,
        /// The number.
        value: u64,
    },
    /// The file that is open is no longer the one at its path: it was removed, or another was put in its place.
    #[error(
        "the database {} was removed or replaced while this manager had it open, so nothing can be kept; put the file \
         back, or stop this manager and restore a backup",
        .path.display()
    )]
    Displaced {
        /// Where the file was.
        path: PathBuf,
    },
    /// Too many writes wait already.
    #[error("too many writes are waiting for the database; try again later")]
    Overloaded,
    /// The store was closed, or its writer has died.
    #[error("the database is closed")]
    Closed,
    /// A stored value that does not mean anything to this build.
    #[error("the database's {what} cannot be read: {problem}")]
    Unreadable {
        /// The value.
        what: &'static str,
        /// The problem.
        problem: String,
    },
    /// A copy for a backup could not be made.
    #[error("cannot write the backup {}: {problem}", .path.display())]
    Backup {
        /// The file.
        path: PathBuf,
        /// The problem.
        problem: String,
    },
    /// SQLite could not do it.
    #[error("the database failed: {}", .class.as_str())]
    Failed {
        /// The kind of failure.
        class: Class,
        /// SQLite's error.
        #[source]
        source: Arc<rusqlite::Error>,
    },
}

/// Kinds of failure that an operator treats differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// No space left (`SQLITE_FULL`).
    Full,
    /// The disk fails, or cannot be written any more (`SQLITE_IOERR`, `SQLITE_READONLY`, `SQLITE_CANTOPEN`).
    Disk,
    /// The file is damaged (`SQLITE_CORRUPT`, `SQLITE_NOTADB`).
    Damaged,
    /// Another process holds the file (`SQLITE_BUSY`, `SQLITE_LOCKED`).
    Busy,
    /// Anything else: a fault of this program.
    Internal,
}

impl Class {
    /// Returns the sentence for the operator, with the remedy.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Full => "no space is left on its disk; free some",
            Self::Disk => "its disk cannot be read or written; see the system's log",
            Self::Damaged => "its file is damaged; restore a backup",
            Self::Busy => "another process holds it; end that one",
            Self::Internal => "a fault of this program",
        }
    }

    fn of(error: &rusqlite::Error) -> Self {
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
        Self::Failed { class: Class::of(&source), source: Arc::new(source) }
    }
}

impl Error {
    /// Returns whether the request itself was wrong. Then the database is as healthy as before, and other writes of the
    /// same commit are not touched. Such an error comes before anything was written.
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
            | Self::NotOurs { .. }
            | Self::Newer { .. }
            | Self::Older { .. }
            | Self::Damaged { .. }
            | Self::Displaced { .. }
            | Self::Overloaded
            | Self::Closed
            | Self::Unreadable { .. }
            | Self::Backup { .. }
            | Self::Failed { .. } => false,
        }
    }

    /// Returns whether it may pass by itself, or when an operator has made room.
    pub fn may_pass(&self) -> bool {
        match self.class() {
            Some(Class::Full | Class::Disk | Class::Busy) => true,
            Some(Class::Damaged | Class::Internal) => false,
            None => matches!(self, Self::Displaced { .. }),
        }
    }

    /// The kind of failure, where SQLite failed.
    pub fn class(&self) -> Option<Class> {
        if let Self::Failed { class, .. } = self { Some(*class) } else { None }
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
            (ffi::SQLITE_FULL,           Class::Full),
            (ffi::SQLITE_IOERR,          Class::Disk),
            (ffi::SQLITE_IOERR_FSYNC,    Class::Disk),
            (ffi::SQLITE_READONLY,       Class::Disk),
            (ffi::SQLITE_CANTOPEN,       Class::Disk),
            (ffi::SQLITE_CORRUPT,        Class::Damaged),
            (ffi::SQLITE_NOTADB,         Class::Damaged),
            (ffi::SQLITE_BUSY,           Class::Busy),
            (ffi::SQLITE_BUSY_SNAPSHOT,  Class::Busy),
            (ffi::SQLITE_CONSTRAINT,     Class::Internal),
        ];
        for (code, class) in table {
            let error = Error::from(rusqlite::Error::SqliteFailure(ffi::Error::new(code), None));
            assert_eq!(error.class(), Some(class), "{code}");
        }
    }
}
