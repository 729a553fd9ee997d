//! HTTP: the table of routes, one line each. The modules below contain the handlers.
//!
//! Only this module uses status codes and headers. It must not touch SQL or decide about trials.

pub mod access;
mod agent;
pub mod client;
mod error;
mod health;
pub mod home;
pub mod legacy;
mod nni;
pub mod nni_node;
pub mod percent;
mod pod;
mod portal;
pub mod program;
pub mod rendezvous;
pub mod server;
#[cfg(test)]
mod tests;
mod user;

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use axum::Router;
use axum::extract::{FromRef as _, Request};
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::Response;
use axum::routing::{get, post};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use utoipa::openapi::OpenApi;

use self::access::{auth, log_in, throttle, ticket};
use self::server::{body, compress, quota, response_memory};
use crate::experiment::ExperimentHandle;
use crate::ingest::Intake;
use crate::store::Store;
use crate::token::Secret;
use crate::training_service::TrainingService;
use crate::util::clock::Clock;
use crate::view::TrialCache;
pub use error::Error;
pub use pod::Pods;
pub use server::serve::{serve, serve_local, serve_tls};

/// The state of the handlers; cheap to clone.
#[derive(Clone)]
pub struct ApiState {
    /// The intake of the agents' reports.
    pub intake: Intake,
    /// The store.
    pub store: Store,
    /// The secret with which the trials' tokens are made and checked.
    pub secret: Arc<Secret>,
    /// The wall clock.
    pub clock: Arc<dyn Clock>,
    /// The authorisation of users.
    pub authenticator: auth::Authenticator,
    /// Cancelled when the manager stops. Requests that only wait are then answered.
    pub closing: CancellationToken,
    /// Cancelled when the manager no longer serves clients; after `closing`, or together with it.
    pub closed: CancellationToken,
    /// The open event streams.
    pub streams: TaskTracker,
    /// The code and the rendezvous for pods that share no disk with the manager.
    pub pods: Pods,
    /// The view of the trials.
    pub trial_cache: TrialCache,
    /// The handle of the experiment's task.
    pub handle: ExperimentHandle,
    /// The training service, once it runs. It provides the output of a trial whose agent is silent.
    pub service: Arc<OnceLock<Arc<dyn TrainingService>>>,
    /// The manager's port and folder.
    pub server_info: ServerInfo,
}

/// The port and the folder of a manager.
#[derive(Debug, Clone)]
pub struct ServerInfo {
    /// The port on which the manager listens. `None` without a listener.
    pub port: Option<u16>,
    /// The experiment's folder.
    pub folder: PathBuf,
    /// `true` if the folder contains the trials' files.
    pub has_trial_files: bool,
}

/// The header with the prefix that a proxy or home in front of a manager has removed from the path.
const PREFIX_HEADER: HeaderName = HeaderName::from_static("x-forwarded-prefix");

/// [`ApiState`], and the values that only the routes share.
#[derive(Clone)]
struct Shared {
    // Behind one pointer, because axum clones the state of a route for each request.
    state: Arc<ApiState>,
    memory: body::BodyMemory,
    quota: quota::Quota,
    changes: user::ChangeLog,
    tickets: ticket::Tickets,
    throttle: throttle::Throttle,
    steps: nni::StepCounts,
}

/// Returns the router with all routes of the manager.
pub fn router(state: ApiState) -> Router {
    let shared = Shared {
        memory: body::BodyMemory::new(),
        quota: quota::Quota::new(state.pods.max_pods()),
        state: Arc::new(state),
        changes: user::ChangeLog::default(),
        tickets: ticket::Tickets::default(),
        throttle: throttle::Throttle::default(),
        steps: nni::StepCounts::default(),
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
        .layer(axum::middleware::from_fn(portal::base::with_prefix))
        .layer(axum::middleware::from_fn_with_state(
            log_in::LogIn::from_ref(&shared),
            log_in::throttle,
        ))
        .layer(axum::middleware::from_fn_with_state(
            response_memory::ResponseMemory::new(),
            response_memory::limit_response_memory,
        ))
        .layer(compress::layer())
        .layer(axum::middleware::map_response(nosniff))
        .with_state(shared)
}

/// Returns the routes of an experiment's manager and of a home that describe themselves.
fn described_routes() -> OpenApi {
    let mut described = user::routes().into_openapi();
    described.merge(home::routes().into_openapi());
    described
}

/// Returns a router that serves the routes also below `prefix`. Pages that are requested there link below `prefix`.
pub fn serve_under_prefix(prefix: &str, router: Router) -> Router {
    // The prefix was checked when it was read.
    let Ok(named) = HeaderValue::from_str(prefix) else { return router };
    let name = move |mut request: Request| {
        request.headers_mut().insert(PREFIX_HEADER, named.clone());
        std::future::ready(request)
    };
    let inner = router.clone().layer(axum::middleware::map_request(name));
    Router::new().nest_service(prefix, inner).fallback_service(router)
}

/// Makes browsers trust the content type of a response, regardless of its first bytes.
async fn nosniff(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}
