//! Serves the home of a data directory: all its experiments at one address.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio_util::sync::CancellationToken;
use trial_protocol::ExperimentId;

use super::Error;
use super::server_lookup::{home_of, manager_of};
use super::stored_experiment::{ViewListener, ViewServer, answer_commands, stored_api_state};
use crate::api;
use crate::api::access::auth::{Authenticator, Reach};
use crate::api::access::session::Sessions;
use crate::api::client::Client;
use crate::api::home::{ExperimentSource, Home, OpenExperiment};
use crate::experiment::ExperimentHandle;
use crate::store::Store;
use crate::token::UserToken;
use crate::util::clock::{Clock, SystemClock};
use crate::util::errors::error_chain;
use crate::util::files::create_private_folder;
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
        let (handle, commands) = ExperimentHandle::without_task();
        let stop = self.stop.child_token();
        let shown = stored_api_state(id, &dir, Reach::Machine, Some(self.port), handle, stop).await;
        let shown = shown.map_err(|error| error_chain(&error))?;
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
    create_private_folder(dir.path())
        .map_err(|source| Error::DataDir { path: dir.path().to_owned(), source })?;
    let listener = ViewListener::bind(data_dir, &dir.authority(), host, port).await?;
    let store = Store::open(&dir.database())?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let sessions = Sessions::load(store.sessions().clone(), Arc::clone(&clock)).await?;
    let reach = listener.reach();
    let authenticator =
        Authenticator::of_home(UserToken::load_or_create(&dir.token())?, sessions, reach);
    let stop = CancellationToken::new();
    let source = StoredExperiments {
        data_dir: data_dir.to_owned(),
        port: listener.port,
        stop: stop.clone(),
    };
    let home = Home::new(data_dir.to_owned(), authenticator, Box::new(source), clock);
    let router = api::home::router(home.clone());
    // The first page waits for the result of this task.
    tokio::spawn(async move { home.refresh().await });
    let mut server = ViewServer::start(listener, router, &dir.socket(), dir.url(), stop)?;
    server.store = Some(store);
    Ok(server)
}
