//! The replacement for NNI's cluster server, for images that still contain the Python keeper. It has only three
//! routes, on its own listener (NNI's convention is the portal's port + 1). Source: NNI 3.0,
//! `ts/nni_manager/training_service/common/clusterJobRestServer.ts`, recorded in `samples/nni/trial_keeper`.
//!
//! The old keeper has no token, so every client that reaches this listener can report for a known trial. The manager
//! opens the listener only if the user requests it. Such a client cannot write a file, name a path, end an
//! experiment, or fill the memory.

mod line;
#[cfg(test)]
mod tests;
mod text;

use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderName, HeaderValue, header};
use axum::routing::post;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use trial_protocol::{ExperimentId, Lane, ReportBody, Stream, TrialJobId};

use self::text::Text;
use super::Error;
use super::access::auth;
use super::server::body::{BodyMemory, ReceivedBody};
use super::{error, nosniff};
use crate::ingest::{Intake, LegacyNumbering};

/// The size from which a post is large, in bytes. A metric that consists of brackets takes sixteen times its text in
/// memory.
const LARGE_POST_BYTES: usize = 256 << 10;

/// The maximum number of large posts that are processed at once; more wait.
const MAX_CONCURRENT_LARGE_POSTS: usize = 2;

/// The state of the handlers.
#[derive(Clone)]
struct LegacyState {
    experiment: ExperimentId,
    numbering: LegacyNumbering,
    memory: BodyMemory,
    large: Arc<Semaphore>,
}

/// The resources that a post holds until its lines are stored.
struct PendingPost {
    _share: ReceivedBody,
    _turn: Option<OwnedSemaphorePermit>,
}

/// Returns the router with all routes of the old server.
pub fn router(intake: &Intake) -> Router {
    let shared = LegacyState {
        experiment: intake.experiment().clone(),
        numbering: LegacyNumbering::new(intake.clone()),
        memory: BodyMemory::new(),
        large: Arc::new(Semaphore::new(MAX_CONCURRENT_LARGE_POSTS)),
    };
    Router::new()
        .route("/api/v1/nni-pai/version/{experiment}/{trial}", post(version))
        .route("/api/v1/nni-pai/stdout/{experiment}/{trial}", post(stdout))
        .route("/api/v1/nni-pai/update-metrics/{experiment}/{trial}", post(update_metrics))
        .fallback(error::not_found)
        .method_not_allowed_fallback(error::method_not_allowed)
        .layer(axum::middleware::from_fn(auth::refuse_browsers))
        .layer(axum::middleware::map_response(nosniff))
        .with_state(shared)
}

/// The old server's response to every valid request: no body, with the content type of JSON.
type EmptyResponse = [(HeaderName, HeaderValue); 1];

const EMPTY_RESPONSE: EmptyResponse =
    [(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))];

/// The keeper's comparison of its own version with the manager's.
#[derive(Debug, Deserialize)]
struct Version {
    tag: String,
    #[serde(default)]
    msg: Text,
}

/// One line of output.
#[derive(Debug, Deserialize)]
struct Stdout {
    /// `trial` for the trial's own output. The keeper's own log has another tag.
    #[serde(default)]
    tag: String,
    #[serde(default, rename = "stdOutputType")]
    stream: String,
    msg: Text,
}

/// Metrics without surrounding output.
#[derive(Debug, Deserialize)]
struct Metrics {
    metrics: Vec<Text>,
}

/// `POST …/version/EXPERIMENT/TRIAL`: records a mismatch of versions as a note. In NNI, it ends the experiment.
async fn version(
    State(shared): State<LegacyState>,
    Path(ids): Path<(String, String)>,
    request: Request,
) -> Result<EmptyResponse, Error> {
    let trial = shared.trial(&ids)?;
    let (Version { tag, msg }, _held) = shared.read(request).await?;
    let notes = if tag == "VCSuccess" {
        Vec::new()
    } else {
        vec![ReportBody::Note {
            code: "version-mismatch".to_owned(),
            message: line::shortened(&msg.0),
        }]
    };
    shared.numbering.accept(&trial, Lane::Facts, notes).await?;
    Ok(EMPTY_RESPONSE)
}

/// `POST …/stdout/EXPERIMENT/TRIAL`: receives a line, which may be a metric.
async fn stdout(
    State(shared): State<LegacyState>,
    Path(ids): Path<(String, String)>,
    request: Request,
) -> Result<EmptyResponse, Error> {
    let trial = shared.trial(&ids)?;
    let (Stdout { tag, stream, msg }, _held) = shared.read(request).await?;
    let stream = if stream == "Stderr" { Stream::Stderr } else { Stream::Stdout };
    let content = if tag == "trial" {
        line::read_line(&trial, stream, &msg.0)
    } else {
        line::LineContent::log(stream, msg.0)
    };
    if !content.facts.is_empty() {
        shared.numbering.accept(&trial, Lane::Facts, content.facts).await?;
    }
    if !content.bulk.is_empty() {
        shared.numbering.accept(&trial, Lane::Bulk, content.bulk).await?;
    }
    Ok(EMPTY_RESPONSE)
}

/// `POST …/update-metrics/EXPERIMENT/TRIAL`: receives metrics. NNI uses the body's `jobId`; TrialKeeper uses the
/// path.
async fn update_metrics(
    State(shared): State<LegacyState>,
    Path(ids): Path<(String, String)>,
    request: Request,
) -> Result<EmptyResponse, Error> {
    let trial = shared.trial(&ids)?;
    let (Metrics { metrics }, _held) = shared.read(request).await?;
    let facts = metrics.iter().map(|text| line::read_bare_metric(&trial, &text.0)).collect();
    shared.numbering.accept(&trial, Lane::Facts, facts).await?;
    Ok(EMPTY_RESPONSE)
}

impl LegacyState {
    /// Returns the trial in the path. The store checks whether this trial exists.
    fn trial(&self, (experiment, trial): &(String, String)) -> Result<TrialJobId, Error> {
        if experiment != self.experiment.as_str() {
            return Err(Error::NotFound);
        }
        TrialJobId::new(trial.as_str()).map_err(|_| Error::NotFound)
    }

    /// Parses the body, whatever its content type. The second value is the body's share of the memory, which the
    /// caller holds until the content is stored.
    async fn read<T: DeserializeOwned>(&self, request: Request) -> Result<(T, PendingPost), Error> {
        let mut body = self.memory.read(request).await?;
        let turn = if body.bytes.len() < LARGE_POST_BYTES {
            None
        } else {
            let large = Arc::clone(&self.large);
            Some(large.acquire_owned().await.expect("the semaphore is never closed"))
        };
        let content = serde_json::from_slice(&body.bytes).map_err(|error| {
            Error::BadRequest(format!(
                "the body does not have the form that this route expects: {error}"
            ))
        })?;
        body.bytes = Vec::new();
        Ok((content, PendingPost { _share: body, _turn: turn }))
    }
}
