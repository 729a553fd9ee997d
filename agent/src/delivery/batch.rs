//! The delivery of one batch: it is sent until the manager takes it, refuses it for good, or the time is up.

use std::sync::Arc;
use std::time::Duration;

use tracing::warn;
use trial_protocol::{AttemptId, Lane, ReportAck};

use super::deadline::Deadline;
use super::manager_session::ManagerSession;
use super::{BACKOFF, Error, RetryDecision};
use crate::spool::{Cursor, Dialect, Record};
use crate::util::backoff::JitteredBackoff;

/// Time between two tries where only a person can help.
const OPERATOR_INTERVAL: Duration = Duration::from_mins(1);

/// Reports of one lane that travel together.
pub(super) struct Batch<'a> {
    pub(super) attempt: &'a AttemptId,
    pub(super) lane: Lane,
    /// Empty for a heartbeat.
    pub(super) records: Vec<Record>,
    pub(super) cursor: Cursor,
}

/// The outcome of a batch.
pub(super) enum BatchOutcome {
    /// The manager has everything up to this seq.
    Through(u64),
    /// The manager will never take this report, the batch's first and only one.
    Refused(u64),
    /// The batch was a heartbeat, and was acknowledged.
    Nothing,
    /// The manager has lost what it had acknowledged after this seq, and wants it again.
    Behind(Option<u64>),
    /// The time is up.
    OutOfTime,
}

impl Batch<'_> {
    /// PURE: returns the outcome that an ack means for this batch.
    fn outcome(&self, ack: &ReportAck) -> Result<BatchOutcome, Error> {
        let Cursor { acknowledged, forgotten } = self.cursor;
        // Only if there is something to send: else a manager that asks again would be answered for ever.
        if ack.resend && ack.through.max(forgotten) < acknowledged {
            return Ok(BatchOutcome::Behind(ack.through));
        }
        let (Some(first), Some(last)) = (self.records.first(), self.records.last()) else {
            return Ok(BatchOutcome::Nothing);
        };
        match ack.through {
            // An ack beyond the batch is an error of the manager's: reports that were never sent are not acknowledged.
            Some(through) if through >= first.seq => {
                Ok(BatchOutcome::Through(through.min(last.seq)))
            }
            Some(_) | None => Err(Error::NotStored),
        }
    }
}

/// Delivers batches, one after the other, for any lane.
pub(super) struct BatchDelivery {
    session: Arc<ManagerSession>,
    deadline: Arc<Deadline>,
    /// The attempt of this process.
    own: AttemptId,
}

impl BatchDelivery {
    pub(super) fn new(
        session: Arc<ManagerSession>,
        deadline: Arc<Deadline>,
        own: AttemptId,
    ) -> Self {
        Self { session, deadline, own }
    }

    /// Returns the protocol of the manager.
    pub(super) fn dialect(&self) -> Dialect {
        self.session.dialect()
    }

    /// Sends a batch until it is taken or refused. `answer` is the answer to a first try, if there was one.
    pub(super) async fn deliver(
        &self,
        mut batch: Batch<'_>,
        mut answer: Option<Result<ReportAck, Error>>,
    ) -> BatchOutcome {
        let mut backoff = JitteredBackoff::new(BACKOFF.0, BACKOFF.1);
        loop {
            let sent = match answer.take() {
                Some(sent) => sent,
                None => tokio::select! {
                    sent = self.session.send(&batch) => sent,
                    () = self.deadline.passed_after_end() => {
                        let posted = self.session.take_posted();
                        return posted.map_or(BatchOutcome::OutOfTime, BatchOutcome::Through);
                    }
                },
            };
            let acknowledged = sent.and_then(|ack| {
                self.session.record_ack(&ack, *batch.attempt == self.own);
                batch.outcome(&ack)
            });
            let error = match acknowledged {
                Ok(outcome) => return outcome,
                Err(error) => error,
            };
            self.session.record_failure(&error);
            let pause = match error.retry_decision() {
                // Agents that are all told the same second must not come back as one, nor at once.
                RetryDecision::RetryAfter(after) => after + backoff.next_pause(),
                RetryDecision::NeedsOperator if self.deadline.has_trial_ended() => {
                    return BatchOutcome::OutOfTime;
                }
                RetryDecision::NeedsOperator => OPERATOR_INTERVAL,
                RetryDecision::Split | RetryDecision::SplitOrRetry if batch.records.len() > 1 => {
                    batch.records.truncate(batch.records.len() / 2);
                    continue;
                }
                RetryDecision::Retry | RetryDecision::SplitOrRetry => backoff.next_pause(),
                // A single report that will never be taken must not hold up all others.
                RetryDecision::Split => {
                    warn!("the manager refuses a report for good; it is passed over: {error}");
                    let first = batch.records.first();
                    return first
                        .map_or(BatchOutcome::Nothing, |record| BatchOutcome::Refused(record.seq));
                }
            };
            self.session.refresh();
            if !self.deadline.pause(pause).await {
                return BatchOutcome::OutOfTime;
            }
        }
    }
}
