//! What agents ask: to take in their reports.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use axum::http::HeaderMap;
use trial_protocol::{AttemptId, BearerToken, ReportAck, TrialJobId};

use super::auth::bearer;
use super::{Error, Shared, State as ApiState};
use crate::intake;
use crate::token::Holder;

/// `POST /api/v1/agent/reports`: a batch of one lane of one attempt.
pub(super) async fn reports(
    State(Shared { state, memory, quota, .. }): State<Shared>,
    request: Request,
) -> Result<Json<ReportAck>, Error> {
    // First of all: a stranger's body is not even read.
    let holder = holder(&state, request.headers())?;
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
    let arrival = intake::read(&body.bytes)?;
    holder.may_speak_for(&arrival.batch.experiment, &arrival.batch.trial)?;
    // The body's share of the memory stands for the batch until that is stored.
    let mut ack = state.intake.accept(arrival).await?;
    ack.token = state.secret.renewal(&holder, state.secret.now_ms()).map(BearerToken);
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

/// Whose token the request shows.
pub(super) fn holder(state: &ApiState, headers: &HeaderMap) -> Result<Holder, Error> {
    Ok(state.secret.identify(shown(headers)?, state.secret.now_ms())?)
}

/// The token of the request.
pub(super) fn shown(headers: &HeaderMap) -> Result<&str, Error> {
    bearer(headers)
        .ok_or_else(|| Error::Unauthorized("send the trial's token as a bearer token".to_owned()))
}
