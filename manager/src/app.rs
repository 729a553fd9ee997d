//! Composition: builds the parts of a manager that runs one experiment, starts them, and ends them in
//! order. It decides nothing.

mod advisers;
mod error;
mod home;
mod idle;
mod listener;
mod nni_files;
mod notifier;
mod opened;
mod presence;
mod reach;
mod restored;
mod served;
mod servers;
mod serving;
mod stored;
mod trial_program;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tracing::warn;
use trial_protocol::ExperimentId;

pub use self::error::Error;
pub use self::home::serve_home;
pub use self::idle::{again, clean};
pub use self::listener::OwnCertificate;
pub use self::nni_files::NniFiles;
use self::opened::Opened;
use self::served::Served;
pub use self::servers::{home_of, manager_of, viewer_of};
use self::serving::{Parts, Serving};
pub use self::stored::{Viewing, stored, view, view_on_machine};
pub use self::trial_program::look_for_trial_program;
use crate::config::{ExperimentSpec, PluginSpec};
use crate::experiment::Handle;
use crate::experiment::code_recorder::CodeRecorder;
use crate::experiment::conduct::{Dependencies, Inbox, conduct};
use crate::experiment::notice::Notice;
use crate::experiment::state::ExperimentState;
use crate::notifications;
use crate::store::{self, Store};
use crate::token::Secret;
use crate::training_service::platform::{BoxError, CheckContext, StartContext, platform};
use crate::training_service::plugin::conformance::{self, Case, CaseResult};
use crate::training_service::{TrainingService, agent_program};
use crate::util::clock::{Clock, SystemClock};
use crate::util::ids;
use crate::util::layout::ExperimentDir;

/// Events that may wait for the experiment before those who report have to wait.
const EVENTS: usize = 1024;

/// The experiment to run, and the way to run it.
#[derive(Debug)]
pub struct Settings {
    /// Folder that holds one folder per experiment; made if absent.
    pub data_dir: PathBuf,
    /// Address to listen on. `None`: what the trials need.
    pub host: Option<String>,
    /// Port to listen on; 0 picks a free one.
    pub port: u16,
    /// The agent program. `None`: `trialkeeper` beside this program, else in `PATH`.
    pub agent: Option<PathBuf>,
    /// Port for images that still carry NNI's own keeper, which knows neither tokens nor encryption.
    /// `None`: there is no such listener.
    pub legacy_port: Option<u16>,
    /// The time that an agent may be silent before its trial is `LOST`.
    pub lease: Duration,
    /// A certificate of the user's. `None`: the manager makes one where it listens beyond this machine.
    pub certificate: Option<OwnCertificate>,
    /// The manager's address for trials on other machines. `None`: what the experiment file says, else a guess.
    pub advertise: Option<String>,
    /// Port of this machine's loopback interface on which another server hands requests to [`Running::machine`]. `None`:
    /// there is none.
    pub machine_port: Option<u16>,
    /// A path below which everything is served, too, with a slash at its head and none at its end.
    pub url_prefix: Option<String>,
}

/// A new experiment, or one to go on with.
#[derive(Debug)]
pub enum What {
    /// A new one.
    New(Box<ExperimentSpec>),
    /// A new one with an id of the user's choice, whose folder must not be there.
    Named(ExperimentId, Box<ExperimentSpec>),
    /// A new one with an id that was chosen elsewhere, whose folder may be there.
    NewAs(ExperimentId, Box<ExperimentSpec>),
    /// The experiment of this id, which was interrupted.
    Resume(String),
}

/// An experiment that is done.
#[derive(Debug)]
pub struct Finished {
    /// Its id.
    pub id: ExperimentId,
    /// The specification.
    pub spec: ExperimentSpec,
    /// Everything it recorded.
    pub store: Store,
}

/// An experiment that runs.
pub struct Running {
    /// Its id.
    pub id: ExperimentId,
    /// The specification.
    pub spec: ExperimentSpec,
    /// Its folder.
    pub dir: ExperimentDir,
    /// Base URL of the manager, as this machine reaches it.
    pub url: String,
    /// Base URL of the manager for trials on other machines.
    pub advertised: Option<String>,
    /// The notices.
    pub notices: mpsc::UnboundedReceiver<Notice>,
    /// Talks to the experiment.
    pub handle: Handle,
    /// Everything it records.
    pub store: Store,
    /// Answers requests that reach this machine's loopback interface without encryption; for the server on
    /// [`Settings::machine_port`].
    pub machine: axum::Router,
    conducted: tokio::task::JoinHandle<Result<ExperimentState, store::Error>>,
    server: Served,
    service: Arc<dyn TrainingService>,
    notifier: Option<notifications::Notifier>,
}

/// An experiment that has come to its end and is still served.
pub struct Ended {
    /// Its state.
    pub state: ExperimentState,
    /// Everything it recorded.
    pub store: Store,
    server: Served,
}

/// Starts a manager for one experiment. A new one that cannot begin leaves no folder behind: what is wrong with it is
/// mended in its file, and the next one has another id.
pub async fn start(settings: Settings, what: What) -> Result<Running, Error> {
    let (id, new, is_ours) = match what {
        What::New(spec) => (ids::experiment(), Some(spec), true),
        What::Named(id, spec) => {
            let dir = ExperimentDir::new(&settings.data_dir, &id);
            if dir.path().exists() {
                return Err(Error::IdTaken { id, folder: dir.path().to_owned() });
            }
            (id, Some(spec), true)
        }
        What::NewAs(id, spec) => (id, Some(spec), false),
        What::Resume(id) => (ExperimentId::new(id)?, None, false),
    };
    let dir = ExperimentDir::new(&settings.data_dir, &id);
    let begun = Box::pin(begin(settings, id, dir.clone(), new)).await;
    if is_ours && begun.is_err() {
        // What cannot be removed does no harm.
        drop(std::fs::remove_dir_all(dir.path()));
    }
    begun
}

#[expect(clippy::too_many_lines, reason = "it puts a manager together: each line makes one part")]
async fn begin(
    settings: Settings,
    id: ExperimentId,
    dir: ExperimentDir,
    new: Option<Box<ExperimentSpec>>,
) -> Result<Running, Error> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let opened = match new {
        Some(spec) => Opened::create(&settings, &id, &dir, *spec, clock.as_ref()).await?,
        None => Opened::resume(&settings, &id, &dir).await?,
    };
    let Opened { checked, listener, store, mut spec, seed } = opened;
    let advice = advisers::build(&spec, &id, &dir, seed)?;
    let secret = Arc::new(Secret::load_or_create(&dir.secret())?);
    let (handle, events) = Handle::new(EVENTS);
    let parts = Parts {
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
    let Serving { server, url, told, ca_file, machine, service: runs, code } =
        parts.serve(listener).await?;
    let (job_events, jobs) = mpsc::unbounded_channel();
    let advertised = checked.api_server().is_some().then(|| told.clone());
    let context = StartContext {
        id: &id,
        spec: &spec,
        dir: dir.clone(),
        ca_file,
        url: told,
        secret: Arc::clone(&secret),
        events: job_events,
    };
    let service = checked.start(context).await?;
    spec.trial_concurrency = concurrency(service.as_ref(), spec.trial_concurrency);
    // It is built once.
    drop(runs.set(Arc::clone(&service)));
    let (notify, notices) = mpsc::unbounded_channel();
    let waker = notifications::OutboxWaker::default();
    let notifier = notifier::config(&id, &spec, &store, &waker, Some(dir.degraded()))
        .map(|config| notifications::Notifier::start(&config));
    let dependencies = Dependencies {
        id: id.clone(),
        spec: spec.clone(),
        store: store.clone(),
        advice,
        service: Arc::clone(&service),
        code: code.map(|source| CodeRecorder::start(&store, source)),
        secret,
        handle: handle.clone(),
        inbox: Inbox::new(handle.clone(), events),
        jobs,
        waker,
        notices: notify,
        clock,
        lease: settings.lease,
    };
    let conducted = tokio::spawn(conduct(dependencies));
    Ok(Running {
        id,
        spec,
        dir,
        url,
        advertised,
        notices,
        handle,
        store,
        machine,
        conducted,
        server,
        service,
        notifier,
    })
}

/// Returns the number of trials that run at a time: as many as are wanted, or as the training service has room for.
fn concurrency(service: &dyn TrainingService, wanted: usize) -> usize {
    match service.room() {
        Some(room) if room < wanted => {
            warn!("the training service has room for {room} trials at a time, not for {wanted}");
            room
        }
        _ => wanted,
    }
}

/// Looks whether trials can be run as the experiment says, and starts nothing.
pub async fn look(agent: Option<PathBuf>, spec: &ExperimentSpec) -> Result<(), Error> {
    let context =
        CheckContext { id: &ids::experiment(), spec, agent: agent.as_deref(), is_new: true };
    platform(&spec.training_service).check(context).await?;
    Ok(())
}

/// Tries a case of the conformance story on a plugin.
pub async fn try_case(
    case: Case,
    spec: &PluginSpec,
    agent: Option<PathBuf>,
) -> Result<CaseResult, Error> {
    let agent = agent_program::find(agent.as_deref()).map_err(BoxError::from)?;
    Ok(conformance::try_case(case, spec, agent).await.map_err(BoxError::from)?)
}

/// Asks a tuner outside the manager for one set of parameters: its name, and what is wrong with it. `None`: the tuner is
/// built in.
pub async fn ask_tuner(spec: &ExperimentSpec) -> Option<(String, Result<(), String>)> {
    advisers::ask(spec).await
}

/// Looks whether a tuner and an assessor outside the manager can be run: each one's name, and what is wrong.
pub async fn look_outside(spec: &ExperimentSpec) -> Vec<(String, Result<(), String>)> {
    advisers::look(spec).await
}

impl Running {
    /// Waits for the experiment's end and ends the jobs' watchers. Notifications go out, also for an end that is a
    /// failure. The server goes on: an agent may still be sending its last report.
    pub async fn end(self) -> Result<Ended, Error> {
        let conducted = self.conducted.await;
        if let Some(notifier) = self.notifier {
            notifications::warn_of_rest(notifier.finish().await, &self.id);
        }
        let state = match conducted.map_err(|_| Error::Lost)? {
            Err(source @ store::Error::Displaced { .. }) => {
                return Err(Error::Displaced { id: self.id, source });
            }
            Err(source) if source.may_pass() && self.handle.is_to_end() => {
                return Err(Error::Left { id: self.id, source });
            }
            conducted => conducted?,
        };
        // Jobs of an experiment that goes on are the next manager's; what has stopped or is done has none.
        if !state.is_active() {
            self.service.close().await;
        }
        Ok(Ended { state, store: self.store, server: self.server })
    }
}

impl Ended {
    /// Ends the server. A follower of a stream of events gets the end and may look once more, for a moment.
    pub async fn stop_serving(&mut self) {
        self.server.stop().await;
    }
}
