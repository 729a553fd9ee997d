//! PURE: the moments at which a store that fails now and then is called ill, and well. An illness is told at once. Its
//! end is told only after it has stayed away for a while: an illness that comes and goes is told of twice and not a
//! hundred times.

use std::time::Duration;

use tokio::time::Instant;

use super::event;

/// The time that the store must have been well.
const CONVALESCENCE: Duration = Duration::from_secs(3);
/// Nothing is to be looked at.
const NEVER: Duration = Duration::from_hours(1);

/// The state of the store's health that was notified last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Health {
    /// Nothing, or that it is well.
    #[default]
    Well,
    /// That it is ill, which it is.
    Ill,
    /// That it is ill; since then it is not.
    Convalescent(Instant),
}

impl Health {
    /// Returns the state that an earlier manager has notified: that the store is ill, or not.
    pub(super) fn begin(told_ill: bool) -> Self {
        if told_ill { Self::Ill } else { Self::Well }
    }

    /// Takes how the store is at `now`, and gives what is to be told.
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

    /// When to look again, if nothing happens.
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
            ("it is well",           None,  0,  None),
            ("it falls ill",         ill(), 1,  Some(event::Health::Degraded("full".to_owned()))),
            ("and stays so",         ill(), 2,  None),
            ("it is better",         None,  3,  None),
            ("but not for long",     ill(), 4,  None),
            ("better again",         None,  5,  None),
            ("for a while",          None,  7,  None),
            ("and for good",         None,  8,  Some(event::Health::Recovered)),
            ("which is said once",   None,  60, None),
            ("a new illness is new", ill(), 61, Some(event::Health::Degraded("full".to_owned()))),
        ];
        for (says, ill, when, told) in story {
            assert_eq!(health.step(ill, at(when)), told, "{says}");
        }
    }
}
