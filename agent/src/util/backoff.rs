//! Pauses between two attempts, growing up to a maximum. Only this module uses the crate `backoff`.

use std::time::Duration;

use ::backoff::backoff::Backoff as _;
use ::backoff::{ExponentialBackoff, ExponentialBackoffBuilder};

/// Pauses with full jitter. Many agents that lost the same manager must not return at the same time.
#[derive(Debug)]
pub struct JitteredBackoff {
    pauses: ExponentialBackoff,
    longest: Duration,
}

impl JitteredBackoff {
    /// Returns pauses between zero and twice a mean that grows from `first` to `longest`.
    pub fn new(first: Duration, longest: Duration) -> Self {
        let pauses = ExponentialBackoffBuilder::new()
            .with_initial_interval(first)
            .with_max_interval(longest)
            .with_randomization_factor(1.0)
            .with_max_elapsed_time(None)
            .build();
        Self { pauses, longest }
    }

    /// Returns the next pause.
    pub fn next_pause(&mut self) -> Duration {
        self.pauses.next_backoff().unwrap_or(self.longest)
    }
}

/// Pauses that double, without jitter. PURE.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DoublingBackoff {
    next: Duration,
    first: Duration,
    longest: Duration,
}

impl DoublingBackoff {
    /// Returns pauses that double from `first` to `longest`.
    pub fn new(first: Duration, longest: Duration) -> Self {
        Self { next: first, first, longest }
    }

    /// Returns the next pause.
    pub fn next_pause(&mut self) -> Duration {
        let pause = self.next;
        self.next = pause.saturating_mul(2).min(self.longest);
        pause
    }

    /// Restarts with the first pause.
    pub fn reset(&mut self) {
        self.next = self.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest_and_begin_again_after_a_reset() {
        let [first, longest] = [1, 5].map(Duration::from_secs);
        let mut backoff = DoublingBackoff::new(first, longest);
        for expected in [1, 2, 4, 5, 5] {
            assert_eq!(backoff.next_pause(), Duration::from_secs(expected));
        }
        backoff.reset();
        assert_eq!(backoff.next_pause(), first);
    }

    #[test]
    fn a_pause_with_jitter_is_at_most_twice_its_mean() {
        let [first, longest] = [100, 400].map(Duration::from_millis);
        let mut backoff = JitteredBackoff::new(first, longest);
        assert!(backoff.next_pause() <= 2 * first);
        for _ in 0..100 {
            assert!(backoff.next_pause() <= 2 * longest);
        }
    }
}
