//! The delivery of reports that an earlier process left in the spool, as reports of that process, the oldest first.

use std::io;

use tracing::{debug, warn};
use trial_protocol::{AttemptId, Lane};

use super::MAX_FACTS_BATCH_BYTES;
use super::batch::{Batch, BatchOutcome};
use super::batch_delivery::BatchDelivery;
use crate::spool::{Cursor, Dialect, LaneFiles};

/// Delivers one lane of an earlier process. Returns the number of undelivered reports.
pub(super) async fn deliver_earlier_attempt(
    batches: &BatchDelivery,
    attempt: &AttemptId,
    mut files: LaneFiles,
) -> u64 {
    let lane = files.lane();
    let can_resend_facts = lane == Lane::Facts && batches.dialect() == Dialect::Native;
    let mut confirmed = false;
    loop {
        let after = files.acked();
        let read = move |files: &mut LaneFiles| files.read(after, u64::MAX, MAX_FACTS_BATCH_BYTES);
        let Some((returned, records)) = run_blocking(files, read).await else { return 1 };
        files = returned;
        let records = match records {
            Ok(records) => records,
            Err(error) => {
                warn!("cannot read the reports of attempt {attempt} in the spool: {error}");
                return 1;
            }
        };
        // No report is left, but the manager may have lost reports that it had acknowledged.
        if records.is_empty() && (confirmed || !can_resend_facts || !files.has_segments()) {
            drop(run_blocking(files, LaneFiles::remove_segments).await);
            return 0;
        }
        let (acknowledged, forgotten) = (files.acked(), files.forgotten());
        let cursor =
            if can_resend_facts { Cursor { acknowledged, forgotten } } else { Cursor::default() };
        let outcome = batches.deliver(Batch { attempt, lane, records, cursor }, None).await;
        if matches!(outcome, BatchOutcome::OutOfTime) {
            return count_undelivered(files).await;
        }
        confirmed = !matches!(outcome, BatchOutcome::ResendAfter(_));
        let Some((returned, saved)) =
            run_blocking(files, move |files| save_outcome(files, &outcome)).await
        else {
            return 1;
        };
        files = returned;
        if let Err(error) = saved {
            // The reports will be delivered again, and the manager will ignore them.
            debug!("cannot record the delivery of attempt {attempt}: {error}");
        }
    }
}

/// Runs `work` on a thread that may block. Returns `None` if the work panicked.
async fn run_blocking<T: Send + 'static>(
    mut files: LaneFiles,
    work: impl FnOnce(&mut LaneFiles) -> T + Send + 'static,
) -> Option<(LaneFiles, T)> {
    let done = tokio::task::spawn_blocking(move || {
        let result = work(&mut files);
        (files, result)
    });
    done.await.ok()
}

/// Returns the number of unacknowledged reports, at least one.
async fn count_undelivered(files: LaneFiles) -> u64 {
    let scanned = run_blocking(files, |files| files.scan(false)).await;
    scanned.and_then(|(_, summary)| summary.ok()).map_or(1, |summary| summary.kept.max(1))
}

/// Saves the outcome of a batch in the files.
fn save_outcome(files: &mut LaneFiles, outcome: &BatchOutcome) -> io::Result<()> {
    match outcome {
        BatchOutcome::StoredThrough(through) => files.ack(*through),
        BatchOutcome::Refused(seq) => {
            files.forget_refused(*seq);
            files.ack(*seq);
        }
        BatchOutcome::ResendAfter(stored) => {
            files.rewind(*stored);
        }
        BatchOutcome::HeartbeatAcknowledged | BatchOutcome::OutOfTime => {}
    }
    files.save(None)
}
