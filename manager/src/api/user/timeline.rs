//! All attempts over time: the time and the machine of each run, retries, and waiting times.

use std::collections::HashMap;

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;

use super::super::access::auth::User;
use super::super::{Error, Shared};
use crate::view::Snapshot;
use crate::view::attempts::{self, AttemptSpan};

/// The maximum number of attempts in a timeline; the newest are shown.
const MAX_ATTEMPTS: usize = 50_000;

/// Attempts in columns. The same position in each column belongs to the same attempt. Times are in milliseconds since
/// the Unix epoch, by the manager's clock.
#[derive(Debug, Default, Serialize, ToSchema)]
pub(in crate::api) struct Timeline {
    /// The trials' positions in the experiment.
    sequence: Vec<u64>,
    /// The number of the attempt within its trial, from 1.
    attempt: Vec<u32>,
    /// The time at which it was submitted, and began to wait.
    submitted: Vec<i64>,
    /// The time at which it started to run; null if it has not.
    began: Vec<Option<i64>>,
    /// The time at which it ended, or another attempt replaced it; null if it continues.
    ended: Vec<Option<i64>>,
    /// Its last state, such as `RUNNING`.
    state: Vec<&'static str>,
    /// `true` if another attempt replaced it.
    retried: Vec<bool>,
    /// The machine or pod, as a position in `hosts`; null if none is known.
    host: Vec<Option<usize>>,
    /// The machines and pods, in the order of their first attempt.
    hosts: Vec<String>,
    /// The latest reason for which it waited, for a person; null if there was none.
    waited_for: Vec<Option<String>>,
    /// The number of older attempts that are omitted because there are more than 50,000.
    left_out: usize,
    /// The present time.
    now: i64,
}

/// Returns the attempts of all trials.
pub(super) async fn spans(shared: &Shared, snapshot: &Snapshot) -> Result<Vec<AttemptSpan>, Error> {
    let store = &shared.state.store;
    let (steps, hosts) =
        (store.queries().attempt_steps().await?, store.queries().attempt_hosts().await?);
    Ok(attempts::spans(snapshot, &steps, &hosts))
}

fn timeline(mut spans: Vec<AttemptSpan>, now: i64) -> Timeline {
    let left_out = spans.len().saturating_sub(MAX_ATTEMPTS);
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

/// Returns the machine of each trial's latest attempt that named one, by the trial's position.
pub(in crate::api) async fn machines(shared: &Shared) -> Result<HashMap<u64, String>, Error> {
    let snapshot = shared.state.trial_cache.refresh().await?;
    let spans = spans(shared, &snapshot).await?;
    Ok(spans.into_iter().filter_map(|span| Some((span.sequence, span.host?))).collect())
}

/// Returns all attempts over time: their machines, starts and ends
#[utoipa::path(
    get, path = "/api/v1/experiment/timeline", tag = "experiment",
    responses((status = 200, body = Timeline)),
)]
pub(super) async fn timeline_route(
    _: User,
    State(shared): State<Shared>,
) -> Result<Json<Timeline>, Error> {
    let snapshot = shared.state.trial_cache.refresh().await?;
    let spans = spans(&shared, &snapshot).await?;
    Ok(Json(timeline(spans, shared.state.clock.now_ms())))
}
