//! PURE: the clock of the tracker's deadlines. It stands still while the cluster cannot be watched: a trial that
//! started in that time must not fail because its start was not seen.

use std::time::Duration;

use tokio::time::Instant;

/// The time after an interruption of the watch for which the clock stands still, unless an event or another
/// interruption comes first. It exceeds the longest pause and the time limit for a connection, so that the clock stands
/// still for as long as the API server is away. A watch that resumes without an event starts the clock with this delay.
const MAX_CLOCK_STOP: Duration = Duration::from_secs(20);

/// The time since a start, without the time in which the watch was interrupted.
#[derive(Debug)]
pub(super) struct WatchClock {
    began: Instant,
    /// The sum of all completed stops.
    stopped: Duration,
    interrupted_at: Option<Instant>,
}

impl WatchClock {
    /// Starts a clock.
    pub(super) fn new(began: Instant) -> Self {
        Self { began, stopped: Duration::ZERO, interrupted_at: None }
    }

    /// Returns the time.
    pub(super) fn now(&self, at: Instant) -> Duration {
        let stopped = self.stopped + self.present_stop(at);
        at.saturating_duration_since(self.began).saturating_sub(stopped)
    }

    /// Returns the moment at which the clock shows `due`, if the watch is not interrupted again.
    pub(super) fn moment_of(&self, due: Duration, at: Instant) -> Instant {
        if due <= self.now(at) {
            return at;
        }
        let stop = self.interrupted_at.map_or(Duration::ZERO, |_| MAX_CLOCK_STOP);
        self.began + self.stopped + stop + due
    }

    /// Handles an interruption of the watch.
    pub(super) fn interrupt(&mut self, at: Instant) {
        self.resume(at);
        self.interrupted_at = Some(at);
    }

    /// Handles an event of the watch. Returns whether the watch was interrupted before.
    pub(super) fn resume(&mut self, at: Instant) -> bool {
        self.stopped += self.present_stop(at);
        self.interrupted_at.take().is_some()
    }

    fn present_stop(&self, at: Instant) -> Duration {
        let since = self.interrupted_at.map(|since| at.saturating_duration_since(since));
        since.unwrap_or_default().min(MAX_CLOCK_STOP)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_stands_still_while_the_watch_is_interrupted() {
        let began = Instant::now();
        let at = |seconds: u64| began + Duration::from_secs(seconds);
        let shows = |clock: &WatchClock, seconds: u64| clock.now(at(seconds)).as_secs();
        let mut clock = WatchClock::new(began);
        assert_eq!(clock.moment_of(Duration::from_secs(30), at(5)), at(30));
        clock.interrupt(at(10));
        clock.interrupt(at(15));
        clock.interrupt(at(30));
        assert_eq!((shows(&clock, 30), shows(&clock, 49)), (10, 10));
        assert_eq!(clock.moment_of(Duration::from_secs(10), at(40)), at(40));
        assert_eq!(clock.moment_of(Duration::from_secs(11), at(40)), at(51));
        assert!(clock.resume(at(40)));
        assert!(!clock.resume(at(40)));
        assert_eq!((shows(&clock, 40), shows(&clock, 45)), (10, 15));
        assert_eq!(clock.moment_of(Duration::from_secs(15), at(40)), at(45));
    }

    #[test]
    fn a_watch_that_resumes_without_an_event_starts_the_clock_again() {
        let began = Instant::now();
        let at = |seconds: u64| began + Duration::from_secs(seconds);
        let mut clock = WatchClock::new(began);
        clock.interrupt(at(10));
        assert_eq!(clock.now(at(30)), Duration::from_secs(10));
        assert_eq!(clock.now(at(35)), Duration::from_secs(15));
        clock.interrupt(at(40));
        assert_eq!(clock.now(at(45)), Duration::from_secs(20));
        clock.resume(at(45));
        assert_eq!(clock.now(at(50)), Duration::from_secs(25));
    }
}
