//! Tickets: a ticket lets a browser in once, soon after a user who knows the token has asked for it. A ticket may stand
//! in an address, where a token must not: it is of no use to a later reader.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::auth::User;
use super::log_in::LogIn;
use crate::util::ids;

/// The time that a ticket is good.
const GOOD_FOR: Duration = Duration::from_mins(5);
/// Tickets that are good at a time; more push the oldest out.
const MOST: usize = 16;

/// The tickets that have not been used; cheap to clone.
#[derive(Debug, Clone, Default)]
pub(super) struct Tickets(Arc<Mutex<Vec<(String, Instant)>>>);

impl Tickets {
    async fn issue(&self) -> String {
        let ticket = ids::secret_path();
        let mut tickets = self.0.lock().await;
        if tickets.len() >= MOST {
            tickets.remove(0);
        }
        tickets.push((ticket.clone(), Instant::now()));
        ticket
    }

    /// Uses a ticket up; whether it was good. (What is compared is random and soon gone: how long that takes reveals
    /// nothing.)
    pub(super) async fn take(&self, shown: &str) -> bool {
        let mut tickets = self.0.lock().await;
        tickets.retain(|(_, issued)| issued.elapsed() < GOOD_FOR);
        let found = tickets.iter().position(|(ticket, _)| ticket == shown);
        found.map(|at| tickets.remove(at)).is_some()
    }
}

/// An address that lets one browser in, once and soon
#[utoipa::path(
    post, path = "/api/v1/session/ticket", tag = "session",
    responses((status = 200, body = Object, description = "`path`, and for how many `seconds` it is good")),
    security(("token" = [])),
)]
pub(super) async fn issue(_: User, State(log_in): State<LogIn>) -> Json<Value> {
    let ticket = log_in.tickets.issue().await;
    Json(json!({"path": format!("/login?ticket={ticket}"), "seconds": GOOD_FOR.as_secs()}))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_ticket_is_good_once_and_not_for_long() {
        let tickets = Tickets::default();
        let (one, late) = (tickets.issue().await, tickets.issue().await);
        assert!(!tickets.take("").await && !tickets.take(&one[1..]).await);
        assert!(tickets.take(&one).await);
        assert!(!tickets.take(&one).await, "once");
        tokio::time::advance(GOOD_FOR).await;
        assert!(!tickets.take(&late).await, "not for long");
        let first = tickets.issue().await;
        for _ in 0..MOST {
            tickets.issue().await;
        }
        assert!(!tickets.take(&first).await, "a bounded number");
    }
}
