//! Lists that the API gives a page at a time, whole.

use serde_json::Value;

use super::Error;
use crate::api::client::Client;

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

/// All metrics of a trial's current attempt.
pub(in crate::cli) async fn all_metrics(client: &Client, trial: &str) -> Result<Vec<Value>, Error> {
    let mut metrics = Vec::new();
    let mut after = -1;
    loop {
        let path = format!("/api/v1/trials/{trial}/metrics?limit=10000&after={after}");
        let page = client.ask("GET", &path, None).await?;
        metrics
            .extend(page.get("metrics").and_then(Value::as_array).into_iter().flatten().cloned());
        match page.get("next").and_then(Value::as_i64) {
            Some(next) => after = next,
            None => return Ok(metrics),
        }
    }
}

/// Returns the SHA-256 of the code that a trial was started with. `None`: it is not recorded.
pub(in crate::cli) async fn code_of(
    client: &Client,
    experiment: &Value,
    id: &str,
) -> Result<Option<Value>, Error> {
    let versions = experiment.get("code").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let sha256 = |version: &Value| version.get("sha256").cloned();
    match versions {
        [] => Ok(None),
        [only] => Ok(sha256(only)),
        _ => {
            let detail = client.ask("GET", &format!("/api/v1/trials/{id}"), None).await?;
            Ok(detail.get("code").and_then(sha256))
        }
    }
}
