//! Directives: instructions of the manager to an agent, delivered with an acknowledgement.

use serde::{Deserialize, Serialize};

/// One order to one attempt's agent. It is repeated on every ack until the agent says it was obeyed, and
/// obeyed once however often it comes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Directive {
    /// Names the order within the experiment. Source: the manager's store.
    pub id: u64,
    /// The order.
    pub body: DirectiveBody,
}

/// The kinds of orders. An agent refuses a kind it does not know, and says so.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum DirectiveBody {
    /// End the trial: TERM to its whole process tree, grace, KILL.
    Stop {
        /// The reason, for the verdict.
        reason: StopReason,
        /// The time that the trial may take to end, in milliseconds. Absence means the agent's own setting.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        grace_ms: Option<u64>,
    },
    /// Deliver everything now instead of waiting for a full batch.
    Flush,
    /// Log from this level on.
    LogLevel {
        /// The level.
        level: LogLevel,
    },
    /// End the trial by these rules, also while no manager can be reached. They replace all earlier ones.
    StopRules {
        /// The first that fits ends the trial. Empty: none.
        rules: Vec<StopRule>,
        /// The time that they hold, in milliseconds from when the agent reads them. Their maker may have changed its
        /// mind since; it says so in time, or lets them expire.
        lease_ms: u64,
    },
    /// An order that this build does not know.
    #[serde(other)]
    Unknown,
}

/// The detail of an agent's own log; each level includes those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LogLevel {
    /// Failures only.
    Error,
    /// And what looks wrong.
    Warn,
    /// And what the agent does.
    Info,
    /// And every try.
    Debug,
    /// A level that this build does not know.
    #[serde(other)]
    Other,
}

/// A rule for stopping a trial without asking the manager.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StopRule {
    /// The reason, for the verdict.
    pub reason: StopReason,
    /// The time that this one holds, in milliseconds from when the agent reads it, if that is less than the
    /// lease of all. Absence means as long as all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_ms: Option<u64>,
    /// The condition.
    #[serde(flatten)]
    pub when: StopWhen,
}

/// The condition that a [`StopRule`] waits for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "when", rename_all = "snake_case")]
pub enum StopWhen {
    /// The trial's process has run for so long.
    RunningFor {
        /// In milliseconds, by a monotonic clock.
        ms: u64,
    },
    /// An intermediate result is out of bounds. One that is no number, NaN included, is in no bounds.
    Metric {
        /// Name of the metric.
        name: String,
        /// The first result, by its `sequence`, to which this applies. Absence means the first of all.
        #[serde(default, skip_serializing_if = "is_zero")]
        from_sequence: u64,
        /// The least that is in bounds. Absence means that nothing is too small.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        at_least: Option<f64>,
        /// The most that is in bounds. Absence means that nothing is too large.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        at_most: Option<f64>,
    },
    /// The best intermediate result so far is worse than is wanted after so many of them. One that is no
    /// number, NaN included, is worse than any.
    Best {
        /// Name of the metric.
        name: String,
        /// The direction in which results are better.
        better: Better,
        /// After how many results the first of the bounds applies, from 1.
        from_results: u64,
        /// The worst that is good enough after so many results, after one more, and so on. After more results than
        /// have a bound nothing is wanted.
        bounds: Vec<f64>,
    },
    /// A condition that this build does not know: it never holds.
    #[serde(other)]
    Unknown,
}

/// The direction in which results are better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Better {
    /// The larger one.
    Larger,
    /// The smaller one.
    Smaller,
    /// By an order that this build does not know: then no result is worse than another.
    #[serde(other)]
    Other,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// The reason for stopping a trial from outside. A closed set: the final state is never guessed.
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
