//! The files of one lane of one attempt: sequential reading, acknowledging, deleting.

use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use trial_protocol::{AttemptId, Lane};

use super::record::{self, DecodeResult, Record, SEGMENT_MAGIC};
use crate::util::numbers::to_u64;

/// The number of bytes that are read from a segment at a time.
const READ_BYTES: usize = 64 << 10;

/// The number of acknowledged segments of facts that stay in addition to the open one. A manager whose database was
/// replaced by an older copy requests them again.
const RETAINED_SEGMENTS: usize = 3;

/// The files of one lane of one attempt.
#[derive(Debug)]
pub struct LaneFiles {
    dir: PathBuf,
    lane: Lane,
    /// The first seq of each segment, in rising order.
    segments: Vec<u64>,
    acked: Option<u64>,
    /// The highest seq that was deleted or never written, and that can therefore not be read again.
    forgotten: Option<u64>,
    /// The position after the last record that was read.
    position: Option<Position>,
}

#[derive(Debug, Clone, Copy)]
struct Position {
    segment: u64,
    offset: u64,
    /// The highest seq before the offset.
    passed: Option<u64>,
}

/// The content of a lane's files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaneSummary {
    /// The seq of the next report.
    pub next_seq: u64,
    /// The last acknowledged seq.
    pub acked: Option<u64>,
    /// The seq of the last report that is not acknowledged.
    pub last_kept: Option<u64>,
    /// The number of reports that are not acknowledged.
    pub kept: u64,
    /// The size of these reports in bytes.
    pub kept_bytes: u64,
}

/// Returns the attempts that have a directory in a spool, the least recently written first.
pub fn list_attempts(spool: &Path) -> Vec<AttemptId> {
    let Ok(entries) = fs::read_dir(spool) else { return Vec::new() };
    let mut found: Vec<_> = entries
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .filter_map(|entry| {
            let attempt = AttemptId::new(entry.file_name().to_str()?).ok()?;
            Some((entry.metadata().and_then(|data| data.modified()).ok(), attempt))
        })
        .collect();
    found.sort();
    found.into_iter().map(|(_, attempt)| attempt).collect()
}

/// Returns the name of a lane in file names.
pub fn lane_name(lane: Lane) -> &'static str {
    match lane {
        Lane::Facts => "facts",
        Lane::Bulk => "bulk",
    }
}

impl LaneFiles {
    /// Finds the lane's files in an attempt's directory. A missing directory is not an error.
    pub fn open(dir: &Path, lane: Lane) -> io::Result<Self> {
        let (segments, dir) = (Vec::new(), dir.to_owned());
        let mut files = Self { dir, lane, segments, acked: None, forgotten: None, position: None };
        let prefix = format!("{}-", lane_name(lane));
        match fs::read_dir(&files.dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(files),
            Err(error) => return Err(error),
            Ok(entries) => {
                for entry in entries {
                    let name = entry?.file_name();
                    let number = name.to_str().and_then(|name| {
                        name.strip_prefix(&prefix)?.strip_suffix(".seg")?.parse::<u64>().ok()
                    });
                    files.segments.extend(number);
                }
            }
        }
        files.segments.sort_unstable();
        files.acked = match fs::read_to_string(files.ack_path()) {
            // An unreadable cursor causes a second delivery, which the manager ignores.
            Ok(text) => text.trim().parse().ok(),
            Err(_) => None,
        };
        files.forgotten = match fs::read_to_string(files.forgotten_path()) {
            Ok(text) => text.trim().parse().ok(),
            Err(_) => None,
        };
        if files.segments.is_empty() {
            files.forgotten = files.forgotten.max(files.acked);
        }
        Ok(files)
    }

    /// Reads all segments once and summarises them. If `truncate` is set, torn ends are cut off, so that a writer
    /// can continue.
    pub fn scan(&mut self, truncate: bool) -> io::Result<LaneSummary> {
        let mut last = None;
        let mut summary =
            LaneSummary { next_seq: 0, acked: self.acked, last_kept: None, kept: 0, kept_bytes: 0 };
        for &segment in &self.segments {
            let path = self.segment_path(segment);
            let bytes = read_whole(&path)?;
            let mut offset = if bytes.starts_with(SEGMENT_MAGIC) { SEGMENT_MAGIC.len() } else { 0 };
            while let DecodeResult::Whole(record, length) = record::decode(&bytes[offset..]) {
                if offset == 0 {
                    break; // A file without the magic is no segment.
                }
                if Some(record.seq) > self.acked.max(last) {
                    summary.last_kept = Some(record.seq);
                    summary.kept += 1;
                    summary.kept_bytes += record::disk_size(&record);
                }
                last = last.max(Some(record.seq));
                offset += length;
            }
            if truncate && offset < bytes.len() {
                let file = File::options().write(true).open(&path)?;
                file.set_len(to_u64(offset))?;
            }
        }
        // The name of a segment preserves the numbering even if the segment is empty.
        let named = self.segments.last().copied();
        let after = |seq: u64| seq.saturating_add(1);
        summary.next_seq =
            last.map_or(0, after).max(self.acked.map_or(0, after)).max(named.unwrap_or(0));
        Ok(summary)
    }

    /// Returns the reports after `after` and up to `through`: at most `max_bytes` of JSON, but at least one report if
    /// there is any. The rest of a segment after a damaged record is skipped.
    pub fn read(
        &mut self,
        after: Option<u64>,
        through: u64,
        max_bytes: usize,
    ) -> io::Result<Vec<Record>> {
        let mut found = Vec::new();
        let mut bytes = 0;
        // A position after `after` cannot be used. It occurs when an ack was revoked, or when reports are read again.
        let mut position = self.position.filter(|position| position.passed <= after);
        for index in 0..self.segments.len() {
            let segment = self.segments[index];
            let next = self.segments.get(index + 1);
            if next.is_some_and(|next| after.is_some_and(|after| *next <= after.saturating_add(1)))
            {
                continue; // All its records are before `after`.
            }
            if position.is_some_and(|position| position.segment > segment) {
                continue;
            }
            let start = position.take().filter(|position| position.segment == segment);
            // A failed write may have left records in this segment that the next segment contains again.
            let after = after.max(found.last().map(|record: &Record| record.seq));
            let done =
                self.read_segment(segment, start, after, through, &mut |record: Record| {
                    bytes += record.json.len();
                    let enough = bytes > max_bytes && !found.is_empty();
                    if !enough {
                        found.push(record);
                    }
                    !enough
                })?;
            if done {
                break;
            }
        }
        Ok(found)
    }

    /// Reads records of one segment. Returns `true` if `take` or `through` ended the reading.
    fn read_segment(
        &mut self,
        segment: u64,
        start: Option<Position>,
        after: Option<u64>,
        through: u64,
        take: &mut dyn FnMut(Record) -> bool,
    ) -> io::Result<bool> {
        let mut file = File::open(self.segment_path(segment))?;
        let mut offset = match start {
            Some(position) => position.offset,
            None => {
                let mut magic = [0; SEGMENT_MAGIC.len()];
                if file.read_exact(&mut magic).is_err() || magic != *SEGMENT_MAGIC {
                    return Ok(false);
                }
                SEGMENT_MAGIC.len().try_into().unwrap_or(u64::MAX)
            }
        };
        // A segment is named after its first seq, so all earlier records are in other segments.
        let mut passed = start.map_or(segment.checked_sub(1), |position| position.passed);
        file.seek(SeekFrom::Start(offset))?;
        let mut buffer = Vec::new();
        let mut used = 0;
        loop {
            match record::decode(&buffer[used..]) {
                DecodeResult::Whole(record, length) => {
                    if record.seq > through {
                        self.position = Some(Position { segment, offset, passed });
                        return Ok(true);
                    }
                    if Some(record.seq) > after {
                        let seq = record.seq;
                        if !take(record) {
                            self.position = Some(Position { segment, offset, passed });
                            return Ok(true);
                        }
                        passed = passed.max(Some(seq));
                    } else {
                        passed = passed.max(Some(record.seq));
                    }
                    used += length;
                    offset += to_u64(length);
                }
                DecodeResult::Incomplete => {
                    buffer.drain(..used);
                    used = 0;
                    let wanted = to_u64(READ_BYTES);
                    if file.by_ref().take(wanted).read_to_end(&mut buffer)? == 0 {
                        self.position = Some(Position { segment, offset, passed });
                        return Ok(false);
                    }
                }
                DecodeResult::Damaged => return Ok(false),
            }
        }
    }

    /// Acknowledges the reports up to `through` in memory. [`LaneFiles::save`] writes this to the disk.
    pub fn ack(&mut self, through: u64) {
        self.acked = self.acked.max(Some(through));
    }

    /// Returns the highest seq that cannot be read again. `None`: all can.
    pub fn forgotten(&self) -> Option<u64> {
        self.forgotten
    }

    /// Forgets a report that the manager permanently refuses.
    pub fn forget_refused(&mut self, seq: u64) {
        self.forgotten = self.forgotten.max(Some(seq));
    }

    /// Revokes the acknowledgement of the reports after `to`, as far as they can be read again. Returns their number,
    /// their size, and the last one.
    pub fn rewind(&mut self, to: Option<u64>) -> LaneSummary {
        let before = self.acked;
        let mut found =
            LaneSummary { next_seq: 0, acked: None, last_kept: None, kept: 0, kept_bytes: 0 };
        let mut after = to.max(self.forgotten);
        found.acked = after;
        while after < before {
            // Reports that cannot be read now must not be promised to the manager.
            let Ok(records) = self.read(after, before.unwrap_or(0), READ_BYTES) else {
                found.kept = 0;
                break;
            };
            let Some(last) = records.last() else { break };
            after = Some(last.seq);
            found.last_kept = after;
            found.kept += to_u64(records.len());
            found.kept_bytes += records.iter().map(record::disk_size).sum::<u64>();
        }
        if found.kept == 0 {
            // None of the reports can be read. They count as forgotten, because the manager would request them again
            // and again.
            self.forgotten = before.max(self.forgotten);
            found = LaneSummary { acked: before, last_kept: None, kept_bytes: 0, ..found };
        }
        self.acked = found.acked;
        found
    }

    /// Returns the lane.
    pub fn lane(&self) -> Lane {
        self.lane
    }

    /// Returns the last acknowledged seq.
    pub fn acked(&self) -> Option<u64> {
        self.acked
    }

    /// Saves the acknowledgement and deletes the acknowledged segments, except the `open` one and a few of facts.
    pub fn save(&mut self, open: Option<u64>) -> io::Result<()> {
        let Some(acked) = self.acked else { return Ok(()) };
        super::replace_file(&self.ack_path(), format!("{acked}\n").as_bytes())?;
        let retained = match self.lane {
            Lane::Facts => RETAINED_SEGMENTS,
            Lane::Bulk => 0,
        };
        self.delete_acked(open, retained)
    }

    /// Deletes the acknowledged segments, the oldest first, except the `open` one and the newest `retained`.
    pub fn delete_acked(&mut self, open: Option<u64>, retained: usize) -> io::Result<()> {
        let Some(acked) = self.acked else { return Ok(()) };
        let whole = self.segments.windows(2).map(|pair| (pair[0], pair[1]));
        let whole = whole
            .take_while(|(first, next)| *next <= acked.saturating_add(1) && open != Some(*first));
        let count = whole.count().saturating_sub(retained);
        if count == 0 {
            return Ok(());
        }
        self.write_forgotten(self.segments[count].checked_sub(1))?;
        for first in self.segments.drain(..count).collect::<Vec<_>>() {
            fs::remove_file(self.segment_path(first))?;
        }
        Ok(())
    }

    /// Records which reports cannot be read again, before they are deleted.
    fn write_forgotten(&mut self, through: Option<u64>) -> io::Result<()> {
        self.forgotten = self.forgotten.max(through);
        let Some(forgotten) = self.forgotten else { return Ok(()) };
        super::replace_file(&self.forgotten_path(), format!("{forgotten}\n").as_bytes())
    }

    /// Returns whether there is a segment.
    pub fn has_segments(&self) -> bool {
        !self.segments.is_empty()
    }

    /// Deletes all segments, which are acknowledged or dropped. The cursor stays, so that no seq is used twice.
    pub fn remove_segments(&mut self) -> io::Result<()> {
        for segment in self.segments.drain(..) {
            fs::remove_file(self.dir.join(segment_name(self.lane, segment)))?;
        }
        // Not saved to a file: without a segment, all acknowledged reports count as forgotten.
        self.forgotten = self.forgotten.max(self.acked);
        self.position = None;
        Ok(())
    }

    /// Syncs the segment that begins with `first`, unless it was acknowledged or deleted since.
    pub fn sync(&self, first: u64) -> io::Result<()> {
        let is_acked =
            |next: &u64| self.acked.is_some_and(|acked| *next <= acked.saturating_add(1));
        match self.segments.binary_search(&first) {
            Ok(index) if self.segments.get(index + 1).is_some_and(is_acked) => Ok(()),
            Ok(_) => File::open(self.segment_path(first))?.sync_data(),
            Err(_) => Ok(()),
        }
    }

    /// Creates a new segment that begins with `first`. An existing file of that name is left from a failed write.
    pub fn create_segment(&mut self, first: u64) -> io::Result<File> {
        use std::io::Write as _;
        if self.segments.is_empty() && self.forgotten.is_some() {
            self.write_forgotten(self.forgotten)?;
        }
        let mut file = File::options().create(true).append(true).open(self.segment_path(first))?;
        if file.metadata()?.len() > 0 {
            file.set_len(0)?;
        }
        file.write_all(SEGMENT_MAGIC)?;
        if self.segments.last() != Some(&first) {
            self.segments.push(first);
        }
        Ok(file)
    }

    fn segment_path(&self, segment: u64) -> PathBuf {
        self.dir.join(segment_name(self.lane, segment))
    }

    fn forgotten_path(&self) -> PathBuf {
        self.dir.join(format!("{}.forgotten", lane_name(self.lane)))
    }

    fn ack_path(&self) -> PathBuf {
        self.dir.join(format!("{}.ack", lane_name(self.lane)))
    }
}

/// Reads a file that does not grow. Reads no more than its reported length, so that an endless file cannot block.
fn read_whole(path: &Path) -> io::Result<Vec<u8>> {
    let file = File::open(path)?;
    let length = file.metadata()?.len();
    let mut bytes = Vec::new();
    file.take(length).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn segment_name(lane: Lane, first: u64) -> String {
    format!("{}-{first:020}.seg", lane_name(lane))
}
