//! PURE: the reports that are sent together, and the outcome of an ack.

use trial_protocol::{AttemptId, Lane, ReportAck};

use super::Error;
use crate::spool::{Cursor, Record};

/// Reports of one lane that are sent together.
pub(super) struct Batch<'a> {
    pub(super) attempt: &'a AttemptId,
    pub(super) lane: Lane,
    /// Empty for a heartbeat.
    pub(super) records: Vec<Record>,
    pub(super) cursor: Cursor,
}

/// The outcome of a batch.
pub(super) enum BatchOutcome {
    /// The manager has stored all reports up to this seq.
    StoredThrough(u64),
    /// The manager permanently refuses this report, the only one in the batch.
    Refused(u64),
    /// The batch was a heartbeat, and the manager acknowledged it.
    HeartbeatAcknowledged,
    /// The manager has lost the acknowledged reports after this seq, and requests them again.
    ResendAfter(Option<u64>),
    /// The deadline has passed.
    OutOfTime,
}

impl Batch<'_> {
    /// Returns the outcome of this batch according to an ack.
    pub(super) fn outcome(&self, ack: &ReportAck) -> Result<BatchOutcome, Error> {
        let Cursor { acknowledged, forgotten } = self.cursor;
        // Only if there are reports to send again. Otherwise a manager that keeps asking would cause an endless loop.
        if ack.resend && ack.through.max(forgotten) < acknowledged {
            return Ok(BatchOutcome::ResendAfter(ack.through));
        }
        let (Some(first), Some(last)) = (self.records.first(), self.records.last()) else {
            return Ok(BatchOutcome::HeartbeatAcknowledged);
        };
        match ack.through {
            // An ack beyond the batch is an error of the manager. Reports that were never sent must not count as
            // acknowledged.
            Some(through) if through >= first.seq => {
                Ok(BatchOutcome::StoredThrough(through.min(last.seq)))
            }
            Some(_) | None => Err(Error::NotStored),
        }
    }
}
