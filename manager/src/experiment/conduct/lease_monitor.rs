//! The leases of agents, which their reports renew and the clock checks.
//!
//! `LOST` means that a trial's job exists, according to its training service, and its agent is silent. It is not an
//! end. The trial still counts towards the concurrency, since its job still uses resources. The tuner learns nothing,
//! and deadlines and stops apply. When the service reports that the job is gone, the trial ends like any other.
//!
//! An agent that has reported the end of its command and is then silent is not lost, since it has nothing more to
//! report. Its job may still exist, for instance as a pod with a running sidecar, or on a node that went down. The
//! manager then stops the job, and the trial ends as its agent reported.

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
    /// Returns a monitor of these leases. The first interval begins now.
    pub(super) fn new(leases: Leases) -> Self {
        Self { leases, checked_at: Instant::now() }
    }

    /// Returns the time of the next check.
    pub(super) fn next_check(&self) -> Instant {
        self.checked_at + self.interval()
    }

    /// Returns the time between two checks.
    pub(super) fn interval(&self) -> Duration {
        self.leases.check_interval()
    }

    /// Returns the time that an agent may be silent, in seconds.
    pub(super) fn lease_s(&self) -> u64 {
        self.leases.lease().as_secs()
    }

    /// Returns the trials whose leases have expired since the last check.
    pub(super) fn expired(&mut self) -> Vec<TrialJobId> {
        let now = Instant::now();
        let passed = now.saturating_duration_since(self.checked_at);
        self.checked_at = now;
        self.leases.advance(passed)
    }

    /// Begins a trial's lease.
    pub(super) fn begin(&mut self, trial: &TrialJobId) {
        self.leases.begin(trial, false);
    }

    /// Renews a trial's lease. Returns whether the trial was lost.
    pub(super) fn renew(&mut self, trial: &TrialJobId) -> bool {
        self.leases.renew(trial)
    }

    /// Ends a trial's lease.
    pub(super) fn end(&mut self, trial: &TrialJobId) {
        self.leases.end(trial);
    }
}
