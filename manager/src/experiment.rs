//! The experiment: a pure state machine ([`state`]) and the task that performs what it decides
//! ([`conduct`]). Others talk to it through a [`Handle`].

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use trial_protocol::{AttemptId, Directive, DirectiveBody, Report, StopReason, TrialJobId};

pub mod conduct;
pub mod ending;
pub mod notice;
pub mod result;
pub mod state;

/// What the experiment is told.
#[derive(Debug)]
pub enum Event {
    /// Reports of the facts lane were stored for the first time, in this order.
    Reported {
        /// Which trial.
        trial: TrialJobId,
        /// Which attempt of it.
        attempt: AttemptId,
        /// The reports; empty for a heartbeat.
        fresh: Vec<Report>,
    },
}

/// Talks to the experiment's task; cheap to clone.
#[derive(Debug, Clone)]
pub struct Handle {
    events: mpsc::Sender<Event>,
    stop: CancellationToken,
    directives: Arc<Mutex<Directives>>,
}

/// The orders that wait to be obeyed.
#[derive(Debug, Default)]
struct Directives {
    next_id: u64,
    waiting: HashMap<TrialJobId, Vec<Directive>>,
}

impl Handle {
    /// A handle, and the events it sends: for the task, or for a test.
    pub fn new(capacity: usize) -> (Self, mpsc::Receiver<Event>) {
        let (events, receiver) = mpsc::channel(capacity);
        (Self { events, stop: CancellationToken::new(), directives: Arc::default() }, receiver)
    }

    /// Tells the experiment what an agent reported for the first time. Waits while the experiment is
    /// busy; an experiment that has ended is no error.
    pub async fn reported(&self, trial: TrialJobId, attempt: AttemptId, fresh: Vec<Report>) {
        drop(self.events.send(Event::Reported { trial, attempt, fresh }).await);
    }

    /// Asks the experiment to stop its trials and leave itself resumable.
    pub fn stop(&self) {
        self.stop.cancel();
    }

    /// Waits until somebody has asked for the stop.
    async fn stopped(&self) {
        self.stop.cancelled().await;
    }

    /// The directives that wait for a trial's agent.
    pub fn directives(&self, trial: &TrialJobId) -> Vec<Directive> {
        self.lock().waiting.get(trial).cloned().unwrap_or_default()
    }

    /// An agent has obeyed these directives.
    pub fn obeyed(&self, trial: &TrialJobId, ids: &[u64]) {
        if let Some(waiting) = self.lock().waiting.get_mut(trial) {
            waiting.retain(|directive| !ids.contains(&directive.id));
        }
    }

    /// Orders a trial's agent to stop it.
    fn order_stop(&self, trial: &TrialJobId, reason: StopReason) {
        let mut directives = self.lock();
        let id = directives.next_id;
        directives.next_id += 1;
        let body = DirectiveBody::Stop { reason, grace_ms: None };
        directives.waiting.entry(trial.clone()).or_default().push(Directive { id, body });
    }

    /// A trial has ended: nobody is left to obey.
    fn forget(&self, trial: &TrialJobId) {
        self.lock().waiting.remove(trial);
    }

    fn lock(&self) -> MutexGuard<'_, Directives> {
        self.directives.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
