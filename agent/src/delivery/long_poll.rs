//! The long poll: while there is nothing to report, the next request is already open and waits for its body.
//!
//! The manager may answer the request early, to make the agent send a report, and then return a directive. A directive
//! therefore reaches a silent trial at once, with no more requests than heartbeats need.
//!
//! The lanes share the connection. If there are logs or samples to send, the open request ends as a heartbeat, and they
//! use its connection. Facts never wait for that.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use trial_protocol::{Lane, ReportAck, capability};

use super::batch::Batch;
use super::deadline::Deadline;
use super::manager_session::ManagerSession;
use super::{Error, MAX_FACTS_BATCH_BYTES};
use crate::spool::{Record, Spool};

/// The maximum time that a request is kept open. Proxies close connections that are idle for a minute.
const MAX_OPEN_TIME: Duration = Duration::from_secs(20);

/// The maximum time that the bulk lane waits for the connection. It then uses another one.
const MAX_BULK_WAIT: Duration = Duration::from_secs(1);

/// The request that is kept open on behalf of the facts lane.
pub(super) struct LongPoll {
    session: Arc<ManagerSession>,
    deadline: Arc<Deadline>,
    spool: Spool,
    /// `true` while the bulk lane waits for the connection or uses it.
    interrupted: watch::Sender<bool>,
    /// `true` while a request is open.
    open: watch::Sender<bool>,
}

/// Sets a flag for as long as it lives.
pub(super) struct FlagGuard<'a>(&'a watch::Sender<bool>);

impl<'a> FlagGuard<'a> {
    fn new(flag: &'a watch::Sender<bool>) -> Self {
        flag.send_replace(true);
        Self(flag)
    }
}

impl Drop for FlagGuard<'_> {
    fn drop(&mut self) {
        self.0.send_replace(false);
    }
}

/// The outcome of a request that was kept open.
pub(super) struct LongPollOutcome {
    /// The reports to send now. Empty for a heartbeat.
    pub(super) records: Vec<Record>,
    /// The answer to the reports, if they were sent.
    pub(super) answer: Option<Result<ReportAck, Error>>,
}

impl LongPoll {
    pub(super) fn new(session: Arc<ManagerSession>, deadline: Arc<Deadline>, spool: Spool) -> Self {
        let (interrupted, open) = Default::default();
        Self { session, deadline, spool, interrupted, open }
    }

    /// Ends the open request, and prevents another one while the permit lives.
    pub(super) async fn interrupt(&self) -> FlagGuard<'_> {
        let permit = FlagGuard::new(&self.interrupted);
        // The result does not matter, because other connections can be used.
        drop(timeout(MAX_BULK_WAIT, self.open.subscribe().wait_for(|open| !open)).await);
        permit
    }

    /// Waits until the long poll is interrupted, or until it is not.
    pub(super) async fn wait_until_interrupted_is(&self, interrupted: bool) {
        // The sender is a field of this struct, so the receiver cannot fail.
        drop(self.interrupted.subscribe().wait_for(|now| *now == interrupted).await);
    }

    /// Returns whether the long poll is currently interrupted.
    pub(super) fn is_interrupted(&self) -> bool {
        *self.interrupted.borrow()
    }

    /// Returns whether the next request may be opened: the manager offers it, no request failed, and no facts wait.
    pub(super) fn can_open(&self) -> bool {
        !self.deadline.has_trial_ended()
            && !self.is_interrupted()
            && !self.session.has_failed()
            && self.spool.pending_in(Lane::Facts) == 0
            && self.session.has_capability(capability::OPEN)
    }

    /// Opens the next request. Sends facts as soon as there are any, or a heartbeat when it is due. Returns `None` if
    /// the request could not be opened.
    pub(super) async fn run(&self, heartbeat: Instant) -> Option<LongPollOutcome> {
        let attempt = self.spool.attempt();
        let (body_sender, answer) = self.session.open_request(attempt, MAX_OPEN_TIME).ok()?;
        let _permit = FlagGuard::new(&self.open);
        tokio::pin!(answer);
        let mut ended = self.deadline.subscribe_trial_end();
        let due = heartbeat.min(Instant::now() + MAX_OPEN_TIME);
        let lane = Lane::Facts;
        let records = tokio::select! {
            biased;
            early = &mut answer => {
                // The manager asks the agent for a report. The answer to the next batch contains the directive.
                let answer = early.map(|ack| self.session.record_ack(&ack, true)).err().map(Err);
                return Some(LongPollOutcome { records: Vec::new(), answer });
            }
            () = self.spool.wait_until_readable(lane) => self.spool.peek(lane, MAX_FACTS_BATCH_BYTES).await,
            () = tokio::time::sleep_until(due) => Vec::new(),
            () = self.wait_until_interrupted_is(true) => Vec::new(),
            _ = ended.changed() => Vec::new(),
        };
        let batch = Batch { attempt, lane, records, cursor: self.spool.cursor() };
        let obeyed = self.session.fill_request(body_sender, &batch);
        let records = batch.records;
        let answer = tokio::select! {
            answer = &mut answer => answer,
            () = self.deadline.wait_until_passed_after_end() => {
                return Some(LongPollOutcome { records, answer: None });
            }
        };
        let stored = |ack: &ReportAck| {
            records
                .first()
                .is_none_or(|first| ack.through.is_some_and(|through| through >= first.seq))
        };
        let answer = match answer {
            Ok(ack) if stored(&ack) => {
                self.session.forget_obeyed(&obeyed);
                Some(Ok(ack))
            }
            // The manager answered at the moment when the agent sent the batch, and has not read it. The batch is sent
            // again.
            Ok(_) => None,
            Err(error) => Some(Err(error)),
        };
        Some(LongPollOutcome { records, answer })
    }
}
