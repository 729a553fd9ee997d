//! SQL of attempts and their reports: what arrives is stored once, however often it comes.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use rusqlite::{CachedStatement, Connection, OptionalExtension as _, Row, params};
use serde::Deserialize;
use serde_json::Value;
use trial_protocol::{
    AttemptId, Lane, LogChunk, LogText, Metric, MetricKind, Report, ReportBatch, ReportBody,
    Stream, TrialJobId, Verdict,
};

use super::gap::{self, Gap};
use super::read::{json, parsed, storable, unsigned, unsigned_if_any};
use super::trials::{append_event, known};
use super::{Arrival, AttemptState, Error, LogChunkRow, MetricRow, ReportRow};
use crate::job_state::JobState;

/// The bytes that are kept of each stream of an attempt, from its start and from its end: a trial that prints for ever
/// must not fill the disk that all others need.
const LOG_START: i64 = 1 << 20;
const LOG_END: i64 = 63 << 20;
/// Deletes what lies between.
pub(super) const FORGET_CHUNKS: &str = "DELETE FROM log_chunk \
     WHERE attempt = ? AND stream = ? AND offset_bytes >= ? AND offset_bytes < ?";

/// Selects the sender: the trial, and the attempt if it was heard of.
pub(super) const SPEAKER: &str = "SELECT t.key, a.key, a.facts_through, a.bulk_through, t.attempt, t.state \
     FROM trial t \
     LEFT JOIN attempt a ON a.trial = t.key AND a.name = ?2 WHERE t.id = ?1";

/// The findings of a batch's write.
#[derive(Debug)]
pub(super) struct Written {
    pub(super) through: Option<u64>,
    /// For each report of the batch, whether it was new.
    pub(super) fresh: Vec<bool>,
    /// `true` if nothing was stored, since reports are missing that the agent can send again.
    pub(super) resend: bool,
}

/// Stores what of the batch is not stored yet, and that its attempt spoke. Everything that can be
/// refused is refused before anything is written.
pub(super) fn ingest(c: &Connection, arrival: &Arrival, now_ms: i64) -> Result<Written, Error> {
    let batch = &arrival.batch;
    check(batch)?;
    let Heard { trial, attempt, through, over } = match heard(c, arrival, now_ms)? {
        Spoken::Heard(heard) => heard,
        Spoken::Behind(through) => return Ok(Written { through, fresh: Vec::new(), resend: true }),
    };

    let place = ReportPlace { trial, attempt, lane: batch.lane, stored_at_ms: now_ms };
    let mut statements = ReportStatements::prepare(c, batch.lane)?;
    let mut fresh = Vec::with_capacity(batch.reports.len());
    for (report, raw) in batch.reports.iter().zip(&arrival.bodies) {
        fresh.push(statements.store(&place, report, raw.get())?);
    }
    // A list shows trials that go on; of one that is over only this tells.
    if over && batch.lane == Lane::Facts && fresh.contains(&true) {
        append_event(c, trial, now_ms, None)?;
    }
    Ok(Written { through, fresh, resend: false })
}

/// The place of a batch's reports in the store, and the time at which they are stored.
struct ReportPlace {
    trial: i64,
    attempt: i64,
    lane: Lane,
    stored_at_ms: i64,
}

/// The statements that store reports. To look for a statement costs about as much as to run it: each is looked for once,
/// and those only that are run.
struct ReportStatements<'c> {
    insert_report: CachedStatement<'c>,
    /// The insertion of a piece of log, and the deletion of those in the middle of a long one. `None`: the lane has none.
    of_chunks: Option<(CachedStatement<'c>, CachedStatement<'c>)>,
}

impl<'c> ReportStatements<'c> {
    fn prepare(c: &'c Connection, lane: Lane) -> Result<Self, Error> {
        let insert_report = c.prepare_cached(
            "INSERT OR IGNORE INTO report \
             (attempt, lane, seq, observed_at_ms, stored_at_ms, kind, body, sums_up) \
             VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        )?;
        let of_chunks = match lane {
            Lane::Facts => None,
            Lane::Bulk => Some((
                c.prepare_cached(
                    "INSERT OR IGNORE INTO log_chunk \
                     (trial, attempt, seq, stream, offset_bytes, observed_at_ms, bytes) \
                     VALUES (?, ?, ?, ?, ?, ?, ?)",
                )?,
                c.prepare_cached(FORGET_CHUNKS)?,
            )),
        };
        Ok(Self { insert_report, of_chunks })
    }

    /// Stores a report, whose body is `raw`. Returns whether it was new.
    fn store(&mut self, place: &ReportPlace, report: &Report, raw: &str) -> Result<bool, Error> {
        let seq = storable("seq", report.seq)?;
        let at_ms = report.observed_at_ms;
        if let (Some((insert_chunk, forget_chunks)), ReportBody::Log(chunk)) =
            (&mut self.of_chunks, &report.body)
            && let Some(bytes) = decoded(chunk)
        {
            let (stream, offset) =
                (stream_word(chunk.stream), storable("offset_bytes", chunk.offset_bytes)?);
            let attempt = place.attempt;
            let stored = insert_chunk.execute(params![
                place.trial,
                attempt,
                seq,
                stream,
                offset,
                at_ms,
                bytes
            ])?;
            if offset >= LOG_START + LOG_END {
                forget_chunks.execute(params![attempt, stream, LOG_START, offset - LOG_END])?;
            }
            return Ok(stored == 1);
        }
        let stored = self.insert_report.execute(params![
            place.attempt,
            lane_number(place.lane),
            seq,
            at_ms,
            place.stored_at_ms,
            kind_of(&report.body, raw),
            raw,
            place.lane == Lane::Facts && sums_up(&report.body),
        ])?;
        Ok(stored == 1)
    }
}

/// The number of a concluded metric on the facts lane: after everything that an agent may say.
pub(super) const CONCLUDED: i64 = i64::MAX;

/// The number of the manager's own verdict: behind the agent's, and before what is concluded.
pub(super) const JUDGED: i64 = CONCLUDED - 1;

/// Stores how an attempt ended as the manager knows better than its agent. One that was never heard has an end with it.
pub(super) fn judge(
    c: &Connection,
    id: &TrialJobId,
    attempt: &AttemptId,
    verdict: &Verdict,
    now_ms: i64,
) -> Result<(), Error> {
    let (trial, name) = (known(c, id)?, attempt.as_str());
    let body = serde_json::to_string(&ReportBody::Ended(Box::new(verdict.clone())))
        .expect("a verdict's maps have text keys and its numbers are finite");
    c.prepare_cached(
        "INSERT INTO attempt (trial, name, last_heard_ms, ended) VALUES (?, ?, ?, 1) \
         ON CONFLICT (trial, name) DO UPDATE SET ended = 1",
    )?
    .execute(params![trial, name, now_ms])?;
    c.prepare_cached(
        "INSERT OR IGNORE INTO report \
         (attempt, lane, seq, observed_at_ms, stored_at_ms, kind, body, sums_up) \
         SELECT key, 0, ?, ?, ?, 'ended', ?, 1 FROM attempt WHERE trial = ? AND name = ?",
    )?
    .execute(params![JUDGED, now_ms, now_ms, body, trial, name])?;
    Ok(())
}

/// Stores a metric that no agent reported.
pub(super) fn derive(
    c: &Connection,
    id: &TrialJobId,
    attempt: &AttemptId,
    metric: &Metric,
    now_ms: i64,
) -> Result<(), Error> {
    let trial = known(c, id)?;
    let body = serde_json::to_string(&ReportBody::Metric(metric.clone()))
        .expect("a metric's maps have text keys and its numbers are finite");
    c.prepare_cached(
        "INSERT OR IGNORE INTO report \
         (attempt, lane, seq, observed_at_ms, stored_at_ms, kind, body) \
         SELECT key, 0, ?, ?, ?, 'metric', ? FROM attempt WHERE trial = ? AND name = ?",
    )?
    .execute(params![CONCLUDED, now_ms, now_ms, body, trial, attempt.as_str()])?;
    Ok(())
}

/// Refuses what cannot be stored, before anything is.
fn check(batch: &ReportBatch) -> Result<(), Error> {
    for (what, number) in [("acknowledged", batch.acknowledged), ("forgotten", batch.forgotten)] {
        number.map(|number| storable(what, number)).transpose()?;
    }
    for report in &batch.reports {
        storable("seq", report.seq)?;
        if let ReportBody::Log(chunk) = &report.body {
            storable("offset_bytes", chunk.offset_bytes)?;
            // A chunk that ends where no number reaches could never be read again.
            storable("the end of a log chunk", chunk.offset_bytes.saturating_add(length(chunk)))?;
        }
    }
    Ok(())
}

/// The most bytes that a chunk may hold once it is decoded.
fn length(chunk: &LogChunk) -> u64 {
    let (LogText::Text(text) | LogText::Base64(text)) = &chunk.text;
    u64::try_from(text.len()).unwrap_or(u64::MAX)
}

/// The sender of a batch.
struct Heard {
    /// The trial's key.
    trial: i64,
    /// The attempt's.
    attempt: i64,
    /// The number up to which the batch's lane is stored with this batch.
    through: Option<u64>,
    /// `true` if the trial has ended, as far as the manager knows.
    over: bool,
}

/// The outcome of [`heard`].
enum Spoken {
    /// The reports were noted.
    Heard(Heard),
    /// Nothing was: the store lacks what it confirmed after this number, and the agent can send it again.
    Behind(Option<u64>),
}

/// Notes that the batch's attempt spoke, and how far it is stored with this batch.
fn heard(c: &Connection, arrival: &Arrival, now_ms: i64) -> Result<Spoken, Error> {
    let batch = &arrival.batch;
    let last = batch.reports.iter().map(|report| report.seq).max();
    // By its name: a verdict in words that this build does not know is still the last report.
    let mut reports = batch.reports.iter().zip(&arrival.bodies);
    let ended = batch.lane == Lane::Facts
        && reports.any(|(report, raw)| kind_of(&report.body, raw.get()) == "ended");
    // No `RETURNING`: SQLite makes a table in memory for it, which costs more than all the rest of a small batch.
    let (trial, name) = (batch.trial.as_str(), batch.attempt.as_str());
    let mut find = c.prepare_cached(SPEAKER)?;
    let mut rows = find.query(params![trial, name])?;
    let row = rows.next()?.ok_or_else(|| Error::UnknownTrial(batch.trial.clone()))?;
    if let Some(about) = &arrival.about
        && row.get_ref("attempt")?.as_str() != Ok(about.as_str())
    {
        return Err(Error::Superseded(parsed(row, "attempt", AttemptId::new)?));
    }
    let over = parsed(row, "state", str::parse::<JobState>)?.is_final();
    let (trial, known): (i64, Option<i64>) = (row.get(0)?, row.get(1)?);
    let before = match batch.lane {
        Lane::Facts => unsigned_if_any(row, "facts_through")?,
        Lane::Bulk => unsigned_if_any(row, "bulk_through")?,
    };
    let gone = match Gap::between(before, batch.acknowledged, batch.forgotten) {
        Gap::None => None,
        Gap::Recoverable => return Ok(Spoken::Behind(before)),
        Gap::Lost { through } => Some(through),
    };
    let through = before.max(gone).max(last);
    let number = through.map(|seq| storable("seq", seq)).transpose()?;
    let (facts, bulk) = match batch.lane {
        Lane::Facts => (number, None),
        Lane::Bulk => (None, number),
    };
    let attempt = if let Some(attempt) = known {
        c.prepare_cached(
            "UPDATE attempt SET last_heard_ms = max(last_heard_ms, ?), ended = max(ended, ?), \
             facts_through = coalesce(?, facts_through), bulk_through = coalesce(?, bulk_through) \
             WHERE key = ?",
        )?
        .execute(params![now_ms, ended, facts, bulk, attempt])?;
        attempt
    } else {
        c.prepare_cached(
            "INSERT INTO attempt (trial, name, last_heard_ms, ended, facts_through, bulk_through) \
             VALUES (?, ?, ?, ?, ?, ?)",
        )?
        .execute(params![trial, name, now_ms, ended, facts, bulk])?;
        c.last_insert_rowid()
    };
    if let Some(gone) = gone {
        note_loss(c, attempt, batch.lane, before, gone, now_ms)?;
    }
    Ok(Spoken::Heard(Heard { trial, attempt, through, over }))
}

/// Puts a note in the place of reports that are gone for good. Its number is the last of theirs, which nothing else will
/// ever have.
fn note_loss(
    c: &Connection,
    attempt: i64,
    lane: Lane,
    stored: Option<u64>,
    through: u64,
    now_ms: i64,
) -> Result<(), Error> {
    let seq = storable("forgotten", through)?;
    let body = gap::note(stored, through).to_string();
    c.prepare_cached(
        "INSERT OR IGNORE INTO report \
         (attempt, lane, seq, observed_at_ms, stored_at_ms, kind, body, sums_up) \
         VALUES (?, ?, ?, ?, ?, 'note', ?, 1)",
    )?
    .execute(params![attempt, lane_number(lane), seq, now_ms, now_ms, body])?;
    Ok(())
}

/// The chunk's bytes. `None` if they are not what they say they are: then the report is kept raw.
fn decoded(chunk: &LogChunk) -> Option<Vec<u8>> {
    match &chunk.text {
        LogText::Text(text) => Some(text.clone().into_bytes()),
        LogText::Base64(text) => BASE64_STANDARD.decode(text).ok(),
    }
}

/// Returns whether a list of trials shows it.
fn sums_up(body: &ReportBody) -> bool {
    match body {
        ReportBody::Ended(_) => true,
        ReportBody::Metric(metric) => metric.kind == MetricKind::Final,
        ReportBody::Started(_)
        | ReportBody::Shed(_)
        | ReportBody::Note { .. }
        | ReportBody::Log(_)
        | ReportBody::Sample(_)
        | ReportBody::Unknown => false,
    }
}

/// The kind as the agent wrote it.
fn kind_of<'a>(body: &ReportBody, raw: &'a str) -> std::borrow::Cow<'a, str> {
    #[derive(Deserialize)]
    struct Tag<'a> {
        #[serde(borrow)]
        kind: std::borrow::Cow<'a, str>,
    }
    let known = match body {
        ReportBody::Started(_) => "started",
        ReportBody::Metric(_) => "metric",
        ReportBody::Ended(_) => "ended",
        ReportBody::Shed(_) => "shed",
        ReportBody::Note { .. } => "note",
        ReportBody::Log(_) => "log",
        ReportBody::Sample(_) => "sample",
        ReportBody::Unknown => {
            return serde_json::from_str::<Tag<'_>>(raw).map(|tag| tag.kind).unwrap_or_default();
        }
    };
    known.into()
}

pub(super) fn metrics(c: &Connection, id: &TrialJobId) -> Result<Vec<MetricRow>, Error> {
    let key = known(c, id)?;
    let mut statement = c.prepare_cached(
        "SELECT a.name, r.seq, r.observed_at_ms, r.stored_at_ms, r.body FROM attempt a \
         JOIN report r ON r.attempt = a.key AND r.lane = 0 \
         WHERE a.trial = ? AND r.kind = 'metric' ORDER BY a.key, r.seq",
    )?;
    let rows = statement.query_and_then([key], metric_row)?;
    rows.filter_map(Result::transpose).collect()
}

pub(super) fn all_metrics(c: &Connection) -> Result<Vec<(TrialJobId, MetricRow)>, Error> {
    let mut all = Vec::new();
    each_metric(c, |trial, metric| all.push((trial, metric)))?;
    Ok(all)
}

/// Tells all metrics, one after the other.
pub(super) fn each_metric(
    c: &Connection,
    mut tell: impl FnMut(TrialJobId, MetricRow),
) -> Result<(), Error> {
    let mut statement = c.prepare_cached(
        "SELECT t.id, a.name, r.seq, r.observed_at_ms, r.stored_at_ms, r.body FROM trial t \
         JOIN attempt a ON a.trial = t.key \
         JOIN report r ON r.attempt = a.key AND r.lane = 0 \
         WHERE r.kind = 'metric' ORDER BY t.sequence, t.key, a.key, r.seq",
    )?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        if let Some(metric) = metric_row(row)? {
            tell(parsed(row, "id", TrialJobId::new)?, metric);
        }
    }
    Ok(())
}

/// A stored metric; `None` for one that said `metric` and was none, which is kept among the reports.
pub(super) fn metric_row(row: &Row<'_>) -> Result<Option<MetricRow>, Error> {
    let Ok(metric) = parsed(row, "body", serde_json::from_str::<Metric>) else { return Ok(None) };
    Ok(Some(MetricRow {
        attempt: parsed(row, "name", AttemptId::new)?,
        seq: unsigned(row, "seq")?,
        observed_at_ms: row.get("observed_at_ms")?,
        stored_at_ms: row.get("stored_at_ms")?,
        metric,
    }))
}

pub(super) fn verdict(
    c: &Connection,
    id: &TrialJobId,
    attempt: &AttemptId,
) -> Result<Option<Verdict>, Error> {
    let key = known(c, id)?;
    let mut statement = c.prepare_cached(
        "SELECT body FROM report WHERE kind = 'ended' AND lane = 0 \
         AND attempt = (SELECT key FROM attempt WHERE trial = ? AND name = ?) \
         ORDER BY seq <> ?, seq",
    )?;
    let mut verdicts = statement.query_and_then(params![key, attempt.as_str(), JUDGED], |row| {
        // One that is not readable as a verdict says nothing.
        Ok::<_, Error>(parsed(row, "body", serde_json::from_str::<Verdict>).ok())
    })?;
    verdicts.find_map(Result::transpose).transpose()
}

/// Returns the time at which an attempt's agent started the command, by its clock.
pub(super) fn started(
    c: &Connection,
    id: &TrialJobId,
    attempt: &AttemptId,
) -> Result<Option<i64>, Error> {
    let key = known(c, id)?;
    let mut statement = c.prepare_cached(
        "SELECT observed_at_ms FROM report WHERE kind = 'started' AND lane = 0 \
         AND attempt = (SELECT key FROM attempt WHERE trial = ? AND name = ?) ORDER BY seq LIMIT 1",
    )?;
    Ok(statement.query_row(params![key, attempt.as_str()], |row| row.get(0)).optional()?)
}

pub(super) fn reports(
    c: &Connection,
    id: &TrialJobId,
    lane: Lane,
) -> Result<Vec<ReportRow>, Error> {
    let key = known(c, id)?;
    let mut statement = c.prepare_cached(
        "SELECT a.name, r.seq, r.observed_at_ms, r.stored_at_ms, r.kind, r.body FROM attempt a \
         JOIN report r ON r.attempt = a.key AND r.lane = ? WHERE a.trial = ? ORDER BY a.key, r.seq",
    )?;
    let rows = statement.query_and_then(params![lane_number(lane), key], |row| {
        Ok(ReportRow {
            attempt: parsed(row, "name", AttemptId::new)?,
            lane,
            seq: unsigned(row, "seq")?,
            observed_at_ms: row.get("observed_at_ms")?,
            stored_at_ms: row.get("stored_at_ms")?,
            kind: row.get("kind")?,
            // JSON that is sound and still too deep for a `Value` is shown as the text it is.
            body: json(row, "body").or_else(|_| row.get("body").map(Value::String))?,
        })
    })?;
    rows.collect()
}

pub(super) fn log(
    c: &Connection,
    id: &TrialJobId,
    stream: Stream,
) -> Result<Vec<LogChunkRow>, Error> {
    let key = known(c, id)?;
    let mut statement = c.prepare_cached(
        "SELECT a.name, l.offset_bytes, l.observed_at_ms, l.bytes FROM attempt a \
         JOIN log_chunk l ON l.attempt = a.key \
         WHERE a.trial = ? AND l.stream = ? ORDER BY a.key, l.seq",
    )?;
    let rows = statement.query_and_then(params![key, stream_word(stream)], |row| {
        Ok(LogChunkRow {
            attempt: parsed(row, "name", AttemptId::new)?,
            stream,
            offset_bytes: unsigned(row, "offset_bytes")?,
            observed_at_ms: row.get("observed_at_ms")?,
            bytes: row.get("bytes")?,
        })
    })?;
    rows.collect()
}

pub(super) fn log_end(
    c: &Connection,
    id: &TrialJobId,
    attempt: &AttemptId,
    stream: Stream,
) -> Result<u64, Error> {
    let key = known(c, id)?;
    let mut statement = c.prepare_cached(
        "SELECT coalesce(max(l.offset_bytes + length(l.bytes)), 0) AS log_end FROM attempt a \
         JOIN log_chunk l ON l.attempt = a.key WHERE a.trial = ? AND a.name = ? AND l.stream = ?",
    )?;
    let mut rows = statement.query(params![key, attempt.as_str(), stream_word(stream)])?;
    rows.next()?.map_or(Ok(0), |row| unsigned(row, "log_end"))
}

pub(super) fn attempt_state(
    c: &Connection,
    id: &TrialJobId,
    attempt: &AttemptId,
) -> Result<AttemptState, Error> {
    let key = known(c, id)?;
    let mut statement = c.prepare_cached("SELECT * FROM attempt WHERE trial = ? AND name = ?")?;
    let mut rows = statement.query(params![key, attempt.as_str()])?;
    let Some(row) = rows.next()? else { return Ok(AttemptState::default()) };
    Ok(AttemptState {
        facts_through: unsigned_if_any(row, "facts_through")?,
        bulk_through: unsigned_if_any(row, "bulk_through")?,
        ended: row.get("ended")?,
        last_heard_ms: row.get("last_heard_ms")?,
    })
}

pub(super) fn lane_number(lane: Lane) -> i64 {
    match lane {
        Lane::Facts => 0,
        Lane::Bulk => 1,
    }
}

pub(super) fn stream_word(stream: Stream) -> &'static str {
    match stream {
        Stream::Stdout => "stdout",
        Stream::Stderr => "stderr",
    }
}
