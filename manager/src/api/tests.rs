//! Tests of the routes, called without a socket.

mod authorization;
mod follow;
mod nni;
mod pods;
mod portal;
mod prefix;
mod silent_agent_output;
mod user;
mod waiting;

use std::sync::Arc;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{Request, Response, StatusCode, header};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt as _;
use trial_protocol::{AttemptId, ExperimentId, TrialJobId};

use super::access::auth::{Authenticator, Reach};
use super::access::session::Sessions;
use super::server::body::BODY_LIMIT_BYTES;
use super::{ApiState, Pods, ServerInfo, router};
use crate::code_archive::CodeArchive;
use crate::experiment::{ExperimentHandle, TaskEvent};
use crate::ingest::Intake;
use crate::job_state::JobState;
use crate::store::{NewTrial, Store, TrialChange, TrialTimes};
use crate::token::{Secret, UserToken};
use crate::util::clock::{Clock as _, SystemClock};
use crate::view::TrialCache;

struct Bed {
    state: ApiState,
    router: Router,
    folder: TempDir,
    handle: ExperimentHandle,
    events: mpsc::Receiver<TaskEvent>,
}

impl Bed {
    async fn new() -> Self {
        Self::of(None).await
    }

    /// Creates the bed of an experiment whose configuration names the metric that counts.
    async fn of(objective: Option<&str>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&folder.path().join("db")).unwrap();
        for (sequence, id) in [(0, "t"), (1, "u")] {
            let new = NewTrial {
                id: TrialJobId::new(id).unwrap(),
                sequence,
                parameter_id: None,
                parameters: json!({}),
                attempt: AttemptId::new("a").unwrap(),
                created_at_ms: 0,
            };
            store.trials().insert(vec![new]).await.unwrap();
        }
        let (handle, events) = ExperimentHandle::new(64);
        let experiment = ExperimentId::new("e").unwrap();
        let intake = Intake::new(store.clone(), handle.clone(), experiment, Arc::new(SystemClock));
        let secret = Arc::new(Secret::load_or_create(&folder.path().join("secret")).unwrap());
        let user = UserToken::load_or_create(&folder.path().join("user.token")).unwrap();
        let e = ExperimentId::new("e").unwrap();
        let sessions =
            Sessions::load(store.sessions().clone(), Arc::new(SystemClock)).await.unwrap();
        let authenticator =
            Authenticator::new(&e, user, secret.as_ref().clone(), sessions, Reach::Machine);
        let code = CodeArchive::new(folder.path().join("code"), folder.path().join("code.tar.gz"));
        let pods = Pods::new(code, 1);
        let trial_cache = TrialCache::new(store.queries().clone(), objective.map(str::to_owned));
        let clock = Arc::new(SystemClock);
        let closing = CancellationToken::new();
        let (state_handle, service) = (handle.clone(), Arc::default());
        let server_info =
            ServerInfo { port: Some(8080), folder: folder.path().join("e"), has_trial_files: true };
        let state = ApiState {
            intake,
            store,
            secret,
            authenticator,
            closed: closing.clone(),
            closing,
            streams: TaskTracker::new(),
            pods,
            trial_cache,
            handle: state_handle,
            service,
            clock,
            server_info,
        };
        Self { router: router(state.clone()), state, folder, handle, events }
    }

    fn token(&self, experiment: &str, trial: &str) -> String {
        let experiment = ExperimentId::new(experiment).unwrap();
        let token = self.state.secret.trial_token(
            &experiment,
            &TrialJobId::new(trial).unwrap(),
            SystemClock.now_ms(),
        );
        format!("Bearer {token}")
    }

    /// Ends the trial, with the end recorded at this time.
    async fn end(&self, trial: &str, at_ms: i64) {
        let change = TrialChange {
            state: JobState::Succeeded,
            at_ms,
            message: None,
            exit_code: None,
            attempt: None,
            reported: TrialTimes::default(),
        };
        let trial = TrialJobId::new(trial).unwrap();
        self.state.store.trials().change(vec![(trial.clone(), change)]).await.unwrap();
    }

    async fn send(&self, request: Request<Body>) -> Response<Body> {
        self.router.clone().oneshot(request).await.unwrap()
    }

    async fn post(
        &self,
        authorization: Option<&str>,
        body: impl Into<Body>,
    ) -> (StatusCode, Value) {
        let mut request = Request::post("/api/v1/agent/reports");
        if let Some(authorization) = authorization {
            request = request.header(header::AUTHORIZATION, authorization);
        }
        read(self.send(request.body(body.into()).unwrap()).await).await
    }
}

async fn read(response: Response<Body>) -> (StatusCode, Value) {
    let status = response.status();
    let bytes = to_bytes(response.into_body(), usize::MAX).await.unwrap();
    (status, serde_json::from_slice(&bytes).unwrap_or(Value::Null))
}

fn batch(experiment: &str, trial: &str) -> Value {
    json!({
        "offer": {"oldest": 1, "newest": 1},
        "experiment": experiment,
        "trial": trial,
        "attempt": "a",
        "lane": "facts",
        "reports": [{
            "seq": 4,
            "observed_at_ms": 1_700_000_000_000_i64,
            "body": {"kind": "metric", "name": "default", "type": "final", "sequence": 0,
                     "value": {"default": "NaN", "who": "it's"}, "unit": "of a later version"},
        }],
    })
}

fn problem(status: u16, title: &str, code: &str, detail: &str) -> Value {
    json!({"type": "about:blank", "title": title, "status": status, "code": code, "detail": detail})
}

#[tokio::test]
async fn a_batch_is_stored_and_acknowledged() {
    let bed = Bed::new().await;
    let (status, ack) = bed.post(Some(&bed.token("e", "t")), batch("e", "t").to_string()).await;
    let expected = json!({
        "offer": {"oldest": 1, "newest": 1, "capabilities": ["bulk", "gzip", "open"]},
        "through": 4,
    });
    assert_eq!((status, ack), (StatusCode::OK, expected));
    let t = TrialJobId::new("t").unwrap();
    let metrics = bed.state.store.reports().metrics(&t).await.unwrap();
    assert_eq!(metrics[0].metric.value.as_json(), &json!({"default": "NaN", "who": "it's"}));
    let stored = bed.state.store.reports().all(&t, trial_protocol::Lane::Facts).await.unwrap();
    assert_eq!(stored[0].body["unit"], "of a later version", "fields of a later version are kept");
}

#[tokio::test]
async fn a_heartbeat_before_the_first_report_acknowledges_nothing() {
    let bed = Bed::new().await;
    let mut beat = batch("e", "t");
    beat.as_object_mut().unwrap().remove("reports");
    let (status, ack) = bed.post(Some(&bed.token("e", "t")), beat.to_string()).await;
    let expected =
        json!({"offer": {"oldest": 1, "newest": 1, "capabilities": ["bulk", "gzip", "open"]}});
    assert_eq!((status, ack), (StatusCode::OK, expected));
}

#[tokio::test]
async fn invalid_requests_are_refused() {
    let bed = Bed::new().await;
    let own = bed.token("e", "t");
    let mut forged = own.clone();
    let last = if forged.pop() == Some('A') { 'E' } else { 'A' };
    forged.push(last);
    let good = batch("e", "t");
    let with = |pointer: &str, value: Value| {
        let mut batch = good.clone();
        *batch.pointer_mut(pointer).unwrap() = value;
        batch.to_string()
    };
    let unauthorized = |detail| problem(401, "Unauthorized", "unauthorized", detail);
    let wanted = unauthorized("send the trial's token as a bearer token");
    let invalid = unauthorized("the token is not one of this manager's");
    let forbidden = |detail| problem(403, "Forbidden", "forbidden", detail);
    let mut conflict = problem(
        409,
        "Conflict",
        "no-common-version",
        "no common protocol version: this side supports protocol versions 1 to 1, the other 2 to 9; \
         use an agent and a manager with closer versions",
    );
    conflict["offer"] = json!({"oldest": 1, "newest": 1, "capabilities": ["bulk", "gzip", "open"]});
    let ancient = conflict.to_string().replace("2 to 9", "0 to 0");
    let bad = |detail: &str| {
        problem(400, "Bad Request", "bad-request", &format!("not a batch of reports: {detail}"))
    };
    let unknown_trial = bed.token("e", "x");
    let elsewhere = bed.token("x", "t");
    let unknown = |code, detail| problem(404, "Not Found", code, detail);
    #[rustfmt::skip]
    let table = [
        ("no token",            None,                   good.to_string(), wanted.clone()),
        ("another scheme",      Some("Basic dDp0"),     good.to_string(), wanted.clone()),
        ("half a header",       Some("Bearer"),         good.to_string(), wanted),
        ("an invented token",   Some("Bearer let-me-in"), good.to_string(), invalid.clone()),
        ("a forged token",      Some(forged.as_str()),  good.to_string(), invalid),
        ("another trial's",     Some(own.as_str()),     batch("e", "u").to_string(), forbidden("the token is for trial t of experiment e")),
        ("another experiment's", Some(elsewhere.as_str()), good.to_string(), forbidden("the token is for trial t of experiment x")),
        ("an unknown trial",    Some(unknown_trial.as_str()),  batch("e", "x").to_string(), unknown("unknown-trial", "there is no trial x")),
        ("an unknown experiment", Some(elsewhere.as_str()), batch("x", "t").to_string(), unknown("unknown-experiment", "there is no experiment x here")),
        ("no JSON",             Some(own.as_str()),     "{".to_owned(),   bad("EOF while parsing an object at line 1 column 1")),
        ("an evil id",          Some(own.as_str()),     with("/attempt", json!("../a")), bad("\"../a\" is not a valid attempt id: 1 to 128 of A-Z a-z 0-9 _ - at line 1 column 78")),
        ("a newer agent",       Some(own.as_str()),     with("/offer", json!({"oldest": 2, "newest": 9})), conflict),
        ("an ancient agent",    Some(own.as_str()),     with("/offer", json!({"oldest": 0, "newest": 0})), serde_json::from_str(&ancient).unwrap()),
        ("an impossible seq",   Some(own.as_str()),     with("/reports/0/seq", json!(u64::MAX)), problem(400, "Bad Request", "bad-request", "seq is 18446744073709551615, more than 2^63 - 1")),
        ("too large",           Some(own.as_str()),     " ".repeat(BODY_LIMIT_BYTES + 1), problem(413, "Payload Too Large", "too-large", "a request's body may have at most 8388608 bytes; send fewer reports at once")),
    ];
    for (case, authorization, body, expected) in table {
        let (status, answer) = bed.post(authorization, body).await;
        assert_eq!(answer, expected, "{case}");
        assert_eq!(expected["status"], status.as_u16(), "{case}");
    }
    for trial in ["t", "u"] {
        let trial = TrialJobId::new(trial).unwrap();
        let metrics = bed.state.store.reports().metrics(&trial).await.unwrap();
        assert_eq!(metrics, [], "nothing is stored");
    }
}

#[tokio::test]
async fn refusals_have_the_headers_that_clients_use() {
    let bed = Bed::new().await;
    let refused = Request::post("/api/v1/agent/reports").body(Body::empty()).unwrap();
    let response = bed.send(refused).await;
    assert_eq!(response.headers()[header::WWW_AUTHENTICATE], "Bearer");
    assert_eq!(response.headers()[header::CONTENT_TYPE], "application/problem+json");

    bed.state.store.clone().close().await;
    let request = Request::post("/api/v1/agent/reports")
        .header(header::AUTHORIZATION, bed.token("e", "t"))
        .body(Body::from(batch("e", "t").to_string()))
        .unwrap();
    let response = bed.send(request).await;
    assert_eq!(response.headers()[header::RETRY_AFTER], "5");
    let expected = problem(
        503,
        "Service Unavailable",
        "stopping",
        "the manager is shutting down; keep the reports",
    );
    assert_eq!(read(response).await, (StatusCode::SERVICE_UNAVAILABLE, expected));
}

#[tokio::test]
async fn a_browser_with_the_token_gets_a_cookie() {
    let bed = Bed::new().await;
    let token = std::fs::read_to_string(bed.folder.path().join("user.token")).unwrap();
    let session = async |method: &str, name, value: &str| {
        let request = Request::builder().method(method).uri("/api/v1/session");
        let response = bed.send(request.header(name, value).body(Body::empty()).unwrap()).await;
        let cookie = response.headers().get(header::SET_COOKIE);
        let cookie = cookie.map(|cookie| cookie.to_str().unwrap().to_owned());
        (response.status(), cookie.unwrap_or_default())
    };
    let bearer = format!("Bearer {}", token.trim());
    let (status, cookie) = session("POST", header::AUTHORIZATION, &bearer).await;
    assert_eq!(status, StatusCode::NO_CONTENT);
    let (pair, attributes) = cookie.split_once("; ").unwrap();
    assert_eq!(attributes, "Path=/; Max-Age=2592000; HttpOnly; SameSite=Strict");
    assert!(!pair.contains(token.trim()), "the cookie does not contain the token");
    let (status, cookie) = session("DELETE", header::COOKIE, pair).await;
    assert_eq!(status, StatusCode::NO_CONTENT);
    assert!(cookie.starts_with("trialkeeper-e=; Path=/; Max-Age=0;"), "{cookie}");
    let (status, cookie) = session("POST", header::COOKIE, "trialkeeper-e=x").await;
    assert_eq!((status, cookie), (StatusCode::UNAUTHORIZED, String::new()));
}

#[tokio::test]
async fn unknown_addresses_and_methods_are_refused() {
    let bed = Bed::new().await;
    let request = Request::get("/api/v1/agent/reports").body(Body::empty()).unwrap();
    let response = bed.send(request).await;
    assert_eq!(response.headers()[header::ALLOW], "POST");
    let expected = problem(
        405,
        "Method Not Allowed",
        "method-not-allowed",
        "this address does not support that method",
    );
    assert_eq!(read(response).await, (StatusCode::METHOD_NOT_ALLOWED, expected));
    let request = Request::get("/nowhere").body(Body::empty()).unwrap();
    let expected = problem(404, "Not Found", "not-found", "there is nothing at this address");
    assert_eq!(read(bed.send(request).await).await, (StatusCode::NOT_FOUND, expected));
}

#[tokio::test]
async fn health_needs_no_token() {
    let bed = Bed::new().await;
    let health = async || {
        let request = Request::get("/healthz").body(Body::empty()).unwrap();
        read(bed.send(request).await).await
    };
    let well = json!({"status": "ok", "version": env!("CARGO_PKG_VERSION")});
    assert_eq!(health().await, (StatusCode::OK, well.clone()));

    // Renaming a table that the probe needs simulates a failing disk.
    let connection = rusqlite::Connection::open(bed.folder.path().join("db")).unwrap();
    connection.execute_batch("ALTER TABLE probe RENAME TO gone").unwrap();
    bed.state.store.database().probe().await.unwrap_err();
    let ill = json!({
        "status": "degraded",
        "version": env!("CARGO_PKG_VERSION"),
        "reason": "the database failed: a fault of this program",
    });
    assert_eq!(health().await, (StatusCode::SERVICE_UNAVAILABLE, ill));
    connection.execute_batch("ALTER TABLE gone RENAME TO probe").unwrap();
    // A request for the health writes nothing. The manager probes the disk from time to time.
    assert_eq!(health().await.0, StatusCode::SERVICE_UNAVAILABLE);
    bed.state.store.database().probe().await.unwrap();
    assert_eq!(health().await, (StatusCode::OK, well));
}
