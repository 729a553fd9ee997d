//! Server-sent events (HTML, section 9.2): changes as they happen. The id of each event records the position in the
//! stream. A client that was disconnected continues there.

use std::time::Duration;

use axum::Extension;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::response::{IntoResponse as _, Response};
use http_body_util::channel::{Channel, Sender};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout_at};
use trial_protocol::{Stream, TrialJobId};
use utoipa::{IntoParams, ToSchema};

use super::super::access::auth::User;
use super::super::server::response_memory::AddressMemory;
use super::super::{Error, Shared};
use super::experiment::present_view;
use super::log::{LineTimeView, incomplete_bytes, line_times};
use super::query_extractor::{CheckedQuery, TrialPath};
use super::silent_agent_output::{self, SilentOutput, UnreportedOutput};
use super::trials::{MetricView, SampleView, requested_attempt};
use crate::job_state::JobState;
use crate::store;

/// The minimum time between two reads of the store. Changes within this time are sent together.
const STORE_INTERVAL: Duration = Duration::from_millis(250);
/// The maximum time without output on a stream. A disconnected client is noticed only when the manager sends
/// something.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(15);
/// The comment that is then sent.
const KEEP_ALIVE_COMMENT: &str = ": still here\n\n";
/// The interval of the check whether a client has disconnected after the end of its stream.
const DISCONNECT_CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// The maximum number of values of one kind that are sent at once.
const MAX_VALUES: u32 = 1000;
/// The maximum number of bytes of one output stream that are sent at once.
const MAX_LOG_BYTES: usize = 64 << 10;

/// The position at which an event stream begins.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct FollowQuery {
    /// The id of the last received event. The header `Last-Event-ID` takes precedence. Without either, a stream of
    /// the experiment begins now, and a stream of a trial begins at the trial's start.
    after: Option<String>,
}

/// An open stream.
struct EventStream {
    sender: Sender<Bytes, std::io::Error>,
    address_memory: AddressMemory,
    shared: Shared,
    /// Notified when the store becomes unable to write, or able again. Such a change is not a commit.
    write_error: watch::Receiver<Option<store::Error>>,
    /// The time of the last output.
    last_sent: Instant,
}

/// The client has disconnected, or the manager has stopped.
struct StreamClosed;

impl EventStream {
    async fn send_event(
        &mut self,
        event: &str,
        id: &str,
        data: &impl Serialize,
    ) -> Result<(), StreamClosed> {
        let data = serde_json::to_string(data).map_err(|_| StreamClosed)?;
        self.send_text(format!("id: {id}\nevent: {event}\ndata: {data}\n\n")).await
    }

    async fn send_text(&mut self, text: String) -> Result<(), StreamClosed> {
        self.last_sent = Instant::now();
        let piece = self.address_memory.reserve(text.into_bytes()).await;
        self.sender.send_data(piece).await.map_err(|_| StreamClosed)
    }

    /// If the manager is stopping, waits until the client has disconnected. The client has received all events, and
    /// may send one more request.
    async fn wait_for_disconnect(&mut self) -> Result<(), StreamClosed> {
        let (closing, closed) = (&self.shared.state.closing, &self.shared.state.closed);
        let (closing, closed) = (closing.clone(), closed.clone());
        while closing.is_cancelled() && !closed.is_cancelled() {
            self.send_text(KEEP_ALIVE_COMMENT.to_owned()).await?;
            tokio::select! {
                () = closed.cancelled() => {}
                () = sleep(DISCONNECT_CHECK_INTERVAL) => {}
            }
        }
        Ok(())
    }

    /// Waits for the next commit, at least for [`STORE_INTERVAL`], and sends a comment after a silence. Returns
    /// `false` if the manager is stopping; the caller then reads the store once more.
    async fn pause(&mut self, commits: &mut watch::Receiver<u64>) -> Result<bool, StreamClosed> {
        let stop = self.shared.state.closing.clone();
        tokio::select! {
            () = stop.cancelled() => return Ok(false),
            () = sleep(STORE_INTERVAL) => {}
        }
        loop {
            let deadline = Instant::now() + KEEP_ALIVE_INTERVAL;
            tokio::select! {
                () = stop.cancelled() => return Ok(false),
                Ok(()) = self.write_error.changed() => return Ok(true),
                changed = timeout_at(deadline, commits.changed()) => match changed {
                    Ok(Ok(())) => return Ok(true),
                    // A store that is opened for reading reports no commits, so it is polled.
                    Ok(Err(_)) => {
                        sleep(STORE_INTERVAL).await;
                        if self.last_sent.elapsed() >= KEEP_ALIVE_INTERVAL {
                            self.send_text(KEEP_ALIVE_COMMENT.to_owned()).await?;
                        }
                        return Ok(true);
                    }
                    Err(_) => self.send_text(KEEP_ALIVE_COMMENT.to_owned()).await?,
                },
            }
        }
    }
}

/// Opens a stream, to which `follow` writes.
fn open_stream<F: Future<Output = Result<(), StreamClosed>> + Send + 'static>(
    shared: Shared,
    address_memory: AddressMemory,
    follow: impl FnOnce(EventStream) -> F,
) -> Response {
    let (sender, body) = Channel::new(4);
    let streams = shared.state.streams.clone();
    let write_error = shared.state.store.database().watch_write_error();
    let task = follow(EventStream {
        sender,
        address_memory,
        shared,
        write_error,
        last_sent: Instant::now(),
    });
    // The task ends with the client, whose disconnection its regular output reveals, or with the manager.
    streams.spawn(async move { drop(task.await) });
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream")),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
        (HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no")),
    ];
    (headers, Body::new(body)).into_response()
}

fn resume_position(headers: &HeaderMap, query: &FollowQuery) -> Result<Option<String>, Error> {
    let Some(value) = headers.get("last-event-id") else { return Ok(query.after.clone()) };
    let text = value.to_str().map_err(|_| unknown_event("Last-Event-ID"))?;
    Ok(Some(text.to_owned()).filter(|text| !text.is_empty()))
}

fn unknown_event(text: &str) -> Error {
    let text: String = text.chars().take(80).collect();
    Error::BadRequest(format!("{text:?} is not the id of an event of this stream"))
}

/// Streams the experiment's events: changed trials, and the experiment's numbers
///
/// Event `trial`: the present state of a trial. Event `experiment`: the present state of the experiment. Event `end`:
/// the manager is stopping, and this was the last event. The id is the number of the newest change that was sent.
/// With this id, a new stream continues without a gap.
#[utoipa::path(
    get, path = "/api/v1/events", tag = "experiment", params(FollowQuery),
    responses((status = 200, content_type = "text/event-stream")),
)]
pub(super) async fn events(
    _: User,
    State(shared): State<Shared>,
    headers: HeaderMap,
    Extension(address_memory): Extension<AddressMemory>,
    CheckedQuery(query): CheckedQuery<FollowQuery>,
) -> Result<Response, Error> {
    let after = match resume_position(&headers, &query)? {
        Some(text) => Some(text.parse::<i64>().map_err(|_| unknown_event(&text))?),
        None => None,
    };
    let mut commits = shared.state.store.database().watch_commits();
    commits.mark_unchanged();
    let first = shared.state.trial_cache.refresh().await?;
    Ok(open_stream(shared, address_memory, move |mut stream| async move {
        let mut seen = first.revision;
        let mut snapshot = first;
        // A resumed stream first sends the trials that changed meanwhile, and all that have not ended.
        let missed = |change: i64, state: JobState| {
            after.is_some_and(|after| change > after || !state.is_final())
        };
        let mut news: Vec<_> = snapshot
            .trials
            .iter()
            .filter(|trial| missed(trial.change, trial.state))
            .cloned()
            .collect();
        let mut sent_through = after.unwrap_or(snapshot.through).min(snapshot.through);
        let mut sent_view = String::new();
        let mut continues = true;
        loop {
            // Sent in the order of the changes: a client that is disconnected between two of them continues with the
            // second.
            news.sort_by_key(|trial| trial.change);
            for trial in news {
                sent_through = sent_through.max(trial.change);
                stream.send_event("trial", &sent_through.to_string(), trial.as_ref()).await?;
            }
            sent_through = snapshot.through;
            let id = sent_through.to_string();
            let shown = present_view(&stream.shared, &snapshot).await.map_err(|_| StreamClosed)?;
            let now = serde_json::to_string(&shown).map_err(|_| StreamClosed)?;
            // A change of the run time alone is not sent, because clients have clocks.
            let timeless =
                crate::view::ExperimentView { elapsed_ms: 0, ended_per_hour: None, ..shown };
            let timeless = serde_json::to_string(&timeless).map_err(|_| StreamClosed)?;
            if timeless != sent_view {
                stream.send_text(format!("id: {id}\nevent: experiment\ndata: {now}\n\n")).await?;
                sent_view = timeless;
            }
            if !continues {
                stream.send_event("end", &id, &()).await?;
                return stream.wait_for_disconnect().await;
            }
            continues = stream.pause(&mut commits).await?;
            snapshot = stream.shared.state.trial_cache.refresh().await.map_err(|_| StreamClosed)?;
            news = snapshot.trials.iter().filter(|trial| trial.revision > seen).cloned().collect();
            seen = snapshot.revision;
        }
    }))
}

/// The part of a trial that a client has received: the attempt, and the positions within it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct SeenPart {
    attempt: i64,
    facts: i64,
    bulk: i64,
    stdout: u64,
    stderr: u64,
}

impl SeenPart {
    const NOTHING: Self = Self { attempt: -1, facts: -1, bulk: -1, stdout: 0, stderr: 0 };

    fn read(text: &str) -> Option<Self> {
        let mut parts = text.split('.');
        let seen = Self {
            attempt: parts.next()?.parse().ok()?,
            facts: parts.next()?.parse().ok()?,
            bulk: parts.next()?.parse().ok()?,
            stdout: parts.next()?.parse().ok()?,
            stderr: parts.next()?.parse().ok()?,
        };
        parts.next().is_none().then_some(seen)
    }

    /// Restarts at the beginning if the agent has not reported yet: its reports replace the output that was sent
    /// without it.
    fn restart_if_unreported(&mut self) {
        if *self == (Self { attempt: self.attempt, ..Self::NOTHING }) {
            *self = Self::NOTHING;
        }
    }

    fn write(&self) -> String {
        let Self { attempt, facts, bulk, stdout, stderr } = self;
        format!("{attempt}.{facts}.{bulk}.{stdout}.{stderr}")
    }
}

/// A piece of output.
#[derive(Debug, Serialize, ToSchema)]
struct LogEvent {
    /// `stdout` or `stderr`.
    stream: &'static str,
    /// The position of the piece, in bytes of the stream.
    from: u64,
    /// The output, as in a part of the log.
    text: String,
    /// The times of the lines, as in a part of the log.
    times: Vec<LineTimeView>,
}

/// Streams the events of one trial: its metrics, samples and output as they arrive
///
/// Events: `attempt` (another attempt begins: earlier data belong to another run), `metrics` and `samples` (arrays),
/// `log`, `trial` (as in the list), and `end` if nothing more can follow. While the trial's agent is silent,
/// `unheard`: the output of its job (`text`), or the reason why it cannot be shown (`why`). When the agent reports,
/// `attempt` is sent again, and the agent's output follows from the beginning.
#[utoipa::path(
    get, path = "/api/v1/trials/{trial}/events", tag = "trials",
    params(("trial", description = "the trial's id, or its number"), FollowQuery),
    responses((status = 200, content_type = "text/event-stream"), (status = 404, description = "no such trial")),
)]
pub(super) async fn trial_events(
    _: User,
    State(shared): State<Shared>,
    headers: HeaderMap,
    TrialPath(trial): TrialPath,
    Extension(address_memory): Extension<AddressMemory>,
    CheckedQuery(query): CheckedQuery<FollowQuery>,
) -> Result<Response, Error> {
    let seen = match resume_position(&headers, &query)? {
        Some(text) => SeenPart::read(&text).ok_or_else(|| unknown_event(&text))?,
        None => SeenPart::NOTHING,
    };
    // An unknown trial is refused before the stream begins.
    requested_attempt(&shared, &trial, None).await?;
    let mut commits = shared.state.store.database().watch_commits();
    commits.mark_unchanged();
    Ok(open_stream(shared, address_memory, move |mut stream| async move {
        let mut seen = seen;
        let mut revision = None;
        let mut output = SilentOutput::default();
        let mut continues = true;
        loop {
            // Read first: the reports before the trial's end are then sent before its end.
            let snapshot =
                stream.shared.state.trial_cache.refresh().await.map_err(|_| StreamClosed)?;
            let summary = snapshot.find(trial.as_str()).ok_or(StreamClosed)?;
            let ended = summary.state.is_final();
            let is_silent = silent_agent_output::is_silent(summary.state);
            if !is_silent && std::mem::take(&mut output).was_sent && !ended {
                seen.restart_if_unreported();
            }
            // The client received output that the agent has not reported. The agent's own output waits until the
            // trial's state shows that the agent reports, because the client must first get `attempt`.
            if !(is_silent && output.was_sent) {
                while send_changes(&mut stream, &trial, &mut seen, ended).await? {}
            }
            if revision != Some(summary.revision) {
                revision = Some(summary.revision);
                stream.send_event("trial", &seen.write(), summary).await?;
            }
            if ended {
                stream.send_event("end", &seen.write(), &()).await?;
                return stream.wait_for_disconnect().await;
            }
            if !continues {
                return Ok(());
            }
            continues = if is_silent {
                let silent_for = silent_time(&stream.shared, summary.state, &trial).await?;
                send_output(&mut stream, &trial, &mut output, &seen, silent_for, &mut commits)
                    .await?
            } else {
                stream.pause(&mut commits).await?
            };
        }
    }))
}

/// Sends the output of a trial whose agent is silent, or waits for a change in the store. Returns `false` when the
/// stream must end.
async fn send_output(
    stream: &mut EventStream,
    trial: &TrialJobId,
    silent_output: &mut SilentOutput,
    seen: &SeenPart,
    silent_for: Option<Duration>,
    commits: &mut watch::Receiver<u64>,
) -> Result<bool, StreamClosed> {
    let shared = stream.shared.clone();
    let output = tokio::select! {
        continues = stream.pause(commits) => return continues,
        output = silent_output.next(&shared, trial, silent_for) => output,
    };
    if output != UnreportedOutput::default() {
        stream.send_event("unheard", &seen.write(), &output).await?;
    }
    Ok(true)
}

/// Returns the time since the last report of an agent that has become silent.
async fn silent_time(
    shared: &Shared,
    state: JobState,
    trial: &TrialJobId,
) -> Result<Option<Duration>, StreamClosed> {
    if state != JobState::Lost {
        return Ok(None);
    }
    let latest = requested_attempt(shared, trial, None).await.map_err(|_| StreamClosed)?;
    let now_ms = shared.state.clock.now_ms();
    Ok(latest
        .and_then(|latest| u64::try_from(now_ms - latest.last_heard_ms).ok())
        .map(Duration::from_millis))
}

/// Sends the news of a trial, which may have ended. Returns `true` if there may be more.
async fn send_changes(
    stream: &mut EventStream,
    trial: &TrialJobId,
    seen: &mut SeenPart,
    ended: bool,
) -> Result<bool, StreamClosed> {
    let Some(attempt) =
        requested_attempt(&stream.shared, trial, None).await.map_err(|_| StreamClosed)?
    else {
        return Ok(false);
    };
    if attempt.key != seen.attempt {
        *seen = SeenPart { attempt: attempt.key, ..SeenPart::NOTHING };
        stream.send_event("attempt", &seen.write(), &attempt.attempt.as_str()).await?;
    }
    let store = stream.shared.state.store.clone();
    let (queries, logs) = (store.queries(), store.logs());
    let mut more = false;
    let rows = queries.metrics_after(attempt.key, seen.facts, MAX_VALUES).await;
    let rows = rows.map_err(|_| StreamClosed)?;
    if let Some(last) = rows.last() {
        seen.facts = i64::try_from(last.seq).unwrap_or(i64::MAX);
        more |= rows.len() >= usize::try_from(MAX_VALUES).unwrap_or(usize::MAX);
        let metrics: Vec<_> = rows.into_iter().map(MetricView::from).collect();
        stream.send_event("metrics", &seen.write(), &metrics).await?;
    }
    let rows = queries.samples_after(&attempt, seen.bulk, MAX_VALUES).await;
    let rows = rows.map_err(|_| StreamClosed)?;
    if let Some(last) = rows.last() {
        seen.bulk = i64::try_from(last.seq).unwrap_or(i64::MAX);
        more |= rows.len() >= usize::try_from(MAX_VALUES).unwrap_or(usize::MAX);
        let samples: Vec<_> = rows.into_iter().map(SampleView::from).collect();
        stream.send_event("samples", &seen.write(), &samples).await?;
    }
    let writing = logs.output_attempt(trial).await.map_err(|_| StreamClosed)?;
    let writing = writing.map_or(attempt.key, |row| row.key);
    for (source, word) in [(Stream::Stdout, "stdout"), (Stream::Stderr, "stderr")] {
        let place = match source {
            Stream::Stdout => &mut seen.stdout,
            Stream::Stderr => &mut seen.stderr,
        };
        let part = logs.read_part(writing, source, *place, MAX_LOG_BYTES).await;
        let mut part = part.map_err(|_| StreamClosed)?;
        // A character that is cut off is sent with the next piece, as long as there may be one.
        if !ended || part.next < part.end {
            let cut = incomplete_bytes(&part.bytes);
            part.bytes.truncate(part.bytes.len() - cut);
            part.next -= u64::try_from(cut).unwrap_or(0);
        }
        if !part.bytes.is_empty() {
            *place = part.next;
            more |= part.next < part.end;
            let text = String::from_utf8_lossy(&part.bytes).into_owned();
            let event = LogEvent { stream: word, from: part.from, text, times: line_times(&part) };
            stream.send_event("log", &seen.write(), &event).await?;
        }
    }
    Ok(more)
}
