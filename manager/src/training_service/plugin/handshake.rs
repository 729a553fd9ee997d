//! The first requests to a plugin's process, which establish its identity and its readiness.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};
use tokio::process::Child;
use tokio::time::{Instant, sleep};
use tracing::warn;
use trial_protocol::ExperimentId;

use super::link::{self, AskError, Link, Program, StartedProcess};
use super::wire::Remedy;
use super::{CANCEL_TIMEOUT, CLEAN_UP_TIMEOUT, CLOSE_TIMEOUT, Error, ROOM_TIMEOUT};
use crate::config::PluginSpec;
use crate::util::layout::ExperimentDir;

/// The version of the protocol in this build.
const PROTOCOL_VERSION: u64 = 1;
/// The time limits for answers, one for each request.
const INITIALIZE_TIMEOUT: Duration = Duration::from_mins(1);
const CHECK_TIMEOUT: Duration = Duration::from_mins(2);
const LIST_TIMEOUT: Duration = Duration::from_secs(30);
/// The time limit for the end of cancelled jobs, and the interval at which they are listed.
const JOBS_END_TIMEOUT: Duration = Duration::from_mins(1);
const LIST_INTERVAL: Duration = Duration::from_millis(500);

/// The optional parts of the protocol that a plugin supports.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[expect(clippy::struct_excessive_bools, reason = "each is a separate member of the message")]
pub(super) struct Capabilities {
    #[serde(default)]
    pub(super) check: bool,
    #[serde(default)]
    pub(super) clean_up: bool,
    #[serde(default)]
    pub(super) finish: bool,
    #[serde(default)]
    pub(super) output: bool,
    #[serde(default)]
    pub(super) queue: bool,
    #[serde(default)]
    pub(super) recover: bool,
    #[serde(default)]
    pub(super) room: bool,
}

/// The answer to `initialize`.
#[derive(Debug, Deserialize)]
pub(super) struct InitializeAnswer {
    protocol: u64,
    #[serde(default)]
    service: Value,
    #[serde(default)]
    pub(super) capabilities: Capabilities,
    #[serde(default)]
    pub(super) limits: Value,
}

/// The program's description of itself.
#[derive(Debug)]
pub struct Identity {
    /// The name and version of the program.
    pub name: String,
    /// The number of jobs that the program can start. `None`: unknown.
    pub free: Option<u64>,
}

/// Starts the program once, makes it check its settings, and ends it.
///
/// # Errors
///
/// The program cannot be started, violates the protocol, or finds errors in the settings.
pub async fn probe(
    spec: &PluginSpec,
    gpus_each: Option<u32>,
    code_directory: &Path,
    secret_variables: Vec<String>,
) -> Result<Identity, Error> {
    let folder = tempfile::tempdir()
        .map_err(|source| Error::Write { path: std::env::temp_dir(), source })?;
    let program = program(spec, code_directory, folder.path(), secret_variables);
    let (link, mut child) = start_without_jobs(&program)?;
    let experiment = ExperimentId::new("probe").expect("a valid id");
    let answer = async {
        let (state_dir, about) = (folder.path(), (&experiment, None));
        let initialized = initialize(&program, &link, about, state_dir, spec, gpus_each).await?;
        if initialized.capabilities.check {
            check_settings(&program, &link).await?;
        }
        let name = initialized.service["name"].as_str().unwrap_or("a plugin without a name");
        let version = initialized.service["version"].as_str().unwrap_or_default();
        let name = format!("{name} {version}").trim_end().to_owned();
        // An error is ignored, because the platform may be able to report its room later.
        let room = if initialized.capabilities.room {
            link.ask("room", &json!({}), ROOM_TIMEOUT).await.unwrap_or_default()
        } else {
            Value::Null
        };
        Ok(Identity { name, free: room["free"].as_u64() })
    };
    let answer = answer.await;
    drop(link.ask("close", &json!({}), CLOSE_TIMEOUT).await);
    link::end_process(&link, &mut child).await;
    answer
}

/// Makes the program end and remove all parts of an experiment on its platform. Returns a message about the remains,
/// for the user.
///
/// # Errors
///
/// The program cannot be used, or cannot remove the experiment.
pub async fn clean_up(
    spec: &PluginSpec,
    code_directory: &Path,
    secret_variables: Vec<String>,
    experiment: &ExperimentId,
    dir: &ExperimentDir,
) -> Result<Vec<String>, Error> {
    let state_dir = dir.plugin();
    let program = program(spec, code_directory, &state_dir, secret_variables);
    let (link, mut child) = start_without_jobs(&program)?;
    let cleaned = async {
        let about = (experiment, None);
        let initialized = initialize(&program, &link, about, &state_dir, spec, None).await?;
        if !initialized.capabilities.clean_up {
            return Ok(cancel_all(&program, &link).await);
        }
        let answer = link.ask("clean_up", &json!({}), CLEAN_UP_TIMEOUT).await;
        let answer = answer.map_err(|error| startup_error(&program, &link, &error))?;
        let left = answer["left"].as_array().into_iter().flatten();
        let text = |one: &Value, name: &str| one[name].as_str().unwrap_or_default().to_owned();
        Ok(left.map(|one| format!("{}: {}", text(one, "place"), text(one, "why"))).collect())
    };
    let cleaned = cleaned.await;
    drop(link.ask("close", &json!({}), CLOSE_TIMEOUT).await);
    link::end_process(&link, &mut child).await;
    cleaned
}

/// Starts the program for a few requests, without jobs. Its notifications are read and ignored.
fn start_without_jobs(program: &Program) -> Result<(Arc<Link>, Child), Error> {
    let StartedProcess { link, mut notifications, child } =
        Link::start(program).map_err(Error::Start)?;
    tokio::spawn(async move { while notifications.recv().await.is_some() {} });
    Ok((link, child))
}

/// Cancels the jobs of a plugin without the capability `clean_up`, and waits for their ends. Returns messages about the
/// remains.
async fn cancel_all(program: &Program, link: &Link) -> Vec<String> {
    let mut left = vec![format!(
        "what its jobs left on the platform, because `{}` has no capability `clean_up`",
        program.command_line()
    )];
    let until = Instant::now() + JOBS_END_TIMEOUT;
    let mut cancelled = Vec::new();
    loop {
        let listed = match link.ask("list", &json!({}), LIST_TIMEOUT).await {
            Ok(listed) => listed,
            Err(error) => {
                left.push(format!("jobs that may still run; end them on the platform: {error}"));
                return left;
            }
        };
        let jobs = listed["jobs"].as_array().into_iter().flatten();
        let living: Vec<&Value> = jobs.filter(|job| job["phase"] != "gone").collect();
        if living.is_empty() {
            return left;
        }
        for job in &living {
            let key = &job["key"];
            if cancelled.contains(key) {
                continue;
            }
            cancelled.push(key.clone());
            let params = json!({"key": key, "force": true, "grace_ms": 0});
            if let Err(error) = link.ask("cancel", &params, CANCEL_TIMEOUT).await {
                left.push(format!("the job {}: {error}", job["handle"]));
            }
        }
        if Instant::now() >= until {
            let handles: Vec<String> = living.iter().map(|job| job["handle"].to_string()).collect();
            left.push(format!(
                "jobs that do not end; end them on the platform: {}",
                handles.join(", ")
            ));
            return left;
        }
        sleep(LIST_INTERVAL).await;
    }
}

pub(super) fn program(
    spec: &PluginSpec,
    code_directory: &Path,
    folder: &Path,
    secret_variables: Vec<String>,
) -> Program {
    let mut command = spec.command.clone();
    // A relative path refers to the folder in which the program runs.
    if let Some(program) = command.first_mut().filter(|program| program.contains('/')) {
        *program = code_directory.join(&*program).to_string_lossy().into_owned();
    }
    Program {
        command,
        directory: code_directory.to_owned(),
        log: folder.join("log"),
        secret_variables,
    }
}

pub(super) async fn initialize(
    program: &Program,
    link: &Link,
    (experiment, name): (&ExperimentId, Option<&str>),
    state_dir: &Path,
    spec: &PluginSpec,
    gpus_each: Option<u32>,
) -> Result<InitializeAnswer, Error> {
    let mut about = json!({"id": experiment});
    if let Some(name) = name {
        about["name"] = name.into();
    }
    let params = json!({
        "protocol": {"min": PROTOCOL_VERSION, "max": PROTOCOL_VERSION},
        "manager": {"name": "trial-manager", "version": env!("CARGO_PKG_VERSION")},
        "experiment": about,
        "state_dir": state_dir,
        "settings": spec.settings,
        "resources": resources(gpus_each),
    });
    let shown = program.command_line();
    let answer = link.ask("initialize", &params, INITIALIZE_TIMEOUT).await;
    let answer = answer.map_err(|error| startup_error(program, link, &error))?;
    let initialized: InitializeAnswer = serde_json::from_value(answer).map_err(|error| {
        Error::Unusable(format!("the answer of `{shown}` to initialize cannot be read: {error}"))
    })?;
    if initialized.protocol != PROTOCOL_VERSION {
        let other = initialized.protocol;
        let older = if other > PROTOCOL_VERSION { "trial-manager" } else { "the plugin" };
        return Err(Error::Unusable(format!(
            "`{shown}` uses version {other} of the protocol, and this trial-manager uses version {PROTOCOL_VERSION}; \
             update {older}"
        )));
    }
    Ok(initialized)
}

/// Returns the resources that each job needs.
pub(super) fn resources(gpus_each: Option<u32>) -> Value {
    gpus_each.map_or_else(|| json!({}), |gpus| json!({"gpus": gpus}))
}

pub(super) fn startup_error(program: &Program, link: &Link, error: &AskError) -> Error {
    let shown = program.command_line();
    match error {
        AskError::Refused(refusal) => {
            let message = refusal.message.clone();
            let at_start = format!("{message} (in answer to a start request)");
            match refusal.remedy {
                Remedy::OtherSettings => Error::Refused { program: shown, message },
                Remedy::OtherVersion => Error::Trouble { program: shown, message },
                Remedy::None => Error::Refused { program: shown, message: at_start },
                Remedy::NextAttempt | Remedy::Room(_) | Remedy::Later(_) | Remedy::Cancelled => {
                    Error::Trouble { program: shown, message: at_start }
                }
            }
        }
        AskError::Lost => {
            let why = link.lost_reason();
            let why = if why.is_empty() { "it ended before it answered".to_owned() } else { why };
            Error::Unusable(format!("`{shown}`: {why}{}", program.last_errors()))
        }
    }
}

/// Makes the plugin check its settings and its platform. Warnings go to the log.
async fn check_settings(program: &Program, link: &Link) -> Result<(), Error> {
    let answer = link.ask("check", &json!({}), CHECK_TIMEOUT).await;
    let answer = answer.map_err(|error| startup_error(program, link, &error))?;
    let (mut errors, mut names_setting) = (Vec::new(), false);
    for problem in answer["problems"].as_array().into_iter().flatten() {
        let text = |name: &str| problem[name].as_str().unwrap_or_default();
        let path =
            if text("path").is_empty() { String::new() } else { format!("{}: ", text("path")) };
        let advice =
            if text("advice").is_empty() { String::new() } else { format!("; {}", text("advice")) };
        let error_line =
            format!("{path}{}{advice}", text("message")).replace(char::is_control, " ");
        if text("level") == "warning" {
            warn!("the plugin `{}` reports: {error_line}", program.command_line());
        } else {
            names_setting |= !path.is_empty();
            errors.push(error_line);
        }
    }
    if errors.is_empty() {
        return Ok(());
    }
    let (program, message) = (program.command_line(), errors.join("; "));
    // A problem without a setting concerns the platform.
    Err(if names_setting {
        Error::Refused { program, message }
    } else {
        Error::Trouble { program, message }
    })
}
