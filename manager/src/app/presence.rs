//! The files by which agents and command lines find the manager in the experiment's folder, kept there for as long as the manager runs: its
//! address and its socket. A cleaner of temporary folders removes both from under a search that lasts for days.

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

/// The interval at which the folder is looked at: an agent without an address tries again about as often.
const FOLDER_CHECK_INTERVAL: Duration = Duration::from_secs(3);

/// The files of a running manager in an experiment's folder.
pub(super) struct Presence {
    pub(super) dir: ExperimentDir,
    /// The manager's base URL, as this machine reaches it.
    pub(super) url: String,
    pub(super) store: Store,
    /// Answers on the socket.
    pub(super) router: Router,
    /// Cancelled when no client is served any more.
    pub(super) closed: CancellationToken,
}

impl Presence {
    /// Writes the manager's address.
    pub(super) fn write_url(&self) -> Result<(), Error> {
        let path = self.dir.manager_url();
        write_file(&path, 0o600, &format!("{}\n", self.url))
            .map_err(|source| Error::DataDir { path, source })
    }

    /// Listens on the socket. `None`: the file system has no sockets.
    pub(super) fn listen(&self) -> Option<UnixListener> {
        listen_locally(&self.dir.manager_socket())
    }

    /// Serves on the socket, and puts back what vanishes, until no client is served any more.
    pub(super) async fn keep(self, listener: Option<UnixListener>) -> io::Result<()> {
        let mut servers = JoinSet::new();
        let mut serving = listener.map(|listener| self.serve(&mut servers, listener));
        let mut looks = interval(FOLDER_CHECK_INTERVAL);
        loop {
            tokio::select! {
                () = self.closed.cancelled() => break,
                Some(_) = servers.join_next() => {}
                _ = looks.tick() => {
                    self.store.check_identity().await;
                    // A folder whose database is gone is not the one that agents belong to.
                    if self.store.is_in_place() {
                        self.restore_url();
                        if let Some(listener) = self.restore_socket() {
                            let new = self.serve(&mut servers, listener);
                            serving.replace(new).inspect(CancellationToken::cancel);
                        }
                    }
                }
            }
        }
        // Each of them ends with `closed`.
        while servers.join_next().await.is_some() {}
        Ok(())
    }

    /// Answers on a socket until the token that it returns is cancelled, or no client is served any more.
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
            Ok(()) => tracing::warn!("{} was removed; written again", path.display()),
            Err(error) => tracing::debug!("{}", crate::util::errors::chain(&error)),
        }
    }

    /// Listens again where the socket was removed. `None`: it is there, or cannot be made.
    fn restore_socket(&self) -> Option<UnixListener> {
        let path = self.dir.manager_socket();
        if path.exists() {
            return None;
        }
        match local_socket::bind(&path) {
            Ok(listener) => {
                tracing::warn!("{} was removed; made again", path.display());
                Some(listener)
            }
            Err(error) => {
                tracing::debug!("cannot listen on {}: {error}", path.display());
                None
            }
        }
    }
}

/// Listens for this machine's agents and command lines. A file system without sockets leaves them TCP, and no socket of an
/// earlier manager that they would wait for.
pub(super) fn listen_locally(path: &Path) -> Option<UnixListener> {
    match local_socket::bind(path) {
        Ok(listener) => Some(listener),
        Err(error) => {
            tracing::warn!(
                "cannot listen on {}: {error}; agents and command lines of this machine use TCP, where any user of the \
                 machine may answer them once this manager has ended",
                path.display()
            );
            drop(std::fs::remove_file(path));
            None
        }
    }
}
