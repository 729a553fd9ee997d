//! PURE: the consequence of a try to deliver a notification: it was taken, it is tried again after a pause, or it is given
//! up.

use std::time::Duration;

/// The number of times that one thing is tried: for more than an hour.
const TRIES: u32 = 24;
/// The longest pause.
const MAX_RETRY_PAUSE: Duration = Duration::from_mins(5);

/// The outcome of a try.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The receiver has taken it.
    Delivered,
    /// Not now; why. Another try may help.
    NotNow(String),
    /// Never; why.
    Never(String),
}

/// The next step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Next {
    /// Nothing: it was told.
    Told,
    /// Nothing: it is given up, and why.
    GivenUp(String),
    /// Another try, after this pause.
    Again(Duration, String),
}

/// Returns the next step after the outcome of try number `tries`, from 1.
pub(super) fn next(outcome: Outcome, tries: u32) -> Next {
    match outcome {
        Outcome::Delivered => Next::Told,
        Outcome::Never(why) => Next::GivenUp(why),
        Outcome::NotNow(why) if tries >= TRIES => {
            Next::GivenUp(format!("{why}; it was tried {tries} times"))
        }
        Outcome::NotNow(why) => {
            let seconds = 1 << tries.saturating_sub(1).min(16);
            Next::Again(Duration::from_secs(seconds).min(MAX_RETRY_PAUSE), why)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_bound_and_so_do_tries() {
        let mut pauses = Vec::new();
        for tries in 1.. {
            match next(Outcome::NotNow("no".to_owned()), tries) {
                Next::Again(pause, _) => pauses.push(pause.as_secs()),
                Next::GivenUp(why) => {
                    assert_eq!(why, "no; it was tried 24 times");
                    break;
                }
                Next::Told => panic!("nobody took it"),
            }
        }
        assert_eq!(pauses[..10], [1, 2, 4, 8, 16, 32, 64, 128, 256, 300]);
        assert!((3600..2 * 3600).contains(&pauses.iter().sum::<u64>()), "{pauses:?}");
        assert_eq!(next(Outcome::Delivered, 24), Next::Told);
        let never = Outcome::Never("gone".to_owned());
        assert_eq!(next(never, 1), Next::GivenUp("gone".to_owned()));
    }
}
