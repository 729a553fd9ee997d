//! How long delivery waits: between two tries, and at the end.

use std::time::Duration;

use ::backoff::{ExponentialBackoff, ExponentialBackoffBuilder};
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::warn;
use trial_protocol::capability;

use super::{BACKOFF, BACKOFF_AT_END, BULK_LINGER, Deliverer, LAST_PATIENCE, ManagerSession};

impl ManagerSession {
    /// Why something was not delivered.
    pub(super) fn why_not(&mut self) -> Option<String> {
        let lacks = |lacking| format!("the manager does not offer the capability `{lacking}`");
        self.last_error.take().or(self.lacking.map(lacks))
    }
}

impl Deliverer {
    /// Waits a little for more, unless the trial has ended.
    pub(super) async fn linger(&self, ended: &mut watch::Receiver<bool>) {
        tokio::select! {
            () = tokio::time::sleep(BULK_LINGER) => {}
            // Seen again by the loop, which asks for the present value.
            _ = ended.changed() => ended.mark_changed(),
        }
    }

    /// Waits for a manager that takes logs and samples. `false` when there is no more time to find one, or when
    /// the trial has ended and the manager that is there does not. And for the facts of earlier attempts: the
    /// manager knows attempts in the order in which it first hears of them.
    pub(super) async fn takes_bulk(&self) -> bool {
        let (mut peer, mut older_told) = (self.peer.subscribe(), self.older_told.subscribe());
        let mut ended = self.ended.clone();
        let known = async {
            if older_told.wait_for(|told| *told).await.is_err() {
                return false;
            }
            loop {
                let takes = peer
                    .borrow_and_update()
                    .as_ref()
                    .map(|offer| offer.capabilities.contains(capability::BULK));
                match takes {
                    Some(true) => return true,
                    Some(false) => self.lacks(capability::BULK),
                    None => {}
                }
                tokio::select! {
                    changed = peer.changed() => if changed.is_err() { return false },
                    // A sender that is gone counts as the trial's end.
                    _ = ended.wait_for(|ended| *ended), if takes.is_some() => return false,
                }
            }
        };
        tokio::select! {
            takes = known => takes,
            () = self.deadline_after_end() => false,
        }
    }

    /// Says what the manager cannot do, once.
    fn lacks(&self, capability: &'static str) {
        let before = self.lock().lacking.replace(capability);
        if before.is_none() {
            warn!(
                "the manager takes no output and no samples: it does not offer the capability `{capability}`; \
                 they wait in the spool for one that does"
            );
        }
    }

    /// Waits before another try; `false` when the time is up.
    pub(super) async fn wait(&self, wait: Duration) -> bool {
        let mut ended = self.ended.clone();
        let over = *ended.borrow_and_update();
        let wait = if over { wait.min(BACKOFF_AT_END) } else { wait };
        tokio::select! {
            () = tokio::time::sleep(wait) => true,
            // The trial has just ended: there is little time left, so try at once.
            changed = ended.changed(), if !over => changed.is_ok(),
            () = self.deadline(), if over => false,
        }
    }

    /// Waits until delivery has to end; the time begins when this is first asked after the trial's end.
    pub(super) async fn deadline(&self) {
        let at = {
            let mut contact = self.lock();
            *contact.give_up_at.get_or_insert_with(|| Instant::now() + self.settings.flush)
        };
        let mut give_up = self.settings.give_up.clone();
        let told = async {
            if give_up.wait_for(|told| *told).await.is_err() {
                // No sender is left.
                std::future::pending::<()>().await;
            }
        };
        let over = async {
            tokio::time::sleep_until(at).await;
            while self.would_lose() && Instant::now() < at + LAST_PATIENCE {
                tokio::time::sleep(BACKOFF_AT_END).await;
            }
        };
        tokio::select! {
            () = told => {}
            () = over => {}
        }
    }

    /// Returns whether there are reports that only memory holds, and a manager that would take them later.
    fn would_lose(&self) -> bool {
        self.lock().asked_to_wait && self.spool.is_in_memory()
    }

    /// Waits for the trial's end, and then for that.
    pub(super) async fn deadline_after_end(&self) {
        let mut ended = self.ended.clone();
        // A sender that is gone counts as the trial's end.
        drop(ended.wait_for(|ended| *ended).await);
        self.deadline().await;
    }
}

/// Exponential with full jitter: many agents that lost one manager must not come back as one.
pub fn pause() -> ExponentialBackoff {
    ExponentialBackoffBuilder::new()
        .with_initial_interval(BACKOFF.0)
        .with_max_interval(BACKOFF.1)
        .with_randomization_factor(1.0)
        .with_max_elapsed_time(None)
        .build()
}
