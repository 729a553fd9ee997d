//! The wall clock behind a trait. Only this module reads it. Durations are measured with tokio's monotonic clock,
//! which changes of the wall clock do not affect.

use std::time::Duration;

/// A source of wall-clock time.
pub trait Clock: Send + Sync {
    /// Returns the milliseconds since the Unix epoch.
    fn now_ms(&self) -> i64;
}

/// The system's clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now_ms(&self) -> i64 {
        #[expect(clippy::disallowed_methods, reason = "this is the clock")]
        let now = std::time::SystemTime::now();
        let since = now.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
    }
}

/// Returns a length of time in milliseconds.
pub fn to_ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
