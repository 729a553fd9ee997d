//! What a person who watches an experiment is told.

use trial_protocol::TrialJobId;

use super::ending::End;
use super::result::TrialResult;
use super::state::ExperimentState;

/// What a person who watches is told.
#[derive(Debug, Clone)]
pub enum Notice {
    /// A trial's agent started the command.
    Running {
        /// Which trial.
        trial: TrialJobId,
    },
    /// A trial ended.
    Ended {
        /// Which trial.
        trial: TrialJobId,
        /// Its position.
        sequence: u64,
        /// How.
        end: End,
        /// What it achieved.
        result: TrialResult,
        /// Last lines of its output, for a failure.
        last_lines: String,
    },
    /// The experiment stands elsewhere.
    State(ExperimentState),
}
