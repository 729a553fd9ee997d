//! What agents ask: to take in their reports.

use axum::Json;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, FromRequest as _, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use trial_protocol::ReportAck;

use super::Error;
use crate::intake;

/// The largest body that is taken, in bytes.
pub(super) const BODY_LIMIT_BYTES: usize = 8 << 20;

/// `POST /api/v1/agent/reports`: a batch of one lane of one attempt.
pub(super) async fn reports(
    State(state): State<super::State>,
    mut request: Request,
) -> Result<Json<ReportAck>, Error> {
    // First of all: a stranger's body is not even read.
    let holder = state.secret.identify(bearer(request.headers())?)?;
    DefaultBodyLimit::max(BODY_LIMIT_BYTES).apply(&mut request);
    let body = Bytes::from_request(request, &()).await.map_err(|refused| {
        if refused.status() == StatusCode::PAYLOAD_TOO_LARGE {
            Error::TooLarge { limit_bytes: BODY_LIMIT_BYTES }
        } else {
            Error::BadRequest(refused.body_text())
        }
    })?;
    let arrival = intake::read(&body)?;
    drop(body);
    holder.may_speak_for(&arrival.batch.experiment, &arrival.batch.trial)?;
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
