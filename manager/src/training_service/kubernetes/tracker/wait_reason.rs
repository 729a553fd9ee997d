//! PURE: the reason for which a workload waits, and its news.

use trial_protocol::AttemptId;

use crate::training_service::kubernetes::workload::Workload;
use crate::util::excerpt::shortened;

/// The reason for which a workload waits.
#[derive(Debug, Default)]
pub(super) struct WaitReason {
    current: Option<String>,
    /// The last reason that was reported.
    reported: Option<String>,
}

impl WaitReason {
    pub(super) fn current(&self) -> Option<&str> {
        self.current.as_deref()
    }

    pub(super) fn set(&mut self, why: Option<String>) {
        self.current = why;
    }

    /// Removes the reason, because it no longer holds.
    pub(super) fn clear(&mut self) {
        self.current = None;
    }

    /// Handles an observed reason. A reason may still hold if the pod no longer reports it, or reports it in less
    /// detail. Only a running pod disproves it.
    pub(super) fn observe(&mut self, why: Option<String>) {
        let known = self.current.as_deref().unwrap_or_default();
        if let Some(why) = why.filter(|why| !known.starts_with(why)) {
            self.current = Some(why);
        }
    }

    /// Returns the reason if it has changed since the last report.
    pub(super) fn take_news(&mut self) -> Option<String> {
        if self.current == self.reported {
            return None;
        }
        self.reported.clone_from(&self.current);
        self.current.clone()
    }

    /// Sets a reason that is reported in another way.
    pub(super) fn set_reported(&mut self, why: String) {
        self.reported = Some(why.clone());
        self.current = Some(why);
    }
}

/// Returns the reason for the wait of a workload that its controller has not examined.
pub(super) fn unexamined_reason(kind: &dyn Workload) -> String {
    let controller = kind.controller();
    format!(
        "{controller} has not noticed the trial's object; does its pod run, and does it watch this namespace?"
    )
}

/// Returns the probable reason for the wait of a workload with `made` of the `wanted` pods.
pub(super) fn missing_pod_reason(kind: &dyn Workload, made: u64, wanted: u64) -> String {
    let controller = kind.controller();
    let pods = match made {
        0 => "no pod".to_owned(),
        made => format!("only {made} of {wanted} pods"),
    };
    format!(
        "{controller} has created {pods}; possible causes are a quota (`kubectl describe quota`), the namespace's Pod Security profile, a webhook or a missing service account; {controller}'s log gives the reason"
    )
}

/// Returns the reason for the wait of a trial whose pod runs without a report from its agent. `last_line` is the last
/// line of the pod's output, if it is known.
pub(super) fn silent_agent_reason(
    kind: &dyn Workload,
    name: &str,
    attempt: &AttemptId,
    last_line: Option<&str>,
) -> String {
    let last_line = match last_line {
        Some(last_line) => format!("the pod's last output: {}", shortened(last_line)),
        None => format!(
            "`kubectl logs -l {}` in its namespace shows the pod's output",
            kind.pod_selector(name, attempt)
        ),
    };
    format!(
        "its pod runs, but its agent has not reported the start of the trial; can pods reach the manager? See --advertise ({last_line})"
    )
}
