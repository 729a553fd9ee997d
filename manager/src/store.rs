//! The store: one SQLite file per experiment, which contains everything that must outlive the manager.
//!
//! Promises:
//! 1. A write that was answered with `Ok` survives a crash of the process and of the machine (WAL,
//!    `synchronous=FULL`). A write that was answered with an error leaves nothing behind.
//! 2. Writes take effect in the order in which they were requested.
//! 3. A report is stored once. The tuple (trial, attempt, lane, seq) identifies it, and the first one to arrive is
//!    kept.
//! 4. A failing disk stops only writes. Reads continue, and writing resumes as soon as the disk allows it.
//!
//! Only this module contains SQL. The store decides nothing about trials and has no clock: callers pass times as
//! values.

mod attempt_records;
mod database;
mod error;
mod experiment_records;
mod file_identity;
mod gap;
mod nni_profile;
mod notifications;
mod query;
mod readers;
mod report_records;
mod rows;
mod schema;
mod sessions;
#[cfg(test)]
pub(crate) mod simulated_disk;
#[cfg(test)]
mod tests;
mod trial_records;
mod upkeep;
mod writer;

use std::path::Path;

pub use attempt_records::{AttemptCodes, AttemptPart, AttemptRecords, CodeRow, ServicePart};
pub use database::Database;
pub use error::{Error, FailureKind};
pub use experiment_records::ExperimentRecords;
pub use nni_profile::write_nni_profile;
pub use notifications::{NewNotification, NotificationRow, Outbox};
pub use query::{
    AttemptHost, AttemptRow, AttemptStep, LineTime, LogPart, LogQueries, Queries, TrialRevision,
    TrialSummaryRow,
};
pub use report_records::ReportRecords;
pub use rows::{
    AttemptState, ExperimentRow, FinalRecords, ImportedRow, IngestOutcome, LogChunkRow, MetricRow,
    NewTrial, ReceivedBatch, ReportRow, TrialChange, TrialEventRow, TrialRow, TrialTimes,
};
pub use sessions::SessionStore;
pub use trial_records::TrialRecords;
pub use upkeep::{backup, check, is_blank};

/// A handle of the store; cheap to clone. Dropping the last handle blocks until the queued writes are done and the
/// file is closed.
#[derive(Clone, Debug)]
pub struct Store {
    database: Database,
    queries: Queries,
    logs: LogQueries,
    experiment: ExperimentRecords,
    trials: TrialRecords,
    reports: ReportRecords,
    attempt_records: AttemptRecords,
    outbox: Outbox,
    sessions: SessionStore,
}

impl Store {
    /// Opens the database at `path`, and creates or migrates it as needed. Blocks until that is done.
    pub fn open(path: &Path) -> Result<Self, Error> {
        Database::open(path).map(Self::new)
    }

    /// Opens the database at `path` for reading only, whether or not a manager is running. The database must exist
    /// and have the schema of this build. Writes fail with [`Error::Closed`].
    pub fn open_to_read(path: &Path) -> Result<Self, Error> {
        Database::open_to_read(path).map(Self::new)
    }

    fn new(database: Database) -> Self {
        Self {
            queries: Queries::new(database.clone()),
            logs: LogQueries::new(database.clone()),
            experiment: ExperimentRecords::new(database.clone()),
            trials: TrialRecords::new(database.clone()),
            reports: ReportRecords::new(database.clone()),
            attempt_records: AttemptRecords::new(database.clone()),
            outbox: Outbox::new(database.clone()),
            sessions: SessionStore::new(database.clone()),
            database,
        }
    }

    /// Waits for the queued writes, checkpoints, and closes the file. Later writes through other handles fail with
    /// [`Error::Closed`].
    pub async fn close(self) {
        self.database.close().await;
    }

    /// Returns whether this or another process has the database at `path` open for writing. `None` if that cannot be
    /// determined.
    pub fn is_open_to_write(path: &Path) -> Option<bool> {
        schema::is_locked(path)
    }

    /// Returns the database, which knows whether writes succeed.
    pub fn database(&self) -> &Database {
        &self.database
    }

    /// Returns the queries of the pages, the API and the command line.
    pub fn queries(&self) -> &Queries {
        &self.queries
    }

    /// Returns the queries of the trials' output.
    pub fn logs(&self) -> &LogQueries {
        &self.logs
    }

    /// Returns the records of the experiment.
    pub fn experiment(&self) -> &ExperimentRecords {
        &self.experiment
    }

    /// Returns the records of the trials.
    pub fn trials(&self) -> &TrialRecords {
        &self.trials
    }

    /// Returns the records of the reports.
    pub fn reports(&self) -> &ReportRecords {
        &self.reports
    }

    /// Returns the manager's own records about attempts.
    pub fn attempt_records(&self) -> &AttemptRecords {
        &self.attempt_records
    }

    /// Returns the outbox of notifications.
    pub fn outbox(&self) -> &Outbox {
        &self.outbox
    }

    /// Returns the browsers' sessions.
    pub fn sessions(&self) -> &SessionStore {
        &self.sessions
    }
}
