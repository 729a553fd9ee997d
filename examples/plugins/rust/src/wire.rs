//! PURE: requests of the manager, and answers. The manager's side is
//! `manager/src/training_service/plugin/wire.rs`.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

use crate::{Job, ServiceError};

/// A request.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) id: Value,
    pub(crate) method: String,
    pub(crate) params: Value,
}

impl Request {
    /// Parses a line. Returns `None` if it is not a request.
    pub(crate) fn read(line: &[u8]) -> Option<Self> {
        let mut message: Value = serde_json::from_slice(line).ok()?;
        let id = message.get("id")?.clone();
        let method = message.get("method").and_then(Value::as_str).unwrap_or_default().to_owned();
        Some(Self { id, method, params: message["params"].take() })
    }
}

/// An error answer.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) code: i64,
    pub(crate) message: String,
    pub(crate) after: Option<Duration>,
}

impl Refusal {
    pub(crate) fn new(code: i64, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), after: None }
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(-32602, message)
    }
}

impl From<ServiceError> for Refusal {
    fn from(error: ServiceError) -> Self {
        let message = error.to_string();
        let (code, after) = match error {
            ServiceError::Refused(_) => (-32001, None),
            ServiceError::Transient(_) => (-32002, None),
            ServiceError::NoRoom { after, .. } => (-32003, after),
            ServiceError::Unavailable { after, .. } => (-32004, after),
            ServiceError::Settings(_) => (-32008, None),
        };
        Self { code, message, after }
    }
}

impl From<std::io::Error> for Refusal {
    fn from(error: std::io::Error) -> Self {
        Self::new(-32603, error.to_string())
    }
}

/// Formats an answer as a line.
pub(crate) fn answer(id: &Value, result: Result<Value, Refusal>) -> String {
    let mut message = json!({"jsonrpc": "2.0", "id": id});
    match result {
        Ok(result) => message["result"] = result,
        Err(Refusal { code, message: text, after }) => {
            message["error"] = json!({"code": code, "message": text});
            if let Some(after) = after {
                message["error"]["data"] = json!({"after_ms": after.as_millis()});
            }
        }
    }
    format!("{message}\n")
}

/// Formats a notification as a line.
pub(crate) fn notification(method: &str, params: &Value) -> String {
    format!("{}\n", json!({"jsonrpc": "2.0", "method": method, "params": params}))
}

/// Paths of files by their names.
pub(crate) type Files = HashMap<String, PathBuf>;

/// Reads the files of `open` and `submit`.
pub(crate) fn files(params: &Value) -> Files {
    let files = params["files"].as_array().into_iter().flatten();
    files.map(|file| (text(&file["name"]), text(&file["path"]).into())).collect()
}

/// Returns the attempt's id in a request.
pub(crate) fn attempt(params: &Value) -> Result<String, Refusal> {
    let attempt = text(&params["key"]["attempt"]);
    let is_allowed = |letter: char| letter.is_alphanumeric() || "_-".contains(letter);
    if attempt.is_empty() || !attempt.chars().all(is_allowed) {
        return Err(Refusal::bad_request(format!("{attempt:?} is not the id of an attempt")));
    }
    Ok(attempt)
}

/// Reads the job of a `submit`, and replaces references to files in its arguments by paths.
pub(crate) fn job(params: &Value, agent: &Path, shared: &Files) -> Result<Job, Refusal> {
    let (own, folder) = (files(params), PathBuf::from(text(&params["folder"])));
    let mut argv = vec![agent.to_string_lossy().into_owned()];
    for item in params["args"].as_array().into_iter().flatten() {
        let name = text(&item["name"]);
        let path = match (item.as_str(), item["in"].as_str()) {
            (Some(word), _) => Some(PathBuf::from(word)),
            (None, Some("shared")) => shared.get(&name).cloned(),
            (None, Some("job")) => own.get(&name).cloned(),
            (None, _) => Some(folder.join(name)),
        };
        let path = path.ok_or_else(|| Refusal::bad_request(format!("{item}: no such file")))?;
        argv.push(path.to_string_lossy().into_owned());
    }
    let key = &params["key"];
    Ok(Job {
        name: text(&params["name"]),
        argv,
        folder,
        trial: text(&key["trial"]),
        attempt: text(&key["attempt"]),
        experiment: text(&key["experiment"]),
        gpus: params["resources"]["gpus"].as_u64(),
        grace_ms: params["grace_ms"].as_u64().unwrap_or(35_000),
        resources: params["resources"].clone(),
    })
}

pub(crate) fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
