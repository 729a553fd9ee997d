//! Changes: stop a trial, rerun a trial, send its agent a directive, stop the experiment, change its limits, give
//! its tuner results or another search space. Each change may have an `Idempotency-Key`, with which a client that got
//! no response can repeat the request.

use std::collections::VecDeque;
use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tokio::sync::Mutex;
use trial_protocol::{LogLevel, TrialJobId};
use utoipa::ToSchema;

use super::super::access::auth::User;
use super::super::{Error, Shared};
use super::query_extractor::{TrialPath, json_body, large_json_body};
use crate::experiment::command::{Command, CommandError, NewLimits, WrittenDuration};
use crate::experiment::state::ExperimentState;
use crate::util::errors::chain;
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
            Self::Stop if handle.elapsed().is_none() => {
                Err(not_running_reason(shared).await.into())
            }
            // If the experiment is done and still served, the stop ends the serving.
            Self::Stop => {
                // A stop that cannot be recorded is refused.
                if let Err(error) = shared.state.store.database().probe().await {
                    return Err(CommandError::WaitsForDisk(chain(&error)).into());
                }
                handle.stop();
                Ok(())
            }
        }
    }
}

/// Returns the reason why an experiment without a manager accepts no change.
async fn not_running_reason(shared: &Shared) -> CommandError {
    match shared.state.store.experiment().await {
        Ok(Some(row)) if row.state == ExperimentState::Done.as_str() => {
            CommandError::NoMoreTrials(ExperimentState::Done)
        }
        _ => CommandError::NotRunning,
    }
}

impl ChangeLog {
    /// Makes a change, unless it was already made with the same key.
    pub(in crate::api) async fn apply(
        &self,
        shared: &Shared,
        headers: &HeaderMap,
        change: impl Into<Change>,
    ) -> Result<(), Error> {
        let change = change.into();
        let Some(key) = headers.get("idempotency-key") else {
            return change.apply(shared).await;
        };
        let key = key.to_str().ok().filter(|key| (1..=MAX_KEY_BYTES).contains(&key.len()));
        let key = key.ok_or_else(|| {
            Error::BadRequest(format!(
                "an Idempotency-Key must have 1 to {MAX_KEY_BYTES} ASCII characters"
            ))
        })?;
        let (changes, shared, key) = (self.clone(), shared.clone(), key.to_owned());
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

/// Responds that the change was accepted.
fn accepted_response() -> Response {
    (StatusCode::ACCEPTED, Json(json!({}))).into_response()
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
    headers: &HeaderMap,
    parameters: Map<String, Value>,
) -> Result<TrialJobId, Error> {
    let key = headers.get("idempotency-key").and_then(|key| key.to_str().ok());
    let trial = key.map_or_else(ids::new_trial_id, ids::trial_id_of_key);
    // An earlier manager, whose changes this one does not remember, may have added the trial with this key.
    if key.is_some()
        && let Some(row) = shared.state.store.trial(&trial).await?
        && parameters.iter().all(|(name, value)| row.parameters.get(name) == Some(value))
    {
        return Ok(trial);
    }
    let command = Command::AddTrial { trial: trial.clone(), parameters };
    shared.changes.apply(shared, headers, command).await?;
    Ok(trial)
}

/// Runs a trial with the user's own parameters
///
/// The trial runs before the tuner's next proposals and counts towards `maxTrialNumber`. The tuner learns its result.
#[utoipa::path(
    post, path = "/api/v1/trials", tag = "changes", request_body = NewPoint,
    params(("Idempotency-Key" = Option<String>, Header)),
    responses(
        (status = 201, body = AddedTrial),
        (status = 400, description = "a parameter is not in the search space"),
        (status = 409, description = "the experiment starts no more trials"),
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

/// Stops a trial
#[utoipa::path(
    post, path = "/api/v1/trials/{trial}/stop", tag = "changes",
    params(("trial", description = "the trial's id"), ("Idempotency-Key" = Option<String>, Header)),
    responses((status = 202), (status = 404, description = "no such trial"), (status = 409, description = "the trial has ended")),
    security(("token" = [])),
)]
pub(super) async fn stop_trial(
    _: User,
    State(shared): State<Shared>,
    headers: HeaderMap,
    TrialPath(trial): TrialPath,
) -> Result<Response, Error> {
    shared.changes.apply(&shared, &headers, Command::StopTrial(trial)).await?;
    Ok(accepted_response())
}

/// Reruns an ended trial, as a new attempt
#[utoipa::path(
    post, path = "/api/v1/trials/{trial}/rerun", tag = "changes",
    params(("trial", description = "the trial's id"), ("Idempotency-Key" = Option<String>, Header)),
    responses((status = 202), (status = 404, description = "no such trial"), (status = 409, description = "the trial has not ended")),
    security(("token" = [])),
)]
pub(super) async fn rerun_trial(
    _: User,
    State(shared): State<Shared>,
    headers: HeaderMap,
    TrialPath(trial): TrialPath,
) -> Result<Response, Error> {
    shared.changes.apply(&shared, &headers, Command::RerunTrial(trial)).await?;
    Ok(accepted_response())
}

/// Makes a trial's agent send the log lines that it still buffers
#[utoipa::path(
    post, path = "/api/v1/trials/{trial}/flush", tag = "changes",
    params(("trial", description = "the trial's id"), ("Idempotency-Key" = Option<String>, Header)),
    responses((status = 202), (status = 404, description = "no such trial"), (status = 409, description = "the trial has ended")),
    security(("token" = [])),
)]
pub(super) async fn flush(
    _: User,
    State(shared): State<Shared>,
    headers: HeaderMap,
    TrialPath(trial): TrialPath,
) -> Result<Response, Error> {
    shared.changes.apply(&shared, &headers, Command::FlushTrial(trial)).await?;
    Ok(accepted_response())
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
    params(("trial", description = "the trial's id"), ("Idempotency-Key" = Option<String>, Header)),
    responses((status = 202), (status = 400, description = "not a level"), (status = 404, description = "no such trial"),
              (status = 409, description = "the trial has ended")),
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
    shared.changes.apply(&shared, &headers, Command::SetLogLevel(trial, level)).await?;
    Ok(accepted_response())
}

/// Stops the experiment's trials; the experiment can be resumed
#[utoipa::path(
    post, path = "/api/v1/experiment/stop", tag = "changes",
    params(("Idempotency-Key" = Option<String>, Header)),
    responses((status = 202), (status = 409, description = "the experiment is not running")),
    security(("token" = [])),
)]
pub(super) async fn stop(
    _: User,
    State(shared): State<Shared>,
    headers: HeaderMap,
) -> Result<Response, Error> {
    shared.changes.apply(&shared, &headers, Change::Stop).await?;
    Ok(accepted_response())
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
    params(("Idempotency-Key" = Option<String>, Header)),
    responses((status = 202), (status = 400, description = "a limit is not valid"), (status = 409, description = "the experiment is not running")),
    security(("token" = [])),
)]
pub(super) async fn limit(
    _: User,
    State(shared): State<Shared>,
    headers: HeaderMap,
    request: Request,
) -> Result<Response, Error> {
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
    shared.changes.apply(&shared, &headers, Command::ChangeLimits(limits)).await?;
    Ok(accepted_response())
}

/// Imports results of other searches for the tuner
///
/// The body is a list in the form of NNI's `experiment import`, or of `experiment export --format json`. Results that
/// were imported before are ignored.
#[utoipa::path(
    post, path = "/api/v1/experiment/import", tag = "changes", request_body = Vec<Object>,
    params(("Idempotency-Key" = Option<String>, Header)),
    responses((status = 202), (status = 400, description = "an entry is not valid: its path and the reason"), (status = 409, description = "the experiment is not running")),
    security(("token" = [])),
)]
pub(super) async fn import(
    _: User,
    State(shared): State<Shared>,
    headers: HeaderMap,
    request: Request,
) -> Result<Response, Error> {
    let list = large_json_body(request).await?;
    shared.changes.apply(&shared, &headers, Command::ImportResults(list)).await?;
    Ok(accepted_response())
}

/// Replaces the search space for further trials
///
/// Running trials continue to their end. Earlier trials that fit into the new space still count.
#[utoipa::path(
    put, path = "/api/v1/experiment/search-space", tag = "changes", request_body = Object,
    params(("Idempotency-Key" = Option<String>, Header)),
    responses((status = 202), (status = 400, description = "not a search space: the path and the reason"), (status = 409, description = "the experiment is not running")),
    security(("token" = [])),
)]
pub(super) async fn search_space(
    _: User,
    State(shared): State<Shared>,
    headers: HeaderMap,
    request: Request,
) -> Result<Response, Error> {
    let space = large_json_body(request).await?;
    shared.changes.apply(&shared, &headers, Command::ChangeSpace(space)).await?;
    Ok(accepted_response())
}
