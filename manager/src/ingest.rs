//! A batch of reports -> one transaction -> an ack; then the experiment is told what is new.
//!
//! Promises:
//! 1. Nothing is acknowledged that is not durable.
//! 2. Whatever was stored for the first time is told to the experiment, once and in order, also when the
//!    agent hangs up in the middle. (After a crash between the two, the experiment finds it in the store.)
//! 3. An agent that speaks is alive, even if what it says cannot be stored just now.
//!
//! The intake must not decide what a report means, and knows nothing of HTTP.

mod arrival;
#[cfg(test)]
mod tests;
mod unnumbered;

use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;
use trial_protocol::{
    AttemptId, ExperimentId, Lane, NoCommonVersion, Offer, ReportAck, TrialJobId, capability,
};

pub use arrival::Unreadable;
pub(crate) use arrival::read;
pub use unnumbered::Unnumbered;

use crate::experiment::Handle;
use crate::store::{self, Arrival, Store};
use crate::util::clock::Clock;

/// The number of attempts that can report at the same time. More only share a turn.
const TURNS: u64 = 1024;

/// Takes in batches; cheap to clone.
#[derive(Clone)]
pub struct Intake {
    inner: Arc<Inner>,
    lease_ms: Option<u64>,
}

struct Inner {
    store: Store,
    handle: Handle,
    experiment: ExperimentId,
    clock: Arc<dyn Clock>,
    offer: Offer,
    /// Held from the commit until the experiment has been told. Two deliveries of one attempt (a request that timed
    /// out, and its repetition) so cannot overtake each other in between.
    turns: Vec<Mutex<()>>,
    hasher: RandomState,
}

/// The reason that a batch was not taken. The agent keeps it.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// Agent and manager have no protocol version in common.
    #[error("no common protocol version: {source}; use an agent and a manager of closer age")]
    NoCommonVersion {
        /// The offer of this manager.
        offer: Offer,
        /// The two ranges.
        source: NoCommonVersion,
    },
    /// The batch is for another experiment than this manager's.
    #[error("there is no experiment {0} here")]
    UnknownExperiment(ExperimentId),
    /// There is no such trial.
    #[error("there is no trial {0}")]
    UnknownTrial(TrialJobId),
    /// It could not be stored.
    #[error("the reports could not be stored")]
    Store(#[source] store::Error),
    /// The manager is going away.
    #[error("the manager is shutting down")]
    Stopping,
}

impl From<store::Error> for Error {
    fn from(error: store::Error) -> Self {
        if let store::Error::UnknownTrial(trial) = error {
            Self::UnknownTrial(trial)
        } else {
            Self::Store(error)
        }
    }
}

impl Intake {
    /// An intake for one experiment. It promises no lease.
    pub fn new(
        store: Store,
        handle: Handle,
        experiment: ExperimentId,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self {
            inner: Arc::new(Inner {
                store,
                handle,
                experiment,
                clock,
                offer: Offer::new([capability::BULK, capability::GZIP, capability::OPEN]),
                turns: (0..TURNS).map(|_| Mutex::default()).collect(),
                hasher: RandomState::new(),
            }),
            lease_ms: None,
        }
    }

    /// Tells agents how long they may stay silent before they are taken for lost.
    #[must_use]
    pub fn with_lease(mut self, lease: Duration) -> Self {
        self.lease_ms = Some(u64::try_from(lease.as_millis()).unwrap_or(u64::MAX));
        self
    }

    /// The experiment whose reports it takes.
    pub fn experiment(&self) -> &ExperimentId {
        &self.inner.experiment
    }

    /// Takes in one batch.
    pub async fn accept(&self, batch: impl Into<Arrival>) -> Result<ReportAck, Error> {
        let inner = Arc::clone(&self.inner);
        let arrival = Arc::new(batch.into());
        // A task of its own: it goes on when the agent hangs up and the request is dropped. A report that was stored
        // and not told would never reach the tuner. The task ends by itself, and the next start finds in the store what
        // a shutdown cuts off.
        let task = tokio::spawn(async move { inner.accept(arrival).await });
        let ack = task.await.unwrap_or(Err(Error::Stopping))?;
        Ok(ReportAck { lease_ms: self.lease_ms, ..ack })
    }

    /// Waits until an attempt's agent should speak, because there is a directive for it; what to answer it
    /// then, before its batch has come.
    pub async fn call(&self, trial: &TrialJobId, attempt: &AttemptId) -> ReportAck {
        self.inner.handle.wait_for_directive(trial, attempt).await;
        ReportAck {
            offer: self.inner.offer.clone(),
            through: None,
            directives: Vec::new(),
            lease_ms: self.lease_ms,
            token: None,
            resend: false,
            other: std::collections::BTreeMap::new(),
        }
    }
}

impl Inner {
    async fn accept(&self, arrival: Arc<Arrival>) -> Result<ReportAck, Error> {
        let (trial, attempt) = (arrival.batch.trial.clone(), arrival.batch.attempt.clone());
        let (through, resend) = self.take_in(arrival).await?;
        Ok(ReportAck {
            offer: self.offer.clone(),
            through,
            directives: self.handle.directives(&trial, &attempt),
            lease_ms: None,
            token: None,
            resend,
            other: std::collections::BTreeMap::new(),
        })
    }

    /// Stores a batch and passes on what is new in it. Returns how far its lane is stored then, and whether the agent
    /// has to send again what comes after that.
    async fn take_in(&self, arrival: Arc<Arrival>) -> Result<(Option<u64>, bool), Error> {
        let batch = &arrival.batch;
        if let Err(source) = self.offer.agree(&batch.offer) {
            return Err(Error::NoCommonVersion { offer: self.offer.clone(), source });
        }
        if batch.experiment != self.experiment {
            return Err(Error::UnknownExperiment(batch.experiment.clone()));
        }
        let (trial, attempt, lane) = (batch.trial.clone(), batch.attempt.clone(), batch.lane);
        let obeyed = batch.obeyed.clone();

        let acknowledged = batch.acknowledged;

        let turn = self.hasher.hash_one((&trial, &attempt, lane));
        let turn = usize::try_from(turn % TURNS).expect("it is small");
        let turn = self.turns[turn].lock().await;
        let ingested = match self.store.ingest_shared(arrival, self.clock.now_ms()).await {
            Ok(ingested) => ingested,
            Err(error @ (store::Error::UnknownTrial(_) | store::Error::Superseded(_))) => {
                return Err(error.into());
            }
            Err(error) => {
                self.handle.reported(trial, attempt, Vec::new()).await;
                return Err(error.into());
            }
        };
        if ingested.resend {
            tracing::warn!(
                %trial, %attempt, stored = ingested.through, acknowledged,
                "the database is older than what it has confirmed: the agent is asked to send its reports again"
            );
        }
        let fresh = match lane {
            Lane::Facts => ingested.fresh,
            Lane::Bulk => Vec::new(),
        };
        self.handle.obeyed(&trial, &attempt, &obeyed);
        self.handle.reported(trial, attempt, fresh).await;
        drop(turn);
        Ok((ingested.through, ingested.resend))
    }
}
