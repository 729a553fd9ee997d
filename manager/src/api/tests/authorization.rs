//! Tests that every route refuses unauthorised clients. The routes are read from the routers' own tables, so that no
//! route and no table is missed.

use super::*;

/// The routes without a token: they reveal nothing about a search.
const PUBLIC_ROUTES: [&str; 5] =
    ["/healthz", "/api/v1/nni/version", "/login", "/logout", "/assets/t"];

/// The files with the routers' tables, and the prefixes of their paths. The old server's table belongs to another
/// listener.
const ROUTE_TABLES: [(&str, &str, &str); 5] = [
    ("api.rs", "", include_str!("../../api.rs")),
    ("api/nni.rs", "/api/v1/nni", include_str!("../nni.rs")),
    ("api/nni/logs.rs", "", include_str!("../nni/logs.rs")),
    ("api/portal.rs", "", include_str!("../portal.rs")),
    ("api/program.rs", "", include_str!("../program.rs")),
];

const METHODS: [&str; 5] = ["GET", "POST", "PUT", "PATCH", "DELETE"];

/// Returns the paths of the routers' tables and of the described routes, with a value for each variable part.
fn paths() -> Vec<String> {
    let described = crate::api::user::routes().into_openapi().paths.paths;
    let quoted = ROUTE_TABLES.iter().flat_map(|(_, before, text)| {
        let table = text.split(".route(").skip(1);
        table.map(move |route| format!("{before}{}", route.split('"').nth(1).unwrap()))
    });
    let filled = |path: &str| {
        let part =
            |part: &str| if part.starts_with('{') { "t".to_owned() } else { part.to_owned() };
        path.split('/').map(part).collect::<Vec<_>>().join("/")
    };
    let all = quoted.chain(described.into_keys());
    let paths: Vec<_> = all.map(|path| filled(&path)).collect();
    assert!(paths.len() >= 60, "the tables contain all paths: {paths:?}");
    paths
}

#[test]
fn every_table_of_routes_is_tested() {
    fn search(folder: &std::path::Path, found: &mut Vec<String>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                search(&path, found);
            } else if let Some(text) = path.extension().and_then(|_| std::fs::read_to_string(&path).ok())
                // Servers in tests have no clients.
                && text.split("mod tests {").next().is_some_and(|text| text.contains(".route(") || text.contains("routes!("))
            {
                found.push(path.display().to_string());
            }
        }
    }
    let source = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = Vec::new();
    search(&source, &mut found);
    found.retain(|path| !path.contains("/tests"));
    found.sort();
    let mut known: Vec<_> = ROUTE_TABLES.iter().map(|(file, ..)| *file).collect();
    known.extend(["api/legacy.rs", "api/user.rs"]);
    // The home has its own authenticator and token, which `tests/e2e/portal/home.rs` tests.
    known.push("api/home.rs");
    known.sort_unstable();
    let known: Vec<_> = known.iter().map(|file| source.join(file).display().to_string()).collect();
    assert_eq!(found, known);
}

#[tokio::test]
#[expect(clippy::too_many_lines, reason = "a table")]
async fn every_route_refuses_unauthorised_clients() {
    let bed = Bed::new().await;
    let user = UserToken::load_or_create(&bed.folder.path().join("user.token")).unwrap();
    let user = format!("Bearer {}", user.reveal().unwrap());
    let ids = |experiment, trial| {
        (ExperimentId::new(experiment).unwrap(), TrialJobId::new(trial).unwrap())
    };
    let (e, t) = ids("e", "t");
    // A running trial's expired token would be accepted.
    bed.end("u", 0).await;
    let expired = bed.state.secret.trial_token(&e, &TrialJobId::new("u").unwrap(), 0);
    let expired = format!("Bearer {expired}");
    let foreign = Secret::load_or_create(&bed.folder.path().join("another secret")).unwrap();
    let foreign = format!("Bearer {}", foreign.trial_token(&e, &t, SystemClock.now_ms()));
    let own = bed.token("e", "t");
    let elsewhere = bed.token("f", "t");
    // The clients that a trial's and a user's routes refuse, with the status: 401, or 403 if the client is known.
    #[rustfmt::skip]
    let clients = [
        ("no token",                 None,                     401, 401),
        ("another scheme",           Some("Basic dDp0"),       401, 401),
        ("an invented token",        Some("Bearer let-me-in"), 401, 401),
        ("another manager's trial",  Some(foreign.as_str()),   401, 401),
        ("an expired token",         Some(expired.as_str()),   401, 403),
        ("another experiment's trial", Some(elsewhere.as_str()), 403, 403),
        ("a user at a trial's door", Some(user.as_str()),      401, 0),
        ("a trial at a user's door", Some(own.as_str()),       0,   403),
    ];
    let user = UserToken::load_or_create(&bed.folder.path().join("user.token")).unwrap();
    let sessions = Sessions::in_memory(Arc::new(SystemClock));
    let authenticator =
        Authenticator::new(&e, user, bed.state.secret.as_ref().clone(), sessions, Reach::Network);
    let program = std::env::current_exe().unwrap();
    let state = ApiState { authenticator, ..bed.state.clone() };
    let router = router(state.clone()).merge(super::super::program::router(program, state));
    for path in paths() {
        if PUBLIC_ROUTES.contains(&path.as_str()) {
            continue;
        }
        let of_trials = path.starts_with("/api/v1/agent/");
        for (case, authorization, at_trials, at_users) in clients {
            let expected = if of_trials { at_trials } else { at_users };
            if expected == 0 {
                continue;
            }
            let mut asked = 0;
            for method in METHODS {
                let mut request = Request::builder().method(method).uri(&path);
                request = request.header(header::HOST, "localhost");
                if let Some(authorization) = authorization {
                    request = request.header(header::AUTHORIZATION, authorization);
                }
                // A body that would be valid for another trial, if it were read.
                let body = Body::from(batch("e", "u").to_string());
                let answer = router.clone().oneshot(request.body(body).unwrap()).await.unwrap();
                if answer.status() == StatusCode::METHOD_NOT_ALLOWED {
                    continue;
                }
                asked += 1;
                let status = answer.status().as_u16();
                let sniffing = answer.headers().get(header::X_CONTENT_TYPE_OPTIONS);
                assert_eq!(sniffing.unwrap(), "nosniff", "{case}: {method} {path}");
                // A page redirects to the form where its viewer may log in.
                let way = answer.headers().get(header::LOCATION);
                let way = way.and_then(|way| way.to_str().ok());
                let led = status == 303 && way.is_some_and(|way| way.starts_with("/login"));
                let shown = if led { 401 } else { status };
                assert_eq!(shown, expected, "{case}: {method} {path}");
            }
            assert!(asked > 0, "{path} supports none of the methods");
        }
    }
    // A refusal that depends on the body of the request: a report with another trial's token.
    let (status, _) = bed.post(Some(&own), batch("e", "u").to_string()).await;
    assert_eq!(status, StatusCode::FORBIDDEN);
}

#[tokio::test]
async fn a_token_that_expires_soon_is_renewed_on_the_ack() {
    let bed = Bed::new().await;
    let (e, t) = (ExperimentId::new("e").unwrap(), TrialJobId::new("t").unwrap());
    let month = 31 * 24 * 60 * 60 * 1000;
    let now_ms = SystemClock.now_ms();
    let token = bed.state.secret.trial_token(&e, &t, now_ms - month);
    let (_, ack) = bed.post(Some(&format!("Bearer {token}")), batch("e", "t").to_string()).await;
    let renewed = ack["token"].as_str().unwrap();
    let claims = bed.state.secret.identify(renewed, now_ms + 2 * month).unwrap();
    assert_eq!((claims.experiment, claims.trial), (e, t));
    let (_, ack) = bed.post(Some(&format!("Bearer {renewed}")), batch("e", "t").to_string()).await;
    assert_eq!(ack.get("token"), None, "a token is renewed once");
}

#[tokio::test]
async fn an_expired_token_is_valid_while_its_trial_runs_and_shortly_after() {
    let day = 24 * 60 * 60 * 1000;
    let now_ms = SystemClock.now_ms();
    // The trial, the time of its end, the token's experiment and the token's age in days, then the status and whether
    // the token is renewed.
    #[rustfmt::skip]
    let table = [
        ("a year-old token of a running trial", "t", None,                 "e", 365, 200, true),
        ("a trial that has just ended",     "t", Some(now_ms),         "e", 365, 200, true),
        ("a trial that ended two days ago", "t", Some(now_ms - 2 * day), "e", 365, 401, false),
        ("a valid token of such a trial",   "t", Some(now_ms - 2 * day), "e", 89,  200, false),
        ("an unknown trial",                "x", None,                 "e", 365, 401, false),
        ("another experiment's trial",      "t", None,                 "f", 365, 401, false),
    ];
    for (case, trial, ended_at_ms, experiment, days, expected, is_renewed) in table {
        let bed = Bed::new().await;
        if let Some(at_ms) = ended_at_ms {
            bed.end(trial, at_ms).await;
        }
        let made = now_ms - days * day;
        let (e, t) = (ExperimentId::new(experiment).unwrap(), TrialJobId::new(trial).unwrap());
        let token = format!("Bearer {}", bed.state.secret.trial_token(&e, &t, made));
        let (status, ack) = bed.post(Some(&token), batch("e", trial).to_string()).await;
        assert_eq!((status.as_u16(), ack.get("token").is_some()), (expected, is_renewed), "{case}");
        let stored =
            bed.state.store.reports().metrics(&TrialJobId::new("t").unwrap()).await.unwrap();
        assert_eq!(stored.len(), usize::from(expected == 200), "{case}");
    }
    // A late report does not postpone the end.
    let bed = Bed::new().await;
    bed.end("t", now_ms - 2 * day).await;
    let (status, _) = bed.post(Some(&bed.token("e", "t")), batch("e", "t").to_string()).await;
    assert_eq!(status, StatusCode::OK);
    let (e, t) = (ExperimentId::new("e").unwrap(), TrialJobId::new("t").unwrap());
    let old = format!("Bearer {}", bed.state.secret.trial_token(&e, &t, now_ms - 365 * day));
    let (status, _) = bed.post(Some(&old), batch("e", "t").to_string()).await;
    assert_eq!(status, StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn a_trial_with_too_many_requests_is_asked_to_retry() {
    let bed = Bed::new().await;
    let mut waiting = Vec::new();
    loop {
        let (keep, request) = super::waiting::open_report_request(&bed, "t");
        let mut request = Box::pin(bed.send(request));
        if let Ok(answer) = tokio::time::timeout(std::time::Duration::ZERO, &mut request).await {
            assert_eq!(answer.headers()[header::RETRY_AFTER], "1");
            let (status, answer) = read(answer).await;
            assert_eq!(status, StatusCode::TOO_MANY_REQUESTS);
            assert_eq!(answer["code"], "too-many-requests");
            break;
        }
        waiting.push((keep, request));
    }
    assert_eq!(waiting.len(), 256);
    let (status, _) = bed.post(Some(&bed.token("e", "u")), batch("e", "u").to_string()).await;
    assert_eq!(status, StatusCode::OK, "other trials are served");
    waiting.pop();
    let (status, _) = bed.post(Some(&bed.token("e", "t")), batch("e", "t").to_string()).await;
    assert_eq!(status, StatusCode::OK, "the trial is served again when a request has ended");
}
