//! The health of the manager, for probes and users.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde_json::{Value, json};

use super::Shared;

/// `GET /healthz`: responds with 200, or with 503 and the reason while the database cannot be written. The route
/// needs no token, so it reveals nothing that would require one.
pub(super) async fn healthz(
    State(Shared { state, .. }): State<Shared>,
) -> (StatusCode, Json<Value>) {
    let version = env!("CARGO_PKG_VERSION");
    match state.store.database().write_error() {
        None => (StatusCode::OK, Json(json!({"status": "ok", "version": version}))),
        Some(reason) => {
            let reason = reason.to_string();
            let body = json!({"status": "degraded", "version": version, "reason": reason});
            (StatusCode::SERVICE_UNAVAILABLE, Json(body))
        }
    }
}
