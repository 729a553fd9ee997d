//! The health of the manager, for probes and people.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde_json::{Value, json};

use super::Shared;

/// `GET /healthz`: 200 when all is well, 503 with the reason while the database cannot be written. Needs
/// no token and tells nothing that would need one.
pub(super) async fn healthz(
    State(Shared { state, .. }): State<Shared>,
) -> (StatusCode, Json<Value>) {
    let version = env!("CARGO_PKG_VERSION");
    match state.store.write_error() {
        None => (StatusCode::OK, Json(json!({"status": "ok", "version": version}))),
        Some(reason) => {
            let reason = reason.to_string();
            let body = json!({"status": "degraded", "version": version, "reason": reason});
            (StatusCode::SERVICE_UNAVAILABLE, Json(body))
        }
    }
}
