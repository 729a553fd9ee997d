//! The servers of a manager, and their shutdown.

use std::io;
use std::time::Duration;

use axum::Router;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::address_files::AddressFiles;
use crate::api;
use crate::api::server::tls::Tls;
use crate::store::Store;

/// The time in which pages that follow a search may send another request after its end.
const CLIENT_CLOSE_TIME: Duration = Duration::from_secs(5);

/// The servers, which run until [`Self::stop`].
#[derive(Default)]
pub(super) struct ServerTasks {
    servers: JoinSet<io::Result<()>>,
    /// Cancelled when the manager stops. Requests that only wait are then answered.
    pub(super) closing: CancellationToken,
    /// Cancelled when clients are no longer served.
    pub(super) closed: CancellationToken,
    /// The open streams of events.
    pub(super) streams: TaskTracker,
}

impl ServerTasks {
    /// Serves routes on a socket, with encryption if there is a certificate.
    pub(super) fn serve(&mut self, listener: TcpListener, tls: Option<Tls>, router: Router) {
        let stopped = self.closed.clone().cancelled_owned();
        self.servers.spawn(async move {
            match tls {
                Some(tls) => api::serve_tls(listener, &tls, router, stopped).await,
                None => api::serve(listener, router, stopped).await,
            }
        });
    }

    /// Serves on the socket in the experiment's folder.
    pub(super) fn serve_socket(&mut self, files: AddressFiles) {
        // Listens before the address is announced, because a client that reads the address tries the socket first.
        let listener = files.listen();
        self.servers.spawn(files.maintain(listener));
    }

    /// Retries writes to the store periodically while they fail.
    pub(super) fn retry_store(&mut self, store: Store) {
        let stopped = self.closed.clone();
        self.servers.spawn(async move {
            stopped.run_until_cancelled(store.database().retry_while_failing()).await;
            Ok(())
        });
    }

    /// Stops the servers. Clients that follow a stream of events receive its end, and may send another request for a
    /// moment.
    pub(super) async fn stop(&mut self) {
        self.closing.cancel();
        self.streams.close();
        tokio::select! {
            () = self.streams.wait() => {}
            () = sleep(CLIENT_CLOSE_TIME) => {}
        }
        self.closed.cancel();
        // A server that failed has already logged its error; all acknowledged data is stored.
        while self.servers.join_next().await.is_some() {}
    }
}
