//! The experiment: a pure state machine ([`state`]) and the task that performs what it decides
//! ([`task`]). Others talk to it through an [`ExperimentHandle`].

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use trial_protocol::{AttemptId, Directive, DirectiveBody, Report, TrialJobId};

use self::command::{Command, CommandError};
use self::departed_pods::DepartedPods;
use self::directive_queue::DirectiveQueue;
use crate::util::clock::{Clock as _, SystemClock};

pub mod advisers;
pub mod code_recorder;
pub mod command;
pub mod departed_pods;
pub mod directive_queue;
pub mod ending;
pub mod lease;
pub mod notice;
pub mod pod_ends;
pub mod result;
pub mod state;
pub mod task;

/// The remedy for a search that does not continue by itself, at the end of a message.
const RESUME_REMEDY: &str = "after the problem is solved, continue with `trial-manager resume`, which uses the recorded \
     experiment file; if the mistake is in that file, correct it and start a new search with `trial-manager run`";

/// An event for the experiment.
#[derive(Debug)]
pub enum TaskEvent {
    /// Reports of the facts lane were stored for the first time, in this order.
    Reported {
        /// The trial.
        trial: TrialJobId,
        /// Its attempt.
        attempt: AttemptId,
        /// The reports; empty for a heartbeat.
        fresh: Vec<Report>,
    },
    /// A command of a user.
    Command {
        /// The command.
        command: Command,
        /// The channel for the answer.
        reply: oneshot::Sender<Result<(), CommandError>>,
    },
}

/// Talks to the experiment's task; cheap to clone.
#[derive(Debug, Clone)]
pub struct ExperimentHandle {
    events: mpsc::Sender<TaskEvent>,
    stop: CancellationToken,
    leave: CancellationToken,
    directives: DirectiveQueue,
    departed: DepartedPods,
    /// `false` for an experiment that is only shown.
    has_task: bool,
    /// The running time before this run, and the start of this run. Empty before the start.
    run_start: Arc<RwLock<Option<(Duration, Instant)>>>,
}

impl ExperimentHandle {
    /// Returns a handle and the receiver of its events, for the task or a test.
    pub fn new(capacity: usize) -> (Self, mpsc::Receiver<TaskEvent>) {
        let (events, receiver) = mpsc::channel(capacity);
        let directives = DirectiveQueue::new(SystemClock.now_ms());
        let (stop, leave) = (CancellationToken::new(), CancellationToken::new());
        let (departed, run_start) = (DepartedPods::default(), Arc::default());
        let handle = Self { events, stop, leave, directives, departed, has_task: true, run_start };
        (handle, receiver)
    }

    /// Returns a handle for an experiment without a manager, and the receiver of its events.
    pub fn without_task() -> (Self, mpsc::Receiver<TaskEvent>) {
        let (handle, receiver) = Self::new(1);
        (Self { has_task: false, ..handle }, receiver)
    }

    /// Returns whether the experiment has a manager, whose task may not have started yet.
    pub fn has_task(&self) -> bool {
        self.has_task
    }

    /// Sends an agent's new reports to the experiment. Waits while the experiment is busy. Has no effect if the
    /// experiment has ended.
    pub async fn send_reports(&self, trial: TrialJobId, attempt: AttemptId, fresh: Vec<Report>) {
        drop(self.events.send(TaskEvent::Reported { trial, attempt, fresh }).await);
    }

    /// Sends a user's command to the experiment, and returns its answer.
    pub async fn command(&self, command: Command) -> Result<(), CommandError> {
        let (reply, answer) = oneshot::channel();
        let sent = self.events.send(TaskEvent::Command { command, reply }).await;
        sent.map_err(|_| CommandError::NotRunning)?;
        answer.await.unwrap_or(Err(CommandError::NotRunning))
    }

    /// Returns the running time of the experiment without interruptions. `None`: its task has not started yet.
    pub fn elapsed(&self) -> Option<Duration> {
        let began = *self.run_start.read().unwrap_or_else(PoisonError::into_inner);
        began.map(|(before, began)| before + began.elapsed())
    }

    /// Sets the start of this run, and the running time `before` it. A search that continues after it was done begins
    /// later than its run.
    pub(crate) fn set_running_time(&self, before: Duration, began: Instant) {
        *self.run_start.write().unwrap_or_else(PoisonError::into_inner) = Some((before, began));
    }

    /// Asks the experiment to stop its trials and leave itself resumable.
    pub fn stop(&self) {
        self.stop.cancel();
    }

    /// Returns whether a stop was requested. An experiment may also stop because it cannot continue.
    pub fn is_stop_requested(&self) -> bool {
        self.stop.is_cancelled()
    }

    /// Waits until a stop is requested.
    pub async fn wait_for_stop(&self) {
        self.stop.cancelled().await;
    }

    /// Asks the experiment to leave its trials to the next manager. A requested stop takes precedence.
    pub fn leave(&self) {
        self.leave.cancel();
    }

    /// Waits until [`ExperimentHandle::leave`] is called.
    async fn wait_for_leave(&self) {
        self.leave.cancelled().await;
    }

    /// Returns whether [`ExperimentHandle::stop`] or [`ExperimentHandle::leave`] was called.
    pub fn is_end_requested(&self) -> bool {
        self.stop.is_cancelled() || self.leave.is_cancelled()
    }

    /// Waits until [`ExperimentHandle::stop`] or [`ExperimentHandle::leave`] is called.
    async fn wait_for_end(&self) {
        tokio::select! {
            () = self.wait_for_stop() => {}
            () = self.wait_for_leave() => {}
        }
    }

    /// Returns the directives that wait for an attempt's agent.
    pub fn directives(&self, trial: &TrialJobId, attempt: &AttemptId) -> Vec<Directive> {
        self.directives.pending_for(trial, attempt)
    }

    /// Removes the directives that an attempt's agent has obeyed.
    pub fn remove_obeyed(&self, trial: &TrialJobId, attempt: &AttemptId, ids: &[u64]) {
        self.directives.remove_obeyed(trial, attempt, ids);
    }

    /// Waits until there is a directive for the attempt that no ack has carried yet.
    pub async fn wait_for_directive(&self, trial: &TrialJobId, attempt: &AttemptId) {
        self.directives.wait_for_directive(trial, attempt).await;
    }

    /// Queues a directive for an attempt's agent.
    pub fn push_directive(&self, trial: &TrialJobId, attempt: &AttemptId, body: DirectiveBody) {
        self.directives.push(trial, attempt, body);
    }

    /// Returns the pods that have left their trials.
    pub fn departed(&self) -> &DepartedPods {
        &self.departed
    }

    /// Removes the directives of an ended attempt.
    fn remove_directives(&self, trial: &TrialJobId, attempt: &AttemptId) {
        self.directives.remove_all(trial, attempt);
    }
}
