//! PURE: the reasons why workloads wait that their pods do not give.

use super::job::tell_why;
use super::{Act, Tracker};
use crate::training_service::kubernetes::outcome::JobPhase;
use crate::util::excerpt::shortened;

impl Tracker {
    /// Returns whether the controller has examined a workload.
    pub fn is_seen(&self, name: &str) -> bool {
        self.jobs.get(name).is_some_and(|job| job.phase != JobPhase::Unseen)
    }

    /// Enters the cluster's reason for the lack of a pod. `None`: the cluster gives no reason.
    pub fn podless(&mut self, name: &str, why: Option<String>) -> Vec<Act> {
        let (kind, wanted) = (self.kind, self.wanted);
        let Some(job) = self.jobs.get(name).filter(|job| job.is_left_alone(wanted)) else {
            return Vec::new();
        };
        let why = why.or_else(|| job.left_alone(kind, wanted));
        self.waits(name, why)
    }

    /// Enters the last output, if known, of the pod of a workload whose agent has not reported.
    pub fn unheard(&mut self, name: &str, said: Option<&str>) -> Vec<Act> {
        let kind = self.kind;
        let Some(job) = self.jobs.get_mut(name) else { return Vec::new() };
        if job.phase != JobPhase::Running {
            return Vec::new();
        }
        let said = match said {
            Some(said) => format!("the pod said last: {}", shortened(said)),
            None => format!(
                "`kubectl logs -l {}` in its namespace shows what the pod says",
                kind.pod_label(name, &job.attempt)
            ),
        };
        job.why = Some(format!(
            "its pod runs, but its agent has not said that the trial has started; can pods reach the manager? See --advertise ({said})"
        ));
        tell_why(job).into_iter().collect()
    }
}
