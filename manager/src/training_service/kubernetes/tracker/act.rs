//! The actions that the tracker decides on.

use trial_protocol::AttemptId;

use crate::training_service::JobNews;
use crate::training_service::kubernetes::outcome::Outcome;

/// An action that the tracker requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Act {
    /// Tell the experiment.
    Tell(JobNews),
    /// Ask the workload to stop.
    Stop(String),
    /// Its pods run and nothing was heard: look what the pod that reports says, and [`super::Tracker::unheard`].
    Listen(String),
    /// Nothing happens to it: ask the cluster why it has no pod, and then [`super::Tracker::podless`].
    Ask(String),
    /// Delete the workload: it did not stop.
    Delete(String),
    /// Delete the workload of a trial that has ended without it.
    Discard(String),
    /// It is long decided how the workload ends: read it from the pods, and then [`super::Tracker::explained`].
    Settle(String),
    /// A queue holds a workload that names none: watch what the queues say.
    WatchQueue,
    /// Read the pods of a workload that ended so, and then [`super::Tracker::explained`].
    Inspect(String, Outcome),
    /// The workload was deleted: wait until its pods are gone, and then [`super::Tracker::pods_gone`].
    AwaitPods(String),
    /// Delete what is left of these attempts, which ended long ago.
    Tidy(Vec<AttemptId>),
}
