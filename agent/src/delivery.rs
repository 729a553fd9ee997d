//! Spool -> manager, oldest first, for as long as it takes.
//!
//! Each lane has one request in flight at a time, so that its order is kept, and neither waits for the
//! other. While a request is under way, new reports gather and make the next one. An idle lane sends at once.
//! The form of a batch on the wire is the dialect's; an NNI manager's has one lane and no heartbeat.
//!
//! Nothing here may end or delay the trial: every error is a reason to try again later. The total time is
//! not limited while the trial runs; after its end it is ([`Settings::flush`]), and what is left stays in
//! the spool. What only memory holds would be lost, so a manager that asks to wait is then waited for longer.
//!
//! The parts: `manager_session` sends one request, and `batch` sends one batch until it is settled. `lane` and `older`
//! have the loops over batches, `long_poll` keeps a request open, and `deadline` has the time that is left.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use trial_protocol::{AttemptId, Directive, Lane};

use crate::spool::{Dialect, LaneFiles, Sender, Spool};

mod address;
mod batch;
mod client_cache;
mod compression;
mod counts;
mod credentials;
mod deadline;
pub mod dialect;
mod lane;
mod local;
mod long_poll;
mod manager_session;
mod older;
#[cfg(test)]
mod tests;
mod token;

pub use crate::delivery::dialect::{Error, RetryDecision};
pub use address::ManagerAddress;
use batch::BatchDelivery;
pub use counts::Counts;
pub use credentials::Credentials;
use deadline::Deadline;
use lane::LaneDelivery;
pub use local::{LOCAL_BASE, LocalClient};
use long_poll::LongPoll;
use manager_session::ManagerSession;
use older::deliver_older;
pub use token::read as read_token;

/// Most JSON in a batch of facts, in bytes; a longer report travels alone.
const FACTS_BYTES: usize = 256 << 10;
/// First and longest mean time between tries; each is between nothing and twice that.
pub const BACKOFF: (Duration, Duration) =
    (Duration::from_millis(100), Duration::from_millis(7_500));
/// Longest time between tries once the trial has ended.
const BACKOFF_AT_END: Duration = Duration::from_millis(500);
/// The time beyond [`Settings::flush`] for a manager that asks to wait, if what it does not have is in memory only: its
/// disk may be the one that is full, and a person has to see to that.
pub const LAST_PATIENCE: Duration = Duration::from_mins(10);

/// The reason for undelivered reports where nothing failed.
const NOT_IN_TIME: &str = "the manager did not take them in time";

/// The settings of delivery.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Address of the manager.
    pub manager: ManagerAddress,
    /// A file with the bearer token, read again when it is refused.
    pub token_file: Option<PathBuf>,
    /// PEM file with the certificate authority that signed the manager's certificate, read again when the manager
    /// cannot be reached. `None`: the public ones.
    pub ca_file: Option<PathBuf>,
    /// The content of these files before the trial started, which may remove them.
    pub credentials: Credentials,
    /// The trial that the reports belong to.
    pub sender: Sender,
    /// Longest silence towards the manager; a shorter lease in an ack shortens it.
    pub heartbeat: Duration,
    /// The time that delivery may go on after the trial's end.
    pub flush: Duration,
    /// Becomes true when delivery has to end at once.
    pub give_up: watch::Receiver<bool>,
    /// The counts of delivery.
    pub counts: Arc<Counts>,
}

/// The remainder when delivery ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// Reports that the manager has not acknowledged; they stay in the spool.
    pub undelivered: u64,
    /// The reason, if any are.
    pub last_error: Option<String>,
}

/// Delivers until `ended` becomes true and everything is acknowledged, or `flush` after that is over.
/// Directives that arrive are sent on, each once.
pub async fn run(
    settings: Settings,
    spool: Spool,
    directives: mpsc::Sender<Directive>,
    ended: watch::Receiver<bool>,
) -> Outcome {
    let parts = Parts::new(&settings, &spool, directives, ended);
    let (older_facts_done, _) = watch::channel(false);
    let lane = |lane| {
        let Parts { session, deadline, batches, long_poll } = &parts;
        LaneDelivery::new(lane, &spool, session, deadline, batches, long_poll, &older_facts_done)
    };
    match settings.sender.dialect {
        Dialect::Native => {
            tokio::join!(lane(Lane::Facts).run(), lane(Lane::Bulk).run());
        }
        Dialect::Nni => lane(Lane::Facts).run().await,
    }
    parts.outcome(spool.pending())
}

/// Delivers the lanes of files that an earlier process left, as the attempt that wrote them.
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
    let parts = Parts::new(&settings, &Spool::open(memory).spool, directives, ended);
    let mut undelivered = 0;
    for lane in files {
        undelivered += deliver_older(&parts.batches, attempt, lane).await;
    }
    parts.outcome(undelivered)
}

/// The parts that both lanes share.
struct Parts {
    session: Arc<ManagerSession>,
    deadline: Arc<Deadline>,
    batches: BatchDelivery,
    long_poll: LongPoll,
}

impl Parts {
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

    /// Returns the outcome when `undelivered` reports are left.
    fn outcome(&self, undelivered: u64) -> Outcome {
        let why = || self.session.take_problem().unwrap_or_else(|| NOT_IN_TIME.to_owned());
        Outcome { undelivered, last_error: (undelivered > 0).then(why) }
    }
}
