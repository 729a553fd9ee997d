//! PURE: the phase of the object that runs an attempt, and its outcome. Every kind of workload reports them to the
//! tracker, which bases its decisions on them.

use trial_protocol::{Cause, Class};

use super::disruption::Disruption;

/// The phase of a workload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WorkloadPhase {
    /// The controller has not examined the object yet.
    Unseen,
    /// A queue or a user holds the object back. No deadline runs meanwhile.
    Suspended,
    /// No pod exists, or none has started.
    Waiting,
    /// One pod runs, and another has not started.
    Starting,
    /// All pods run, or have run.
    Running,
    /// The end is decided, and the pods are terminating.
    Ending,
    /// The workload is over.
    Completed(WorkloadOutcome),
}

/// The end of a workload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkloadOutcome {
    /// Set if the controller reports success.
    pub succeeded: bool,
    /// The exit code of the deciding container, in the form that a shell shows, if there was one.
    pub exit_code: Option<i32>,
    /// The reason, for the user.
    pub message: String,
    /// The prospect of a retry, if it is known.
    pub class: Option<Class>,
    /// The cause, if it is certain.
    pub cause: Option<Cause>,
    /// The deciding pod, if there was one.
    pub decided_by: Option<DecidingPod>,
    /// The disruption that removed the deciding pod, if there was one.
    pub disruption: Option<Disruption>,
    /// Set if the object does not state the reason. The outcome is reported only after its pods have been read.
    pub needs_pods: bool,
}

/// The pod that decided how a workload ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DecidingPod {
    /// The role of the pod.
    pub role: String,
    /// The number of the pod in its role.
    pub index: u64,
    /// Set if its metrics are the trial's. Messages for the user name any other pod.
    pub is_main: bool,
}

impl DecidingPod {
    /// Returns a message with the name of the deciding pod.
    pub fn with_pod_name(decided_by: Option<&Self>, message: String) -> String {
        match decided_by.filter(|pod| !pod.is_main) {
            Some(Self { role, index, .. }) => format!("{role} {index}: {message}"),
            None => message,
        }
    }
}

impl WorkloadOutcome {
    /// Creates a failure with only this message.
    pub fn failure(message: String) -> Self {
        Self {
            succeeded: false,
            exit_code: None,
            message,
            class: None,
            cause: None,
            decided_by: None,
            disruption: None,
            needs_pods: false,
        }
    }

    /// Returns the outcome of a workload whose deciding pod the platform removed.
    #[must_use]
    pub fn with_disruption(self, disruption: Disruption) -> Self {
        let message = DecidingPod::with_pod_name(self.decided_by.as_ref(), disruption.why.clone());
        Self { message, class: Some(Class::Transient), disruption: Some(disruption), ..self }
    }

    /// Returns the outcome of a workload that lost a pod by a disruption before another pod failed. The other pod probably
    /// failed for the loss of its peer.
    #[must_use]
    pub fn with_lost_peer(self, disruption: Disruption) -> Self {
        let cause = Some(Cause::Preempted);
        Self { decided_by: None, cause, ..self }.with_disruption(disruption)
    }
}
