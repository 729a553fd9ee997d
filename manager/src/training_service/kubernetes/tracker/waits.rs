//! PURE: the reasons for waiting that the pods of a workload do not show.

use super::job::tell_why;
use super::{Act, Tracker};
use crate::training_service::kubernetes::outcome::JobPhase;
use crate::util::excerpt::shortened;

impl Tracker {
    /// Returns whether the controller has examined a workload.
    pub fn is_seen(&self, name: &str) -> bool {
        self.jobs.get(name).is_some_and(|job| job.phase != JobPhase::Unseen)
    }

    /// Handles the cluster's reason for a missing pod. `None`: the cluster shows no reason.
    pub fn podless(&mut self, name: &str, why: Option<String>) -> Vec<Act> {
        let (kind, wanted) = (self.kind, self.wanted);
        let Some(job) = self.jobs.get(name).filter(|job| job.is_left_alone(wanted)) else {
            return Vec::new();
        };
        let why = why.or_else(|| job.left_alone(kind, wanted));
        self.waits(name, why)
    }

    /// Handles the last line of output, if known, of a running pod whose agent has not reported.
    pub fn unheard(&mut self, name: &str, said: Option<&str>) -> Vec<Act> {
        let kind = self.kind;
        let Some(job) = self.jobs.get_mut(name) else { return Vec::new() };
        if job.phase != JobPhase::Running {
            return Vec::new();
        }
        let said = match said {
            Some(said) => format!("the pod's last output: {}", shortened(said)),
            None => format!(
                "`kubectl logs -l {}` in its namespace shows the pod's output",
                kind.pod_label(name, &job.attempt)
            ),
        };
        job.why = Some(format!(
            "its pod runs, but its agent has not reported the start of the trial; can pods reach the manager? See --advertise ({said})"
        ));
        tell_why(job).into_iter().collect()
    }
}
