//! The events for an experiment's task: reports and commands. The inbox makes no decisions about them, except while the
//! task waits for a disk. Senders must not wait for the disk too: the inbox then merges heartbeats, keeps reports
//! and refuses commands with the reason. A request to end the manager ends the wait.
//!
//! A decision of the experiment must be recorded before it takes effect. While the disk is full or fails, the task
//! therefore pauses and tries again. The intake refuses reports that cannot be stored, and their agents keep them.

use std::collections::{HashSet, VecDeque};
use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until};
use tracing::{info, warn};
use trial_protocol::{AttemptId, TrialJobId};

use super::transient_errors::TransientError;
use crate::experiment::command::CommandError;
use crate::experiment::{ExperimentHandle, TaskEvent};
use crate::store::{self, Store};
use crate::util::errors::error_chain;

/// The pause before the next try.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// The time limit for a wait for the disk once the experiment must stop, so that its user does not wait for the disk
/// forever. No trial is lost, because the next manager adopts the trials.
const STOP_WAIT_LIMIT: Duration = Duration::from_secs(10);
/// The greatest number of reports and commands that are kept while the task is busy. Beyond it, their senders wait.
/// Heartbeats do not count, since the inbox keeps at most one for each attempt.
const MAX_KEPT_EVENTS: usize = 1024;

type Answer = Result<(), CommandError>;

/// The receiving end of an [`ExperimentHandle`].
#[derive(Debug)]
pub struct Inbox {
    events: mpsc::Receiver<TaskEvent>,
    handle: ExperimentHandle,
    /// The events that arrived while the task was busy, in order.
    kept: VecDeque<TaskEvent>,
    /// The number of kept events, without heartbeats.
    counted: usize,
    /// The attempts for which `kept` contains reports or a heartbeat.
    kept_attempts: HashSet<(TrialJobId, AttemptId)>,
    /// The caller whose command is in progress, until the command is answered.
    caller: Option<oneshot::Sender<Answer>>,
    /// The time until which the task waits for a disk, once the experiment must end.
    leave_at: Option<Instant>,
}

impl Inbox {
    /// Returns the inbox that receives the messages of `handle` and its clones through `events`.
    pub fn new(handle: ExperimentHandle, events: mpsc::Receiver<TaskEvent>) -> Self {
        Self {
            events,
            handle,
            kept: VecDeque::new(),
            counted: 0,
            kept_attempts: HashSet::new(),
            caller: None,
            leave_at: None,
        }
    }

    /// Returns the next event, oldest first. `None`: every handle is gone.
    pub(super) async fn next(&mut self) -> Option<TaskEvent> {
        match self.pop_kept() {
            Some(event) => Some(event),
            None => self.events.recv().await,
        }
    }

    /// Returns the next event, if one has arrived.
    pub(super) fn try_next(&mut self) -> Option<TaskEvent> {
        self.pop_kept().or_else(|| self.events.try_recv().ok())
    }

    /// Returns the oldest event that was kept.
    pub(super) fn pop_kept(&mut self) -> Option<TaskEvent> {
        let event = self.kept.pop_front()?;
        self.counted -= usize::from(is_counted(&event));
        if let TaskEvent::Reported { trial, attempt, .. } = &event {
            self.kept_attempts.remove(&(trial.clone(), attempt.clone()));
        }
        Some(event)
    }

    /// Sets the caller of the command that is in progress.
    pub(super) fn set_caller(&mut self, caller: oneshot::Sender<Answer>) {
        self.caller = Some(caller);
    }

    /// Answers the command that is in progress. Has no effect if the caller no longer waits, or was already informed of
    /// a delay.
    pub(super) fn answer(&mut self, answer: Answer) {
        if let Some(caller) = self.caller.take() {
            drop(caller.send(answer));
        }
    }

    /// Runs `work` and meanwhile keeps events for later. Otherwise they would fill the channel, and the delivery of
    /// reports would wait for the experiment's task.
    pub(super) async fn run_keeping_events<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        loop {
            tokio::select! {
                done = &mut work => return done,
                Some(event) = self.events.recv(), if self.counted < MAX_KEPT_EVENTS => self.keep_event(event),
            }
        }
    }

    /// Repeats an attempt until it succeeds or fails for a permanent reason. It also gives up when the experiment must
    /// stop and has waited long enough.
    pub(super) async fn retry_while_transient<T, E, F>(
        &mut self,
        mut attempt: impl FnMut() -> F,
    ) -> Result<T, E>
    where
        E: TransientError,
        F: Future<Output = Result<T, E>>,
    {
        let mut waits = false;
        loop {
            let error = match attempt().await {
                Err(error) if error.is_transient() && !self.has_waited_enough() => error,
                result => {
                    if waits && result.is_ok() {
                        info!("the experiment continues");
                    }
                    return result;
                }
            };
            let why = error_chain(&error);
            if !waits {
                warn!("{why}: no trial is started or ended until the problem is solved");
            }
            waits = true;
            self.pause_keeping_events(&why).await;
        }
    }

    /// Waits until a store that refused a write can be written. The first try comes after a pause, because a nearly
    /// full disk may accept a small write and no more.
    pub(super) async fn wait_until_writable(&mut self, store: &Store) -> Result<(), store::Error> {
        let write_error = store.database().write_error();
        let why = write_error.as_ref().map(|error| error_chain(error));
        self.pause_keeping_events(
            why.as_deref().unwrap_or("the store refused the remaining reports of an agent"),
        )
        .await;
        match write_error {
            Some(error) if self.has_waited_enough() => Err(error),
            _ => self.retry_while_transient(|| store.database().probe()).await,
        }
    }

    /// Returns whether the experiment must stop, and has waited long enough for a disk.
    fn has_waited_enough(&self) -> bool {
        self.leave_at.is_some_and(|at| Instant::now() >= at)
    }

    /// Pauses between two tries, in which no sender has to wait. `why` is the reason for the wait.
    async fn pause_keeping_events(&mut self, why: &str) {
        self.answer(Err(CommandError::Delayed(why.to_owned())));
        let pause_end = Instant::now() + RETRY_PAUSE;
        loop {
            tokio::select! {
                () = sleep_until(pause_end) => return,
                () = self.handle.wait_for_end(), if self.leave_at.is_none() => {
                    self.leave_at = Some(Instant::now() + STOP_WAIT_LIMIT);
                }
                Some(event) = self.events.recv(), if self.counted < MAX_KEPT_EVENTS => match event {
                    // The caller may no longer wait.
                    TaskEvent::Command { reply, .. } => {
                        drop(reply.send(Err(CommandError::WaitsForDisk(why.to_owned()))));
                    }
                    reported @ TaskEvent::Reported { .. } => self.keep_event(reported),
                },
            }
        }
    }

    fn keep_event(&mut self, event: TaskEvent) {
        let counted = is_counted(&event);
        if let TaskEvent::Reported { trial, attempt, .. } = &event
            && !self.kept_attempts.insert((trial.clone(), attempt.clone()))
            && !counted
        {
            return;
        }
        self.counted += usize::from(counted);
        self.kept.push_back(event);
    }
}

/// Returns whether an event is more than a heartbeat.
fn is_counted(event: &TaskEvent) -> bool {
    match event {
        TaskEvent::Reported { fresh, .. } => !fresh.is_empty(),
        TaskEvent::Command { .. } => true,
    }
}

#[cfg(test)]
mod tests {
    use rusqlite::ffi;
    use trial_protocol::{Report, ReportBody};

    use super::*;
    use crate::experiment::command::Command;

    fn sqlite_error(code: std::ffi::c_int) -> store::Error {
        rusqlite::Error::SqliteFailure(ffi::Error::new(code), None).into()
    }

    fn trial(name: &str) -> TrialJobId {
        TrialJobId::new(name).unwrap()
    }

    fn first_attempt() -> AttemptId {
        AttemptId::new("1").unwrap()
    }

    fn note(seq: u64) -> Report {
        let body = ReportBody::Note { code: "n".to_owned(), message: String::new() };
        Report { seq, observed_at_ms: 0, body }
    }

    /// Returns the trials of the kept events, with the numbers of their reports.
    fn kept_events(inbox: &mut Inbox) -> Vec<(String, Vec<u64>)> {
        let mut kept = Vec::new();
        while let Some(event) = inbox.pop_kept() {
            let TaskEvent::Reported { trial, fresh, .. } = event else { panic!("{event:?}") };
            kept.push((trial.to_string(), fresh.iter().map(|report| report.seq).collect()));
        }
        kept
    }

    #[tokio::test(start_paused = true)]
    async fn only_temporary_errors_are_retried() {
        let (handle, events) = ExperimentHandle::new(1);
        let mut inbox = Inbox::new(handle, events);
        let full = sqlite_error(ffi::SQLITE_FULL);
        let mut answers =
            vec![Ok(7), Err(sqlite_error(ffi::SQLITE_IOERR)), Err(full.clone()), Err(full)];
        let result =
            inbox.retry_while_transient(|| std::future::ready(answers.pop().unwrap())).await;
        assert_eq!(result.unwrap(), 7);

        let mut tries = 0;
        let attempt = || {
            tries += 1;
            std::future::ready(Err(sqlite_error(ffi::SQLITE_CORRUPT)))
        };
        let result: Result<(), _> = inbox.retry_while_transient(attempt).await;
        assert_eq!(result.unwrap_err().failure_kind(), Some(store::FailureKind::Damaged));
        assert_eq!(tries, 1, "a damaged file is a permanent error");
    }

    #[tokio::test(start_paused = true)]
    async fn a_second_command_is_refused_while_one_waits_for_the_disk() {
        let (handle, events) = ExperimentHandle::new(1);
        let mut inbox = Inbox::new(handle.clone(), events);
        let (reply, answer) = oneshot::channel();
        inbox.set_caller(reply);
        let (a, b) = (trial("a"), trial("b"));
        let senders = tokio::spawn({
            let (a, b) = (a.clone(), b.clone());
            async move {
                let delayed = answer.await.unwrap();
                assert!(matches!(delayed, Err(CommandError::Delayed(_))), "{delayed:?}");
                for _ in 0..3 * MAX_KEPT_EVENTS {
                    handle.send_reports(a.clone(), first_attempt(), Vec::new()).await;
                }
                handle.send_reports(b.clone(), first_attempt(), vec![note(0)]).await;
                handle.send_reports(a.clone(), first_attempt(), vec![note(0), note(1)]).await;
                handle.send_reports(b, first_attempt(), Vec::new()).await;
                let refused = handle.command(Command::StopTrial(a.clone())).await.unwrap_err();
                assert!(matches!(refused, CommandError::WaitsForDisk(_)), "{refused}");
                assert!(refused.to_string().contains("no space is left"), "{refused}");
                // Sent last, so that all earlier events have arrived.
                handle.send_reports(a, first_attempt(), vec![note(2)]).await;
            }
        });
        let result = inbox
            .retry_while_transient(|| {
                let done = senders.is_finished();
                std::future::ready(if done { Ok(()) } else { Err(sqlite_error(ffi::SQLITE_FULL)) })
            })
            .await;
        result.unwrap();
        senders.await.unwrap();
        let expected = [("a", vec![]), ("b", vec![0]), ("a", vec![0, 1]), ("a", vec![2])];
        let expected = expected.map(|(trial, seqs)| (trial.to_owned(), seqs));
        assert_eq!(kept_events(&mut inbox), expected);
        assert_eq!((inbox.counted, inbox.kept_attempts.len()), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn senders_of_reports_wait_above_the_bound_of_kept_events() {
        let (handle, events) = ExperimentHandle::new(1);
        let mut inbox = Inbox::new(handle.clone(), events);
        let all = u64::try_from(MAX_KEPT_EVENTS).unwrap() + 10;
        let sender = tokio::spawn(async move {
            for seq in 0..all {
                handle.send_reports(trial("a"), first_attempt(), vec![note(seq)]).await;
            }
        });
        inbox.run_keeping_events(tokio::time::sleep(RETRY_PAUSE)).await;
        assert_eq!(inbox.kept.len(), MAX_KEPT_EVENTS);
        assert!(!sender.is_finished(), "the sender waits");
        for seq in 0..all {
            let Some(TaskEvent::Reported { fresh, .. }) = inbox.next().await else {
                panic!("{seq}")
            };
            assert_eq!(fresh, [note(seq)]);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_wait_for_a_disk_ends_after_a_stop() {
        let (handle, events) = ExperimentHandle::new(1);
        let mut inbox = Inbox::new(handle.clone(), events);
        let begun = Instant::now();
        let stopped_after = 60 * RETRY_PAUSE;
        tokio::spawn(async move {
            tokio::time::sleep(stopped_after).await;
            handle.stop();
        });
        let full = || std::future::ready(Err::<(), _>(sqlite_error(ffi::SQLITE_FULL)));
        let error = inbox.retry_while_transient(full).await.unwrap_err();
        assert_eq!(error.failure_kind(), Some(store::FailureKind::Full));
        let waited = begun.elapsed().checked_sub(stopped_after).unwrap();
        assert!(
            (STOP_WAIT_LIMIT..STOP_WAIT_LIMIT + 2 * RETRY_PAUSE).contains(&waited),
            "{waited:?}"
        );
        let again = Instant::now();
        inbox.retry_while_transient(full).await.unwrap_err();
        assert_eq!(again.elapsed(), Duration::ZERO, "the time limit of the wait has passed");
    }
}
