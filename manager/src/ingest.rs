//! Accepts batches of reports: stores each batch in one transaction, acknowledges it, and forwards new reports to the
//! experiment.
//!
//! Promises:
//! 1. Every acknowledged report is durable.
//! 2. Each new report is sent to the experiment once and in order, even if the agent disconnects during the request.
//!    (After a crash between the two steps, the experiment reads the report from the store.)
//! 3. An agent that sends a batch is alive, even if the batch cannot be stored at present.
//!
//! The intake does not interpret reports, and does not depend on HTTP.

mod legacy_numbering;
mod received_batch;
#[cfg(test)]
mod tests;

use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;
use trial_protocol::{
    AttemptId, ExperimentId, Lane, NoCommonVersion, Offer, ReportAck, TrialJobId, capability,
};

pub use legacy_numbering::LegacyNumbering;
pub use received_batch::BatchError;
pub(crate) use received_batch::parse_batch;

use crate::experiment::ExperimentHandle;
use crate::store::{self, ReceivedBatch, Store};
use crate::util::clock::{Clock, to_ms};

/// The number of attempts that can report at the same time. With more, some attempts share a lock.
const INGEST_LOCKS: u64 = 1024;

/// The intake of batches; cheap to clone.
#[derive(Clone)]
pub struct Intake {
    inner: Arc<Inner>,
    lease_ms: Option<u64>,
}

struct Inner {
    store: Store,
    handle: ExperimentHandle,
    experiment: ExperimentId,
    clock: Arc<dyn Clock>,
    offer: Offer,
    /// The locks that are held from the commit until the experiment has received the reports. Two deliveries of one
    /// attempt (a request that timed out, and its repetition) thus keep their order.
    forwarding_locks: Vec<Mutex<()>>,
    hasher: RandomState,
}

/// The reason for which a batch was not accepted. The agent keeps the batch.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// The agent and the manager have no protocol version in common.
    #[error(
        "no common protocol version: {source}; use an agent and a manager with closer versions"
    )]
    NoCommonVersion {
        /// The offer of this manager.
        offer: Offer,
        /// The two ranges of versions.
        source: NoCommonVersion,
    },
    /// The batch is for another experiment.
    #[error("there is no experiment {0} here")]
    UnknownExperiment(ExperimentId),
    /// The trial does not exist.
    #[error("there is no trial {0}")]
    UnknownTrial(TrialJobId),
    /// The batch could not be stored.
    #[error("the reports could not be stored")]
    Store(#[source] store::Error),
    /// The manager is shutting down.
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
    /// Creates the intake of an experiment, without a lease.
    pub fn new(
        store: Store,
        handle: ExperimentHandle,
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
                forwarding_locks: (0..INGEST_LOCKS).map(|_| Mutex::default()).collect(),
                hasher: RandomState::new(),
            }),
            lease_ms: None,
        }
    }

    /// Sets the lease: the time that agents may be silent before they are considered lost.
    #[must_use]
    pub fn with_lease(mut self, lease: Duration) -> Self {
        self.lease_ms = Some(to_ms(lease));
        self
    }

    /// Returns the experiment of this intake.
    pub fn experiment(&self) -> &ExperimentId {
        &self.inner.experiment
    }

    /// Accepts a batch.
    pub async fn accept(&self, batch: impl Into<ReceivedBatch>) -> Result<ReportAck, Error> {
        let inner = Arc::clone(&self.inner);
        let received_batch = Arc::new(batch.into());
        // A separate task, which continues if the agent disconnects and the request is dropped. Otherwise a report
        // could be stored but never reach the tuner. If a shutdown interrupts the task, the next start reads the
        // reports from the store.
        let task = tokio::spawn(async move { inner.accept(received_batch).await });
        let ack = task.await.unwrap_or(Err(Error::Stopping))?;
        Ok(ReportAck { lease_ms: self.lease_ms, ..ack })
    }

    /// Waits until there is a directive for an attempt, and returns the acknowledgement with which its agent is
    /// called before its batch has arrived.
    pub async fn wait_for_directive(&self, trial: &TrialJobId, attempt: &AttemptId) -> ReportAck {
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
    async fn accept(&self, received_batch: Arc<ReceivedBatch>) -> Result<ReportAck, Error> {
        let (trial, attempt) =
            (received_batch.batch.trial.clone(), received_batch.batch.attempt.clone());
        let (through, resend) = self.store_and_notify(received_batch).await?;
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

    /// Stores a batch and forwards its new reports. Returns the number up to which the lane is stored then, and
    /// whether the agent must send the later reports again.
    async fn store_and_notify(
        &self,
        received_batch: Arc<ReceivedBatch>,
    ) -> Result<(Option<u64>, bool), Error> {
        let batch = &received_batch.batch;
        if let Err(source) = self.offer.agree(&batch.offer) {
            return Err(Error::NoCommonVersion { offer: self.offer.clone(), source });
        }
        if batch.experiment != self.experiment {
            return Err(Error::UnknownExperiment(batch.experiment.clone()));
        }
        let (trial, attempt, lane) = (batch.trial.clone(), batch.attempt.clone(), batch.lane);
        let obeyed = batch.obeyed.clone();

        let acknowledged = batch.acknowledged;

        let index = self.hasher.hash_one((&trial, &attempt, lane));
        let index = usize::try_from(index % INGEST_LOCKS).expect("it is small");
        let guard = self.forwarding_locks[index].lock().await;
        let ingested = match self.store.reports().ingest(received_batch, self.clock.now_ms()).await
        {
            Ok(ingested) => ingested,
            Err(error @ (store::Error::UnknownTrial(_) | store::Error::Superseded(_))) => {
                return Err(error.into());
            }
            Err(error) => {
                self.handle.send_reports(trial, attempt, Vec::new()).await;
                return Err(error.into());
            }
        };
        if ingested.resend {
            tracing::warn!(
                %trial, %attempt, stored = ingested.through, acknowledged,
                "the database is older than the reports that it has acknowledged: the agent sends its reports again"
            );
        }
        let fresh = match lane {
            Lane::Facts => ingested.fresh,
            Lane::Bulk => Vec::new(),
        };
        self.handle.remove_obeyed(&trial, &attempt, &obeyed);
        self.handle.send_reports(trial, attempt, fresh).await;
        drop(guard);
        Ok((ingested.through, ingested.resend))
    }
}
