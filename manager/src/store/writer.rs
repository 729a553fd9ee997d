//! The one thread that writes. Writes that wait while a commit is under way share the next one. So the cost of making a
//! commit durable (an fsync, some tenths of a millisecond) is paid once for all.
//!
//! Invariants:
//! 1. A write's caller is answered only after the commit that holds it.
//! 2. One write's failure does not fail another's: when a shared commit fails, each is tried alone.
//! 3. The last commit's fate is known to everyone ([`WriterState::write_error`]), and forgotten at the next success.

use std::fs::File;
use std::time::Duration;

use rusqlite::{Connection, TransactionBehavior};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

use super::error::{Class, Error};
use super::file_identity::FileIdentity;
use super::schema::{self, Opened};

/// The most reports that one commit holds, about 50 ms of work: what a caller waits for at worst.
const COMMIT_WEIGHT: usize = 10_000;

/// The time that commits stay in the log alone, at most, while there are new ones: a copy of the database file without its
/// log is never older than this. The log of so long a time is folded in some tens of milliseconds.
const FOLD_INTERVAL: Duration = Duration::from_mins(1);

/// The state that the writer shares with all.
#[derive(Debug, Default)]
pub(super) struct WriterState {
    /// Commits made so far.
    pub(super) commits: watch::Sender<u64>,
    /// The reason that the last commit failed. `None`: it did not.
    pub(super) write_error: watch::Sender<Option<Error>>,
    /// The file that commits go to. `None`: nothing is written.
    pub(super) identity: Option<FileIdentity>,
    /// A test has it that the disk is full.
    #[cfg(test)]
    pub(super) full: std::sync::atomic::AtomicBool,
    /// A test has it that the disk has so much room for the log, in bytes; 0: enough.
    #[cfg(test)]
    pub(super) room: std::sync::atomic::AtomicU64,
}

impl WriterState {
    pub(super) fn write_error(&self) -> Option<Error> {
        self.write_error.borrow().clone()
    }

    #[cfg(test)]
    fn is_disk_full(&self, connection: &Connection) -> bool {
        use std::sync::atomic::Ordering::SeqCst;
        let room = self.room.load(SeqCst);
        let log = connection.path().and_then(|path| std::fs::metadata(format!("{path}-wal")).ok());
        self.full.load(SeqCst) || (room > 0 && log.is_some_and(|log| log.len() > room))
    }

    fn set_write_error(&self, write_error: Option<Error>) {
        self.write_error.send_replace(write_error);
    }
}

/// A message to the writer.
pub(super) enum Message {
    /// Write this.
    Write(Box<dyn WriteJob>),
    /// Write what is waiting, then end.
    Close,
}

/// One write. It may be run several times, each time against an unchanged database.
pub(super) trait WriteJob: Send {
    /// Does the work within a transaction; an error rolls the transaction back.
    fn run(&mut self, connection: &Connection) -> Result<(), Error>;
    /// Answers the caller.
    fn finish(self: Box<Self>, committed: Result<(), Error>);
    /// The work's size, in reports.
    fn weight(&self) -> usize;
}

/// The usual [`WriteJob`]: a closure, its outcome, and the caller that waits for it.
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
    /// The write as a job, and where its answer will arrive.
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
            // A refused request has written nothing: the others' commit goes on.
            Err(error) if !error.is_refusal() => return Err(error.clone()),
            Ok(_) | Err(_) => self.outcome = Some(outcome),
        }
        Ok(())
    }

    fn finish(self: Box<Self>, committed: Result<(), Error>) {
        let Self { work, outcome, reply, .. } = *self;
        // What the work holds is the caller's again before the answer is there.
        drop(work);
        let answer = committed.and_then(|()| outcome.unwrap_or(Err(Error::Closed)));
        // The caller may have gone; the write stands all the same.
        drop(reply.send(answer));
    }

    fn weight(&self) -> usize {
        self.weight
    }
}

/// Writes until told to close or until every handle is gone, then leaves a checkpointed database. `callers`: where
/// those wait who are to be answered.
pub(super) fn run(
    opened: Opened,
    mut queue: mpsc::Receiver<Message>,
    shared: &WriterState,
    callers: Option<&Handle>,
) {
    let Opened { mut connection, lock } = opened;
    let mut folded_at: Option<Instant> = None;
    while let Some(message) = queue.blocking_recv() {
        match message {
            Message::Write(job) => {
                write_group(&mut connection, job, &mut queue, shared, callers);
                let now = Instant::now();
                if is_fold_due(folded_at, now) {
                    fold(&connection);
                    folded_at = Some(now);
                }
            }
            Message::Close => queue.close(),
        }
    }
    end(connection, lock);
}

/// PURE: returns whether the log is to be folded after a commit: after the first, then once in a while.
fn is_fold_due(folded_at: Option<Instant>, now: Instant) -> bool {
    folded_at.is_none_or(|at| now.saturating_duration_since(at) >= FOLD_INTERVAL)
}

/// Commits `first` together with whatever waits behind it.
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
    let result = attempt(connection, shared, |transaction| {
        while let Some(mut job) = waiting.take() {
            weight = weight.saturating_add(job.weight());
            let result = job.run(transaction);
            group.push(job);
            result?;
            if weight < COMMIT_WEIGHT {
                waiting = next_job(queue);
            }
        }
        Ok(())
    });
    match result {
        // Alone, each has its own fate; the commonest reason is one write too large for a nearly full disk.
        // On a full disk the log, folded into the file, may leave room for all of them.
        Err(error)
            if group.len() > 1 || (!group.is_empty() && is_room_made(connection, &error)) =>
        {
            for mut job in group {
                let result = commit(connection, shared, |transaction| job.run(transaction));
                job.finish(result);
            }
        }
        // The transaction did not even begin.
        Err(error) if group.is_empty() => {
            note(shared, false, &Err(error.clone()));
            if let Some(job) = waiting {
                job.finish(Err(error));
            }
        }
        result => {
            note(shared, connection.total_changes() > before, &result);
            let answer = move || group.into_iter().for_each(|job| job.finish(result.clone()));
            match callers {
                // Woken from this thread, each of them would cost it a call of the system's.
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
            // What was sent before is still in the queue.
            next_job(queue)
        }
    }
}

/// Runs `work` in a transaction of its own and makes it durable. Every caller hears how that went.
fn commit(
    connection: &mut Connection,
    shared: &WriterState,
    work: impl FnOnce(&Connection) -> Result<(), Error>,
) -> Result<(), Error> {
    let before = connection.total_changes();
    let result = attempt(connection, shared, work);
    note(shared, connection.total_changes() > before, &result);
    result
}

/// Tries a write, and tells no one.
fn attempt(
    connection: &mut Connection,
    shared: &WriterState,
    work: impl FnOnce(&Connection) -> Result<(), Error>,
) -> Result<(), Error> {
    // Immediate: a stranger's lock shows here, before any work is done.
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    work(&transaction)?;
    #[cfg(test)]
    if shared.is_disk_full(&transaction) {
        let full = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_FULL);
        return Err(rusqlite::Error::SqliteFailure(full, None).into());
    }
    // A file that is gone would take the commit, and everything acknowledged would be lost.
    shared.identity.as_ref().map_or(Ok(()), FileIdentity::check)?;
    transaction.commit()?;
    Ok(())
}

/// Has everyone know how a commit went.
fn note(shared: &WriterState, changed: bool, result: &Result<(), Error>) {
    match result {
        Ok(()) => {
            // A commit that changes nothing does not touch the disk and proves nothing.
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

/// Folds what of the log no reader needs into the file, and waits for none. Nothing depends on it.
fn fold(connection: &Connection) {
    if let Err(error) = connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(())) {
        tracing::debug!(%error, "the database's log could not be folded into its file yet");
    }
}

/// Gives back the log's room after a commit that failed since the disk is full. `false`: that was not why, the log is
/// empty, a reader still needs it, or the file cannot take it.
fn is_room_made(connection: &Connection, error: &Error) -> bool {
    if error.class() != Some(Class::Full) {
        return false;
    }
    let log_bytes = || {
        let path = connection.path()?;
        Some(std::fs::metadata(format!("{path}-wal")).ok()?.len())
    };
    let before = log_bytes();
    // A reader in the way is not waited for: the sender of the commit waits already. A row tells whether there was one;
    // the log's size tells that, too.
    let folded = connection
        .busy_timeout(Duration::ZERO)
        .and_then(|()| connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())));
    let restored = connection.busy_timeout(schema::BUSY_TIMEOUT);
    folded.is_ok() && restored.is_ok() && log_bytes() < before
}

/// The error and its sources in one line.
fn error_chain(error: &Error) -> String {
    use std::error::Error as _;
    match error.source() {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

fn end(connection: Connection, lock: File) {
    let checkpoint = connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
    if let Err(error) = checkpoint {
        // Nothing is lost: the next to open the file reads the log beside it.
        tracing::warn!(%error, "the database's log could not be folded into its file");
    }
    if let Err((_, error)) = connection.close() {
        tracing::warn!(%error, "the database could not be closed");
    }
    // Last, so that the next manager finds the file at rest.
    drop(lock);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_is_folded_after_the_first_commit_and_again_each_minute() {
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
        for (folded_at, now, due) in table {
            assert_eq!(is_fold_due(folded_at, now), due, "{folded_at:?} {now:?}");
        }
    }
}
