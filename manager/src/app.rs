//! Composition: builds the parts of a manager that runs one experiment, starts them, and ends them in order. It
//! decides nothing.

mod address_files;
mod advertised_address;
mod advisers;
mod backup_check;
mod error;
mod experiment_setup;
mod home;
mod listener;
mod nni_files;
mod notifier;
mod reached_limit;
mod server_lookup;
mod server_start;
mod server_tasks;
mod stored_experiment;
mod trial_program;
mod without_manager;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use trial_protocol::ExperimentId;

pub use self::error::Error;
use self::experiment_setup::{OpenedExperiment, SpecSource};
pub use self::home::serve_home;
pub use self::listener::UserCertificate;
pub use self::nni_files::NniFiles;
pub use self::notifier::send_remaining;
pub use self::reached_limit::ReachedLimit;
pub use self::server_lookup::{home_of, manager_of, viewer_of};
use self::server_start::{ServerContext, StartedServers};
use self::server_tasks::ServerTasks;
pub use self::stored_experiment::{ViewServer, router_on_machine, serve_stored, stored_client};
pub use self::trial_program::{find_trial_program, missing_script_warning};
pub use self::without_manager::{clean, rerun_trials};
use crate::config::{ExperimentSpec, PluginSpec};
use crate::experiment::ExperimentHandle;
use crate::experiment::code_recorder::CodeRecorder;
use crate::experiment::command::NewLimits;
use crate::experiment::notice::Notice;
use crate::experiment::state::ExperimentState;
use crate::experiment::task::{Dependencies, Inbox, run_experiment};
use crate::notifications::{self, Notifier, OutboxWaker};
use crate::store::{self, Store};
use crate::token::Secret;
use crate::training_service::platform::{BoxError, CheckContext, platform};
use crate::training_service::plugin::conformance::{self, Case, CaseResult};
use crate::training_service::{TrainingService, agent_program};
use crate::util::clock::{Clock, SystemClock};
use crate::util::ids;
use crate::util::layout::ExperimentDir;

/// The maximum number of events that wait for the experiment. Beyond it, their senders wait.
const EVENT_CAPACITY: usize = 1024;

/// The settings with which a manager runs an experiment.
#[derive(Debug)]
pub struct Settings {
    /// The folder that contains one folder per experiment. It is created if necessary.
    pub data_dir: PathBuf,
    /// The address to listen on. `None` chooses the address that the trials need.
    pub host: Option<String>,
    /// The port to listen on; 0 picks a free one.
    pub port: u16,
    /// The agent program. `None` uses `trialkeeper` beside this program, or else in `PATH`.
    pub agent: Option<PathBuf>,
    /// The port for images that still contain NNI's own keeper, which supports neither tokens nor encryption. `None`
    /// for no such listener.
    pub legacy_port: Option<u16>,
    /// The time without a report after which a trial is `LOST`.
    pub lease: Duration,
    /// The user's certificate. `None` creates a certificate if the manager listens beyond this machine.
    pub certificate: Option<UserCertificate>,
    /// The manager's address for trials on other machines. `None` uses the experiment file, or else a guess.
    pub advertise: Option<String>,
    /// The port on this machine's loopback interface at which another server passes requests to
    /// [`RunningManager::loopback_router`]. `None` if there is no such server.
    pub loopback_port: Option<u16>,
    /// A path prefix under which all routes are served additionally, with a leading slash and without a trailing one.
    pub url_prefix: Option<String>,
    /// `true` if the manager serves a search that is done until its end is requested. Wider limits continue the search.
    pub stays_open: bool,
}

/// The experiment to run: a new one, or an interrupted one.
#[derive(Debug)]
pub enum ExperimentStart {
    /// A new experiment.
    New(Box<ExperimentSpec>),
    /// A new experiment with an id of the user's choice. Its folder must not exist.
    NewWithId(ExperimentId, Box<ExperimentSpec>),
    /// A new experiment with an id that another program chose. Its folder may exist.
    NewWithForeignId(ExperimentId, Box<ExperimentSpec>),
    /// The interrupted experiment with this id, under new limits. Higher limits also continue a finished experiment.
    Resume(String, NewLimits),
}

/// A finished experiment.
#[derive(Debug)]
pub struct FinishedExperiment {
    /// The experiment's id.
    pub id: ExperimentId,
    /// The specification.
    pub spec: ExperimentSpec,
    /// The experiment's store.
    pub store: Store,
    /// The limits that ended the search.
    pub reached: Vec<ReachedLimit>,
}

/// A running experiment.
pub struct RunningManager {
    /// The experiment's id.
    pub id: ExperimentId,
    /// The specification.
    pub spec: ExperimentSpec,
    /// The experiment's folder.
    pub dir: ExperimentDir,
    /// The base URL of the manager for this machine.
    pub url: String,
    /// The base URL of the manager for trials on other machines.
    pub advertised: Option<String>,
    /// The notices.
    pub notices: mpsc::UnboundedReceiver<Notice>,
    /// The handle to the experiment's task.
    pub handle: ExperimentHandle,
    /// The experiment's store.
    pub store: Store,
    /// The routes that answer unencrypted requests on this machine's loopback interface, for the server on
    /// [`Settings::loopback_port`].
    pub loopback_router: axum::Router,
    task: tokio::task::JoinHandle<Result<ExperimentState, store::Error>>,
    server: ServerTasks,
    service: Arc<dyn TrainingService>,
    notifier: Option<Notifier>,
}

/// An experiment that has ended and is still served.
pub struct EndedExperiment {
    /// The final state.
    pub state: ExperimentState,
    /// The experiment's store.
    pub store: Store,
    server: ServerTasks,
}

/// Starts a manager for one experiment. If a new experiment cannot start, its folder is removed: the user corrects
/// the experiment file, and the next experiment has another id.
pub async fn start(settings: Settings, start: ExperimentStart) -> Result<RunningManager, Error> {
    let (id, source, is_ours) = match start {
        ExperimentStart::New(spec) => (ids::new_experiment_id(), SpecSource::New(spec), true),
        ExperimentStart::NewWithId(id, spec) => {
            let dir = ExperimentDir::new(&settings.data_dir, &id);
            if dir.path().exists() {
                return Err(Error::IdTaken { id, folder: dir.path().to_owned() });
            }
            (id, SpecSource::New(spec), true)
        }
        ExperimentStart::NewWithForeignId(id, spec) => (id, SpecSource::New(spec), false),
        ExperimentStart::Resume(id, limits) => {
            (ExperimentId::new(id)?, SpecSource::Stored(limits), false)
        }
    };
    let dir = ExperimentDir::new(&settings.data_dir, &id);
    let begun = Box::pin(begin(settings, id, dir.clone(), source)).await;
    if is_ours && begun.is_err() {
        // A folder that cannot be removed does no harm.
        drop(std::fs::remove_dir_all(dir.path()));
    }
    begun
}

async fn begin(
    settings: Settings,
    id: ExperimentId,
    dir: ExperimentDir,
    source: SpecSource,
) -> Result<RunningManager, Error> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let opened = OpenedExperiment::open(&settings, &id, &dir, source, clock.as_ref()).await?;
    let OpenedExperiment { checked, listener, store, mut spec, seed, change } = opened;
    let advisers = advisers::build(&spec, &id, &dir, seed)?;
    let secret = Arc::new(Secret::load_or_create(&dir.secret())?);
    let (handle, events) = ExperimentHandle::new(EVENT_CAPACITY);
    let context = ServerContext {
        settings: &settings,
        id: &id,
        dir: &dir,
        spec: &spec,
        store: &store,
        handle: &handle,
        clock: &clock,
        secret: &secret,
        checked: checked.as_ref(),
    };
    let serving = context.serve(listener).await?;
    let (service, jobs) = serving.start_service(checked, &id, &mut spec, &dir, &secret).await?;
    let StartedServers { server, url, advertised, loopback_router, code, .. } = serving;
    if let Some(change) = change {
        change.write(&store).await?;
    }
    let (waker, (notify, notices)) = (OutboxWaker::default(), mpsc::unbounded_channel());
    let notifier = notifier::config(&id, &spec, &store, &waker, Some(dir.degraded()));
    let dependencies = Dependencies {
        id: id.clone(),
        spec: spec.clone(),
        store: store.clone(),
        advisers,
        service: Arc::clone(&service),
        code: code.map(|source| CodeRecorder::start(store.attempt_records().clone(), source)),
        secret,
        handle: handle.clone(),
        inbox: Inbox::new(handle.clone(), events),
        jobs,
        waker,
        notices: notify,
        clock,
        lease: settings.lease,
        stays_open: settings.stays_open,
    };
    Ok(RunningManager {
        id,
        spec,
        dir,
        url,
        advertised,
        notices,
        handle,
        store,
        loopback_router,
        task: tokio::spawn(run_experiment(dependencies)),
        server,
        service,
        notifier: notifier.as_ref().map(Notifier::start),
    })
}

/// Checks whether trials can run as the experiment specifies, without starting anything. Returns sentences about the
/// platform for the user.
pub async fn check_platform(
    agent: Option<PathBuf>,
    spec: &ExperimentSpec,
) -> Result<Vec<String>, Error> {
    let context = CheckContext {
        id: &ids::new_experiment_id(),
        spec,
        agent: agent.as_deref(),
        is_new: true,
        tolerates_absence: false,
    };
    Ok(platform(&spec.training_service).check(context).await?.notes())
}

/// Runs a case of the conformance test on a plugin.
pub async fn try_case(
    case: Case,
    spec: &PluginSpec,
    agent: Option<PathBuf>,
) -> Result<CaseResult, Error> {
    let agent = agent_program::find(agent.as_deref()).map_err(BoxError::from)?;
    Ok(conformance::try_case(case, spec, agent).await.map_err(BoxError::from)?)
}

/// Asks an external tuner for one set of parameters, and returns its name and its problem, if any. `None` if the
/// tuner is built in.
pub async fn try_tuner(spec: &ExperimentSpec) -> Option<(String, Result<(), String>)> {
    advisers::try_tuner(spec).await
}

/// Checks whether the external tuner and assessor can run, and returns the name and the problem of each.
pub async fn check_advisers(spec: &ExperimentSpec) -> Vec<(String, Result<(), String>)> {
    advisers::check(spec).await
}

impl RunningManager {
    /// Waits for the experiment's end and ends the watchers of its jobs. Notifications are sent, also after a
    /// failure. The server continues, because an agent may still send its last report.
    pub async fn end(self) -> Result<EndedExperiment, Error> {
        let ended = self.task.await;
        if let Some(notifier) = self.notifier {
            notifications::warn_of_unsent(notifier.finish().await, &self.id);
        }
        let state = match ended.map_err(|_| Error::TaskFailed)? {
            Err(source @ store::Error::Displaced { .. }) => {
                return Err(Error::DatabaseMissing { id: self.id, source });
            }
            Err(source) if source.is_temporary() && self.handle.is_end_requested() => {
                return Err(Error::NotStopped { id: self.id, source });
            }
            ended => ended?,
        };
        // The next manager takes over the jobs of an experiment that continues. An experiment that has ended or
        // stopped has no jobs.
        if !state.is_active() {
            self.service.close().await;
        }
        Ok(EndedExperiment { state, store: self.store, server: self.server })
    }
}

impl EndedExperiment {
    /// Stops the servers. Clients that follow a stream of events receive its end, and may send another request for a
    /// moment.
    pub async fn stop_serving(&mut self) {
        self.server.stop().await;
    }
}
