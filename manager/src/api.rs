//! HTTP: the routes as a table, one line each; what they answer is in the modules below.
//!
//! The only place that knows status codes and headers. It must not touch SQL or decide about trials.

mod agent;
mod body;
mod error;
mod health;
pub mod legacy;
mod serve;
#[cfg(test)]
mod tests;
pub mod tls;

use std::sync::Arc;

use axum::Router;
use axum::routing::{get, post};

use crate::intake::Intake;
use crate::store::Store;
use crate::token::Secret;
pub use error::Error;
pub use serve::{serve, serve_tls};

/// What the handlers work with; cheap to clone.
#[derive(Clone)]
pub struct State {
    /// Takes in the agents' reports.
    pub intake: Intake,
    /// Knows how the database is.
    pub store: Store,
    /// Checks tokens.
    pub secret: Arc<Secret>,
}

/// [`State`], and what the routes share beside it.
#[derive(Clone)]
struct Shared {
    state: State,
    memory: body::Memory,
}

/// Everything the manager serves.
pub fn router(state: State) -> Router {
    Router::new()
        .route("/api/v1/agent/reports", post(agent::reports))
        .route("/healthz", get(health::healthz))
        .fallback(error::not_found)
        .method_not_allowed_fallback(error::method_not_allowed)
        .with_state(Shared { state, memory: body::Memory::new() })
}
