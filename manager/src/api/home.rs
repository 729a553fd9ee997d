//! The home of a data directory: all its experiments in one list, each with its own pages below `/e/ID`. The home
//! only reads an experiment's store. It forwards a change to the manager that runs the experiment.

mod catalog;
mod compare;
mod list;
mod markdown;
mod notes;

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::extract::{FromRef, Request, State};
use axum::http::{HeaderMap, Method, Uri};
use axum::middleware::{from_fn, from_fn_with_state, map_response};
use axum::response::{IntoResponse as _, Redirect, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Value, json};
use tokio::sync::Mutex;
use tokio::time::Instant;
use tower::ServiceExt as _;
use trial_protocol::ExperimentId;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::access::auth::Authenticator;
use super::access::log_in::{self, LogIn};
use super::access::throttle::Throttle;
use super::access::ticket::Tickets;
use super::client::Client;
use super::portal::{self, base};
use super::server::compress;
use super::user::document;
use super::{Error, error, percent};
use crate::store::Store;
use crate::util::clock::Clock;
use crate::util::files::create_private_folder;
use crate::util::layout::{ExperimentDir, HomeDir};
use crate::view::{ExperimentSummary, TrialCache};
use catalog::Catalog;

/// The maximum number of open experiments. A further one closes the least recently used one.
const MAX_OPEN_EXPERIMENTS: usize = 64;

/// The number of experiments from which a list without a home stores their summaries. Fewer are read quickly.
const MIN_STORED_SUMMARIES: usize = 50;

/// An experiment whose store is open for reading.
pub struct OpenExperiment {
    /// The experiment's pages and API.
    pub router: Router,
    /// The experiment's store.
    pub store: Store,
    /// The view of the experiment's trials.
    pub trial_cache: TrialCache,
}

/// The source of experiments and of clients for their managers.
#[async_trait::async_trait]
pub trait ExperimentSource: Send + Sync {
    /// Opens an experiment for reading, for users whom `authenticator` admits. On failure, returns the reason.
    async fn open(
        &self,
        id: &ExperimentId,
        authenticator: &Authenticator,
    ) -> Result<OpenExperiment, String>;
    /// Returns a client of the manager that runs the experiment, if there is one.
    async fn manager(&self, id: &ExperimentId) -> Option<Client>;
}

/// The state of the home's handlers; cheap to clone.
#[derive(Clone)]
pub struct Home(Arc<Inner>);

struct Inner {
    data_dir: PathBuf,
    log_in: LogIn,
    source: Box<dyn ExperimentSource>,
    catalog: Catalog,
    open: Mutex<HashMap<ExperimentId, CachedExperiment>>,
    clock: Arc<dyn Clock>,
}

/// An open experiment, the inode of its database, and the time of its last use.
struct CachedExperiment {
    experiment: Arc<OpenExperiment>,
    inode: u64,
    used: Instant,
}

impl FromRef<Home> for LogIn {
    fn from_ref(home: &Home) -> Self {
        home.0.log_in.clone()
    }
}

impl FromRef<Home> for Authenticator {
    fn from_ref(home: &Home) -> Self {
        home.0.log_in.authenticator.clone()
    }
}

impl Home {
    /// Creates the home of `data_dir`, for users whom `authenticator` admits.
    pub fn new(
        data_dir: PathBuf,
        authenticator: Authenticator,
        source: Box<dyn ExperimentSource>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let log_in =
            LogIn { authenticator, tickets: Tickets::default(), throttle: Throttle::default() };
        let catalog = Catalog::new(&data_dir, &HomeDir::new(&data_dir));
        let open = Mutex::default();
        Self(Arc::new(Inner { data_dir, log_in, source, catalog, open, clock }))
    }

    /// Reads the experiments that have changed since the last reading, so that the first page need not wait.
    pub async fn refresh(&self) {
        self.0.catalog.refresh(self).await;
    }

    /// Returns an experiment, and opens it at the first request.
    async fn experiment(&self, id: &ExperimentId) -> Result<Arc<OpenExperiment>, Error> {
        let database = ExperimentDir::new(&self.0.data_dir, id).database();
        // A changed inode means that another experiment now has this id.
        let inode = std::fs::metadata(&database).map(|file| file.ino()).map_err(|_| {
            Error::UnknownExperiment(format!("there is no experiment {id} in this home"))
        })?;
        let mut open = self.0.open.lock().await;
        if let Some(kept) = open.get_mut(id).filter(|kept| kept.inode == inode) {
            kept.used = Instant::now();
            return Ok(Arc::clone(&kept.experiment));
        }
        let opened = self.0.source.open(id, &self.0.log_in.authenticator).await;
        let experiment = Arc::new(opened.map_err(Error::Unreadable)?);
        if open.len() >= MAX_OPEN_EXPERIMENTS {
            let oldest = open.iter().min_by_key(|(_, kept)| kept.used).map(|(id, _)| id.clone());
            oldest.and_then(|id| open.remove(&id));
        }
        let kept =
            CachedExperiment { experiment: Arc::clone(&experiment), inode, used: Instant::now() };
        open.insert(id.clone(), kept);
        Ok(experiment)
    }

    /// Returns an experiment that is already open.
    async fn find_open(&self, id: &ExperimentId) -> Option<Arc<OpenExperiment>> {
        self.0.open.lock().await.get(id).map(|kept| Arc::clone(&kept.experiment))
    }
}

/// Returns the summaries of the experiments in a data directory without a server. Like a home, reads only experiments
/// that have changed since their summaries were stored.
pub async fn read_summaries(data_dir: &Path, now_ms: i64) -> Vec<ExperimentSummary> {
    let dir = HomeDir::new(data_dir);
    let is_large = |folder: std::fs::ReadDir| folder.count() >= MIN_STORED_SUMMARIES;
    // The administrator's list must not create a folder that the owner of the experiments cannot use.
    let is_own = std::fs::metadata(data_dir)
        .is_ok_and(|folder| folder.uid() == nix::unistd::geteuid().as_raw());
    if is_own && std::fs::read_dir(data_dir).is_ok_and(is_large) {
        // Without the folder, the summaries are not stored, and the next call reads every experiment again.
        drop(create_private_folder(dir.path()));
    }
    let entries = Catalog::new(data_dir, &dir).refresh_from(None, now_ms).await;
    entries.into_iter().map(|entry| entry.summary).collect()
}

/// Returns a home's routes of the API. Each handler describes its own route.
pub(super) fn routes() -> OpenApiRouter<Home> {
    OpenApiRouter::new()
        .routes(routes!(list::experiments))
        .routes(routes!(list::export))
        .routes(routes!(compare::export))
        .routes(routes!(log_in::begin_session, log_in::end_session))
        .routes(routes!(document::json))
}

/// Returns the router with all routes of a home.
pub fn router(home: Home) -> Router {
    Router::new()
        .route("/", get(list::page))
        .route("/compare", get(compare::page))
        .route("/archive", post(notes::archive))
        .route("/about/{id}", get(notes::page).post(notes::save))
        .merge(portal::log_in_routes())
        .layer(map_response(portal::refused_as_page))
        .merge(Router::from(routes()))
        .route("/healthz", get(health))
        .merge(portal::asset_routes())
        .layer(compress::layer())
        .fallback(serve_experiment)
        .method_not_allowed_fallback(error::method_not_allowed)
        .layer(from_fn_with_state(LogIn::from_ref(&home), log_in::throttle))
        .layer(map_response(super::nosniff))
        .layer(from_fn(base::with_home_prefix))
        .with_state(home)
}

/// `GET /healthz`. The route needs no token, so it reveals nothing that would require one.
async fn health() -> Json<Value> {
    Json(json!({"status": "ok", "version": env!("CARGO_PKG_VERSION")}))
}

/// Responds to requests for an experiment's own pages and API.
async fn serve_experiment(State(home): State<Home>, request: Request) -> Response {
    let Some(rest) = request.uri().path().strip_prefix("/e/").map(str::to_owned) else {
        return portal::not_found(request).await;
    };
    let Some((id, path)) = rest.split_once('/') else {
        return Redirect::to(&base::url(&format!("/e/{rest}/"))).into_response();
    };
    match respond(&home, id, &format!("/{path}"), request).await {
        Ok(response) => response,
        Err((error, true)) => error.into_response(),
        Err((Error::Unauthorized(_), false)) => {
            let next = percent::encode(&format!("/e/{id}/{path}"));
            Redirect::to(&base::url(&format!("/login?next={next}"))).into_response()
        }
        Err((error, false)) => portal::refusal(&error),
    }
}

/// Responds for the experiment `id`. The flag of an error is `true` if the response is for a program.
async fn respond(
    home: &Home,
    id: &str,
    path: &str,
    mut request: Request,
) -> Result<Response, (Error, bool)> {
    let is_api = path.starts_with("/api/");
    let refused = |error: Error| (error, is_api);
    let authenticator = &home.0.log_in.authenticator;
    let (method, headers): (&Method, &HeaderMap) = (request.method(), request.headers());
    if path == "/login" {
        // One log-in is valid for the whole home.
        return Err(refused(Error::Unauthorized("log in to the home".to_owned())));
    }
    authenticator.admit(method, headers).map_err(refused)?;
    let id = ExperimentId::new(id);
    let id = id.map_err(|error| refused(Error::UnknownExperiment(error.to_string())))?;
    let below = format!("/e/{id}");
    let changes = !matches!(*method, Method::GET | Method::HEAD);
    let of_home = path == "/logout" || path.starts_with("/api/v1/session");
    let uri = match request.uri().query() {
        Some(query) => format!("{path}?{query}"),
        None => path.to_owned(),
    };
    let uri = uri.parse::<Uri>();
    *request.uri_mut() =
        uri.map_err(|_| refused(Error::BadRequest("the address cannot be read".to_owned())))?;
    if changes
        && !of_home
        && let Some(manager) = home.0.source.manager(&id).await
    {
        let answered = manager.forward(request, &base::url(&below)).await;
        return answered.map_err(|error| refused(Error::Unreadable(error.to_string())));
    }
    let experiment = home.experiment(&id).await.map_err(refused)?;
    let router = experiment.router.clone();
    let answered = base::within_home(&below, router.oneshot(request)).await;
    Ok(answered.unwrap_or_else(|never| match never {}))
}
