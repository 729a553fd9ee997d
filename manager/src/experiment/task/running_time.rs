//! The running time of an experiment. It stands still while a search is done and waits for wider limits.

use std::time::Duration;

use tokio::time::Instant;

use crate::experiment::ExperimentHandle;
use crate::experiment::state::ExperimentState;

/// The time between two records of the running time. A killed manager forgets at most this time.
const RECORD_INTERVAL: Duration = Duration::from_secs(10);

/// The running time before and during this run of the manager.
pub(super) struct RunningTime {
    /// The running time before this run, and the start of this run.
    before: Duration,
    began: Instant,
    /// The time since which the search is done.
    done_since: Option<Instant>,
    /// The running time at the last record of it.
    recorded: Duration,
}

impl RunningTime {
    /// Starts the time of this run.
    pub(super) fn start(before: Duration) -> Self {
        Self { before, began: Instant::now(), done_since: None, recorded: before }
    }

    /// Returns the running time.
    pub(super) fn elapsed(&self) -> Duration {
        self.before + (self.done_since.unwrap_or_else(Instant::now) - self.began)
    }

    /// Returns the running time if it is due to be recorded.
    pub(super) fn take_due(&mut self) -> Option<Duration> {
        let elapsed = self.elapsed();
        let is_due = elapsed.saturating_sub(self.recorded) >= RECORD_INTERVAL;
        is_due.then(|| {
            self.recorded = elapsed;
            elapsed
        })
    }

    /// Returns the moment of a running time.
    pub(super) fn moment_of(&self, elapsed: Duration) -> Instant {
        self.began + elapsed.saturating_sub(self.before)
    }

    /// Publishes the running time through the handle.
    pub(super) fn publish(&self, handle: &ExperimentHandle) {
        handle.set_running_time(self.before, self.began);
    }

    /// Stops the running time while a search is done, and continues it when the search does.
    pub(super) fn follow_state(&mut self, state: ExperimentState, handle: &ExperimentHandle) {
        match (state, self.done_since) {
            (ExperimentState::Done, None) => self.done_since = Some(Instant::now()),
            (ExperimentState::Done, Some(_)) | (_, None) => {}
            (_, Some(since)) => {
                self.began += since.elapsed();
                self.done_since = None;
                self.publish(handle);
            }
        }
    }
}

/// Sleeps until a moment, or forever.
pub(super) async fn sleep_until_wake(wake: Option<Instant>) {
    match wake {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_time_in_which_a_search_is_done_does_not_count() {
        let seconds = Duration::from_secs;
        let (handle, _events) = ExperimentHandle::new(1);
        let mut time = RunningTime::start(seconds(10));
        let mut follow = async |after, state| {
            tokio::time::advance(seconds(after)).await;
            time.follow_state(state, &handle);
            time.elapsed().as_secs()
        };
        assert_eq!(follow(5, ExperimentState::NoMoreTrial).await, 15);
        assert_eq!(follow(1, ExperimentState::Done).await, 16);
        assert_eq!(follow(100, ExperimentState::Done).await, 16);
        assert_eq!(follow(100, ExperimentState::Running).await, 16);
        assert_eq!(follow(4, ExperimentState::Running).await, 20);
        assert_eq!(handle.elapsed(), Some(seconds(20)));
        assert_eq!(time.moment_of(seconds(30)) - Instant::now(), seconds(10));
    }

    #[tokio::test(start_paused = true)]
    async fn the_time_is_due_after_each_interval() {
        let seconds = Duration::from_secs;
        let mut time = RunningTime::start(seconds(100));
        let mut due = Vec::new();
        for _ in 0..25 {
            tokio::time::advance(seconds(1)).await;
            due.extend(time.take_due());
        }
        assert_eq!(due, [seconds(110), seconds(120)]);
    }
}
