//! Changes: stop a trial, run one again, send its agent a directive, stop the experiment, change its limits, give its
//! tuner results or another search space. Each may carry an `Idempotency-Key`, so that a client that heard no answer
//! can ask again.

use std::collections::VecDeque;
use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, StatusCode};
use axum::response::{IntoResponse as _, Response};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tokio::sync::Mutex;
use trial_protocol::{LogLevel, TrialJobId};
use utoipa::ToSchema;

use super::super::auth::User;
use super::super::{Error, Shared};
use super::query_extractor::{TrialPath, json_body, large_json_body};
use crate::experiment::command::{Command, NewLimits, Refused, WrittenDuration};
use crate::experiment::state::ExperimentState;
use crate::util::errors::chain;
use crate::util::ids;

/// Answers that are remembered.
const REMEMBERED: usize = 1000;
/// The longest key, in bytes.
const LONGEST_KEY: usize = 255;

/// The changes that were made under a key, so that none is made twice; cheap to clone.
#[derive(Debug, Clone, Default)]
pub(in crate::api) struct Changes(Arc<Mutex<VecDeque<Made>>>);

#[derive(Debug)]
struct Made {
    key: String,
    /// The change.
    change: Change,
}

/// A change that the user may request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::api) enum Change {
    /// Something that the experiment answers.
    Command(Command),
    /// The end of it all.
    Stop,
}

impl From<Command> for Change {
    fn from(command: Command) -> Self {
        Self::Command(command)
    }
}

impl Change {
    async fn make(self, shared: &Shared) -> Result<(), Error> {
        let handle = &shared.state.handle;
        match self {
            Self::Command(command) => match handle.command(command).await {
                Err(Refused::NotRunning) => Err(at_rest(shared).await.into()),
                answer => Ok(answer?),
            },
            Self::Stop if handle.elapsed().is_none() => Err(at_rest(shared).await.into()),
            // One that is done and still served is served no longer.
            Self::Stop => {
                // What cannot be recorded is not stopped.
                if let Err(error) = shared.state.store.probe().await {
                    return Err(Refused::Held(chain(&error)).into());
                }
                handle.stop();
                Ok(())
            }
        }
    }
}

/// The reason why an experiment without a manager takes no change.
async fn at_rest(shared: &Shared) -> Refused {
    match shared.state.store.experiment().await {
        Ok(Some(row)) if row.state == ExperimentState::Done.as_str() => {
            Refused::Over(ExperimentState::Done)
        }
        _ => Refused::NotRunning,
    }
}

impl Changes {
    /// Makes a change; one that was made under the same key is not made again.
    pub(in crate::api) async fn make(
        &self,
        shared: &Shared,
        headers: &HeaderMap,
        change: impl Into<Change>,
    ) -> Result<(), Error> {
        let change = change.into();
        let Some(key) = headers.get("idempotency-key") else {
            return change.make(shared).await;
        };
        let key = key.to_str().ok().filter(|key| (1..=LONGEST_KEY).contains(&key.len()));
        let key = key.ok_or_else(|| {
            Error::BadRequest(format!(
                "an Idempotency-Key has 1 to {LONGEST_KEY} characters of ASCII"
            ))
        })?;
        let (changes, shared, key) = (self.clone(), shared.clone(), key.to_owned());
        // A client that goes away while it waits is one that asks again: what it began is remembered all the same.
        let made = tokio::spawn(async move { changes.make_once(&shared, key, change).await });
        made.await.unwrap_or(Err(Error::Stopping))
    }

    async fn make_once(&self, shared: &Shared, key: String, change: Change) -> Result<(), Error> {
        // Held while the change is made: the same key at the same time waits for its fate.
        let mut made = self.0.lock().await;
        if let Some(before) = made.iter().find(|made| made.key == key) {
            if before.change == change {
                return Ok(());
            }
            return Err(Error::Conflict(
                "this Idempotency-Key was used for another change".to_owned(),
            ));
        }
        change.clone().make(shared).await?;
        if made.len() >= REMEMBERED {
            made.pop_front();
        }
        made.push_back(Made { key, change });
        Ok(())
    }
}

/// The change is under way.
fn accepted() -> Response {
    (StatusCode::ACCEPTED, Json(json!({}))).into_response()
}

/// A point to try.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::api) struct NewPoint {
    /// The parameters. Those of the search space that are missing are drawn from it.
    #[schema(value_type = Object)]
    parameters: Map<String, Value>,
}

/// The trial that was added.
#[derive(Serialize, ToSchema)]
pub(in crate::api) struct AddedTrial {
    /// Its id.
    #[schema(value_type = String)]
    pub(in crate::api) id: TrialJobId,
}

/// Adds a trial with the user's parameters and returns its id.
pub(in crate::api) async fn add_trial(
    shared: &Shared,
    headers: &HeaderMap,
    parameters: Map<String, Value>,
) -> Result<TrialJobId, Error> {
    let key = headers.get("idempotency-key").and_then(|key| key.to_str().ok());
    let trial = key.map_or_else(ids::trial, ids::trial_of_key);
    let command = Command::Add { trial: trial.clone(), parameters };
    shared.changes.make(shared, headers, command).await?;
    Ok(trial)
}

/// Run a trial with parameters of one's own
///
/// It goes before what the tuner proposes, counts as one of `maxTrialNumber`, and the tuner learns its result.
#[utoipa::path(
    post, path = "/api/v1/trials", tag = "changes", request_body = NewPoint,
    params(("Idempotency-Key" = Option<String>, Header)),
    responses(
        (status = 201, body = AddedTrial),
        (status = 400, description = "a parameter is not in the search space"),
        (status = 409, description = "nothing more is started"),
    ),
    security(("token" = [])),
)]
pub(super) async fn add(
    _: User,
    State(shared): State<Shared>,
    headers: HeaderMap,
    request: Request,
) -> Result<(StatusCode, Json<AddedTrial>), Error> {
    let NewPoint { parameters } = json_body(request).await?;
    let id = add_trial(&shared, &headers, parameters).await?;
    Ok((StatusCode::CREATED, Json(AddedTrial { id })))
}

/// Stop one trial
#[utoipa::path(
    post, path = "/api/v1/trials/{trial}/kill", tag = "changes",
    params(("trial", description = "the trial's id"), ("Idempotency-Key" = Option<String>, Header)),
    responses((status = 202), (status = 404, description = "no such trial"), (status = 409, description = "it has ended")),
    security(("token" = [])),
)]
pub(super) async fn kill(
    _: User,
    State(shared): State<Shared>,
    headers: HeaderMap,
    TrialPath(trial): TrialPath,
) -> Result<Response, Error> {
    shared.changes.make(&shared, &headers, Command::StopTrial(trial)).await?;
    Ok(accepted())
}

/// Run a trial that has ended once more, as a new attempt
#[utoipa::path(
    post, path = "/api/v1/trials/{trial}/retry", tag = "changes",
    params(("trial", description = "the trial's id"), ("Idempotency-Key" = Option<String>, Header)),
    responses((status = 202), (status = 404, description = "no such trial"), (status = 409, description = "it has not ended")),
    security(("token" = [])),
)]
pub(super) async fn retry(
    _: User,
    State(shared): State<Shared>,
    headers: HeaderMap,
    TrialPath(trial): TrialPath,
) -> Result<Response, Error> {
    shared.changes.make(&shared, &headers, Command::Retry(trial)).await?;
    Ok(accepted())
}

/// Have a trial's agent send what it still gathers: lines that wait to be more
#[utoipa::path(
    post, path = "/api/v1/trials/{trial}/flush", tag = "changes",
    params(("trial", description = "the trial's id"), ("Idempotency-Key" = Option<String>, Header)),
    responses((status = 202), (status = 404, description = "no such trial"), (status = 409, description = "it has ended")),
    security(("token" = [])),
)]
pub(super) async fn flush(
    _: User,
    State(shared): State<Shared>,
    headers: HeaderMap,
    TrialPath(trial): TrialPath,
) -> Result<Response, Error> {
    shared.changes.make(&shared, &headers, Command::Flush(trial)).await?;
    Ok(accepted())
}

/// From which level on.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct LevelBody {
    /// Each level includes those before it.
    level: Level,
}

/// The detail of an agent's own log.
#[derive(Debug, Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum Level {
    /// Failures only.
    Error,
    /// And what looks wrong: what agents log unless told otherwise.
    Warn,
    /// And what the agent does.
    Info,
    /// And every try.
    Debug,
}

/// Have a trial's agent log from a level on
#[utoipa::path(
    post, path = "/api/v1/trials/{trial}/log-level", tag = "changes", request_body = LevelBody,
    params(("trial", description = "the trial's id"), ("Idempotency-Key" = Option<String>, Header)),
    responses((status = 202), (status = 400, description = "not a level"), (status = 404, description = "no such trial"),
              (status = 409, description = "it has ended")),
    security(("token" = [])),
)]
pub(super) async fn log_level(
    _: User,
    State(shared): State<Shared>,
    headers: HeaderMap,
    TrialPath(trial): TrialPath,
    request: Request,
) -> Result<Response, Error> {
    let LevelBody { level } = json_body(request).await?;
    let level = match level {
        Level::Error => LogLevel::Error,
        Level::Warn => LogLevel::Warn,
        Level::Info => LogLevel::Info,
        Level::Debug => LogLevel::Debug,
    };
    shared.changes.make(&shared, &headers, Command::LogLevel(trial, level)).await?;
    Ok(accepted())
}

/// Stop the experiment's trials and leave it resumable
#[utoipa::path(
    post, path = "/api/v1/experiment/stop", tag = "changes",
    params(("Idempotency-Key" = Option<String>, Header)),
    responses((status = 202), (status = 409, description = "it is not running")),
    security(("token" = [])),
)]
pub(super) async fn stop(
    _: User,
    State(shared): State<Shared>,
    headers: HeaderMap,
) -> Result<Response, Error> {
    shared.changes.make(&shared, &headers, Change::Stop).await?;
    Ok(accepted())
}

/// Other limits; what is absent stays as it is.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct LimitsBody {
    /// Trials at a time, at least 1.
    trial_concurrency: Option<usize>,
    /// Trials in all, at least 1.
    max_trial_number: Option<u64>,
    /// Running time, as in an experiment file: seconds, or a text such as `90m` or `1h30m`.
    #[schema(value_type = Option<String>)]
    max_experiment_duration: Option<Value>,
}

/// Change the limits of the running experiment
#[utoipa::path(
    patch, path = "/api/v1/experiment", tag = "changes", request_body = LimitsBody,
    params(("Idempotency-Key" = Option<String>, Header)),
    responses((status = 202), (status = 400, description = "not limits"), (status = 409, description = "it is not running")),
    security(("token" = [])),
)]
pub(super) async fn limit(
    _: User,
    State(shared): State<Shared>,
    headers: HeaderMap,
    _: Method,
    request: Request,
) -> Result<Response, Error> {
    let body: LimitsBody = json_body(request).await?;
    let duration = body.max_experiment_duration.as_ref().map(WrittenDuration::parse).transpose();
    let duration = duration
        .map_err(|problem| Error::BadRequest(format!("max_experiment_duration: {problem}")))?;
    let limits =
        NewLimits { concurrency: body.trial_concurrency, trials: body.max_trial_number, duration };
    shared.changes.make(&shared, &headers, Command::Limit(limits)).await?;
    Ok(accepted())
}

/// Let the tuner learn results from elsewhere
///
/// A list, as NNI's `experiment import` takes it, or as `experiment export --format json` writes it. What was imported before
/// is passed over.
#[utoipa::path(
    post, path = "/api/v1/experiment/import", tag = "changes", request_body = Vec<Object>,
    params(("Idempotency-Key" = Option<String>, Header)),
    responses((status = 202), (status = 400, description = "an entry is not right: its path and why"), (status = 409, description = "it is not running")),
    security(("token" = [])),
)]
pub(super) async fn import(
    _: User,
    State(shared): State<Shared>,
    headers: HeaderMap,
    _: Method,
    request: Request,
) -> Result<Response, Error> {
    let list = large_json_body(request).await?;
    shared.changes.make(&shared, &headers, Command::Import(list)).await?;
    Ok(accepted())
}

/// Search another space from now on
///
/// The trials that run are let end. What was tried before and fits into the new space still counts.
#[utoipa::path(
    put, path = "/api/v1/experiment/search-space", tag = "changes", request_body = Object,
    params(("Idempotency-Key" = Option<String>, Header)),
    responses((status = 202), (status = 400, description = "no search space: the path and why"), (status = 409, description = "it is not running")),
    security(("token" = [])),
)]
pub(super) async fn search_space(
    _: User,
    State(shared): State<Shared>,
    headers: HeaderMap,
    _: Method,
    request: Request,
) -> Result<Response, Error> {
    let space = large_json_body(request).await?;
    shared.changes.make(&shared, &headers, Command::Space(space)).await?;
    Ok(accepted())
}
