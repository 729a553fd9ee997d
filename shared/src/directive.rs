//! Directives: instructions from the manager to an agent, sent with an acknowledgement.

use serde::{Deserialize, Serialize};

use crate::direction::{Direction, better};

/// A directive to the agent of one attempt. The manager repeats it on every ack until the agent reports it as obeyed.
/// The agent obeys it once, however often it arrives.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Directive {
    /// The id of the directive, unique within the experiment. Source: the manager's queue of directives,
    /// which begins at the wall clock, so that a later manager repeats no id.
    pub id: u64,
    /// The content of the directive.
    pub body: DirectiveBody,
}

/// The kinds of directives. The agent refuses a kind that it does not know, and reports the refusal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum DirectiveBody {
    /// End the trial: SIGTERM to its whole process tree, then SIGKILL after the grace.
    Stop {
        /// The reason to give in the verdict.
        reason: StopReason,
        /// The time between SIGTERM and SIGKILL, in milliseconds. Absence means the agent's own setting.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        grace_ms: Option<u64>,
    },
    /// Deliver everything now instead of waiting for a full batch.
    Flush,
    /// Set the level of the agent's own log.
    LogLevel {
        /// The level.
        level: LogLevel,
    },
    /// End the trial by these rules, even while no manager can be reached. They replace all earlier rules.
    StopRules {
        /// The rules. The first rule that applies ends the trial. Empty: no rules.
        rules: Vec<StopRule>,
        /// The time for which the rules hold, in milliseconds from when the agent reads them. It limits the use of
        /// outdated rules: the manager renews them in time or lets them expire.
        lease_ms: u64,
    },
    /// A directive that this build does not know.
    #[serde(other)]
    Unknown,
}

/// The detail of an agent's own log; each level includes those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LogLevel {
    /// Failures only.
    Error,
    /// Also suspicious conditions.
    Warn,
    /// Also the agent's actions.
    Info,
    /// Also every attempt at a delivery or connection.
    Debug,
    /// A level that this build does not know.
    #[serde(other)]
    Other,
}

/// A rule for stopping a trial without asking the manager.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StopRule {
    /// The reason to give in the verdict.
    pub reason: StopReason,
    /// The time for which this rule holds, in milliseconds from when the agent reads it, if shorter than the lease of
    /// all rules. Absence means the lease of all rules.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_ms: Option<u64>,
    /// The condition.
    #[serde(flatten)]
    pub when: StopWhen,
}

/// The condition under which a [`StopRule`] applies.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "when", rename_all = "snake_case")]
pub enum StopWhen {
    /// The trial's process has run for this long.
    RunningFor {
        /// The running time in milliseconds, by a monotonic clock.
        ms: u64,
    },
    /// An intermediate result is out of bounds. NaN, or a value that is not a number, is always out of bounds.
    Metric {
        /// Name of the metric.
        name: String,
        /// The `sequence` of the first result to which the rule applies. Absence means the first result.
        #[serde(default, skip_serializing_if = "is_zero")]
        from_sequence: u64,
        /// The smallest value in bounds. Absence means no lower bound.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        at_least: Option<f64>,
        /// The largest value in bounds. Absence means no upper bound.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        at_most: Option<f64>,
    },
    /// The best intermediate result so far is worse than the bound for the number of results so far. NaN, or a value
    /// that is not a number, is worse than any number.
    Best {
        /// Name of the metric.
        name: String,
        /// The direction in which results are better. `None`: no result is worse than another.
        #[serde(rename = "better", with = "better")]
        direction: Option<Direction>,
        /// The number of results from which the first bound applies, at least 1.
        from_results: u64,
        /// The worst acceptable best result after `from_results` results, after one more, and so on. After the last
        /// bound, the rule no longer applies.
        bounds: Vec<f64>,
    },
    /// A condition that this build does not know. It never applies.
    #[serde(other)]
    Unknown,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// The reason for a stop from outside the trial. The set is closed, so the final state is never guessed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StopReason {
    /// A user requested the stop.
    User,
    /// An assessor ended the trial early.
    EarlyStop,
    /// The trial exceeded `maxTrialDuration`.
    Deadline,
    /// The experiment reached its own limit.
    Budget,
    /// The manager shuts down. The experiment can be resumed.
    ManagerShutdown,
    /// The platform reclaims the machine.
    Preempted,
    /// A reason that this build does not know.
    #[serde(other)]
    Other,
}
