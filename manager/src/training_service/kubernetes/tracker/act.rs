//! The actions that the tracker requests.

use trial_protocol::AttemptId;

use crate::training_service::JobNews;
use crate::training_service::kubernetes::outcome::Outcome;

/// An action that the tracker requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Act {
    /// Report this news to the experiment.
    Tell(JobNews),
    /// Stop the workload.
    Stop(String),
    /// The pods run and no agent has reported: read the reporting pod's last output, then call
    /// [`super::Tracker::unheard`].
    Listen(String),
    /// The workload makes no progress: find out why it has no pod, then call [`super::Tracker::podless`].
    Ask(String),
    /// Delete the workload, because it did not stop.
    Delete(String),
    /// Delete the workload of a trial that ended without it.
    Discard(String),
    /// The end was decided long ago: read it from the pods, then call [`super::Tracker::explained`].
    Settle(String),
    /// A queue holds a workload that names no queue: watch the queues.
    WatchQueue,
    /// Read the pods of a workload that ended with this outcome, then call [`super::Tracker::explained`].
    Inspect(String, Outcome),
    /// The workload was deleted: wait until its pods are gone, then call [`super::Tracker::pods_gone`].
    AwaitPods(String),
    /// Delete the remains of these attempts, which ended long ago.
    Tidy(Vec<AttemptId>),
}
