//! SQL of a trial's output: a part of one stream, found by its position. It decodes nothing.

use rusqlite::{Connection, OptionalExtension, params};
use trial_protocol::{Stream, TrialJobId};

use super::super::read::{storable, unsigned};
use super::super::reports::stream_word;
use super::super::{Error, Store};
use super::{AttemptRow, Voices, attempts, known};

// An earlier build stored chunks that end beyond 2^63-1: SQLite cannot add such numbers, and no agent prints so much. The
// rest of such a stream is shown.
const START: &str = "SELECT offset_bytes FROM log_chunk \
     WHERE attempt = ? AND stream = ? AND offset_bytes <= ? \
     AND offset_bytes <= 9223372036854775807 - length(bytes) ORDER BY offset_bytes DESC LIMIT 1";
const FROM: &str = "SELECT offset_bytes, observed_at_ms, bytes FROM log_chunk \
     WHERE attempt = ? AND stream = ? AND offset_bytes >= ? \
     AND offset_bytes <= 9223372036854775807 - length(bytes) ORDER BY offset_bytes";
const END: &str = "SELECT offset_bytes + length(bytes) AS log_end FROM log_chunk \
     WHERE attempt = ? AND stream = ? AND offset_bytes <= 9223372036854775807 - length(bytes) \
     ORDER BY offset_bytes DESC LIMIT 1";
const BACKWARDS: &str = "SELECT offset_bytes, length(bytes) AS size FROM log_chunk \
     WHERE attempt = ? AND stream = ? AND offset_bytes <= 9223372036854775807 - length(bytes) \
     ORDER BY offset_bytes DESC";

/// The statements above, for the test that looks at their plans.
#[cfg(test)]
pub(super) const STATEMENTS: [&str; 4] = [START, FROM, END, BACKWARDS];

/// A part of an attempt's output on one stream.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogPart {
    /// Where the part begins in the stream, in bytes.
    pub from: u64,
    /// The bytes that are there. Where bytes between them are missing, a line says how many.
    pub bytes: Vec<u8>,
    /// Where to go on reading, in bytes of the stream.
    pub next: u64,
    /// Where the stream ends, as far as it was delivered.
    pub end: u64,
    /// When the lines came, at most once a second.
    pub times: Vec<LineTime>,
}

/// When a line of a part of the output came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LineTime {
    /// The line, counted from 0 at the part's beginning. The first one may have begun before the part.
    pub line: u64,
    /// When the agent saw it.
    pub observed_at_ms: i64,
}

impl Store {
    /// At most about `limit` bytes of an attempt's output from position `from` on.
    pub async fn log_part(
        &self,
        attempt: i64,
        stream: Stream,
        from: u64,
        limit: usize,
    ) -> Result<LogPart, Error> {
        self.read(move |c| part(c, attempt, stream, from, limit)).await
    }

    /// The attempt whose output is a trial's: the current one, or what an old keeper sent of it where its agent has sent
    /// none. `None`: neither was heard of.
    pub async fn writing(&self, id: &TrialJobId) -> Result<Option<AttemptRow>, Error> {
        let id = id.clone();
        self.read(move |c| {
            let key = known(c, &id)?;
            let Voices { agent, keeper } = Voices::of(c, key)?;
            let wrote = |voice: i64| -> Result<bool, Error> {
                for stream in [Stream::Stdout, Stream::Stderr] {
                    if part(c, voice, stream, 0, 0)?.end > 0 {
                        return Ok(true);
                    }
                }
                Ok(false)
            };
            let voice = match (agent, keeper) {
                (Some(agent), Some(keeper)) if wrote(agent.0)? || !wrote(keeper.0)? => agent,
                (_, Some(keeper)) => keeper,
                (Some(agent), None) => agent,
                (None, None) => return Ok(None),
            };
            Ok(attempts(c, key)?.into_iter().find(|attempt| attempt.key == voice.0))
        })
        .await
    }

    /// Where the last so many bytes that are there begin: a progress bar may have left gaps of megabytes between them.
    pub async fn log_tail(&self, attempt: i64, stream: Stream, bytes: u64) -> Result<u64, Error> {
        self.read(move |c| {
            let mut left = bytes;
            let mut statement = c.prepare_cached(BACKWARDS)?;
            let mut rows = statement.query(params![attempt, stream_word(stream)])?;
            while let Some(row) = rows.next()? {
                let (offset, size) = (unsigned(row, "offset_bytes")?, unsigned(row, "size")?);
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

/// Returns the first line that begins in `added`, counted from the end of what stands before it. `None`: no line begins there.
fn line_begun(before: &[u8], added: &[u8]) -> Option<u64> {
    if before.last().is_none_or(|byte| *byte == b'\n') {
        return (!added.is_empty()).then_some(0);
    }
    let end = added.iter().position(|byte| *byte == b'\n')?;
    (end + 1 < added.len()).then_some(1)
}

fn newlines(bytes: &[u8]) -> u64 {
    bytes.iter().map(|byte| u64::from(*byte == b'\n')).sum()
}

fn part(
    c: &Connection,
    attempt: i64,
    stream: Stream,
    from: u64,
    limit: usize,
) -> Result<LogPart, Error> {
    let word = stream_word(stream);
    let wanted = storable("log offset", from)?;
    let end = c
        .prepare_cached(END)?
        .query_row(params![attempt, word], |row| Ok(unsigned(row, "log_end")))
        .optional()?
        .transpose()?
        .unwrap_or(0);
    let mut part = LogPart { from, next: from, end, ..LogPart::default() };
    let start: Option<i64> = c
        .prepare_cached(START)?
        .query_row(params![attempt, word, wanted], |row| row.get(0))
        .optional()?;
    let mut statement = c.prepare_cached(FROM)?;
    let mut rows = statement.query(params![attempt, word, start.unwrap_or(wanted)])?;
    let (mut room, mut lines) = (limit, 0);
    while let Some(row) = rows.next()? {
        let offset = unsigned(row, "offset_bytes")?;
        let bytes = row.get_ref("bytes")?.as_blob().unwrap_or_default();
        // The first piece may begin before what is wanted.
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
        lines += newlines(taken);
        part.bytes.extend_from_slice(taken);
        part.next = offset + u64::try_from(taken.len()).unwrap_or(0);
        // What tells of a gap takes no room from what is there.
        room -= taken.len();
        if room == 0 {
            break;
        }
    }
    Ok(part)
}
