//! PURE: the reasons for waiting that the pods of a workload do not show.

use std::time::Duration;

use trial_protocol::Class;

use super::job::{ForcedEnd, report_reason};
use super::{Act, Tracker};
use crate::training_service::kubernetes::outcome::JobPhase;
use crate::util::excerpt::shortened;

impl Tracker {
    /// Handles the unique id of a workload.
    pub fn observe_id(&mut self, name: &str, id: Option<&str>) {
        if let Some(job) = self.jobs.get_mut(name) {
            job.id = id.map(str::to_owned);
        }
    }

    /// Returns the unique id of a workload.
    pub fn id_of(&self, name: &str) -> Option<&str> {
        self.jobs.get(name)?.id.as_deref()
    }

    /// Returns whether the controller has examined a workload.
    pub fn is_examined(&self, name: &str) -> bool {
        self.jobs.get(name).is_some_and(|job| job.phase != JobPhase::Unseen)
    }

    /// Handles the cluster's reason for a missing pod. `None`: the cluster shows no reason.
    pub fn handle_missing_pod(&mut self, name: &str, why: Option<String>) -> Vec<Act> {
        let (kind, wanted) = (self.kind, self.wanted);
        let Some(job) = self.jobs.get(name).filter(|job| job.is_idle(wanted)) else {
            return Vec::new();
        };
        let is_quota = why.as_ref().is_some_and(|why| why.contains("exceeded quota"));
        let why = why.or_else(|| job.idle_reason(kind, wanted));
        let acts = self.set_wait_reason(name, why);
        // The pods of finished workloads count for a quota of objects.
        let tidy = is_quota.then(|| self.delete_old_workloads()).flatten();
        acts.into_iter().chain(tidy).collect()
    }

    /// Handles a rule of the cluster that denies a pod of a workload, again and again. The workload fails, since a retry
    /// would have the same pod.
    pub fn handle_denied_pod(&mut self, name: &str, why: String, now: Duration) -> Vec<Act> {
        let wanted = self.wanted;
        let Some(job) = self.jobs.get_mut(name).filter(|job| job.is_idle(wanted)) else {
            return Vec::new();
        };
        if job.stop.is_none() {
            let class = Some(Class::Permanent);
            job.forced = Some(ForcedEnd { message: why, class, disruption: None });
        }
        self.stop(name, now)
    }

    /// Handles the last line of output, if known, of a running pod whose agent has not reported.
    pub fn handle_silent_agent(&mut self, name: &str, last_line: Option<&str>) -> Vec<Act> {
        let kind = self.kind;
        let Some(job) = self.jobs.get_mut(name) else { return Vec::new() };
        if job.phase != JobPhase::Running {
            return Vec::new();
        }
        let last_line = match last_line {
            Some(last_line) => format!("the pod's last output: {}", shortened(last_line)),
            None => format!(
                "`kubectl logs -l {}` in its namespace shows the pod's output",
                kind.pod_label(name, &job.attempt)
            ),
        };
        job.why = Some(format!(
            "its pod runs, but its agent has not reported the start of the trial; can pods reach the manager? See --advertise ({last_line})"
        ));
        report_reason(job).into_iter().collect()
    }
}
