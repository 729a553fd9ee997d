//! Actions on an experiment without a manager: cleaning its cluster, and marking its trials for another run.

use std::path::PathBuf;

use trial_protocol::{ExperimentId, TrialJobId};

use super::Error;
use super::server_lookup::open_store;
use crate::config::{self, ExperimentSpec};
use crate::experiment::command::CommandError;
use crate::job_state::JobState;
use crate::store::{Store, TrialChange, TrialTimes};
use crate::training_service::kubernetes::client::Access;
use crate::training_service::kubernetes::platform::clean_cluster;
use crate::training_service::platform::{BoxError, CleanContext, platform};
use crate::util::clock::{Clock as _, SystemClock};
use crate::util::ids;
use crate::util::layout::ExperimentDir;

/// Deletes everything that an experiment left outside its folder. `cluster` is the cluster on which it ran, if the
/// experiment's store does not name one or is lost. Returns the number of trials without a recorded end. Their states
/// stay, because their last reports decide them, and only a manager can receive those.
pub async fn clean(
    dir: &ExperimentDir,
    id: &ExperimentId,
    cluster: Option<Access>,
) -> Result<usize, Error> {
    if let Some(access) = cluster {
        clean_cluster(&access, id).await.map_err(BoxError::from)?;
        return Ok(0);
    }
    let Some((spec, open_trials)) = stored_experiment(dir, id).await? else { return Ok(0) };
    let context = CleanContext { id, spec: &spec, dir };
    platform(&spec.training_service).clean(context).await?;
    Ok(open_trials)
}

/// Returns the specification of an experiment, and the number of its trials without a recorded end.
async fn stored_experiment(
    dir: &ExperimentDir,
    id: &ExperimentId,
) -> Result<Option<(ExperimentSpec, usize)>, Error> {
    if !dir.database().exists() {
        let data_dir = dir.path().parent().map(PathBuf::from).unwrap_or_default();
        return Err(Error::NoSuchExperiment { id: id.clone(), data_dir });
    }
    let store = open_store(id, dir).await?;
    // The number of open trials is only for a note. Damaged trials must not prevent the cleaning.
    let (row, trials) =
        (store.experiment().row().await?, store.trials().all().await.unwrap_or_default());
    store.close().await;
    let open_trials = trials.iter().filter(|trial| !trial.state.is_final()).count();
    let spec = row.map(|row| config::from_canonical(&row.canonical)).transpose()?;
    Ok(spec.map(|spec| (spec, open_trials)))
}

/// Marks ended trials for another run, all or none; the next `resume` starts them. Trials that already wait are not
/// changed.
pub async fn rerun_trials(dir: &ExperimentDir, trials: &[TrialJobId]) -> Result<(), CommandError> {
    // Opening the store for writing excludes managers. It fails if a manager is running.
    let store = Store::open(&dir.database())?;
    let marked = mark_for_rerun(&store, trials).await;
    store.close().await;
    marked
}

async fn mark_for_rerun(store: &Store, trials: &[TrialJobId]) -> Result<(), CommandError> {
    let at_ms = SystemClock.now_ms();
    let mut changes = Vec::with_capacity(trials.len());
    for trial in trials {
        let row = store.trials().get(trial).await?;
        let row = row.ok_or_else(|| CommandError::UnknownTrial(trial.clone()))?;
        if row.state == JobState::Waiting {
            continue;
        }
        if !row.state.is_final() {
            return Err(CommandError::NotEnded { trial: trial.clone(), state: row.state });
        }
        // As after a temporary failure, the manager determines the number of the next attempt.
        let change = TrialChange {
            state: JobState::Waiting,
            at_ms,
            message: Some(
                "waiting to run again, as requested: the next `trial-manager resume` runs it"
                    .to_owned(),
            ),
            exit_code: None,
            attempt: Some(ids::next_attempt(trial, &row.attempt)),
            reported: TrialTimes::default(),
        };
        changes.push((trial.clone(), change));
    }
    Ok(store.trials().change(changes).await?)
}
