//! The time for delivery after the trial's end.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::manager_session::ManagerSession;
use super::{FINAL_BACKOFF, FINAL_DELIVERY_TIMEOUT, Settings};
use crate::spool::Spool;

/// The end of the time for delivery. While the trial runs, there is no deadline.
pub(super) struct Deadline {
    session: Arc<ManagerSession>,
    spool: Spool,
    ended: watch::Receiver<bool>,
    abort: watch::Receiver<bool>,
    flush: Duration,
    passes_at: OnceLock<Instant>,
}

impl Deadline {
    pub(super) fn new(
        settings: &Settings,
        session: Arc<ManagerSession>,
        spool: Spool,
        ended: watch::Receiver<bool>,
    ) -> Self {
        let abort = settings.abort.clone();
        Self { session, spool, ended, abort, flush: settings.flush, passes_at: OnceLock::new() }
    }

    /// Returns the receiver that becomes `true` when the trial has ended.
    pub(super) fn subscribe_trial_end(&self) -> watch::Receiver<bool> {
        self.ended.clone()
    }

    /// Returns whether the trial has ended.
    pub(super) fn has_trial_ended(&self) -> bool {
        *self.ended.borrow()
    }

    /// Waits before the next attempt. Returns `false` if the deadline has passed.
    pub(super) async fn pause(&self, pause: Duration) -> bool {
        let mut ended = self.ended.clone();
        let trial_ended = *ended.borrow_and_update();
        let pause = if trial_ended { pause.min(FINAL_BACKOFF) } else { pause };
        tokio::select! {
            () = tokio::time::sleep(pause) => true,
            // The trial has just ended. Little time is left, so the next attempt is made at once.
            changed = ended.changed(), if !trial_ended => changed.is_ok(),
            () = self.wait_until_passed(), if trial_ended => false,
        }
    }

    /// Waits until delivery must end. The time starts with the first call after the trial's end.
    pub(super) async fn wait_until_passed(&self) {
        let at = *self.passes_at.get_or_init(|| Instant::now() + self.flush);
        let mut abort = self.abort.clone();
        let aborted = async {
            if abort.wait_for(|abort| *abort).await.is_err() {
                // No sender is left.
                std::future::pending::<()>().await;
            }
        };
        let over = async {
            tokio::time::sleep_until(at).await;
            while self.has_reports_only_in_memory() && Instant::now() < at + FINAL_DELIVERY_TIMEOUT
            {
                tokio::time::sleep(FINAL_BACKOFF).await;
            }
        };
        tokio::select! {
            () = aborted => {}
            () = over => {}
        }
    }

    /// Waits for the trial's end, and then until delivery has to end.
    pub(super) async fn wait_until_passed_after_end(&self) {
        let mut ended = self.ended.clone();
        // A closed channel counts as the trial's end.
        drop(ended.wait_for(|ended| *ended).await);
        self.wait_until_passed().await;
    }

    /// Returns whether some reports are only in memory while the manager is busy and may accept them later.
    fn has_reports_only_in_memory(&self) -> bool {
        self.session.is_busy() && self.spool.has_unwritten_facts()
    }
}
