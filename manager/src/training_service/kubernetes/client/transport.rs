//! The transport of every request. It honours the `Retry-After` of an overloaded server. After a rejection, it reads
//! the credentials again, since they may have been renewed.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use kube::Client;
use kube::client::Body;
use tokio::time::{Instant, sleep_until, timeout};
use tower::Service;
use tracing::{debug, info, warn};

use super::{Access, Error, access, error};

/// The shortest time between two reads of the credentials.
const CREDENTIALS_INTERVAL: Duration = Duration::from_secs(5);
/// The longest pause that a server's `Retry-After` can cause.
const MAX_RETRY_PAUSE: Duration = Duration::from_secs(15);

type Request = hyper::Request<Body>;
type Response = hyper::Response<Body>;

/// Sends requests to the API server.
#[derive(Clone)]
pub(super) struct Transport {
    access: Arc<Access>,
    /// The API server. A kubeconfig that later names another server is ignored.
    pub(super) server: String,
    /// The namespace in the kubeconfig.
    pub(super) namespace: String,
    state: Arc<Mutex<State>>,
}

struct State {
    client: Client,
    read_at: Instant,
    /// The end of the pause in which no request is sent.
    paused_until: Instant,
}

impl Transport {
    /// Prepares the transport, without sending a request.
    pub(super) async fn open(access: &Access) -> Result<Self, Error> {
        let access = Access { context: access::chosen_context(access), ..access.clone() };
        let connection = connect(access.clone()).await?;
        let Connection { client, server, namespace, has_fixed_token } = connection;
        if has_fixed_token {
            warn!(
                "the manager cannot renew the token of the kubeconfig's `auth-provider: oidc`; use a program that renews it (`users: exec`), such as kubelogin"
            );
        }
        let now = Instant::now();
        let state = State { client, read_at: now, paused_until: now };
        let (access, state) = (Arc::new(access), Arc::new(Mutex::new(state)));
        Ok(Self { access, server, namespace, state })
    }

    /// Returns the context of the kubeconfig, if there is one.
    pub(super) fn context(&self) -> Option<String> {
        self.access.context.clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn send(self, request: Request) -> Result<Response, kube::Error> {
        let until = self.state().paused_until;
        sleep_until(until).await;
        let client = self.state().client.clone();
        // The body of the answer may take any time, because a watch is one.
        let answer = match timeout(super::REQUEST_TIMEOUT, client.send(request)).await {
            Ok(answer) => answer,
            Err(elapsed) => Err(kube::Error::Service(elapsed.into())),
        };
        match &answer {
            Ok(response) => {
                if let Some(pause) = retry_pause(response) {
                    self.state().paused_until = Instant::now() + pause;
                }
                if response.status().as_u16() == 401 {
                    self.reload_credentials().await;
                }
            }
            Err(problem) if error::is_credentials_error(problem) => self.reload_credentials().await,
            Err(_) => {}
        }
        answer
    }

    /// Reads the credentials again. The caller retries by its own rules.
    async fn reload_credentials(&self) {
        let due = {
            let mut state = self.state();
            let due = state.read_at.elapsed() >= CREDENTIALS_INTERVAL;
            if due {
                state.read_at = Instant::now();
            }
            due
        };
        if !due {
            return;
        }
        match connect(Access::clone(&self.access)).await {
            Ok(connection) if connection.server == self.server => {
                info!(
                    "the cluster at {} rejected the credentials; the kubeconfig is read again",
                    self.server
                );
                self.state().client = connection.client;
            }
            Ok(_) => debug!("the kubeconfig names another cluster now"),
            Err(problem) => debug!("{problem}"),
        }
    }
}

impl Service<Request> for Transport {
    type Response = Response;
    type Error = kube::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response, kube::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), kube::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request) -> Self::Future {
        Box::pin(self.clone().send(request))
    }
}

/// A client with the names from the kubeconfig.
struct Connection {
    client: Client,
    server: String,
    namespace: String,
    has_fixed_token: bool,
}

/// Reads the credentials and prepares a client. This runs on a thread of its own, because a program that the kubeconfig
/// names may take seconds to return credentials.
async fn connect(access: Access) -> Result<Connection, Error> {
    let connection = tokio::task::spawn_blocking(move || {
        let mut config = access::load_config(&access)?;
        // The manager's own retries replace those of the library. They depend on the caller, report the reason, and
        // last no longer than a request may.
        config.default_retry = false;
        config.connect_timeout = Some(super::CONNECT_TIMEOUT);
        if config.accept_invalid_certs && config.root_cert.is_none() {
            // Without verification the certificate authorities of this machine are not needed, and it may have none.
            config.root_cert = Some(Vec::new());
        }
        let has_fixed_token = access::has_fixed_token(&config);
        let (server, namespace) =
            (config.cluster_url.to_string(), config.default_namespace.clone());
        let client =
            Client::try_from(config).map_err(|source| error::from_kube(&server, source))?;
        Ok(Connection { client, server, namespace, has_fixed_token })
    });
    connection.await.expect("the thread does not panic, and nothing cancels it")
}

/// Returns the time for which an overloaded server asks for no requests.
fn retry_pause(response: &Response) -> Option<Duration> {
    let after = response.headers().get(hyper::header::RETRY_AFTER);
    let after = after.filter(|_| [429, 503].contains(&response.status().as_u16()))?;
    let seconds = after.to_str().ok()?.parse().ok()?;
    Some(Duration::from_secs(seconds).min(MAX_RETRY_PAUSE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_overloaded_server_gets_no_requests_for_its_retry_after() {
        #[rustfmt::skip]
        let table = [
            (429, Some("1"),    Some(1)),
            (503, Some("3"),    Some(3)),
            (429, Some("3600"), Some(15)),
            (429, None,         None),
            (429, Some("soon"), None),
            (429, Some("-1"),   None),
            (200, Some("1"),    None),
            (500, Some("1"),    None),
        ];
        for (code, after, seconds) in table {
            let mut response = hyper::Response::builder().status(code);
            if let Some(after) = after {
                response = response.header("Retry-After", after);
            }
            let response = response.body(Body::empty()).unwrap();
            assert_eq!(
                retry_pause(&response),
                seconds.map(Duration::from_secs),
                "{code} {after:?}"
            );
        }
    }
}
