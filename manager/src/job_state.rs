//! The states of a trial job, in NNI's words (`nni-protocol`: "State machines"), and TrialKeeper's `LOST`.

use std::fmt;
use std::str::FromStr;

/// The state of a trial job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum JobState {
    /// The trial is recorded and not yet running.
    Waiting,
    /// The agent has started the command.
    Running,
    /// The command exited with 0.
    Succeeded,
    /// The command failed or could not be started.
    Failed,
    /// A user cancelled the trial, or the manager stopped.
    UserCanceled,
    /// The platform ended the trial, or the experiment reached a limit.
    SysCanceled,
    /// An assessor or `maxTrialDuration` ended the trial.
    EarlyStopped,
    /// The agent has stopped reporting. Not final: a late report makes the trial `RUNNING` again.
    Lost,
    /// The state is unknown.
    Unknown,
}

impl JobState {
    /// All states.
    pub const ALL: [Self; 9] = [
        Self::Waiting,
        Self::Running,
        Self::Succeeded,
        Self::Failed,
        Self::UserCanceled,
        Self::SysCanceled,
        Self::EarlyStopped,
        Self::Lost,
        Self::Unknown,
    ];

    /// Returns the name of the state, as users, the store and the API see it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "WAITING",
            Self::Running => "RUNNING",
            Self::Succeeded => "SUCCEEDED",
            Self::Failed => "FAILED",
            Self::UserCanceled => "USER_CANCELED",
            Self::SysCanceled => "SYS_CANCELED",
            Self::EarlyStopped => "EARLY_STOPPED",
            Self::Lost => "LOST",
            Self::Unknown => "UNKNOWN",
        }
    }

    /// Returns the names of all states, separated by commas, for messages.
    pub fn words() -> String {
        Self::ALL.map(Self::as_str).join(", ")
    }

    /// Returns whether the trial job has ended permanently.
    pub fn is_final(self) -> bool {
        match self {
            Self::Succeeded
            | Self::Failed
            | Self::UserCanceled
            | Self::SysCanceled
            | Self::EarlyStopped => true,
            Self::Waiting | Self::Running | Self::Lost | Self::Unknown => false,
        }
    }
}

impl fmt::Display for JobState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// A word that names no state.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a trial job state")]
pub struct NoSuchState(String);

/// Ignores case, because users also type the states.
impl FromStr for JobState {
    type Err = NoSuchState;

    fn from_str(word: &str) -> Result<Self, NoSuchState> {
        Self::ALL
            .into_iter()
            .find(|state| state.as_str().eq_ignore_ascii_case(word))
            .ok_or_else(|| NoSuchState(word.to_owned()))
    }
}
