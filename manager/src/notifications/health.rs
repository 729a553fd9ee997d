//! PURE: decides when a store with intermittent failures is reported as failing, and as recovered. A failure is
//! reported immediately. A recovery is reported only after the store has worked for a while, so that an intermittent
//! failure does not cause hundreds of notifications.

use std::time::Duration;

use tokio::time::Instant;

use super::event;

/// The time that the store must have worked before the recovery is reported.
const RECOVERY_TIME: Duration = Duration::from_secs(3);
/// The time to the next check if nothing is pending.
const IDLE_PAUSE: Duration = Duration::from_hours(1);

/// The state of the store that was reported last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Health {
    /// Nothing was reported, or the recovery was.
    #[default]
    Working,
    /// The failure was reported and continues.
    Failing,
    /// The failure was reported, and the store has worked since this time.
    Recovering(Instant),
}

impl Health {
    /// Returns the state that an earlier manager has reported: failing, or not.
    pub(super) fn from_last_report(reported_failing: bool) -> Self {
        if reported_failing { Self::Failing } else { Self::Working }
    }

    /// Updates the state with the store's error at `now`, and returns the notification to send.
    pub(super) fn step(
        &mut self,
        error: Option<String>,
        now: Instant,
    ) -> Option<event::HealthChange> {
        match (*self, error) {
            (Self::Working, Some(why)) => {
                *self = Self::Failing;
                Some(event::HealthChange::Degraded(why))
            }
            (Self::Failing | Self::Recovering(_), Some(_)) => {
                *self = Self::Failing;
                None
            }
            (Self::Failing, None) => {
                *self = Self::Recovering(now);
                None
            }
            (Self::Recovering(since), None) if now - since >= RECOVERY_TIME => {
                *self = Self::Working;
                Some(event::HealthChange::Recovered)
            }
            (Self::Working | Self::Recovering(_), None) => None,
        }
    }

    /// Returns the time until the next check, if nothing changes.
    pub(super) fn next_check(self, now: Instant) -> Duration {
        match self {
            Self::Working | Self::Failing => IDLE_PAUSE,
            Self::Recovering(since) => RECOVERY_TIME.saturating_sub(now - since),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_that_fails_now_and_then_is_reported_once() {
        let began = Instant::now();
        let at = |seconds| began + Duration::from_secs(seconds);
        let error = || Some("full".to_owned());
        let mut health = Health::default();
        #[rustfmt::skip]
        let story = [
            ("it works",             None,    0,  None),
            ("it fails",             error(), 1,  Some(event::HealthChange::Degraded("full".to_owned()))),
            ("it still fails",       error(), 2,  None),
            ("it works briefly",     None,    3,  None),
            ("it fails again",       error(), 4,  None),
            ("it works again",       None,    5,  None),
            ("it still works",       None,    7,  None),
            ("it has recovered",     None,    8,  Some(event::HealthChange::Recovered)),
            ("reported once",        None,    60, None),
            ("a new failure",        error(), 61, Some(event::HealthChange::Degraded("full".to_owned()))),
        ];
        for (case, error, when, notification) in story {
            assert_eq!(health.step(error, at(when)), notification, "{case}");
        }
    }
}
