//! The servers of a manager, and how they end.

use std::io;
use std::time::Duration;

use axum::Router;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::presence::Presence;
use crate::api;
use crate::api::tls::Tls;
use crate::store::Store;

/// The time that pages that follow a search may look once more after its end.
const FAREWELL: Duration = Duration::from_secs(3);

/// The servers; they run until [`Self::stop`].
#[derive(Default)]
pub(super) struct Served {
    servers: JoinSet<io::Result<()>>,
    /// Cancelled when the manager stops: requests that only wait are answered then.
    pub(super) closing: CancellationToken,
    /// Cancelled when no client is served any more.
    pub(super) closed: CancellationToken,
    /// The streams of events that are open.
    pub(super) streams: TaskTracker,
}

impl Served {
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
    pub(super) fn keep(&mut self, presence: Presence) {
        // Listens before the address is announced: a client that knows it looks for the socket first.
        let listener = presence.listen();
        self.servers.spawn(presence.keep(listener));
    }

    /// Tries the store from time to time while its writes fail.
    pub(super) fn look_after(&mut self, store: Store) {
        let stopped = self.closed.clone();
        self.servers.spawn(async move {
            stopped.run_until_cancelled(store.retry_while_failing()).await;
            Ok(())
        });
    }

    /// Ends the servers. A follower of a stream of events gets the end and may look once more, for a moment.
    pub(super) async fn stop(&mut self) {
        self.closing.cancel();
        self.streams.close();
        tokio::select! {
            () = self.streams.wait() => {}
            () = sleep(FAREWELL) => {}
        }
        self.closed.cancel();
        // A server that failed has already shown it in its log; everything acknowledged is stored.
        while self.servers.join_next().await.is_some() {}
    }
}
