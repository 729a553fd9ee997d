//! PURE: states in plain words, for the portal, `report` and `top`.

use std::collections::BTreeMap;

use crate::job_state::JobState;

/// The states of trials that ended or became silent for external reasons. Pages count them together.
pub const EXTERNAL_ENDS: [JobState; 3] =
    [JobState::UserCanceled, JobState::SysCanceled, JobState::Lost];

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

/// Returns a list of states in plain words: "cancelled, interrupted or lost".
pub fn trial_states(states: &[JobState]) -> String {
    let words: Vec<_> = states.iter().map(|state| trial_state(*state)).collect();
    match words.split_last() {
        Some((last, others)) if !others.is_empty() => format!("{} or {last}", others.join(", ")),
        _ => words.concat(),
    }
}

/// Returns all states of trials in plain words, by the names of the API.
pub fn all_trial_states() -> BTreeMap<&'static str, &'static str> {
    JobState::ALL.into_iter().map(|state| (state.as_str(), trial_state(state))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_states_are_listed_in_words() {
        assert_eq!(trial_states(&EXTERNAL_ENDS), "cancelled, interrupted or lost");
        assert_eq!(trial_states(&[JobState::EarlyStopped]), "stopped early");
        assert_eq!(trial_states(&[]), "");
    }
}
