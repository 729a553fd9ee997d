//! The progress of a trial, for tuners that compare the trials of one round.

use trial_protocol::Direction;

use super::Outcome;

/// The progress of a trial.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum TrialProgress {
    Running,
    /// The loss: smaller is better. A result that is NaN has an infinite loss.
    Loss(f64),
    Failed,
}

impl TrialProgress {
    /// Returns the progress for an outcome.
    pub(super) fn new(outcome: &Outcome, direction: Direction) -> Self {
        let number = match outcome {
            Outcome::Result(value) => value.number(),
            Outcome::Failed => None,
        };
        match (number, direction) {
            (None, _) => Self::Failed,
            (Some(number), _) if number.is_nan() => Self::Loss(f64::INFINITY),
            (Some(number), Direction::Minimize) => Self::Loss(number),
            (Some(number), Direction::Maximize) => Self::Loss(-number),
        }
    }

    /// Returns the loss, if the trial has ended with a result.
    pub(super) fn loss(self) -> Option<f64> {
        match self {
            Self::Loss(loss) => Some(loss),
            Self::Running | Self::Failed => None,
        }
    }
}
