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

mod code;
mod error;
mod file_identity;
mod gap;
mod image;
mod nni_profile;
mod notifications;
mod query;
mod read;
mod reports;
mod rows;
mod schema;
mod service_part;
mod sessions;
#[cfg(test)]
mod tests;
mod trials;
mod upkeep;
mod write_error;
mod writer;

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use rusqlite::Connection;
use tokio::sync::{mpsc, watch};
use trial_protocol::{AttemptId, Lane, StopReason, Stream, TrialJobId, Verdict};

pub use code::{AttemptCodes, CodeRow};
pub use error::{Class, Error};
use file_identity::FileIdentity;
pub use nni_profile::write_nni_profile;
pub use notifications::{NewNotification, NotificationRow};
pub use query::{AttemptHost, AttemptRow, AttemptStep, Change, LineTime, LogPart, TrialSummaryRow};
use read::Readers;
pub use rows::{
    Arrival, AttemptState, ExperimentRow, ImportedRow, Ingested, LastWords, LogChunkRow, MetricRow,
    NewTrial, ReportRow, Span, TrialChange, TrialEventRow, TrialRow,
};
pub use service_part::{AttemptPart, ServicePart};
use writer::{Message, Write, WriterState};

/// The number of writes that may wait for the writer. Batches of reports beyond it are refused, because an agent can
/// wait longer than the manager.
const QUEUE: usize = 1024;

/// A handle of the store; cheap to clone. Dropping the last handle blocks until the queued writes are done and the
/// file is closed.
#[derive(Clone, Debug)]
pub struct Store {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    // `None` only while the handle is dropped.
    queue: Option<mpsc::Sender<Message>>,
    readers: Arc<Readers>,
    shared: Arc<WriterState>,
    thread: Mutex<Option<JoinHandle<()>>>,
    reads_only: bool,
}

impl Store {
    /// Opens the database at `path`, and creates or migrates it as needed. Blocks until that is done.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let opened = schema::open_writer(path)?;
        let (queue, receiver) = mpsc::channel(QUEUE);
        let identity = FileIdentity::of(path)
            .map_err(|source| Error::Lock { path: path.to_owned(), source: Arc::new(source) })?;
        let shared = Arc::new(WriterState { identity: Some(identity), ..WriterState::default() });
        let state = Arc::clone(&shared);
        let callers = tokio::runtime::Handle::try_current().ok();
        let thread = std::thread::Builder::new()
            .name("store".to_owned())
            .spawn(move || writer::run(opened, receiver, &state, callers.as_ref()))
            .expect("a process that cannot start one thread cannot do anything");
        Ok(Self {
            inner: Arc::new(Inner {
                queue: Some(queue),
                readers: Arc::new(Readers::new(path)),
                shared,
                thread: Mutex::new(Some(thread)),
                reads_only: false,
            }),
        })
    }

    /// Opens the database at `path` for reading only, whether or not a manager is running. The database must exist
    /// and have the schema of this build. Writes fail with [`Error::Closed`].
    pub fn open_to_read(path: &Path) -> Result<Self, Error> {
        schema::check_reader(path)?;
        let (queue, _) = mpsc::channel(1);
        Ok(Self {
            inner: Arc::new(Inner {
                queue: Some(queue),
                readers: Arc::new(Readers::new(path)),
                shared: Arc::default(),
                thread: Mutex::new(None),
                reads_only: true,
            }),
        })
    }

    /// Returns whether this or another process has the database at `path` open for writing. `None` if that cannot be
    /// determined.
    pub fn is_open_to_write(path: &Path) -> Option<bool> {
        schema::is_locked(path)
    }

    /// Returns whether any process has this store's database open for writing.
    pub fn has_writer(&self) -> Option<bool> {
        Self::is_open_to_write(self.inner.readers.path())
    }

    /// Waits for the queued writes, checkpoints, and closes the file. Later writes through other handles fail with
    /// [`Error::Closed`].
    pub async fn close(self) {
        // An error means that the writer has ended already.
        drop(self.queue().send(Message::Close).await);
        let inner = Arc::clone(&self.inner);
        drop(
            tokio::task::spawn_blocking(move || {
                inner.readers.close();
                inner.join();
            })
            .await,
        );
    }

    /// Stores the experiment of this database.
    pub async fn create_experiment(&self, row: ExperimentRow) -> Result<(), Error> {
        self.write(move |c| trials::create_experiment(c, &row)).await
    }

    /// Returns the experiment of this database. `None` if the database is new.
    pub async fn experiment(&self) -> Result<Option<ExperimentRow>, Error> {
        self.read(trials::experiment).await
    }

    /// Replaces the experiment's checked file after a change of its limits.
    pub async fn set_canonical(&self, canonical: serde_json::Value) -> Result<(), Error> {
        self.write(move |c| trials::set_canonical(c, &canonical)).await
    }

    /// Stores imported results, all or none.
    pub async fn import(&self, rows: Vec<ImportedRow>, at_ms: i64) -> Result<(), Error> {
        self.write(move |c| trials::import(c, &rows, at_ms)).await
    }

    /// Returns all imported results, in the order of their import.
    pub async fn imported(&self) -> Result<Vec<ImportedRow>, Error> {
        self.read(trials::imported).await
    }

    /// Stores the experiment's state and its running time. `DONE`, `STOPPED` and `ERROR`, NNI's names for an end, set
    /// the end time to `at_ms`; any other state clears it.
    pub async fn set_experiment_state(
        &self,
        state: &str,
        elapsed_ms: u64,
        at_ms: i64,
    ) -> Result<(), Error> {
        let ended_at_ms = trials::is_end(state).then_some(at_ms);
        let state = state.to_owned();
        self.write(move |c| trials::set_experiment_state(c, &state, elapsed_ms, ended_at_ms)).await
    }

    /// Stores a new trial in state WAITING, before the trial is submitted.
    pub async fn insert_trial(&self, new: NewTrial) -> Result<(), Error> {
        self.write(move |c| trials::insert_trial(c, &new)).await
    }

    /// Stores several new trials, all or none.
    pub async fn insert_trials(&self, new: Vec<NewTrial>) -> Result<(), Error> {
        self.write(move |c| new.iter().try_for_each(|new| trials::insert_trial(c, new))).await
    }

    /// Stores a change of a trial in its row and in its timeline.
    pub async fn change_trial(&self, id: &TrialJobId, change: TrialChange) -> Result<(), Error> {
        let id = id.clone();
        self.write(move |c| trials::change_trial(c, &id, &change)).await
    }

    /// Stores a change and increments the trial's retry counter.
    pub async fn retry_trial(&self, id: &TrialJobId, change: TrialChange) -> Result<(), Error> {
        let id = id.clone();
        self.write(move |c| {
            trials::change_trial(c, &id, &change)?;
            trials::count_retry(c, &id)
        })
        .await
    }

    /// Stores changes of several trials, all or none.
    pub async fn change_trials(
        &self,
        changes: Vec<(TrialJobId, TrialChange)>,
    ) -> Result<(), Error> {
        self.write(move |c| {
            changes.iter().try_for_each(|(id, change)| trials::change_trial(c, id, change))
        })
        .await
    }

    /// Stores the reason for which the manager is about to stop each trial, all or none. `None` clears the reason.
    pub async fn set_intents(
        &self,
        intents: &[(TrialJobId, Option<StopReason>)],
        at_ms: i64,
    ) -> Result<(), Error> {
        let intents = intents.to_vec();
        self.write(move |c| {
            intents.iter().try_for_each(|(id, intent)| trials::set_intent(c, id, *intent, at_ms))
        })
        .await
    }

    /// Stores a final result that the manager derived for an attempt, unless one is stored.
    pub async fn derive(
        &self,
        id: &TrialJobId,
        attempt: &AttemptId,
        metric: trial_protocol::Metric,
        at_ms: i64,
    ) -> Result<(), Error> {
        let (id, attempt) = (id.clone(), attempt.clone());
        self.write(move |c| reports::derive(c, &id, &attempt, &metric, at_ms)).await
    }

    /// Stores the manager's own verdict on an attempt, which takes precedence over the agent's verdict.
    pub async fn judge(
        &self,
        id: &TrialJobId,
        attempt: &AttemptId,
        verdict: Verdict,
        at_ms: i64,
    ) -> Result<(), Error> {
        let (id, attempt) = (id.clone(), attempt.clone());
        self.write(move |c| reports::judge(c, &id, &attempt, &verdict, at_ms)).await
    }

    /// Returns all trials, ordered by sequence.
    pub async fn trials(&self) -> Result<Vec<TrialRow>, Error> {
        self.read(trials::trials).await
    }

    /// Returns the trial with this id, if it exists.
    pub async fn trial(&self, id: &TrialJobId) -> Result<Option<TrialRow>, Error> {
        let id = id.clone();
        self.read(move |c| trials::trial(c, &id)).await
    }

    /// Returns a trial's timeline, oldest event first.
    pub async fn events(&self, id: &TrialJobId) -> Result<Vec<TrialEventRow>, Error> {
        let id = id.clone();
        self.read(move |c| trials::events(c, &id)).await
    }

    /// Returns a trial's metrics: attempts in the order of their first report, and each attempt's metrics by seq.
    pub async fn metrics(&self, id: &TrialJobId) -> Result<Vec<MetricRow>, Error> {
        let id = id.clone();
        self.read(move |c| reports::metrics(c, &id)).await
    }

    /// Returns the metrics of all trials: trials by sequence, each trial's metrics as in [`Store::metrics`].
    pub async fn all_metrics(&self) -> Result<Vec<(TrialJobId, MetricRow)>, Error> {
        self.read(reports::all_metrics).await
    }

    /// Returns the verdict on an attempt. `None` if the attempt has not ended, or its agent died before it could
    /// report.
    pub async fn verdict(
        &self,
        id: &TrialJobId,
        attempt: &AttemptId,
    ) -> Result<Option<Verdict>, Error> {
        let (id, attempt) = (id.clone(), attempt.clone());
        self.read(move |c| reports::verdict(c, &id, &attempt)).await
    }

    /// Returns the final records of these attempts, in the order of the arguments.
    pub async fn last_words(
        &self,
        attempts: Vec<(TrialJobId, AttemptId)>,
    ) -> Result<Vec<LastWords>, Error> {
        self.read(move |c| {
            let words = attempts.iter().map(|(id, attempt)| {
                let ended = reports::attempt_state(c, id, attempt)?.ended;
                let verdict = if ended { reports::verdict(c, id, attempt)? } else { None };
                let started_at_ms = reports::started(c, id, attempt)?;
                Ok(LastWords { ended, started_at_ms, verdict, metrics: reports::metrics(c, id)? })
            });
            words.collect()
        })
        .await
    }

    /// Returns all reports of a trial's agents on one lane as they arrived, except log chunks.
    pub async fn reports(&self, id: &TrialJobId, lane: Lane) -> Result<Vec<ReportRow>, Error> {
        let id = id.clone();
        self.read(move |c| reports::reports(c, &id, lane)).await
    }

    /// Returns a trial's output on one stream, as far as it has been delivered.
    pub async fn log(&self, id: &TrialJobId, stream: Stream) -> Result<Vec<LogChunkRow>, Error> {
        let id = id.clone();
        self.read(move |c| reports::log(c, &id, stream)).await
    }

    /// Returns the end of an attempt's output on one stream, in bytes, as far as it has been delivered.
    pub async fn log_end(
        &self,
        id: &TrialJobId,
        attempt: &AttemptId,
        stream: Stream,
    ) -> Result<u64, Error> {
        let (id, attempt) = (id.clone(), attempt.clone());
        self.read(move |c| reports::log_end(c, &id, &attempt, stream)).await
    }

    /// Returns the state of an attempt's reports. Every field is empty if no report of the attempt has arrived.
    pub async fn attempt_state(
        &self,
        id: &TrialJobId,
        attempt: &AttemptId,
    ) -> Result<AttemptState, Error> {
        let (id, attempt) = (id.clone(), attempt.clone());
        self.read(move |c| reports::attempt_state(c, &id, &attempt)).await
    }

    /// Stores the reports of a batch that are not stored yet. If too many writes are queued, it fails with
    /// [`Error::Overloaded`] instead of waiting.
    pub async fn ingest(
        &self,
        arrival: impl Into<Arrival>,
        now_ms: i64,
    ) -> Result<Ingested, Error> {
        self.ingest_shared(Arc::new(arrival.into()), now_ms).await
    }

    /// Stores a batch for a caller that may have to submit it again.
    pub async fn ingest_shared(
        &self,
        arrival: Arc<Arrival>,
        now_ms: i64,
    ) -> Result<Ingested, Error> {
        let work = {
            let arrival = Arc::clone(&arrival);
            move |c: &Connection| reports::ingest(c, &arrival, now_ms)
        };
        let (job, answer) = Write::job(1 + arrival.batch.reports.len(), work);
        self.queue().try_send(Message::Write(job)).map_err(|refused| match refused {
            mpsc::error::TrySendError::Full(_) => Error::Overloaded,
            mpsc::error::TrySendError::Closed(_) => Error::Closed,
        })?;
        let written = answer.await.map_err(|_| Error::Closed)??;
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
        Ok(Ingested { through: written.through, fresh, resend: written.resend })
    }

    /// Returns the number of commits since the store was opened.
    pub fn commits(&self) -> u64 {
        *self.inner.shared.commits.borrow()
    }

    /// Returns the number of commits as a watch channel, for callers that wait for the next one. For a read-only
    /// store, whose writer is another process, it never changes, and waiting returns an error.
    pub fn watch(&self) -> watch::Receiver<u64> {
        if self.inner.reads_only {
            return watch::channel(0).1;
        }
        self.inner.shared.commits.subscribe()
    }

    /// Returns the number of the latest change of any trial, or 0 if there is none.
    pub async fn newest_change(&self) -> Result<i64, Error> {
        self.read(query::newest_change).await
    }

    /// Lets the database grow by `pages` more pages, to simulate a disk with that much space left.
    #[cfg(test)]
    pub(crate) async fn leave_room(&self, pages: i64) -> Result<(), Error> {
        self.write(move |c| {
            let used: i64 = c.pragma_query_value(None, "page_count", |row| row.get(0))?;
            c.pragma_update_and_check(None, "max_page_count", used + pages, |_| Ok(()))?;
            Ok(())
        })
        .await
    }

    /// Makes commits fail as on a full disk while the log beside the database is larger than `bytes`.
    #[cfg(test)]
    pub(crate) fn bound_log(&self, bytes: u64) {
        self.inner.shared.room.store(bytes, std::sync::atomic::Ordering::SeqCst);
    }

    /// Makes every commit fail as on a full disk, or stops doing so.
    #[cfg(test)]
    pub(crate) fn fill_disk(&self, full: bool) {
        self.inner.shared.full.store(full, std::sync::atomic::Ordering::SeqCst);
    }

    async fn write<T: Send + 'static>(
        &self,
        work: impl FnMut(&Connection) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let (job, answer) = Write::job(1, work);
        self.queue().send(Message::Write(job)).await.map_err(|_| Error::Closed)?;
        answer.await.map_err(|_| Error::Closed)?
    }

    async fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        Arc::clone(&self.inner.readers).read(work).await
    }

    fn queue(&self) -> &mpsc::Sender<Message> {
        self.inner.queue.as_ref().expect("the queue is taken only when the last handle is dropped")
    }
}

impl Inner {
    /// Waits for the writer to end.
    fn join(&self) {
        let thread = self.thread.lock().expect("nothing panics while it holds this").take();
        if let Some(thread) = thread
            && thread.join().is_err()
        {
            tracing::error!(
                "the store's writer has panicked; its last writes were not acknowledged"
            );
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.readers.close();
        self.queue = None;
        self.join();
    }
}
