//! PURE: NNI's JSON forms (nni 3.0, `nni/experiment/data.py` reads them).

use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};
use trial_protocol::{MetricKind, OBJECTIVE};

use crate::job_state::JobState;
use crate::store::MetricRow;
use crate::view::TrialSummary;

/// NNI's names for the kinds of metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub(super) enum MetricKindWord {
    /// A value of one step.
    Periodical,
    /// The result of the trial.
    Final,
}

impl MetricKindWord {
    pub(super) fn is_final(self) -> bool {
        match self {
            Self::Periodical => false,
            Self::Final => true,
        }
    }
}

/// Returns NNI's name for a state. NNI has none for a lost trial.
pub(super) fn nni_status(state: JobState) -> &'static str {
    match state {
        JobState::Lost | JobState::Unknown => "UNKNOWN",
        JobState::Waiting
        | JobState::Running
        | JobState::Succeeded
        | JobState::Failed
        | JobState::UserCanceled
        | JobState::SysCanceled
        | JobState::EarlyStopped => state.as_str(),
    }
}

/// Returns a value as Python's `json.dumps` writes it, with bare words for values that JSON lacks.
pub(super) fn to_python_json(value: &Value) -> String {
    match value {
        Value::String(word) if matches!(word.as_str(), "NaN" | "Infinity" | "-Infinity") => {
            word.clone()
        }
        Value::Array(items) => {
            format!("[{}]", items.iter().map(to_python_json).collect::<Vec<_>>().join(", "))
        }
        Value::Object(members) => {
            let member = |(name, value): (&String, &Value)| {
                format!("{}: {}", Value::from(name.as_str()), to_python_json(value))
            };
            format!("{{{}}}", members.iter().map(member).collect::<Vec<_>>().join(", "))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.to_string(),
    }
}

fn parameter_id(trial: &TrialSummary) -> String {
    trial.parameter_id.unwrap_or(trial.sequence).to_string()
}

/// Returns a result as the trial reported it, an object with all its members. NNI's clients use the member `default`
/// of an object. If it is missing, the member that counts for TrialKeeper is added under that name.
fn with_default(value: &Value, counts: Option<&str>) -> Value {
    let mut value = value.clone();
    if let (Some(members), Some(name)) = (value.as_object_mut(), counts)
        && !members.contains_key(OBJECTIVE)
        && let Some(member) = members.get(name).cloned()
    {
        members.insert(OBJECTIVE.to_owned(), member);
    }
    value
}

fn metric_record(
    trial: &TrialSummary,
    at_ms: i64,
    kind: &str,
    sequence: u64,
    value: &Value,
) -> Value {
    let value = with_default(value, trial.metric.as_deref());
    json!({
        "timestamp": at_ms,
        "trialJobId": trial.id,
        "parameterId": parameter_id(trial),
        "type": kind,
        "sequence": sequence,
        // JSON within JSON: clients decode it twice.
        "data": Value::from(to_python_json(&value)).to_string(),
    })
}

/// Converts a stored metric to a `MetricDataRecord`: the trial's intermediate result number `step`, counted from 0.
/// NNI's pages put each result at this position of a list. They fail at a gap, which arises if a trial numbers its
/// own steps.
pub(super) fn stored_record(trial: &TrialSummary, row: &MetricRow, step: u64) -> Value {
    let (kind, sequence) = match row.metric.kind {
        MetricKind::Intermediate => ("PERIODICAL", step),
        MetricKind::Final => ("FINAL", row.metric.sequence),
    };
    metric_record(trial, row.observed_at_ms, kind, sequence, row.metric.value.as_json())
}

fn final_record(trial: &TrialSummary) -> Option<Value> {
    let at_ms = trial.ended_at_ms.or(trial.started_at_ms).unwrap_or(trial.created_at_ms);
    Some(metric_record(trial, at_ms, "FINAL", 0, trial.reported_final.as_ref()?))
}

/// Returns all final results, then each trial's latest intermediate result. `steps` contains the number of
/// intermediate results of each trial.
pub(super) fn latest_records(trials: &[Arc<TrialSummary>], steps: &[u64]) -> Value {
    let finals = trials.iter().filter_map(|trial| final_record(trial));
    let latest = trials.iter().zip(steps).filter_map(|(trial, steps)| {
        let at_ms = trial.ended_at_ms.or(trial.started_at_ms).unwrap_or(trial.created_at_ms);
        let value = trial.reported_latest.as_ref()?;
        Some(metric_record(trial, at_ms, "PERIODICAL", steps.checked_sub(1)?, value))
    });
    finals.chain(latest).collect()
}

/// Converts a trial to `TrialJobInfo`. `logs` is the experiment's folder if the trials' files are on this machine.
pub(super) fn trial_job(trial: &TrialSummary, logs: Option<&Path>) -> Value {
    let log = |name: &str| match logs {
        Some(folder) => folder.join(&trial.id).join(name).to_string_lossy().into_owned(),
        None => format!("/api/v1/trials/{}/log/{name}", trial.id),
    };
    let record = json!({
        "parameter_id": trial.parameter_id.unwrap_or(trial.sequence),
        "parameter_source": if trial.parameter_id.is_some() { "algorithm" } else { "customized" },
        "parameters": trial.parameters,
        "parameter_index": 0,
    });
    let mut job = json!({
        "trialJobId": trial.id,
        "status": nni_status(trial.state),
        "hyperParameters": [record.to_string()],
        "startTime": trial.started_at_ms.unwrap_or(trial.created_at_ms),
        "logPath": if logs.is_some() { log("") } else { log("stdout") },
        "sequenceId": trial.sequence,
    });
    if let Some(at) = trial.ended_at_ms {
        job["endTime"] = at.into();
    }
    if let Some(message) = &trial.message {
        job["message"] = message.as_str().into();
    }
    if trial.state == JobState::Failed {
        job["stderrPath"] = log("stderr").into();
    }
    if trial.state == JobState::Succeeded
        && let Some(record) = final_record(trial)
    {
        job["finalMetricData"] = json!([record]);
    }
    job
}

/// Converts a succeeded trial to an entry of `export-data`.
pub(super) fn export_entry(trial: &TrialSummary) -> Option<Value> {
    let last = trial.reported_final.as_ref().filter(|_| trial.state == JobState::Succeeded)?;
    let last = with_default(last, trial.metric.as_deref());
    Some(json!({
        "parameter": trial.parameters,
        "value": to_python_json(&last),
        "trialJobId": trial.id,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_written_as_python_reads_them() {
        #[rustfmt::skip]
        let table = [
            (json!(0.5),                                "0.5"),
            (json!("NaN"),                              "NaN"),
            (json!({"default": "Infinity", "s": "NaN?"}), r#"{"default": Infinity, "s": "NaN?"}"#),
            (json!([1, null, "it's"]),                  r#"[1, null, "it's"]"#),
        ];
        for (value, text) in table {
            assert_eq!(to_python_json(&value), text);
        }
    }
}
