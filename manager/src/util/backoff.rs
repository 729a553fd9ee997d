//! PURE: the pauses between retries, which double up to a maximum.

use std::time::Duration;

/// Returns the pause after `first` has doubled `doublings` times, at most `longest`.
pub fn doubled_pause(first: Duration, doublings: u32, longest: Duration) -> Duration {
    let factor = 1_u32.checked_shl(doublings).unwrap_or(u32::MAX);
    first.saturating_mul(factor).min(longest)
}

/// The pauses of a series of tries.
#[derive(Debug, Clone)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    /// The number of failed tries.
    failures: u32,
}

impl Backoff {
    /// Creates a series of pauses that grow from `first` to `longest`.
    pub fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest, failures: 0 }
    }

    /// Returns the pause after a failed try.
    pub fn next_pause(&mut self) -> Duration {
        let pause = doubled_pause(self.first, self.failures, self.longest);
        self.failures = self.failures.saturating_add(1);
        pause
    }

    /// Restarts the series, after a success.
    pub fn reset(&mut self) {
        self.failures = 0;
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
        let second = Duration::from_secs(1);
        for doublings in [9, 31, 32, u32::MAX] {
            let pause = doubled_pause(second, doublings, 300 * second);
            assert_eq!(pause, 300 * second, "{doublings}");
        }
    }
}
