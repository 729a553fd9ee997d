//! SQL of attempts and their reports. Every report is stored once, however often it arrives.

use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use rusqlite::{CachedStatement, Connection, OptionalExtension as _, Row, params};
use serde::Deserialize;
use serde_json::Value;
use trial_protocol::{
    AttemptId, Lane, LogChunk, LogText, Metric, MetricKind, Report, ReportBatch, ReportBody,
    Stream, TrialJobId, Verdict,
};

use super::database::Database;
use super::error::Error;
use super::gap::{self, Gap};
use super::readers::{
    parse_column, parse_json_column, read_optional_unsigned, read_unsigned, to_storable,
};
use super::rows::{
    AttemptState, DERIVED_METRIC_SEQ, FinalRecords, IngestOutcome, LogChunkRow, MetricRow,
    OWN_VERDICT_SEQ, ReceivedBatch, ReportRow,
};
use super::trial_records::{append_event, trial_key};
use crate::job_state::JobState;

/// The bytes that are kept from the start and from the end of each stream of an attempt. A trial that prints without
/// end must not fill the disk that all trials share.
const KEPT_LOG_START_BYTES: i64 = 1 << 20;
const KEPT_LOG_END_BYTES: i64 = 63 << 20;
/// Deletes the log chunks between the start and the end.
pub(super) const DELETE_MIDDLE_CHUNKS: &str = "DELETE FROM log_chunk \
     WHERE attempt = ? AND stream = ? AND offset_bytes >= ? AND offset_bytes < ?";

/// Selects the sender of a batch: the trial, and the attempt if it has reported before.
pub(super) const SELECT_SENDER: &str = "SELECT t.key, a.key, a.facts_through, a.bulk_through, t.attempt, t.state \
     FROM trial t \
     LEFT JOIN attempt a ON a.trial = t.key AND a.name = ?2 WHERE t.id = ?1";

/// The attempts of trials and their reports.
#[derive(Clone, Debug)]
pub struct ReportRecords {
    database: Database,
}

impl ReportRecords {
    pub(super) fn new(database: Database) -> Self {
        Self { database }
    }

    /// Stores the reports of a batch that are not stored yet. If too many writes are queued, it fails with
    /// [`Error::Overloaded`] instead of waiting. The caller may keep the batch to submit it again.
    pub async fn ingest(
        &self,
        received_batch: Arc<ReceivedBatch>,
        now_ms: i64,
    ) -> Result<IngestOutcome, Error> {
        let work = {
            let received_batch = Arc::clone(&received_batch);
            move |c: &Connection| store_batch(c, &received_batch, now_ms)
        };
        let weight = 1 + received_batch.batch.reports.len();
        let written = self.database.try_write(weight, work).await?;
        let new = written.fresh.iter();
        let fresh = match Arc::try_unwrap(received_batch) {
            Ok(own) => {
                let reports = own.batch.reports.into_iter().zip(new);
                reports.filter_map(|(report, new)| new.then_some(report)).collect()
            }
            Err(shared) => {
                let reports = shared.batch.reports.iter().zip(new);
                reports.filter(|(_, new)| **new).map(|(report, _)| report.clone()).collect()
            }
        };
        Ok(IngestOutcome { through: written.through, fresh, resend: written.resend })
    }

    /// Stores a final result that the manager derived for an attempt, unless one is stored.
    pub async fn insert_derived_metric(
        &self,
        id: &TrialJobId,
        attempt: &AttemptId,
        metric: Metric,
        at_ms: i64,
    ) -> Result<(), Error> {
        let (id, attempt) = (id.clone(), attempt.clone());
        let body = serde_json::to_string(&ReportBody::Metric(metric))
            .expect("a metric's maps have text keys and its numbers are finite");
        self.database
            .write(move |c| {
                let trial = trial_key(c, &id)?;
                c.prepare_cached(
                    "INSERT OR IGNORE INTO report \
                     (attempt, lane, seq, observed_at_ms, stored_at_ms, kind, body) \
                     SELECT key, 0, ?, ?, ?, 'metric', ? FROM attempt WHERE trial = ? AND name = ?",
                )?
                .execute(params![
                    DERIVED_METRIC_SEQ,
                    at_ms,
                    at_ms,
                    body,
                    trial,
                    attempt.as_str()
                ])?;
                Ok(())
            })
            .await
    }

    /// Stores the manager's own verdict on an attempt, which takes precedence over the agent's verdict. An attempt
    /// without reports is recorded as ended.
    pub async fn record_verdict(
        &self,
        id: &TrialJobId,
        attempt: &AttemptId,
        verdict: Verdict,
        at_ms: i64,
    ) -> Result<(), Error> {
        let (id, attempt) = (id.clone(), attempt.clone());
        let body = serde_json::to_string(&ReportBody::Ended(Box::new(verdict)))
            .expect("a verdict's maps have text keys and its numbers are finite");
        self.database
            .write(move |c| {
                let (trial, name) = (trial_key(c, &id)?, attempt.as_str());
                c.prepare_cached(
                    "INSERT INTO attempt (trial, name, last_heard_ms, ended) VALUES (?, ?, ?, 1) \
                     ON CONFLICT (trial, name) DO UPDATE SET ended = 1",
                )?
                .execute(params![trial, name, at_ms])?;
                c.prepare_cached(
                    "INSERT OR IGNORE INTO report \
                     (attempt, lane, seq, observed_at_ms, stored_at_ms, kind, body, sums_up) \
                     SELECT key, 0, ?, ?, ?, 'ended', ?, 1 FROM attempt WHERE trial = ? AND name = ?",
                )?
                .execute(params![OWN_VERDICT_SEQ, at_ms, at_ms, body, trial, name])?;
                Ok(())
            })
            .await
    }

    /// Returns a trial's metrics: attempts in the order of their first report, and each attempt's metrics by seq.
    pub async fn metrics(&self, id: &TrialJobId) -> Result<Vec<MetricRow>, Error> {
        let id = id.clone();
        self.database.read(move |c| select_metrics(c, &id)).await
    }

    /// Returns the final records of these attempts, in the order of the arguments.
    pub async fn final_records(
        &self,
        attempts: Vec<(TrialJobId, AttemptId)>,
    ) -> Result<Vec<FinalRecords>, Error> {
        self.database
            .read(move |c| {
                let records = attempts.iter().map(|(id, attempt)| {
                    let ended = select_attempt_state(c, id, attempt)?.ended;
                    let verdict = if ended { select_verdict(c, id, attempt)? } else { None };
                    let started_at_ms = select_start(c, id, attempt)?;
                    let metrics = select_metrics(c, id)?;
                    Ok(FinalRecords { ended, started_at_ms, verdict, metrics })
                });
                records.collect()
            })
            .await
    }

    /// Returns all reports of a trial's agents on one lane as they arrived, except log chunks.
    pub async fn all(&self, id: &TrialJobId, lane: Lane) -> Result<Vec<ReportRow>, Error> {
        let id = id.clone();
        self.database
            .read(move |c| {
                let key = trial_key(c, &id)?;
                let mut statement = c.prepare_cached(
                    "SELECT a.name, r.seq, r.observed_at_ms, r.stored_at_ms, r.kind, r.body \
                     FROM attempt a JOIN report r ON r.attempt = a.key AND r.lane = ? \
                     WHERE a.trial = ? ORDER BY a.key, r.seq",
                )?;
                let rows = statement.query_and_then(params![lane_number(lane), key], |row| {
                    Ok(ReportRow {
                        attempt: parse_column(row, "name", AttemptId::new)?,
                        lane,
                        seq: read_unsigned(row, "seq")?,
                        observed_at_ms: row.get("observed_at_ms")?,
                        stored_at_ms: row.get("stored_at_ms")?,
                        kind: row.get("kind")?,
                        // Valid JSON that is nested too deeply for a `Value` is returned as text.
                        body: parse_json_column(row, "body")
                            .or_else(|_| row.get("body").map(Value::String))?,
                    })
                })?;
                rows.collect()
            })
            .await
    }

    /// Returns a trial's output on one stream, as far as it has been delivered.
    pub async fn log(&self, id: &TrialJobId, stream: Stream) -> Result<Vec<LogChunkRow>, Error> {
        let id = id.clone();
        self.database
            .read(move |c| {
                let key = trial_key(c, &id)?;
                let mut statement = c.prepare_cached(
                    "SELECT a.name, l.offset_bytes, l.observed_at_ms, l.bytes FROM attempt a \
                     JOIN log_chunk l ON l.attempt = a.key \
                     WHERE a.trial = ? AND l.stream = ? ORDER BY a.key, l.seq",
                )?;
                let rows = statement.query_and_then(params![key, stream_word(stream)], |row| {
                    Ok(LogChunkRow {
                        attempt: parse_column(row, "name", AttemptId::new)?,
                        stream,
                        offset_bytes: read_unsigned(row, "offset_bytes")?,
                        observed_at_ms: row.get("observed_at_ms")?,
                        bytes: row.get("bytes")?,
                    })
                })?;
                rows.collect()
            })
            .await
    }

    /// Returns the end of an attempt's output on one stream, in bytes, as far as it has been delivered.
    pub async fn log_end(
        &self,
        id: &TrialJobId,
        attempt: &AttemptId,
        stream: Stream,
    ) -> Result<u64, Error> {
        let (id, attempt) = (id.clone(), attempt.clone());
        self.database
            .read(move |c| {
                let key = trial_key(c, &id)?;
                let mut statement = c.prepare_cached(
                    "SELECT coalesce(max(l.offset_bytes + length(l.bytes)), 0) AS log_end \
                     FROM attempt a JOIN log_chunk l ON l.attempt = a.key \
                     WHERE a.trial = ? AND a.name = ? AND l.stream = ?",
                )?;
                let mut rows =
                    statement.query(params![key, attempt.as_str(), stream_word(stream)])?;
                rows.next()?.map_or(Ok(0), |row| read_unsigned(row, "log_end"))
            })
            .await
    }

    /// Returns the state of an attempt's reports. Every field is empty if no report of the attempt has arrived.
    pub async fn attempt_state(
        &self,
        id: &TrialJobId,
        attempt: &AttemptId,
    ) -> Result<AttemptState, Error> {
        let (id, attempt) = (id.clone(), attempt.clone());
        self.database.read(move |c| select_attempt_state(c, &id, &attempt)).await
    }
}

/// The result of writing a batch.
#[derive(Debug)]
struct StoredBatch {
    /// The highest number up to which the lane is stored.
    through: Option<u64>,
    /// A flag for each report of the batch: `true` if the report was new.
    fresh: Vec<bool>,
    /// `true` if nothing was stored because earlier reports are missing that the agent can send again.
    resend: bool,
}

/// Stores the reports of the batch that are not stored yet, and the time of the attempt's last report. All checks
/// precede the first write.
fn store_batch(
    c: &Connection,
    received_batch: &ReceivedBatch,
    now_ms: i64,
) -> Result<StoredBatch, Error> {
    let batch = &received_batch.batch;
    check_numbers(batch)?;
    let BatchSender { trial, attempt, through, is_trial_over } =
        match record_sender(c, received_batch, now_ms)? {
            SenderRecord::Recorded(sender) => sender,
            SenderRecord::ReportsMissing(through) => {
                return Ok(StoredBatch { through, fresh: Vec::new(), resend: true });
            }
        };

    let place = ReportPlace { trial, attempt, lane: batch.lane, stored_at_ms: now_ms };
    let mut statements = ReportStatements::prepare(c, batch.lane)?;
    let mut fresh = Vec::with_capacity(batch.reports.len());
    for (report, raw) in batch.reports.iter().zip(&received_batch.bodies) {
        fresh.push(statements.store(&place, report, raw.get())?);
    }
    // Lists follow the timeline. For a trial that has ended, only this event announces the new report.
    if is_trial_over && batch.lane == Lane::Facts && fresh.contains(&true) {
        append_event(c, trial, now_ms, None)?;
    }
    Ok(StoredBatch { through, fresh, resend: false })
}

/// The place of a batch's reports in the store, and the time at which they are stored.
struct ReportPlace {
    trial: i64,
    attempt: i64,
    lane: Lane,
    stored_at_ms: i64,
}

/// The statements that store reports. Looking up a cached statement costs about as much as running it, so each is
/// looked up once per batch, and only if the lane needs it.
struct ReportStatements<'c> {
    insert_report: CachedStatement<'c>,
    /// The statements that insert a log chunk, and that delete the middle of a long log. `None` for a lane without
    /// logs.
    log_statements: Option<(CachedStatement<'c>, CachedStatement<'c>)>,
}

impl<'c> ReportStatements<'c> {
    fn prepare(c: &'c Connection, lane: Lane) -> Result<Self, Error> {
        let insert_report = c.prepare_cached(
            "INSERT OR IGNORE INTO report \
             (attempt, lane, seq, observed_at_ms, stored_at_ms, kind, body, sums_up) \
             VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        )?;
        let log_statements = match lane {
            Lane::Facts => None,
            Lane::Bulk => Some((
                c.prepare_cached(
                    "INSERT OR IGNORE INTO log_chunk \
                     (trial, attempt, seq, stream, offset_bytes, observed_at_ms, bytes) \
                     VALUES (?, ?, ?, ?, ?, ?, ?)",
                )?,
                c.prepare_cached(DELETE_MIDDLE_CHUNKS)?,
            )),
        };
        Ok(Self { insert_report, log_statements })
    }

    /// Stores a report whose JSON body is `raw`, and returns whether the report was new.
    fn store(&mut self, place: &ReportPlace, report: &Report, raw: &str) -> Result<bool, Error> {
        let seq = to_storable("seq", report.seq)?;
        let at_ms = report.observed_at_ms;
        if let (Some((insert_chunk, delete_middle_chunks)), ReportBody::Log(chunk)) =
            (&mut self.log_statements, &report.body)
            && let Some(bytes) = decode_chunk(chunk)
        {
            let (stream, offset) =
                (stream_word(chunk.stream), to_storable("offset_bytes", chunk.offset_bytes)?);
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
            if offset >= KEPT_LOG_START_BYTES + KEPT_LOG_END_BYTES {
                delete_middle_chunks.execute(params![
                    attempt,
                    stream,
                    KEPT_LOG_START_BYTES,
                    offset - KEPT_LOG_END_BYTES
                ])?;
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
            place.lane == Lane::Facts && is_summary(&report.body),
        ])?;
        Ok(stored == 1)
    }
}

/// Rejects a batch with numbers that cannot be stored, before the first write.
fn check_numbers(batch: &ReportBatch) -> Result<(), Error> {
    for (what, number) in [("acknowledged", batch.acknowledged), ("forgotten", batch.forgotten)] {
        number.map(|number| to_storable(what, number)).transpose()?;
    }
    for report in &batch.reports {
        to_storable("seq", report.seq)?;
        if let ReportBody::Log(chunk) = &report.body {
            to_storable("offset_bytes", chunk.offset_bytes)?;
            // SQLite could not compute the end of this chunk, so the chunk could never be read again.
            to_storable(
                "the end of a log chunk",
                chunk.offset_bytes.saturating_add(max_decoded_length(chunk)),
            )?;
        }
    }
    Ok(())
}

/// Returns an upper bound of a chunk's decoded size in bytes.
fn max_decoded_length(chunk: &LogChunk) -> u64 {
    let (LogText::Text(text) | LogText::Base64(text)) = &chunk.text;
    u64::try_from(text.len()).unwrap_or(u64::MAX)
}

/// The sender of a batch.
struct BatchSender {
    /// The trial's key.
    trial: i64,
    /// The attempt's key.
    attempt: i64,
    /// The number up to which the lane is stored once this batch is stored.
    through: Option<u64>,
    /// `true` if the manager has recorded the end of the trial.
    is_trial_over: bool,
}

/// The outcome of [`record_sender`].
enum SenderRecord {
    /// The batch can be stored.
    Recorded(BatchSender),
    /// Nothing was written: the store lacks reports after this number that it had acknowledged, and the agent can
    /// send them again.
    ReportsMissing(Option<u64>),
}

/// Records the time of the batch, and the number up to which its lane is stored with it.
fn record_sender(
    c: &Connection,
    received_batch: &ReceivedBatch,
    now_ms: i64,
) -> Result<SenderRecord, Error> {
    let batch = &received_batch.batch;
    let last = batch.reports.iter().map(|report| report.seq).max();
    // Compares the kind only: a verdict that this build cannot parse also ends the attempt.
    let mut reports = batch.reports.iter().zip(&received_batch.bodies);
    let ended = batch.lane == Lane::Facts
        && reports.any(|(report, raw)| kind_of(&report.body, raw.get()) == "ended");
    // No `RETURNING`: SQLite creates an in-memory table for it, which costs more than the rest of a small batch.
    let (trial, name) = (batch.trial.as_str(), batch.attempt.as_str());
    let mut find = c.prepare_cached(SELECT_SENDER)?;
    let mut rows = find.query(params![trial, name])?;
    let row = rows.next()?.ok_or_else(|| Error::UnknownTrial(batch.trial.clone()))?;
    if let Some(required) = &received_batch.required_attempt
        && row.get_ref("attempt")?.as_str() != Ok(required.as_str())
    {
        return Err(Error::Superseded(parse_column(row, "attempt", AttemptId::new)?));
    }
    let is_trial_over = parse_column(row, "state", str::parse::<JobState>)?.is_final();
    let (trial, known): (i64, Option<i64>) = (row.get(0)?, row.get(1)?);
    let before = match batch.lane {
        Lane::Facts => read_optional_unsigned(row, "facts_through")?,
        Lane::Bulk => read_optional_unsigned(row, "bulk_through")?,
    };
    let gone = match Gap::between(before, batch.acknowledged, batch.forgotten) {
        Gap::None => None,
        Gap::Recoverable => return Ok(SenderRecord::ReportsMissing(before)),
        Gap::Lost { through } => Some(through),
    };
    let through = before.max(gone).max(last);
    let number = through.map(|seq| to_storable("seq", seq)).transpose()?;
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
    Ok(SenderRecord::Recorded(BatchSender { trial, attempt, through, is_trial_over }))
}

/// Inserts a note in place of lost reports. Its number is that of the last lost report, which no other report can
/// have.
fn note_loss(
    c: &Connection,
    attempt: i64,
    lane: Lane,
    stored: Option<u64>,
    through: u64,
    now_ms: i64,
) -> Result<(), Error> {
    let seq = to_storable("forgotten", through)?;
    let body = gap::lost_reports_note(stored, through).to_string();
    c.prepare_cached(
        "INSERT OR IGNORE INTO report \
         (attempt, lane, seq, observed_at_ms, stored_at_ms, kind, body, sums_up) \
         VALUES (?, ?, ?, ?, ?, 'note', ?, 1)",
    )?
    .execute(params![attempt, lane_number(lane), seq, now_ms, now_ms, body])?;
    Ok(())
}

/// Returns the chunk's bytes. `None` if the text is not valid Base64; then the raw report is stored instead.
fn decode_chunk(chunk: &LogChunk) -> Option<Vec<u8>> {
    match &chunk.text {
        LogText::Text(text) => Some(text.clone().into_bytes()),
        LogText::Base64(text) => BASE64_STANDARD.decode(text).ok(),
    }
}

/// Returns whether the lists of trials show this report.
fn is_summary(body: &ReportBody) -> bool {
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

/// Returns the kind as the agent wrote it.
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

/// Reads a trial's metrics.
fn select_metrics(c: &Connection, id: &TrialJobId) -> Result<Vec<MetricRow>, Error> {
    let key = trial_key(c, id)?;
    let mut statement = c.prepare_cached(
        "SELECT a.name, r.seq, r.observed_at_ms, r.stored_at_ms, r.body FROM attempt a \
         JOIN report r ON r.attempt = a.key AND r.lane = 0 \
         WHERE a.trial = ? AND r.kind = 'metric' ORDER BY a.key, r.seq",
    )?;
    let rows = statement.query_and_then([key], metric_row)?;
    rows.filter_map(Result::transpose).collect()
}

/// Reads the metrics of all trials without collecting them in memory.
pub(super) fn check_metrics(c: &Connection) -> Result<(), Error> {
    let mut statement = c.prepare_cached(
        "SELECT a.name, r.seq, r.observed_at_ms, r.stored_at_ms, r.body FROM attempt a \
         JOIN report r ON r.attempt = a.key AND r.lane = 0 WHERE r.kind = 'metric'",
    )?;
    statement.query_and_then([], metric_row)?.try_for_each(|metric| metric.map(drop))
}

/// Parses a stored metric. `None` if the body is not a valid metric; the report remains among the reports.
pub(super) fn metric_row(row: &Row<'_>) -> Result<Option<MetricRow>, Error> {
    let Ok(metric) = parse_column(row, "body", serde_json::from_str::<Metric>) else {
        return Ok(None);
    };
    Ok(Some(MetricRow {
        attempt: parse_column(row, "name", AttemptId::new)?,
        seq: read_unsigned(row, "seq")?,
        observed_at_ms: row.get("observed_at_ms")?,
        stored_at_ms: row.get("stored_at_ms")?,
        metric,
    }))
}

/// Reads the verdict on an attempt.
fn select_verdict(
    c: &Connection,
    id: &TrialJobId,
    attempt: &AttemptId,
) -> Result<Option<Verdict>, Error> {
    let key = trial_key(c, id)?;
    let mut statement = c.prepare_cached(
        "SELECT body FROM report WHERE kind = 'ended' AND lane = 0 \
         AND attempt = (SELECT key FROM attempt WHERE trial = ? AND name = ?) \
         ORDER BY seq <> ?, seq",
    )?;
    let mut verdicts =
        statement.query_and_then(params![key, attempt.as_str(), OWN_VERDICT_SEQ], |row| {
            // A body that is not a valid verdict is ignored.
            Ok::<_, Error>(parse_column(row, "body", serde_json::from_str::<Verdict>).ok())
        })?;
    verdicts.find_map(Result::transpose).transpose()
}

/// Reads the time at which an attempt's agent started the command, by the agent's clock.
fn select_start(
    c: &Connection,
    id: &TrialJobId,
    attempt: &AttemptId,
) -> Result<Option<i64>, Error> {
    let key = trial_key(c, id)?;
    let mut statement = c.prepare_cached(
        "SELECT observed_at_ms FROM report WHERE kind = 'started' AND lane = 0 \
         AND attempt = (SELECT key FROM attempt WHERE trial = ? AND name = ?) ORDER BY seq LIMIT 1",
    )?;
    Ok(statement.query_row(params![key, attempt.as_str()], |row| row.get(0)).optional()?)
}

/// Reads the state of an attempt's reports.
fn select_attempt_state(
    c: &Connection,
    id: &TrialJobId,
    attempt: &AttemptId,
) -> Result<AttemptState, Error> {
    let key = trial_key(c, id)?;
    let mut statement = c.prepare_cached("SELECT * FROM attempt WHERE trial = ? AND name = ?")?;
    let mut rows = statement.query(params![key, attempt.as_str()])?;
    let Some(row) = rows.next()? else { return Ok(AttemptState::default()) };
    Ok(AttemptState {
        facts_through: read_optional_unsigned(row, "facts_through")?,
        bulk_through: read_optional_unsigned(row, "bulk_through")?,
        ended: row.get("ended")?,
        last_heard_ms: row.get("last_heard_ms")?,
    })
}

fn lane_number(lane: Lane) -> i64 {
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
