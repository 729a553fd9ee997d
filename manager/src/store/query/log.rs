//! SQL that reads a part of a trial's output by its position. The bytes are not decoded.

use rusqlite::{Connection, OptionalExtension, params};
use trial_protocol::{Stream, TrialJobId};

use super::super::database::Database;
use super::super::error::Error;
use super::super::readers::{read_unsigned, to_storable};
use super::super::report_records::stream_word;

use super::{AttemptRow, ReportSources, attempts, trial_key};

// An earlier build stored chunks that end beyond 2^63-1, which SQLite cannot compute and no real trial reaches. The
// other chunks of such a stream are shown.
const SELECT_CHUNK_START: &str = "SELECT offset_bytes FROM log_chunk \
     WHERE attempt = ? AND stream = ? AND offset_bytes <= ? \
     AND offset_bytes <= 9223372036854775807 - length(bytes) ORDER BY offset_bytes DESC LIMIT 1";
const SELECT_CHUNKS: &str = "SELECT offset_bytes, observed_at_ms, bytes FROM log_chunk \
     WHERE attempt = ? AND stream = ? AND offset_bytes >= ? \
     AND offset_bytes <= 9223372036854775807 - length(bytes) ORDER BY offset_bytes";
const SELECT_LOG_END: &str = "SELECT offset_bytes + length(bytes) AS log_end FROM log_chunk \
     WHERE attempt = ? AND stream = ? AND offset_bytes <= 9223372036854775807 - length(bytes) \
     ORDER BY offset_bytes DESC LIMIT 1";
const SELECT_CHUNKS_BACKWARDS: &str = "SELECT offset_bytes, length(bytes) AS size FROM log_chunk \
     WHERE attempt = ? AND stream = ? AND offset_bytes <= 9223372036854775807 - length(bytes) \
     ORDER BY offset_bytes DESC";

/// The statements above, for the test that checks their query plans.
#[cfg(test)]
pub(super) const LOG_STATEMENTS: [&str; 4] =
    [SELECT_CHUNK_START, SELECT_CHUNKS, SELECT_LOG_END, SELECT_CHUNKS_BACKWARDS];

/// A part of an attempt's output on one stream.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogPart {
    /// The position in the stream at which the part begins, in bytes.
    pub from: u64,
    /// The stored bytes. Where bytes are missing, a line with their number is inserted.
    pub bytes: Vec<u8>,
    /// The position in the stream at which the next part begins, in bytes.
    pub next: u64,
    /// The end of the stream, as far as it has been delivered.
    pub end: u64,
    /// The times of the lines, at most one per second.
    pub times: Vec<LineTime>,
}

/// The time of a line in a part of the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LineTime {
    /// The number of the line, from 0 at the beginning of the part. The first line may have begun before the part.
    pub line: u64,
    /// The time at which the agent read the line.
    pub observed_at_ms: i64,
}

/// The queries of the trials' output.
#[derive(Clone, Debug)]
pub struct LogQueries {
    database: Database,
}

impl LogQueries {
    pub(in super::super) fn new(database: Database) -> Self {
        Self { database }
    }

    /// Returns at most about `limit` bytes of an attempt's output, starting at position `from`.
    pub async fn read_part(
        &self,
        attempt: i64,
        stream: Stream,
        from: u64,
        limit: usize,
    ) -> Result<LogPart, Error> {
        self.database.read(move |c| read_part(c, attempt, stream, from, limit)).await
    }

    /// Returns the attempt that provides a trial's output: the current attempt, or the old keeper's if only the
    /// keeper has sent output. `None` if neither has reported.
    pub async fn output_attempt(&self, id: &TrialJobId) -> Result<Option<AttemptRow>, Error> {
        let id = id.clone();
        self.database
            .read(move |c| {
                let key = trial_key(c, &id)?;
                let ReportSources { agent, keeper } = ReportSources::of(c, key)?;
                let wrote = |source: i64| -> Result<bool, Error> {
                    for stream in [Stream::Stdout, Stream::Stderr] {
                        if read_part(c, source, stream, 0, 0)?.end > 0 {
                            return Ok(true);
                        }
                    }
                    Ok(false)
                };
                let source = match (agent, keeper) {
                    (Some(agent), Some(keeper)) if wrote(agent.0)? || !wrote(keeper.0)? => agent,
                    (_, Some(keeper)) => keeper,
                    (Some(agent), None) => agent,
                    (None, None) => return Ok(None),
                };
                Ok(attempts(c, key)?.into_iter().find(|attempt| attempt.key == source.0))
            })
            .await
    }

    /// Returns the position at which the last `bytes` stored bytes begin. A progress bar may have left gaps of
    /// megabytes between them.
    pub async fn tail_start(&self, attempt: i64, stream: Stream, bytes: u64) -> Result<u64, Error> {
        self.database
            .read(move |c| {
                let mut left = bytes;
                let mut statement = c.prepare_cached(SELECT_CHUNKS_BACKWARDS)?;
                let mut rows = statement.query(params![attempt, stream_word(stream)])?;
                while let Some(row) = rows.next()? {
                    let (offset, size) =
                        (read_unsigned(row, "offset_bytes")?, read_unsigned(row, "size")?);
                    if size >= left {
                        return Ok(offset + size - left);
                    }
                    left -= size;
                }
                Ok(0)
            })
            .await
    }
}

/// Returns the first line that begins in `added`, counted from the last line of `before`. `None` if no line begins
/// there.
fn line_begun(before: &[u8], added: &[u8]) -> Option<u64> {
    if before.last().is_none_or(|byte| *byte == b'\n') {
        return (!added.is_empty()).then_some(0);
    }
    let end = added.iter().position(|byte| *byte == b'\n')?;
    (end + 1 < added.len()).then_some(1)
}

fn count_newlines(bytes: &[u8]) -> u64 {
    bytes.iter().map(|byte| u64::from(*byte == b'\n')).sum()
}

fn read_part(
    c: &Connection,
    attempt: i64,
    stream: Stream,
    from: u64,
    limit: usize,
) -> Result<LogPart, Error> {
    let word = stream_word(stream);
    let wanted = to_storable("log offset", from)?;
    let end = c
        .prepare_cached(SELECT_LOG_END)?
        .query_row(params![attempt, word], |row| Ok(read_unsigned(row, "log_end")))
        .optional()?
        .transpose()?
        .unwrap_or(0);
    let mut part = LogPart { from, next: from, end, ..LogPart::default() };
    let start: Option<i64> = c
        .prepare_cached(SELECT_CHUNK_START)?
        .query_row(params![attempt, word, wanted], |row| row.get(0))
        .optional()?;
    let mut statement = c.prepare_cached(SELECT_CHUNKS)?;
    let mut rows = statement.query(params![attempt, word, start.unwrap_or(wanted)])?;
    let (mut room, mut lines) = (limit, 0);
    while let Some(row) = rows.next()? {
        let offset = read_unsigned(row, "offset_bytes")?;
        let bytes = row.get_ref("bytes")?.as_blob().unwrap_or_default();
        // The first chunk may begin before the requested position.
        let skipped = usize::try_from(part.next.saturating_sub(offset)).unwrap_or(usize::MAX);
        let Some(bytes) = bytes.get(skipped..).filter(|bytes| !bytes.is_empty()) else { continue };
        let offset = offset.max(part.next);
        let missing = offset - part.next;
        if missing > 0 {
            part.bytes.extend_from_slice(format!("[{missing} bytes are missing]\n").as_bytes());
            lines += 1;
        }
        let taken = &bytes[..bytes.len().min(room)];
        if let Some(ahead) = line_begun(&part.bytes, taken) {
            let observed_at_ms = row.get("observed_at_ms")?;
            let time = LineTime { line: lines + ahead, observed_at_ms };
            let second = |time: &LineTime| time.observed_at_ms.div_euclid(1000);
            if part.times.last().is_none_or(|last| second(last) != second(&time)) {
                part.times.push(time);
            }
        }
        lines += count_newlines(taken);
        part.bytes.extend_from_slice(taken);
        part.next = offset + u64::try_from(taken.len()).unwrap_or(0);
        // The line about a gap does not count towards the limit.
        room -= taken.len();
        if room == 0 {
            break;
        }
    }
    Ok(part)
}
