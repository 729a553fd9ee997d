//! The actions that the tracker requests.

use trial_protocol::AttemptId;

use crate::training_service::JobNews;
use crate::training_service::kubernetes::outcome::WorkloadOutcome;

/// An action that the tracker requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TrackerAction {
    /// Reports this news to the experiment.
    Report(JobNews),
    /// Stops the workload.
    Stop(String),
    /// Reads the last output of the reporting pod, then calls [`super::Tracker::handle_silent_agent`]. The pods
    /// have run for a while, and the tracker knows of no report.
    ReadOutput(String),
    /// Finds out why the workload has no pod, then calls [`super::Tracker::handle_missing_pod`] or
    /// [`super::Tracker::handle_denied_pod`]. The workload makes no progress.
    QueryMissingPod(String),
    /// Deletes the workload, because it did not stop.
    DeleteUnstopped(String),
    /// Deletes the workload of a trial that ended without it.
    DeleteLeftover(String),
    /// Concludes the end from the pods, then calls [`super::Tracker::complete_end`]. The controller decided the end long
    /// ago and has not completed the workload.
    ConcludeFromPods(String),
    /// Watches the queues, because one of them holds a workload that names no queue.
    WatchQueue,
    /// Explains this outcome of an ended workload by its pods, then calls [`super::Tracker::complete_end`].
    ExplainFromPods(String, WorkloadOutcome),
    /// Waits until the pods of a deleted workload are gone, then calls [`super::Tracker::end_deleted_workload`].
    AwaitPods(String),
    /// Deletes the remains of these attempts, which ended long ago.
    DeleteRemains(Vec<AttemptId>),
}
