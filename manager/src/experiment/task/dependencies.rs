//! The dependencies of an experiment's task.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use trial_protocol::ExperimentId;

use super::inbox::Inbox;
use crate::config::ExperimentSpec;
use crate::experiment::ExperimentHandle;
use crate::experiment::advisers::Advisers;
use crate::experiment::code_recorder::CodeRecorder;
use crate::experiment::notice::Notice;
use crate::notifications::OutboxWaker;
use crate::store::Store;
use crate::token::Secret;
use crate::training_service::{JobNews, TrainingService};
use crate::util::clock::Clock;

/// The components that the task of an experiment works with.
pub struct Dependencies {
    /// The id of the experiment.
    pub id: ExperimentId,
    /// The specification.
    pub spec: ExperimentSpec,
    /// The store that records everything.
    pub store: Store,
    /// The tuner and the assessor.
    pub advisers: Advisers,
    /// The service that runs trials.
    pub service: Arc<dyn TrainingService>,
    /// Records the code with which attempts start. `None`: trials do not run in the code directory itself.
    pub code: Option<CodeRecorder>,
    /// The secret from which trials' tokens are derived.
    pub secret: Arc<Secret>,
    /// Queues directives for agents.
    pub handle: ExperimentHandle,
    /// Receives the messages of the handle.
    pub inbox: Inbox,
    /// Receives events from the training service.
    pub jobs: mpsc::UnboundedReceiver<JobNews>,
    /// Wakes the sender of notifications.
    pub waker: OutboxWaker,
    /// The receiver of notices.
    pub notices: mpsc::UnboundedSender<Notice>,
    /// The wall clock.
    pub clock: Arc<dyn Clock>,
    /// The time that an agent may be silent before its trial is `LOST`.
    pub lease: Duration,
    /// `true` if a search that is done waits for wider limits, until its end is requested.
    pub stays_open: bool,
}
