//! PURE: the consequence of a try to deliver a notification: it was taken, it is tried again after a pause, or it is given
//! up.

use std::time::Duration;

/// The number of times that one thing is tried: for more than an hour.
const TRIES: u32 = 24;
/// The longest pause.
const MAX_RETRY_PAUSE: Duration = Duration::from_mins(5);

/// The outcome of a try.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum DeliveryOutcome {
    /// The receiver has taken it.
    Delivered,
    /// Not now; why. Another try may help.
    NotNow(String),
    /// Never; why.
    Never(String),
}

/// The next step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum NextDelivery {
    /// Nothing: it was told.
    Told,
    /// Nothing: it is given up, and why.
    GivenUp(String),
    /// Another try, after this pause.
    Again(Duration, String),
}

/// Returns the next step after the outcome of try number `tries`, from 1.
pub(super) fn next(outcome: DeliveryOutcome, tries: u32) -> NextDelivery {
    match outcome {
        DeliveryOutcome::Delivered => NextDelivery::Told,
        DeliveryOutcome::Never(why) => NextDelivery::GivenUp(why),
        DeliveryOutcome::NotNow(why) if tries >= TRIES => {
            NextDelivery::GivenUp(format!("{why}; it was tried {tries} times"))
        }
        DeliveryOutcome::NotNow(why) => {
            let seconds = 1 << tries.saturating_sub(1).min(16);
            NextDelivery::Again(Duration::from_secs(seconds).min(MAX_RETRY_PAUSE), why)
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
            match next(DeliveryOutcome::NotNow("no".to_owned()), tries) {
                NextDelivery::Again(pause, _) => pauses.push(pause.as_secs()),
                NextDelivery::GivenUp(why) => {
                    assert_eq!(why, "no; it was tried 24 times");
                    break;
                }
                NextDelivery::Told => panic!("the receiver did not accept it"),
            }
        }
        assert_eq!(pauses[..10], [1, 2, 4, 8, 16, 32, 64, 128, 256, 300]);
        assert!((3600..2 * 3600).contains(&pauses.iter().sum::<u64>()), "{pauses:?}");
        assert_eq!(next(DeliveryOutcome::Delivered, 24), NextDelivery::Told);
        let never = DeliveryOutcome::Never("gone".to_owned());
        assert_eq!(next(never, 1), NextDelivery::GivenUp("gone".to_owned()));
    }
}
