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
    /// Reads the last output of the reporting pod, then calls [`super::Tracker::handle_silent_agent`]. The pods run and
    /// no agent has reported.
    ReadOutput(String),
    /// Finds out why the workload has no pod, then calls [`super::Tracker::handle_missing_pod`] or
    /// [`super::Tracker::handle_denied_pod`]. The workload makes no progress.
    QueryMissingPod(String),
    /// Deletes the workload, because it did not stop.
    Delete(String),
    /// Deletes the workload of a trial that ended without it.
    Discard(String),
    /// Reads the end from the pods, then calls [`super::Tracker::complete_end`]. The controller decided the end long
    /// ago and has not completed the workload.
    ReadEnd(String),
    /// Watches the queues, because one of them holds a workload that names no queue.
    WatchQueue,
    /// Reads the pods of a workload that ended with this outcome, then calls [`super::Tracker::complete_end`].
    InspectPods(String, WorkloadOutcome),
    /// Waits until the pods of a deleted workload are gone, then calls [`super::Tracker::end_deleted_workload`].
    AwaitPods(String),
    /// Deletes the remains of these attempts, which ended long ago.
    DeleteRemains(Vec<AttemptId>),
}
