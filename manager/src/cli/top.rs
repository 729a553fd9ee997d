//! `top`: a search as it goes, on a terminal: its numbers, and the trials that run with their curves,
//! memory and GPUs. Drawn anew every second; elsewhere than on a terminal, once.

use std::fmt::Write as _;
use std::io::{IsTerminal as _, Write as _};
use std::time::Duration;

use serde_json::Value;
use trial_protocol::MetricValue;

use super::ask::{Error, Place};
use super::signals::Signals;
use super::{BAD_INPUT, DONE, NOTHING_SUCCEEDED, show, table};
use crate::api::client::Client;

/// Time between two drawings.
const PACE: Duration = Duration::from_secs(1);
/// Trials that are shown.
const ROWS: usize = 20;
/// Characters of a curve, and of a bar.
const CURVE: usize = 24;
const BAR: usize = 10;

/// Shows the search until it ends or a signal comes, and returns the exit code.
pub(super) async fn top(place: &Place) -> u8 {
    let mut signals = match Signals::new() {
        Ok(signals) => signals,
        Err(error) => {
            show(&error);
            return NOTHING_SUCCEEDED;
        }
    };
    let watched = async {
        let client = place.client().await?;
        let terminal = std::io::stdout().is_terminal();
        loop {
            let (text, goes_on) = drawing(&client).await?;
            let mut stdout = std::io::stdout().lock();
            // To the first line, and clear the rest (ECMA-48: CUP, ED).
            let lead = if terminal { "\u{1b}[H\u{1b}[J" } else { "" };
            let drawn = write!(stdout, "{lead}{text}").and_then(|()| stdout.flush());
            drop(stdout);
            if drawn.is_err() || !terminal || !goes_on {
                return Ok::<_, Error>(());
            }
            tokio::select! {
                () = signals.next() => return Ok(()),
                () = tokio::time::sleep(PACE) => {}
            }
        }
    };
    match watched.await {
        Ok(()) => DONE,
        Err(error) => {
            show(&error);
            if error.is_usage() { BAD_INPUT } else { NOTHING_SUCCEEDED }
        }
    }
}

/// One drawing, and whether there will be more to see.
async fn drawing(client: &Client) -> Result<(String, bool), Error> {
    let experiment = client.ask("GET", "/api/v1/experiment", None).await?;
    let mut text = table::experiment(&experiment);
    let path = format!("/api/v1/trials?state=RUNNING,LOST&order=desc&limit={ROWS}");
    let running = client.ask("GET", &path, None).await?;
    let trials = running.get("trials").and_then(Value::as_array).cloned().unwrap_or_default();
    let mut rows = Vec::new();
    for trial in trials {
        let id = trial.get("id").and_then(Value::as_str).unwrap_or_default();
        let base = format!("/api/v1/trials/{id}");
        let curve = format!("{base}/metrics?type=intermediate&points={}", 2 * CURVE);
        let curve = client.ask("GET", &curve, None).await?;
        let samples = client.ask("GET", &format!("{base}/samples?points=4"), None).await?;
        rows.push(row(&trial, &curve, &samples));
    }
    if !rows.is_empty() {
        text.push('\n');
        text.push_str(&table::running(rows));
    }
    let ended = experiment.get("ended_at_ms").is_some_and(|at| !at.is_null());
    // What nobody runs does not change.
    let left = matches!(client, Client::Near(_))
        && experiment.get("trouble").is_some_and(|trouble| !trouble.is_null());
    let goes_on = !ended && !left;
    Ok((text, goes_on))
}

/// A running trial's line.
fn row(trial: &Value, curve: &Value, samples: &Value) -> Vec<String> {
    let name = trial.get("metric").and_then(Value::as_str);
    let metrics = curve.get("metrics").and_then(Value::as_array).into_iter().flatten();
    let counted =
        metrics.filter(|one| name.is_none() || one.get("name").and_then(Value::as_str) == name);
    let values = counted.filter_map(|one| MetricValue::from(one.get("value")?.clone()).number());
    let last = samples.get("samples").and_then(Value::as_array).and_then(|all| all.last());
    let last = last.and_then(|one| one.get("sample")).unwrap_or(&Value::Null);
    vec![
        table::text(trial, "sequence"),
        table::text(trial, "id"),
        table::brief_text(trial, "latest"),
        spark(&values.collect::<Vec<_>>()),
        memory(last),
        gpus(last),
    ]
}

/// A curve in a line of characters.
fn spark(values: &[f64]) -> String {
    const STEPS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let values: Vec<f64> = values.iter().copied().filter(|value| value.is_finite()).collect();
    let values = &values[values.len().saturating_sub(CURVE)..];
    let low = values.iter().copied().fold(f64::INFINITY, f64::min);
    let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let span = high - low;
    let step = |value: &f64| {
        let part = if span > 0.0 { (value - low) / span } else { 0.5 };
        let at = (1..STEPS.len()).take_while(|at| part >= part_of(*at, STEPS.len())).count();
        STEPS[at]
    };
    values.iter().map(step).collect()
}

fn part_of(count: usize, whole: usize) -> f64 {
    let real = |count: usize| u32::try_from(count).map_or(f64::NAN, f64::from);
    real(count) / real(whole)
}

/// A bar of a share, 0 to 1.
fn bar(part: f64) -> String {
    let full = (1..=BAR).take_while(|at| part >= part_of(*at, BAR)).count();
    format!("{}{}", "█".repeat(full), "░".repeat(BAR - full))
}

/// Memory, as a bar where its limit is known.
fn memory(sample: &Value) -> String {
    let read = |path: &str| sample.pointer(path).and_then(Value::as_f64);
    let limit = read("/cgroup/memory_limit_bytes");
    match (read("/cgroup/memory_bytes").filter(|_| limit.is_some()), limit) {
        (Some(used), Some(limit)) => {
            format!("{} {:.1} of {:.1} GB", bar(used / limit), used / 1e9, limit / 1e9)
        }
        _ => read("/process/memory_bytes")
            .map_or_else(String::new, |used| format!("{:.1} GB", used / 1e9)),
    }
}

/// Each GPU's use, and its memory.
fn gpus(sample: &Value) -> String {
    let gpus = sample.get("gpus").and_then(Value::as_array).into_iter().flatten();
    gpus.fold(String::new(), |mut text, gpu| {
        let read = |name: &str| gpu.get(name).and_then(Value::as_f64);
        if let Some(percent) = read("utilization_percent") {
            write!(text, "{} {percent:.0} % ", bar(percent / 100.0)).unwrap_or_default();
        }
        if let Some(bytes) = read("memory_used_bytes") {
            write!(text, "{:.1} GB ", bytes / 1e9).unwrap_or_default();
        }
        text
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_running_trial_is_a_line() {
        let metric = |name: &str, value: f64| json!({"name": name, "value": value});
        let curve = json!({"metrics": [metric("acc", 0.0), metric("loss", 9.0), metric("acc", 1.0), metric("acc", 0.5)]});
        let samples = json!({"samples": [{"sample": {
            "cgroup": {"memory_bytes": 5e9, "memory_limit_bytes": 1e10},
            "gpus": [{"utilization_percent": 90.0, "memory_used_bytes": 2e9}],
        }}]});
        let trial = json!({"sequence": 3, "id": "t", "metric": "acc", "latest": 0.5});
        let expected =
            ["3", "t", "0.5", "▁█▅", "█████░░░░░ 5.0 of 10.0 GB", "█████████░ 90 % 2.0 GB "];
        assert_eq!(row(&trial, &curve, &samples), expected);
        let silent = row(&trial, &Value::Null, &Value::Null);
        assert_eq!(silent[3..], ["", "", ""]);
    }
}
