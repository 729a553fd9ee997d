//! The open line: while there is nothing to report, the next request is open already and waits for its
//! body. The manager may answer it before, to make us speak, and then has an order for us; so an order
//! reaches a silent trial at once, for no more requests than heartbeats need.
//!
//! The lanes share the line: when logs or samples are to be sent, the waiting request is ended as a
//! heartbeat, and they take its connection. Facts never wait for that.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use trial_protocol::{Lane, ReportAck, capability};

use super::{Deliverer, Error, FACTS_BYTES};
use crate::delivery::dialect::native;
use crate::spool::{Dialect, Record};

/// The longest that a request is kept open. Proxies cut off what rests for a minute.
const OPEN: Duration = Duration::from_secs(20);

/// The time that the bulk lane waits for the line; then it takes another connection.
const BULK_WAIT: Duration = Duration::from_secs(1);

/// The right to the long poll.
#[derive(Debug, Default)]
pub(super) struct LongPoll {
    /// The bulk lane wants it, or has it.
    wanted: watch::Sender<bool>,
    /// A request waits on it.
    open: watch::Sender<bool>,
}

/// Has the line, until it is dropped.
#[derive(Debug)]
pub(super) struct PollPermit<'a>(&'a watch::Sender<bool>);

impl Drop for PollPermit<'_> {
    fn drop(&mut self) {
        self.0.send_replace(false);
    }
}

impl LongPoll {
    /// Takes the line for the bulk lane.
    pub(super) async fn take(&self) -> PollPermit<'_> {
        self.wanted.send_replace(true);
        let held = PollPermit(&self.wanted);
        // Whatever comes of it: there are other connections.
        drop(timeout(BULK_WAIT, self.open.subscribe().wait_for(|open| !open)).await);
        held
    }

    /// Waits until the bulk lane does, or does not, want the line.
    pub(super) async fn wanted(&self, wanted: bool) {
        // The sender is ours, so it is not gone.
        drop(self.wanted.subscribe().wait_for(|now| *now == wanted).await);
    }

    /// Returns whether it wants the line now.
    pub(super) fn is_wanted(&self) -> bool {
        *self.wanted.borrow()
    }

    fn hold(&self) -> PollPermit<'_> {
        self.open.send_replace(true);
        PollPermit(&self.open)
    }
}

/// The outcome of a request that was kept open.
pub(super) struct LongPollOutcome {
    /// The reports to send now; empty for a heartbeat.
    pub(super) records: Vec<Record>,
    /// The answer to them, if they were sent at all.
    pub(super) answer: Option<Result<ReportAck, Error>>,
}

impl Deliverer {
    /// Returns whether the next request may be opened now: the manager knows of it, and all is well and quiet.
    pub(super) fn may_wait(&self, lane: Lane) -> bool {
        let knows = || {
            let peer = self.peer.borrow();
            peer.as_ref().is_some_and(|offer| offer.capabilities.contains(capability::OPEN))
        };
        lane == Lane::Facts
            && self.settings.sender.dialect == Dialect::Native
            && !*self.ended.borrow()
            && !self.line.is_wanted()
            && self.lock().last_error.is_none()
            && self.spool.pending_in(lane) == 0
            && knows()
    }

    /// Opens the next request, and sends what there is to say when there is, or a heartbeat when that is
    /// due. `None` if it could not be opened.
    pub(super) async fn wait_on_line(&self, heartbeat: Instant) -> Option<LongPollOutcome> {
        let (client, base, token, _) = self.contact().ok()?;
        let _held = self.line.hold();
        let (fill, body) = native::deferred_body();
        let answer = native::post_deferred(
            &client,
            &base,
            token.as_deref(),
            self.spool.attempt(),
            body,
            OPEN,
        );
        tokio::pin!(answer);
        let mut ended = self.ended.clone();
        let due = heartbeat.min(Instant::now() + OPEN);
        let lane = Lane::Facts;
        let records = tokio::select! {
            biased;
            early = &mut answer => {
                // Called to speak: what we are to do is on the answer to what we say.
                let answer = early.map(|ack| self.heard(&ack, self.spool.attempt())).err().map(Err);
                return Some(LongPollOutcome { records: Vec::new(), answer });
            }
            () = self.spool.readable(lane) => self.spool.peek(lane, FACTS_BYTES).await,
            () = tokio::time::sleep_until(due) => Vec::new(),
            () = self.line.wanted(true) => Vec::new(),
            _ = ended.changed() => Vec::new(),
        };
        let obeyed = self.lock().obeyed.clone();
        let attempt = self.spool.attempt();
        let sender = &self.settings.sender;
        // The receiver is gone if the request is over by now; its answer says so.
        drop(fill.send(native::body(
            sender,
            attempt,
            lane,
            &records,
            &obeyed,
            self.spool.cursor(),
        )));
        let answer = tokio::select! {
            answer = &mut answer => answer,
            () = self.deadline_after_end() => return Some(LongPollOutcome { records, answer: None }),
        };
        let stored = |ack: &ReportAck| {
            records
                .first()
                .is_none_or(|first| ack.through.is_some_and(|through| through >= first.seq))
        };
        let answer = match answer {
            Ok(ack) if stored(&ack) => {
                self.lock().obeyed.retain(|id| !obeyed.contains(id));
                Some(Ok(ack))
            }
            // Called at the very moment at which we spoke: once more, for it was not heard.
            Ok(_) => None,
            Err(error) => Some(Err(error)),
        };
        Some(LongPollOutcome { records, answer })
    }
}
