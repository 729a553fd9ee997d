//! Counters of delivery, for the page of metrics.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of delivery.
#[derive(Debug, Default)]
pub struct Counts {
    taken: AtomicU64,
    failed: AtomicU64,
}

impl Counts {
    /// Batches that the manager has taken, heartbeats included, and tries that failed.
    pub fn snapshot(&self) -> [u64; 2] {
        [&self.taken, &self.failed].map(|count| count.load(Ordering::Relaxed))
    }

    /// A batch was taken.
    pub(super) fn count_taken(&self) {
        self.taken.fetch_add(1, Ordering::Relaxed);
    }

    /// A try failed.
    pub(super) fn count_failed(&self) {
        self.failed.fetch_add(1, Ordering::Relaxed);
    }
}
