//! The delivery of one lane: first the reports of earlier attempts, then those of this attempt.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};
use trial_protocol::{Lane, ReportAck, capability};

use super::batch::{Batch, BatchOutcome};
use super::batch_delivery::BatchDelivery;
use super::deadline::Deadline;
use super::earlier_attempts::deliver_earlier_attempt;
use super::long_poll::{LongPoll, LongPollOutcome};
use super::manager_session::ManagerSession;
use super::{Error, FINAL_BACKOFF, MAX_FACTS_BATCH_BYTES};
use crate::spool::{Cursor, Dialect, Record, Spool};

/// The maximum JSON in a batch of logs and samples, in bytes.
const MAX_BULK_BATCH_BYTES: usize = 128 << 10;

/// The time that logs are collected before they are sent. They are numerous and not urgent.
const BULK_LINGER: Duration = Duration::from_millis(50);

/// The delivery of one lane.
pub(super) struct LaneDelivery<'a> {
    lane: Lane,
    spool: &'a Spool,
    session: &'a ManagerSession,
    deadline: &'a Deadline,
    batches: &'a BatchDelivery,
    long_poll: &'a LongPoll,
    /// Becomes `true` when the facts of earlier attempts have been delivered.
    earlier_facts_delivered: &'a watch::Sender<bool>,
    ended: watch::Receiver<bool>,
}

/// The next step of a lane.
enum LaneStep {
    /// A request that was kept open has ended.
    LongPollEnded(LongPollOutcome),
    /// These records must be sent. No records mean a heartbeat.
    Send(Vec<Record>),
    /// The lane must decide again.
    DecideAgain,
    /// Everything is delivered, or the deadline has passed.
    Done,
}

impl<'a> LaneDelivery<'a> {
    pub(super) fn new(
        lane: Lane,
        spool: &'a Spool,
        session: &'a ManagerSession,
        deadline: &'a Deadline,
        batches: &'a BatchDelivery,
        long_poll: &'a LongPoll,
        earlier_facts_delivered: &'a watch::Sender<bool>,
    ) -> Self {
        let ended = deadline.subscribe_trial_end();
        Self { lane, spool, session, deadline, batches, long_poll, earlier_facts_delivered, ended }
    }

    /// Delivers until the trial has ended and everything is acknowledged, or until the deadline has passed.
    pub(super) async fn run(mut self) {
        for attempt in self.spool.earlier_attempts() {
            if let Some(files) = self.spool.earlier_lane(attempt, self.lane) {
                deliver_earlier_attempt(self.batches, attempt, files).await;
            }
        }
        if self.lane == Lane::Facts {
            self.earlier_facts_delivered.send_replace(true);
        } else if !self.wait_until_bulk_accepted().await {
            return;
        }
        let mut last_sent = Instant::now();
        loop {
            let has_time = match self.next_step(last_sent).await {
                LaneStep::DecideAgain => continue,
                LaneStep::Done => return,
                LaneStep::LongPollEnded(LongPollOutcome { records, answer }) => {
                    self.deliver(records, answer).await
                }
                LaneStep::Send(records) => {
                    let _permit = match self.lane {
                        Lane::Facts => None,
                        Lane::Bulk => Some(self.long_poll.interrupt().await),
                    };
                    self.deliver(records, None).await
                }
            };
            if !has_time {
                return;
            }
            last_sent = Instant::now();
        }
    }

    async fn next_step(&mut self, last_sent: Instant) -> LaneStep {
        let lane = self.lane;
        let trial_ended = *self.ended.borrow_and_update();
        if trial_ended && self.spool.pending_in(lane) == 0 {
            return LaneStep::Done;
        }
        let sends_heartbeats = lane == Lane::Facts && self.session.dialect() == Dialect::Native;
        let heartbeat = last_sent + self.session.heartbeat();
        if sends_heartbeats
            && self.long_poll.can_open()
            && let Some(outcome) = self.long_poll.run(heartbeat).await
        {
            return LaneStep::LongPollEnded(outcome);
        }
        let max_bytes = match lane {
            Lane::Facts => MAX_FACTS_BATCH_BYTES,
            Lane::Bulk => MAX_BULK_BATCH_BYTES,
        };
        let records = tokio::select! {
            biased;
            () = self.spool.wait_until_readable(lane) => {
                if lane == Lane::Bulk && !trial_ended {
                    wait_for_more_reports(&mut self.ended).await;
                }
                self.spool.peek(lane, max_bytes).await
            }
            () = sleep_until(heartbeat), if sends_heartbeats => Vec::new(),
            // The connection is available again.
            () = self.long_poll.wait_until_interrupted_is(false), if sends_heartbeats && self.long_poll.is_interrupted() => {
                return LaneStep::DecideAgain;
            }
            changed = self.ended.changed(), if !trial_ended => {
                // Without a sender, the trial's end would never be noticed.
                return if changed.is_ok() { LaneStep::DecideAgain } else { LaneStep::Done };
            }
            () = self.deadline.wait_until_passed(), if trial_ended => return LaneStep::Done,
        };
        if records.is_empty() && self.spool.pending_in(lane) > 0 {
            // The disk could not return its records.
            return if self.deadline.pause(FINAL_BACKOFF).await {
                LaneStep::DecideAgain
            } else {
                LaneStep::Done
            };
        }
        if records.is_empty() && lane == Lane::Bulk {
            LaneStep::DecideAgain
        } else {
            LaneStep::Send(records)
        }
    }

    /// Delivers records of this process's attempt and makes the spool forget them. Returns `false` if the deadline has
    /// passed.
    async fn deliver(
        &self,
        records: Vec<Record>,
        answer: Option<Result<ReportAck, Error>>,
    ) -> bool {
        let lane = self.lane;
        // Bulk is never requested again, because a trial's output is also in its files.
        let cursor = if lane == Lane::Facts { self.spool.cursor() } else { Cursor::default() };
        let batch = Batch { attempt: self.spool.attempt(), lane, records, cursor };
        match self.batches.deliver(batch, answer).await {
            BatchOutcome::StoredThrough(through) => self.spool.ack(lane, through),
            BatchOutcome::Refused(seq) => {
                if lane == Lane::Facts {
                    self.spool.forget_refused(seq);
                }
                self.spool.ack(lane, seq);
            }
            BatchOutcome::HeartbeatAcknowledged => {}
            BatchOutcome::ResendAfter(stored) => self.spool.rewind(stored).await,
            BatchOutcome::OutOfTime => return false,
        }
        true
    }

    /// Waits for a manager that accepts logs and samples. Returns `false` if the deadline has passed, or if the trial
    /// has ended and the manager does not accept them.
    ///
    /// Also waits for the facts of earlier attempts, because the manager orders attempts by their first report.
    async fn wait_until_bulk_accepted(&self) -> bool {
        let mut offer = self.session.subscribe_offer();
        let mut earlier_facts_delivered = self.earlier_facts_delivered.subscribe();
        let mut ended = self.deadline.subscribe_trial_end();
        let accepted = async {
            if earlier_facts_delivered.wait_for(|done| *done).await.is_err() {
                return false;
            }
            loop {
                let accepts_bulk = offer
                    .borrow_and_update()
                    .as_ref()
                    .map(|offer| offer.capabilities.contains(capability::BULK));
                match accepts_bulk {
                    Some(true) => return true,
                    Some(false) => self.session.warn_of_missing_capability(capability::BULK),
                    None => {}
                }
                tokio::select! {
                    changed = offer.changed() => if changed.is_err() { return false },
                    // A closed channel counts as the trial's end.
                    _ = ended.wait_for(|ended| *ended), if accepts_bulk.is_some() => return false,
                }
            }
        };
        tokio::select! {
            accepted = accepted => accepted,
            () = self.deadline.wait_until_passed_after_end() => false,
        }
    }
}

/// Waits [`BULK_LINGER`] for more reports. Returns at once if the trial has ended.
async fn wait_for_more_reports(ended: &mut watch::Receiver<bool>) {
    tokio::select! {
        () = sleep(BULK_LINGER) => {}
        // The loop reads the current value again.
        _ = ended.changed() => ended.mark_changed(),
    }
}
