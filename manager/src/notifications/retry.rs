//! PURE: the next step after a try to deliver a notification: done, another try after a pause, or abandoned.

use std::time::Duration;

use crate::util::backoff::doubled_pause;

/// The maximum number of tries for a notification. Together they take more than an hour.
const MAX_TRIES: u32 = 24;
/// The first and the longest pause between tries.
const FIRST_RETRY_PAUSE: Duration = Duration::from_secs(1);
const MAX_RETRY_PAUSE: Duration = Duration::from_mins(5);

/// The outcome of a try.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum DeliveryOutcome {
    /// The receiver has accepted the notification.
    Delivered,
    /// The delivery failed for this reason. Another try may succeed.
    Retryable(String),
    /// The delivery failed for this reason, and another try would fail as well.
    Permanent(String),
}

/// The next step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum NextDelivery {
    /// The notification was delivered.
    Done,
    /// The notification is abandoned for this reason.
    GivenUp(String),
    /// Another try after this pause, and the reason for it.
    RetryAfter(Duration, String),
}

/// Returns the next step after the outcome of try number `tries`, from 1.
pub(super) fn next_delivery(outcome: DeliveryOutcome, tries: u32) -> NextDelivery {
    match outcome {
        DeliveryOutcome::Delivered => NextDelivery::Done,
        DeliveryOutcome::Permanent(why) => NextDelivery::GivenUp(why),
        DeliveryOutcome::Retryable(why) if tries >= MAX_TRIES => {
            NextDelivery::GivenUp(format!("{why}; given up after {tries} tries"))
        }
        DeliveryOutcome::Retryable(why) => {
            let doublings = tries.saturating_sub(1);
            let pause = doubled_pause(FIRST_RETRY_PAUSE, doublings, MAX_RETRY_PAUSE);
            NextDelivery::RetryAfter(pause, why)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pauses_and_the_number_of_tries_are_limited() {
        let mut pauses = Vec::new();
        for tries in 1.. {
            match next_delivery(DeliveryOutcome::Retryable("no".to_owned()), tries) {
                NextDelivery::RetryAfter(pause, _) => pauses.push(pause.as_secs()),
                NextDelivery::GivenUp(why) => {
                    assert_eq!(why, "no; given up after 24 tries");
                    break;
                }
                NextDelivery::Done => panic!("the receiver did not accept it"),
            }
        }
        assert_eq!(pauses[..10], [1, 2, 4, 8, 16, 32, 64, 128, 256, 300]);
        assert!((3600..2 * 3600).contains(&pauses.iter().sum::<u64>()), "{pauses:?}");
        assert_eq!(next_delivery(DeliveryOutcome::Delivered, 24), NextDelivery::Done);
        let never = DeliveryOutcome::Permanent("gone".to_owned());
        assert_eq!(next_delivery(never, 1), NextDelivery::GivenUp("gone".to_owned()));
    }
}
