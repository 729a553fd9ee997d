//! The route by which agents deliver their reports.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use axum::http::HeaderMap;
use trial_protocol::{AttemptId, BearerToken, ReportAck, TrialJobId};

use super::auth::bearer;
use super::{Error, Shared, State as ApiState};
use crate::ingest;
use crate::store;
use crate::token::{Holder, TokenRefusal};

/// The time after its trial's end in which a token is as good as it was while the trial ran, in milliseconds: a day. An agent may
/// have something to deliver yet, whose manager was away, or took the time for another.
const AFTERWARDS_MS: i64 = 24 * 60 * 60 * 1000;

/// `POST /api/v1/agent/reports`: a batch of one lane of one attempt.
pub(super) async fn reports(
    State(Shared { state, memory, quota, .. }): State<Shared>,
    request: Request,
) -> Result<Json<ReportAck>, Error> {
    // First of all: a stranger's body is not even read.
    let holder = holder(&state, request.headers()).await?;
    let seat = quota.seat(&holder.trial)?;
    let waits = waiting(request.headers());
    let mut incoming = memory.open(request, Some(Arc::clone(&seat.bytes)))?;
    // An agent that has nothing to say keeps a request open until it has, or a heartbeat is due. It is
    // answered early to make it speak: what it is ordered then is on the ack to what it says.
    tokio::select! {
        biased;
        begun = incoming.begun() => begun?,
        ack = call(&state, &holder.trial, waits) => return Ok(Json(ack)),
        () = state.closing.cancelled() => return Err(Error::Stopping),
    }
    let body = incoming.rest().await?;
    let arrival = ingest::read(&body.bytes)?;
    holder.may_speak_for(&arrival.batch.experiment, &arrival.batch.trial)?;
    // The body's share of the memory stands for the batch until that is stored.
    let mut ack = state.intake.accept(arrival).await?;
    if let Some(token) = state.secret.renewal(&holder, state.secret.now_ms()) {
        // What was stored is acknowledged in any case; the token can be renewed with the next ack.
        let is_of_use = has_a_say(&state, &holder).await.unwrap_or(false);
        ack.token = is_of_use.then_some(BearerToken(token));
    }
    Ok(Json(ack))
}

/// Says which attempt's agent keeps the request open, and may be answered early.
const ATTEMPT: &str = "trialkeeper-attempt";

fn waiting(headers: &HeaderMap) -> Option<AttemptId> {
    AttemptId::new(headers.get(ATTEMPT)?.to_str().ok()?).ok()
}

async fn call(state: &ApiState, trial: &TrialJobId, waits: Option<AttemptId>) -> ReportAck {
    match waits {
        Some(attempt) => state.intake.call(trial, &attempt).await,
        None => std::future::pending().await,
    }
}

/// Whose token the request shows. One that has expired is good while its trial runs, and shortly after: until then its
/// owner can have it renewed, so that to refuse it would guard nothing; and it would lose what an agent has kept
/// through a long absence of its manager's, or through a wrong clock of it.
pub(super) async fn holder(state: &ApiState, headers: &HeaderMap) -> Result<Holder, Error> {
    match state.secret.identify(shown(headers)?, state.secret.now_ms()) {
        Err(TokenRefusal::Expired(holder)) if has_a_say(state, &holder).await? => Ok(holder),
        identified => Ok(identified?),
    }
}

/// Returns whether the holder's trial runs, or has ended not long ago.
async fn has_a_say(state: &ApiState, holder: &Holder) -> Result<bool, store::Error> {
    if holder.experiment != *state.intake.experiment() {
        return Ok(false);
    }
    match state.store.trial(&holder.trial).await? {
        None => Ok(false),
        Some(row) if !row.state.is_final() => Ok(true),
        Some(_) => {
            // The time at which the manager learnt of the end: the agent may have told of it long after, and by another
            // clock. Later events are in the record, too.
            let events = state.store.events(&holder.trial).await?;
            let ended = events.iter().rev().take_while(|event| event.state.is_final()).last();
            let learnt = ended.map(|event| event.at_ms);
            let until = learnt.map(|at_ms| at_ms.saturating_add(AFTERWARDS_MS));
            Ok(until.is_some_and(|until| state.secret.now_ms() < until))
        }
    }
}

/// The token of the request.
pub(super) fn shown(headers: &HeaderMap) -> Result<&str, Error> {
    bearer(headers)
        .ok_or_else(|| Error::Unauthorized("send the trial's token as a bearer token".to_owned()))
}
