//! The leases of agents, renewed by what they report and checked by the clock.
//!
//! `LOST` says that a trial's job is there, as far as its training service can tell, and its agent is silent. It is not
//! an end: the trial keeps its place among the concurrent ones (its job uses what it uses), the tuner learns nothing,
//! deadlines and stops hold. The service says when the job is gone, and then it ends like any other.
//!
//! An agent that has said how its command ended and is silent then is not lost: it has nothing more to say. A job may
//! still be there after that, for instance a pod with a sidecar that runs on, or on a node that went down. That job is
//! asked to end, and the trial ends as its agent said.

use std::time::Duration;

use tokio::time::Instant;
use trial_protocol::TrialJobId;

use crate::experiment::lease::Leases;

/// The leases, and the time of the last check.
pub(super) struct LeaseMonitor {
    leases: Leases,
    checked_at: Instant,
}

impl LeaseMonitor {
    /// Returns a monitor of these leases, as of now.
    pub(super) fn new(leases: Leases) -> Self {
        Self { leases, checked_at: Instant::now() }
    }

    /// Returns the time of the next check.
    pub(super) fn next_check(&self) -> Instant {
        self.checked_at + self.interval()
    }

    /// Returns the time between two checks.
    pub(super) fn interval(&self) -> Duration {
        self.leases.beat()
    }

    /// Returns how long an agent may be silent, in seconds.
    pub(super) fn lease_s(&self) -> u64 {
        self.leases.lease().as_secs()
    }

    /// Returns the trials whose leases have expired since the last check.
    pub(super) fn expired(&mut self) -> Vec<TrialJobId> {
        let now = Instant::now();
        let passed = now.saturating_duration_since(self.checked_at);
        self.checked_at = now;
        self.leases.passed(passed)
    }

    /// Begins a trial's lease.
    pub(super) fn begin(&mut self, trial: &TrialJobId) {
        self.leases.expect(trial, false);
    }

    /// Renews a trial's lease, and returns whether the trial was lost.
    pub(super) fn renew(&mut self, trial: &TrialJobId) -> bool {
        self.leases.heard(trial)
    }

    /// Ends a trial's lease.
    pub(super) fn end(&mut self, trial: &TrialJobId) {
        self.leases.forget(trial);
    }
}
