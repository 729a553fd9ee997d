//! A trial's output: a part as JSON, or a whole stream as the bytes that it is.

use axum::body::{Body, Bytes};
use axum::extract::{Path, State};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse as _, Response};
use axum::{Extension, Json};
use http_body_util::channel::Channel;
use serde::{Deserialize, Serialize};
use trial_protocol::{Stream, TrialJobId};
use utoipa::{IntoParams, ToSchema};

use super::super::answers::Allowance;
use super::super::auth::User;
use super::super::{Error, Shared};
use super::query_extractor::{CheckedQuery, TrialPath, bounded};
use super::trials::attempt;
use crate::store::{AttemptRow, LineTime, LogPart};

/// Bytes of a part unless asked otherwise, and at most.
const PART: (u32, u32) = (64 << 10, 1 << 20);

/// Bytes of a whole stream that are read at a time: a client that does not read makes the manager hold a few of them, and the
/// C library keeps much of that for later.
const PIECE: usize = 16 << 10;

/// Which part of which stream.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(in crate::api) struct LogQuery {
    /// `stdout` (default) or `stderr`.
    stream: Option<String>,
    /// Which attempt; the current one by default, or `ATTEMPT-legacy` where only an old keeper has sent its output.
    attempt: Option<String>,
    /// From this byte of the stream on; 0 by default.
    from: Option<u64>,
    /// Instead of `from`: the last so many of the bytes that are there.
    tail: Option<u64>,
    /// Bytes of the part, 1 to 1048576; 65536 by default.
    #[param(minimum = 1, maximum = 1_048_576)]
    limit: Option<u32>,
}

impl LogQuery {
    /// The end of a stream.
    pub(in crate::api) fn tail(stream: &str, bytes: u32) -> Self {
        let (stream, tail) = (Some(stream.to_owned()), Some(u64::from(bytes)));
        Self { stream, tail, limit: Some(bytes), ..Self::default() }
    }
}

/// A part of a trial's output.
#[derive(Debug, Default, Serialize, ToSchema)]
pub(in crate::api) struct LogView {
    /// Which attempt. Absence means that none was heard of.
    pub(in crate::api) attempt: Option<String>,
    /// Where the part begins, in bytes of the stream.
    pub(in crate::api) from: u64,
    /// Where to go on reading.
    pub(in crate::api) next: u64,
    /// Where the stream ends, as far as it was delivered.
    pub(in crate::api) end: u64,
    /// The output. Bytes that are not UTF-8 stand as U+FFFD; a line in brackets tells of bytes that were
    /// lost for want of room, or folded with a progress bar.
    pub(in crate::api) text: String,
    /// When its lines came, at most once a second.
    pub(in crate::api) times: Vec<LineTimeView>,
}

/// When a line of a part of the output came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
pub(in crate::api) struct LineTimeView {
    /// The line, counted from 0 at the part's beginning. Line 0 may have begun before the part.
    pub(in crate::api) line: u64,
    /// When the agent saw it, in milliseconds since the Unix epoch.
    pub(in crate::api) observed_at_ms: i64,
}

/// Returns the times of a part as the API tells them.
pub(super) fn times(part: &LogPart) -> Vec<LineTimeView> {
    let view =
        |time: &LineTime| LineTimeView { line: time.line, observed_at_ms: time.observed_at_ms };
    part.times.iter().map(view).collect()
}

/// The stream of that name.
pub(in crate::api) fn stream_of(word: Option<&str>) -> Result<Stream, Error> {
    match word {
        None | Some("stdout") => Ok(Stream::Stdout),
        Some("stderr") => Ok(Stream::Stderr),
        Some(other) => {
            Err(Error::BadRequest(format!("stream is {other:?}; stdout or stderr is possible")))
        }
    }
}

/// Whose output is meant.
pub(in crate::api) async fn speaker(
    shared: &Shared,
    id: &TrialJobId,
    named: Option<&str>,
) -> Result<Option<AttemptRow>, Error> {
    let heard = attempt(shared, id, named).await?;
    if named.is_some() { Ok(heard) } else { Ok(shared.state.store.writing(id).await?) }
}

/// The part that the request names.
pub(in crate::api) async fn view(
    shared: &Shared,
    id: &TrialJobId,
    query: &LogQuery,
) -> Result<LogView, Error> {
    let stream = stream_of(query.stream.as_deref())?;
    let limit = bounded("limit", query.limit, PART.0, PART.1)?;
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let Some(attempt) = speaker(shared, id, query.attempt.as_deref()).await? else {
        return Ok(LogView::default());
    };
    let store = &shared.state.store;
    let from = match query.tail {
        None => query.from.unwrap_or(0),
        Some(tail) => store.log_tail(attempt.key, stream, tail).await?,
    };
    let part = store.log_part(attempt.key, stream, from, limit).await?;
    // A character that is cut by the part's end belongs to the next part, which may still be on its way. A part that is
    // nothing else is shown as it is, or it would be asked for for ever.
    let cut = if part.next < part.end || !attempt.ended { unfinished(&part.bytes) } else { 0 };
    let cut = if cut < part.bytes.len() { cut } else { 0 };
    // The end of a stream may begin within one.
    let begun = if query.tail.is_some() && from > 0 { continued(&part.bytes) } else { 0 };
    let whole = &part.bytes[begun..(part.bytes.len() - cut).max(begun)];
    Ok(LogView {
        attempt: Some(attempt.attempt.to_string()),
        from: part.from,
        next: part.next - u64::try_from(cut).unwrap_or(0),
        end: part.end,
        text: String::from_utf8_lossy(whole).into_owned(),
        times: times(&part),
    })
}

/// Returns the number of bytes at the beginning that belong to a character that began before.
fn continued(bytes: &[u8]) -> usize {
    bytes.iter().take(3).take_while(|byte| (0x80..=0xbf).contains(*byte)).count()
}

/// Returns the number of bytes at the end that begin a character that does not end there.
pub(super) fn unfinished(bytes: &[u8]) -> usize {
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

/// A part of a trial's output
#[utoipa::path(
    get, path = "/api/v1/trials/{trial}/log", tag = "trials",
    params(("trial", description = "the trial's id"), LogQuery),
    responses((status = 200, body = LogView), (status = 404, description = "no such trial")),
)]
pub(super) async fn part(
    _: User,
    State(shared): State<Shared>,
    TrialPath(id): TrialPath,
    CheckedQuery(query): CheckedQuery<LogQuery>,
) -> Result<Json<LogView>, Error> {
    Ok(Json(view(&shared, &id, &query).await?))
}

/// A whole stream of a trial's current attempt, as bytes
#[utoipa::path(
    get, path = "/api/v1/trials/{trial}/log/{stream}", tag = "trials",
    params(("trial", description = "the trial's id"), ("stream", description = "`stdout` or `stderr`")),
    responses((status = 200, content_type = "text/plain"), (status = 404, description = "no such trial")),
)]
pub(super) async fn whole(
    _: User,
    State(shared): State<Shared>,
    Path((_, word)): Path<(String, String)>,
    TrialPath(id): TrialPath,
    Extension(allowance): Extension<Allowance>,
) -> Result<Response, Error> {
    whole_log(shared, &id, &word, allowance).await
}

/// A whole stream as a response, read as the client takes it.
pub(in crate::api) async fn whole_log(
    shared: Shared,
    id: &TrialJobId,
    word: &str,
    allowance: Allowance,
) -> Result<Response, Error> {
    let stream = stream_of(Some(word))?;
    let attempt = speaker(&shared, id, None).await?;
    let (mut sender, body) = Channel::<Bytes, std::io::Error>::new(1);
    if let Some(attempt) = attempt {
        // It ends with the client, at the stream's end, or when the store fails.
        tokio::spawn(async move {
            let (store, mut from) = (&shared.state.store, 0);
            loop {
                let share = allowance.wait(PIECE).await;
                let Ok(part) = store.log_part(attempt.key, stream, from, PIECE).await else {
                    break;
                };
                if part.bytes.is_empty() || sender.send_data(share.hold(part.bytes)).await.is_err()
                {
                    break;
                }
                from = part.next;
            }
        });
    }
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8")),
        // Whatever a trial prints, it is text.
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
            assert_eq!(unfinished(bytes), expected, "{bytes:?}");
        }
        assert_eq!(
            [&b"\x82\xacx"[..], b"x", b"", b"\x80\x80\x80\x80"].map(continued),
            [2, 0, 0, 3]
        );
    }
}
