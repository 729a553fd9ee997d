//! The database of an experiment: its writer, the pool of readers, and the detection of failing writes. It contains no
//! statements about experiments.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use rusqlite::Connection;
use tokio::sync::{mpsc, watch};
use tokio::time::sleep;

use super::error::Error;
use super::file_identity::FileIdentity;
use super::readers::Readers;
use super::schema;
use super::writer::{self, CommitGuard, Message, Write, WriterState};
use crate::util::errors::error_chain;

/// The number of writes that may wait for the writer. Batches of reports beyond it are refused, because an agent can
/// wait longer than the manager.
pub(super) const QUEUE_CAPACITY: usize = 1024;

/// The time between attempts to write to a failing database.
const WRITE_RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// A handle of the database; cheap to clone. Dropping the last handle blocks until the queued writes are done and the
/// file is closed.
#[derive(Clone, Debug)]
pub struct Database {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    // `None` only while the handle is dropped.
    queue: Option<mpsc::Sender<Message>>,
    readers: Arc<Readers>,
    shared: Arc<WriterState>,
    /// The file that receives the commits. `None` for a read-only store.
    identity: Option<Arc<FileIdentity>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    reads_only: bool,
}

impl Database {
    /// Opens the database at `path`, and creates or migrates it as needed. Blocks until that is done.
    pub(super) fn open(path: &Path) -> Result<Self, Error> {
        Self::open_guarded(path, |identity| identity)
    }

    /// Opens the database like [`Self::open`]. `guard` returns the check of its commits.
    pub(super) fn open_guarded<G: CommitGuard + 'static>(
        path: &Path,
        guard: impl FnOnce(Arc<FileIdentity>) -> Arc<G>,
    ) -> Result<Self, Error> {
        let opened = schema::open_writer(path)?;
        let (queue, receiver) = mpsc::channel(QUEUE_CAPACITY);
        let identity = FileIdentity::read(path)
            .map_err(|source| Error::Lock { path: path.to_owned(), source: Arc::new(source) })?;
        let identity = Arc::new(identity);
        let guard: Arc<dyn CommitGuard> = guard(Arc::clone(&identity));
        let shared = Arc::new(WriterState { guard: Some(guard), ..WriterState::default() });
        let state = Arc::clone(&shared);
        let callers = tokio::runtime::Handle::try_current().ok();
        let thread = std::thread::Builder::new()
            .name("store".to_owned())
            .spawn(move || writer::run_writer(opened, receiver, &state, callers.as_ref()))
            .expect("a process that cannot start one thread cannot do anything");
        Ok(Self {
            inner: Arc::new(Inner {
                queue: Some(queue),
                readers: Arc::new(Readers::new(path)),
                shared,
                identity: Some(identity),
                thread: Mutex::new(Some(thread)),
                reads_only: false,
            }),
        })
    }

    /// Opens the database at `path` for reading only, whether or not a manager is running. The database must exist
    /// and have the schema of this build. Writes fail with [`Error::Closed`].
    pub(super) fn open_to_read(path: &Path) -> Result<Self, Error> {
        schema::check_reader(path)?;
        let (queue, _) = mpsc::channel(1);
        Ok(Self {
            inner: Arc::new(Inner {
                queue: Some(queue),
                readers: Arc::new(Readers::new(path)),
                shared: Arc::default(),
                identity: None,
                thread: Mutex::new(None),
                reads_only: true,
            }),
        })
    }

    /// Returns whether any process has this database open for writing.
    pub fn has_writer(&self) -> Option<bool> {
        schema::is_locked(self.inner.readers.path())
    }

    /// Waits for the queued writes, checkpoints, and closes the file. Later writes through other handles fail with
    /// [`Error::Closed`].
    pub(super) async fn close(self) {
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

    /// Checks that the file is still at its path, so that an idle manager detects a displaced file.
    pub async fn check_identity(&self) {
        if !self.is_in_place() && self.write_error().is_none() {
            // The probe fails for that reason and updates `write_error`.
            drop(self.probe().await);
        }
    }

    /// Returns whether the open file is still the one at its path.
    pub fn is_in_place(&self) -> bool {
        self.inner.identity.as_ref().is_none_or(|identity| identity.check().is_ok())
    }

    /// Returns the error of the last write. `None` if it succeeded.
    pub fn write_error(&self) -> Option<Error> {
        self.inner.shared.write_error()
    }

    /// Returns the error of the last write as a watch channel. For a read-only database, it is always `None`.
    pub fn watch_write_error(&self) -> watch::Receiver<Option<Error>> {
        self.inner.shared.write_error.subscribe()
    }

    /// Logs when writes begin to fail, then retries a test write until it succeeds, because the next real write may
    /// be hours away. Never returns.
    pub async fn retry_while_failing(&self) {
        let mut write_error = self.watch_write_error();
        loop {
            let Ok(why) =
                write_error.wait_for(Option::is_some).await.map(|write_error| write_error.clone())
            else {
                return;
            };
            if let Some(error) = why {
                tracing::warn!("{}; agents keep their reports meanwhile", error_chain(&error));
            }
            while self.write_error().is_some() {
                sleep(WRITE_RETRY_INTERVAL).await;
                // The probe's outcome updates `write_error`.
                drop(self.probe().await);
            }
            tracing::info!("the database accepts writes again");
        }
    }

    /// Performs a test write, so that the database detects a recovery even without other writes.
    pub async fn probe(&self) -> Result<(), Error> {
        self.write(|c| {
            c.prepare_cached(
                "INSERT INTO probe VALUES (1, 1) ON CONFLICT DO UPDATE SET writes = writes + 1",
            )?
            .execute([])?;
            Ok(())
        })
        .await
    }

    /// Returns the number of commits since the database was opened.
    pub fn commits(&self) -> u64 {
        *self.inner.shared.commits.borrow()
    }

    /// Returns the number of commits as a watch channel, for callers that wait for the next one. For a read-only
    /// database, whose writer is another process, it never changes, and waiting returns an error.
    pub fn watch_commits(&self) -> watch::Receiver<u64> {
        if self.inner.reads_only {
            return watch::channel(0).1;
        }
        self.inner.shared.commits.subscribe()
    }

    /// Runs `work` in a transaction of the writer, and returns after the commit.
    pub(super) async fn write<T: Send + 'static>(
        &self,
        work: impl FnMut(&Connection) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let (job, answer) = Write::job(1, work);
        self.queue().send(Message::Write(job)).await.map_err(|_| Error::Closed)?;
        answer.await.map_err(|_| Error::Closed)?
    }

    /// Runs `work` like [`Database::write`]. If too many writes are queued, it fails with [`Error::Overloaded`] instead
    /// of waiting. `weight` is the amount of work.
    pub(super) async fn try_write<T: Send + 'static>(
        &self,
        weight: usize,
        work: impl FnMut(&Connection) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let (job, answer) = Write::job(weight, work);
        self.queue().try_send(Message::Write(job)).map_err(|refused| match refused {
            mpsc::error::TrySendError::Full(_) => Error::Overloaded,
            mpsc::error::TrySendError::Closed(_) => Error::Closed,
        })?;
        answer.await.map_err(|_| Error::Closed)?
    }

    /// Runs `work` on a connection of the readers.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        Arc::clone(&self.inner.readers).read(work).await
    }

    pub(super) fn queue(&self) -> &mpsc::Sender<Message> {
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
