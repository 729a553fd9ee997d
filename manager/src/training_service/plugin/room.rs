//! PURE: the room at a plugin: its last answer, minus the jobs that the answer could not include.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The number of jobs that a plugin can start.
#[derive(Debug, Default)]
pub(super) struct RoomCount(Mutex<RoomNumbers>);

#[derive(Debug, Default)]
struct RoomNumbers {
    /// The last answer. `None`: the plugin does not know its room.
    free: Option<u64>,
    /// The total number of jobs whose submit was answered.
    submitted: u64,
    /// The number of answered jobs at the time of the request for [`Self::free`].
    counted: u64,
    /// The number of jobs whose submit has no answer yet.
    pending: u64,
}

impl RoomCount {
    fn numbers(&self) -> MutexGuard<'_, RoomNumbers> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a job that is about to be submitted.
    pub(super) fn add_pending(self: &Arc<Self>) -> PendingJob {
        self.numbers().pending += 1;
        PendingJob { count: Arc::clone(self), submitted: false }
    }

    /// Returns the number of jobs that the answer to a request would include if it were sent now.
    pub(super) fn submitted_count(&self) -> u64 {
        self.numbers().submitted
    }

    /// Records an answer, and the number of jobs that it includes.
    pub(super) fn record_answer(&self, free: Option<u64>, counted: u64) {
        let mut numbers = self.numbers();
        (numbers.free, numbers.counted) = (free, counted);
    }

    /// Returns the number of jobs that the plugin can start. `None`: unknown.
    pub(super) fn free(&self) -> Option<usize> {
        let numbers = self.numbers();
        let uncounted = numbers.submitted - numbers.counted + numbers.pending;
        numbers
            .free
            .map(|free| usize::try_from(free.saturating_sub(uncounted)).unwrap_or(usize::MAX))
    }
}

/// A job whose submit has no answer yet. Dropping it removes the job from the count.
#[derive(Debug)]
pub(super) struct PendingJob {
    count: Arc<RoomCount>,
    submitted: bool,
}

impl PendingJob {
    /// Records that the plugin has accepted the job.
    pub(super) fn mark_submitted(mut self) {
        self.submitted = true;
    }
}

impl Drop for PendingJob {
    fn drop(&mut self) {
        let mut numbers = self.count.numbers();
        numbers.pending -= 1;
        numbers.submitted += u64::from(self.submitted);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_that_an_answer_does_not_include_take_room() {
        let count = Arc::new(RoomCount::default());
        assert_eq!(count.free(), None, "the plugin was not asked");
        count.record_answer(Some(3), count.submitted_count());
        let (first, second) = (count.add_pending(), count.add_pending());
        assert_eq!(count.free(), Some(1), "two jobs have no answer yet");
        first.mark_submitted();
        drop(second);
        assert_eq!(count.free(), Some(2), "one job was accepted, and one was refused");
        let submitted = count.submitted_count();
        let third = count.add_pending();
        third.mark_submitted();
        count.record_answer(Some(2), submitted);
        assert_eq!(count.free(), Some(1), "the third job was added after the request");
        count.record_answer(Some(0), count.submitted_count());
        let fourth = count.add_pending();
        assert_eq!(count.free(), Some(0));
        fourth.mark_submitted();
        count.record_answer(None, count.submitted_count());
        assert_eq!(count.free(), None, "the room is unknown");
    }
}
