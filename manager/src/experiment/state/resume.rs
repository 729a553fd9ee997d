//! PURE: restores the state of an experiment from the store.

use std::time::Duration;

use super::{Limits, LiveTrial, ResumedTrial, State, StoredTrial};

impl State {
    /// Returns the state of an experiment that has run for `elapsed` before, with its trials in the order of their
    /// sequence.
    pub fn resume(limits: Limits, elapsed: Duration, trials: Vec<StoredTrial>) -> Self {
        let mut state = Self::new(limits);
        state.elapsed = elapsed;
        for known in trials {
            state.next_sequence = state.next_sequence.max(known.sequence + 1);
            state.budget.set_retries(known.trial.clone(), known.retries);
            match known.parameter_id {
                Some(id) => state.next_parameter_id = state.next_parameter_id.max(id + 1),
                None if known.fate == ResumedTrial::Ended => {}
                None => drop(state.own.insert(known.trial.clone())),
            }
            match known.fate {
                ResumedTrial::Ended => {}
                ResumedTrial::Alive { running_for } => {
                    let live = LiveTrial {
                        parameter_id: known.parameter_id,
                        running_since: running_for.map(|ran| elapsed.saturating_sub(ran)),
                        intent: known.intent,
                    };
                    state.live.insert(known.trial, live);
                }
                ResumedTrial::RunAgain => {
                    state.rerun_proposals.insert(known.trial.clone(), known.parameter_id);
                    state.rerun_queue.push_back(known.trial);
                }
            }
        }
        state
    }
}
