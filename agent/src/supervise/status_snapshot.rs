//! The state that `--listen` serves while the trial runs.

use std::sync::Arc;

use tokio::sync::mpsc;
use trial_protocol::Lane;

use super::intake::Intake;
use crate::delivery::DeliveryCounts;
use crate::http::prometheus::{PageValues, page};
use crate::http::status::StatusRequest;
use crate::spool::{Dialect, Sender, Spool};
use crate::supervise::phase::Phase;

/// The state besides the trial itself, and the requests for it.
pub struct StatusSource {
    /// The requests. Closed if there can be none.
    pub requests: mpsc::Receiver<StatusRequest>,
    /// The trial to which the reports belong.
    pub sender: Sender,
    /// The spool with the reports that wait for delivery.
    pub spool: Spool,
    /// The delivery counters; `None` without a manager.
    pub counts: Option<Arc<DeliveryCounts>>,
}

impl StatusSource {
    /// Returns whether there is a manager that could give the reason for a stop.
    pub(super) fn is_managed(&self) -> bool {
        self.counts.is_some() && self.sender.dialect == Dialect::Native
    }

    /// Returns whether facts wait for delivery.
    pub(super) fn has_pending_facts(&self) -> bool {
        self.spool.pending_in(Lane::Facts) > 0
    }

    /// Returns the page for Prometheus.
    pub(super) fn page(&self, phase: &Phase, intake: &Intake) -> String {
        let Self { sender, spool, counts, .. } = self;
        let observer = intake.observer();
        page(&PageValues {
            ids: [
                env!("CARGO_PKG_VERSION"),
                sender.experiment.as_str(),
                sender.trial.as_str(),
                spool.attempt().as_str(),
            ],
            phase: phase.name(),
            seconds: observer.elapsed().as_secs_f64(),
            metrics: &intake.recorder().last_numbers(),
            spooled: [Lane::Facts, Lane::Bulk].map(|lane| spool.pending_in(lane)),
            deliveries: counts.as_ref().map(|counts| counts.snapshot()),
            gpu_idle_ms: &observer.gpu_idle_ms(),
            sample: observer.last_sample(),
        })
    }
}
