//! The agent's durable queue of reports: append -> seq, peek, ack.
//!
//! It must not wait: [`Spool::append`] hands the report to a thread of the spool's own and returns. The
//! trial, its pipes and its signals never feel a slow disk.
//!
//! # Invariants
//!
//! 1. Within a lane `seq` rises by one with every append and is never used twice, also not by a later
//!    process that goes on with the same attempt.
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
//! <dir>/sender.json                      whose reports these are
//! <dir>/<attempt>/<lane>-<first seq>.seg 20 digits, so that names sort as numbers
//! <dir>/<attempt>/<lane>.ack             "<seq>\n": acknowledged through; replaced atomically
//! ```
//!
//! A segment is the eight bytes `TKSPOOL1` and then records: length of the payload (u32, little endian),
//! CRC32C of seq and payload (u32), seq (u64), payload (the report as JSON). A segment is deleted when all
//! of it is acknowledged; the cursor stays, which keeps invariant 1.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, oneshot};
use trial_protocol::{AttemptId, ExperimentId, Lane, Report, ReportBody, Shed, TrialJobId};

mod disk;
pub mod lane_files;
pub mod lock;
pub mod record;

#[cfg(test)]
mod tests;

pub use lane_files::LaneFiles;
pub use record::Record;

/// How many bytes of a lane stay in memory although they are on the disk: the near future of delivery,
/// so that a manager that keeps up never causes a read.
const WINDOW_BYTES: usize = 1 << 20;
/// Name of the file that says whose reports the spool holds.
const SENDER: &str = "sender.json";

/// How a spool is to be kept.
#[derive(Debug, Clone)]
pub struct Options {
    /// Directory of the spool, made if absent. `None`: memory only.
    pub dir: Option<PathBuf>,
    /// The attempt whose reports are appended.
    pub attempt: AttemptId,
    /// Whose reports they are, noted in the directory so that they can be delivered later. `None`: nobody's
    /// that a manager knows.
    pub sender: Option<Sender>,
    /// Size over which bulk reports are shed, in bytes.
    pub limit_bytes: u64,
    /// Longest time between an append and its fsync, terminal reports excepted (those at once).
    pub sync_interval: Duration,
}

/// Whose reports a spool holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sender {
    /// Which experiment.
    pub experiment: ExperimentId,
    /// Which trial.
    pub trial: TrialJobId,
}

impl Sender {
    /// Reads whose reports the spool in `dir` holds.
    pub fn read(dir: &Path) -> io::Result<Self> {
        let bytes = std::fs::read(dir.join(SENDER))?;
        serde_json::from_slice(&bytes).map_err(io::Error::from)
    }
}

/// How much of the bulk lane a report is worth when the spool is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    Fact,
    /// The verdict: fsynced at once.
    Terminal,
    Log,
    Sample,
}

/// A report that is in memory.
#[derive(Debug, Clone)]
struct Entry {
    record: Record,
    class: Class,
    /// Whether the disk has it.
    written: bool,
    /// Bytes of log in it, to be counted if it is shed.
    log_bytes: u64,
}

/// One lane.
#[derive(Debug, Default)]
struct LaneState {
    next_seq: u64,
    acked: Option<u64>,
    /// In order of seq; what is older and not acknowledged is on the disk only.
    memory: VecDeque<Entry>,
    memory_bytes: usize,
    /// How many entries at the front of `memory` were handed to the disk thread.
    handed: usize,
    /// Last seq that is on the disk only, if any is.
    spilled_through: Option<u64>,
    /// Bytes that are on the disk only and not acknowledged; after an acknowledgement an estimate.
    spilled_bytes: u64,
}

#[derive(Debug)]
struct State {
    facts: LaneState,
    bulk: LaneState,
    shed: Shed,
    shed_told: Shed,
    disk: DiskState,
    /// Work for the disk thread, other than what `handed` shows.
    orders: VecDeque<disk::Order>,
    life: Life,
}

/// Whether reports are safe on a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DiskState {
    /// They are kept in memory only.
    Absent,
    /// The disk took the last write.
    Well,
    /// It did not; until it does, reports are offered for delivery unwritten.
    Failing,
}

/// How far the spool's life has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Life {
    Open,
    Closing,
    Closed,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Wakes the disk thread.
    work: Condvar,
    facts_readable: Notify,
    bulk_readable: Notify,
    limit_bytes: u64,
}

/// A cheap handle on the spool; all clones share it. Disk I/O happens on a thread of its own.
#[derive(Debug, Clone)]
pub struct Spool {
    shared: Arc<Shared>,
    older: Arc<[AttemptId]>,
    dir: Option<PathBuf>,
    attempt: AttemptId,
    /// Held until the last handle goes.
    _lock: Option<Arc<lock::DirLock>>,
}

/// What came of opening a spool.
#[derive(Debug)]
pub struct Opened {
    /// The spool, whatever happened.
    pub spool: Spool,
    /// What a person should know.
    pub warnings: Vec<String>,
    /// Another process works in the directory on the very same attempt: running it again would run the
    /// trial twice.
    pub attempt_in_use: bool,
}

impl Spool {
    /// Opens the spool. Never fails: where the directory cannot be used, reports are kept in memory, and
    /// a warning says why.
    pub fn open(options: Options) -> Opened {
        let mut warnings = Vec::new();
        let mut attempt_in_use = false;
        let mut held = None;
        if let Some(dir) = &options.dir {
            match lock::DirLock::take(dir, &options.attempt) {
                Ok(lock) => held = Some((dir.clone(), Arc::new(lock))),
                Err(lock::Error::Held { holder, attempt }) => {
                    attempt_in_use = attempt.as_deref() == Some(options.attempt.as_str());
                    warnings.push(format!(
                        "the spool {} is in use by process {holder}; reports are kept in memory",
                        dir.display()
                    ));
                }
                Err(lock::Error::Io { path, source }) => warnings.push(format!(
                    "cannot use {}: {source}; reports are kept in memory",
                    path.display()
                )),
            }
        }
        let mut older: Vec<AttemptId> = Vec::new();
        let mut state = State {
            facts: LaneState::default(),
            bulk: LaneState::default(),
            shed: Shed::default(),
            shed_told: Shed::default(),
            disk: DiskState::Absent,
            orders: VecDeque::new(),
            life: Life::Open,
        };
        let mut files = None;
        if let Some((dir, _)) = &held {
            if let Some(sender) = &options.sender {
                let json = serde_json::to_vec(sender).expect("two texts are JSON");
                if let Err(error) = std::fs::write(dir.join(SENDER), json) {
                    warnings
                        .push(format!("what is left of this trial cannot be replayed: {error}"));
                }
            }
            match disk::Files::open(&dir.join(options.attempt.as_str())) {
                Ok(opened) => {
                    state.disk = DiskState::Well;
                    for (lane, found) in [
                        (&mut state.facts, opened.facts.standing()),
                        (&mut state.bulk, opened.bulk.standing()),
                    ] {
                        lane.next_seq = found.next_seq;
                        lane.acked = found.acked;
                        lane.spilled_bytes = found.kept_bytes;
                        lane.spilled_through = found.last_kept;
                    }
                    files = Some(opened);
                    older = lane_files::attempts(dir);
                    older.retain(|attempt| *attempt != options.attempt);
                }
                Err(error) => {
                    warnings.push(format!("{error}; reports are kept in memory"));
                }
            }
        }
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            work: Condvar::new(),
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
        if state.life == Life::Open {
            state.push(observed_at_ms, body, self.shared.limit_bytes);
            state.tell_shed(observed_at_ms, self.shared.limit_bytes);
        }
        let offered = state.disk == DiskState::Absent;
        drop(state);
        self.shared.work.notify_one();
        if offered {
            self.shared.notify_readers();
        }
    }

    /// The oldest reports of `lane` that are not acknowledged, at most `max_bytes` of JSON but at least
    /// one report if there is any. Reads from the disk what is no longer in memory.
    pub async fn peek(&self, lane: Lane, max_bytes: usize) -> Vec<Record> {
        let answer = {
            let mut state = self.shared.lock();
            let unwritten_too = state.disk != DiskState::Well;
            let own = state.lane_mut(lane);
            let Some(through) = own.spilled_through else {
                let offered = |entry: &&Entry| entry.written || unwritten_too;
                return take(own.memory.iter().take_while(offered).map(|e| &e.record), max_bytes);
            };
            let after = own.acked;
            let (sender, answer) = oneshot::channel();
            state.orders.push_back(disk::Order::Read { lane, after, through, max_bytes, sender });
            answer
        };
        self.shared.work.notify_one();
        let found = answer.await.unwrap_or_default();
        if found.is_empty() {
            // What was to be read is damaged or gone: go on with what is left.
            let mut state = self.shared.lock();
            let own = state.lane_mut(lane);
            if let Some(through) = own.spilled_through {
                own.forget(through);
            }
            drop(state);
            self.shared.notify_readers();
        }
        found
    }

    /// Forgets the reports of `lane` up to and including `through`.
    pub fn ack(&self, lane: Lane, through: u64) {
        let mut state = self.shared.lock();
        state.lane_mut(lane).forget(through);
        if state.disk != DiskState::Absent {
            state.orders.push_back(disk::Order::Ack { lane, through });
        }
        drop(state);
        self.shared.work.notify_one();
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

    /// How many reports of both lanes are not acknowledged.
    pub fn pending(&self) -> u64 {
        let state = self.shared.lock();
        state.facts.kept() + state.bulk.kept()
    }

    /// How many reports of `lane` are not acknowledged.
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
                    if state.life == Life::Closed || state.disk == DiskState::Absent {
                        return;
                    }
                    state.life = Life::Closing;
                }
                self.shared.work.notify_one();
                notified.await;
            }
        };
        let in_time = tokio::time::timeout(bound, closed).await.is_ok();
        in_time && self.shared.lock().disk == DiskState::Well
    }
}

fn take<'a>(records: impl Iterator<Item = &'a Record>, max_bytes: usize) -> Vec<Record> {
    let mut bytes = 0;
    let mut taken = Vec::new();
    for record in records {
        bytes += record.json.len();
        if bytes > max_bytes && !taken.is_empty() {
            break;
        }
        taken.push(record.clone());
    }
    taken
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
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

impl State {
    fn lane_mut(&mut self, lane: Lane) -> &mut LaneState {
        match lane {
            Lane::Facts => &mut self.facts,
            Lane::Bulk => &mut self.bulk,
        }
    }

    fn is_readable(&mut self, lane: Lane) -> bool {
        let unwritten_too = self.disk != DiskState::Well;
        let own = self.lane_mut(lane);
        own.spilled_through.is_some()
            || own.memory.front().is_some_and(|entry| entry.written || unwritten_too)
    }

    fn push(&mut self, observed_at_ms: i64, body: ReportBody, limit_bytes: u64) {
        let (class, log_bytes) = classify(&body);
        let lane = self.lane_mut(body.lane());
        let seq = lane.next_seq;
        let json = Report { seq, observed_at_ms, body };
        let json = serde_json::to_string(&json).expect("reports have string keys only");
        let size = json.len();
        let sheds = match class {
            Class::Log | Class::Sample => true,
            Class::Fact | Class::Terminal => false,
        };
        if sheds && !self.make_room(class, size, limit_bytes) {
            self.count_shed(class, log_bytes);
            return;
        }
        let lane = self.lane_mut(if sheds { Lane::Bulk } else { Lane::Facts });
        lane.next_seq += 1;
        lane.memory_bytes += size;
        let record = Record { seq, json: json.into() };
        lane.memory.push_back(Entry { record, class, written: false, log_bytes });
    }

    /// Whether a bulk report of `size` fits; drops logs from memory, the oldest first, to make it fit
    /// for a sample.
    fn make_room(&mut self, class: Class, size: usize, limit_bytes: u64) -> bool {
        let size = u64::try_from(size + record::HEADER).unwrap_or(u64::MAX);
        loop {
            let kept = self.facts.kept_bytes() + self.bulk.kept_bytes();
            if kept.saturating_add(size) <= limit_bytes {
                return true;
            }
            // What the disk thread was handed is being written: only what waits can still be dropped.
            let from = self.bulk.handed;
            let log =
                self.bulk.memory.iter().skip(from).position(|entry| entry.class == Class::Log);
            let (Class::Sample, Some(position)) = (class, log) else { return false };
            if let Some(entry) = self.bulk.memory.remove(from + position) {
                self.bulk.memory_bytes -= entry.record.json.len();
                self.count_shed(entry.class, entry.log_bytes);
            }
        }
    }

    fn count_shed(&mut self, class: Class, log_bytes: u64) {
        match class {
            Class::Log => self.shed.log_bytes += log_bytes,
            Class::Sample => self.shed.samples += 1,
            Class::Fact | Class::Terminal => {}
        }
    }

    /// Reports what was shed: at once when it begins, then whenever the count has doubled, and at the
    /// end, so that shedding does not fill the spool with news of itself.
    fn tell_shed(&mut self, observed_at_ms: i64, limit_bytes: u64) {
        let grown = |now: u64, told: u64| now > told.saturating_mul(2) || (told == 0 && now > 0);
        if grown(self.shed.log_bytes, self.shed_told.log_bytes)
            || grown(self.shed.samples, self.shed_told.samples)
        {
            self.shed_told = self.shed.clone();
            self.push(observed_at_ms, ReportBody::Shed(self.shed.clone()), limit_bytes);
        }
    }
}

impl LaneState {
    /// Reports that are kept and not acknowledged. Of those on the disk only, shed ones count too.
    fn kept(&self) -> u64 {
        let held = u64::try_from(self.memory.len()).unwrap_or(u64::MAX);
        held + self.spilled()
    }

    fn spilled(&self) -> u64 {
        let first = self.acked.map_or(0, |seq| seq + 1);
        self.spilled_through.map_or(0, |last| (last + 1).saturating_sub(first))
    }

    /// Bytes that are kept and not acknowledged.
    fn kept_bytes(&self) -> u64 {
        let held = self.memory_bytes + self.memory.len() * record::HEADER;
        u64::try_from(held).unwrap_or(u64::MAX).saturating_add(self.spilled_bytes)
    }

    fn forget(&mut self, through: u64) {
        let spilled = self.spilled();
        self.acked = self.acked.max(Some(through));
        while self.memory.front().is_some_and(|entry| entry.record.seq <= through) {
            if let Some(entry) = self.memory.pop_front() {
                self.handed = self.handed.saturating_sub(1);
                self.memory_bytes -= entry.record.json.len();
            }
        }
        if self.spilled_through.is_some_and(|last| last <= through) {
            self.spilled_through = None;
        }
        // In proportion: what a record on the disk weighs is not remembered.
        self.spilled_bytes = match self.spilled_bytes.checked_div(spilled) {
            Some(each) => each * self.spilled(),
            None => 0,
        };
    }

    /// Gives back memory: what is written and far from delivery stays on the disk only.
    fn spill(&mut self) {
        while self.memory_bytes > WINDOW_BYTES
            && self.memory.front().is_some_and(|entry| entry.written)
        {
            if let Some(entry) = self.memory.pop_front() {
                self.handed = self.handed.saturating_sub(1);
                self.memory_bytes -= entry.record.json.len();
                self.spilled_bytes += record::disk_size(&entry.record);
                self.spilled_through = Some(entry.record.seq);
            }
        }
    }
}

fn classify(body: &ReportBody) -> (Class, u64) {
    match body {
        ReportBody::Log(chunk) => {
            let length = match &chunk.text {
                trial_protocol::LogText::Text(text) => text.len(),
                // Base64 carries three bytes in four.
                trial_protocol::LogText::Base64(text) => text.len() / 4 * 3,
            };
            (Class::Log, u64::try_from(length).unwrap_or(u64::MAX))
        }
        ReportBody::Sample(_) => (Class::Sample, 0),
        ReportBody::Ended(_) => (Class::Terminal, 0),
        ReportBody::Started(_)
        | ReportBody::Metric(_)
        | ReportBody::Shed(_)
        | ReportBody::Note { .. }
        | ReportBody::Unknown => (Class::Fact, 0),
    }
}
