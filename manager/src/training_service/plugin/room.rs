//! PURE: the room at a plugin: its last answer, minus the jobs that the answer could not include.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The number of jobs that a plugin can start.
#[derive(Debug, Default)]
pub(super) struct RoomCount(Mutex<Numbers>);

#[derive(Debug, Default)]
struct Numbers {
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
    fn numbers(&self) -> MutexGuard<'_, Numbers> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a job that is about to be submitted.
    pub(super) fn add(self: &Arc<Self>) -> PendingJob {
        self.numbers().pending += 1;
        PendingJob { count: Arc::clone(self), submitted: false }
    }

    /// Returns the number of jobs that the answer to a request would include if it were sent now.
    pub(super) fn submitted(&self) -> u64 {
        self.numbers().submitted
    }

    /// Records an answer, and the number of jobs that it includes.
    pub(super) fn note(&self, free: Option<u64>, counted: u64) {
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
    pub(super) fn take(mut self) {
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
        count.note(Some(3), count.submitted());
        let (first, second) = (count.add(), count.add());
        assert_eq!(count.free(), Some(1), "two jobs have no answer yet");
        first.take();
        drop(second);
        assert_eq!(count.free(), Some(2), "one job was accepted, and one was refused");
        let submitted = count.submitted();
        let third = count.add();
        third.take();
        count.note(Some(2), submitted);
        assert_eq!(count.free(), Some(1), "the third job was added after the request");
        count.note(Some(0), count.submitted());
        let fourth = count.add();
        assert_eq!(count.free(), Some(0));
        fourth.take();
        count.note(None, count.submitted());
        assert_eq!(count.free(), None, "the room is unknown");
    }
}
