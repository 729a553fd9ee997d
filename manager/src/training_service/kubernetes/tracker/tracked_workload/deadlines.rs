//! PURE: the deadlines of a workload that waits, runs or ends.

use std::time::Duration;

use trial_protocol::Class;

use super::{StopState, TrackedWorkload};
use crate::training_service::kubernetes::outcome::WorkloadPhase;
use crate::training_service::kubernetes::tracker::pods::ObservedPods;
use crate::training_service::kubernetes::tracker::queue::QueueWatch;
use crate::training_service::kubernetes::tracker::rules::{
    AGENT_SILENCE_TIME, MIN_SUSPENSION_LIMIT, QUERY_INTERVAL, SETTLE_TIME, TrackerRules,
    UNNOTICED_TIME,
};

/// The time by which a workload must start.
#[derive(Debug, Clone, Copy)]
pub(super) struct StartDeadline {
    pub(super) at: Duration,
    /// The prospect of a retry if the workload does not start.
    pub(super) class: Option<Class>,
    /// The whole time for which the workload may be suspended, if another client suspends it.
    pub(super) suspension_limit: Option<Duration>,
}

impl StartDeadline {
    fn new(at: Duration, class: Option<Class>) -> Self {
        Self { at, class, suspension_limit: None }
    }
}

/// The deadlines of a workload, with the observations that they depend on.
pub(in crate::training_service::kubernetes::tracker) struct JobDeadlines<'a> {
    job: &'a TrackedWorkload,
    rules: &'a TrackerRules,
    pods: &'a ObservedPods,
    queue_watch: &'a QueueWatch,
}

impl<'a> JobDeadlines<'a> {
    pub(super) fn new(
        job: &'a TrackedWorkload,
        rules: &'a TrackerRules,
        pods: &'a ObservedPods,
        queue_watch: &'a QueueWatch,
    ) -> Self {
        Self { job, rules, pods, queue_watch }
    }

    /// Returns the time of the next deadline.
    pub(in crate::training_service::kubernetes::tracker) fn next_deadline(
        &self,
    ) -> Option<Duration> {
        // The end of the submission, or of the pods, comes next.
        if matches!(self.job.stop, Some(StopState::Pending | StopState::Deleted)) {
            return None;
        }
        let deadlines = [
            self.deletion_deadline(),
            self.stop_deadline(),
            self.start_deadline().map(|deadline| deadline.at),
            self.next_query().or(self.unnoticed_report()),
            self.report_deadline(),
            self.settlement_deadline(),
            self.pods_end_deadline(),
        ];
        deadlines.into_iter().flatten().min()
    }

    /// Returns the time at which a workload that did not stop is deleted.
    pub(super) fn deletion_deadline(&self) -> Option<Duration> {
        match self.job.stop {
            Some(StopState::Sent(at)) => Some(at + self.rules.stop_limit()),
            Some(StopState::Pending | StopState::Deleted) | None => None,
        }
    }

    /// Returns the time at which the workload is stopped that outlives its trial.
    pub(super) fn stop_deadline(&self) -> Option<Duration> {
        let handed_over = self.job.handed_over_at.filter(|_| self.job.stop.is_none())?;
        Some(handed_over + self.rules.stop_limit())
    }

    /// Returns the time by which an agent of the running pods must have reported.
    pub(super) fn report_deadline(&self) -> Option<Duration> {
        Some(self.job.start.runs_since()? + AGENT_SILENCE_TIME)
    }

    /// Returns the time at which the tracker reads the end from the pods, because the controller does not write it.
    pub(super) fn settlement_deadline(&self) -> Option<Duration> {
        let is_reported =
            matches!(self.job.phase, WorkloadPhase::Suspended | WorkloadPhase::Completed(_));
        let may_read = !is_reported && self.job.stop.is_none() && !self.job.ignores_phase;
        Some(self.job.ending_since.filter(|_| may_read)? + SETTLE_TIME)
    }

    /// Returns the time by which the pods must end after their trials. Otherwise, the end is read from them, and the
    /// workload is deleted.
    pub(super) fn pods_end_deadline(&self) -> Option<Duration> {
        let outliving_since = self.pods.outliving_since(&self.job.name);
        Some(outliving_since.filter(|_| self.job.can_end_with_pods())? + self.rules.stop_limit())
    }

    /// Returns the time by which the workload must start. Time in a queue does not count, unless the queue has not
    /// noticed the workload or can never admit it.
    pub(super) fn start_deadline(&self) -> Option<StartDeadline> {
        let (job, start_up) = (self.job, self.rules.start_up);
        if job.stop.is_some() {
            return None;
        }
        if let Some(since) = self.foreign_suspension_since() {
            let time = start_up.max(MIN_SUSPENSION_LIMIT);
            // If the cluster suspends each new workload, it also suspends the next attempt.
            let class = if job.queue.is_requeued() { Class::Transient } else { Class::Permanent };
            return Some(StartDeadline {
                at: since + time,
                class: Some(class),
                suspension_limit: Some(time),
            });
        }
        let has_all_pods = self.pods.started_place_count(&job.name) >= self.rules.pods;
        let may_start = !job.start.is_over(has_all_pods) && !self.pods.is_gated(&job.name);
        let waits = job.start.deadline(start_up).filter(|_| may_start);
        let unnoticed = self.unnoticed_since().map(|since| since + start_up);
        let never = job.queue.never_fits_since().filter(|_| job.phase == WorkloadPhase::Suspended);
        let never = never.map(|since| since + start_up);
        match (waits.into_iter().chain(unnoticed).min(), never) {
            (Some(at), Some(never)) if at < never => Some(StartDeadline::new(at, None)),
            (_, Some(never)) => Some(StartDeadline::new(never, Some(Class::Permanent))),
            (Some(at), None) => Some(StartDeadline::new(at, None)),
            (None, None) => None,
        }
    }

    /// Returns the time since which another client suspends the workload.
    fn foreign_suspension_since(&self) -> Option<Duration> {
        let since = self.job.queue.foreign_suspension_since(self.queue_watch)?;
        (self.job.phase == WorkloadPhase::Suspended).then_some(since)
    }

    /// Returns the time of the next query to the cluster about an idle workload. `None`: the workload makes progress.
    pub(super) fn next_query(&self) -> Option<Duration> {
        let is_idle = self.job.stop.is_none() && self.job.is_idle(self.rules);
        let since = self.job.start.waits_since().filter(|_| is_idle)?;
        let next = self.job.queried_at.map(|queried_at| queried_at + QUERY_INTERVAL);
        Some(next.unwrap_or(since + UNNOTICED_TIME))
    }

    /// Returns the time at which it becomes the reason for the wait that the queue has not noticed the workload.
    pub(super) fn unnoticed_report(&self) -> Option<Duration> {
        Some(self.unnoticed_since().filter(|_| self.job.queried_at.is_none())? + UNNOTICED_TIME)
    }

    /// Returns the time since which the queue has not noticed the workload.
    fn unnoticed_since(&self) -> Option<Duration> {
        self.job.queue.unnoticed_since(self.queue_watch).filter(|_| self.job.stop.is_none())
    }
}
