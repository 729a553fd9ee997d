//! The notices for a person who watches an experiment.

use trial_protocol::TrialJobId;

use super::ending::End;
use super::result::TrialResult;
use super::state::ExperimentState;

/// A notice for those who watch the experiment.
#[derive(Debug, Clone)]
pub enum Notice {
    /// A trial's agent started the command.
    Running {
        /// The trial.
        trial: TrialJobId,
    },
    /// A trial that was submitted does not run yet.
    Waits {
        /// The trial.
        trial: TrialJobId,
        /// Its position.
        sequence: u64,
        /// The cause.
        why: String,
    },
    /// A trial's agent is not heard any more.
    Lost {
        /// The trial.
        trial: TrialJobId,
        /// Its position.
        sequence: u64,
        /// The reason that it is thought so.
        message: String,
    },
    /// A lost trial's agent is heard again.
    Found {
        /// The trial.
        trial: TrialJobId,
        /// Its position.
        sequence: u64,
    },
    /// A trial ended.
    Ended {
        /// The trial.
        trial: TrialJobId,
        /// Its position.
        sequence: u64,
        /// How.
        end: End,
        /// Its result.
        result: TrialResult,
        /// Last lines of its output, for a failure.
        last_lines: String,
        /// The number with which it competes for the best: its result, or the mean of its point, which is complete now.
        competes: Option<f64>,
    },
    /// Something that a person should know.
    Told(String),
    /// The experiment stands elsewhere.
    State(ExperimentState),
}
