//! The record of an experiment, new or found again, with what was checked before it was touched.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use tokio::net::TcpListener;
use trial_protocol::ExperimentId;

use super::{Error, Finished, Settings, reach, restored};
use crate::config::{self, ExperimentSpec};
use crate::experiment::state::ExperimentState;
use crate::store::{self, ExperimentRow, Store};
use crate::training_service::platform::{CheckContext, CheckedPlatform, platform};
use crate::util::clock::Clock;
use crate::util::files::private_folder;
use crate::util::ids;
use crate::util::layout::ExperimentDir;

/// An experiment whose record is open.
pub(super) struct Opened {
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
}

impl Opened {
    /// Records a new experiment. Nothing is written before its trials can run and its socket is there.
    pub(super) async fn create(
        settings: &Settings,
        id: &ExperimentId,
        dir: &ExperimentDir,
        spec: ExperimentSpec,
        clock: &dyn Clock,
    ) -> Result<Self, Error> {
        let checked = check(settings, id, &spec, true).await?;
        let listener = bind(settings, checked.as_ref(), settings.port).await?;
        private_folder(dir.path()).map_err(|source| {
            // The folder that the user can do something about.
            Error::DataDir { path: settings.data_dir.clone(), source }
        })?;
        let store = Store::open(&dir.database())?;
        let (spec, seed) = record(&store, id, dir, spec, clock).await?;
        Ok(Self { checked, listener, store, spec, seed })
    }

    /// Opens the record of an experiment that an earlier manager left.
    pub(super) async fn resume(
        settings: &Settings,
        id: &ExperimentId,
        dir: &ExperimentDir,
    ) -> Result<Self, Error> {
        let unknown =
            || Error::NoSuchExperiment { id: id.clone(), data_dir: settings.data_dir.clone() };
        let lost = || Error::RecordLost { id: id.clone(), database: dir.database() };
        if !dir.database().exists() {
            return Err(unknown());
        }
        // The secret is made after the record: where it is, the record was lost. The file is left as it is, for its log may
        // be found.
        if dir.secret().exists() && Store::is_blank(&dir.database())? {
            return Err(lost());
        }
        protect_folder(dir.path());
        let store = Store::open(&dir.database())?;
        let Some((spec, seed)) = recall(&store, id).await? else {
            store.close().await;
            if dir.secret().exists() {
                return Err(lost());
            }
            // A manager died before it had recorded anything. A user who starts over is not to find it again.
            drop(std::fs::remove_dir_all(dir.path()));
            return Err(unknown());
        };
        let checked = check(settings, id, &spec, false).await?;
        let listener = bind(settings, checked.as_ref(), settings.port).await?;
        restored::announce(&store, dir).await?;
        Ok(Self { checked, listener, store, spec, seed })
    }
}

/// Checks that the experiment's trials can run.
async fn check(
    settings: &Settings,
    id: &ExperimentId,
    spec: &ExperimentSpec,
    is_new: bool,
) -> Result<Box<dyn CheckedPlatform>, Error> {
    let context = CheckContext { id, spec, agent: settings.agent.as_deref(), is_new };
    Ok(platform(&spec.training_service).check(context).await?)
}

/// Listens where the user says, else where the trials need it.
pub(super) async fn bind(
    settings: &Settings,
    checked: &dyn CheckedPlatform,
    port: u16,
) -> Result<TcpListener, Error> {
    let host = settings.host.clone();
    let host = host.unwrap_or_else(|| reach::listen_on(checked.api_server()).to_owned());
    let bound = TcpListener::bind((host.as_str(), port)).await;
    bound.map_err(|source| Error::Listen { host, port, source })
}

/// Closes an experiment's folder to other users: earlier versions left that to the umask. A folder that cannot be closed
/// is warned of, and keeps no search from going on.
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
        Ok(()) => tracing::warn!("other users could enter {shown}; from now on only its owner may"),
        Err(error) => tracing::warn!(
            "other users can enter {shown}, and that cannot be changed: {error}; correct it with `chmod 700 {shown}`"
        ),
    }
}

/// The user of this process, by name where the system knows one.
fn user_name() -> String {
    let uid = nix::unistd::geteuid();
    let known = nix::unistd::User::from_uid(uid).ok().flatten().map(|user| user.name);
    let said = || std::env::var("USER").ok().filter(|name| !name.is_empty());
    known.or_else(said).unwrap_or_else(|| uid.to_string())
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
    let seed = ids::seed();
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
    store.create_experiment(row).await?;
    Ok((spec, seed))
}

/// Reads the recorded experiment. `None`: nothing is recorded.
async fn recall(store: &Store, id: &ExperimentId) -> Result<Option<(ExperimentSpec, u64)>, Error> {
    let Some(row) = store.experiment().await? else { return Ok(None) };
    let spec = config::from_canonical(&row.canonical)?;
    // One that is done and whose trials are to run once more goes on with those.
    let all_ended = || async {
        Ok::<_, store::Error>(store.trials().await?.iter().all(|trial| trial.state.is_final()))
    };
    if row.state == ExperimentState::Done.as_str() && all_ended().await? {
        let finished = Finished { id: id.clone(), spec, store: store.clone() };
        return Err(Error::AlreadyDone { finished: Box::new(finished) });
    }
    config::check_stored_files(&row.canonical)?;
    Ok(Some((spec, row.seed)))
}
