//! The spool's own thread, the only one that accesses its files.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tracing::{info, warn};
use trial_protocol::Lane;

use super::lane_files::{LaneFiles, LaneSummary};
use super::lock;
use super::queue::{DiskState, LaneState, Lifecycle, ReportClass, SpoolRequest};
use super::record::{self, Record};
use super::{SENDER_FILE, Sender, SpoolShared};
use crate::util::numbers::to_u64;

#[cfg(test)]
mod tests;

/// The size above which a segment is closed. Smaller segments free disk space earlier, once they are acknowledged.
const SEGMENT_BYTES: u64 = 4 << 20;
/// The number of bytes above which a write takes no further records.
const MAX_WRITE_BYTES: usize = 64 << 10;
/// The maximum delay of a verdict's fsync. A manager that is reachable acknowledges the verdict earlier, and then the
/// fsync is not needed. (After the first write, the verdict outlives the agent. The fsync protects it from a failure of
/// the machine.)
const VERDICT_SYNC_DELAY: Duration = Duration::from_millis(25);
/// The time from a failed write to the next attempt.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// The open files of an attempt.
#[derive(Debug)]
pub(super) struct AttemptFiles {
    dir: PathBuf,
    /// The trial that the reports belong to, until it is written beside them.
    unwritten_sender: Option<Sender>,
    /// `true` if the names of the files and the sender are synced.
    names_synced: bool,
    pub(super) facts: LaneWriter,
    pub(super) bulk: LaneWriter,
}

/// One lane's files and the segment that is being written.
#[derive(Debug)]
pub(super) struct LaneWriter {
    files: LaneFiles,
    summary: LaneSummary,
    open: Option<OpenSegment>,
    /// Segments that are no longer written but not yet synced, by their first seq.
    unsynced_segments: Vec<u64>,
    unsynced: bool,
    acked_unsaved: bool,
}

#[derive(Debug)]
struct OpenSegment {
    first: u64,
    file: File,
    bytes: u64,
}

impl AttemptFiles {
    /// Creates the attempt's directory, scans its files, and cuts off torn ends.
    pub(super) fn open(dir: &Path, sender: Option<Sender>) -> Result<Self, String> {
        let wrap = |error: io::Error| format!("cannot use {}: {error}", dir.display());
        lock::create_private_dir(dir).map_err(wrap)?;
        let facts = LaneWriter::open(dir, Lane::Facts).map_err(wrap)?;
        let bulk = LaneWriter::open(dir, Lane::Bulk).map_err(wrap)?;
        // The directory may exist but not be writable, which the caller should know before the first report.
        tempfile::tempfile_in(dir).map_err(wrap)?;
        Ok(Self { dir: dir.to_owned(), unwritten_sender: sender, names_synced: false, facts, bulk })
    }

    /// Writes the trial that the reports belong to. Without it, they could not be delivered later.
    fn write_sender(&mut self) -> io::Result<()> {
        if let Some(sender) = &self.unwritten_sender {
            sender.write(&self.dir)?;
            self.unwritten_sender = None;
        }
        Ok(())
    }

    /// Syncs the records and the names of their files to the disk.
    fn sync(&mut self) -> io::Result<()> {
        let new = !self.facts.is_clean() || !self.bulk.is_clean();
        self.facts.sync()?;
        self.bulk.sync()?;
        if new && !self.names_synced {
            let noted = self.dir.join(SENDER_FILE);
            if noted.exists() {
                File::open(noted)?.sync_all()?;
            }
            // The directories of the attempt, the spool, and the trial. Not every file system can sync directories.
            for dir in self.dir.ancestors().take(3) {
                File::open(dir).and_then(|dir| dir.sync_all()).ok();
            }
            self.names_synced = true;
        }
        Ok(())
    }

    fn lane(&mut self, lane: Lane) -> &mut LaneWriter {
        match lane {
            Lane::Facts => &mut self.facts,
            Lane::Bulk => &mut self.bulk,
        }
    }
}

impl LaneWriter {
    fn open(dir: &Path, lane: Lane) -> io::Result<Self> {
        let mut files = LaneFiles::open(dir, lane)?;
        let summary = files.scan(true)?;
        let (open, unsynced_segments) = (None, Vec::new());
        Ok(Self { files, summary, open, unsynced_segments, unsynced: false, acked_unsaved: false })
    }

    /// Returns the content of the files at the time they were opened.
    pub(super) fn summary(&self) -> LaneSummary {
        self.summary
    }

    /// Returns the highest seq that cannot be read again.
    pub(super) fn forgotten(&self) -> Option<u64> {
        self.files.forgotten()
    }

    /// Writes records in one call. After a failure, the segment is cut back to its previous end, or closed.
    fn write(&mut self, records: &[Record]) -> io::Result<()> {
        let Some(first) = records.first() else { return Ok(()) };
        if self.open.as_ref().is_none_or(|open| open.bytes >= SEGMENT_BYTES) {
            self.close_segment();
            let file = self.files.create_segment(first.seq)?;
            let bytes = file.metadata()?.len();
            self.open = Some(OpenSegment { first: first.seq, file, bytes });
        }
        let Some(open) = &mut self.open else { return Ok(()) };
        let sizes = records.iter().map(|record| record::RECORD_HEADER_BYTES + record.json.len());
        let mut bytes = Vec::with_capacity(sizes.sum());
        for record in records {
            record::encode(record, &mut bytes);
        }
        if let Err(error) = open.file.write_all(&bytes) {
            // A partial record would end the segment for a reader. If it cannot be cut off, nothing must be written
            // after it.
            if open.file.set_len(open.bytes).is_err() {
                self.close_segment();
            }
            return Err(error);
        }
        open.bytes += to_u64(bytes.len());
        self.unsynced = true;
        Ok(())
    }

    /// Closes the open segment.
    fn close_segment(&mut self) {
        let open = self.open.take().filter(|_| self.unsynced);
        self.unsynced_segments.extend(open.map(|open| open.first));
    }

    fn sync(&mut self) -> io::Result<()> {
        // Saved first: deleted segments need no sync, and a disk that is too full for the cursor must still sync the
        // rest.
        let saved = if self.acked_unsaved {
            self.files.save(self.open.as_ref().map(|open| open.first))
        } else {
            Ok(())
        };
        self.acked_unsaved = saved.is_err();
        if self.unsynced {
            while let Some(first) = self.unsynced_segments.last() {
                self.files.sync(*first)?;
                self.unsynced_segments.pop();
            }
            if let Some(open) = &self.open {
                open.file.sync_data()?;
            }
            self.unsynced = false;
        }
        saved
    }

    fn is_clean(&self) -> bool {
        !self.unsynced && !self.acked_unsaved
    }
}

/// Starts the disk thread. It ends when the spool is closed.
pub(super) fn spawn(shared: &Arc<SpoolShared>, files: AttemptFiles, sync_interval: Duration) {
    let for_thread = Arc::clone(shared);
    let run = move || {
        DiskThread { shared: for_thread, files, sync_interval, retry_at: None, verdict_at: None }
            .run();
    };
    if let Err(error) = std::thread::Builder::new().name("spool".to_owned()).spawn(run) {
        warn!("cannot start the spool's thread: {error}; reports are kept in memory");
        shared.lock().disk = DiskState::Absent;
    }
}

struct DiskThread {
    shared: Arc<SpoolShared>,
    files: AttemptFiles,
    sync_interval: Duration,
    /// The time at which a failed write is tried again.
    retry_at: Option<Instant>,
    /// The deadline for the sync of a written verdict.
    verdict_at: Option<Instant>,
}

/// The work of one iteration of the thread.
#[derive(Default)]
struct DiskWork {
    facts: Vec<Record>,
    bulk: Vec<Record>,
    requests: Vec<SpoolRequest>,
    terminal: bool,
    closing: bool,
    /// `true` if a failed sync must be tried again and there is nothing to write.
    sync_again: bool,
}

/// The next step of the thread when there is nothing to write.
#[derive(Debug, PartialEq, Eq)]
enum IdleStep {
    /// The thread repeats the sync that failed.
    SyncAgain,
    /// The thread waits for work, at most this long.
    AtMost(Duration),
    /// The thread waits for work.
    ForWork,
}

/// Decides the thread's next step. `retry_in` is the time until a failed step is repeated, if one failed. `clean` means
/// that all written data is synced, and `sync_in` is the time until the next sync. A time of zero must lead to an
/// action, because a wait of zero would make the thread spin.
fn decide_idle_step(retry_in: Option<Duration>, clean: bool, sync_in: Duration) -> IdleStep {
    match (retry_in, clean) {
        (Some(Duration::ZERO), false) => IdleStep::SyncAgain,
        // Reports that could not be written were delivered from memory. The next write shows the state of the disk.
        (Some(Duration::ZERO) | None, true) => IdleStep::ForWork,
        (Some(retry_in), _) => IdleStep::AtMost(retry_in),
        (None, false) => IdleStep::AtMost(sync_in),
    }
}

impl DiskThread {
    fn run(mut self) {
        let mut synced = Instant::now();
        loop {
            let work = self.wait_for_work(synced);
            crate::util::faults::inject_at("spool");
            let idle = work.facts.is_empty() && work.bulk.is_empty() && work.requests.is_empty();
            let nothing = work.facts.is_empty() && work.bulk.is_empty();
            let written = nothing || self.write(&work);
            self.handle_requests(work.requests);
            if work.terminal {
                self.verdict_at = Some(Instant::now() + VERDICT_SYNC_DELAY);
            }
            let verdict_due = self.verdict_at.is_some_and(|at| at <= Instant::now());
            if work.sync_again {
                let synced_all = self.sync_all();
                self.update_disk_state(synced_all);
                synced = Instant::now();
            } else if !work.closing && (verdict_due || synced.elapsed() >= self.sync_interval) {
                self.verdict_at = None;
                let synced_all = self.sync_all();
                self.report_sync(synced_all);
                synced = Instant::now();
            }
            if work.closing && (idle || !written) {
                break;
            }
        }
        self.finish();
    }

    /// Waits for work, or for the time to fsync.
    fn wait_for_work(&self, synced: Instant) -> DiskWork {
        let mut state = self.shared.lock();
        loop {
            let mut work =
                DiskWork { closing: state.lifecycle == Lifecycle::Closing, ..DiskWork::default() };
            work.requests.extend(state.requests.drain(..));
            // Failed writes are repeated at the given time, however many reports arrive before it.
            let retry_in = self.retry_at.map(|at| at.saturating_duration_since(Instant::now()));
            if work.closing || retry_in.is_none_or(|left| left.is_zero()) {
                work.terminal |= collect_unwritten(&mut state.facts, &mut work.facts);
                collect_unwritten(&mut state.bulk, &mut work.bulk);
            }
            let found =
                !work.requests.is_empty() || !work.facts.is_empty() || !work.bulk.is_empty();
            if work.closing || found {
                return work;
            }
            let clean = self.files.facts.is_clean() && self.files.bulk.is_clean();
            let left = self.sync_interval.saturating_sub(synced.elapsed());
            let left = self
                .verdict_at
                .map_or(left, |at| left.min(at.saturating_duration_since(Instant::now())));
            let wait = match decide_idle_step(retry_in, clean, left) {
                IdleStep::SyncAgain => {
                    work.sync_again = true;
                    return work;
                }
                IdleStep::AtMost(wait) => Some(wait),
                IdleStep::ForWork => None,
            };
            state.idle = true;
            state = match wait {
                Some(wait) => {
                    let (state, timeout) = self
                        .shared
                        .work
                        .wait_timeout(state, wait)
                        .unwrap_or_else(PoisonError::into_inner);
                    if timeout.timed_out() && retry_in.is_none() {
                        return work;
                    }
                    state
                }
                None => self.shared.work.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    /// Writes and marks each lane separately, so that a lane whose write succeeded is not written again because of the
    /// other. On a full disk, facts get the remaining space.
    fn write(&mut self, work: &DiskWork) -> bool {
        let mut facts = self.write_facts(work);
        let full = facts.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::StorageFull);
        let shed = full && (self.delete_acked_facts() | self.shed_written_bulk());
        if shed {
            facts = self.write_facts(work);
        }
        if facts.is_ok() {
            self.mark_written(Lane::Facts, &work.facts);
        }
        // Bulk records that were deleted from the disk but are still in memory are written first, in the next
        // iteration.
        let bulk = if shed { Ok(()) } else { self.files.bulk.write(&work.bulk) };
        if bulk.is_ok() && !shed {
            self.mark_written(Lane::Bulk, &work.bulk);
        }
        self.shared.lock().bulk.writing_through = None;
        self.shared.notify_readers();
        self.update_disk_state(facts.and(bulk))
    }

    fn write_facts(&mut self, work: &DiskWork) -> io::Result<()> {
        self.files.write_sender()?;
        self.files.facts.write(&work.facts)
    }

    /// Deletes the bulk lane's segments. Records that are also in memory are still delivered. Returns `false` if there
    /// were none.
    fn shed_written_bulk(&mut self) -> bool {
        let bulk = &mut self.files.bulk;
        bulk.open = None;
        bulk.unsynced_segments.clear();
        bulk.unsynced = false;
        let room = bulk.files.has_segments();
        if let Err(error) = bulk.files.remove_segments() {
            warn!("cannot delete the logs in {}: {error}", self.files.dir.display());
            return false;
        }
        self.shared.lock().shed_spilled_bulk();
        room
    }

    /// Reports the result of a sync. A success does not mean that failed writes would succeed now.
    fn report_sync(&mut self, result: io::Result<()>) {
        if result.is_err() || self.retry_at.is_none() {
            self.update_disk_state(result);
        }
    }

    /// Logs the disk's failure and recovery, each once. Returns `true` if the disk works.
    fn update_disk_state(&mut self, result: io::Result<()>) -> bool {
        let well = result.is_ok();
        let failing = self.retry_at.is_some();
        if let Err(error) = result
            && !failing
        {
            let dir = self.files.dir.display();
            warn!("cannot write the spool {dir}: {error}; reports wait in memory");
        } else if well && failing {
            info!("the spool can be written again");
        }
        self.retry_at = (!well).then(|| Instant::now() + RETRY_INTERVAL);
        if failing == well {
            let mut state = self.shared.lock();
            state.disk = if well { DiskState::Working } else { DiskState::Failing };
            self.shared.notify_waiters(state);
            self.shared.notify_readers();
        }
        well
    }

    /// Marks records as written and frees memory.
    fn mark_written(&self, lane: Lane, records: &[Record]) {
        let (Some(first), Some(last)) = (records.first(), records.last()) else { return };
        let mut state = self.shared.lock();
        let own = state.lane_mut(lane);
        let from = own.memory.partition_point(|entry| entry.record.seq < first.seq);
        let to = own.memory.partition_point(|entry| entry.record.seq <= last.seq);
        own.memory.range_mut(from..to).for_each(|entry| entry.written = true);
        own.written_count = own.written_count.max(to);
        own.spill();
        state.disk_wait_timed_out = false;
        self.shared.notify_waiters(state);
    }

    fn handle_requests(&mut self, requests: Vec<SpoolRequest>) {
        for request in requests {
            match request {
                SpoolRequest::Ack { lane, through } => {
                    let lane = self.files.lane(lane);
                    lane.files.ack(through);
                    lane.acked_unsaved = true;
                }
                SpoolRequest::Rewind { to, done } => {
                    self.rewind(to);
                    // Ignored: the caller may have stopped waiting.
                    done.send(()).ok();
                }
                SpoolRequest::Read { lane, after, through, max_bytes, sender } => {
                    let found = self.files.lane(lane).files.read(after, through, max_bytes);
                    if let Err(error) = &found {
                        warn!("cannot read the spool {}: {error}", self.files.dir.display());
                    }
                    // Ignored: the reader may have stopped waiting.
                    drop(sender.send(found));
                }
            }
        }
    }

    /// Deletes the acknowledged facts that are kept for a manager that requests them again. Returns `false` if there
    /// were none.
    fn delete_acked_facts(&mut self) -> bool {
        let facts = &mut self.files.facts;
        let before = facts.files.forgotten();
        if let Err(error) = facts.files.delete_acked(facts.open.as_ref().map(|open| open.first), 0)
        {
            warn!("cannot delete acknowledged reports in {}: {error}", self.files.dir.display());
        }
        let after = facts.files.forgotten();
        self.shared.lock().facts.forgotten = after;
        after > before
    }

    fn rewind(&mut self, to: Option<u64>) {
        let files = &mut self.files.facts.files;
        let found = files.rewind(to);
        self.shared.lock().facts.rewind(found, files.forgotten());
        self.files.facts.acked_unsaved = true;
    }

    fn sync_all(&mut self) -> io::Result<()> {
        if self.sync_interval == Duration::MAX {
            return Ok(());
        }
        let synced = self.files.sync();
        let mut state = self.shared.lock();
        state.facts.forgotten = state.facts.forgotten.max(self.files.facts.files.forgotten());
        synced
    }

    /// Deletes everything if nothing remains to be delivered; otherwise syncs it.
    fn finish(mut self) {
        let nothing_left = {
            let state = self.shared.lock();
            state.facts.kept() == 0 && state.bulk.kept() == 0
        };
        let result = if nothing_left { self.remove_all() } else { self.sync_all() };
        self.report_sync(result);
        self.shared.lock().lifecycle = Lifecycle::Closed;
        self.shared.notify_readers();
    }

    fn remove_all(&mut self) -> io::Result<()> {
        for lane in [&mut self.files.facts, &mut self.files.bulk] {
            if lane.files.acked().is_some() {
                lane.files.save(None)?;
                lane.files.remove_segments()?;
            }
        }
        Ok(())
    }
}

/// Collects the records that were not yet handed to the disk thread. Returns `true` if a terminal report is among them.
fn collect_unwritten(lane: &mut LaneState, records: &mut Vec<Record>) -> bool {
    let mut bytes = 0;
    let mut terminal = false;
    for entry in lane.memory.iter().skip(lane.written_count) {
        if bytes > MAX_WRITE_BYTES {
            break;
        }
        bytes += entry.record.json.len();
        terminal |= entry.class == ReportClass::Terminal;
        records.push(entry.record.clone());
    }
    lane.writing_through = records.last().map(|record| record.seq);
    terminal
}
