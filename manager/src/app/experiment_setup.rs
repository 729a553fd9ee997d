//! The record of a new or resumed experiment, and the checks that precede its first change.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;
use tokio::net::TcpListener;
use trial_protocol::ExperimentId;

use super::server_lookup::open_store;
use super::{Error, FinishedExperiment, ReachedLimit, Settings, advertised_address, backup_check};
use crate::config::{self, ExperimentSpec, SecretFile};
use crate::experiment::command::NewLimits;
use crate::experiment::state::ExperimentState;
use crate::store::{self, ExperimentRow, Store};
use crate::training_service::platform::{CheckContext, CheckedPlatform, platform};
use crate::util::clock::Clock;
use crate::util::files::{create_private_folder, write_file};
use crate::util::ids;
use crate::util::layout::ExperimentDir;

/// The source of an experiment's specification.
pub(super) enum SpecSource {
    /// A new specification.
    New(Box<ExperimentSpec>),
    /// The experiment's record, under new limits.
    Stored(NewLimits),
}

/// An experiment with an open record.
pub(super) struct OpenedExperiment {
    /// The training service, which was checked first.
    pub(super) checked: Box<dyn CheckedPlatform>,
    /// The socket for agents and the user.
    pub(super) listener: TcpListener,
    /// The record.
    pub(super) store: Store,
    /// The specification as it is recorded.
    pub(super) spec: ExperimentSpec,
    /// The seed of the tuner.
    pub(super) seed: u64,
    /// The change of the record, if the experiment continues under other limits. It is made when everything else has
    /// started, so that a failed start changes nothing.
    pub(super) change: Option<RecordChange>,
}

/// A change of an experiment's record by other limits.
pub(super) struct RecordChange {
    /// The checked file with the new limits.
    canonical: Value,
    /// The running time so far, if the experiment was done and runs again.
    reopened_elapsed_ms: Option<u64>,
}

impl RecordChange {
    /// Makes the change, completely or not at all.
    pub(super) async fn write(self, store: &Store) -> Result<(), Error> {
        Ok(store.experiment().set_canonical(self.canonical, self.reopened_elapsed_ms).await?)
    }
}

impl OpenedExperiment {
    /// Creates a new experiment, or resumes the one in `dir`.
    pub(super) async fn open(
        settings: &Settings,
        id: &ExperimentId,
        dir: &ExperimentDir,
        source: SpecSource,
        clock: &dyn Clock,
    ) -> Result<Self, Error> {
        match source {
            SpecSource::New(spec) => Self::create(settings, id, dir, *spec, clock).await,
            SpecSource::Stored(limits) => Self::resume(settings, id, dir, &limits).await,
        }
    }

    /// Records a new experiment. Nothing is written before the checks have passed and the socket is bound.
    async fn create(
        settings: &Settings,
        id: &ExperimentId,
        dir: &ExperimentDir,
        mut spec: ExperimentSpec,
        clock: &dyn Clock,
    ) -> Result<Self, Error> {
        // From here on, the specification names files instead of secrets, so that no secret is stored.
        let secrets = spec.take_secrets(&absolute(dir.passwords()));
        let checked = check(settings, id, &spec, true).await?;
        record_fields(&mut spec.canonical["trainingService"], checked.resolved_fields());
        let listener = bind(settings, checked.as_ref(), settings.port).await?;
        create_private_folder(dir.path()).map_err(|source| {
            // Names the data directory, because the user can choose another one.
            Error::DataDir { path: settings.data_dir.clone(), source }
        })?;
        write_secrets(&secrets)?;
        let store = Store::open(&dir.database())?;
        let (spec, seed) = record(&store, id, dir, spec, clock).await?;
        Ok(Self { checked, listener, store, spec, seed, change: None })
    }

    /// Opens the record of an experiment of an earlier manager.
    async fn resume(
        settings: &Settings,
        id: &ExperimentId,
        dir: &ExperimentDir,
        limits: &NewLimits,
    ) -> Result<Self, Error> {
        let unknown =
            || Error::NoSuchExperiment { id: id.clone(), data_dir: settings.data_dir.clone() };
        let lost = || Error::RecordLost { id: id.clone(), database: dir.database() };
        if !dir.database().exists() {
            return Err(unknown());
        }
        // The secret is created after the record. If the secret exists without a record, the record was lost. The
        // file is not changed, because its log may still be found.
        if dir.secret().exists() && store::is_blank(&dir.database())? {
            return Err(lost());
        }
        protect_folder(dir.path());
        let store = open_store(id, dir).await?;
        let Some(row) = store.experiment().row().await? else {
            store.close().await;
            if dir.secret().exists() {
                return Err(lost());
            }
            // A manager died before it had recorded anything. The folder is removed, so that a new start does not
            // find it.
            drop(std::fs::remove_dir_all(dir.path()));
            return Err(unknown());
        };
        let Resumption { spec, change } =
            decide_resumption(&store, id, &row, settings, limits).await?;
        let checked = check(settings, id, &spec, false).await?;
        let listener = bind(settings, checked.as_ref(), settings.port).await?;
        backup_check::warn_if_older(&store, dir).await?;
        Ok(Self { checked, listener, store, spec, seed: row.seed, change })
    }
}

fn absolute(path: PathBuf) -> PathBuf {
    std::path::absolute(&path).unwrap_or(path)
}

/// Writes secrets of the experiment file into files that only their owner can read.
fn write_secrets(secrets: &[SecretFile]) -> Result<(), Error> {
    for SecretFile { path, text } in secrets {
        let folder = path.parent().unwrap_or(path);
        let written = create_private_folder(folder)
            .and_then(|()| write_file(path, 0o600, &format!("{}\n", text.reveal())));
        written.map_err(|source| Error::DataDir { path: path.clone(), source })?;
    }
    Ok(())
}

/// Adds fields to the section of a training service, or those of each list entry to its section.
fn record_fields(section: &mut Value, fields: Value) {
    match (section, fields) {
        (Value::Object(section), Value::Object(fields)) => section.extend(fields),
        (Value::Array(sections), Value::Array(lists)) => {
            sections.iter_mut().zip(lists).for_each(|(section, list)| record_fields(section, list));
        }
        (_, _) => {}
    }
}

/// Checks that the experiment's trials can run.
async fn check(
    settings: &Settings,
    id: &ExperimentId,
    spec: &ExperimentSpec,
    is_new: bool,
) -> Result<Box<dyn CheckedPlatform>, Error> {
    let context = CheckContext {
        id,
        spec,
        agent: settings.agent.as_deref(),
        is_new,
        tolerates_absence: true,
    };
    Ok(platform(&spec.training_service).check(context).await?)
}

/// Listens on the user's address, or else on the address that the trials need.
pub(super) async fn bind(
    settings: &Settings,
    checked: &dyn CheckedPlatform,
    port: u16,
) -> Result<TcpListener, Error> {
    let host = settings.host.clone();
    let host =
        host.unwrap_or_else(|| advertised_address::listen_on(checked.api_server()).to_owned());
    let bound = TcpListener::bind((host.as_str(), port)).await;
    bound.map_err(|cause| Error::Listen { host, port, cause })
}

/// Closes an experiment's folder to other users, because earlier versions left its mode to the umask. If that fails,
/// it logs a warning, and the search continues.
fn protect_folder(path: &Path) {
    let Ok(mode) = std::fs::metadata(path).map(|folder| folder.permissions().mode()) else {
        return;
    };
    let open_to_others = mode & 0o077 != 0;
    if !open_to_others {
        return;
    }
    let shown = path.display();
    match std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700)) {
        Ok(()) => tracing::warn!("other users could enter {shown}; now only its owner can"),
        Err(error) => tracing::warn!(
            "other users can enter {shown}, and its mode cannot be changed: {error}; run `chmod 700 {shown}`"
        ),
    }
}

/// Returns the name of this process's user, or the user id if the name is unknown.
fn user_name() -> String {
    let uid = nix::unistd::geteuid();
    let known = nix::unistd::User::from_uid(uid).ok().flatten().map(|user| user.name);
    let from_environment = || std::env::var("USER").ok().filter(|name| !name.is_empty());
    known.or_else(from_environment).unwrap_or_else(|| uid.to_string())
}

async fn record(
    store: &Store,
    id: &ExperimentId,
    dir: &ExperimentDir,
    mut spec: ExperimentSpec,
    clock: &dyn Clock,
) -> Result<(ExperimentSpec, u64), Error> {
    spec.set_checkpoint_folder(&dir.checkpoints());
    let owner = spec.owner.get_or_insert_with(user_name).clone();
    if let Some(members) = spec.canonical.as_object_mut() {
        members.insert("owner".to_owned(), owner.into());
    }
    let seed = ids::new_seed();
    let row = ExperimentRow {
        id: id.clone(),
        canonical: spec.canonical.clone(),
        seed,
        state: ExperimentState::Running.as_str().to_owned(),
        created_at_ms: clock.now_ms(),
        ended_at_ms: None,
        elapsed_ms: 0,
        trouble: None,
    };
    store.experiment().create(row).await?;
    Ok((spec, seed))
}

/// The continuation of a recorded experiment.
struct Resumption {
    /// The recorded specification, under the new limits.
    spec: ExperimentSpec,
    /// The change of the record by the limits.
    change: Option<RecordChange>,
}

/// Decides how a recorded experiment continues under new limits. An experiment that is done continues under higher
/// limits, if trials are marked for another run, or if it stays open.
async fn decide_resumption(
    store: &Store,
    id: &ExperimentId,
    row: &ExperimentRow,
    settings: &Settings,
    limits: &NewLimits,
) -> Result<Resumption, Error> {
    limits.check()?;
    let canonical = limits.apply_to(row.canonical.clone());
    // A command that is repeated after the end must not fail, as by a supervisor.
    let is_changed = canonical != row.canonical;
    let spec = config::from_canonical(&canonical)?;
    let mut reopens = false;
    if row.state == ExperimentState::Done.as_str() {
        let trials = store.trials().all().await?;
        let number = trials.iter().map(|trial| trial.sequence + 1).max().unwrap_or(0);
        let reached = ReachedLimit::of_search(&spec, number, Duration::from_millis(row.elapsed_ms));
        reopens = is_changed && limits.has_search_bound();
        if reopens && !reached.is_empty() {
            return Err(Error::NoRoom { id: id.clone(), reached });
        }
        let all_ended = trials.iter().all(|trial| trial.state.is_final());
        if !reopens && !settings.stays_open && all_ended {
            let (id, store) = (id.clone(), store.clone());
            let finished = Box::new(FinishedExperiment { id, spec, store, reached });
            return Err(Error::AlreadyDone { finished });
        }
    }
    config::check_stored_files(&canonical)?;
    let change = is_changed.then(|| RecordChange {
        canonical: spec.canonical.clone(),
        reopened_elapsed_ms: reopens.then_some(row.elapsed_ms),
    });
    Ok(Resumption { spec, change })
}
