//! The agent's durable queue of reports. Its operations are append, which assigns a seq, peek and ack.
//!
//! The spool must not block its caller. [`Spool::append`] hands the report to the spool's own thread and returns, so a
//! slow disk never delays the trial, its pipes or its signals.
//!
//! # Invariants
//!
//! 1. Within a lane, `seq` rises with every append and is never used twice. A process that has a manager, or continues
//!    an attempt, starts its numbering at a number derived from the clock ([`Options::now_ms`]). The reason is that an
//!    earlier process may have sent reports that are on no disk, or on the disk of another container. If the clock was
//!    set back since, the process continues after the numbers on the disk. It then skips as many numbers as can have
//!    been in use without a sync. It relies on the clock alone only if the disk has no reports of the attempt, or if
//!    there is no disk.
//! 2. A report is offered for delivery once it was written to its segment. If the disk does not respond, the report is
//!    offered at once, because then only delivery preserves it.
//! 3. A report is forgotten when the manager has acknowledged it. On the bulk lane, reports are also dropped when the
//!    spool is full: logs first, then samples. Dropped reports are counted, and the count is reported as a fact.
//! 4. Facts are never dropped. While the disk is full or slow, they wait in memory. If a trial reports faster than the
//!    disk writes, the agent's memory grows, because a lost result would be worse.
//! 5. Records are read back exactly as they were written: each contains its length and a CRC32C. A record that a crash
//!    cut short ends its segment; everything before it is kept.
//! 6. One process at a time uses a directory. It holds an exclusive lock on `lock` for as long as it lives. A second
//!    process keeps its reports in memory and prints a warning.
//!
//! # On disk
//!
//! ```text
//! <dir>/lock                             locked by its user; first line: process id, second: attempt
//! <dir>/<attempt>/sender.json            the reports' trial; written before the first report, replaced atomically
//! <dir>/<attempt>/<lane>-<first seq>.seg 20 digits, so that names sort as numbers
//! <dir>/<attempt>/<lane>.ack             "<seq>\n": acknowledged through; replaced atomically
//! <dir>/<attempt>/<lane>.forgotten       "<seq>\n": deleted through, while segments remain; replaced atomically
//! ```
//!
//! A segment consists of the eight bytes `TKSPOOL1` and then records. A record is the length of the payload (u32,
//! little endian), the CRC32C of seq and payload (u32), seq (u64), and the payload (the report as JSON). A segment is
//! deleted when all of its reports are acknowledged. The newest few segments of facts stay until the attempt's end,
//! because a manager whose database was replaced by an older copy requests them again. The `.ack` file stays, which
//! preserves invariant 1.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, oneshot};
use trial_protocol::{AttemptId, ExperimentId, Lane, ReportBody, TrialJobId};

mod disk;
pub mod lane_files;
pub mod lock;
mod queue;
pub mod record;

#[cfg(test)]
mod tests;

pub use lane_files::LaneFiles;
pub use lock::SpoolLock;
use queue::{DiskState, Lifecycle, QueueState, QueuedReport, SpoolRequest, first_records};
pub use record::Record;

/// The maximum number of bytes of logs that may wait for a disk that writes.
const MAX_UNWRITTEN_BYTES: usize = 64 << 10;

/// The maximum time to wait for a disk that does not answer.
pub const DISK_TIMEOUT: Duration = Duration::from_secs(1);

/// The name of the file that identifies the trial of the reports.
const SENDER_FILE: &str = "sender.json";

/// The options of a spool.
#[derive(Debug, Clone)]
pub struct Options {
    /// Directory of the spool, created if absent. `None`: memory only.
    pub dir: Option<PathBuf>,
    /// The attempt whose reports are appended.
    pub attempt: AttemptId,
    /// The trial that the reports belong to. It is written into the directory, so that the reports can be delivered
    /// later. `None`: an attempt without a manager.
    pub sender: Option<Sender>,
    /// The size in bytes above which bulk reports are dropped.
    pub limit_bytes: u64,
    /// Maximum time between an append and its fsync. Terminal reports are synced earlier. [`Duration::MAX`] leaves the
    /// time to the kernel, for reports that no manager awaits. Such reports outlive the agent, but may not outlive a
    /// power failure.
    pub sync_interval: Duration,
    /// The current time, in milliseconds since the Unix epoch.
    pub now_ms: i64,
}

/// The trial that the reports of a spool belong to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sender {
    /// Id of the experiment.
    pub experiment: ExperimentId,
    /// Id of the trial.
    pub trial: TrialJobId,
    /// The protocol of the records. Absence means the native one.
    #[serde(default, skip_serializing_if = "Dialect::is_native")]
    pub dialect: Dialect,
}

/// The protocol of a spool's records.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Dialect {
    /// Reports of `trial-protocol`, in two lanes.
    #[default]
    Native,
    /// Bodies of requests to an NNI manager's cluster server, all on the facts lane, in the order of their arrival.
    Nni,
}

impl Dialect {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks in this way")]
    fn is_native(&self) -> bool {
        *self == Self::Native
    }
}

/// The treatment of a text when the spool is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retention {
    /// The report is dropped.
    IfRoom,
    /// The report is kept.
    Always,
    /// The report is kept and soon synced to the disk: the last report of an attempt.
    SyncSoon,
}

/// The position of a lane in the delivery to its manager.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cursor {
    /// The highest seq that a manager has acknowledged. `None`: nothing is acknowledged.
    pub acknowledged: Option<u64>,
    /// The highest seq that cannot be delivered again. `None`: all reports can.
    pub forgotten: Option<u64>,
}

impl Sender {
    /// Reads the trial that an attempt's reports in the spool `dir` belong to.
    pub fn read(dir: &Path, attempt: &AttemptId) -> io::Result<Self> {
        let bytes = std::fs::read(dir.join(attempt.as_str()).join(SENDER_FILE))?;
        serde_json::from_slice(&bytes).map_err(io::Error::from)
    }

    /// Writes the sender into an attempt's directory, unless it is already there.
    fn write(&self, dir: &Path) -> io::Result<()> {
        let json = serde_json::to_vec(self).expect("two texts are JSON");
        let path = dir.join(SENDER_FILE);
        if std::fs::read(&path).is_ok_and(|there| there == json) {
            return Ok(());
        }
        replace_file(&path, &json)
    }
}

/// Replaces a file atomically. An interrupted call leaves a file that the next one overwrites.
fn replace_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    std::fs::write(&new, bytes)?;
    std::fs::rename(new, path)
}

#[derive(Debug)]
struct SpoolShared {
    state: Mutex<QueueState>,
    /// Wakes the disk thread.
    work: Condvar,
    /// Wakes the threads that wait for the disk to catch up.
    written: Condvar,
    facts_readable: Notify,
    bulk_readable: Notify,
    limit_bytes: u64,
}

/// A cheap handle to the spool. All clones share the spool, whose disk I/O happens on a separate thread.
#[derive(Debug, Clone)]
pub struct Spool {
    shared: Arc<SpoolShared>,
    earlier: Arc<[AttemptId]>,
    dir: Option<PathBuf>,
    attempt: AttemptId,
    /// Held until the last handle is dropped.
    _lock: Option<Arc<lock::DirLock>>,
}

/// The outcome of opening a spool.
#[derive(Debug)]
pub struct OpenedSpool {
    /// The spool, usable in any case.
    pub spool: Spool,
    /// Warnings for the user.
    pub warnings: Vec<String>,
}

impl Spool {
    /// Opens the spool. Never fails: if the directory cannot be used, reports are kept in memory, and a warning gives
    /// the reason.
    pub fn open(options: Options) -> OpenedSpool {
        let lock = SpoolLock::acquire(options.dir.as_deref(), &options.attempt);
        Self::open_locked(options, lock)
    }

    /// Opens the spool whose directory was locked before. Never fails.
    pub fn open_locked(options: Options, lock: SpoolLock) -> OpenedSpool {
        let mut warnings = Vec::new();
        let mut held = None;
        if let (Some(dir), Some(acquired)) = (&options.dir, lock.0) {
            match acquired {
                Ok(lock) => held = Some((dir.clone(), Arc::new(lock))),
                Err(error) => warnings.push(describe_unused_dir(dir, &error)),
            }
        }
        let mut earlier: Vec<AttemptId> = Vec::new();
        let mut state = QueueState::default();
        let mut files = None;
        if let Some((dir, _)) = &held {
            let own = dir.join(options.attempt.as_str());
            let known = own.exists();
            match disk::AttemptFiles::open(&own, options.sender.clone()) {
                Ok(opened) => {
                    state.disk = DiskState::Working;
                    for (lane, files) in
                        [(&mut state.facts, &opened.facts), (&mut state.bulk, &opened.bulk)]
                    {
                        lane.continue_from(files.summary(), files.forgotten(), known);
                        if known || options.sender.is_some() {
                            let clock_seq = first_seq_at(options.now_ms);
                            lane.next_seq = lane.next_seq.max(clock_seq);
                        }
                    }
                    files = Some(opened);
                    // A volume may hold reports of other trials, which only their agents deliver.
                    earlier = lane_files::list_attempts(dir);
                    earlier.retain(|attempt| {
                        *attempt != options.attempt
                            && Sender::read(dir, attempt).ok() == options.sender
                    });
                }
                Err(error) => {
                    warnings.push(format!("{error}; reports are kept in memory"));
                }
            }
        }
        if state.disk == DiskState::Absent && (options.dir.is_some() || options.sender.is_some()) {
            let first = first_seq_at(options.now_ms);
            (state.facts.next_seq, state.bulk.next_seq) = (first, first);
        }
        let shared = Arc::new(SpoolShared {
            state: Mutex::new(state),
            work: Condvar::new(),
            written: Condvar::new(),
            facts_readable: Notify::new(),
            bulk_readable: Notify::new(),
            limit_bytes: options.limit_bytes,
        });
        if let Some(files) = files {
            disk::spawn(&shared, files, options.sync_interval);
        }
        let (dir, lock) = held.map_or((None, None), |(dir, lock)| (Some(dir), Some(lock)));
        let attempt = options.attempt;
        let spool = Self { shared, earlier: earlier.into(), dir, attempt, _lock: lock };
        OpenedSpool { spool, warnings }
    }

    /// Returns the attempt whose reports are appended.
    pub fn attempt(&self) -> &AttemptId {
        &self.attempt
    }

    /// Returns the attempts of earlier processes, the oldest first.
    pub fn earlier_attempts(&self) -> &[AttemptId] {
        &self.earlier
    }

    /// Returns the files of one lane of an earlier attempt, or `None` if they cannot be read.
    pub fn earlier_lane(&self, attempt: &AttemptId, lane: Lane) -> Option<LaneFiles> {
        LaneFiles::open(&self.dir.as_ref()?.join(attempt.as_str()), lane).ok()
    }

    /// Appends a report to its lane. Never waits for the disk or the network.
    pub fn append(&self, observed_at_ms: i64, body: ReportBody) {
        let mut state = self.shared.lock();
        if state.lifecycle == Lifecycle::Open {
            state.push(observed_at_ms, body, self.shared.limit_bytes);
            state.report_shed(observed_at_ms, self.shared.limit_bytes);
        }
        let offered = state.disk == DiskState::Absent;
        self.shared.wake_disk_thread(state);
        if offered {
            self.shared.notify_readers();
        }
    }

    /// Waits until most of the logs are on the disk. The caller is the thread that reads the trial's output, possibly
    /// faster than the disk can write it. A hanging disk is waited for once, for at most [`DISK_TIMEOUT`].
    pub fn wait_for_disk(&self) {
        let mut state = self.shared.lock();
        while state.disk == DiskState::Working
            && !state.disk_wait_timed_out
            && state.bulk.unwritten_bytes() > MAX_UNWRITTEN_BYTES
        {
            state.waiting_callers += 1;
            let waited = self.shared.written.wait_timeout(state, DISK_TIMEOUT);
            let (woken, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            state = woken;
            state.waiting_callers -= 1;
            // Reset when the disk has written something.
            state.disk_wait_timed_out |= timeout.timed_out();
        }
    }

    /// Appends a record of another dialect to the facts lane, which preserves the order of all records. Never waits for
    /// the disk or the network. Returns `false` if the record was dropped.
    pub fn append_text(&self, text: String, keep: Retention) -> bool {
        let mut state = self.shared.lock();
        let taken = state.lifecycle == Lifecycle::Open
            && state.push_text(text, keep, self.shared.limit_bytes);
        let offered = state.disk == DiskState::Absent;
        self.shared.wake_disk_thread(state);
        if offered {
            self.shared.notify_readers();
        }
        taken
    }

    /// Returns the oldest reports of `lane` that are not acknowledged: at most `max_bytes` of JSON, but at least one
    /// report if there is any. Reads reports from the disk that are no longer in memory. Returns none if that fails.
    pub async fn peek(&self, lane: Lane, max_bytes: usize) -> Vec<Record> {
        let answer = {
            let mut state = self.shared.lock();
            let unwritten_too = state.disk != DiskState::Working;
            let own = state.lane_mut(lane);
            let Some(through) = own.spilled_through else {
                let offered = |entry: &&QueuedReport| entry.written || unwritten_too;
                return first_records(
                    own.memory.iter().take_while(offered).map(|e| &e.record),
                    max_bytes,
                );
            };
            let after = own.acked;
            let (sender, answer) = oneshot::channel();
            state.requests.push_back(SpoolRequest::Read {
                lane,
                after,
                through,
                max_bytes,
                sender,
            });
            self.shared.wake_disk_thread(state);
            answer
        };
        match answer.await {
            Ok(Ok(found)) if found.is_empty() => {
                // The requested records are damaged: continue with the others.
                let mut state = self.shared.lock();
                let own = state.lane_mut(lane);
                if let Some(through) = own.spilled_through {
                    own.forget(through);
                    own.forgotten = own.forgotten.max(Some(through));
                }
                drop(state);
                self.shared.notify_readers();
                found
            }
            Ok(Ok(found)) => {
                let sizes = found.iter().map(|record| (record.seq, record::disk_size(record)));
                self.shared.lock().lane_mut(lane).read_back = sizes.collect();
                found
            }
            // The disk may answer again. Nothing is forgotten, and the caller tries again later.
            Ok(Err(_)) | Err(_) => Vec::new(),
        }
    }

    /// Forgets the reports of `lane` up to and including `through`.
    pub fn ack(&self, lane: Lane, through: u64) {
        let mut state = self.shared.lock();
        state.lane_mut(lane).forget(through);
        if state.disk != DiskState::Absent {
            state.requests.push_back(SpoolRequest::Ack { lane, through });
        }
        self.shared.wake_disk_thread(state);
    }

    /// Offers the facts after `to` for delivery again, as far as they are on the disk. The manager lost them after it
    /// had acknowledged them.
    pub async fn rewind(&self, to: Option<u64>) {
        let done = {
            let mut state = self.shared.lock();
            if state.disk == DiskState::Absent || state.lifecycle != Lifecycle::Open {
                state.facts.forgotten = state.facts.acked;
                return;
            }
            let (done, waits) = oneshot::channel();
            state.requests.push_back(SpoolRequest::Rewind { to, done });
            self.shared.wake_disk_thread(state);
            waits
        };
        // A missing answer means that the thread has ended, and with it the spool.
        drop(done.await);
    }

    /// Forgets a fact that the manager permanently refuses.
    pub fn forget_refused(&self, seq: u64) {
        let mut state = self.shared.lock();
        state.facts.forgotten = state.facts.forgotten.max(Some(seq));
    }

    /// Returns the last acknowledged fact, and the last one that cannot be delivered again.
    pub fn cursor(&self) -> Cursor {
        let state = self.shared.lock();
        Cursor { acknowledged: state.facts.acked, forgotten: state.facts.forgotten }
    }

    /// Waits until `lane` holds a report that can be delivered.
    pub async fn wait_until_readable(&self, lane: Lane) {
        let notify = self.shared.readable_notify(lane);
        loop {
            let notified = notify.notified();
            if self.shared.lock().is_readable(lane) {
                return;
            }
            notified.await;
        }
    }

    /// Returns the number of reports of both lanes that are not acknowledged.
    pub fn pending(&self) -> u64 {
        let state = self.shared.lock();
        state.facts.kept() + state.bulk.kept()
    }

    /// Returns whether any unacknowledged facts are not yet on the disk.
    pub fn has_unwritten_facts(&self) -> bool {
        self.shared.lock().facts.unwritten_bytes() > 0
    }

    /// Returns the number of reports of `lane` that are not acknowledged.
    pub fn pending_in(&self, lane: Lane) -> u64 {
        self.shared.lock().lane_mut(lane).kept()
    }

    /// Writes and syncs all reports and ends the thread. Waits at most `bound`. Returns whether all reports are on the
    /// disk.
    pub async fn close(self, bound: Duration) -> bool {
        let closed = async {
            loop {
                let notified = self.shared.facts_readable.notified();
                {
                    let mut state = self.shared.lock();
                    if state.lifecycle == Lifecycle::Closed || state.disk == DiskState::Absent {
                        return;
                    }
                    state.lifecycle = Lifecycle::Closing;
                    self.shared.wake_disk_thread(state);
                }
                notified.await;
            }
        };
        let in_time = tokio::time::timeout(bound, closed).await.is_ok();
        in_time && self.shared.lock().disk == DiskState::Working
    }
}

/// The maximum number of seqs that a power failure can remove from the disk: those of the last
/// [`Options::sync_interval`].
const MAX_UNSYNCED_SEQS: u64 = 1 << 20;

/// Returns the warning about a spool directory that is not used.
fn describe_unused_dir(dir: &Path, error: &lock::Error) -> String {
    match error {
        lock::Error::Held { holder, .. } => format!(
            "the spool {} is in use by process {holder}; reports are kept in memory",
            dir.display()
        ),
        lock::Error::Io { path, source } => {
            format!("cannot use {}: {source}; reports are kept in memory", path.display())
        }
    }
}

/// Returns the first number above all those that an earlier process of the same attempt can have used. It allows for
/// two thousand reports in each millisecond since the Unix epoch. It is below 2^53 until the year 2109, so that
/// programs with floating-point numbers can distinguish the numbers. It is below 2^63 for any clock.
fn first_seq_at(now_ms: i64) -> u64 {
    u64::try_from(now_ms).unwrap_or(0).min(1 << 51) << 11
}

impl SpoolShared {
    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the disk thread if it is idle. A busy thread checks for work anyway, and the system call would be made for
    /// thousands of lines.
    fn wake_disk_thread(&self, mut state: MutexGuard<'_, QueueState>) {
        let idle = std::mem::take(&mut state.idle);
        drop(state);
        if idle {
            self.work.notify_one();
        }
    }

    /// Wakes the callers that wait for the next write to the disk.
    fn notify_waiters(&self, state: MutexGuard<'_, QueueState>) {
        let awaited = state.waiting_callers > 0;
        drop(state);
        if awaited {
            self.written.notify_all();
        }
    }

    fn readable_notify(&self, lane: Lane) -> &Notify {
        match lane {
            Lane::Facts => &self.facts_readable,
            Lane::Bulk => &self.bulk_readable,
        }
    }

    fn notify_readers(&self) {
        // Each lane has one reader. `notify_one` stores a permit for a reader that is about to wait.
        self.facts_readable.notify_one();
        self.bulk_readable.notify_one();
    }
}
