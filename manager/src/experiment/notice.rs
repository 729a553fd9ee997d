//! The notices for a user who watches an experiment.

use trial_protocol::TrialJobId;

use super::ending::RecordedEnd;
use super::result::TrialResult;
use super::state::ExperimentState;

/// A notice for the observers of an experiment.
#[derive(Debug, Clone)]
pub enum Notice {
    /// A trial's agent started the command.
    Running {
        /// The trial.
        trial: TrialJobId,
    },
    /// A submitted trial does not run yet.
    Waits {
        /// The trial.
        trial: TrialJobId,
        /// The position of the trial.
        sequence: u64,
        /// The cause.
        why: String,
    },
    /// The agent of a trial has fallen silent.
    Lost {
        /// The trial.
        trial: TrialJobId,
        /// The position of the trial.
        sequence: u64,
        /// The duration of the silence, for the user.
        message: String,
    },
    /// The agent of a lost trial reports again.
    Found {
        /// The trial.
        trial: TrialJobId,
        /// The position of the trial.
        sequence: u64,
    },
    /// A trial ended.
    Ended {
        /// The trial.
        trial: TrialJobId,
        /// The position of the trial.
        sequence: u64,
        /// The end of the trial.
        end: RecordedEnd,
        /// The result of the trial.
        result: TrialResult,
        /// The last lines of the output of a failed trial.
        last_lines: String,
        /// The number with which the trial competes for the best. It is the result, or the mean of the point that the
        /// trial completes.
        point_mean: Option<f64>,
    },
    /// A message for the user.
    Message(String),
    /// The experiment has entered this state.
    State(ExperimentState),
}
