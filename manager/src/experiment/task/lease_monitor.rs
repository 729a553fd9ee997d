//! The leases of agents, which their reports renew and the clock checks.
//!
//! `LOST` means that a trial's job exists, according to its training service, and its agent is silent. It is not an
//! end. The trial still counts towards the concurrency, since its job still uses resources. The tuner learns nothing,
//! and deadlines and stops apply. When the service reports that the job is gone, the trial ends like any other.
//!
//! An agent that has reported the end of its command and is then silent is not lost, since it has nothing more to
//! report. Its job may still exist, for instance as a pod with a running sidecar, or on a node that went down. The
//! manager then stops the job, and the trial ends as its agent reported.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tracing::{info, warn};
use trial_protocol::TrialJobId;

use super::announcer::Announcer;
use super::live_trials::LiveTrials;
use super::recorder::Recorder;
use crate::experiment::lease::Leases;
use crate::experiment::notice::Notice;
use crate::job_state::JobState;
use crate::store;
use crate::training_service::TrainingService;

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

    /// Returns the trials whose leases have expired since the last check.
    fn take_expired(&mut self) -> Vec<TrialJobId> {
        let now = Instant::now();
        let passed = now.saturating_duration_since(self.checked_at);
        self.checked_at = now;
        self.leases.advance(passed)
    }

    /// Renews the lease of an agent that has reported anything. If its trial was lost, records that the trial runs.
    pub(super) async fn record_renewal(
        &mut self,
        trial: &TrialJobId,
        trials: &LiveTrials,
        recorder: &mut Recorder,
        announcer: &Announcer,
    ) -> Result<(), store::Error> {
        if self.leases.renew(trial) && trials.get(trial).is_some_and(|job| !job.has_ended()) {
            info!(%trial, "the agent of a lost trial reports again");
            recorder.record_state(trial, JobState::Running, None, None).await?;
            let sequence = trials.sequence(trial);
            announcer.notify(Notice::Found { trial: trial.clone(), sequence });
        }
        Ok(())
    }

    /// Records the trials whose leases have expired.
    pub(super) async fn check(
        &mut self,
        trials: &LiveTrials,
        service: &Arc<dyn TrainingService>,
        recorder: &mut Recorder,
        announcer: &Announcer,
    ) -> Result<(), store::Error> {
        let expired = self.take_expired();
        for trial in expired {
            let seconds = self.leases.lease().as_secs();
            if let Some(job) = trials.get(&trial).filter(|job| job.has_ended()) {
                if job.can_finish() {
                    info!(%trial, "its job still exists {seconds} s after the end of its command; ending the job");
                    service.finish(&trial).await;
                }
                continue;
            }
            let message = format!(
                "its agent has not reported for {seconds} s; its job still exists, and the agent's stored reports \
                 are accepted when it reports again"
            );
            warn!(%trial, "the trial is lost: {message}");
            let text = Some(message.clone());
            recorder.record_state(&trial, JobState::Lost, text, None).await?;
            let sequence = trials.sequence(&trial);
            announcer.notify(Notice::Lost { trial, sequence, message });
        }
        Ok(())
    }

    /// Begins a trial's lease.
    pub(super) fn begin(&mut self, trial: &TrialJobId) {
        self.leases.begin(trial, false);
    }

    /// Ends a trial's lease.
    pub(super) fn end(&mut self, trial: &TrialJobId) {
        self.leases.end(trial);
    }
}
