//! The agent's durable queue of reports: append -> seq, peek, ack.
//!
//! It must not wait: [`Spool::append`] hands the report to a thread of the spool's own and returns. The
//! trial, its pipes and its signals never feel a slow disk.
//!
//! # Invariants
//!
//! 1. Within a lane `seq` rises with every append and is never used twice. A process that works for a manager, or goes
//!    on with an attempt, numbers from its own time on ([`Options::now_ms`]). For an earlier process may have sent
//!    reports that are on no disk, or on another container's. If the clock was set back meanwhile, the process skips as
//!    many numbers after those on the disk as were at most not synced. Only where nothing is left on the disk, or there
//!    is none, the process relies on the clock alone.
//! 2. A report is offered for delivery once it was written to its segment, or when the disk does not
//!    answer: delivery is then all that keeps it.
//! 3. A report is forgotten when the manager has acknowledged it, or, on the bulk lane only, when the
//!    spool is full: logs go first, then samples. What was shed is counted and reported as a fact.
//! 4. Facts are never shed. While the disk is full or slow they wait in memory; a trial that reports
//!    faster than that grows the agent, because losing a result is the worse end.
//! 5. What is read back is what was written: each record carries its length and a CRC32C. A record that
//!    was cut by a crash ends its segment; everything before it is kept.
//! 6. One process at a time works in a directory: it holds an exclusive lock on `lock` as long as it
//!    lives. A second one keeps its reports in memory and says so.
//!
//! # On disk
//!
//! ```text
//! <dir>/lock                             locked by its user; first line: process id, second: attempt
//! <dir>/<attempt>/sender.json            whose reports these are; written before the first, replaced atomically
//! <dir>/<attempt>/<lane>-<first seq>.seg 20 digits, so that names sort as numbers
//! <dir>/<attempt>/<lane>.ack             "<seq>\n": acknowledged through; replaced atomically
//! <dir>/<attempt>/<lane>.forgotten       "<seq>\n": deleted through, where some is left; replaced atomically
//! ```
//!
//! A segment is the eight bytes `TKSPOOL1` and then records: length of the payload (u32, little endian),
//! CRC32C of seq and payload (u32), seq (u64), payload (the report as JSON). A segment is deleted when all
//! of it is acknowledged (of facts, the newest few stay until the attempt's end: a manager whose database was replaced by
//! an older copy asks for them again); the cursor stays, which keeps invariant 1.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, oneshot};
use trial_protocol::{AttemptId, ExperimentId, Lane, ReportBody, TrialJobId};

mod cursor;
mod disk;
pub mod lane_files;
pub mod lock;
mod queue;
pub mod record;

#[cfg(test)]
mod tests;

pub use cursor::Cursor;
pub use lane_files::LaneFiles;
pub use lock::Claim;
use queue::{DiskState, Lifecycle, QueueState, QueuedReport, SpoolRequest, take};
pub use record::Record;

/// Logs that may wait for a disk that writes, in bytes.
const UNWRITTEN_BYTES: usize = 64 << 10;

/// The longest wait for a disk that does not.
pub const DISK_TIMEOUT: Duration = Duration::from_secs(1);

/// Name of the file that says whose reports the spool holds.
const SENDER: &str = "sender.json";

/// The options of a spool.
#[derive(Debug, Clone)]
pub struct Options {
    /// Directory of the spool, made if absent. `None`: memory only.
    pub dir: Option<PathBuf>,
    /// The attempt whose reports are appended.
    pub attempt: AttemptId,
    /// The trial that the reports belong to, written into the directory so that they can be delivered later. `None`: an attempt that no
    /// manager knows.
    pub sender: Option<Sender>,
    /// Size over which bulk reports are shed, in bytes.
    pub limit_bytes: u64,
    /// Longest time between an append and its fsync, terminal reports excepted (those at once). [`Duration::MAX`]: the
    /// kernel writes when it likes, for reports that no one awaits. They outlive the agent all the same, though not a
    /// power failure.
    pub sync_interval: Duration,
    /// Now, in milliseconds since the Unix epoch.
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
    /// Bodies of requests to an NNI manager's cluster server, all on the facts lane: one line after the
    /// other, as they came.
    Nni,
}

impl Dialect {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks in this way")]
    fn is_native(&self) -> bool {
        *self == Self::Native
    }
}

/// The worth of a text when the spool is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retention {
    /// The report is dropped.
    IfRoom,
    /// The report is kept.
    Always,
    /// The report is kept, and safe on the disk at once: the last one of an attempt.
    AtOnce,
}

impl Sender {
    /// Reads whose reports an attempt of the spool in `dir` holds.
    pub fn read(dir: &Path, attempt: &AttemptId) -> io::Result<Self> {
        let bytes = std::fs::read(dir.join(attempt.as_str()).join(SENDER))?;
        serde_json::from_slice(&bytes).map_err(io::Error::from)
    }

    /// Notes it in an attempt's directory, unless it stands there.
    fn write(&self, dir: &Path) -> io::Result<()> {
        let json = serde_json::to_vec(self).expect("two texts are JSON");
        let path = dir.join(SENDER);
        if std::fs::read(&path).is_ok_and(|there| there == json) {
            return Ok(());
        }
        let new = path.with_extension("json.new");
        std::fs::write(&new, json)?;
        std::fs::rename(new, path)
    }
}

#[derive(Debug)]
struct SpoolShared {
    state: Mutex<QueueState>,
    /// Wakes the disk thread.
    work: Condvar,
    /// Wakes the threads that wait for the disk.
    room: Condvar,
    facts_readable: Notify,
    bulk_readable: Notify,
    limit_bytes: u64,
}

/// A cheap handle on the spool; all clones share it. Disk I/O happens on a thread of its own.
#[derive(Debug, Clone)]
pub struct Spool {
    shared: Arc<SpoolShared>,
    older: Arc<[AttemptId]>,
    dir: Option<PathBuf>,
    attempt: AttemptId,
    /// Held until the last handle goes.
    _lock: Option<Arc<lock::DirLock>>,
}

/// The outcome of opening a spool.
#[derive(Debug)]
pub struct Opened {
    /// The spool, whatever happened.
    pub spool: Spool,
    /// Remarks for the user.
    pub warnings: Vec<String>,
    /// Another process works in the directory on the very same attempt: running it again would run the
    /// trial twice.
    pub attempt_in_use: bool,
}

impl Spool {
    /// Opens the spool. Never fails: where the directory cannot be used, reports are kept in memory, and
    /// a warning says why.
    pub fn open(options: Options) -> Opened {
        let claim = Claim::take(options.dir.as_deref(), &options.attempt);
        Self::open_claimed(options, claim)
    }

    /// Opens the spool whose directory was claimed before. Never fails either.
    pub fn open_claimed(options: Options, claim: Claim) -> Opened {
        let mut warnings = Vec::new();
        let attempt_in_use = claim.is_of_another(&options.attempt);
        let mut held = None;
        if let (Some(dir), Some(claim)) = (&options.dir, claim.0) {
            match claim {
                Ok(lock) => held = Some((dir.clone(), Arc::new(lock))),
                Err(error) => warnings.push(without_claim(dir, &error)),
            }
        }
        let mut older: Vec<AttemptId> = Vec::new();
        let mut state = QueueState::default();
        let mut files = None;
        if let Some((dir, _)) = &held {
            let own = dir.join(options.attempt.as_str());
            let known = own.exists();
            match disk::Files::open(&own, options.sender.clone()) {
                Ok(opened) => {
                    state.disk = DiskState::Well;
                    for (lane, files) in
                        [(&mut state.facts, &opened.facts), (&mut state.bulk, &opened.bulk)]
                    {
                        lane.go_on_from(files.summary(), files.forgotten(), known);
                        if known || options.sender.is_some() {
                            let own_time = first_of_a_later_process(options.now_ms);
                            lane.next_seq = lane.next_seq.max(own_time);
                        }
                    }
                    files = Some(opened);
                    // A volume may hold what other trials left; that is theirs to deliver.
                    older = lane_files::attempts(dir);
                    older.retain(|attempt| {
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
            let first = first_of_a_later_process(options.now_ms);
            (state.facts.next_seq, state.bulk.next_seq) = (first, first);
        }
        let shared = Arc::new(SpoolShared {
            state: Mutex::new(state),
            work: Condvar::new(),
            room: Condvar::new(),
            facts_readable: Notify::new(),
            bulk_readable: Notify::new(),
            limit_bytes: options.limit_bytes,
        });
        if let Some(files) = files {
            disk::spawn(&shared, files, options.sync_interval);
        }
        let (dir, lock) = held.map_or((None, None), |(dir, lock)| (Some(dir), Some(lock)));
        let attempt = options.attempt;
        let spool = Self { shared, older: older.into(), dir, attempt, _lock: lock };
        Opened { spool, warnings, attempt_in_use }
    }

    /// The attempt whose reports are appended.
    pub fn attempt(&self) -> &AttemptId {
        &self.attempt
    }

    /// Attempts of earlier processes that left something undelivered, the oldest first.
    pub fn older_attempts(&self) -> &[AttemptId] {
        &self.older
    }

    /// The files of one lane of an earlier attempt, to be delivered; `None` if they cannot be read.
    pub fn older_lane(&self, attempt: &AttemptId, lane: Lane) -> Option<LaneFiles> {
        LaneFiles::open(&self.dir.as_ref()?.join(attempt.as_str()), lane).ok()
    }

    /// Appends a report to the lane of its kind. Never waits for the disk or the network.
    pub fn append(&self, observed_at_ms: i64, body: ReportBody) {
        let mut state = self.shared.lock();
        if state.life == Lifecycle::Open {
            state.push(observed_at_ms, body, self.shared.limit_bytes);
            state.report_shed(observed_at_ms, self.shared.limit_bytes);
        }
        let offered = state.disk == DiskState::Absent;
        self.shared.wake(state);
        if offered {
            self.shared.notify_readers();
        }
    }

    /// Waits until the disk has most of the logs, for a caller that may wait for it: the thread that reads the trial's
    /// output faster than they can be written. A disk that hangs is waited for once, and at most [`DISK_TIMEOUT`].
    pub fn settle(&self) {
        let mut state = self.shared.lock();
        while state.disk == DiskState::Well
            && !state.impatient
            && state.bulk.unwritten_bytes() > UNWRITTEN_BYTES
        {
            state.settling += 1;
            let waited = self.shared.room.wait_timeout(state, DISK_TIMEOUT);
            let (woken, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            state = woken;
            state.settling -= 1;
            // Set back when the disk has taken something.
            state.impatient |= timeout.timed_out();
        }
    }

    /// Appends a record of another dialect's, on the facts lane, so that the order of all is kept. Never
    /// waits for the disk or the network; `false` if it was dropped.
    pub fn append_text(&self, text: String, keep: Retention) -> bool {
        let mut state = self.shared.lock();
        let taken =
            state.life == Lifecycle::Open && state.push_text(text, keep, self.shared.limit_bytes);
        let offered = state.disk == DiskState::Absent;
        self.shared.wake(state);
        if offered {
            self.shared.notify_readers();
        }
        taken
    }

    /// The oldest reports of `lane` that are not acknowledged, at most `max_bytes` of JSON but at least
    /// one report if there is any. Reads from the disk what is no longer in memory; empty where that fails.
    pub async fn peek(&self, lane: Lane, max_bytes: usize) -> Vec<Record> {
        let answer = {
            let mut state = self.shared.lock();
            let unwritten_too = state.disk != DiskState::Well;
            let own = state.lane_mut(lane);
            let Some(through) = own.spilled_through else {
                let offered = |entry: &&QueuedReport| entry.written || unwritten_too;
                return take(own.memory.iter().take_while(offered).map(|e| &e.record), max_bytes);
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
            self.shared.wake(state);
            answer
        };
        match answer.await {
            Ok(Ok(found)) if found.is_empty() => {
                // What was to be read is damaged: go on with what is left.
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
            // The disk may answer again: nothing is forgotten, and the caller asks again after a while.
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
        self.shared.wake(state);
    }

    /// Waits until `lane` holds a report that can be delivered.
    pub async fn readable(&self, lane: Lane) {
        let notify = self.shared.readable(lane);
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

    /// Returns whether the disk lacks facts that are not acknowledged.
    pub fn is_in_memory(&self) -> bool {
        self.shared.lock().facts.unwritten_bytes() > 0
    }

    /// Returns the number of reports of `lane` that are not acknowledged.
    pub fn pending_in(&self, lane: Lane) -> u64 {
        self.shared.lock().lane_mut(lane).kept()
    }

    /// Writes everything down (fsync) and ends the thread. Waits at most `bound`; says whether
    /// everything is on the disk.
    pub async fn close(self, bound: Duration) -> bool {
        let closed = async {
            loop {
                let notified = self.shared.facts_readable.notified();
                {
                    let mut state = self.shared.lock();
                    if state.life == Lifecycle::Closed || state.disk == DiskState::Absent {
                        return;
                    }
                    state.life = Lifecycle::Closing;
                    self.shared.wake(state);
                }
                notified.await;
            }
        };
        let in_time = tokio::time::timeout(bound, closed).await.is_ok();
        in_time && self.shared.lock().disk == DiskState::Well
    }
}

/// The most numbers that a process may have used and a power failure took from the disk with the reports of the last
/// [`Options::sync_interval`].
const UNREPORTED_SEQS: u64 = 1 << 20;

/// Says why the spool's directory is not used.
fn without_claim(dir: &Path, error: &lock::Error) -> String {
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

/// The first number, above all that an earlier process of the same attempt can have used: two thousand reports in each
/// millisecond since the Unix epoch. It is below 2^53 until the year 2109, so that programs whose numbers are
/// floating-point tell one from the next. It is below 2^63 whatever the clock says.
fn first_of_a_later_process(now_ms: i64) -> u64 {
    u64::try_from(now_ms).unwrap_or(0).min(1 << 51) << 11
}

impl SpoolShared {
    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the thread look at what there is to do. One that is at work looks anyway; waking it is a system call, and
    /// lines come by the thousand.
    fn wake(&self, mut state: MutexGuard<'_, QueueState>) {
        let idle = std::mem::take(&mut state.idle);
        drop(state);
        if idle {
            self.work.notify_one();
        }
    }

    /// Tells those who wait for the disk that it has taken something.
    fn make_room(&self, state: MutexGuard<'_, QueueState>) {
        let awaited = state.settling > 0;
        drop(state);
        if awaited {
            self.room.notify_all();
        }
    }

    fn readable(&self, lane: Lane) -> &Notify {
        match lane {
            Lane::Facts => &self.facts_readable,
            Lane::Bulk => &self.bulk_readable,
        }
    }

    fn notify_readers(&self) {
        // Each lane has one reader; a permit is kept for one that is about to wait.
        self.facts_readable.notify_one();
        self.bulk_readable.notify_one();
    }
}
