//! The files in the experiment's folder by which agents and commands find the manager: its address and its socket.
//! They are restored while the manager runs, because a cleaner of temporary folders may remove them during a search
//! of several days.

use std::io;
use std::path::Path;
use std::time::Duration;

use axum::Router;
use tokio::net::UnixListener;
use tokio::task::JoinSet;
use tokio::time::interval;
use tokio_util::sync::CancellationToken;

use super::Error;
use crate::api;
use crate::store::Store;
use crate::util::files::write_file;
use crate::util::layout::ExperimentDir;
use crate::util::local_socket;

/// The interval at which the folder is checked. An agent without an address retries about as often.
const FOLDER_CHECK_INTERVAL: Duration = Duration::from_secs(3);

/// The files of a running manager in an experiment's folder.
pub(super) struct AddressFiles {
    pub(super) dir: ExperimentDir,
    /// The manager's base URL for this machine.
    pub(super) url: String,
    pub(super) store: Store,
    /// The routes that are served on the socket.
    pub(super) router: Router,
    /// Cancelled when clients are no longer served.
    pub(super) closed: CancellationToken,
}

impl AddressFiles {
    /// Writes the manager's address.
    pub(super) fn write_url(&self) -> Result<(), Error> {
        let path = self.dir.manager_url();
        write_file(&path, 0o600, &format!("{}\n", self.url))
            .map_err(|source| Error::DataDir { path, source })
    }

    /// Listens on the socket. `None` if the file system does not support sockets.
    pub(super) fn listen(&self) -> Option<UnixListener> {
        listen_locally(&self.dir.manager_socket())
    }

    /// Serves on the socket and restores missing files, until clients are no longer served.
    pub(super) async fn maintain(self, listener: Option<UnixListener>) -> io::Result<()> {
        let mut servers = JoinSet::new();
        let mut serving = listener.map(|listener| self.serve(&mut servers, listener));
        let mut looks = interval(FOLDER_CHECK_INTERVAL);
        loop {
            tokio::select! {
                () = self.closed.cancelled() => break,
                Some(_) = servers.join_next() => {}
                _ = looks.tick() => {
                    self.store.database().check_identity().await;
                    // If the database is gone, the folder no longer belongs to this experiment's agents.
                    if self.store.database().is_in_place() {
                        self.restore_url();
                        if let Some(listener) = self.restore_socket() {
                            let new = self.serve(&mut servers, listener);
                            serving.replace(new).inspect(CancellationToken::cancel);
                        }
                    }
                }
            }
        }
        // Each server ends once `closed` is cancelled.
        while servers.join_next().await.is_some() {}
        Ok(())
    }

    /// Serves on a socket until the returned token is cancelled, or clients are no longer served.
    fn serve(
        &self,
        servers: &mut JoinSet<io::Result<()>>,
        listener: UnixListener,
    ) -> CancellationToken {
        let stop = self.closed.child_token();
        let stopped = stop.clone().cancelled_owned();
        servers.spawn(api::serve_local(listener, self.router.clone(), stopped));
        stop
    }

    fn restore_url(&self) {
        let path = self.dir.manager_url();
        if path.exists() {
            return;
        }
        match self.write_url() {
            Ok(()) => tracing::warn!("{} was removed and is restored", path.display()),
            Err(error) => tracing::debug!("{}", crate::util::errors::error_chain(&error)),
        }
    }

    /// Listens again if the socket was removed. `None` if the socket exists or cannot be created.
    fn restore_socket(&self) -> Option<UnixListener> {
        let path = self.dir.manager_socket();
        if path.exists() {
            return None;
        }
        match local_socket::bind(&path) {
            Ok(listener) => {
                tracing::warn!("{} was removed and is restored", path.display());
                Some(listener)
            }
            Err(error) => {
                tracing::debug!("cannot listen on {}: {error}", path.display());
                None
            }
        }
    }
}

/// Listens for this machine's agents and commands. On a file system without sockets, they use TCP; the socket of an
/// earlier manager is removed, so that they do not wait for it.
pub(super) fn listen_locally(path: &Path) -> Option<UnixListener> {
    match local_socket::bind(path) {
        Ok(listener) => Some(listener),
        Err(error) => {
            tracing::warn!(
                "cannot listen on {}: {error}; agents and commands on this machine use TCP, where any user of the \
                 machine can answer them after this manager has ended",
                path.display()
            );
            drop(std::fs::remove_file(path));
            None
        }
    }
}
