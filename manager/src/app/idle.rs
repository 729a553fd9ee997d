//! Actions on an experiment without a manager: its cluster is cleaned, and its trials are marked to run once more.

use std::path::PathBuf;

use tracing::warn;
use trial_protocol::{ExperimentId, TrialJobId};

use super::{Error, service};
use crate::config::{self, ExperimentSpec, TrainingServiceSpec};
use crate::experiment::command::Refused;
use crate::job_state::JobState;
use crate::store::{Span, Store, TrialChange};
use crate::training_service::kubernetes::cleanup;
use crate::training_service::kubernetes::client::{self, Access};
use crate::training_service::plugin;
use crate::util::clock::{Clock as _, SystemClock};
use crate::util::ids;
use crate::util::layout::ExperimentDir;

/// Deletes everything that an experiment left in its cluster or at its plugin's platform. `place` is the cluster, where
/// the experiment's store does not name it or is lost.
pub async fn clean(
    dir: &ExperimentDir,
    id: &ExperimentId,
    place: Option<Access>,
) -> Result<(), Error> {
    let access = match place {
        Some(place) => place,
        None => match stored_spec(dir, id).await? {
            None => return Ok(()),
            Some(spec) => match &spec.training_service {
                TrainingServiceSpec::Kubernetes(service) => service::access(service),
                TrainingServiceSpec::Plugin(service) => {
                    let (code, secrets) = (&spec.trial_code_directory, spec.secret_variables());
                    for left in plugin::clean_up(service, code, secrets, id, dir).await? {
                        warn!("the plugin has left {left}");
                    }
                    return Ok(());
                }
                // What ran on this machine left nothing but its folder.
                TrainingServiceSpec::Local(_) | TrainingServiceSpec::Remote(_) => return Ok(()),
            },
        },
    };
    let cluster = client::Cluster::connect(&access).await?;
    cleanup::clean_all(&cluster, id).await?;
    if !cleanup::gone(&cluster, id).await? {
        let namespace = cluster.namespace();
        warn!("pods of it are still ending: `kubectl -n {namespace} get pods` shows them");
    }
    Ok(())
}

async fn stored_spec(
    dir: &ExperimentDir,
    id: &ExperimentId,
) -> Result<Option<ExperimentSpec>, Error> {
    if !dir.database().exists() {
        let data_dir = dir.path().parent().map(PathBuf::from).unwrap_or_default();
        return Err(Error::NoSuchExperiment { id: id.clone(), data_dir });
    }
    let store = Store::open(&dir.database())?;
    let row = store.experiment().await?;
    store.close().await;
    Ok(row.map(|row| config::from_canonical(&row.canonical)).transpose()?)
}

/// Marks ended trials to run once more, all or none: the next `resume` finds them waiting. Those that wait already are
/// left alone.
pub async fn again(dir: &ExperimentDir, trials: &[TrialJobId]) -> Result<(), Refused> {
    // A writer keeps managers away, and is kept away by one.
    let store = Store::open(&dir.database())?;
    let marked = mark(&store, trials).await;
    store.close().await;
    marked
}

async fn mark(store: &Store, trials: &[TrialJobId]) -> Result<(), Refused> {
    let at_ms = SystemClock.now_ms();
    let mut changes = Vec::with_capacity(trials.len());
    for trial in trials {
        let row = store.trial(trial).await?;
        let row = row.ok_or_else(|| Refused::UnknownTrial(trial.clone()))?;
        if row.state == JobState::Waiting {
            continue;
        }
        if !row.state.is_final() {
            return Err(Refused::NotEnded { trial: trial.clone(), state: row.state });
        }
        // As after a failure that is tried again: the manager finds the number of the attempt that is to come.
        let change = TrialChange {
            state: JobState::Waiting,
            at_ms,
            message: Some(
                "it is to run once more, on request: the next `trial-manager resume` runs it"
                    .to_owned(),
            ),
            exit_code: None,
            attempt: Some(ids::next_attempt(trial, &row.attempt)),
            told: Span::default(),
        };
        changes.push((trial.clone(), change));
    }
    Ok(store.change_trials(changes).await?)
}
