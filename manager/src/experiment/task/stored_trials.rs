//! The stored trials and results, as a tuner learns them again.

use trial_protocol::{StopReason, TrialJobId};

use super::trial_result;
use crate::config::ExperimentSpec;
use crate::experiment::state;
use crate::job_state::JobState;
use crate::search::search_space::Parameters;
use crate::search::tuner::{Outcome, Sample, Tuner};
use crate::store::{self, ImportedRow, Store, TrialRow};

/// Reports all stored results to a new built-in tuner. Returns the trials that have no outcome yet, each with the number
/// of its proposal.
pub(super) async fn teach_stored_trials(
    tuner: &mut dyn Tuner,
    store: &Store,
    spec: &ExperimentSpec,
) -> Result<Vec<(TrialJobId, u64)>, store::Error> {
    tuner.import(&stored_samples(store.experiment().imported_rows().await?));
    let none = Parameters::new();
    let mut open = Vec::new();
    for row in store.trials().all().await? {
        let parameters = row.parameters.as_object().unwrap_or(&none);
        let outcome = if row.state.is_final() && !is_interrupted(&row) {
            Some(stored_outcome(store, spec, &row).await?)
        } else {
            None
        };
        match (row.parameter_id, outcome) {
            (Some(id), Some(outcome)) => {
                tuner.adopt(id, parameters);
                tuner.observe(id, &outcome);
            }
            (Some(id), None) => {
                tuner.adopt(id, parameters);
                open.push((row.id, id));
            }
            // The user chose the parameters.
            (None, Some(Outcome::Result(value))) => {
                tuner.import(&[Sample { parameters: parameters.clone(), value }]);
            }
            (None, Some(Outcome::Failed) | None) => {}
        }
    }
    Ok(open)
}

/// Returns whether a manager's own end interrupted a trial, which therefore runs again.
pub(super) fn is_interrupted(row: &TrialRow) -> bool {
    let interrupted = row.intent == Some(StopReason::ManagerShutdown);
    interrupted && row.state.is_final() && row.state != JobState::Succeeded
}

/// Returns the outcome of an ended trial, for the tuner.
pub(super) async fn stored_outcome(
    store: &Store,
    spec: &ExperimentSpec,
    row: &TrialRow,
) -> Result<Outcome, store::Error> {
    let result = trial_result(store, spec, &row.id, &row.attempt).await?;
    let counts = state::is_result_for_tuner(row.state, row.intent);
    let number = result.final_value.filter(|value| counts && value.number().is_some());
    Ok(number.map_or(Outcome::Failed, Outcome::Result))
}

/// Returns stored results for a tuner.
pub(super) fn stored_samples(rows: Vec<ImportedRow>) -> Vec<Sample> {
    let sample = |row: ImportedRow| {
        let parameters = row.parameters.as_object()?.clone();
        Some(Sample { parameters, value: row.value.into() })
    };
    rows.into_iter().filter_map(sample).collect()
}
