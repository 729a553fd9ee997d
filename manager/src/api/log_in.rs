//! The log-in of users: the state that it needs, of an experiment's manager or of a home, and the pause after wrong
//! tokens.

use axum::extract::{FromRef, Request, State};
use axum::http::header;
use axum::middleware::Next;
use axum::response::Response;

use super::Shared;
use super::auth::Authenticator;
use super::throttle::{Peer, Throttle};
use super::ticket::Tickets;

/// The state of the handlers for the log-in.
#[derive(Clone)]
pub(super) struct LogIn {
    pub(super) gate: Authenticator,
    pub(super) tickets: Tickets,
    pub(super) throttle: Throttle,
}

impl FromRef<Shared> for LogIn {
    fn from_ref(shared: &Shared) -> Self {
        let (tickets, throttle) = (shared.tickets.clone(), shared.throttle.clone());
        Self { gate: shared.state.gate.clone(), tickets, throttle }
    }
}

/// Delays a request with a user's token after wrong tokens were sent. The agents' routes take trials' tokens, which
/// cannot be guessed.
pub(super) async fn throttle(
    State(log_in): State<LogIn>,
    request: Request,
    next: Next,
) -> Response {
    let is_agents = request.uri().path().starts_with("/api/v1/agent/");
    if request.headers().contains_key(header::AUTHORIZATION) && !is_agents {
        let peer = request.extensions().get::<Peer>().copied();
        log_in.throttle.wait(peer).await;
        if let Some(wrong) = log_in.gate.wrong_token(request.headers()) {
            log_in.throttle.count(peer, &wrong);
        }
    }
    next.run(request).await
}
