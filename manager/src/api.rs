//! HTTP: the table of routes, one line each. The modules below have the handlers.
//!
//! The only place that knows status codes and headers. It must not touch SQL or decide about trials.

mod agent;
mod answers;
pub mod auth;
mod body;
pub mod client;
mod compress;
mod error;
mod health;
pub mod home;
pub mod legacy;
mod local_user;
mod log_in;
mod nni;
pub mod nni_node;
pub mod percent;
mod pod;
mod portal;
pub mod program;
mod quota;
pub mod rendezvous;
mod request_origin;
mod serve;
pub mod session;
#[cfg(test)]
mod tests;
mod throttle;
mod ticket;
pub mod tls;
mod user;

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use axum::Router;
use axum::extract::{FromRef as _, Request};
use axum::http::{HeaderValue, header};
use axum::response::Response;
use axum::routing::{get, post};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::experiment::Handle;
use crate::ingest::Intake;
use crate::store::Store;
use crate::token::Secret;
use crate::training_service::TrainingService;
use crate::util::clock::Clock;
use crate::view::Board;
pub use error::Error;
pub use pod::Pods;
pub use serve::{serve, serve_local, serve_tls};

/// The state of the handlers; cheap to clone.
#[derive(Clone)]
pub struct State {
    /// Takes in the agents' reports.
    pub intake: Intake,
    /// Knows how the database is.
    pub store: Store,
    /// Checks tokens.
    pub secret: Arc<Secret>,
    /// The wall clock.
    pub clock: Arc<dyn Clock>,
    /// Lets the user in.
    pub gate: auth::Gate,
    /// Cancelled when the manager stops: requests that only wait are answered then.
    pub closing: CancellationToken,
    /// Cancelled when no client is served any more; after `closing`, or with it.
    pub closed: CancellationToken,
    /// The streams of events that are open.
    pub streams: TaskTracker,
    /// Serves pods that share no disk with the manager.
    pub pods: Pods,
    /// The view of the trials.
    pub board: Board,
    /// Talks to the experiment.
    pub handle: Handle,
    /// The training service, once it runs. It knows the output of a trial whose agent is silent.
    pub service: Arc<OnceLock<Arc<dyn TrainingService>>>,
    /// Where all this is.
    pub place: ServerInfo,
}

/// The place of a manager: its port and its folder.
#[derive(Debug, Clone)]
pub struct ServerInfo {
    /// The port that it listens on. `None`: there is no listener.
    pub port: Option<u16>,
    /// The experiment's folder.
    pub folder: PathBuf,
    /// True if the files of trials lie in it.
    pub has_trial_files: bool,
}

/// [`State`], and what the routes share beside it.
#[derive(Clone)]
struct Shared {
    state: State,
    memory: body::Memory,
    quota: quota::Quota,
    changes: user::Changes,
    tickets: ticket::Tickets,
    throttle: throttle::Throttle,
    steps: nni::Steps,
}

/// Everything the manager serves.
pub fn router(state: State) -> Router {
    let shared = Shared {
        state,
        memory: body::Memory::new(),
        quota: quota::Quota::default(),
        changes: user::Changes::default(),
        tickets: ticket::Tickets::default(),
        throttle: throttle::Throttle::default(),
        steps: nni::Steps::default(),
    };
    Router::new()
        .route("/api/v1/agent/reports", post(agent::reports))
        .route("/api/v1/agent/code", get(pod::code))
        .route("/api/v1/agent/parameters", get(pod::parameters))
        .route("/api/v1/agent/rendezvous", post(pod::rendezvous))
        .route("/healthz", get(health::healthz))
        .merge(Router::from(user::routes()))
        .merge(nni::routes())
        .merge(portal::routes())
        .fallback(portal::not_found)
        .method_not_allowed_fallback(error::method_not_allowed)
        .layer(axum::middleware::from_fn(portal::base::prefixed))
        .layer(axum::middleware::from_fn_with_state(
            log_in::LogIn::from_ref(&shared),
            log_in::throttle,
        ))
        .layer(axum::middleware::from_fn_with_state(answers::Answers::new(), answers::bound))
        .layer(compress::layer())
        .layer(axum::middleware::map_response(nosniff))
        .with_state(shared)
}

/// Returns routes that are found below `prefix`, too, whose pages then link below it.
pub fn also_below(prefix: &str, router: Router) -> Router {
    // It is checked where it is read.
    let Ok(named) = HeaderValue::from_str(prefix) else { return router };
    let name = move |mut request: Request| {
        request.headers_mut().insert(portal::base::PREFIX_HEADER, named.clone());
        std::future::ready(request)
    };
    let inner = router.clone().layer(axum::middleware::map_request(name));
    Router::new().nest_service(prefix, inner).fallback_service(router)
}

/// Has browsers believe an answer's content type, whatever its first bytes look like.
async fn nosniff(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}
