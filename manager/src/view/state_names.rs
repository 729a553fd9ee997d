//! PURE: states in plain words, for the portal and `top`.

use crate::job_state::JobState;

/// Returns an experiment's state in plain words. A state that this build does not support is only converted to lower
/// case.
pub fn experiment_state(state: &str) -> String {
    match state {
        "NO_MORE_TRIAL" => "last trials are running".to_owned(),
        "TUNER_NO_MORE_TRIAL" => "tuner has no more to propose".to_owned(),
        _ => state.to_lowercase().replace('_', " "),
    }
}

/// Returns a trial's state in plain words.
pub fn trial_state(state: JobState) -> &'static str {
    match state {
        JobState::Waiting => "waiting",
        JobState::Running => "running",
        JobState::Succeeded => "succeeded",
        JobState::Failed => "failed",
        JobState::UserCanceled => "cancelled",
        JobState::SysCanceled => "interrupted",
        JobState::EarlyStopped => "stopped early",
        JobState::Lost => "lost",
        JobState::Unknown => "unknown",
    }
}
