//! The state that `--listen` shows while the trial runs.

use std::sync::Arc;

use tokio::sync::mpsc;
use trial_protocol::Lane;

use super::Supervisor;
use crate::delivery::Counts;
use crate::http::prometheus::{View, page};
use crate::http::status::StatusRequest;
use crate::spool::{Sender, Spool};
use crate::supervise::phase::Phase;

/// The state that is shown beside the trial itself, and its readers.
pub struct StatusSource {
    /// The requests; closed where none can come.
    pub requests: mpsc::Receiver<StatusRequest>,
    /// Whose trial it is.
    pub sender: Sender,
    /// The reports that wait for delivery.
    pub spool: Spool,
    /// The counters of delivery; `None` without a manager.
    pub counts: Option<Arc<Counts>>,
}

impl Supervisor {
    /// The page for Prometheus.
    pub(super) fn page(&self, phase: &Phase) -> String {
        let StatusSource { sender, spool, counts, .. } = &self.status;
        page(&View {
            ids: [
                env!("CARGO_PKG_VERSION"),
                sender.experiment.as_str(),
                sender.trial.as_str(),
                spool.attempt().as_str(),
            ],
            phase: phase.name(),
            seconds: self.observer.elapsed().as_secs_f64(),
            metrics: &self.recorder.last_numbers(),
            spooled: [Lane::Facts, Lane::Bulk].map(|lane| spool.pending_in(lane)),
            deliveries: counts.as_ref().map(|counts| counts.now()),
            gpu_idle_ms: &self.observer.gpu_idle_ms(),
            sample: self.observer.last_sample(),
        })
    }
}
