//! Changes: stop a trial, rerun a trial, send its agent a directive, stop the experiment, change its limits, give
//! its tuner results or another search space. Each change may have an `Idempotency-Key`, with which a client that got
//! no response can repeat the request.

use std::collections::VecDeque;
use std::sync::Arc;

use axum::Json;
use axum::extract::{FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tokio::sync::Mutex;
use trial_protocol::{LogLevel, TrialJobId};
use utoipa::{IntoParams, ToSchema};

use super::super::access::auth::User;
use super::super::{Error, Shared};
use super::query_extractor::{TrialPath, json_body, large_json_body};
use crate::experiment::command::{Command, CommandError, NewLimits, WrittenDuration};
use crate::experiment::state::ExperimentState;
use crate::util::errors::error_chain;
use crate::util::ids;

/// The maximum number of remembered changes.
const MAX_REMEMBERED_CHANGES: usize = 1000;
/// The maximum length of a key, in bytes.
const MAX_KEY_BYTES: usize = 255;

/// The changes that were made with a key, so that none is made twice; cheap to clone.
#[derive(Debug, Clone, Default)]
pub(in crate::api) struct ChangeLog(Arc<Mutex<VecDeque<RecordedChange>>>);

#[derive(Debug)]
struct RecordedChange {
    key: String,
    change: Change,
}

/// A change that the user may request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::api) enum Change {
    /// A command for the experiment's task.
    Command(Command),
    /// The stop of the experiment.
    Stop,
}

impl From<Command> for Change {
    fn from(command: Command) -> Self {
        Self::Command(command)
    }
}

impl Change {
    async fn apply(self, shared: &Shared) -> Result<(), Error> {
        let handle = &shared.state.handle;
        match self {
            Self::Command(command) => match handle.command(command).await {
                Err(CommandError::NotRunning) => Err(not_running_reason(shared).await.into()),
                answer => Ok(answer?),
            },
            Self::Stop if !handle.has_task() => Err(not_running_reason(shared).await.into()),
            // If the experiment is done and still served, the stop ends the serving.
            Self::Stop => {
                // A stop that cannot be recorded is refused.
                if let Err(error) = shared.state.store.database().probe().await {
                    return Err(CommandError::WaitsForDisk(error_chain(&error)).into());
                }
                handle.stop();
                Ok(())
            }
        }
    }
}

/// Returns the reason why an experiment without a manager accepts no change.
async fn not_running_reason(shared: &Shared) -> CommandError {
    match shared.state.store.experiment().row().await {
        Ok(Some(row)) if row.state == ExperimentState::Done.as_str() => {
            CommandError::NoMoreTrials(ExperimentState::Done)
        }
        _ => CommandError::NotRunning,
    }
}

impl ChangeLog {
    /// Makes the change of a request, unless it was already made with the same key.
    pub(in crate::api) async fn apply(
        &self,
        shared: &Shared,
        headers: &HeaderMap,
        change: impl Into<Change>,
    ) -> Result<(), Error> {
        self.apply_with_key(shared, IdempotencyKey::read(headers)?, change.into()).await
    }

    /// Makes a change, unless it was already made with the same key.
    async fn apply_with_key(
        &self,
        shared: &Shared,
        key: Option<IdempotencyKey>,
        change: Change,
    ) -> Result<(), Error> {
        let Some(IdempotencyKey(key)) = key else { return change.apply(shared).await };
        let (changes, shared) = (self.clone(), shared.clone());
        // A client that disconnects while it waits will repeat its request. The task still completes and remembers
        // the change.
        let made = tokio::spawn(async move { changes.apply_once(&shared, key, change).await });
        made.await.unwrap_or(Err(Error::Stopping))
    }

    async fn apply_once(&self, shared: &Shared, key: String, change: Change) -> Result<(), Error> {
        // Held while the change is made: a concurrent request with the same key waits for the result.
        let mut made = self.0.lock().await;
        if let Some(before) = made.iter().find(|made| made.key == key) {
            if before.change == change {
                return Ok(());
            }
            return Err(Error::Conflict(
                "this Idempotency-Key was used for another change".to_owned(),
            ));
        }
        change.clone().apply(shared).await?;
        if made.len() >= MAX_REMEMBERED_CHANGES {
            made.pop_front();
        }
        made.push_back(RecordedChange { key, change });
        Ok(())
    }
}

/// The key of a change, with which a client can repeat its request.
#[derive(Debug)]
pub(in crate::api) struct IdempotencyKey(String);

impl IdempotencyKey {
    /// Reads the key of a request, if it has one.
    pub(in crate::api) fn read(headers: &HeaderMap) -> Result<Option<Self>, Error> {
        let Some(key) = headers.get("idempotency-key") else { return Ok(None) };
        let key = key.to_str().ok().filter(|key| (1..=MAX_KEY_BYTES).contains(&key.len()));
        let key = key.ok_or_else(|| {
            Error::BadRequest(format!(
                "an Idempotency-Key must have 1 to {MAX_KEY_BYTES} ASCII characters"
            ))
        })?;
        Ok(Some(Self(key.to_owned())))
    }
}

/// A request for a change by a user who may make changes.
#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
pub(super) struct ChangeRequest {
    #[param(ignore)]
    shared: Shared,
    #[param(rename = "Idempotency-Key", value_type = Option<String>)]
    key: Option<IdempotencyKey>,
}

impl FromRequestParts<Shared> for ChangeRequest {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, shared: &Shared) -> Result<Self, Error> {
        User::from_request_parts(parts, shared).await?;
        let key = IdempotencyKey::read(&parts.headers)?;
        Ok(Self { shared: shared.clone(), key })
    }
}

impl ChangeRequest {
    /// Makes the change, and responds that it was accepted.
    async fn apply(self, change: impl Into<Change>) -> Result<Response, Error> {
        self.shared.changes.apply_with_key(&self.shared, self.key, change.into()).await?;
        Ok((StatusCode::ACCEPTED, Json(json!({}))).into_response())
    }
}

/// A point to try.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::api) struct NewPoint {
    /// The parameters. Missing parameters of the search space are drawn from it.
    #[schema(value_type = Object)]
    parameters: Map<String, Value>,
}

/// The trial that was added.
#[derive(Serialize, ToSchema)]
pub(in crate::api) struct AddedTrial {
    /// The trial's id.
    #[schema(value_type = String)]
    pub(in crate::api) id: TrialJobId,
}

/// Adds a trial with the user's parameters and returns its id.
pub(in crate::api) async fn add_trial(
    shared: &Shared,
    key: Option<IdempotencyKey>,
    parameters: Map<String, Value>,
) -> Result<TrialJobId, Error> {
    let trial = key.as_ref().map_or_else(ids::new_trial_id, |key| ids::trial_id_of_key(&key.0));
    // An earlier manager, whose changes this one does not remember, may have added the trial with this key.
    if key.is_some()
        && let Some(row) = shared.state.store.trials().get(&trial).await?
        && parameters.iter().all(|(name, value)| row.parameters.get(name) == Some(value))
    {
        return Ok(trial);
    }
    let command = Command::AddTrial { trial: trial.clone(), parameters };
    shared.changes.apply_with_key(shared, key, command.into()).await?;
    Ok(trial)
}

/// Runs a trial with the user's own parameters
///
/// The trial runs before the tuner's next proposals and counts towards `maxTrialNumber`. The tuner learns its result.
#[utoipa::path(
    post, path = "/api/v1/trials", tag = "changes", request_body = NewPoint,
    params(ChangeRequest),
    responses(
        (status = 201, body = AddedTrial),
        (status = 400, description = "a parameter is not in the search space"),
        (status = 409, description = "the experiment starts no more trials"),
    ),
    security(("token" = [])),
)]
pub(super) async fn add(
    change: ChangeRequest,
    request: Request,
) -> Result<(StatusCode, Json<AddedTrial>), Error> {
    let NewPoint { parameters } = json_body(request).await?;
    let id = add_trial(&change.shared, change.key, parameters).await?;
    Ok((StatusCode::CREATED, Json(AddedTrial { id })))
}

/// Stops a trial
#[utoipa::path(
    post, path = "/api/v1/trials/{trial}/stop", tag = "changes",
    params(("trial", description = "the trial's id, or its number"), ChangeRequest),
    responses((status = 202), (status = 404, description = "no such trial"), (status = 409, description = "the trial has ended")),
    security(("token" = [])),
)]
pub(super) async fn stop_trial(
    change: ChangeRequest,
    TrialPath(trial): TrialPath,
) -> Result<Response, Error> {
    change.apply(Command::StopTrial(trial)).await
}

/// Reruns an ended trial, as a new attempt
#[utoipa::path(
    post, path = "/api/v1/trials/{trial}/rerun", tag = "changes",
    params(("trial", description = "the trial's id, or its number"), ChangeRequest),
    responses((status = 202), (status = 404, description = "no such trial"), (status = 409, description = "the trial has not ended")),
    security(("token" = [])),
)]
pub(super) async fn rerun_trial(
    change: ChangeRequest,
    TrialPath(trial): TrialPath,
) -> Result<Response, Error> {
    change.apply(Command::RerunTrial(trial)).await
}

/// Makes a trial's agent send the log lines that it still buffers
#[utoipa::path(
    post, path = "/api/v1/trials/{trial}/flush", tag = "changes",
    params(("trial", description = "the trial's id, or its number"), ChangeRequest),
    responses((status = 202), (status = 404, description = "no such trial"), (status = 409, description = "the trial has ended")),
    security(("token" = [])),
)]
pub(super) async fn flush(
    change: ChangeRequest,
    TrialPath(trial): TrialPath,
) -> Result<Response, Error> {
    change.apply(Command::FlushTrial(trial)).await
}

/// The new level of an agent's own log.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct LevelBody {
    /// The level. Each level includes the levels before it.
    level: Level,
}

/// The detail of an agent's own log.
#[derive(Debug, Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum Level {
    /// Failures only.
    Error,
    /// Also suspicious conditions. This is the default of agents.
    Warn,
    /// Also the agent's actions.
    Info,
    /// Also each try of an action.
    Debug,
}

/// Sets the level of an agent's own log
#[utoipa::path(
    post, path = "/api/v1/trials/{trial}/log-level", tag = "changes", request_body = LevelBody,
    params(("trial", description = "the trial's id, or its number"), ChangeRequest),
    responses((status = 202), (status = 400, description = "not a level"), (status = 404, description = "no such trial"),
              (status = 409, description = "the trial has ended")),
    security(("token" = [])),
)]
pub(super) async fn log_level(
    change: ChangeRequest,
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
    change.apply(Command::SetLogLevel(trial, level)).await
}

/// Stops the experiment's trials; the experiment can be resumed
#[utoipa::path(
    post, path = "/api/v1/experiment/stop", tag = "changes",
    params(ChangeRequest),
    responses((status = 202), (status = 409, description = "the experiment is not running")),
    security(("token" = [])),
)]
pub(super) async fn stop(change: ChangeRequest) -> Result<Response, Error> {
    change.apply(Change::Stop).await
}

/// New limits. An absent limit stays unchanged.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct LimitsBody {
    /// The maximum number of concurrent trials, at least 1.
    trial_concurrency: Option<usize>,
    /// The total number of trials, at least 1.
    max_trial_number: Option<u64>,
    /// The total run time, as in an experiment file: seconds, or a text such as `90m` or `1h30m`.
    #[schema(value_type = Option<String>)]
    max_experiment_duration: Option<Value>,
}

/// Changes the limits of the running experiment
#[utoipa::path(
    patch, path = "/api/v1/experiment", tag = "changes", request_body = LimitsBody,
    params(ChangeRequest),
    responses((status = 202), (status = 400, description = "a limit is not valid"), (status = 409, description = "the experiment is not running")),
    security(("token" = [])),
)]
pub(super) async fn limit(change: ChangeRequest, request: Request) -> Result<Response, Error> {
    let body: LimitsBody = json_body(request).await?;
    let duration = body.max_experiment_duration.as_ref().map(WrittenDuration::parse).transpose();
    let duration = duration
        .map_err(|problem| Error::BadRequest(format!("max_experiment_duration: {problem}")))?;
    for (name, is_zero) in [
        ("trial_concurrency", body.trial_concurrency == Some(0)),
        ("max_trial_number", body.max_trial_number == Some(0)),
    ] {
        if is_zero {
            return Err(Error::BadRequest(format!("{name} must be at least 1")));
        }
    }
    let limits =
        NewLimits { concurrency: body.trial_concurrency, trials: body.max_trial_number, duration };
    change.apply(Command::ChangeLimits(limits)).await
}

/// Imports results of other searches for the tuner
///
/// The body is a list in the form of NNI's `experiment import`, or of `experiment export --format json`. Results that
/// were imported before are ignored.
#[utoipa::path(
    post, path = "/api/v1/experiment/import", tag = "changes", request_body = Vec<Object>,
    params(ChangeRequest),
    responses((status = 202), (status = 400, description = "an entry is not valid: its path and the reason"), (status = 409, description = "the experiment is not running")),
    security(("token" = [])),
)]
pub(super) async fn import(change: ChangeRequest, request: Request) -> Result<Response, Error> {
    let list = large_json_body(request).await?;
    change.apply(Command::ImportResults(list)).await
}

/// Replaces the search space for further trials
///
/// Running trials continue to their end. Earlier trials that fit into the new space still count.
#[utoipa::path(
    put, path = "/api/v1/experiment/search-space", tag = "changes", request_body = Object,
    params(ChangeRequest),
    responses((status = 202), (status = 400, description = "not a search space: the path and the reason"), (status = 409, description = "the experiment is not running")),
    security(("token" = [])),
)]
pub(super) async fn search_space(
    change: ChangeRequest,
    request: Request,
) -> Result<Response, Error> {
    let space = large_json_body(request).await?;
    change.apply(Command::ChangeSpace(space)).await
}
