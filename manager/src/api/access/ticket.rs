//! Tickets: a ticket logs in one browser, soon after a user with the token has requested it. A ticket may be part of
//! an address, unlike a token: a later reader cannot use it again.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::util::ids;

/// The lifetime of a ticket.
pub(in crate::api) const TICKET_LIFETIME: Duration = Duration::from_mins(5);
/// The maximum number of valid tickets; a further one displaces the oldest.
const MAX_TICKETS: usize = 16;

/// The unused tickets; cheap to clone.
#[derive(Debug, Clone, Default)]
pub(in crate::api) struct Tickets(Arc<Mutex<Vec<(String, Instant)>>>);

impl Tickets {
    /// Returns a new ticket.
    pub(in crate::api) async fn issue(&self) -> String {
        let ticket = ids::new_secret_path();
        let mut tickets = self.0.lock().await;
        if tickets.len() >= MAX_TICKETS {
            tickets.remove(0);
        }
        tickets.push((ticket.clone(), Instant::now()));
        ticket
    }

    /// Uses up a ticket, and returns whether it was valid. The duration of the comparison reveals nothing: tickets
    /// are random and short-lived.
    pub(in crate::api) async fn redeem(&self, shown: &str) -> bool {
        let mut tickets = self.0.lock().await;
        tickets.retain(|(_, issued)| issued.elapsed() < TICKET_LIFETIME);
        let found = tickets.iter().position(|(ticket, _)| ticket == shown);
        found.map(|at| tickets.remove(at)).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_ticket_is_valid_once_and_for_a_short_time() {
        let tickets = Tickets::default();
        let (one, late) = (tickets.issue().await, tickets.issue().await);
        assert!(!tickets.redeem("").await && !tickets.redeem(&one[1..]).await);
        assert!(tickets.redeem(&one).await);
        assert!(!tickets.redeem(&one).await, "once");
        tokio::time::advance(TICKET_LIFETIME).await;
        assert!(!tickets.redeem(&late).await, "a ticket expires");
        let first = tickets.issue().await;
        for _ in 0..MAX_TICKETS {
            tickets.issue().await;
        }
        assert!(!tickets.redeem(&first).await, "the number is bounded");
    }
}
