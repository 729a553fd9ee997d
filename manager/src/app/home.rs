//! Serves the home of a data directory: all its experiments at one address.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use trial_protocol::ExperimentId;

use super::Error;
use super::address_files::listen_locally;
use super::listener::Endpoint;
use super::server_lookup::{home_of, manager_of};
use super::stored_experiment::{ViewServer, answer_commands, stored_api_state, viewer_settings};
use crate::api;
use crate::api::access::auth::{Authenticator, Reach};
use crate::api::access::session::Sessions;
use crate::api::client::Client;
use crate::api::home::{ExperimentSource, Home, OpenExperiment};
use crate::experiment::ExperimentHandle;
use crate::store::Store;
use crate::token::UserToken;
use crate::util::clock::{Clock, SystemClock};
use crate::util::errors::chain;
use crate::util::files::{create_private_folder, write_file};
use crate::util::layout::{ExperimentDir, HomeDir};

/// Opens stored experiments for reading only.
struct StoredExperiments {
    data_dir: PathBuf,
    port: u16,
    stop: CancellationToken,
}

#[async_trait::async_trait]
impl ExperimentSource for StoredExperiments {
    async fn open(
        &self,
        id: &ExperimentId,
        authenticator: &Authenticator,
    ) -> Result<OpenExperiment, String> {
        let dir = ExperimentDir::new(&self.data_dir, id);
        let (handle, commands) = ExperimentHandle::new(1);
        let stop = self.stop.child_token();
        let shown = stored_api_state(id, &dir, Reach::Machine, Some(self.port), handle, stop).await;
        let shown = shown.map_err(|error| chain(&error))?;
        tokio::spawn(answer_commands(dir, commands));
        let authenticator = authenticator.of_experiment(id, shown.secret.as_ref().clone());
        let (store, trial_cache) = (shown.store.clone(), shown.trial_cache.clone());
        let router = api::router(api::ApiState { authenticator, ..shown });
        Ok(OpenExperiment { router, store, trial_cache })
    }

    async fn manager(&self, id: &ExperimentId) -> Option<Client> {
        let dir = ExperimentDir::new(&self.data_dir, id);
        manager_of(id, &dir).await.map(|(client, _)| client)
    }
}

/// Serves the home of a data directory. A file in the home's folder contains the address, for managers.
pub async fn serve_home(data_dir: &Path, host: &str, port: u16) -> Result<ViewServer, Error> {
    let dir = HomeDir::new(data_dir);
    let taken = |url: String| {
        let what = format!("the home of {}", data_dir.display());
        Error::AlreadyServed { what, url }
    };
    if let Some(url) = home_of(&dir).await {
        return Err(taken(url));
    }
    let listen = |cause| Error::Listen { host: host.to_owned(), port, cause };
    let listener = TcpListener::bind((host, port)).await.map_err(listen)?;
    let address: SocketAddr = listener.local_addr().map_err(listen)?;
    create_private_folder(dir.path())
        .map_err(|source| Error::DataDir { path: dir.path().to_owned(), source })?;
    let store = Store::open(&dir.database())?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let settings = viewer_settings(data_dir, host, port);
    let endpoint = Endpoint::build(&settings, address, &dir.authority(), None, None)?;
    let Endpoint { tls, url, reach, .. } = endpoint;
    let sessions = Sessions::load(store.sessions().clone(), Arc::clone(&clock)).await?;
    let authenticator =
        Authenticator::of_home(UserToken::load_or_create(&dir.token())?, sessions, reach);
    let stop = CancellationToken::new();
    let source = StoredExperiments {
        data_dir: data_dir.to_owned(),
        port: address.port(),
        stop: stop.clone(),
    };
    let home = Home::new(data_dir.to_owned(), authenticator, Box::new(source), clock);
    let router = api::home::router(home.clone());
    // The first page waits for the result of this task.
    tokio::spawn(async move { home.refresh().await });
    if let Some(local) = listen_locally(&dir.socket()) {
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
    let url_file = dir.url();
    write_file(&url_file, 0o600, &format!("{url}\n"))
        .map_err(|source| Error::DataDir { path: url_file.clone(), source })?;
    Ok(ViewServer { url, served, stop, url_file, store: Some(store) })
}
