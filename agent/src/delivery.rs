//! Delivers reports from the spool to the manager, the oldest first, and tries again until it succeeds.
//!
//! Each lane has at most one request in flight, which preserves its order, and neither lane waits for the other. New
//! reports that arrive during a request form the next batch. An idle lane sends at once. The dialect defines the form
//! of a batch on the wire. The dialect of an NNI manager has one lane and no heartbeat.
//!
//! Delivery must never end or delay the trial: after every error it tries again later. While the trial runs, the total
//! time is unlimited. After its end, [`Settings::flush`] limits it, and undelivered reports stay in the spool. Reports
//! that are only in memory would be lost, so if the manager is busy, they get more time.
//!
//! The parts: `batch` selects the reports of a request, `manager_session` sends one request, and `batch_delivery` sends
//! one batch until it is settled. `lane` and
//! `earlier_attempts` loop over batches, `long_poll` keeps a request open, and `deadline` limits the time.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use trial_protocol::{AttemptId, Directive, Lane};

use crate::spool::{Dialect, LaneFiles, Sender, Spool};

mod address;
mod batch;
mod batch_delivery;
mod client_cache;
mod compression;
mod counts;
mod credentials;
mod deadline;
pub mod dialect;
mod earlier_attempts;
mod lane;
mod local;
mod long_poll;
mod manager_session;
#[cfg(test)]
mod tests;
mod token;

pub use crate::delivery::dialect::{Error, RetryDecision};
pub use address::ManagerAddress;
use batch_delivery::BatchDelivery;
pub use counts::DeliveryCounts;
pub use credentials::Credentials;
use deadline::Deadline;
use earlier_attempts::deliver_earlier_attempt;
use lane::LaneDelivery;
pub use local::{LOCAL_BASE, LocalClient};
use long_poll::LongPoll;
use manager_session::ManagerSession;
pub use token::read_token;

/// The maximum JSON in a batch of facts, in bytes. A longer report is sent alone.
const MAX_FACTS_BATCH_BYTES: usize = 256 << 10;
/// The mean pause before the second attempt. Each pause is random, between zero and twice the mean.
pub const FIRST_RETRY_PAUSE: Duration = Duration::from_millis(100);
/// The maximum mean pause between two attempts.
pub const MAX_RETRY_PAUSE: Duration = Duration::from_millis(7_500);
/// The longest pause between two attempts after the trial's end.
const FINAL_BACKOFF: Duration = Duration::from_millis(500);
/// The extra time after [`Settings::flush`] for a busy manager, if undelivered reports are only in memory. The
/// manager's disk may be full, which a person has to fix.
pub const FINAL_DELIVERY_TIMEOUT: Duration = Duration::from_mins(10);

/// The reason for undelivered reports if no request failed.
const OUT_OF_TIME_REASON: &str = "the manager did not accept them in time";

/// The settings of delivery.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Address of the manager.
    pub manager: ManagerAddress,
    /// A file with the bearer token, read again when the manager refuses the token.
    pub token_file: Option<PathBuf>,
    /// PEM file with the certificate authority that signed the manager's certificate, read again when the manager
    /// cannot be reached. `None`: the public authorities.
    pub ca_file: Option<PathBuf>,
    /// The content of these files before the trial started. The trial may remove the files.
    pub credentials: Credentials,
    /// The trial that the reports belong to.
    pub sender: Sender,
    /// The maximum time between two messages to the manager. A lease in an ack may shorten it.
    pub heartbeat: Duration,
    /// The time that delivery may continue after the trial's end.
    pub flush: Duration,
    /// Becomes `true` when delivery must end at once.
    pub abort: watch::Receiver<bool>,
    /// The counts of delivery.
    pub counts: Arc<DeliveryCounts>,
}

/// The result of delivery.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// The number of reports that the manager has not acknowledged. They stay in the spool.
    pub undelivered: u64,
    /// The reason, if there are any.
    pub last_error: Option<String>,
}

/// Delivers until `ended` is true and everything is acknowledged, or until `flush` has passed after `ended`. Passes on
/// each received directive once.
pub async fn run(
    settings: Settings,
    spool: Spool,
    directives: mpsc::Sender<Directive>,
    ended: watch::Receiver<bool>,
) -> Outcome {
    let parts = LaneContext::new(&settings, &spool, directives, ended);
    let (earlier_facts_delivered, _) = watch::channel(false);
    let lane = |lane| {
        let LaneContext { session, deadline, batches, long_poll } = &parts;
        LaneDelivery::new(
            lane,
            &spool,
            session,
            deadline,
            batches,
            long_poll,
            &earlier_facts_delivered,
        )
    };
    match settings.sender.dialect {
        Dialect::Native => {
            tokio::join!(lane(Lane::Facts).run(), lane(Lane::Bulk).run());
        }
        Dialect::Nni => lane(Lane::Facts).run().await,
    }
    parts.outcome(spool.pending())
}

/// Delivers the lanes of files that an earlier process left, under the attempt that wrote them.
pub async fn deliver_files(
    settings: Settings,
    attempt: &AttemptId,
    files: Vec<LaneFiles>,
) -> Outcome {
    let (directives, _) = mpsc::channel(1);
    let (_keep, ended) = watch::channel(true);
    let memory = crate::spool::Options {
        dir: None,
        attempt: attempt.clone(),
        sender: None,
        limit_bytes: 0,
        sync_interval: Duration::from_hours(1),
        now_ms: 0,
    };
    let parts = LaneContext::new(&settings, &Spool::open(memory).spool, directives, ended);
    let mut undelivered = 0;
    for lane in files {
        undelivered += deliver_earlier_attempt(&parts.batches, attempt, lane).await;
    }
    parts.outcome(undelivered)
}

/// The parts that both lanes share.
struct LaneContext {
    session: Arc<ManagerSession>,
    deadline: Arc<Deadline>,
    batches: BatchDelivery,
    long_poll: LongPoll,
}

impl LaneContext {
    fn new(
        settings: &Settings,
        spool: &Spool,
        directives: mpsc::Sender<Directive>,
        ended: watch::Receiver<bool>,
    ) -> Self {
        let session = Arc::new(ManagerSession::new(settings, directives));
        let deadline = Deadline::new(settings, Arc::clone(&session), spool.clone(), ended);
        let deadline = Arc::new(deadline);
        let (shared, time) = (|| Arc::clone(&session), || Arc::clone(&deadline));
        let batches = BatchDelivery::new(shared(), time(), spool.attempt().clone());
        let long_poll = LongPoll::new(shared(), time(), spool.clone());
        Self { session, deadline, batches, long_poll }
    }

    /// Returns the outcome if `undelivered` reports remain.
    fn outcome(&self, undelivered: u64) -> Outcome {
        let why = || self.session.take_problem().unwrap_or_else(|| OUT_OF_TIME_REASON.to_owned());
        Outcome { undelivered, last_error: (undelivered > 0).then(why) }
    }
}
