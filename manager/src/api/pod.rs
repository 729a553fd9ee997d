//! The requests of an agent that shares no disk with the manager, before it starts its trial: the code, the
//! parameters, and the addresses of the trial's other pods. Each request carries the trial's own token.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, header};
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};
use tokio_util::io::ReaderStream;
use trial_protocol::{RendezvousReply, RendezvousRequest};

use super::agent::token_claims;
use super::{ApiState, Error, Shared};
use crate::api::rendezvous::Rendezvous;
use crate::code_archive::CodeArchive;
use crate::store::TrialRow;
use crate::training_service::parameter_record;

/// The longest time that a pod waits for the others. The manager then responds with the missing pods.
const PEERS_TIMEOUT: Duration = Duration::from_secs(25);

/// The size of the pieces in which the archive is read, in bytes.
const CHUNK_BYTES: usize = 64 << 10;

/// The state of the routes for pods; cheap to clone.
#[derive(Debug, Clone)]
pub struct Pods {
    code: CodeArchive,
    max_concurrent: u64,
    rendezvous: Arc<PendingRendezvous>,
}

#[derive(Debug)]
struct PendingRendezvous {
    table: Mutex<Rendezvous>,
    /// Notified when all pods of an attempt have reported their addresses.
    complete: watch::Sender<()>,
}

impl Pods {
    /// Creates the state of the routes, which serve `code`. A trial has at most `max_concurrent` concurrent pods.
    pub fn new(code: CodeArchive, max_concurrent: u64) -> Self {
        let rendezvous =
            PendingRendezvous { table: Mutex::default(), complete: watch::Sender::new(()) };
        Self { code, max_concurrent, rendezvous: Arc::new(rendezvous) }
    }

    /// Returns the greatest number of a trial's concurrent pods.
    pub(super) fn max_pods(&self) -> u64 {
        self.max_concurrent
    }

    /// Returns the code archive that the routes serve.
    pub fn code(&self) -> &CodeArchive {
        &self.code
    }
}

impl PendingRendezvous {
    fn table(&self) -> std::sync::MutexGuard<'_, Rendezvous> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the trial to which the request's token belongs.
async fn trial_of_token(state: &ApiState, headers: &HeaderMap) -> Result<TrialRow, Error> {
    let claims = token_claims(state, headers).await?;
    claims.check_report_permission(state.intake.experiment(), &claims.trial)?;
    let row = state.store.trials().get(&claims.trial).await?;
    row.ok_or(Error::UnknownTrial(claims.trial))
}

/// `GET /api/v1/agent/code`: sends the code directory as a compressed tar archive. Its SHA-256 is the entity tag.
pub(super) async fn code(
    State(Shared { state, .. }): State<Shared>,
    headers: HeaderMap,
) -> Result<([(HeaderName, String); 3], Body), Error> {
    trial_of_token(&state, &headers).await?;
    let archive = state.pods.code.get().await.map_err(|error| {
        let detail = crate::util::errors::error_chain(&error);
        tracing::error!("no code can be sent to trials: {detail}");
        Error::NoCode(detail)
    })?;
    let file = tokio::fs::File::open(&archive.file).await.map_err(|error| {
        Error::NoCode(format!("cannot read {}: {error}", archive.file.display()))
    })?;
    let headers = [
        (header::CONTENT_TYPE, "application/gzip".to_owned()),
        (header::CONTENT_LENGTH, archive.bytes.to_string()),
        (header::ETAG, format!("\"{}\"", archive.sha256)),
    ];
    Ok((headers, Body::from_stream(ReaderStream::with_capacity(file, CHUNK_BYTES))))
}

/// `GET /api/v1/agent/parameters`: sends the trial's parameter record.
pub(super) async fn parameters(
    State(Shared { state, .. }): State<Shared>,
    headers: HeaderMap,
) -> Result<Json<Value>, Error> {
    let row = trial_of_token(&state, &headers).await?;
    Ok(Json(parameter_record(row.parameter_id, &row.parameters)))
}

/// `POST /api/v1/agent/rendezvous`: records the address of a pod. Responds when all pods have reported their
/// addresses, or when the time in the request or [`PEERS_TIMEOUT`] is over.
pub(super) async fn rendezvous(
    State(Shared { state, memory, .. }): State<Shared>,
    request: Request,
) -> Result<Json<RendezvousReply>, Error> {
    let trial = trial_of_token(&state, request.headers()).await?.id;
    let body = memory.read(request).await?;
    let request: RendezvousRequest = serde_json::from_slice(&body.bytes).map_err(|error| {
        Error::BadRequest(format!("the body is not a rendezvous request: {error}"))
    })?;
    drop(body);
    let wait = request.wait_ms.map_or(Duration::ZERO, Duration::from_millis).min(PEERS_TIMEOUT);
    let until = Instant::now() + wait;
    let rendezvous = &state.pods.rendezvous;
    // Subscribed before the lookup. Otherwise the loop would miss a completion between the two.
    let mut complete = rendezvous.complete.subscribe();
    let departed = |pod: &str| state.handle.departed().contains(&trial, pod);
    let entered = rendezvous.table().register(&trial, &request, departed);
    if entered.map_err(|refusal| Error::BadRequest(refusal.to_string()))? {
        rendezvous.complete.send_replace(());
    }
    loop {
        let reply = rendezvous.table().reply_for(&trial, &request.attempt);
        if reply.missing.is_empty() {
            return Ok(Json(reply));
        }
        if !matches!(timeout_at(until, complete.changed()).await, Ok(Ok(()))) {
            return Ok(Json(reply));
        }
    }
}
