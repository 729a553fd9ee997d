//! PURE: workloads in a queue, which lets them run and may take them back.

use std::collections::HashMap;
use std::time::Duration;

use trial_protocol::Class;

use super::job::{ForcedEnd, Job, report_reason};
use super::{Act, Tracker};
use crate::training_service::kubernetes::kueue::{self, QueueEnd, QueueState};
use crate::training_service::kubernetes::outcome::JobPhase;

impl Tracker {
    /// Handles a workload that is suspended, initially or again.
    pub(super) fn handle_suspension(&mut self, name: &str, now: Duration) -> Vec<Act> {
        let Some(job) = self.jobs.get_mut(name) else { return Vec::new() };
        // The trial has ended, and must not run again when its queue resumes the workload.
        if job.handed_over.is_some() {
            return self.stop(name, now);
        }
        let waited = job.waits_since.take().map(|since| now.saturating_sub(since));
        // A workload without any pod was in the queue from the start.
        job.waited += waited.filter(|_| job.places > 0).unwrap_or_default();
        (job.runs_since, job.ending_since, job.places) = (None, None, 0);
        job.suspended_since = job.suspended_since.or(Some(now));
        job.is_reported_running = false;
        let ran = std::mem::take(&mut job.ran);
        job.why = job.queue_reason().or_else(|| job.why.take().filter(|_| !ran));
        let mut acts = Vec::new();
        if ran {
            acts.push(job.report_requeue());
        } else {
            job.why = Some(job.why.take().unwrap_or_else(|| job.suspended_reason()));
            acts.extend(report_reason(job));
        }
        if !std::mem::replace(&mut self.watches_queue, true) {
            acts.push(Act::WatchQueue);
        }
        acts
    }

    /// Handles the state of a workload in its queue. `None`: the queue has only noticed the workload.
    pub fn handle_queue_state(
        &mut self,
        name: &str,
        state: Option<QueueState>,
        now: Duration,
    ) -> Vec<Act> {
        let Some(job) = self.jobs.get_mut(name) else { return Vec::new() };
        job.in_queue = true;
        let Some(state) = state else { return Vec::new() };
        let never_fits = matches!(state, QueueState::NeverFits(_));
        job.never_fits_since = never_fits.then(|| job.never_fits_since.unwrap_or(now));
        match state {
            QueueState::Admitted => {
                (job.queue_why, job.position) = (None, None);
                Vec::new()
            }
            QueueState::Waits(why) | QueueState::NeverFits(why) => {
                job.queue_why = Some(why);
                if matches!(job.phase, JobPhase::Suspended | JobPhase::Unseen) {
                    let why = job.queue_reason();
                    self.set_wait_reason(name, why)
                } else {
                    Vec::new()
                }
            }
            QueueState::Ended(QueueEnd { why, disruption }) => {
                if job.stop.is_none() {
                    job.forced =
                        Some(ForcedEnd { message: why, class: Some(Class::Permanent), disruption });
                }
                self.stop(name, now)
            }
        }
    }

    /// Handles the start of a gapless watch of the queues (`true`), or a gap in it.
    pub fn observe_queue_watch(&mut self, is_complete: bool, now: Duration) {
        self.queue_listed_at = is_complete.then(|| self.queue_listed_at.unwrap_or(now));
    }

    /// Handles the queue in the label of a workload.
    pub fn observe_queue_name(&mut self, name: &str, queue: Option<&str>) {
        let is_added = !self.queued;
        if let Some(job) = self.jobs.get_mut(name).filter(|_| is_added) {
            job.queue_name = queue.map(str::to_owned);
        }
    }

    /// Returns whether a workload waits in a queue for its turn.
    pub fn waits_in_queue(&self) -> bool {
        let waits = |job: &Job| job.phase == JobPhase::Suspended && job.queue_why.is_some();
        self.jobs.values().any(waits)
    }

    /// Handles the number of workloads ahead of each waiting workload, by its name.
    pub fn handle_positions(&mut self, ahead: &HashMap<String, u64>) -> Vec<Act> {
        let mut acts = Vec::new();
        for (name, job) in &mut self.jobs {
            if job.phase == JobPhase::Suspended && job.queue_why.is_some() {
                job.position = ahead.get(name).map(|ahead| kueue::position_phrase(*ahead));
                job.why = job.queue_reason();
                acts.extend(report_reason(job));
            }
        }
        acts
    }
}
