//! Serves an experiment without a manager: answers API requests from its store, and changes nothing
//! except that it marks trials to be run again.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use trial_protocol::ExperimentId;

use super::address_files::listen_locally;
use super::listener::Endpoint;
use super::rerun_trials;
use super::server_lookup::viewer_of;
use super::{Error, Settings};
use crate::api::access::auth::{Authenticator, Reach};
use crate::api::access::session::Sessions;
use crate::api::client::{Client, in_process};
use crate::api::{self, Pods};
use crate::code_archive::CodeArchive;
use crate::config;
use crate::experiment::command::{Command, CommandError};
use crate::experiment::{ExperimentHandle, TaskEvent};
use crate::ingest::Intake;
use crate::store::Store;
use crate::token::{Secret, UserToken};
use crate::util::clock::SystemClock;
use crate::util::files::write_file;
use crate::util::layout::ExperimentDir;
use crate::view::TrialCache;

/// Returns a client for the stored experiment, which is served within this process.
pub async fn stored_client(id: &ExperimentId, dir: &ExperimentDir) -> Result<Client, Error> {
    // There is no receiver, so commands to the experiment are refused.
    let (handle, _) = ExperimentHandle::without_task();
    Ok(in_process(
        stored_api_state(id, dir, Reach::Machine, None, handle, CancellationToken::new()).await?,
    ))
}

pub(super) async fn stored_api_state(
    id: &ExperimentId,
    dir: &ExperimentDir,
    reach: Reach,
    port: Option<u16>,
    handle: ExperimentHandle,
    stop: CancellationToken,
) -> Result<api::ApiState, Error> {
    let store = Store::open_to_read(&dir.database())?;
    let row = store.experiment().row().await?.ok_or_else(|| Error::NoSuchExperiment {
        id: id.clone(),
        data_dir: dir.path().parent().unwrap_or(dir.path()).to_owned(),
    })?;
    let spec = config::from_canonical(&row.canonical)?;
    let secret = Secret::load_or_create(&dir.secret())?;
    let user = UserToken::load_or_create(&dir.user_token())?;
    let clock = Arc::new(SystemClock);
    Ok(api::ApiState {
        intake: Intake::new(store.clone(), handle.clone(), id.clone(), clock.clone()),
        trial_cache: TrialCache::of_experiment(store.queries().clone(), &spec),
        authenticator: Authenticator::new(
            id,
            user,
            secret.clone(),
            Sessions::in_memory(clock.clone()),
            reach,
        ),
        secret: Arc::new(secret),
        // Agents do not report to a server without trials.
        pods: Pods::new(CodeArchive::new(spec.trial_code_directory, dir.code_archive()), 1),
        store,
        handle,
        clock,
        service: Arc::default(),
        closing: stop.clone(),
        closed: stop,
        streams: TaskTracker::new(),
        server_info: api::ServerInfo {
            port,
            folder: dir.path().to_owned(),
            has_trial_files: spec.training_service.section().is_local(),
        },
    })
}

/// Returns the settings of a server that runs no trials.
fn viewer_settings(data_dir: &Path, host: &str, port: u16) -> Settings {
    Settings {
        data_dir: data_dir.to_owned(),
        host: Some(host.to_owned()),
        port,
        agent: None,
        legacy_port: None,
        lease: Duration::ZERO,
        certificate: None,
        advertise: None,
        loopback_port: None,
        stays_open: false,
        url_prefix: None,
    }
}

/// The listener of a server that runs no trials, before it serves.
pub(super) struct ViewListener {
    listener: TcpListener,
    endpoint: Endpoint,
    /// The port.
    pub(super) port: u16,
}

impl ViewListener {
    /// Listens. If connections are encrypted, the folder `authority` contains the certificate.
    pub(super) async fn bind(
        data_dir: &Path,
        authority: &Path,
        host: &str,
        port: u16,
    ) -> Result<Self, Error> {
        let listen = |cause| Error::Listen { host: host.to_owned(), port, cause };
        let listener = TcpListener::bind((host, port)).await.map_err(listen)?;
        let address: SocketAddr = listener.local_addr().map_err(listen)?;
        let settings = viewer_settings(data_dir, host, port);
        let endpoint = Endpoint::build(&settings, address, authority, None, None)?;
        Ok(Self { listener, endpoint, port: address.port() })
    }

    /// Returns the clients that can reach the server.
    pub(super) fn reach(&self) -> Reach {
        self.endpoint.reach
    }
}

/// A server that runs no trials: of an experiment without a manager, or of a home.
pub struct ViewServer {
    /// The server's address.
    pub url: String,
    served: tokio::task::JoinHandle<io::Result<()>>,
    stop: CancellationToken,
    /// The file with the address. It exists while the server runs.
    url_file: PathBuf,
    /// A store that only this server uses.
    pub(super) store: Option<Store>,
}

/// Serves the pages and the API of an experiment without a manager. The file `view.url` in the experiment's folder
/// contains the address.
pub async fn serve_stored(
    id: &ExperimentId,
    dir: &ExperimentDir,
    host: &str,
    port: u16,
) -> Result<ViewServer, Error> {
    if let Some((_, url)) = viewer_of(id, dir).await {
        return Err(Error::AlreadyServed { what: format!("experiment {id}"), url });
    }
    let listener = ViewListener::bind(dir.path(), &dir.authority(), host, port).await?;
    let stop = CancellationToken::new();
    let (handle, commands) = ExperimentHandle::without_task();
    tokio::spawn(answer_commands(dir.clone(), commands));
    let (reach, port) = (listener.reach(), Some(listener.port));
    let state = stored_api_state(id, dir, reach, port, handle, stop.clone()).await?;
    // Reads all trials now, so that the first page need not wait.
    state.trial_cache.refresh().await?;
    ViewServer::start(listener, api::router(state), &dir.view_socket(), dir.view_url(), stop)
}

/// Returns the routes of an experiment without a manager, for this machine's loopback interface on `port`. They work
/// until `stop`.
pub async fn router_on_machine(
    id: &ExperimentId,
    dir: &ExperimentDir,
    port: u16,
    stop: CancellationToken,
) -> Result<axum::Router, Error> {
    let (handle, commands) = ExperimentHandle::without_task();
    tokio::spawn(answer_commands(dir.clone(), commands));
    let state = stored_api_state(id, dir, Reach::Machine, Some(port), handle, stop).await?;
    state.trial_cache.refresh().await?;
    Ok(api::router(state))
}

/// Replaces the experiment's task: marks trials for another run, and refuses commands that need a running search. It
/// ends with the server.
pub(super) async fn answer_commands(dir: ExperimentDir, mut commands: mpsc::Receiver<TaskEvent>) {
    while let Some(event) = commands.recv().await {
        if let TaskEvent::Command { command, reply } = event {
            let done = match command {
                Command::RerunTrial(trial) => rerun_trials(&dir, &[trial]).await,
                Command::StopTrial(_)
                | Command::FlushTrial(_)
                | Command::SetLogLevel(..)
                | Command::ChangeLimits(_)
                | Command::ImportResults(_)
                | Command::AddTrial { .. }
                | Command::ChangeSpace(_) => Err(CommandError::NotRunning),
            };
            // The caller may have given up.
            drop(reply.send(done));
        }
    }
}

impl ViewServer {
    /// Serves `router` over the network and on the socket, and writes the address to `url_file`.
    pub(super) fn start(
        listener: ViewListener,
        router: axum::Router,
        socket: &Path,
        url_file: PathBuf,
        stop: CancellationToken,
    ) -> Result<Self, Error> {
        let ViewListener { listener, endpoint: Endpoint { tls, url, .. }, .. } = listener;
        if let Some(local) = listen_locally(socket) {
            let (router, stopped) = (router.clone(), stop.clone().cancelled_owned());
            tokio::spawn(api::serve_local(local, router, stopped));
        }
        let stopped = stop.clone().cancelled_owned();
        let served = tokio::spawn(async move {
            match tls {
                Some(tls) => api::serve_tls(listener, &tls, router, stopped).await,
                None => api::serve(listener, router, stopped).await,
            }
        });
        write_file(&url_file, 0o600, &format!("{url}\n"))
            .map_err(|source| Error::DataDir { path: url_file.clone(), source })?;
        Ok(Self { url, served, stop, url_file, store: None })
    }

    /// Ends the requests in progress, and then the server.
    pub async fn close(self) {
        self.stop.cancel();
        drop(self.served.await);
        // If the file remains, clients also check the socket, which no longer answers.
        drop(std::fs::remove_file(&self.url_file));
        if let Some(store) = self.store {
            store.close().await;
        }
    }
}
