//! What an earlier process left in the spool: delivered as its own, the oldest first.

use tracing::{debug, warn};
use trial_protocol::{AttemptId, Lane};

use super::{BatchOutcome, Deliverer, FACTS_BYTES};
use crate::spool::{Cursor, Dialect, LaneFiles};

/// Returns the number of an earlier process's reports that are not acknowledged; at least one.
async fn left_in(mut files: LaneFiles) -> u64 {
    let summary = tokio::task::spawn_blocking(move || files.scan(false)).await;
    summary.ok().and_then(Result::ok).map_or(1, |summary| summary.kept.max(1))
}

impl Deliverer {
    /// Delivers what an earlier process left of one lane; how many reports were not.
    pub(super) async fn deliver_older(&self, attempt: &AttemptId, mut files: LaneFiles) -> u64 {
        let mut told = false;
        loop {
            let after = files.acked();
            let read = tokio::task::spawn_blocking(move || {
                let found = files.read(after, u64::MAX, FACTS_BYTES);
                (files, found)
            });
            let Ok((returned, found)) = read.await else { return 1 };
            files = returned;
            let records = match found {
                Ok(records) => records,
                Err(error) => {
                    warn!("cannot read what attempt {attempt} left in the spool: {error}");
                    return 1;
                }
            };
            let lane = files.lane();
            let facts = lane == Lane::Facts && self.settings.sender.dialect == Dialect::Native;
            let last = records.last().map(|record| record.seq);
            // Nothing is left to deliver; but the manager may have lost what it had.
            if last.is_none() && (told || !facts || !files.is_anything_there()) {
                drop(tokio::task::spawn_blocking(move || files.remove_segments()).await);
                return 0;
            }
            let (acknowledged, forgotten) = (files.acked(), files.forgotten());
            let cursor = if facts { Cursor { acknowledged, forgotten } } else { Cursor::default() };
            let delivered = self.deliver(attempt, lane, records, cursor, None).await;
            let mut behind = None;
            match delivered {
                BatchOutcome::OutOfTime => return left_in(files).await,
                BatchOutcome::Through(through) => files.ack(through),
                BatchOutcome::Refused(seq) => {
                    files.give_up(seq);
                    files.ack(seq);
                }
                BatchOutcome::Nothing => {}
                BatchOutcome::Behind(stored) => behind = Some(stored),
            }
            told = behind.is_none();
            let saved = tokio::task::spawn_blocking(move || {
                if let Some(stored) = behind {
                    files.rewind(stored);
                }
                let saved = files.save(None);
                (files, saved)
            });
            let Ok((returned, saved)) = saved.await else { return 1 };
            files = returned;
            if let Err(error) = saved {
                // It will be delivered again, and ignored.
                debug!("cannot note what was delivered of attempt {attempt}: {error}");
            }
        }
    }
}
