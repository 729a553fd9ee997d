//! A trial's output: a part as JSON, or a whole stream as unchanged bytes.

use axum::body::{Body, Bytes};
use axum::extract::{Path, State};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse as _, Response};
use axum::{Extension, Json};
use http_body_util::channel::Channel;
use serde::{Deserialize, Serialize};
use trial_protocol::{Stream, TrialJobId};
use utoipa::{IntoParams, ToSchema};

use super::super::access::auth::User;
use super::super::server::response_memory::AddressMemory;
use super::super::{Error, Shared};
use super::query_extractor::{CheckedQuery, TrialPath, number_within};
use super::trials::requested_attempt;
use crate::store::{AttemptRow, LineTime, LogPart};

/// The default and the maximum size of a part, in bytes.
const PART_BOUNDS: (u32, u32) = (64 << 10, 1 << 20);

/// The number of bytes of a whole stream that are read at once. For a client that does not read, the manager holds a
/// few such pieces in memory, and the C library keeps much of that memory for later.
const CHUNK_BYTES: usize = 16 << 10;

/// The requested part of a stream.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(in crate::api) struct LogQuery {
    /// `stdout` (default) or `stderr`.
    stream: Option<String>,
    /// The attempt; the current one by default, or `ATTEMPT-legacy` if only an old keeper has sent its output.
    attempt: Option<String>,
    /// The position at which the part begins, in bytes of the stream; 0 by default.
    from: Option<u64>,
    /// The number of bytes at the end of the stream that are returned. Replaces `from`.
    tail: Option<u64>,
    /// The maximum size of the part in bytes, 1 to 1048576; 65536 by default.
    #[param(minimum = 1, maximum = 1_048_576)]
    limit: Option<u32>,
}

impl LogQuery {
    /// Requests the end of a stream.
    pub(in crate::api) fn tail(stream: &str, bytes: u32) -> Self {
        let (stream, tail) = (Some(stream.to_owned()), Some(u64::from(bytes)));
        Self { stream, tail, limit: Some(bytes), ..Self::default() }
    }
}

/// A part of a trial's output.
#[derive(Debug, Default, Serialize, ToSchema)]
pub(in crate::api) struct LogView {
    /// The attempt. Absence means that no attempt has reported.
    pub(in crate::api) attempt: Option<String>,
    /// The position at which the part begins, in bytes of the stream.
    pub(in crate::api) from: u64,
    /// The position at which the next part begins.
    pub(in crate::api) next: u64,
    /// The end of the stream, as far as it was delivered.
    pub(in crate::api) end: u64,
    /// The output. U+FFFD replaces bytes that are not UTF-8. A line in brackets reports bytes that were dropped
    /// because the spool was full, or folded with a progress bar.
    pub(in crate::api) text: String,
    /// The times of the lines, at most one a second.
    pub(in crate::api) times: Vec<LineTimeView>,
}

/// The time of a line in a part of the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
pub(in crate::api) struct LineTimeView {
    /// The line, counted from 0 at the part's beginning. Line 0 may have begun before the part.
    pub(in crate::api) line: u64,
    /// The time at which the agent read the line, in milliseconds since the Unix epoch.
    pub(in crate::api) observed_at_ms: i64,
}

/// Returns the times of a part in the form of the API.
pub(super) fn line_times(part: &LogPart) -> Vec<LineTimeView> {
    let view =
        |time: &LineTime| LineTimeView { line: time.line, observed_at_ms: time.observed_at_ms };
    part.times.iter().map(view).collect()
}

/// Returns the stream with this name.
pub(in crate::api) fn stream_of(word: Option<&str>) -> Result<Stream, Error> {
    match word {
        None | Some("stdout") => Ok(Stream::Stdout),
        Some("stderr") => Ok(Stream::Stderr),
        Some(other) => {
            Err(Error::BadRequest(format!("stream must be stdout or stderr, not {other:?}")))
        }
    }
}

/// Returns the attempt whose output is requested.
pub(in crate::api) async fn output_attempt(
    shared: &Shared,
    id: &TrialJobId,
    named: Option<&str>,
) -> Result<Option<AttemptRow>, Error> {
    let named_attempt = requested_attempt(shared, id, named).await?;
    if named.is_some() {
        Ok(named_attempt)
    } else {
        Ok(shared.state.store.logs().output_attempt(id).await?)
    }
}

/// Returns the part that the request names.
pub(in crate::api) async fn log_view(
    shared: &Shared,
    id: &TrialJobId,
    query: &LogQuery,
) -> Result<LogView, Error> {
    let stream = stream_of(query.stream.as_deref())?;
    let limit = number_within("limit", query.limit, PART_BOUNDS.0, PART_BOUNDS.1)?;
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let Some(attempt) = output_attempt(shared, id, query.attempt.as_deref()).await? else {
        return Ok(LogView::default());
    };
    let store = &shared.state.store;
    let from = match query.tail {
        None => query.from.unwrap_or(0),
        Some(tail) => store.logs().tail_start(attempt.key, stream, tail).await?,
    };
    let part = store.logs().read_part(attempt.key, stream, from, limit).await?;
    // A character that the part's end cuts off belongs to the next part, which may not have arrived yet. A part that
    // contains nothing else is returned unchanged; otherwise the client would request it again and again.
    let cut =
        if part.next < part.end || !attempt.ended { incomplete_bytes(&part.bytes) } else { 0 };
    let cut = if cut < part.bytes.len() { cut } else { 0 };
    // The requested end of a stream may begin within a character.
    let skipped =
        if query.tail.is_some() && from > 0 { continuation_bytes(&part.bytes) } else { 0 };
    let whole = &part.bytes[skipped..(part.bytes.len() - cut).max(skipped)];
    Ok(LogView {
        attempt: Some(attempt.attempt.to_string()),
        from: part.from + u64::try_from(skipped).unwrap_or(0),
        next: part.next - u64::try_from(cut).unwrap_or(0),
        end: part.end,
        text: String::from_utf8_lossy(whole).into_owned(),
        times: line_times(&part),
    })
}

/// Returns the number of bytes at the beginning that belong to a character that began earlier.
fn continuation_bytes(bytes: &[u8]) -> usize {
    bytes.iter().take(3).take_while(|byte| (0x80..=0xbf).contains(*byte)).count()
}

/// Returns the number of bytes at the end that begin an incomplete character.
pub(super) fn incomplete_bytes(bytes: &[u8]) -> usize {
    for back in 1..=bytes.len().min(3) {
        let byte = bytes[bytes.len() - back];
        let length = match byte {
            0xc0..=0xdf => 2,
            0xe0..=0xef => 3,
            0xf0..=0xf7 => 4,
            0x80..=0xbf => continue,
            _ => 1,
        };
        return if length > back { back } else { 0 };
    }
    0
}

/// Returns a part of a trial's output
#[utoipa::path(
    get, path = "/api/v1/trials/{trial}/log", tag = "trials",
    params(("trial", description = "the trial's id, or its number"), LogQuery),
    responses((status = 200, body = LogView), (status = 404, description = "no such trial")),
)]
pub(super) async fn part(
    _: User,
    State(shared): State<Shared>,
    TrialPath(id): TrialPath,
    CheckedQuery(query): CheckedQuery<LogQuery>,
) -> Result<Json<LogView>, Error> {
    Ok(Json(log_view(&shared, &id, &query).await?))
}

/// Returns a whole stream of a trial's current attempt, as bytes
#[utoipa::path(
    get, path = "/api/v1/trials/{trial}/log/{stream}", tag = "trials",
    params(("trial", description = "the trial's id, or its number"), ("stream", description = "`stdout` or `stderr`")),
    responses((status = 200, content_type = "text/plain"), (status = 404, description = "no such trial")),
)]
pub(super) async fn whole(
    _: User,
    State(shared): State<Shared>,
    Path((_, word)): Path<(String, String)>,
    TrialPath(id): TrialPath,
    Extension(address_memory): Extension<AddressMemory>,
) -> Result<Response, Error> {
    whole_log(shared, &id, &word, address_memory).await
}

/// Returns a whole stream as a response, which is read while the client receives it.
pub(in crate::api) async fn whole_log(
    shared: Shared,
    id: &TrialJobId,
    word: &str,
    address_memory: AddressMemory,
) -> Result<Response, Error> {
    let stream = stream_of(Some(word))?;
    let attempt = output_attempt(&shared, id, None).await?;
    let (mut sender, body) = Channel::<Bytes, std::io::Error>::new(1);
    if let Some(attempt) = attempt {
        // The task ends when the client disconnects, at the stream's end, or when the store fails.
        tokio::spawn(async move {
            let (store, mut from) = (&shared.state.store, 0);
            loop {
                let share = address_memory.wait(CHUNK_BYTES).await;
                let Ok(part) = store.logs().read_part(attempt.key, stream, from, CHUNK_BYTES).await
                else {
                    break;
                };
                if part.bytes.is_empty()
                    || sender.send_data(share.attach(part.bytes)).await.is_err()
                {
                    break;
                }
                from = part.next;
            }
        });
    }
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8")),
        // The output is always text, whatever the trial prints.
        (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    ];
    Ok((headers, Body::new(body)).into_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_character_is_left_for_the_next_part() {
        #[rustfmt::skip]
        let table: [(&[u8], usize); 9] = [
            (b"abc", 0), ("aé".as_bytes(), 0), (b"a\xc3", 1), (b"a\xe2\x82", 2), (b"a\xf0\x9f\x98", 3),
            (b"\xc3", 1), (b"", 0), (b"a\xff", 0), (b"a\x80\x80\x80", 0),
        ];
        for (bytes, expected) in table {
            assert_eq!(incomplete_bytes(bytes), expected, "{bytes:?}");
        }
        assert_eq!(
            [&b"\x82\xacx"[..], b"x", b"", b"\x80\x80\x80\x80"].map(continuation_bytes),
            [2, 0, 0, 3]
        );
    }
}
