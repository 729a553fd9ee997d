//! The web server for NNI's client after it has started "node" (`trial-manager nni-node`): before there is an
//! experiment, while its manager runs, and when the manager could not be started.
//!
//! The server listens only on this machine's loopback interface, without encryption, as NNI's client expects.
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
use super::access::local_user::is_of_own_user;
use super::user::large_json_body;

/// The prefix of NNI's routes.
const NNI_ROUTES: &str = "/api/v1/nni";

/// An experiment's configuration in NNI's canonical form, posted by NNI's client.
#[derive(Debug)]
pub struct PostedExperiment {
    /// The configuration.
    pub configuration: Value,
    /// Receives the body of the response, or the problem with the experiment.
    pub reply: oneshot::Sender<Result<Value, String>>,
}

/// The phase of the server, which determines the responses.
#[derive(Debug, Clone)]
enum NodePhase {
    /// There is no manager yet. The client posts an experiment.
    Initialized,
    /// An experiment was posted, and its manager is starting.
    Starting,
    /// A manager runs an experiment.
    Running(Router),
    /// A manager only shows an experiment. The text is NNI's name for this status.
    Stored(Router, &'static str),
    /// No manager could be started. The text is the reason.
    Failed(String),
}

/// The server for NNI's client; cheap to clone.
#[derive(Debug, Clone)]
pub struct NniNode {
    phase: Arc<Mutex<NodePhase>>,
    posted: mpsc::Sender<PostedExperiment>,
    stop: CancellationToken,
    /// The prefix of all paths, with a slash at its beginning and none at its end. `None` if paths have no prefix.
    prefix: Option<String>,
}

impl NniNode {
    /// Creates a server without an experiment. The channel receives posted experiments. The token is cancelled when
    /// the client ends an experiment that no manager runs. Routes are also available below `prefix`.
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

    /// Lets the manager of a running experiment respond from now on.
    pub fn run(&self, manager: Router) {
        self.set_phase(NodePhase::Running(manager));
    }

    /// Routes requests to `manager`, which only shows an ended experiment, and reports this status of NNI's.
    pub fn show(&self, manager: Router, status: &'static str) {
        self.set_phase(NodePhase::Stored(manager, status));
    }

    /// Reports from now on that the experiment failed, with the reason.
    pub fn fail(&self, why: String) {
        self.set_phase(NodePhase::Failed(why));
    }

    /// Returns the router with all routes.
    pub fn router(&self) -> Router {
        Router::new().fallback(respond).with_state(self.clone())
    }

    fn set_phase(&self, phase: NodePhase) {
        *self.phase.lock().unwrap_or_else(PoisonError::into_inner) = phase;
    }

    fn phase(&self) -> NodePhase {
        self.phase.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Passes a posted experiment on, and waits for the result.
    async fn submit(&self, request: Request) -> Response {
        let (parts, body) = request.into_parts();
        // The experiment contains a command that runs as this user.
        if !is_of_own_user(&parts).await {
            return refusal(
                StatusCode::UNAUTHORIZED,
                "only a program of the manager's own user on this machine may post an experiment",
            );
        }
        let configuration = match large_json_body(Request::from_parts(parts, body)).await {
            Ok(configuration) => configuration,
            Err(error) => return error_refusal(&error),
        };
        self.set_phase(NodePhase::Starting);
        let (reply, answer) = oneshot::channel();
        if self.posted.send(PostedExperiment { configuration, reply }).await.is_err() {
            return refusal(StatusCode::SERVICE_UNAVAILABLE, "the manager is stopping");
        }
        match answer.await {
            // The response for a resumed experiment has no body.
            Ok(Ok(Value::Null)) => StatusCode::OK.into_response(),
            Ok(Ok(body)) => Json(body).into_response(),
            Ok(Err(problem)) => refusal(StatusCode::BAD_REQUEST, &problem),
            Err(_) => refusal(StatusCode::SERVICE_UNAVAILABLE, "the manager is stopping"),
        }
    }

    /// Ends a server whose experiment does not run.
    async fn stop_server(&self, request: Request) -> Response {
        let (parts, _) = request.into_parts();
        if !is_of_own_user(&parts).await {
            return refusal(
                StatusCode::UNAUTHORIZED,
                "only a program of the manager's own user on this machine may end the experiment",
            );
        }
        self.stop.cancel();
        StatusCode::OK.into_response()
    }
}

async fn respond(State(node): State<NniNode>, mut request: Request) -> Response {
    if let Some(prefix) = &node.prefix
        && let Some(uri) = strip_prefix(request.uri(), prefix)
    {
        *request.uri_mut() = uri;
    }
    let path = request.uri().path().strip_prefix(NNI_ROUTES).unwrap_or_default().to_owned();
    let request_method = request.method().clone();
    let is_request = |method: Method, wanted: &str| request_method == method && path == wanted;
    let (status, errors) = match node.phase() {
        NodePhase::Running(_) | NodePhase::Stored(..)
            if is_request(Method::POST, "/experiment") =>
        {
            return refusal(StatusCode::CONFLICT, "this manager already has an experiment");
        }
        NodePhase::Running(manager) => return forward_to_manager(manager, request).await,
        NodePhase::Stored(_, status) if is_request(Method::GET, "/check-status") => {
            (status, Vec::new())
        }
        NodePhase::Stored(..) if is_request(Method::DELETE, "/experiment") => {
            return node.stop_server(request).await;
        }
        NodePhase::Stored(manager, _) => return forward_to_manager(manager, request).await,
        NodePhase::Initialized if is_request(Method::POST, "/experiment") => {
            return node.submit(request).await;
        }
        NodePhase::Initialized | NodePhase::Starting => ("INITIALIZED", Vec::new()),
        NodePhase::Failed(why) => ("ERROR", vec![why]),
    };
    if is_request(Method::GET, "/check-status") {
        return Json(json!({"status": status, "errors": errors})).into_response();
    }
    if is_request(Method::DELETE, "/experiment") {
        return node.stop_server(request).await;
    }
    let why = errors
        .into_iter()
        .next()
        .unwrap_or_else(|| "the experiment has not started yet".to_owned());
    refusal(StatusCode::SERVICE_UNAVAILABLE, &why)
}

async fn forward_to_manager(manager: Router, request: Request) -> Response {
    match manager.oneshot(request).await {
        Ok(response) => response,
        Err(never) => match never {},
    }
}

/// Returns a refusal in NNI's form. NNI's client prints the body.
fn refusal(status: StatusCode, why: &str) -> Response {
    (status, Json(json!({"error": why}))).into_response()
}

fn error_refusal(error: &Error) -> Response {
    let (status, _, detail) = error.parts();
    refusal(status, &detail)
}

/// PURE: returns a request's target below the prefix. `None` if the target is not below it.
fn strip_prefix(uri: &Uri, prefix: &str) -> Option<Uri> {
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
    fn only_a_whole_prefix_is_removed() {
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
            let left = strip_prefix(&target.parse().unwrap(), "/pre");
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
    async fn each_phase_has_its_status_and_unknown_clients_are_refused() {
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
        assert_eq!(code, StatusCode::UNAUTHORIZED, "the client's process is unknown");
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
