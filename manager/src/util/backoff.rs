//! PURE: the pauses between retries, which double up to a maximum.

use std::time::Duration;

/// The pauses of a series of tries.
#[derive(Debug, Clone)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    next: Duration,
}

impl Backoff {
    /// Creates a series of pauses that grow from `first` to `longest`.
    pub fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest, next: first.min(longest) }
    }

    /// Returns the pause after a failed try.
    pub fn next_pause(&mut self) -> Duration {
        let pause = self.next;
        self.next = pause.saturating_mul(2).min(self.longest);
        pause
    }

    /// Restarts the series, after a success.
    pub fn reset(&mut self) {
        self.next = self.first.min(self.longest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest_and_begin_again() {
        let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(5));
        let seconds = |backoff: &mut Backoff| -> Vec<u64> {
            (0..5).map(|_| backoff.next_pause().as_secs()).collect()
        };
        assert_eq!(seconds(&mut backoff), [1, 2, 4, 5, 5]);
        backoff.reset();
        assert_eq!(seconds(&mut backoff), [1, 2, 4, 5, 5]);
        let mut short = Backoff::new(Duration::from_secs(9), Duration::from_secs(5));
        assert_eq!(seconds(&mut short), [5; 5], "no pause exceeds the maximum");
        let mut endless = Backoff::new(Duration::MAX, Duration::MAX);
        endless.next_pause();
        assert_eq!(endless.next_pause(), Duration::MAX, "no overflow");
    }
}
