//! The servers of a manager that runs an experiment: the API, the portal, and the port for NNI's old keepers.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use axum::Router;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tracing::{info, warn};
use trial_protocol::ExperimentId;

use super::address_files::AddressFiles;
use super::experiment_setup::bind;
use super::listener::Endpoint;
use super::server_tasks::ServerTasks;
use super::{Error, Settings};
use crate::advisers::DEFAULT_PYTHON;
use crate::api;
use crate::api::access::auth::Authenticator;
use crate::api::access::session::Sessions;
use crate::code_archive::version::CodeTracker;
use crate::code_archive::{CodeArchive, packages};
use crate::config::ExperimentSpec;
use crate::experiment::ExperimentHandle;
use crate::experiment::code_recorder::CodeSource;
use crate::ingest::Intake;
use crate::store::Store;
use crate::token::{Secret, UserToken};
use crate::training_service::platform::{CheckedPlatform, StartContext};
use crate::training_service::{JobNews, TrainingService};
use crate::util::clock::Clock;
use crate::util::files::write_file;
use crate::util::layout::ExperimentDir;
use crate::view::TrialCache;

/// The parts of a manager that its servers need.
pub(super) struct ServerContext<'a> {
    pub(super) settings: &'a Settings,
    pub(super) id: &'a ExperimentId,
    pub(super) dir: &'a ExperimentDir,
    pub(super) spec: &'a ExperimentSpec,
    pub(super) store: &'a Store,
    pub(super) handle: &'a ExperimentHandle,
    pub(super) clock: &'a Arc<dyn Clock>,
    pub(super) secret: &'a Arc<Secret>,
    pub(super) checked: &'a dyn CheckedPlatform,
}

/// The servers, which are already listening.
pub(super) struct StartedServers {
    pub(super) server: ServerTasks,
    /// The base URL of the manager for this machine.
    pub(super) url: String,
    /// The base URL of the manager for trials on other machines. `None`: all trials run on this one.
    pub(super) advertised: Option<String>,
    /// The base URL of the manager for trials.
    pub(super) advertised_url: String,
    /// The authority that agents trust. `None` without TLS.
    pub(super) ca_file: Option<PathBuf>,
    /// The routes that answer requests on this machine's loopback interface.
    pub(super) loopback_router: Router,
    /// The cell for the training service, which is set once the service has started.
    pub(super) service: Arc<OnceLock<Arc<dyn TrainingService>>>,
    /// The source of the version of the trials' code. `None` if the version is not recorded.
    pub(super) code: Option<CodeSource>,
}

impl StartedServers {
    /// Starts the training service, and limits the trials that run at a time to its room. Returns the service with the
    /// receiver of its news.
    pub(super) async fn start_service(
        &self,
        checked: Box<dyn CheckedPlatform>,
        id: &ExperimentId,
        spec: &mut ExperimentSpec,
        dir: &ExperimentDir,
        secret: &Arc<Secret>,
    ) -> Result<(Arc<dyn TrainingService>, mpsc::UnboundedReceiver<JobNews>), Error> {
        let (events, news) = mpsc::unbounded_channel();
        let context = StartContext {
            id,
            spec: &*spec,
            dir: dir.clone(),
            ca_file: self.ca_file.clone(),
            url: self.advertised_url.clone(),
            secret: Arc::clone(secret),
            events,
        };
        let service = checked.start(context).await?;
        spec.trial_concurrency = effective_concurrency(service.as_ref(), spec.trial_concurrency);
        // The cell is set only once.
        drop(self.service.set(Arc::clone(&service)));
        Ok((service, news))
    }
}

/// Returns the number of trials that run at a time: the configured number, or less if the training service has less
/// room.
fn effective_concurrency(service: &dyn TrainingService, wanted: usize) -> usize {
    match service.capacity() {
        Some(room) if room < wanted => {
            warn!("the training service has room for {room} of {wanted} trials at a time");
            room
        }
        _ => wanted,
    }
}

impl ServerContext<'_> {
    /// Starts the servers on a bound listener.
    pub(super) async fn serve(&self, listener: TcpListener) -> Result<StartedServers, Error> {
        let (settings, checked) = (self.settings, self.checked);
        let address = listener.local_addr().map_err(|cause| Error::Listen {
            host: String::new(),
            port: settings.port,
            cause,
        })?;
        let intake = self.intake();
        let mut server = ServerTasks::default();
        if let Some(port) = settings.legacy_port {
            let listener = bind(settings, checked, port).await?;
            server.serve(listener, None, api::legacy::router(&intake));
        }
        let (directory, file) = (self.spec.trial_code_directory.clone(), self.dir.code_archive());
        let archive = CodeArchive::excluding(directory, file, self.spec.private_file.clone());
        let code = code_source(self.spec, &archive, self.dir.code_diffs()).await?;
        record_packages(self.spec, self.dir).await;
        let advertise =
            settings.advertise.as_deref().or(self.spec.training_service.section().advertise());
        let authority = self.dir.authority();
        let endpoint =
            Endpoint::build(settings, address, &authority, advertise, checked.api_server())?;
        let Endpoint { tls, ca_file, url, advertised_url, reach } = endpoint;
        let sessions =
            Sessions::load(self.store.sessions().clone(), Arc::clone(self.clock)).await?;
        let user = user_token(self.dir)?;
        let authenticator =
            Authenticator::new(self.id, user, self.secret.as_ref().clone(), sessions, reach);
        let service = Arc::new(OnceLock::new());
        let pods = api::Pods::new(archive, self.spec.training_service.section().pods_of_trial());
        let state = self.api_state(intake, authenticator, &server, pods, &service, address.port());
        let loopback_router = loopback_router(&state, settings.loopback_port);
        let mut router = api::router(state.clone());
        if let Some(agent) = checked.agent_for_pods() {
            router = router.merge(api::program::router(agent.to_owned(), state));
        }
        self.publish(&mut server, &url, &router)?;
        let router = match &settings.url_prefix {
            Some(prefix) => api::serve_under_prefix(prefix, router),
            None => router,
        };
        server.serve(listener, tls, router);
        server.retry_store(self.store.clone());
        let advertised = checked.api_server().is_some().then(|| advertised_url.clone());
        Ok(StartedServers {
            server,
            url,
            advertised,
            advertised_url,
            ca_file,
            loopback_router,
            service,
            code,
        })
    }

    fn intake(&self) -> Intake {
        let (store, handle) = (self.store.clone(), self.handle.clone());
        Intake::new(store, handle, self.id.clone(), Arc::clone(self.clock))
            .with_lease(self.settings.lease)
    }

    /// Writes the address, and serves the local socket.
    fn publish(&self, server: &mut ServerTasks, url: &str, router: &Router) -> Result<(), Error> {
        let files = AddressFiles {
            dir: self.dir.clone(),
            url: url.to_owned(),
            store: self.store.clone(),
            router: router.clone(),
            closed: server.closed.clone(),
        };
        files.write_url()?;
        server.serve_socket(files);
        Ok(())
    }

    fn api_state(
        &self,
        intake: Intake,
        authenticator: Authenticator,
        server: &ServerTasks,
        pods: api::Pods,
        service: &Arc<OnceLock<Arc<dyn TrainingService>>>,
        port: u16,
    ) -> api::ApiState {
        let spec = self.spec;
        let trial_cache = TrialCache::of_experiment(self.store.queries().clone(), spec);
        api::ApiState {
            intake,
            store: self.store.clone(),
            secret: Arc::clone(self.secret),
            authenticator,
            closing: server.closing.clone(),
            closed: server.closed.clone(),
            streams: server.streams.clone(),
            pods,
            trial_cache,
            handle: self.handle.clone(),
            clock: Arc::clone(self.clock),
            service: Arc::clone(service),
            server_info: api::ServerInfo {
                port: Some(port),
                folder: self.dir.path().to_owned(),
                has_trial_files: spec.training_service.section().is_local(),
            },
        }
    }
}

/// Returns the source of the version of the trials' code. `None` if the version is not recorded.
async fn code_source(
    spec: &ExperimentSpec,
    code: &CodeArchive,
    diffs: PathBuf,
) -> Result<Option<CodeSource>, Error> {
    let section = spec.training_service.section();
    Ok(if section.needs_code() {
        // The archive is created now, so that later edits do not change the trials' code.
        code.version().await?.map(CodeSource::Archive)
    } else if section.is_local() {
        let tracker = CodeTracker::new(spec.trial_code_directory.clone());
        Some(CodeSource::Directory(tracker.with_diff_folder(diffs)))
    } else {
        None
    })
}

/// Returns the user's token, and writes it to the file that `curl` reads.
fn user_token(dir: &ExperimentDir) -> Result<UserToken, Error> {
    let user = UserToken::load_or_create(&dir.user_token())?;
    let netrc = dir.netrc();
    write_file(&netrc, 0o600, &user.netrc()?)
        .map_err(|source| Error::DataDir { path: netrc, source })?;
    Ok(user)
}

/// Returns the routes for the server on this machine's loopback interface. Empty without a port.
fn loopback_router(state: &api::ApiState, port: Option<u16>) -> Router {
    let Some(port) = port else { return Router::new() };
    api::router(api::ApiState {
        authenticator: state.authenticator.for_local_listener(),
        server_info: api::ServerInfo { port: Some(port), ..state.server_info.clone() },
        ..state.clone()
    })
}

/// Records the packages of the user's Python, if the experiment requires it. A failure does not stop the search.
async fn record_packages(spec: &ExperimentSpec, dir: &ExperimentDir) {
    if !spec.record_packages {
        return;
    }
    let python = spec.python_interpreter.as_deref().unwrap_or(DEFAULT_PYTHON);
    let (file, secrets) = (dir.packages(), spec.secret_variables());
    match packages::record(python, &spec.trial_code_directory, &file, &secrets).await {
        Ok(number) => info!("{number} packages are listed in {}", file.display()),
        Err(why) => warn!("the packages are not recorded: {why}"),
    }
}
