//! PURE: the reports in memory, and the decisions which of them are offered, dropped and forgotten. No I/O, no thread.
//! The invariants are at the head of [`spool`](super).

use std::collections::VecDeque;
use std::io;

use tokio::sync::oneshot;
use trial_protocol::{Lane, Report, ReportBody, Shed};

use super::lane_files::LaneSummary;
use super::record::{self, Record};
use super::{MAX_UNSYNCED_SEQS, Retention};
use crate::util::numbers::to_u64;

/// The number of bytes of a lane that stay in memory although they are on the disk. They are delivered next, so a
/// manager that keeps up never causes a read.
pub(super) const WINDOW_BYTES: usize = 128 << 10;

/// The class of a report, which decides its treatment when the spool is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReportClass {
    Fact,
    /// The verdict, whose fsync is not delayed long.
    Terminal,
    Log,
    Sample,
}

/// A report that is in memory.
#[derive(Debug, Clone)]
pub(super) struct QueuedReport {
    pub(super) record: Record,
    pub(super) class: ReportClass,
    /// `true` if the report is on the disk.
    pub(super) written: bool,
    /// The bytes of log in the report, to be counted if it is dropped.
    pub(super) log_bytes: u64,
}

/// One lane.
#[derive(Debug, Default)]
pub(super) struct LaneState {
    pub(super) next_seq: u64,
    pub(super) acked: Option<u64>,
    /// The highest seq that cannot be delivered again. `None`: all reports can.
    pub(super) forgotten: Option<u64>,
    /// The newest reports in the order of their seqs. Older unacknowledged reports are only on the disk.
    pub(super) memory: VecDeque<QueuedReport>,
    pub(super) memory_bytes: usize,
    /// The number of entries at the front of `memory` that the disk thread has written.
    pub(super) written_count: usize,
    /// The last seq that the disk thread is writing. Such reports are not dropped, because they reach the disk.
    pub(super) writing_through: Option<u64>,
    /// The last seq that is only on the disk, if there is any.
    pub(super) spilled_through: Option<u64>,
    /// The number of unacknowledged reports that are only on the disk, and their bytes.
    pub(super) spilled: u64,
    pub(super) spilled_bytes: u64,
    /// The seqs and sizes of the reports that were last read back from the disk and can be acknowledged.
    pub(super) read_back: VecDeque<(u64, u64)>,
}

/// A request to the disk thread.
#[derive(Debug)]
pub(super) enum SpoolRequest {
    /// Read reports that are no longer in memory.
    Read {
        lane: Lane,
        after: Option<u64>,
        through: u64,
        max_bytes: usize,
        sender: oneshot::Sender<io::Result<Vec<Record>>>,
    },
    /// Save an acknowledgement.
    Ack { lane: Lane, through: u64 },
    /// Revoke the acknowledgement of the facts after `to`, as far as they can be read again.
    Rewind { to: Option<u64>, done: oneshot::Sender<()> },
}

#[derive(Debug, Default)]
pub(super) struct QueueState {
    pub(super) facts: LaneState,
    pub(super) bulk: LaneState,
    pub(super) shed: Shed,
    pub(super) shed_reported: Shed,
    pub(super) disk: DiskState,
    /// Work for the disk thread, in addition to the records after the first `written_count`.
    pub(super) requests: VecDeque<SpoolRequest>,
    pub(super) lifecycle: Lifecycle,
    /// `true` if a wait for the disk timed out and the disk has written nothing since.
    pub(super) disk_wait_timed_out: bool,
    /// `true` if the disk thread waits for work and was not woken since.
    pub(super) idle: bool,
    /// The number of callers that wait for the next write to the disk.
    pub(super) waiting_callers: usize,
}

/// The state of the disk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum DiskState {
    /// Reports are kept in memory only.
    #[default]
    Absent,
    /// The last write succeeded.
    Working,
    /// The disk does not respond. Until it does, unwritten reports are offered for delivery.
    Failing,
}

/// The stages of the spool's life.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Lifecycle {
    #[default]
    Open,
    Closing,
    Closed,
}

pub(super) fn first_records<'a>(
    records: impl Iterator<Item = &'a Record>,
    max_bytes: usize,
) -> Vec<Record> {
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

impl QueueState {
    pub(super) fn lane_mut(&mut self, lane: Lane) -> &mut LaneState {
        match lane {
            Lane::Facts => &mut self.facts,
            Lane::Bulk => &mut self.bulk,
        }
    }

    pub(super) fn is_readable(&mut self, lane: Lane) -> bool {
        let unwritten_too = self.disk != DiskState::Working;
        let own = self.lane_mut(lane);
        own.spilled_through.is_some()
            || own.memory.front().is_some_and(|entry| entry.written || unwritten_too)
    }

    pub(super) fn push(&mut self, observed_at_ms: i64, body: ReportBody, limit_bytes: u64) {
        let (class, log_bytes) = classify(&body);
        if class == ReportClass::Terminal && self.shed != self.shed_reported {
            // No report follows the verdict, so the last count is reported before it.
            self.shed_reported = self.shed.clone();
            self.push(observed_at_ms, ReportBody::Shed(self.shed.clone()), limit_bytes);
        }
        let lane = self.lane_mut(body.lane());
        let seq = lane.next_seq;
        let json = Report { seq, observed_at_ms, body };
        // Pieces of log take most of the memory. A buffer that grows by doubling would allocate up to twice their size.
        let length = usize::try_from(log_bytes).unwrap_or(0);
        let mut bytes = Vec::with_capacity(128 + length + length / 16);
        serde_json::to_writer(&mut bytes, &json).expect("reports have string keys only");
        let json = String::from_utf8(bytes).expect("JSON is text");
        let size = json.len();
        let sheds = match class {
            ReportClass::Log | ReportClass::Sample => true,
            ReportClass::Fact | ReportClass::Terminal => false,
        };
        if sheds && !self.make_room(class, size, limit_bytes) {
            self.count_shed(class, log_bytes);
            return;
        }
        let lane = self.lane_mut(if sheds { Lane::Bulk } else { Lane::Facts });
        lane.next_seq += 1;
        lane.memory_bytes += size;
        let record = Record { seq, json: json.into() };
        lane.memory.push_back(QueuedReport { record, class, written: false, log_bytes });
    }

    /// Appends a text of another dialect. Returns `false` if it is dropped.
    pub(super) fn push_text(&mut self, text: String, keep: Retention, limit_bytes: u64) -> bool {
        let class = match keep {
            Retention::IfRoom if !self.make_room(ReportClass::Log, text.len(), limit_bytes) => {
                return false;
            }
            // On the facts lane, an accepted record is never dropped.
            Retention::IfRoom | Retention::Always => ReportClass::Fact,
            Retention::SyncSoon => ReportClass::Terminal,
        };
        let lane = &mut self.facts;
        let seq = lane.next_seq;
        lane.next_seq += 1;
        lane.memory_bytes += text.len();
        let record = Record { seq, json: text.into() };
        lane.memory.push_back(QueuedReport { record, class, written: false, log_bytes: 0 });
        true
    }

    /// Returns whether a bulk report of `size` fits. To make room for a sample, drops logs from memory, the oldest
    /// first.
    pub(super) fn make_room(&mut self, class: ReportClass, size: usize, limit_bytes: u64) -> bool {
        let size = to_u64(size + record::RECORD_HEADER_BYTES);
        loop {
            let kept = self.facts.kept_bytes() + self.bulk.kept_bytes();
            if kept.saturating_add(size) <= limit_bytes {
                return true;
            }
            // Written records stay; only those that still wait for the disk can be dropped.
            let (from, writing) = (self.bulk.written_count, self.bulk.writing_through);
            let log = self.bulk.memory.iter().skip(from).position(|entry| {
                entry.class == ReportClass::Log && Some(entry.record.seq) > writing
            });
            let (ReportClass::Sample, Some(position)) = (class, log) else { return false };
            if let Some(entry) = self.bulk.memory.remove(from + position) {
                self.bulk.memory_bytes -= entry.record.json.len();
                self.count_shed(entry.class, entry.log_bytes);
            }
        }
    }

    pub(super) fn count_shed(&mut self, class: ReportClass, log_bytes: u64) {
        match class {
            ReportClass::Log => self.shed.log_bytes += log_bytes,
            ReportClass::Sample => self.shed.samples += 1,
            ReportClass::Fact | ReportClass::Terminal => {}
        }
    }

    /// Counts the reports of the bulk lane that were only on the disk and were deleted. All of them count as logs,
    /// which most of them are, with their size on the disk.
    pub(super) fn shed_spilled_bulk(&mut self) {
        self.shed.log_bytes += self.bulk.spilled_bytes;
        (self.bulk.spilled, self.bulk.spilled_bytes) = (0, 0);
        self.bulk.spilled_through = None;
        self.bulk.read_back.clear();
        // The other bulk records are no longer on the disk either, and must be written again before they leave the
        // memory.
        self.bulk.memory.iter_mut().for_each(|entry| entry.written = false);
        self.bulk.written_count = 0;
    }

    /// Reports the number of dropped reports: when the first is dropped, whenever the count has doubled, and before the
    /// verdict. More frequent reports would themselves fill the spool.
    pub(super) fn report_shed(&mut self, observed_at_ms: i64, limit_bytes: u64) {
        let grown = |now: u64, reported: u64| {
            now > reported.saturating_mul(2) || (reported == 0 && now > 0)
        };
        if grown(self.shed.log_bytes, self.shed_reported.log_bytes)
            || grown(self.shed.samples, self.shed_reported.samples)
        {
            self.shed_reported = self.shed.clone();
            self.push(observed_at_ms, ReportBody::Shed(self.shed.clone()), limit_bytes);
        }
    }
}

impl LaneState {
    /// Continues from the content of the disk. `known` means that an earlier process of the same attempt may have
    /// written it.
    pub(super) fn continue_from(
        &mut self,
        found: LaneSummary,
        forgotten: Option<u64>,
        known: bool,
    ) {
        if known {
            self.next_seq = found.next_seq.saturating_add(MAX_UNSYNCED_SEQS);
        }
        self.acked = found.acked;
        self.forgotten = forgotten;
        (self.spilled, self.spilled_bytes) = (found.kept, found.kept_bytes);
        self.spilled_through = found.last_kept;
    }

    /// Returns the number of reports that are kept and not acknowledged.
    pub(super) fn kept(&self) -> u64 {
        let held = to_u64(self.memory.len());
        held + self.spilled
    }

    /// Returns the number of bytes that are not yet on the disk.
    pub(super) fn unwritten_bytes(&self) -> usize {
        let unwritten = self.memory.iter().rev().take_while(|entry| !entry.written);
        unwritten.map(|entry| entry.record.json.len()).sum()
    }

    /// Returns the number of bytes that are kept and not acknowledged.
    pub(super) fn kept_bytes(&self) -> u64 {
        let held = self.memory_bytes + self.memory.len() * record::RECORD_HEADER_BYTES;
        to_u64(held).saturating_add(self.spilled_bytes)
    }

    pub(super) fn forget(&mut self, through: u64) {
        self.acked = self.acked.max(Some(through));
        while self.memory.front().is_some_and(|entry| entry.record.seq <= through) {
            if let Some(entry) = self.memory.pop_front() {
                self.written_count = self.written_count.saturating_sub(1);
                self.memory_bytes -= entry.record.json.len();
                if !entry.written {
                    self.forgotten = Some(entry.record.seq);
                }
            }
        }
        while let Some((_, bytes)) = self.read_back.pop_front_if(|(seq, _)| *seq <= through) {
            self.spilled = self.spilled.saturating_sub(1);
            self.spilled_bytes = self.spilled_bytes.saturating_sub(bytes);
        }
        if self.spilled_through.is_some_and(|last| last <= through) {
            self.spilled_through = None;
            (self.spilled, self.spilled_bytes) = (0, 0);
        }
    }

    /// Revokes acknowledgements. `found` describes the reports that can be read again; those up to `forgotten` cannot.
    pub(super) fn rewind(&mut self, found: LaneSummary, forgotten: Option<u64>) {
        self.acked = found.acked;
        self.forgotten = self.forgotten.max(forgotten);
        self.spilled += found.kept;
        self.spilled_bytes += found.kept_bytes;
        self.spilled_through = self.spilled_through.max(found.last_kept);
        self.read_back.clear();
    }

    /// Frees memory: written records that are far from delivery stay only on the disk.
    pub(super) fn spill(&mut self) {
        while self.memory_bytes > WINDOW_BYTES
            && self.memory.front().is_some_and(|entry| entry.written)
        {
            if let Some(entry) = self.memory.pop_front() {
                self.written_count = self.written_count.saturating_sub(1);
                self.memory_bytes -= entry.record.json.len();
                self.spilled += 1;
                self.spilled_bytes += record::disk_size(&entry.record);
                self.spilled_through = Some(entry.record.seq);
            }
        }
    }
}

fn classify(body: &ReportBody) -> (ReportClass, u64) {
    match body {
        ReportBody::Log(chunk) => {
            let length = match &chunk.text {
                trial_protocol::LogText::Text(text) => text.len(),
                // Base64 encodes three bytes as four.
                trial_protocol::LogText::Base64(text) => text.len() / 4 * 3,
            };
            (ReportClass::Log, to_u64(length))
        }
        ReportBody::Sample(_) => (ReportClass::Sample, 0),
        ReportBody::Ended(_) => (ReportClass::Terminal, 0),
        ReportBody::Started(_)
        | ReportBody::Metric(_)
        | ReportBody::Shed(_)
        | ReportBody::Note { .. }
        | ReportBody::Unknown => (ReportClass::Fact, 0),
    }
}
