//! PURE: the time limits and settings by which a tracker judges workloads.

use std::time::Duration;

use crate::training_service::kubernetes::workload::Workload;

/// The time that a new workload may go unnoticed before the tracker gives that as the reason for waiting.
pub(super) const UNNOTICED_TIME: Duration = Duration::from_secs(20);
/// The interval between queries to the cluster about an idle workload.
pub(super) const QUERY_INTERVAL: Duration = Duration::from_mins(3);
/// The time for which pods may run before the tracker reports that no agent has started the trial. Most agents start
/// the trial within seconds. The receiver of this news checks whether an agent has reported.
pub(super) const AGENT_SILENCE_TIME: Duration = Duration::from_secs(30);
/// The time after which the tracker reads the end of a workload from its pods, if the controller has decided the end
/// but does not complete the workload.
pub(super) const SETTLE_TIME: Duration = Duration::from_mins(1);
/// The least time for which a workload waits that is suspended, but not by a queue that the tracker knows. A controller
/// of the cluster may have a queue of its own, which takes hours. A longer `startUpDeadline` applies instead.
pub(super) const MIN_SUSPENSION_LIMIT: Duration = Duration::from_hours(24);
/// The time beyond its pods' grace period in which a workload must end after a stop. Otherwise it is deleted.
pub(super) const STOP_MARGIN: Duration = Duration::from_mins(1);
/// The time beyond its grace period after which a terminating pod counts as gone with its node. A pod that survives
/// does no harm, because the next attempt has another number.
const NODE_GONE_TIME: Duration = Duration::from_mins(10);

/// The settings by which a tracker judges workloads.
#[derive(Debug, Clone, Copy)]
pub(super) struct TrackerRules {
    /// The kind of the workloads.
    pub(super) kind: &'static dyn Workload,
    /// The time within which the pods of a workload must start.
    pub(super) start_up: Duration,
    /// The grace period of the pods.
    pub(super) grace: Duration,
    /// The number of pods of a workload.
    pub(super) pods: u64,
}

impl TrackerRules {
    /// Returns the time in which a workload must end after a stop.
    pub(super) fn stop_limit(&self) -> Duration {
        self.grace + STOP_MARGIN
    }

    /// Returns the time after its deletion from which a pod counts as gone with its node.
    pub(super) fn node_gone_limit(&self) -> Duration {
        self.grace + NODE_GONE_TIME
    }
}
