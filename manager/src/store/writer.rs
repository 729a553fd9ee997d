//! The only thread that writes. Writes that wait during a commit share the next commit. So the cost of making a commit
//! durable (an fsync, some tenths of a millisecond) is paid once for all of them.
//!
//! Invariants:
//! 1. A write's caller is answered only after the commit of that write.
//! 2. The failure of one write does not fail another: when a shared commit fails, each write is retried alone.
//! 3. [`WriterState::write_error`] publishes the error of the last commit, and the next success clears it.

use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use rusqlite::{Connection, TransactionBehavior};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

use super::error::{Error, FailureKind};
use super::schema::{self, WriterConnection};
use crate::util::errors::error_chain;

/// The maximum number of reports in one commit, about 50 ms of work. It bounds the time that a caller waits.
const MAX_COMMIT_REPORTS: usize = 10_000;

/// The maximum time between checkpoints while there are new commits. A copy of the database file without its log is
/// never older than this. Checkpointing that much log takes some tens of milliseconds.
const CHECKPOINT_INTERVAL: Duration = Duration::from_mins(1);

/// The check before each commit.
pub(super) trait CommitGuard: std::fmt::Debug + Send + Sync {
    /// Returns the reason why the commit must fail.
    fn check(&self) -> Result<(), Error>;
}

/// The state that the writer shares with the handles.
#[derive(Debug, Default)]
pub(super) struct WriterState {
    /// The number of commits so far.
    pub(super) commits: watch::Sender<u64>,
    /// The error of the last commit. `None` if it succeeded.
    pub(super) write_error: watch::Sender<Option<Error>>,
    /// Checks each commit. `None` for a read-only store.
    pub(super) guard: Option<Arc<dyn CommitGuard>>,
}

impl WriterState {
    pub(super) fn write_error(&self) -> Option<Error> {
        self.write_error.borrow().clone()
    }

    fn set_write_error(&self, write_error: Option<Error>) {
        self.write_error.send_replace(write_error);
    }
}

/// A message to the writer.
pub(super) enum Message {
    /// A write to perform.
    Write(Box<dyn WriteJob>),
    /// A request to finish the queued writes and end.
    Close,
}

/// A single write. It may run several times, each time on an unchanged database.
pub(super) trait WriteJob: Send {
    /// Performs the write within a transaction. An error rolls the transaction back.
    fn run(&mut self, connection: &Connection) -> Result<(), Error>;
    /// Sends the result to the caller.
    fn finish(self: Box<Self>, committed: Result<(), Error>);
    /// Returns the size of the write, in reports.
    fn weight(&self) -> usize;
}

/// The usual [`WriteJob`]: a closure, its outcome, and the channel to the caller.
pub(super) struct Write<T, F> {
    work: F,
    weight: usize,
    outcome: Option<Result<T, Error>>,
    reply: oneshot::Sender<Result<T, Error>>,
}

impl<T, F> Write<T, F>
where
    T: Send + 'static,
    F: FnMut(&Connection) -> Result<T, Error> + Send + 'static,
{
    /// Returns the write as a job, and the receiver of its result.
    pub(super) fn job(
        weight: usize,
        work: F,
    ) -> (Box<dyn WriteJob>, oneshot::Receiver<Result<T, Error>>) {
        let (reply, answer) = oneshot::channel();
        (Box::new(Self { work, weight, outcome: None, reply }), answer)
    }
}

impl<T: Send, F: FnMut(&Connection) -> Result<T, Error> + Send> WriteJob for Write<T, F> {
    fn run(&mut self, connection: &Connection) -> Result<(), Error> {
        let outcome = (self.work)(connection);
        match &outcome {
            // A refused request has written nothing, so the commit of the others continues.
            Err(error) if !error.is_refusal() => return Err(error.clone()),
            Ok(_) | Err(_) => self.outcome = Some(outcome),
        }
        Ok(())
    }

    fn finish(self: Box<Self>, committed: Result<(), Error>) {
        let Self { work, outcome, reply, .. } = *self;
        // The caller must own the data of `work` again before it receives the result.
        drop(work);
        let answer = committed.and_then(|()| outcome.unwrap_or(Err(Error::Closed)));
        // The caller may have given up; the write remains valid.
        drop(reply.send(answer));
    }

    fn weight(&self) -> usize {
        self.weight
    }
}

/// Writes until a close is requested or every handle is dropped, then checkpoints and closes the database. `callers`
/// is the runtime on which the callers wait.
pub(super) fn run_writer(
    opened: WriterConnection,
    mut queue: mpsc::Receiver<Message>,
    shared: &WriterState,
    callers: Option<&Handle>,
) {
    let WriterConnection { mut connection, lock } = opened;
    let mut checkpointed_at: Option<Instant> = None;
    while let Some(message) = queue.blocking_recv() {
        match message {
            Message::Write(job) => {
                write_group(&mut connection, job, &mut queue, shared, callers);
                let now = Instant::now();
                if is_checkpoint_due(checkpointed_at, now) {
                    checkpoint(&connection);
                    checkpointed_at = Some(now);
                }
            }
            Message::Close => queue.close(),
        }
    }
    close_database(connection, lock);
}

/// PURE: returns whether a checkpoint is due after a commit: after the first, then once per interval.
fn is_checkpoint_due(checkpointed_at: Option<Instant>, now: Instant) -> bool {
    checkpointed_at.is_none_or(|at| now.saturating_duration_since(at) >= CHECKPOINT_INTERVAL)
}

/// Commits `first` together with the writes that are queued behind it.
fn write_group(
    connection: &mut Connection,
    first: Box<dyn WriteJob>,
    queue: &mut mpsc::Receiver<Message>,
    shared: &WriterState,
    callers: Option<&Handle>,
) {
    let mut group = Vec::new();
    let mut waiting = Some(first);
    let mut weight = 0_usize;
    let before = connection.total_changes();
    let result = run_transaction(connection, shared, |transaction| {
        while let Some(mut job) = waiting.take() {
            weight = weight.saturating_add(job.weight());
            let result = job.run(transaction);
            group.push(job);
            result?;
            if weight < MAX_COMMIT_REPORTS {
                waiting = next_job(queue);
            }
        }
        Ok(())
    });
    match result {
        // Retried alone, each write succeeds or fails independently. The most common cause is a write too large for a
        // nearly full disk. On a full disk, a checkpoint may free enough space in the log for all writes.
        Err(error)
            if group.len() > 1 || (!group.is_empty() && free_log_space(connection, &error)) =>
        {
            for mut job in group {
                let result = commit(connection, shared, |transaction| job.run(transaction));
                job.finish(result);
            }
        }
        // The transaction could not be started.
        Err(error) if group.is_empty() => {
            publish_outcome(shared, false, &Err(error.clone()));
            if let Some(job) = waiting {
                job.finish(Err(error));
            }
        }
        result => {
            publish_outcome(shared, connection.total_changes() > before, &result);
            let answer = move || group.into_iter().for_each(|job| job.finish(result.clone()));
            match callers {
                // Waking each caller from this thread would cost one system call per caller.
                Some(callers) => drop(callers.spawn(async move { answer() })),
                None => answer(),
            }
        }
    }
}

fn next_job(queue: &mut mpsc::Receiver<Message>) -> Option<Box<dyn WriteJob>> {
    match queue.try_recv().ok()? {
        Message::Write(job) => Some(job),
        Message::Close => {
            queue.close();
            // Writes that were sent before the close are still in the queue.
            next_job(queue)
        }
    }
}

/// Runs `work` in its own transaction, makes it durable, and publishes the outcome.
fn commit(
    connection: &mut Connection,
    shared: &WriterState,
    work: impl FnOnce(&Connection) -> Result<(), Error>,
) -> Result<(), Error> {
    let before = connection.total_changes();
    let result = run_transaction(connection, shared, work);
    publish_outcome(shared, connection.total_changes() > before, &result);
    result
}

/// Runs `work` in a transaction without publishing the outcome.
fn run_transaction(
    connection: &mut Connection,
    shared: &WriterState,
    work: impl FnOnce(&Connection) -> Result<(), Error>,
) -> Result<(), Error> {
    // Immediate: a lock of another process fails here, before any work is done.
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    work(&transaction)?;
    shared.guard.as_ref().map_or(Ok(()), |guard| guard.check())?;
    transaction.commit()?;
    Ok(())
}

/// Publishes the outcome of a commit.
fn publish_outcome(shared: &WriterState, changed: bool, result: &Result<(), Error>) {
    match result {
        Ok(()) => {
            // A commit without changes does not touch the disk, so it proves nothing.
            if changed {
                shared.commits.send_modify(|commits| *commits += 1);
                if shared.write_error().is_some() {
                    tracing::info!("the database can be written again");
                    shared.set_write_error(None);
                }
            }
        }
        Err(error) => {
            if shared.write_error().is_none() {
                tracing::error!(error = error_chain(error), "the database cannot be written");
            }
            shared.set_write_error(Some(error.clone()));
        }
    }
}

/// Checkpoints the part of the log that no reader needs, without waiting. It may fail safely.
fn checkpoint(connection: &Connection) {
    if let Err(error) = connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(())) {
        tracing::debug!(%error, "the database's write-ahead log could not be checkpointed yet");
    }
}

/// Frees the log's space after a commit failed on a full disk. Returns `false` if the failure has another cause, the
/// log is empty, a reader still needs the log, or the database file cannot grow.
fn free_log_space(connection: &Connection, error: &Error) -> bool {
    if error.failure_kind() != Some(FailureKind::Full) {
        return false;
    }
    let log_bytes = || {
        let path = connection.path()?;
        Some(std::fs::metadata(format!("{path}-wal")).ok()?.len())
    };
    let before = log_bytes();
    // It does not wait for readers, because the caller of the commit is already waiting. SQLite returns a row that
    // reports whether a reader blocked the checkpoint; the size of the log shows that, too.
    let checkpointed = connection
        .busy_timeout(Duration::ZERO)
        .and_then(|()| connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())));
    let restored = connection.busy_timeout(schema::BUSY_TIMEOUT);
    checkpointed.is_ok() && restored.is_ok() && log_bytes() < before
}

fn close_database(connection: Connection, lock: File) {
    let checkpoint = connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
    if let Err(error) = checkpoint {
        // No data is lost: SQLite reads the log the next time that the file is opened.
        tracing::warn!(%error, "the database's write-ahead log could not be checkpointed");
    }
    if let Err((_, error)) = connection.close() {
        tracing::warn!(%error, "the database could not be closed");
    }
    // Released last, so that the next manager opens a file that is no longer written.
    drop(lock);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_is_checkpointed_after_the_first_commit_and_every_minute() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        #[rustfmt::skip]
        let table = [
            (None,           after(0),   true),
            (Some(after(0)), after(0),   false),
            (Some(after(0)), after(59),  false),
            (Some(after(0)), after(60),  true),
            (Some(after(0)), after(900), true),
            (Some(after(9)), after(0),   false),
        ];
        for (checkpointed_at, now, due) in table {
            assert_eq!(is_checkpoint_due(checkpointed_at, now), due, "{checkpointed_at:?} {now:?}");
        }
    }
}
