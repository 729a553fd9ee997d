//! Repeated delivery of acknowledged reports, for a manager whose store was replaced by an older copy.

use tokio::sync::oneshot;

use super::Spool;
use super::queue::{DiskState, Lifecycle, SpoolRequest};

/// The position of a lane in the delivery to its manager.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cursor {
    /// The highest seq that a manager has acknowledged. `None`: nothing is acknowledged.
    pub acknowledged: Option<u64>,
    /// The highest seq that cannot be delivered again. `None`: all reports can.
    pub forgotten: Option<u64>,
}

impl Spool {
    /// Offers the facts after `to` for delivery again, as far as they are on the disk. The manager lost them after it
    /// had acknowledged them.
    pub async fn rewind(&self, to: Option<u64>) {
        let done = {
            let mut state = self.shared.lock();
            if state.disk == DiskState::Absent || state.life != Lifecycle::Open {
                state.facts.forgotten = state.facts.acked;
                return;
            }
            let (done, waits) = oneshot::channel();
            state.requests.push_back(SpoolRequest::Rewind { to, done });
            self.shared.wake(state);
            waits
        };
        // A missing answer means that the thread has ended, and with it the spool.
        drop(done.await);
    }

    /// Gives up a fact that the manager permanently refuses.
    pub fn give_up(&self, seq: u64) {
        let mut state = self.shared.lock();
        state.facts.forgotten = state.facts.forgotten.max(Some(seq));
    }

    /// Returns the last acknowledged fact, and the last one that cannot be delivered again.
    pub fn cursor(&self) -> Cursor {
        let state = self.shared.lock();
        Cursor { acknowledged: state.facts.acked, forgotten: state.facts.forgotten }
    }
}
