//! The route to which agents deliver their reports.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use axum::http::HeaderMap;
use trial_protocol::{AttemptId, BearerToken, ReportAck, TrialJobId};

use super::access::auth::bearer_token;
use super::{ApiState, Error, Shared};
use crate::ingest;
use crate::store;
use crate::token::{TokenClaims, TokenRefusal};

/// The time after a trial's end in which the manager accepts and renews its expired token, in milliseconds: a day.
/// The agent may still have reports to deliver if its manager was away or had a wrong clock.
const TOKEN_GRACE_MS: i64 = 24 * 60 * 60 * 1000;

/// `POST /api/v1/agent/reports`: receives a batch of one lane of one attempt.
pub(super) async fn reports(
    State(Shared { state, memory, quota, .. }): State<Shared>,
    request: Request,
) -> Result<Json<ReportAck>, Error> {
    // Checked first: the manager does not read the body of a client without a valid token.
    let claims = token_claims(&state, request.headers()).await?;
    let permit = quota.admit(&claims.trial)?;
    let waits = waiting_attempt(request.headers());
    let mut incoming = memory.open(request, Some(Arc::clone(&permit.bytes)))?;
    // An agent without reports keeps a request open until it has some, or a heartbeat is due. The manager responds
    // early to make the agent send a batch: the ack of that batch contains the new directives.
    tokio::select! {
        biased;
        begun = incoming.wait_for_start() => begun?,
        ack = wait_for_directive(&state, &claims.trial, waits) => return Ok(Json(ack)),
        () = state.closing.cancelled() => return Err(Error::Stopping),
    }
    let body = incoming.read_rest().await?;
    let received_batch = ingest::parse_batch(&body.bytes)?;
    claims
        .check_report_permission(&received_batch.batch.experiment, &received_batch.batch.trial)?;
    // The body stays alive until the batch is stored, because its share of the memory also counts for the batch.
    let mut ack = state.intake.accept(received_batch).await?;
    if let Some(token) = state.secret.renewal(&claims, state.secret.now_ms()) {
        // Stored reports are acknowledged in any case. The token can be renewed with the next ack.
        let is_renewable = can_report(&state, &claims).await.unwrap_or(false);
        ack.token = is_renewable.then_some(BearerToken(token));
    }
    Ok(Json(ack))
}

/// The header with the attempt of an agent that keeps the request open and may be answered early.
const ATTEMPT_HEADER: &str = "trialkeeper-attempt";

fn waiting_attempt(headers: &HeaderMap) -> Option<AttemptId> {
    AttemptId::new(headers.get(ATTEMPT_HEADER)?.to_str().ok()?).ok()
}

async fn wait_for_directive(
    state: &ApiState,
    trial: &TrialJobId,
    waits: Option<AttemptId>,
) -> ReportAck {
    match waits {
        Some(attempt) => state.intake.wait_for_directive(trial, &attempt).await,
        None => std::future::pending().await,
    }
}

/// Returns the claims of the request's token. An expired token is accepted while its trial runs and shortly after.
/// Until then the agent can have it renewed, so a refusal would protect nothing. It would lose the reports that an
/// agent kept while its manager was away, or had a wrong clock.
pub(super) async fn token_claims(
    state: &ApiState,
    headers: &HeaderMap,
) -> Result<TokenClaims, Error> {
    match state.secret.identify(require_bearer_token(headers)?, state.secret.now_ms()) {
        Err(TokenRefusal::Expired(claims)) if can_report(state, &claims).await? => Ok(claims),
        identified => Ok(identified?),
    }
}

/// Returns whether the holder's trial runs, or ended less than [`TOKEN_GRACE_MS`] ago.
async fn can_report(state: &ApiState, claims: &TokenClaims) -> Result<bool, store::Error> {
    if claims.experiment != *state.intake.experiment() {
        return Ok(false);
    }
    match state.store.trials().get(&claims.trial).await? {
        None => Ok(false),
        Some(row) if !row.state.is_final() => Ok(true),
        Some(_) => {
            // The time at which the manager recorded the end. The agent may have reported it much later, with the
            // time of another clock. The record may also contain later events.
            let events = state.store.trials().events(&claims.trial).await?;
            let ended = events.iter().rev().take_while(|event| event.state.is_final()).last();
            let learnt = ended.map(|event| event.at_ms);
            let until = learnt.map(|at_ms| at_ms.saturating_add(TOKEN_GRACE_MS));
            Ok(until.is_some_and(|until| state.secret.now_ms() < until))
        }
    }
}

/// Returns the token of the request.
pub(super) fn require_bearer_token(headers: &HeaderMap) -> Result<&str, Error> {
    bearer_token(headers)
        .ok_or_else(|| Error::Unauthorized("send the trial's token as a bearer token".to_owned()))
}
