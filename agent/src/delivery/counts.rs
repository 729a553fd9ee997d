//! Counters of delivery, for the metrics page.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of delivery.
#[derive(Debug, Default)]
pub struct DeliveryCounts {
    accepted: AtomicU64,
    failed: AtomicU64,
}

impl DeliveryCounts {
    /// Returns the number of batches that the manager accepted, including heartbeats, and of failed attempts.
    pub fn snapshot(&self) -> [u64; 2] {
        [&self.accepted, &self.failed].map(|count| count.load(Ordering::Relaxed))
    }

    /// Counts an accepted batch.
    pub(super) fn count_accepted(&self) {
        self.accepted.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a failed attempt.
    pub(super) fn count_failed(&self) {
        self.failed.fetch_add(1, Ordering::Relaxed);
    }
}
