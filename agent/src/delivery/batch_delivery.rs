//! The delivery of one batch. It is sent until the manager accepts it, permanently refuses it, or the deadline has
//! passed.

use std::sync::Arc;
use std::time::Duration;

use tracing::warn;
use trial_protocol::{AttemptId, ReportAck};

use super::batch::{Batch, BatchOutcome};
use super::deadline::Deadline;
use super::manager_session::ManagerSession;
use super::{Error, FIRST_RETRY_PAUSE, MAX_RETRY_PAUSE, RetryDecision};
use crate::spool::Dialect;
use crate::util::backoff::JitteredBackoff;

/// The time between two attempts if only a person can solve the problem.
const OPERATOR_INTERVAL: Duration = Duration::from_mins(1);

/// Delivers batches, one after the other, for any lane.
pub(super) struct BatchDelivery {
    session: Arc<ManagerSession>,
    deadline: Arc<Deadline>,
    /// The attempt of this process.
    own_attempt: AttemptId,
}

impl BatchDelivery {
    pub(super) fn new(
        session: Arc<ManagerSession>,
        deadline: Arc<Deadline>,
        own_attempt: AttemptId,
    ) -> Self {
        Self { session, deadline, own_attempt }
    }

    /// Returns the protocol of the manager.
    pub(super) fn dialect(&self) -> Dialect {
        self.session.dialect()
    }

    /// Sends a batch until it is accepted or refused. `answer` is the answer to a first attempt, if there was one.
    pub(super) async fn deliver(
        &self,
        mut batch: Batch<'_>,
        mut answer: Option<Result<ReportAck, Error>>,
    ) -> BatchOutcome {
        let mut backoff = JitteredBackoff::new(FIRST_RETRY_PAUSE, MAX_RETRY_PAUSE);
        loop {
            let sent = match answer.take() {
                Some(sent) => sent,
                None => tokio::select! {
                    sent = self.session.send(&batch) => sent,
                    () = self.deadline.wait_until_passed_after_end() => {
                        let posted = self.session.take_posted();
                        return posted.map_or(BatchOutcome::OutOfTime, BatchOutcome::StoredThrough);
                    }
                },
            };
            let acknowledged = sent.and_then(|ack| {
                self.session.record_ack(&ack, *batch.attempt == self.own_attempt);
                batch.outcome(&ack)
            });
            let error = match acknowledged {
                Ok(outcome) => return outcome,
                Err(error) => error,
            };
            self.session.record_failure(&error);
            let pause = match error.retry_decision() {
                // The manager may give many agents the same time. The random pause spreads their requests.
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
                // A single report that is permanently refused must not block all others.
                RetryDecision::Split => {
                    let Some(record) = batch.records.first() else {
                        warn!("the manager refuses a heartbeat: {error}");
                        return BatchOutcome::HeartbeatAcknowledged;
                    };
                    warn!("the manager permanently refuses a report; it is skipped: {error}");
                    return BatchOutcome::Refused(record.seq);
                }
            };
            self.session.refresh();
            if !self.deadline.pause(pause).await {
                return BatchOutcome::OutOfTime;
            }
        }
    }
}
