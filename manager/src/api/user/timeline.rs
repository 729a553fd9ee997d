//! All attempts in time: when and on which machine each ran, which were retries, and which waited.

use std::collections::HashMap;

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;

use super::super::auth::User;
use super::super::{Error, Shared};
use crate::view::Snapshot;
use crate::view::attempts::{self, AttemptSpan};

/// The attempts that a timeline shows: the newest.
const MOST_ATTEMPTS: usize = 50_000;

/// Attempts in columns: the same place in each column is the same attempt. Times are in milliseconds since the Unix epoch,
/// by the manager's clock.
#[derive(Debug, Default, Serialize, ToSchema)]
pub(in crate::api) struct Timeline {
    /// The trials' positions in the experiment.
    sequence: Vec<u64>,
    /// The number of the attempt within its trial, from 1.
    attempt: Vec<u32>,
    /// When it was submitted, and began to wait.
    submitted: Vec<i64>,
    /// When it began to run; null where it has not.
    began: Vec<Option<i64>>,
    /// When it ended, or another attempt took its place; null where it goes on.
    ended: Vec<Option<i64>>,
    /// The state that it came to last, such as `RUNNING`.
    state: Vec<&'static str>,
    /// `true` if another attempt took its place.
    retried: Vec<bool>,
    /// The machine or pod, as a position in `hosts`; null where none is known.
    host: Vec<Option<usize>>,
    /// The machines and pods, in the order of their first attempt.
    hosts: Vec<String>,
    /// The latest reason for which it waited, for a person; null where none was given.
    waited_for: Vec<Option<String>>,
    /// Older attempts that are left out, of more than 50,000.
    left_out: usize,
    /// The present time.
    now: i64,
}

/// The attempts of all trials.
pub(super) async fn spans(shared: &Shared, snapshot: &Snapshot) -> Result<Vec<AttemptSpan>, Error> {
    let store = &shared.state.store;
    let (steps, hosts) = (store.attempt_steps().await?, store.attempt_hosts().await?);
    Ok(attempts::spans(snapshot, &steps, &hosts))
}

fn timeline(mut spans: Vec<AttemptSpan>, now: i64) -> Timeline {
    let left_out = spans.len().saturating_sub(MOST_ATTEMPTS);
    spans.drain(..left_out);
    let mut timeline = Timeline { left_out, now, ..Timeline::default() };
    for span in spans {
        let host = span.host.map(|name| {
            let known = timeline.hosts.iter().position(|host| *host == name);
            known.unwrap_or_else(|| {
                timeline.hosts.push(name);
                timeline.hosts.len() - 1
            })
        });
        timeline.sequence.push(span.sequence);
        timeline.attempt.push(span.number);
        timeline.submitted.push(span.submitted_at_ms);
        timeline.began.push(span.began_at_ms);
        timeline.ended.push(span.ended_at_ms);
        timeline.state.push(span.state.as_str());
        timeline.retried.push(span.retried);
        timeline.host.push(host);
        timeline.waited_for.push(span.waited_for);
    }
    timeline
}

/// The machine of each trial's latest attempt that named one, by the trial's position.
pub(in crate::api) async fn machines(shared: &Shared) -> Result<HashMap<u64, String>, Error> {
    let snapshot = shared.state.board.refresh().await?;
    let spans = spans(shared, &snapshot).await?;
    Ok(spans.into_iter().filter_map(|span| Some((span.sequence, span.host?))).collect())
}

/// All attempts in time: who ran where and when
#[utoipa::path(
    get, path = "/api/v1/experiment/timeline", tag = "experiment",
    responses((status = 200, body = Timeline)),
)]
pub(super) async fn timeline_route(
    _: User,
    State(shared): State<Shared>,
) -> Result<Json<Timeline>, Error> {
    let snapshot = shared.state.board.refresh().await?;
    let spans = spans(&shared, &snapshot).await?;
    Ok(Json(timeline(spans, shared.state.clock.now_ms())))
}
