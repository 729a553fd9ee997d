//! The log-in of users: its routes, the state that it needs, of an experiment's manager or of a home, and the pause
//! after wrong tokens.

use axum::Json;
use axum::extract::{FromRef, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use serde_json::{Value, json};

use super::super::{Error, Shared};
use super::auth::{Authenticator, User};
use super::throttle::{Peer, Throttle};
use super::ticket::{TICKET_LIFETIME, Tickets};

/// The state of the handlers for the log-in.
#[derive(Clone)]
pub(in crate::api) struct LogIn {
    pub(in crate::api) authenticator: Authenticator,
    pub(in crate::api) tickets: Tickets,
    pub(in crate::api) throttle: Throttle,
}

impl FromRef<Shared> for LogIn {
    fn from_ref(shared: &Shared) -> Self {
        let (tickets, throttle) = (shared.tickets.clone(), shared.throttle.clone());
        Self { authenticator: shared.state.authenticator.clone(), tickets, throttle }
    }
}

/// Returns an address that logs in one browser, once and only for a short time
#[utoipa::path(
    post, path = "/api/v1/session/ticket", operation_id = "issue", tag = "session",
    responses((status = 200, body = Object, description = "`path`, and its lifetime in `seconds`")),
    security(("token" = [])),
)]
pub(in crate::api) async fn issue_ticket(_: User, State(log_in): State<LogIn>) -> Json<Value> {
    let ticket = log_in.tickets.issue().await;
    Json(json!({"path": format!("/login?ticket={ticket}"), "seconds": TICKET_LIFETIME.as_secs()}))
}

/// Begins a session for a browser that sends the user's token, and returns its cookie
#[utoipa::path(
    post, path = "/api/v1/session", tag = "session",
    responses((status = 204, description = "`Set-Cookie` contains the cookie")),
    security(("token" = [])),
)]
pub(in crate::api) async fn begin_session(
    _: User,
    State(log_in): State<LogIn>,
) -> Result<Response, Error> {
    let cookie = log_in.authenticator.begin_session().await?;
    Ok((StatusCode::NO_CONTENT, [(header::SET_COOKIE, cookie)]).into_response())
}

/// Ends the session of the request's cookie, and makes the browser delete the cookie
#[utoipa::path(
    delete, path = "/api/v1/session", tag = "session",
    responses((status = 204, description = "ended")), security(("token" = [])),
)]
pub(in crate::api) async fn end_session(
    _: User,
    State(log_in): State<LogIn>,
    headers: HeaderMap,
) -> Result<Response, Error> {
    let cookie = log_in.authenticator.end_session(&headers).await?;
    Ok((StatusCode::NO_CONTENT, [(header::SET_COOKIE, cookie)]).into_response())
}

/// Delays a request with a user's token after wrong tokens were sent. The agents' routes take trials' tokens, which
/// cannot be guessed.
pub(in crate::api) async fn throttle(
    State(log_in): State<LogIn>,
    request: Request,
    next: Next,
) -> Response {
    let is_agents = request.uri().path().starts_with("/api/v1/agent/");
    if request.headers().contains_key(header::AUTHORIZATION) && !is_agents {
        let peer = request.extensions().get::<Peer>().copied();
        log_in.throttle.wait(peer).await;
        if let Some(wrong) = log_in.authenticator.wrong_token(request.headers()) {
            log_in.throttle.count_failure(peer, &wrong);
        }
    }
    next.run(request).await
}
