//! Orders that ride down on an ack.

use serde::{Deserialize, Serialize};

/// One order to one attempt's agent. It is repeated on every ack until the agent says it was obeyed, and
/// obeyed once however often it comes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Directive {
    /// Names the order within the experiment. Source: the manager's store.
    pub id: u64,
    /// What to do.
    pub body: DirectiveBody,
}

/// What a directive orders. An agent refuses a kind it does not know, and says so.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum DirectiveBody {
    /// End the trial: TERM to its whole process tree, grace, KILL.
    Stop {
        /// Why, for the verdict.
        reason: StopReason,
        /// How long the trial may take to end, in milliseconds. Absence means the agent's own setting.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        grace_ms: Option<u64>,
    },
    /// Deliver everything now instead of waiting for a full batch.
    Flush,
    /// An order that this build does not know.
    #[serde(other)]
    Unknown,
}

/// Why a trial is ended from outside. A closed set: the final state is never guessed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StopReason {
    /// A person asked for it.
    User,
    /// An assessor gave the trial up.
    EarlyStop,
    /// `maxTrialDuration` is over.
    Deadline,
    /// The experiment's own limit is reached.
    Budget,
    /// The manager is going away and leaves a resumable experiment.
    ManagerShutdown,
    /// The platform takes the machine back.
    Preempted,
    /// A reason that this build does not know.
    #[serde(other)]
    Other,
}
