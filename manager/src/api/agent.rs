//! What agents ask: to take in their reports.

use axum::Json;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, header};
use trial_protocol::ReportAck;

use super::{Error, Shared};
use crate::intake;

/// `POST /api/v1/agent/reports`: a batch of one lane of one attempt.
pub(super) async fn reports(
    State(Shared { state, memory }): State<Shared>,
    request: Request,
) -> Result<Json<ReportAck>, Error> {
    // First of all: a stranger's body is not even read.
    let holder = state.secret.identify(bearer(request.headers())?)?;
    let body = memory.read(request).await?;
    let arrival = intake::read(&body.bytes)?;
    holder.may_speak_for(&arrival.batch.experiment, &arrival.batch.trial)?;
    // The body's share of the memory stands for the batch until that is stored.
    Ok(Json(state.intake.accept(arrival).await?))
}

/// The token of the request.
fn bearer(headers: &HeaderMap) -> Result<&str, Error> {
    let wanted = || Error::Unauthorized("send the trial's token as a bearer token".to_owned());
    let value = headers.get(header::AUTHORIZATION).ok_or_else(wanted)?;
    let (scheme, token) =
        value.to_str().ok().and_then(|value| value.split_once(' ')).ok_or_else(wanted)?;
    if scheme.eq_ignore_ascii_case("bearer") { Ok(token.trim()) } else { Err(wanted()) }
}
