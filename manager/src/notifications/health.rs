//! PURE: decides when a store with intermittent failures is reported as failing, and as recovered. A failure is
//! reported immediately. A recovery is reported only after the store has worked for a while, so that an intermittent
//! failure does not cause hundreds of notifications.

use std::time::Duration;

use tokio::time::Instant;

use super::event;

/// The time that the store must have worked before the recovery is reported.
const CONVALESCENCE: Duration = Duration::from_secs(3);
/// The time to the next check if nothing is pending.
const NEVER: Duration = Duration::from_hours(1);

/// The state of the store that was reported last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Health {
    /// Nothing was reported, or the recovery was.
    #[default]
    Well,
    /// The failure was reported and continues.
    Ill,
    /// The failure was reported, and the store has worked since this time.
    Convalescent(Instant),
}

impl Health {
    /// Returns the state that an earlier manager has reported: failing, or not.
    pub(super) fn begin(told_ill: bool) -> Self {
        if told_ill { Self::Ill } else { Self::Well }
    }

    /// Updates the state with the store's error at `now`, and returns the notification to send.
    pub(super) fn step(&mut self, ill: Option<String>, now: Instant) -> Option<event::Health> {
        match (*self, ill) {
            (Self::Well, Some(why)) => {
                *self = Self::Ill;
                Some(event::Health::Degraded(why))
            }
            (Self::Ill | Self::Convalescent(_), Some(_)) => {
                *self = Self::Ill;
                None
            }
            (Self::Ill, None) => {
                *self = Self::Convalescent(now);
                None
            }
            (Self::Convalescent(since), None) if now - since >= CONVALESCENCE => {
                *self = Self::Well;
                Some(event::Health::Recovered)
            }
            (Self::Well | Self::Convalescent(_), None) => None,
        }
    }

    /// Returns the time until the next check, if nothing changes.
    pub(super) fn next_look(self, now: Instant) -> Duration {
        match self {
            Self::Well | Self::Ill => NEVER,
            Self::Convalescent(since) => CONVALESCENCE.saturating_sub(now - since),
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
        let ill = || Some("full".to_owned());
        let mut health = Health::default();
        #[rustfmt::skip]
        let story = [
            ("it works",             None,  0,  None),
            ("it fails",             ill(), 1,  Some(event::Health::Degraded("full".to_owned()))),
            ("it still fails",       ill(), 2,  None),
            ("it works briefly",     None,  3,  None),
            ("it fails again",       ill(), 4,  None),
            ("it works again",       None,  5,  None),
            ("it still works",       None,  7,  None),
            ("it has recovered",     None,  8,  Some(event::Health::Recovered)),
            ("reported once",        None,  60, None),
            ("a new failure",        ill(), 61, Some(event::Health::Degraded("full".to_owned()))),
        ];
        for (case, ill, when, told) in story {
            assert_eq!(health.step(ill, at(when)), told, "{case}");
        }
    }
}
