//! Lists that the API gives a page at a time, whole.

use serde_json::Value;

use super::Error;
use crate::api::client::Client;
use crate::api::percent;

/// Trials that are asked for at a time.
const PAGE: usize = 1000;

/// All trials that a query finds, at most `limit`.
pub(in crate::cli) async fn found(
    client: &Client,
    query: &str,
    limit: Option<usize>,
) -> Result<Vec<Value>, Error> {
    let limit = limit.unwrap_or(usize::MAX);
    let mut rows = Vec::new();
    let mut cursor = String::new();
    while rows.len() < limit {
        let page = PAGE.min(limit - rows.len());
        let path = format!("/api/v1/trials?{query}&limit={page}&cursor={cursor}");
        let answer = client.ask("GET", &path, None).await?;
        rows.extend(answer.get("trials").and_then(Value::as_array).into_iter().flatten().cloned());
        let Some(next) = answer.get("next").and_then(Value::as_str) else { break };
        next.clone_into(&mut cursor);
    }
    Ok(rows)
}

/// All metrics of a trial's current attempt, or those of one `name`.
pub(in crate::cli) async fn all_metrics(
    client: &Client,
    trial: &str,
    name: Option<&str>,
) -> Result<Vec<Value>, Error> {
    let name = name.map(|name| format!("&name={}", percent::encoded(name))).unwrap_or_default();
    let mut metrics = Vec::new();
    let mut after = -1;
    loop {
        let path = format!("/api/v1/trials/{trial}/metrics?limit=10000&after={after}{name}");
        let page = client.ask("GET", &path, None).await?;
        metrics
            .extend(page.get("metrics").and_then(Value::as_array).into_iter().flatten().cloned());
        match page.get("next").and_then(Value::as_i64) {
            Some(next) => after = next,
            None => return Ok(metrics),
        }
    }
}

/// Adds what a list of trials does not have and an export does: the machine that ran the trial, and the version of its code.
pub(in crate::cli) async fn add_origin(client: &Client, trial: &mut Value) -> Result<(), Error> {
    let id = trial.get("id").and_then(Value::as_str).unwrap_or_default().to_owned();
    let detail = detail(client, &id).await?;
    for (name, member) in [
        ("host", "/host"),
        ("code_sha256", "/code/sha256"),
        ("git_commit", "/code/git/commit"),
        ("git_branch", "/code/git/branch"),
        ("git_dirty", "/code/git/dirty"),
        ("git_diff_sha256", "/code/git/diff_sha256"),
    ] {
        if let Some(value) = detail.pointer(member).filter(|value| !value.is_null()) {
            trial[name] = value.clone();
        }
    }
    Ok(())
}

async fn detail(client: &Client, id: &str) -> Result<Value, Error> {
    Ok(client.ask("GET", &format!("/api/v1/trials/{id}"), None).await?)
}
