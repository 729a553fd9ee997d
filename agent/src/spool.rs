//! The agent's durable queue of reports: append -> seq, peek, ack.
//!
//! Owner's note: invariants and byte format go here.

use std::path::PathBuf;
use std::time::Duration;

use trial_protocol::{AttemptId, Lane, Report, ReportBody};

/// How a spool is to be kept.
#[derive(Debug, Clone)]
pub struct Options {
    /// Directory of the spool, made if absent. `None`: memory only.
    pub dir: Option<PathBuf>,
    /// The attempt whose reports are appended.
    pub attempt: AttemptId,
    /// Size over which bulk reports are shed, in bytes.
    pub limit_bytes: u64,
    /// Longest time between an append and its fsync, terminal reports excepted (those at once).
    pub sync_interval: Duration,
}

/// A cheap handle on the spool; all clones share it. Disk I/O happens on a thread of its own.
#[derive(Debug, Clone)]
pub struct Spool;

impl Spool {
    /// Opens the spool. Never fails: where the directory cannot be used, reports are kept in memory and
    /// the second value says why, for a person.
    pub fn open(_options: Options) -> (Self, Vec<String>) {
        (Self, Vec::new())
    }

    /// Appends a report to the lane of its kind. Never waits for the disk or the network.
    pub fn append(&self, _observed_at_ms: i64, _body: ReportBody) {}

    /// The oldest reports of `lane` that are not acknowledged, at most `max_bytes` of JSON but at least
    /// one report if there is any.
    pub fn peek(&self, _lane: Lane, _max_bytes: usize) -> Vec<Report> {
        Vec::new()
    }

    /// Forgets the reports of `lane` up to and including `through`.
    pub fn ack(&self, _lane: Lane, _through: u64) {}

    /// Waits until `lane` holds an unacknowledged report.
    pub async fn readable(&self, _lane: Lane) {}

    /// How many reports of both lanes are not acknowledged.
    pub fn pending(&self) -> u64 {
        0
    }

    /// Writes everything down (fsync) and ends the thread. Waits at most `bound`.
    pub async fn close(self, _bound: Duration) {}
}
