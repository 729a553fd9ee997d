//! PURE: the next step after a try to deliver a notification: done, another try after a pause, or abandoned.

use std::time::Duration;

/// The maximum number of tries for a notification. Together they take more than an hour.
const MAX_TRIES: u32 = 24;
/// The maximum pause between tries.
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
            let seconds = 1 << tries.saturating_sub(1).min(16);
            NextDelivery::RetryAfter(Duration::from_secs(seconds).min(MAX_RETRY_PAUSE), why)
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
