//! NNI's REST API (nni 3.0, `ts/nni_manager/rest_server/restHandler.ts`), as far as its Python client
//! (`nni/experiment/experiment.py`) and its web pages use it. The routes copy NNI's forms, but not its faults: a
//! change needs the user's token, an unknown trial is a 404, and no secret is shown.

mod logs;
mod shapes;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Path as UrlPath, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Json};
use http_body_util::channel::Channel;
use serde::Deserialize;
use serde_json::{Value, json};
use trial_protocol::{MetricKind, Stream, TrialJobId};

use self::shapes::{MetricKindWord, latest_records, stored_record, trial_job};
use super::access::auth::User;
use super::server::response_memory::AddressMemory;
use super::user::{
    Change, CheckedQuery, IdempotencyKey, TrialPath, add_trial, large_json_body, output_attempt,
    requested_attempt, whole_log,
};
use super::{Error, Shared};
use crate::experiment::command::{Command, NewLimits, WrittenDuration};
use crate::experiment::result::has_name;
use crate::view::{self, TrialSummary};

/// The NNI release with this API.
const NNI_VERSION: &str = "3.0.0";

/// The number of metrics that are read from the store at once.
const METRICS_PER_READ: u32 = 10_000;

/// Returns NNI's routes.
pub(super) fn routes() -> Router<Shared> {
    let path = |rest: &str| format!("/api/v1/nni{rest}");
    Router::new()
        .route(&path("/version"), get(version))
        .route(&path("/check-status"), get(status))
        .route(&path("/experiment"), get(profile).put(update).delete(stop).post(not_supported))
        .route(&path("/experiment/import-data"), post(import))
        .route(&path("/experiment/imported-data"), get(imported))
        .route(&path("/experiment-metadata"), get(metadata))
        .route(&path("/experiments-info"), get(infos))
        .route(&path("/experiment/cluster-metadata"), axum::routing::put(not_supported))
        .route(&path("/job-statistics"), get(statistics))
        .route(&path("/trial-jobs"), get(jobs).post(add_job))
        .route(&path("/trial-jobs/{trial}"), get(job).delete(kill))
        .route(&path("/metric-data"), get(all_metrics))
        .route(&path("/metric-data/{trial}"), get(trial_metrics))
        .route(&path("/metric-data-range/{min}/{max}"), get(range_metrics))
        .route(&path("/metric-data-latest"), get(latest_metrics))
        .route(&path("/export-data"), get(export))
        .route(&path("/trial-file/{trial}/{file}"), get(file))
        .route(&path("/tensorboard"), post(not_supported))
        .route(
            &path("/tensorboard/{task}"),
            get(not_supported).put(not_supported).delete(not_supported),
        )
        .route(&path("/tensorboard-tasks"), get(empty_list).delete(empty_list))
        .merge(logs::routes())
        .layer(axum::middleware::map_response(to_nni_refusal))
}

/// Converts a refusal that no handler made to NNI's form. NNI's pages show the text under `error`.
async fn to_nni_refusal(response: Response) -> Response {
    let kind = response.headers().get(header::CONTENT_TYPE);
    if kind.is_none_or(|kind| kind != "application/problem+json") {
        return response;
    }
    let (mut parts, body) = response.into_parts();
    let bytes = axum::body::to_bytes(body, usize::MAX).await.unwrap_or_default();
    let problem: Value = serde_json::from_slice(&bytes).unwrap_or_default();
    parts.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    parts.headers.remove(header::CONTENT_LENGTH);
    Response::from_parts(parts, json!({"error": problem["detail"]}).to_string().into())
}

/// The number of intermediate results of each trial, and the trial's revision at the count. An ended trial is counted
/// once; cheap to clone.
#[derive(Debug, Clone, Default)]
pub(super) struct StepCounts(Arc<Mutex<HashMap<String, (u64, u64)>>>);

impl StepCounts {
    async fn count_steps(&self, shared: &Shared, trial: &TrialSummary) -> Result<u64, Error> {
        let known = self.lock().get(&trial.id).copied();
        if let Some((_, steps)) = known.filter(|(revision, _)| *revision == trial.revision) {
            return Ok(steps);
        }
        let id = TrialJobId::new(trial.id.clone()).map_err(|_| Error::NotFound)?;
        let steps = match shared.state.store.queries().reporting_attempt(&id).await? {
            Some(attempt) => {
                shared
                    .state
                    .store
                    .queries()
                    .count_steps(attempt.key, trial.steps_name.as_deref())
                    .await?
            }
            None => 0,
        };
        self.remember(trial, steps);
        Ok(steps)
    }

    /// Keeps a count for later requests.
    fn remember(&self, trial: &TrialSummary, steps: u64) {
        self.lock().insert(trial.id.clone(), (trial.revision, steps));
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, (u64, u64)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A refusal in NNI's form.
struct NniRefusal(Error);

impl<E: Into<Error>> From<E> for NniRefusal {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

impl IntoResponse for NniRefusal {
    fn into_response(self) -> Response {
        let (status, _, detail) = self.0.parts();
        (status, Json(json!({"error": detail}))).into_response()
    }
}

async fn version() -> Response {
    let kind = HeaderValue::from_static("application/json");
    ([(header::CONTENT_TYPE, kind)], NNI_VERSION).into_response()
}

async fn empty_list(_: User) -> Json<Value> {
    Json(json!([]))
}

/// Runs a trial with the posted parameters, like NNI's "customized trial".
async fn add_job(
    _: User,
    State(shared): State<Shared>,
    headers: HeaderMap,
    request: Request,
) -> Result<Json<Value>, NniRefusal> {
    let Value::Object(parameters) = large_json_body(request).await? else {
        return Err(Error::BadRequest("expected an object of parameters".to_owned()).into());
    };
    let trial = add_trial(&shared, IdempotencyKey::read(&headers)?, parameters).await?;
    let snapshot = shared.state.trial_cache.refresh().await?;
    let sequence = snapshot.find(trial.as_str()).map(|trial| trial.sequence);
    Ok(Json(json!({"sequenceId": sequence})))
}

/// Responds to requests that NNI's manager serves, but TrialKeeper does not, or serves by another route.
async fn not_supported(_: User) -> Response {
    let detail = "this manager does not support this route of NNI's API; see docs/rest-api.md";
    (StatusCode::NOT_IMPLEMENTED, Json(json!({"error": detail}))).into_response()
}

async fn status(_: User, State(shared): State<Shared>) -> Result<Json<Value>, NniRefusal> {
    let row = shared.state.store.experiment().row().await?.ok_or(Error::NotFound)?;
    let errors: Vec<String> =
        shared.state.store.database().write_error().iter().map(ToString::to_string).collect();
    Ok(Json(json!({"status": row.state, "errors": errors})))
}

async fn profile(_: User, State(shared): State<Shared>) -> Result<Json<Value>, NniRefusal> {
    let state = &shared.state;
    let row = state.store.experiment().row().await?.ok_or(Error::NotFound)?;
    let snapshot = state.trial_cache.refresh().await?;
    let running = state.handle.elapsed().filter(|_| row.ended_at_ms.is_none());
    let seconds = running.map_or(row.elapsed_ms / 1000, |elapsed| elapsed.as_secs());
    let mut params = view::redact_secrets(&row.canonical);
    // Scripts find an experiment's folder by its id below this one. The file's own value has no effect.
    params["experimentWorkingDirectory"] = json!(data_dir(&shared));
    let mut profile = json!({
        "params": params,
        "id": row.id,
        "execDuration": seconds,
        "logDir": state.server_info.folder.to_string_lossy(),
        "startTime": row.created_at_ms,
        "nextSequenceId": snapshot.trials.len(),
        // NNI counts how often it has stored its profile. The number of the newest change serves as well.
        "revision": snapshot.through,
    });
    if let Some(ended) = row.ended_at_ms {
        profile["endTime"] = ended.into();
    }
    Ok(Json(profile))
}

#[derive(Deserialize)]
struct UpdateQuery {
    update_type: Option<String>,
}

async fn update(
    _: User,
    State(shared): State<Shared>,
    headers: HeaderMap,
    CheckedQuery(query): CheckedQuery<UpdateQuery>,
    request: Request,
) -> Result<(), NniRefusal> {
    let body = large_json_body(request).await?;
    let bad = |problem: String| NniRefusal(Error::BadRequest(problem));
    let field = |name: &str| {
        let value = body.get("params").and_then(|params| params.get(name));
        value.cloned().ok_or_else(|| bad(format!("params.{name} is missing")))
    };
    let whole = |name: &str| {
        let value = field(name)?;
        let number = value.as_u64();
        number.ok_or_else(|| bad(format!("params.{name} is {value}, not a whole number")))
    };
    let mut limits = NewLimits::default();
    match query.update_type.as_deref().unwrap_or_default() {
        "TRIAL_CONCURRENCY" => {
            let number = usize::try_from(whole("trialConcurrency")?);
            limits.concurrency = Some(number.map_err(|error| bad(error.to_string()))?);
        }
        "MAX_TRIAL_NUM" => limits.trials = Some(whole("maxTrialNumber")?),
        "MAX_EXEC_DURATION" => {
            let value = field("maxExperimentDuration")?;
            limits.duration = Some(WrittenDuration::parse(&value).map_err(bad)?);
        }
        "SEARCH_SPACE" => {
            let command = Command::ChangeSpace(field("searchSpace")?);
            return Ok(shared.changes.apply(&shared, &headers, command).await?);
        }
        other => {
            return Err(bad(format!(
                "update_type must be SEARCH_SPACE, TRIAL_CONCURRENCY, MAX_TRIAL_NUM or MAX_EXEC_DURATION, not {other:?}"
            )));
        }
    }
    Ok(shared.changes.apply(&shared, &headers, Command::ChangeLimits(limits)).await?)
}

async fn import(
    _: User,
    State(shared): State<Shared>,
    headers: HeaderMap,
    request: Request,
) -> Result<(), NniRefusal> {
    let list = large_json_body(request).await?;
    Ok(shared.changes.apply(&shared, &headers, Command::ImportResults(list)).await?)
}

/// Returns the imported results. NNI returns a text for each import, TrialKeeper one text for all.
async fn imported(_: User, State(shared): State<Shared>) -> Result<Json<Value>, NniRefusal> {
    let rows = shared.state.store.experiment().imported_rows().await?.into_iter();
    let list: Vec<Value> =
        rows.map(|row| json!({"parameter": row.parameters, "value": row.value})).collect();
    Ok(Json(if list.is_empty() { json!([]) } else { json!([json!(list).to_string()]) }))
}

async fn stop(_: User, State(shared): State<Shared>, headers: HeaderMap) -> Result<(), NniRefusal> {
    Ok(shared.changes.apply(&shared, &headers, Change::Stop).await?)
}

async fn experiment_metadata(shared: &Shared) -> Result<Value, Error> {
    let row = shared.state.store.experiment().row().await?.ok_or(Error::NotFound)?;
    let end = row.ended_at_ms.map_or_else(|| json!("N/A"), |at| json!(at));
    Ok(json!({
        "id": row.id,
        "port": shared.state.server_info.port,
        "startTime": row.created_at_ms,
        "endTime": end,
        "status": row.state,
        "platform": crate::config::stored_platform(&row.canonical),
        "experimentName": row.canonical.get("experimentName"),
        "tag": [],
        "pid": std::process::id(),
        "webuiUrl": [],
        "logDir": data_dir(shared),
        "prefixUrl": Value::Null,
    }))
}

/// Returns the folder of all experiments.
fn data_dir(shared: &Shared) -> String {
    let folder = shared.state.server_info.folder.parent().unwrap_or(Path::new(""));
    folder.to_string_lossy().into_owned()
}

async fn metadata(_: User, State(shared): State<Shared>) -> Result<Json<Value>, NniRefusal> {
    Ok(Json(experiment_metadata(&shared).await?))
}

async fn infos(_: User, State(shared): State<Shared>) -> Result<Json<Value>, NniRefusal> {
    Ok(Json(json!([experiment_metadata(&shared).await?])))
}

async fn statistics(_: User, State(shared): State<Shared>) -> Result<Json<Value>, NniRefusal> {
    let snapshot = shared.state.trial_cache.refresh().await?;
    let mut counts = std::collections::BTreeMap::<&str, u64>::new();
    for trial in &snapshot.trials {
        *counts.entry(shapes::nni_status(trial.state)).or_default() += 1;
    }
    let counts = counts
        .into_iter()
        .map(|(status, number)| json!({"trialJobStatus": status, "trialJobNumber": number}));
    Ok(Json(counts.collect()))
}

#[derive(Deserialize)]
struct JobsQuery {
    status: Option<String>,
}

async fn jobs(
    _: User,
    State(shared): State<Shared>,
    CheckedQuery(query): CheckedQuery<JobsQuery>,
) -> Result<Json<Value>, NniRefusal> {
    let snapshot = shared.state.trial_cache.refresh().await?;
    let wanted = |trial: &TrialSummary| {
        query.status.as_deref().is_none_or(|status| status == shapes::nni_status(trial.state))
    };
    let jobs = snapshot.trials.iter().filter(|trial| wanted(trial));
    let logs = trial_files_folder(&shared);
    Ok(Json(jobs.map(|trial| trial_job(trial, logs.as_deref())).collect()))
}

/// Returns the folder with the trials' files, if it is on this machine.
fn trial_files_folder(shared: &Shared) -> Option<PathBuf> {
    let info = &shared.state.server_info;
    info.has_trial_files.then(|| info.folder.clone())
}

async fn job(
    _: User,
    State(shared): State<Shared>,
    TrialPath(id): TrialPath,
) -> Result<Json<Value>, NniRefusal> {
    let snapshot = shared.state.trial_cache.refresh().await?;
    let trial = snapshot.find(id.as_str()).ok_or(Error::UnknownTrial(id))?;
    Ok(Json(trial_job(trial, trial_files_folder(&shared).as_deref())))
}

async fn kill(
    _: User,
    State(shared): State<Shared>,
    headers: HeaderMap,
    TrialPath(id): TrialPath,
) -> Result<(), NniRefusal> {
    let made = shared.changes.apply(&shared, &headers, Command::StopTrial(id.clone())).await;
    // As in NNI, a trial that has ended meanwhile needs no stop.
    if matches!(made, Err(Error::Conflict(_))) {
        let snapshot = shared.state.trial_cache.refresh().await?;
        if snapshot.find(id.as_str()).is_some_and(|trial| trial.state.is_final()) {
            return Ok(());
        }
    }
    Ok(made?)
}

#[derive(Deserialize)]
struct MetricQuery {
    r#type: Option<MetricKindWord>,
}

async fn all_metrics(
    _: User,
    State(shared): State<Shared>,
    Extension(address_memory): Extension<AddressMemory>,
    CheckedQuery(query): CheckedQuery<MetricQuery>,
) -> Result<Response, NniRefusal> {
    let snapshot = shared.state.trial_cache.refresh().await?;
    let trials = snapshot.trials.iter().map(|trial| trial.as_ref().clone()).collect();
    Ok(stream_records(shared, trials, query.r#type, address_memory))
}

/// Returns the metrics of a trial. NNI's manager knows no metrics of an unknown trial, and reports no error.
async fn trial_metrics(
    _: User,
    State(shared): State<Shared>,
    UrlPath(id): UrlPath<String>,
    Extension(address_memory): Extension<AddressMemory>,
    CheckedQuery(query): CheckedQuery<MetricQuery>,
) -> Result<Response, NniRefusal> {
    let snapshot = shared.state.trial_cache.refresh().await?;
    let trials = snapshot.find(&id).cloned().into_iter().collect();
    Ok(stream_records(shared, trials, query.r#type, address_memory))
}

async fn range_metrics(
    _: User,
    State(shared): State<Shared>,
    UrlPath((min, max)): UrlPath<(String, String)>,
    Extension(address_memory): Extension<AddressMemory>,
    CheckedQuery(query): CheckedQuery<MetricQuery>,
) -> Result<Response, NniRefusal> {
    let number = |text: &str| {
        let number = text.parse::<u64>();
        number.map_err(|_| {
            Error::BadRequest(format!(
                "{text:?} is not the position of a trial; positions begin at 0"
            ))
        })
    };
    let (min, max) = (number(&min)?, number(&max)?);
    let snapshot = shared.state.trial_cache.refresh().await?;
    let range = min..=max;
    let trials = snapshot.trials.iter().filter(|trial| range.contains(&trial.sequence));
    let trials = trials.map(|trial| trial.as_ref().clone()).collect();
    Ok(stream_records(shared, trials, query.r#type, address_memory))
}

/// Returns all metric records of the trials. They are read while the client receives them, because there may be
/// millions.
fn stream_records(
    shared: Shared,
    trials: Vec<TrialSummary>,
    kind: Option<MetricKindWord>,
    address_memory: AddressMemory,
) -> Response {
    let (mut sender, body) = Channel::<Bytes, std::io::Error>::new(1);
    // The task ends when the client disconnects, after the last trial, or when the store fails.
    tokio::spawn(async move {
        let mut text = String::from("[");
        for trial in trials {
            let Ok(id) = TrialJobId::new(trial.id.clone()) else { continue };
            let Ok(found) = shared.state.store.queries().reporting_attempt(&id).await else {
                return;
            };
            let Some(attempt) = found else { continue };
            let (mut after, mut steps) = (-1, 0);
            loop {
                let rows = shared
                    .state
                    .store
                    .queries()
                    .metrics_after(attempt.key, after, METRICS_PER_READ)
                    .await;
                let Ok(rows) = rows else { return };
                let Some(last) = rows.last() else { break };
                after = i64::try_from(last.seq).unwrap_or(i64::MAX);
                for row in rows {
                    // NNI has only one metric.
                    let is_final = row.metric.kind == MetricKind::Final;
                    let counts = match (&trial.steps_name, &trial.metric) {
                        (Some(name), _) if !is_final => *name == row.metric.name,
                        (_, Some(name)) => has_name(&row.metric, name),
                        (_, None) => true,
                    };
                    let step = steps;
                    steps += u64::from(counts && !is_final);
                    if counts && kind.is_none_or(|kind| kind.is_final() == is_final) {
                        if text.len() > 1 || !text.starts_with('[') {
                            text.push(',');
                        }
                        text.push_str(&stored_record(&trial, &row, step).to_string());
                    }
                }
                if text.len() > 1 {
                    let piece =
                        address_memory.reserve(std::mem::take(&mut text).into_bytes()).await;
                    if sender.send_data(piece).await.is_err() {
                        return;
                    }
                }
            }
            // NNI's pages read all metrics once. Later they request only the latest ones.
            shared.steps.remember(&trial, steps);
        }
        text.push(']');
        drop(sender.send_data(text.into()).await);
    });
    let kind = HeaderValue::from_static("application/json");
    ([(header::CONTENT_TYPE, kind)], Body::new(body)).into_response()
}

async fn latest_metrics(_: User, State(shared): State<Shared>) -> Result<Json<Value>, NniRefusal> {
    let snapshot = shared.state.trial_cache.refresh().await?;
    let mut steps = Vec::with_capacity(snapshot.trials.len());
    for trial in &snapshot.trials {
        let any = trial.latest.is_some();
        steps.push(if any { shared.steps.count_steps(&shared, trial).await? } else { 0 });
    }
    Ok(Json(latest_records(&snapshot.trials, &steps)))
}

async fn export(_: User, State(shared): State<Shared>) -> Result<Json<Value>, NniRefusal> {
    let snapshot = shared.state.trial_cache.refresh().await?;
    Ok(Json(snapshot.trials.iter().filter_map(|trial| shapes::export_entry(trial)).collect()))
}

async fn file(
    _: User,
    State(shared): State<Shared>,
    UrlPath((_, file)): UrlPath<(String, String)>,
    TrialPath(id): TrialPath,
    Extension(address_memory): Extension<AddressMemory>,
) -> Result<Response, NniRefusal> {
    match file.as_str() {
        "stdout" | "stderr" => {
            let stream = if file == "stdout" { Stream::Stdout } else { Stream::Stderr };
            let empty = match output_attempt(&shared, &id, None).await? {
                Some(attempt) => {
                    shared.state.store.logs().read_part(attempt.key, stream, 0, 0).await?.end == 0
                }
                None => true,
            };
            if empty {
                return Ok(format!("{file} is empty.").into_response());
            }
            Ok(whole_log(shared, &id, &file, address_memory).await?)
        }
        "trial.log" => {
            requested_attempt(&shared, &id, None).await?;
            Ok("TrialKeeper has no separate trial.log; see stdout and stderr.".into_response())
        }
        _ => {
            Err(Error::BadRequest("only stdout, stderr and trial.log can be shown".to_owned())
                .into())
        }
    }
}
