//! PURE: the phase of the object that runs an attempt, and its outcome: every kind of workload reports them, and the
//! tracker decides upon them.

use trial_protocol::{Cause, Class};

use super::disruption::Disruption;

/// The phase of a workload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobPhase {
    /// Its controller has not looked at it yet.
    Unseen,
    /// It is not to run yet: a queue, or a person, holds it back. No deadline runs meanwhile.
    Suspended,
    /// Nothing runs: no pod, or none that has started.
    Waiting,
    /// A pod runs, and another has not started.
    Starting,
    /// Its pods run, or have run.
    Running,
    /// It is decided how it ends; pods are going.
    Ending,
    /// It is over.
    Completed(Outcome),
}

/// The end of a workload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// Set if its controller calls it succeeded.
    pub succeeded: bool,
    /// Exit code of the container that decided it, as a shell shows it, where there was one.
    pub exit_code: Option<i32>,
    /// The reason, for a person.
    pub message: String,
    /// The prospect of a retry, where that is known.
    pub class: Option<Class>,
    /// The cause, where it is certain.
    pub cause: Option<Cause>,
    /// The pod that decided it, where one did.
    pub decided_by: Option<Decider>,
    /// The disruption that took that pod away, if one did.
    pub disruption: Option<Disruption>,
    /// The object does not say why, its pods do: they are to be read before it is told.
    pub needs_pods: bool,
}

/// The pod that decided how a workload ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decider {
    /// The role.
    pub role: String,
    /// Its number in it.
    pub index: u64,
    /// Set if its metrics are the trial's: others are named where a person is told of them.
    pub is_main: bool,
}

impl Decider {
    /// Returns a message about this pod.
    pub fn told(decided_by: Option<&Self>, message: String) -> String {
        match decided_by.filter(|pod| !pod.is_main) {
            Some(Self { role, index, .. }) => format!("{role} {index}: {message}"),
            None => message,
        }
    }
}

impl Outcome {
    /// A failure of which only this message is known.
    pub fn unseen(message: String) -> Self {
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

    /// Returns the outcome of a workload whose deciding pod the platform took away.
    #[must_use]
    pub fn with_disruption(self, disruption: Disruption) -> Self {
        let message = Decider::told(self.decided_by.as_ref(), disruption.why.clone());
        Self { message, class: Some(Class::Transient), disruption: Some(disruption), ..self }
    }
}
