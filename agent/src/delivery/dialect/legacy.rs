//! The protocol of NNI's own keeper (NNI 3.0, `nni/tools/trial_tool/trial_keeper.py`; on the manager's side,
//! `training_service/common/clusterJobRestServer.ts`): a version call, then one POST per line, one after the other.
//!
//! Only one line is in flight at a time. The server's handlers write lines independently of one another, so only the
//! answer to a line ensures that the next one does not overtake it. All lines use one connection.
//!
//! The spool stores the bodies of the requests. The functions that create them do no I/O; [`post`] sends them.

use std::time::Duration;

use serde::Serialize;
use serde_json::Value;

use super::Error;
use crate::spool::{Record, Sender};

mod version;
mod wire;

pub use version::{VersionComparison, compare_versions};
pub use wire::Connection;

/// The path below the manager's base URL.
const ROOT_PATH: &str = "/api/v1/nni-pai";
/// The first characters of the body of a version call. The body of a line never starts with them, see [`Tag`].
const VERSION_PREFIX: &str = "{\"tag\": \"VC";
/// The first characters of the body of a metric, see [`metric_body`].
const METRIC_PREFIX: &str =
    "{\"tag\": \"trial\", \"stdOutputType\": \"Stdout\", \"msg\": \"NNISDK_MEb'";
/// The maximum number of bytes of a line in one request. Even if all of them are escaped, the body stays below the
/// server's limit of 100 kB.
const MAX_LINE_BYTES: usize = 16 << 10;

/// The source of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tag {
    /// The trial.
    Trial,
    /// The keeper. The server reads no metrics in such a line.
    Keeper,
}

/// Returns the body of the version call.
pub fn version_call_body(comparison: &VersionComparison) -> String {
    match comparison {
        VersionComparison::Match => format!("{VERSION_PREFIX}Success\"}}"),
        VersionComparison::Mismatch { .. } => {
            format!("{VERSION_PREFIX}Fail\", \"msg\": {}}}", to_json(&comparison.to_string()))
        }
    }
}

/// Returns the bodies for a line: one, or several if the line is long.
pub fn line_bodies(tag: Tag, text: &str) -> Vec<String> {
    let tag = match tag {
        Tag::Trial => "trial",
        Tag::Keeper => "trial_keeper",
    };
    let mut bodies = Vec::with_capacity(1);
    let mut rest = text;
    loop {
        let (head, tail) = rest.split_at(rest.floor_char_boundary(MAX_LINE_BYTES));
        let msg = to_json(head);
        bodies
            .push(format!("{{\"tag\": \"{tag}\", \"stdOutputType\": \"Stdout\", \"msg\": {msg}}}"));
        if tail.is_empty() {
            return bodies;
        }
        rest = tail;
    }
}

/// Returns the body for a metric: the SDK's line around the JSON object that the trial printed.
///
/// The server reads up to the first apostrophe. An apostrophe inside a string of the object would end the experiment.
/// It is therefore written as `\u0027`, which has the same meaning. Outside strings, JSON has no apostrophes.
pub fn metric_body(object: &str) -> String {
    let object = object.replace('\'', "\\u0027");
    let msg = to_json(&format!("NNISDK_MEb'{object}'"));
    format!("{{\"tag\": \"trial\", \"stdOutputType\": \"Stdout\", \"msg\": {msg}}}")
}

/// Returns the SDK's JSON object for a metric that the trial did not print as such an object.
pub fn metric_object(
    parameter_id: &Value,
    sender: &Sender,
    metric: &trial_protocol::Metric,
) -> String {
    let kind = match metric.kind {
        trial_protocol::MetricKind::Intermediate => "PERIODICAL",
        trial_protocol::MetricKind::Final => "FINAL",
    };
    let trial = to_json(sender.trial.as_str());
    let sequence = metric.sequence;
    let value = to_json(&to_python_json(metric.value.as_json()));
    format!(
        "{{\"parameter_id\": {parameter_id}, \"trial_job_id\": {trial}, \"type\": \"{kind}\", \
         \"sequence\": {sequence}, \"value\": {value}}}"
    )
}

/// Returns a value as Python's `json` writes it. Numbers that are not finite are bare words.
fn to_python_json(value: &Value) -> String {
    match value {
        Value::String(word) if ["NaN", "Infinity", "-Infinity"].contains(&word.as_str()) => {
            word.clone()
        }
        Value::Object(members) => {
            let members = members
                .iter()
                .map(|(name, value)| format!("{}: {}", to_json(name), to_python_json(value)));
            format!("{{{}}}", members.collect::<Vec<_>>().join(", "))
        }
        Value::Array(items) => {
            format!("[{}]", items.iter().map(to_python_json).collect::<Vec<_>>().join(", "))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.to_string(),
    }
}

/// Returns a metric's body without the values of an object other than its default, for a server that rejects the
/// original as too large. Returns `None` if there is no default, or no other value.
fn reduce_metric_body(body: &str) -> Option<String> {
    let body: Value = serde_json::from_str(body).ok()?;
    let marked = body["msg"].as_str()?.strip_prefix("NNISDK_MEb'")?.strip_suffix('\'')?;
    let mut object: serde_json::Map<String, Value> = serde_json::from_str(marked).ok()?;
    let value = trial_protocol::MetricValue::parse(object.get("value")?.as_str()?).ok()?;
    let members = value.as_json().as_object().filter(|members| members.len() > 1)?;
    let default = to_python_json(members.get("default")?);
    object.insert("value".to_owned(), format!("{{\"default\": {default}}}").into());
    Some(metric_body(&Value::Object(object).to_string()))
}

fn to_json(text: &(impl Serialize + ?Sized)) -> String {
    serde_json::to_string(text).expect("a text is JSON")
}

/// The result of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PostOutcome {
    Accepted,
    /// The manager permanently refuses the request, which must not block the next ones.
    Rejected,
    /// The manager may accept the request later.
    RetryLater,
}

/// PURE: returns the result of a request that was answered with `status`. A metric is tried again; a log line that the
/// server itself rejects is not.
fn post_outcome(status: u16, is_metric: bool) -> PostOutcome {
    match status {
        200..=299 => PostOutcome::Accepted,
        413 => PostOutcome::Rejected,
        400 | 500 if !is_metric => PostOutcome::Rejected,
        _ => PostOutcome::RetryLater,
    }
}

/// Posts `records` one after the other, and calls `on_accepted` for each that needs no further attempt. Returns the seq
/// of the last one. An error concerns the first record, so that no accepted record is sent again.
pub async fn post(
    connection: &mut Option<Connection>,
    base: &str,
    sender: &Sender,
    records: &[Record],
    on_accepted: impl Fn(u64),
) -> Result<Option<u64>, Error> {
    let mut last = None;
    for record in records {
        match post_one(connection, base, sender, &record.json).await {
            Ok(()) => {
                on_accepted(record.seq);
                last = Some(record.seq);
            }
            Err(error) if last.is_none() => return Err(error),
            Err(_) => break,
        }
    }
    Ok(last)
}

async fn post_one(
    connection: &mut Option<Connection>,
    base: &str,
    sender: &Sender,
    body: &str,
) -> Result<(), Error> {
    let call = if body.starts_with(VERSION_PREFIX) { "version" } else { "stdout" };
    let is_metric = body.starts_with(METRIC_PREFIX);
    let path = || format!("{ROOT_PATH}/{call}/{}/{}", sender.experiment, sender.trial);
    let url = || format!("{base}{}", path());
    let answer = wire::exchange(connection, base, &path, body).await?;
    match post_outcome(answer.status, is_metric || call == "version") {
        PostOutcome::Accepted => return Ok(()),
        PostOutcome::Rejected => {}
        PostOutcome::RetryLater => return Err(retry_error(url(), &answer)),
    }
    if is_metric && let Some(less) = reduce_metric_body(body) {
        let answer = wire::exchange(connection, base, &path, &less).await?;
        match post_outcome(answer.status, is_metric) {
            PostOutcome::Accepted => {
                tracing::warn!("a metric of {} bytes is sent without its other values", body.len());
                return Ok(());
            }
            PostOutcome::Rejected => {}
            PostOutcome::RetryLater => return Err(retry_error(url(), &answer)),
        }
    }
    let what = if is_metric { "metric" } else { "line" };
    tracing::warn!(
        "the manager permanently refuses a {what} of {} bytes ({})",
        body.len(),
        answer.status
    );
    Ok(())
}

fn retry_error(url: String, answer: &wire::Answer) -> Error {
    let detail = String::new();
    match answer.status {
        404 => Error::Unknown { url, detail: "does it run another experiment?".to_owned() },
        429 | 503 => {
            let after = answer.retry_after_seconds.map(Duration::from_secs);
            Error::Busy { url, after, detail }
        }
        status => Error::UnexplainedStatus { url, status },
    }
}

#[cfg(test)]
mod tests;
