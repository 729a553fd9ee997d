//! Reads all pages of the lists that the API returns page by page.

use serde_json::{Map, Value};

use super::Error;
use crate::api::client::Client;
use crate::api::percent;

/// The number of trials in one page.
const TRIALS_PER_PAGE: usize = 1000;

/// Returns all trials that match a query, at most `limit`.
pub(in crate::cli) async fn find_trials(
    client: &Client,
    query: &str,
    limit: Option<usize>,
) -> Result<Vec<Value>, Error> {
    let limit = limit.unwrap_or(usize::MAX);
    let mut rows = Vec::new();
    let mut cursor = String::new();
    while rows.len() < limit {
        let page = TRIALS_PER_PAGE.min(limit - rows.len());
        let path = format!("/api/v1/trials?{query}&limit={page}&cursor={cursor}");
        let answer = client.request_json("GET", &path, None).await?;
        rows.extend(answer.get("trials").and_then(Value::as_array).into_iter().flatten().cloned());
        let Some(next) = answer.get("next").and_then(Value::as_str) else { break };
        next.clone_into(&mut cursor);
    }
    Ok(rows)
}

/// Returns all metrics of a trial's current attempt, or only those with the given `name`.
pub(in crate::cli) async fn all_metrics(
    client: &Client,
    trial: &str,
    name: Option<&str>,
) -> Result<Vec<Value>, Error> {
    let name = name.map(|name| format!("&name={}", percent::encode(name))).unwrap_or_default();
    let mut metrics = Vec::new();
    let mut after = -1;
    loop {
        let path = format!("/api/v1/trials/{trial}/metrics?limit=10000&after={after}{name}");
        let page = client.request_json("GET", &path, None).await?;
        metrics
            .extend(page.get("metrics").and_then(Value::as_array).into_iter().flatten().cloned());
        match page.get("next").and_then(Value::as_i64) {
            Some(next) => after = next,
            None => return Ok(metrics),
        }
    }
}

/// Returns the origins of all trials, by their ids, in one request: the machine that ran each trial, and the version of
/// its code. A list of trials does not contain these fields, but an export does.
pub(in crate::cli) async fn origins(client: &Client) -> Result<Map<String, Value>, Error> {
    let answer = client.request_json("GET", "/api/v1/experiment/origins", None).await;
    match answer {
        Ok(Value::Object(origins)) => Ok(origins),
        Ok(_) => Ok(Map::new()),
        Err(error) => Err(error.into()),
    }
}
