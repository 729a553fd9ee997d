//! The web server that NNI's client talks to from the moment it has started "node" (`trial-manager nni-node`): before
//! there is an experiment, while its manager runs, and when it could not be started.
//!
//! It listens on this machine's loopback interface only, without encryption, as NNI's client expects.
//! Source: nni 3.0, `nni/experiment/launcher.py` and `ts/nni_manager/rest_server`.

use std::sync::{Arc, Mutex, PoisonError};

use axum::extract::{Request, State};
use axum::http::{Method, StatusCode, Uri};
use axum::response::{IntoResponse as _, Response};
use axum::{Json, Router};
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use super::Error;
use super::local_user::is_of_own_user;
use super::user::large_json_body;

/// Where NNI's routes begin.
const NNI_ROUTES: &str = "/api/v1/nni";

/// An experiment's configuration in NNI's canonical form, as NNI's client posted it.
#[derive(Debug)]
pub struct PostedExperiment {
    /// The configuration.
    pub configuration: Value,
    /// Takes the body of the answer, or what is wrong with the experiment.
    pub reply: oneshot::Sender<Result<Value, String>>,
}

/// The party that answers requests.
#[derive(Debug, Clone)]
enum NodePhase {
    /// No manager yet; the client posts an experiment.
    Initialized,
    /// An experiment was posted, and its manager is being started.
    Starting,
    /// The manager that runs an experiment.
    Running(Router),
    /// A manager that only shows an experiment, and NNI's word for that.
    Stored(Router, &'static str),
    /// No manager could be started: why.
    Failed(String),
}

/// Answers NNI's client; cheap to clone.
#[derive(Debug, Clone)]
pub struct NniNode {
    phase: Arc<Mutex<NodePhase>>,
    posted: mpsc::Sender<PostedExperiment>,
    stop: CancellationToken,
    /// With a slash at its head and none at its end. `None`: paths have no prefix.
    prefix: Option<String>,
}

impl NniNode {
    /// A server without an experiment. Posted ones arrive in the channel; the token is cancelled when the client ends
    /// an experiment that no manager runs. Routes are also found below `prefix`.
    pub fn new(
        prefix: Option<&str>,
        stop: CancellationToken,
    ) -> (Self, mpsc::Receiver<PostedExperiment>) {
        let (posted, arriving) = mpsc::channel(1);
        let prefix =
            prefix.map(|prefix| prefix.trim_matches('/')).filter(|prefix| !prefix.is_empty());
        let prefix = prefix.map(|prefix| format!("/{prefix}"));
        let phase = Arc::new(Mutex::new(NodePhase::Initialized));
        (Self { phase, posted, stop, prefix }, arriving)
    }

    /// Has the manager of a running experiment answer from now on.
    pub fn run(&self, manager: Router) {
        self.enter(NodePhase::Running(manager));
    }

    /// Has a manager answer from now on that only shows an experiment, under this status of NNI's.
    pub fn show(&self, manager: Router, status: &'static str) {
        self.enter(NodePhase::Stored(manager, status));
    }

    /// Says from now on that the experiment failed, and why.
    pub fn fail(&self, why: String) {
        self.enter(NodePhase::Failed(why));
    }

    /// All routes.
    pub fn router(&self) -> Router {
        Router::new().fallback(answer).with_state(self.clone())
    }

    fn enter(&self, phase: NodePhase) {
        *self.phase.lock().unwrap_or_else(PoisonError::into_inner) = phase;
    }

    fn phase(&self) -> NodePhase {
        self.phase.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Hands a posted experiment on and waits for what becomes of it.
    async fn take(&self, request: Request) -> Response {
        let (parts, body) = request.into_parts();
        // It names a command that is run as this user.
        if !is_of_own_user(&parts).await {
            return refusal(
                StatusCode::UNAUTHORIZED,
                "an experiment is taken from a program of the manager's own user on this machine only",
            );
        }
        let configuration = match large_json_body(Request::from_parts(parts, body)).await {
            Ok(configuration) => configuration,
            Err(error) => return of_error(&error),
        };
        self.enter(NodePhase::Starting);
        let (reply, answer) = oneshot::channel();
        if self.posted.send(PostedExperiment { configuration, reply }).await.is_err() {
            return refusal(StatusCode::SERVICE_UNAVAILABLE, "the manager is ending");
        }
        match answer.await {
            // The answer to a resumed experiment is empty.
            Ok(Ok(Value::Null)) => StatusCode::OK.into_response(),
            Ok(Ok(body)) => Json(body).into_response(),
            Ok(Err(problem)) => refusal(StatusCode::BAD_REQUEST, &problem),
            Err(_) => refusal(StatusCode::SERVICE_UNAVAILABLE, "the manager is ending"),
        }
    }

    /// Ends what has no experiment that runs.
    async fn end(&self, request: Request) -> Response {
        let (parts, _) = request.into_parts();
        if !is_of_own_user(&parts).await {
            return refusal(
                StatusCode::UNAUTHORIZED,
                "only a program of the manager's own user on this machine may end it",
            );
        }
        self.stop.cancel();
        StatusCode::OK.into_response()
    }
}

async fn answer(State(node): State<NniNode>, mut request: Request) -> Response {
    if let Some(prefix) = &node.prefix
        && let Some(uri) = without_prefix(request.uri(), prefix)
    {
        *request.uri_mut() = uri;
    }
    let path = request.uri().path().strip_prefix(NNI_ROUTES).unwrap_or_default().to_owned();
    let asked = request.method().clone();
    let asks = |method: Method, wanted: &str| asked == method && path == wanted;
    let (status, errors) = match node.phase() {
        NodePhase::Running(_) | NodePhase::Stored(..) if asks(Method::POST, "/experiment") => {
            return refusal(StatusCode::CONFLICT, "this manager has an experiment already");
        }
        NodePhase::Running(manager) => return hand_over(manager, request).await,
        NodePhase::Stored(_, status) if asks(Method::GET, "/check-status") => (status, Vec::new()),
        NodePhase::Stored(..) if asks(Method::DELETE, "/experiment") => {
            return node.end(request).await;
        }
        NodePhase::Stored(manager, _) => return hand_over(manager, request).await,
        NodePhase::Initialized if asks(Method::POST, "/experiment") => {
            return node.take(request).await;
        }
        NodePhase::Initialized | NodePhase::Starting => ("INITIALIZED", Vec::new()),
        NodePhase::Failed(why) => ("ERROR", vec![why]),
    };
    if asks(Method::GET, "/check-status") {
        return Json(json!({"status": status, "errors": errors})).into_response();
    }
    if asks(Method::DELETE, "/experiment") {
        return node.end(request).await;
    }
    let why =
        errors.into_iter().next().unwrap_or_else(|| "the experiment has not begun yet".to_owned());
    refusal(StatusCode::SERVICE_UNAVAILABLE, &why)
}

async fn hand_over(manager: Router, request: Request) -> Response {
    match manager.oneshot(request).await {
        Ok(response) => response,
        Err(never) => match never {},
    }
}

/// A refusal as NNI writes it: its client prints the body.
fn refusal(status: StatusCode, why: &str) -> Response {
    (status, Json(json!({"error": why}))).into_response()
}

fn of_error(error: &Error) -> Response {
    let (status, _, detail) = error.parts();
    refusal(status, &detail)
}

/// PURE: a request's target below the prefix. `None`: it is not below it.
fn without_prefix(uri: &Uri, prefix: &str) -> Option<Uri> {
    let rest = uri.path_and_query()?.as_str().strip_prefix(prefix)?;
    match rest.chars().next() {
        Some('/') => rest.parse().ok(),
        Some('?') => format!("/{rest}").parse().ok(),
        Some(_) => None,
        None => Some(Uri::from_static("/")),
    }
}

#[cfg(test)]
mod tests {
    use axum::body::{Body, to_bytes};

    use super::*;

    #[test]
    fn the_prefix_is_taken_off_whole_words_only() {
        #[rustfmt::skip]
        let table = [
            ("/pre/api/v1/nni/check-status?a=b", Some("/api/v1/nni/check-status?a=b")),
            ("/pre",                             Some("/")),
            ("/pre/",                            Some("/")),
            ("/pre?a=b",                         Some("/?a=b")),
            ("/prefix/api",                      None),
            ("/api/v1/nni/check-status",         None),
        ];
        for (target, expected) in table {
            let left = without_prefix(&target.parse().unwrap(), "/pre");
            assert_eq!(left.map(|uri| uri.to_string()).as_deref(), expected, "{target}");
        }
    }

    async fn ask(node: &NniNode, method: Method, path: &str) -> (StatusCode, Value) {
        let request = Request::builder().method(method).uri(path).body(Body::empty()).unwrap();
        let response = node.router().oneshot(request).await.unwrap();
        let status = response.status();
        let bytes = to_bytes(response.into_body(), 1 << 20).await.unwrap();
        (status, serde_json::from_slice(&bytes).unwrap_or_default())
    }

    #[tokio::test]
    async fn each_phase_has_its_status_and_strangers_start_and_end_nothing() {
        let stop = CancellationToken::new();
        let (node, _posted) = NniNode::new(Some("pre/"), stop.clone());
        let manager = || Router::new().fallback(|| async { Json(json!("the manager")) });
        let status = "/api/v1/nni/check-status";
        let experiment = "/api/v1/nni/experiment";
        let (_, body) = ask(&node, Method::GET, status).await;
        assert_eq!(body, json!({"status": "INITIALIZED", "errors": []}));
        let (code, _) = ask(&node, Method::GET, experiment).await;
        assert_eq!(code, StatusCode::SERVICE_UNAVAILABLE);
        let (code, _) = ask(&node, Method::DELETE, experiment).await;
        assert_eq!(code, StatusCode::UNAUTHORIZED, "nothing is known of the client's process");
        let (code, _) = ask(&node, Method::POST, experiment).await;
        assert_eq!(code, StatusCode::UNAUTHORIZED);
        node.run(manager());
        assert_eq!(ask(&node, Method::GET, status).await.1, "the manager");
        assert_eq!(ask(&node, Method::POST, experiment).await.0, StatusCode::CONFLICT);
        node.show(manager(), "VIEWED");
        assert_eq!(
            ask(&node, Method::GET, "/pre/api/v1/nni/check-status").await.1["status"],
            "VIEWED"
        );
        assert_eq!(ask(&node, Method::GET, experiment).await.1, "the manager");
        node.fail("no cluster".to_owned());
        let (_, body) = ask(&node, Method::GET, status).await;
        assert_eq!(body, json!({"status": "ERROR", "errors": ["no cluster"]}));
        assert!(!stop.is_cancelled());
    }
}
