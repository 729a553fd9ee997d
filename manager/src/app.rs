//! Composition: builds the parts of a manager that runs one experiment, starts them, and ends them in
//! order. It decides nothing.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::warn;
use trial_protocol::{ExperimentId, IdError};

use crate::clock::{Clock, SystemClock};
use crate::config::{self, ExperimentSpec, TrainingServiceSpec};
use crate::experiment::Handle;
use crate::experiment::conduct::{Conductor, conduct};
use crate::experiment::notice::Notice;
use crate::experiment::state::ExperimentState;
use crate::intake::Intake;
use crate::layout::ExperimentDir;
use crate::store::{self, ExperimentRow, Store};
use crate::token::Secret;
use crate::training_service::local::gpus::{self, Gpus, Wanted};
use crate::training_service::local::{self, Local, write_file};
use crate::{api, assessor, ids, token, tuner};

/// Events that may wait for the experiment before those who report have to wait.
const EVENTS: usize = 1024;

/// What to run, and how.
#[derive(Debug)]
pub struct Settings {
    /// Folder that holds one folder per experiment; made if absent.
    pub data_dir: PathBuf,
    /// Address to listen on.
    pub host: String,
    /// Port to listen on; 0 picks a free one.
    pub port: u16,
    /// The agent program. `None`: `trialkeeper` beside this program, else in `PATH`.
    pub agent: Option<PathBuf>,
    /// Port for images that still carry NNI's own keeper, which knows neither tokens nor encryption.
    /// `None`: there is no such listener.
    pub legacy_port: Option<u16>,
}

/// A new experiment, or one to go on with.
#[derive(Debug)]
pub enum What {
    /// A new one.
    New(Box<ExperimentSpec>),
    /// One that was interrupted.
    Resume(String),
}

/// Why an experiment could not be run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The experiment's configuration, as stored.
    #[error("the stored configuration of the experiment is not valid")]
    Config(#[from] config::Error),
    /// The arguments of the tuner or the assessor.
    #[error("the tuner or the assessor cannot be made")]
    Arguments(#[from] tuner::Error),
    /// An id that cannot be one.
    #[error(transparent)]
    Id(#[from] IdError),
    /// There is no such experiment.
    #[error(
        "there is no experiment {id} under {}; --data-dir looks elsewhere",
        .data_dir.display()
    )]
    NoSuchExperiment {
        /// Which.
        id: ExperimentId,
        /// Where.
        data_dir: PathBuf,
    },
    /// Nothing is left to do but to show the results.
    #[error("experiment {} is done; there is nothing to resume", .finished.id)]
    AlreadyDone {
        /// Where its results are.
        finished: Box<Finished>,
    },
    /// A folder or file under the data directory.
    #[error("cannot write {}; choose a writable folder with --data-dir", .path.display())]
    DataDir {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The address.
    #[error("cannot listen on {host}:{port}; --port 0 picks a free port")]
    Listen {
        /// Which address.
        host: String,
        /// Which port.
        port: u16,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The agent program.
    #[error("there is no agent program {}; build it (`cargo build -p trialkeeper`) or name it with --agent", .path.display())]
    NoAgent {
        /// Where it was looked for.
        path: PathBuf,
    },
    /// The machine's GPUs.
    #[error(transparent)]
    Gpus(#[from] gpus::Error),
    /// The certificate for encrypted connections.
    #[error("connections from other machines cannot be encrypted")]
    Tls(#[from] api::tls::Error),
    /// The trial tokens' secret.
    #[error("cannot make the experiment's secret")]
    Secret(#[from] token::Error),
    /// The store.
    #[error("the experiment's store failed")]
    Store(#[from] store::Error),
    /// A part of the manager came to an unexpected end.
    #[error("a part of the manager ended unexpectedly; `resume` goes on with the experiment")]
    Lost,
}

impl Error {
    /// Whether the user can mend it by giving other input, as opposed to a fault while running.
    pub fn is_usage(&self) -> bool {
        match self {
            Self::Config(_)
            | Self::Arguments(_)
            | Self::Id(_)
            | Self::NoSuchExperiment { .. }
            | Self::AlreadyDone { .. }
            | Self::DataDir { .. }
            | Self::Listen { .. }
            | Self::NoAgent { .. }
            | Self::Gpus(_)
            | Self::Tls(_)
            | Self::Secret(_) => true,
            Self::Store(error) => matches!(
                error,
                store::Error::Open { .. }
                    | store::Error::InUse { .. }
                    | store::Error::NotOurs { .. }
                    | store::Error::Newer { .. }
            ),
            Self::Lost => false,
        }
    }
}

/// An experiment that is done.
#[derive(Debug)]
pub struct Finished {
    /// Its id.
    pub id: ExperimentId,
    /// What was wanted.
    pub spec: ExperimentSpec,
    /// Everything it recorded.
    pub store: Store,
}

/// An experiment that runs.
pub struct Running {
    /// Its id.
    pub id: ExperimentId,
    /// What was wanted.
    pub spec: ExperimentSpec,
    /// Its folder.
    pub dir: ExperimentDir,
    /// Base URL of the manager, as this machine reaches it.
    pub url: String,
    /// What happens.
    pub notices: mpsc::UnboundedReceiver<Notice>,
    /// Talks to the experiment.
    pub handle: Handle,
    /// Everything it records.
    pub store: Store,
    conducted: tokio::task::JoinHandle<Result<ExperimentState, store::Error>>,
    served: JoinSet<io::Result<()>>,
    stop_serving: CancellationToken,
    service: Local,
}

/// Starts a manager for one experiment.
pub async fn start(settings: Settings, what: What) -> Result<Running, Error> {
    let agent = find_agent(settings.agent)?;
    // The port first: a new experiment that cannot be served leaves no folder behind.
    let listen =
        |source| Error::Listen { host: settings.host.clone(), port: settings.port, source };
    let listener =
        TcpListener::bind((settings.host.as_str(), settings.port)).await.map_err(listen)?;
    let address = listener.local_addr().map_err(listen)?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);

    let (id, new) = match what {
        What::New(spec) => (ids::experiment(), Some(spec)),
        What::Resume(id) => (ExperimentId::new(id)?, None),
    };
    let dir = ExperimentDir::new(&settings.data_dir, &id);
    if new.is_none() && !dir.database().exists() {
        return Err(Error::NoSuchExperiment { id, data_dir: settings.data_dir });
    }
    std::fs::create_dir_all(dir.path()).map_err(|source| {
        // The folder that the user can do something about.
        Error::DataDir { path: settings.data_dir.clone(), source }
    })?;
    let store = Store::open(&dir.database())?;
    let (mut spec, seed) = match new {
        Some(spec) => create(&store, &id, *spec, clock.as_ref()).await?,
        None => recall(&store, &id).await?,
    };
    let gpus = gpus(&spec)?;
    if let Some(room) = gpus.room().filter(|room| *room < spec.trial_concurrency) {
        warn!("the GPUs have room for {room} trials at a time, not for {}", spec.trial_concurrency);
        spec.trial_concurrency = room;
    }
    let tuner = tuner::build(&spec.tuner, &spec.search_space, seed)?;
    let assessor = spec.assessor.as_ref().map(assessor::build).transpose()?;
    let secret = Arc::new(Secret::load_or_create(&dir.secret())?);

    let (handle, events) = Handle::new(EVENTS);
    let intake = Intake::new(store.clone(), handle.clone(), id.clone(), Arc::clone(&clock));
    let stop_serving = CancellationToken::new();
    let mut served = JoinSet::new();
    if let Some(port) = settings.legacy_port {
        let listen = |source| Error::Listen { host: settings.host.clone(), port, source };
        let listener = TcpListener::bind((settings.host.as_str(), port)).await.map_err(listen)?;
        let stopped = stop_serving.clone().cancelled_owned();
        served.spawn(api::serve(listener, api::legacy::router(&intake), stopped));
    }
    let state = api::State { intake, store: store.clone(), secret: Arc::clone(&secret) };
    let router = api::router(state);
    // What leaves the machine is encrypted; the loopback interface does not leave it.
    let leaves = !address.ip().is_loopback();
    let tls = leaves.then(|| certificate(&dir, &settings.host)).transpose()?;
    let (ca_file, url) = match &tls {
        Some(_) => (Some(dir.ca_file()), format!("https://{}", reachable(address))),
        None => (None, format!("http://{}", reachable(address))),
    };
    let stopped = stop_serving.clone().cancelled_owned();
    served.spawn(async move {
        match tls {
            Some(tls) => api::serve_tls(listener, &tls, router, stopped).await,
            None => api::serve(listener, router, stopped).await,
        }
    });
    let url_file = dir.manager_url();
    write_file(&url_file, 0o644, &format!("{url}\n"))
        .map_err(|source| Error::DataDir { path: url_file, source })?;

    let (job_events, jobs) = mpsc::unbounded_channel();
    let local = local::Settings {
        agent,
        dir: dir.clone(),
        code_directory: spec.trial_code_directory.clone(),
        objective: spec.objective.clone(),
        ca_file,
        events: job_events,
    };
    let service = Local::new(local, gpus);
    let (notify, notices) = mpsc::unbounded_channel();
    let conductor = Conductor {
        id: id.clone(),
        spec: spec.clone(),
        store: store.clone(),
        tuner,
        assessor,
        service: Arc::new(service.clone()),
        secret,
        handle: handle.clone(),
        events,
        jobs,
        notices: notify,
        clock,
    };
    let conducted = tokio::spawn(conduct(conductor));
    Ok(Running {
        id,
        spec,
        dir,
        url,
        notices,
        handle,
        store,
        conducted,
        served,
        stop_serving,
        service,
    })
}

impl Running {
    /// Waits for the experiment's end and ends the other parts: first the jobs' watchers, then the
    /// server (an agent may still be saying its last word), then the store. Gives `report` the store
    /// before it is closed.
    pub async fn finish<T, F: Future<Output = Result<T, store::Error>>>(
        self,
        report: impl FnOnce(ExperimentState, Store) -> F,
    ) -> Result<T, Error> {
        let stands = self.conducted.await.map_err(|_| Error::Lost)??;
        self.service.close().await;
        self.stop_serving.cancel();
        // A server that failed has already shown it in its log; everything acknowledged is stored.
        let mut served = self.served;
        while served.join_next().await.is_some() {}
        let reported = report(stands, self.store.clone()).await;
        self.store.close().await;
        Ok(reported?)
    }
}

async fn create(
    store: &Store,
    id: &ExperimentId,
    spec: ExperimentSpec,
    clock: &dyn Clock,
) -> Result<(ExperimentSpec, u64), Error> {
    let seed = ids::seed();
    let row = ExperimentRow {
        id: id.clone(),
        canonical: spec.canonical.clone(),
        seed,
        state: ExperimentState::Running.as_str().to_owned(),
        created_at_ms: clock.now_ms(),
        ended_at_ms: None,
        elapsed_ms: 0,
    };
    store.create_experiment(row).await?;
    Ok((spec, seed))
}

async fn recall(store: &Store, id: &ExperimentId) -> Result<(ExperimentSpec, u64), Error> {
    let Some(row) = store.experiment().await? else {
        // The folder was made, and the manager died before it recorded anything.
        let data_dir = PathBuf::new();
        return Err(Error::NoSuchExperiment { id: id.clone(), data_dir });
    };
    let spec = config::from_canonical(&row.canonical)?;
    if row.state == ExperimentState::Done.as_str() {
        let finished = Finished { id: id.clone(), spec, store: store.clone() };
        return Err(Error::AlreadyDone { finished: Box::new(finished) });
    }
    Ok((spec, row.seed))
}

/// Shares this machine's GPUs out as the experiment wants; asks for them only if it wants any.
fn gpus(spec: &ExperimentSpec) -> Result<Gpus, gpus::Error> {
    let TrainingServiceSpec::Local(local) = &spec.training_service;
    let wanted = Wanted {
        each: spec.trial_gpu_number,
        sharers: local.max_trial_number_per_gpu,
        indices: local.gpu_indices.clone(),
        active: local.use_active_gpu.unwrap_or(true),
    };
    let machine = match spec.trial_gpu_number {
        None | Some(0) => Vec::new(),
        Some(_) => gpus::of_this_machine(),
    };
    Gpus::new(&wanted, &machine)
}

/// The manager's own certificate, for the names under which this machine's agents and others reach it.
fn certificate(dir: &ExperimentDir, host: &str) -> Result<api::tls::Tls, Error> {
    let folder = dir.authority();
    std::fs::create_dir_all(&folder)
        .map_err(|source| Error::DataDir { path: folder.clone(), source })?;
    let own = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
    let mut names = vec!["localhost".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned()];
    names.extend(own.into_iter().chain([host.to_owned()]).filter(|name| !name.is_empty()));
    Ok(api::tls::Tls::load_or_create(&folder, &names)?)
}

/// The address under which this machine's agents reach a listener: an unspecified address listens
/// everywhere and is no destination.
fn reachable(address: SocketAddr) -> SocketAddr {
    let mut address = address;
    if address.ip().is_unspecified() {
        address.set_ip(match address {
            SocketAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
            SocketAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
        });
    }
    address
}

fn find_agent(given: Option<PathBuf>) -> Result<PathBuf, Error> {
    const NAME: &str = "trialkeeper";
    if let Some(path) = given {
        return if path.is_file() { Ok(path) } else { Err(Error::NoAgent { path }) };
    }
    let beside = std::env::current_exe().ok().and_then(|own| Some(own.parent()?.join(NAME)));
    let in_path = std::env::var_os("PATH").into_iter().flat_map(|path| {
        std::env::split_paths(&path).map(|dir| dir.join(NAME)).collect::<Vec<_>>()
    });
    let mut places = beside.clone().into_iter().chain(in_path);
    places
        .find(|path| path.is_file())
        .ok_or(Error::NoAgent { path: beside.unwrap_or_else(|| NAME.into()) })
}
