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
use std::sync::Arc;

use rusqlite::Connection;
use trial_protocol::{AttemptId, Lane, Stream, TrialJobId, Verdict};

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
pub use rows::{
    Arrival, AttemptState, ExperimentRow, FinalRecords, ImportedRow, IngestOutcome, LogChunkRow,
    MetricRow, NewTrial, ReportRow, TrialChange, TrialEventRow, TrialRow, TrialTimes,
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

    /// Stores a final result that the manager derived for an attempt, unless one is stored.
    pub async fn insert_derived_metric(
        &self,
        id: &TrialJobId,
        attempt: &AttemptId,
        metric: trial_protocol::Metric,
        at_ms: i64,
    ) -> Result<(), Error> {
        let (id, attempt) = (id.clone(), attempt.clone());
        self.database
            .write(move |c| report_records::insert_derived_metric(c, &id, &attempt, &metric, at_ms))
            .await
    }

    /// Stores the manager's own verdict on an attempt, which takes precedence over the agent's verdict.
    pub async fn record_verdict(
        &self,
        id: &TrialJobId,
        attempt: &AttemptId,
        verdict: Verdict,
        at_ms: i64,
    ) -> Result<(), Error> {
        let (id, attempt) = (id.clone(), attempt.clone());
        self.database
            .write(move |c| report_records::insert_verdict(c, &id, &attempt, &verdict, at_ms))
            .await
    }

    /// Returns a trial's metrics: attempts in the order of their first report, and each attempt's metrics by seq.
    pub async fn metrics(&self, id: &TrialJobId) -> Result<Vec<MetricRow>, Error> {
        let id = id.clone();
        self.database.read(move |c| report_records::metrics(c, &id)).await
    }

    /// Returns the final records of these attempts, in the order of the arguments.
    pub async fn final_records(
        &self,
        attempts: Vec<(TrialJobId, AttemptId)>,
    ) -> Result<Vec<FinalRecords>, Error> {
        self.database
            .read(move |c| {
                let words = attempts.iter().map(|(id, attempt)| {
                    let ended = report_records::attempt_state(c, id, attempt)?.ended;
                    let verdict =
                        if ended { report_records::verdict(c, id, attempt)? } else { None };
                    let started_at_ms = report_records::started_at(c, id, attempt)?;
                    Ok(FinalRecords {
                        ended,
                        started_at_ms,
                        verdict,
                        metrics: report_records::metrics(c, id)?,
                    })
                });
                words.collect()
            })
            .await
    }

    /// Returns all reports of a trial's agents on one lane as they arrived, except log chunks.
    pub async fn reports(&self, id: &TrialJobId, lane: Lane) -> Result<Vec<ReportRow>, Error> {
        let id = id.clone();
        self.database.read(move |c| report_records::reports(c, &id, lane)).await
    }

    /// Returns a trial's output on one stream, as far as it has been delivered.
    pub async fn log(&self, id: &TrialJobId, stream: Stream) -> Result<Vec<LogChunkRow>, Error> {
        let id = id.clone();
        self.database.read(move |c| report_records::log(c, &id, stream)).await
    }

    /// Returns the end of an attempt's output on one stream, in bytes, as far as it has been delivered.
    pub async fn log_end(
        &self,
        id: &TrialJobId,
        attempt: &AttemptId,
        stream: Stream,
    ) -> Result<u64, Error> {
        let (id, attempt) = (id.clone(), attempt.clone());
        self.database.read(move |c| report_records::log_end(c, &id, &attempt, stream)).await
    }

    /// Returns the state of an attempt's reports. Every field is empty if no report of the attempt has arrived.
    pub async fn attempt_state(
        &self,
        id: &TrialJobId,
        attempt: &AttemptId,
    ) -> Result<AttemptState, Error> {
        let (id, attempt) = (id.clone(), attempt.clone());
        self.database.read(move |c| report_records::attempt_state(c, &id, &attempt)).await
    }

    /// Stores the reports of a batch that are not stored yet. If too many writes are queued, it fails with
    /// [`Error::Overloaded`] instead of waiting. The caller may keep the batch to submit it again.
    pub async fn ingest(&self, arrival: Arc<Arrival>, now_ms: i64) -> Result<IngestOutcome, Error> {
        let work = {
            let arrival = Arc::clone(&arrival);
            move |c: &Connection| report_records::ingest(c, &arrival, now_ms)
        };
        let weight = 1 + arrival.batch.reports.len();
        let written = self.database.try_write(weight, work).await?;
        let new = written.fresh.iter();
        let fresh = match Arc::try_unwrap(arrival) {
            Ok(own) => {
                let reports = own.batch.reports.into_iter().zip(new);
                reports.filter_map(|(report, new)| new.then_some(report)).collect()
            }
            Err(shared) => {
                let reports = shared.batch.reports.iter().zip(new);
                reports.filter(|(_, new)| **new).map(|(report, _)| report.clone()).collect()
            }
        };
        Ok(IngestOutcome { through: written.through, fresh, resend: written.resend })
    }
}
