//! PURE: the deadlines of workloads that wait, run or end.

use std::time::Duration;

use trial_protocol::Class;

use super::job::{ForcedEnd, Job, Stop};
use super::{Act, SILENT_TIME, Tracker, UNSEEN_TIME};
use crate::training_service::kubernetes::outcome::{JobPhase, WorkloadOutcome};
use crate::training_service::kubernetes::workload::StopRequest;

/// The time after which the tracker reads the end of a workload from its pods, if the controller has decided the end
/// but does not complete the workload.
const SETTLE_TIME: Duration = Duration::from_mins(1);
/// The time beyond its grace period after which a terminating pod counts as gone with its node. A pod that survives
/// does no harm, because the next attempt has another number.
const NODE_GONE_TIME: Duration = Duration::from_mins(10);

impl Tracker {
    /// Returns the actions that are due at `now`.
    pub fn tick(&mut self, now: Duration) -> Vec<Act> {
        let mut acts = self.end_pods_of_lost_nodes(now);
        acts.extend(self.discard_unadopted(now));
        let names: Vec<String> = self.jobs.keys().cloned().collect();
        for name in names {
            let Some(job) = self.jobs.get_mut(&name) else { continue };
            if let Some(Stop::Asked(at)) = job.stop
                && now >= at + self.patience
            {
                job.stop = Some(Stop::Deleted);
                acts.push(Act::Delete(name));
                continue;
            }
            if job.runs_since.is_some_and(|since| now >= since + SILENT_TIME) {
                job.runs_since = None;
                acts.push(Act::ReadOutput(name.clone()));
            }
            if job.may_read_end()
                && job.ending_since.is_some_and(|since| now >= since + SETTLE_TIME)
            {
                job.ending_since = Some(now);
                acts.push(Act::ReadEnd(name.clone()));
            }
            if self.remains_deadline(&name).is_some_and(|at| now >= at) {
                self.pods.renew_remains(&name, now);
                acts.push(Act::ReadEnd(name.clone()));
            }
            let Some(job) = self.jobs.get_mut(&name) else { continue };
            if job.stop.is_none() && job.handed_over.is_some_and(|at| now >= at + self.patience) {
                acts.extend(self.stop(&name, now));
                continue;
            }
            acts.extend(self.check_wait(&name, now));
        }
        acts
    }

    /// Returns the actions that are due for a workload that may wait.
    fn check_wait(&mut self, name: &str, now: Duration) -> Vec<Act> {
        let mut acts = Vec::new();
        let Some(job) = self.jobs.get(name) else { return acts };
        let unnoticed = self.unnoticed_since(job);
        let Some(job) = self.jobs.get_mut(name) else { return acts };
        if unnoticed.is_some_and(|since| now >= since + UNSEEN_TIME) && job.queried_at.is_none() {
            job.queried_at = Some(now);
            let why = job.unnoticed_reason();
            acts.extend(self.set_wait_reason(name, Some(why)));
        }
        let deadline = self.start_deadline(name);
        let Some(job) = self.jobs.get_mut(name) else { return acts };
        if let Some((_, class)) = deadline.filter(|(at, _)| now >= *at) {
            let why = job.why.clone().unwrap_or_else(|| "the cluster shows no reason".to_owned());
            let waited = self.start_up.as_secs();
            let message =
                format!("the trial did not start within {waited} s (startUpDeadline): {why}");
            job.forced = Some(ForcedEnd { message, class, disruption: None });
            acts.extend(self.stop(name, now));
        } else if job.next_query(self.wanted).is_some_and(|at| now >= at) {
            job.queried_at = Some(now);
            acts.push(Act::QueryMissingPod(name.to_owned()));
        }
        acts
    }

    /// Ends workloads whose pods should have ended long ago: their nodes are gone, and their controllers wait for them.
    fn end_pods_of_lost_nodes(&mut self, now: Duration) -> Vec<Act> {
        if self.kind.stop() != StopRequest::Delete {
            return Vec::new();
        }
        let limit = self.grace + NODE_GONE_TIME;
        let late =
            self.pods.workloads_with_deleted_pods().filter(|(_, since)| now >= *since + limit);
        let late: Vec<String> = late.map(|(name, _)| name.to_owned()).collect();
        let mut acts = Vec::new();
        for name in late {
            let Some(job) = self.jobs.get_mut(&name).filter(|job| job.ends_with_pods()) else {
                continue;
            };
            let message =
                "its pod was deleted, but its node has not reported the end: is the node gone?";
            job.forced.get_or_insert(ForcedEnd {
                message: message.to_owned(),
                class: Some(Class::Transient),
                disruption: Some("NodeLost: its pod does not end".to_owned()),
            });
            acts.push(Act::Discard(name.clone()));
            acts.extend(self.end(&name, WorkloadOutcome::failure(message.to_owned())));
        }
        acts
    }

    /// Returns the time by which the pods of a workload must end after their trials. Otherwise, the end is read from
    /// them, and the workload is deleted.
    fn remains_deadline(&self, name: &str) -> Option<Duration> {
        self.jobs.get(name).filter(|job| job.ends_with_pods())?;
        Some(self.pods.remain_since(name)? + self.patience)
    }

    /// Returns the time by which a workload must start, and the prospect of a retry if it does not.
    fn start_deadline(&self, name: &str) -> Option<(Duration, Option<Class>)> {
        let job = self.jobs.get(name)?;
        // Such a workload does not wait to start, whatever its status shows: its pods may be not ready or terminating.
        let is_up =
            job.is_reported_running || job.ran && job.waits_since.is_some() && self.is_up(name);
        let may_start = !is_up && !self.pods.is_gated(name);
        job.start_deadline(self.start_up, self.unnoticed_since(job), may_start)
    }

    /// Returns the time since which the queue has not noticed a workload. `None`: the queue has noticed it, or the tracker
    /// cannot know, because no queue is watched without a gap.
    fn unnoticed_since(&self, job: &Job) -> Option<Duration> {
        let suspended = job.suspended_since.filter(|_| !job.in_queue && job.stop.is_none())?;
        let is_named = self.queued || job.queue_name.is_some();
        Some(suspended.max(self.queue_listed_at.filter(|_| is_named)?))
    }

    /// Returns the time of the next [`Self::tick`].
    pub fn next_deadline(&self) -> Option<Duration> {
        let deadlines = self.jobs.iter().filter_map(|(name, job)| {
            let patience = match job.stop {
                Some(Stop::Asked(at)) => Some(at + self.patience),
                Some(Stop::Wanted | Stop::Deleted) => return None,
                None => job.handed_over.map(|at| at + self.patience),
            };
            let start_up = self.start_deadline(name).map(|(at, _)| at);
            let unnoticed = self.unnoticed_since(job).filter(|_| job.queried_at.is_none());
            let unnoticed = unnoticed.map(|since| since + UNSEEN_TIME);
            let query = job.next_query(self.wanted).or(unnoticed);
            let silent = job.runs_since.map(|since| since + SILENT_TIME);
            let settled = job.ending_since.map(|since| since + SETTLE_TIME);
            let settled = settled.filter(|_| job.may_read_end());
            let remains = self.remains_deadline(name);
            [patience, start_up, query, silent, settled, remains].into_iter().flatten().min()
        });
        let going = self.pods.workloads_with_deleted_pods().filter(|(name, _)| {
            let job = self.jobs.get(*name);
            self.kind.stop() == StopRequest::Delete && job.is_some_and(Job::ends_with_pods)
        });
        let going = going.map(|(_, since)| since + self.grace + NODE_GONE_TIME);
        let unadopted = self.end_unadopted_at.filter(|_| self.listed);
        deadlines.chain(going).chain(unadopted).min()
    }
}

impl Job {
    /// Returns the time by which the workload must start, and the prospect of a retry if it does not. Time in a queue
    /// does not count, unless the queue has not noticed the workload or can never admit it. `may_start`: a pod has not
    /// started, and no scheduling gate prevents it.
    fn start_deadline(
        &self,
        start_up: Duration,
        unnoticed_since: Option<Duration>,
        may_start: bool,
    ) -> Option<(Duration, Option<Class>)> {
        if self.stop.is_some() {
            return None;
        }
        let waits_since = self.waits_since.filter(|_| may_start);
        let waits = waits_since.map(|since| since + start_up.saturating_sub(self.waited));
        let unnoticed = unnoticed_since.map(|since| since + start_up);
        let never = self.never_fits_since.filter(|_| self.phase == JobPhase::Suspended);
        let never = never.map(|since| since + start_up);
        match (waits.into_iter().chain(unnoticed).min(), never) {
            (Some(at), Some(never)) if at < never => Some((at, None)),
            (_, Some(never)) => Some((never, Some(Class::Permanent))),
            (Some(at), None) => Some((at, None)),
            (None, None) => None,
        }
    }

    /// Returns whether the tracker may decide the end of the workload without its controller.
    fn may_read_end(&self) -> bool {
        let is_said = matches!(self.phase, JobPhase::Suspended | JobPhase::Completed(_));
        !is_said && self.stop.is_none() && !self.is_inspected
    }

    /// Returns whether the workload ends with its pods, regardless of what deleted them.
    fn ends_with_pods(&self) -> bool {
        self.stop.is_none() && !self.is_inspected && self.phase != JobPhase::Suspended
    }
}
