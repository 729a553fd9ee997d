//! The agent program, for pods whose image has none. Every trial of the experiment may fetch it.

use std::path::PathBuf;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use tokio_util::io::ReaderStream;

use super::agent::token_claims;
use super::{ApiState, Error};

/// The path of the program, and the state that checks tokens.
#[derive(Clone)]
struct ProgramAccess {
    path: Arc<PathBuf>,
    state: ApiState,
}

/// Returns the router with `GET /api/v1/agent/program`.
pub fn router(path: PathBuf, state: ApiState) -> Router {
    Router::new()
        .route("/api/v1/agent/program", get(program))
        .layer(axum::middleware::map_response(super::nosniff))
        .with_state(ProgramAccess { path: Arc::new(path), state })
}

async fn program(
    State(known): State<ProgramAccess>,
    headers: HeaderMap,
) -> Result<Response, Error> {
    let claims = token_claims(&known.state, &headers).await?;
    claims.check_report_permission(known.state.intake.experiment(), &claims.trial)?;
    let open = async {
        let file = tokio::fs::File::open(known.path.as_path()).await?;
        let length = file.metadata().await?.len();
        Ok::<_, std::io::Error>((file, length))
    };
    let (file, length) = open
        .await
        .map_err(|error| Error::Unreadable(format!("the agent program cannot be read: {error}")))?;
    // Sent piece by piece, because two hundred pods may fetch it at the same time.
    let body = Body::from_stream(ReaderStream::with_capacity(file, 64 << 10));
    let mut response = body.into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    Ok(response)
}
