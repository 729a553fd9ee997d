//! The experiment: a pure state machine ([`state`]) and the task that performs what it decides
//! ([`conduct`]). Others talk to it through a [`Handle`].

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use trial_protocol::{AttemptId, Directive, DirectiveBody, Report, TrialJobId};

use self::command::{Command, Refused};
use self::departed_pods::DepartedPods;
use self::directive_queue::DirectiveQueue;
use crate::util::clock::{Clock as _, SystemClock};

pub mod advice;
pub mod code_recorder;
pub mod command;
pub mod conduct;
pub mod departed_pods;
pub mod directive_queue;
pub mod ending;
pub mod lease;
pub mod notice;
pub mod result;
pub mod state;

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
    /// A person asks for something.
    Commanded {
        /// What.
        command: Command,
        /// Where the answer is waited for.
        reply: oneshot::Sender<Result<(), Refused>>,
    },
}

/// Talks to the experiment's task; cheap to clone.
#[derive(Debug, Clone)]
pub struct Handle {
    events: mpsc::Sender<TaskEvent>,
    stop: CancellationToken,
    leave: CancellationToken,
    directives: DirectiveQueue,
    departed: DepartedPods,
    /// The running time before this run, and when this run began. Empty until it has.
    began: Arc<OnceLock<(Duration, Instant)>>,
}

impl Handle {
    /// A handle, and the events it sends: for the task, or for a test.
    pub fn new(capacity: usize) -> (Self, mpsc::Receiver<TaskEvent>) {
        let (events, receiver) = mpsc::channel(capacity);
        let directives = DirectiveQueue::new(SystemClock.now_ms());
        let (stop, leave) = (CancellationToken::new(), CancellationToken::new());
        let departed = DepartedPods::default();
        (Self { events, stop, leave, directives, departed, began: Arc::default() }, receiver)
    }

    /// Tells the experiment what an agent reported for the first time. Waits while the experiment is
    /// busy; an experiment that has ended is no error.
    pub async fn reported(&self, trial: TrialJobId, attempt: AttemptId, fresh: Vec<Report>) {
        drop(self.events.send(TaskEvent::Reported { trial, attempt, fresh }).await);
    }

    /// Has the experiment do what a person asks for.
    pub async fn command(&self, command: Command) -> Result<(), Refused> {
        let (reply, answer) = oneshot::channel();
        let sent = self.events.send(TaskEvent::Commanded { command, reply }).await;
        sent.map_err(|_| Refused::NotRunning)?;
        answer.await.unwrap_or(Err(Refused::NotRunning))
    }

    /// Returns how long the experiment has run, interruptions left out. `None`: it has no task yet.
    pub fn elapsed(&self) -> Option<Duration> {
        self.began.get().map(|(before, began)| *before + began.elapsed())
    }

    /// The experiment goes on after having run for `before`.
    pub(crate) fn began(&self, before: Duration, began: Instant) {
        self.began.get_or_init(|| (before, began));
    }

    /// Asks the experiment to stop its trials and leave itself resumable.
    pub fn stop(&self) {
        self.stop.cancel();
    }

    /// Returns whether a stop was requested. An experiment may also stop because it cannot go on.
    pub fn is_to_stop(&self) -> bool {
        self.stop.is_cancelled()
    }

    /// Waits until a stop is requested.
    pub async fn stopped(&self) {
        self.stop.cancelled().await;
    }

    /// Asks the experiment to leave its trials to the next manager. One that is to stop stops.
    pub fn leave(&self) {
        self.leave.cancel();
    }

    /// Waits until that is requested.
    async fn left(&self) {
        self.leave.cancelled().await;
    }

    /// Returns whether an end of the experiment was requested, one way or the other.
    pub fn is_to_end(&self) -> bool {
        self.stop.is_cancelled() || self.leave.is_cancelled()
    }

    /// Waits until that is requested.
    async fn ending(&self) {
        tokio::select! {
            () = self.stopped() => {}
            () = self.left() => {}
        }
    }

    /// The directives that wait for an attempt's agent.
    pub fn directives(&self, trial: &TrialJobId, attempt: &AttemptId) -> Vec<Directive> {
        self.directives.of(trial, attempt)
    }

    /// An attempt's agent has obeyed these directives.
    pub fn obeyed(&self, trial: &TrialJobId, attempt: &AttemptId, ids: &[u64]) {
        self.directives.obeyed(trial, attempt, ids);
    }

    /// Waits until there is a directive for the attempt that no ack has carried yet.
    pub async fn wait_for_directive(&self, trial: &TrialJobId, attempt: &AttemptId) {
        self.directives.wake(trial, attempt).await;
    }

    /// Queues a directive for an attempt's agent.
    pub fn push_directive(&self, trial: &TrialJobId, attempt: &AttemptId, body: DirectiveBody) {
        self.directives.push(trial, attempt, body);
    }

    /// The pods that have left their trials.
    pub fn departed(&self) -> &DepartedPods {
        &self.departed
    }

    /// An attempt has ended: no agent is left to obey.
    fn forget(&self, trial: &TrialJobId, attempt: &AttemptId) {
        self.directives.forget(trial, attempt);
    }
}
