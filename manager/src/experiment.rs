//! The experiment: a pure state machine and the task that performs what it decides.

use tokio::sync::mpsc;
use trial_protocol::{AttemptId, Directive, Report, TrialJobId};

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
}

impl Handle {
    /// A handle, and the events it sends: for the task, or for a test.
    pub fn new(capacity: usize) -> (Self, mpsc::Receiver<Event>) {
        let (events, receiver) = mpsc::channel(capacity);
        (Self { events }, receiver)
    }

    /// Tells the experiment what an agent reported for the first time. Waits while the experiment is
    /// busy; an experiment that has ended is no error.
    pub async fn reported(&self, trial: TrialJobId, attempt: AttemptId, fresh: Vec<Report>) {
        drop(self.events.send(Event::Reported { trial, attempt, fresh }).await);
    }

    /// The directives that wait for a trial's agent.
    pub fn directives(&self, _trial: &TrialJobId) -> Vec<Directive> {
        Vec::new()
    }

    /// An agent has obeyed these directives.
    pub fn obeyed(&self, _trial: &TrialJobId, _ids: &[u64]) {}
}
