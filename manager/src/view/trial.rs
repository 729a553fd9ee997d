//! The view of a trial: in a list, and on its own page.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;
use trial_protocol::{AttemptId, Metric, MetricValue, OBJECTIVE, Started, TrialJobId, Verdict};
use utoipa::ToSchema;

use super::TrialCache;
use crate::code_archive::version::CodeVersion;
use crate::experiment::result::{has_name, pick_result_with_goals, value_of};
use crate::job_state::JobState;
use crate::search::goals::Goals;
use crate::search::repeats::Estimate;
use crate::store::{self, AttemptRow, ReportRow, ServicePart, Store, TrialSummaryRow};
use crate::util::ids;
use crate::util::shell::command_line;

/// The maximum number of metrics that are kept for each trial.
const MAX_METRICS: usize = 200;
/// The maximum number of entries of one attempt in a timeline.
const MAX_TIMELINE_ENTRIES: u32 = 1000;

/// A trial in a list.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct TrialSummary {
    /// The trial's id.
    pub id: String,
    /// The trial's position in the experiment, from 0.
    pub sequence: u64,
    /// The trial's state, with NNI's name, such as `RUNNING`.
    #[serde(serialize_with = "serialize_state")]
    #[schema(value_type = String)]
    pub state: JobState,
    /// The parameters.
    pub parameters: Value,
    /// The tuner's number for the parameters. Absence means that a user chose them.
    pub parameter_id: Option<u64>,
    /// The current attempt.
    pub attempt: String,
    /// The metric that counts.
    pub metric: Option<String>,
    /// The final result as reported. Absence means that there is none yet; it is never guessed from a step.
    #[serde(rename = "final")]
    pub final_value: Option<Value>,
    /// The results of all trials with the same parameters, including this one. Absence means that the experiment does
    /// not repeat its points, or that this trial has no result.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub estimate: Option<Estimate>,
    /// The latest intermediate result. If the view has not been refreshed for some time, only the trial's last
    /// reports are searched for it.
    pub latest: Option<Value>,
    /// The step of the latest result, from 0.
    pub latest_step: Option<u64>,
    /// The time at which the trial was recorded, in milliseconds since the Unix epoch.
    pub created_at_ms: i64,
    /// The time at which the current attempt started to run.
    pub started_at_ms: Option<i64>,
    /// The time at which the trial ended.
    pub ended_at_ms: Option<i64>,
    /// The reason why the trial is being stopped, such as `user`. Absence means that it is not.
    pub stopping: Option<String>,
    /// The reason for the trial's state, for a person.
    pub message: Option<String>,
    /// The exit code, in the form of a shell.
    pub exit_code: Option<i32>,
    /// A sentence about permanently lost reports of the current attempt, which may include results: an older copy
    /// replaced the database. Absence means that none are lost.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lost: Option<String>,
    /// The verdict's cause, such as `oom-kernel`. Absence means that there is no verdict.
    pub cause: Option<String>,
    /// The prospect of a retry, such as `transient`.
    pub class: Option<String>,
    /// The number of the trial's latest event in the store.
    pub change: i64,
    /// The name under which the intermediate results are stored, if there are any: NNI's SDK has one name for an
    /// object with many members.
    #[serde(skip)]
    pub steps_name: Option<String>,
    /// The final result as the trial reported it, for NNI's API. If a member of an object counts, this is the whole
    /// object.
    #[serde(skip)]
    pub reported_final: Option<Value>,
    /// The latest intermediate result as the trial reported it.
    #[serde(skip)]
    pub reported_latest: Option<Value>,
    /// The value of each metric, also of those that do not count, for filters and sorting: the final one, or else the
    /// latest. The members of an object have their own names.
    #[serde(skip)]
    pub metrics: BTreeMap<String, Value>,
    /// The trial's own number in the store.
    #[serde(skip)]
    pub(super) key: i64,
    /// The highest stored fact of the current attempt.
    #[serde(skip)]
    pub facts_through: Option<u64>,
    /// The number of the trial's latest change in this process, for streams.
    #[serde(skip)]
    pub revision: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn serialize_state<S: serde::Serializer>(
    state: &JobState,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(state.as_str())
}

/// Returns the JSON word of a value without members.
pub(super) fn json_word(value: impl Serialize) -> Option<String> {
    serde_json::to_value(value).ok()?.as_str().map(str::to_owned)
}

impl TrialSummary {
    /// Returns the final result as a number.
    pub fn number(&self) -> Option<f64> {
        MetricValue::from(self.final_value.clone()?).number()
    }

    /// Returns the trial's key in the store.
    pub fn key(&self) -> i64 {
        self.key
    }

    /// Returns the run time in milliseconds. `None` if the trial has not started.
    pub fn duration_ms(&self, now_ms: i64) -> Option<i64> {
        Some(self.ended_at_ms.unwrap_or(now_ms).saturating_sub(self.started_at_ms?).max(0))
    }

    pub(super) fn new(
        summary_row: TrialSummaryRow,
        (objective, goals): (Option<&str>, &Goals),
        change: i64,
        revision: u64,
    ) -> Self {
        let TrialSummaryRow { key, row, facts_through, finals, latest, verdict, lost } =
            summary_row;
        let own = finals.iter().chain(&latest).map(|metric| (&row.attempt, metric));
        let result = pick_result_with_goals(own, &row.attempt, objective, goals);
        let name = result.name.or_else(|| objective.map(str::to_owned));
        let metrics = metrics_of(&finals, &latest);
        let latest = latest_of(&latest, name.as_deref());
        Self {
            id: row.id.to_string(),
            sequence: row.sequence,
            state: row.state,
            parameters: row.parameters,
            parameter_id: row.parameter_id,
            attempt: row.attempt.to_string(),
            steps_name: latest.map(|metric| metric.name.clone()),
            metrics,
            reported_final: result.reported.map(|value| value.as_json().clone()),
            reported_latest: latest.map(|metric| metric.value.as_json().clone()),
            final_value: result.final_value.map(|value| value.as_json().clone()),
            estimate: None,
            latest: latest.map(|metric| value_of(metric, name.as_deref()).as_json().clone()),
            latest_step: latest.map(|metric| metric.sequence),
            metric: name.or_else(|| latest.map(|metric| metric.name.clone())),
            created_at_ms: row.created_at_ms,
            started_at_ms: row.started_at_ms,
            ended_at_ms: row.ended_at_ms,
            stopping: row.intent.filter(|_| !row.state.is_final()).and_then(json_word),
            message: row.message,
            exit_code: row.exit_code,
            lost,
            cause: verdict.as_ref().and_then(|verdict| json_word(verdict.cause)),
            class: verdict.as_ref().and_then(|verdict| json_word(verdict.class)),
            change,
            key,
            facts_through,
            revision,
        }
    }
}

impl TrialSummary {
    /// Keeps the latest result and the metrics of `before` that are too old to be found again.
    pub(super) fn keep_latest(&mut self, before: &Self) {
        if self.attempt == before.attempt {
            for (name, value) in &before.metrics {
                if self.metrics.len() < MAX_METRICS && !self.metrics.contains_key(name) {
                    self.metrics.insert(name.clone(), value.clone());
                }
            }
        }
        if self.latest.is_none() && self.attempt == before.attempt && self.metric == before.metric {
            self.latest.clone_from(&before.latest);
            self.reported_latest.clone_from(&before.reported_latest);
            self.latest_step = before.latest_step;
            self.steps_name.clone_from(&before.steps_name);
        }
    }
}

/// Returns the value of each metric: the final one, or else the latest. An object's members are metrics of their own.
fn metrics_of(finals: &[Metric], latest: &[Metric]) -> BTreeMap<String, Value> {
    let mut values = BTreeMap::new();
    let mut add = |name: &str, value: &Value| {
        if name != OBJECTIVE && values.len() < MAX_METRICS && !values.contains_key(name) {
            values.insert(name.to_owned(), value.clone());
        }
    };
    for metric in finals.iter().chain(latest) {
        match metric.value.as_json().as_object() {
            Some(members) => members.iter().for_each(|(name, value)| add(name, value)),
            None => add(&metric.name, metric.value.as_json()),
        }
    }
    values
}

/// Returns the latest step of the metric that counts. If that metric is unknown, returns the step of the SDK's
/// metric, or of the only one.
fn latest_of<'a>(latest: &'a [Metric], name: Option<&str>) -> Option<&'a Metric> {
    let named = |name: &str| latest.iter().find(|metric| metric.name == name);
    match (name, latest) {
        (Some(name), _) => {
            named(name).or_else(|| latest.iter().find(|metric| has_name(metric, name)))
        }
        (None, [only]) => Some(only),
        (None, _) => named(OBJECTIVE),
    }
}

/// A trial in detail.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct TrialDetail {
    /// The fields of a trial in a list.
    #[serde(flatten)]
    pub summary: TrialSummary,
    /// The command that the current attempt's agent started.
    pub command: Option<Vec<String>>,
    /// The machine or pod of the current attempt.
    pub host: Option<String>,
    /// The version of the code directory just after the start of the current attempt. Absence means that it is not
    /// recorded: trials elsewhere run the archive, or an earlier manager started the attempt.
    pub code: Option<CodeVersion>,
    /// The container image of the current attempt, with its digest, if the training service reports it.
    pub image: Option<String>,
    /// The training service of the current attempt, if the experiment has several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub training_service: Option<ServicePart>,
    /// The version of the agent.
    pub agent_version: Option<String>,
    /// The attempts that have reported, the oldest first.
    pub attempts: Vec<AttemptView>,
    /// The events, the oldest first.
    pub timeline: Vec<TimelineEntry>,
    /// The cause of the current attempt's end, with the evidence. Absence means that the attempt has not ended, or
    /// that its agent reported no verdict.
    #[schema(value_type = Option<Object>)]
    pub verdict: Option<Verdict>,
    /// A sentence about each constraint that the final result violates, with the value and the limit.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub violations: Vec<String>,
}

/// An incarnation of a trial.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct AttemptView {
    /// The attempt's name.
    pub attempt: String,
    /// The time of the last report, by the manager's clock, in milliseconds since the Unix epoch.
    pub last_heard_ms: i64,
    /// The highest `seq` of the facts that have arrived. Absence means that none has arrived.
    pub facts_through: Option<u64>,
    /// The highest `seq` of the pieces of log and samples that have arrived.
    pub bulk_through: Option<u64>,
    /// `true` if the attempt's verdict has arrived.
    pub ended: bool,
}

/// One line of a trial's timeline.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct TimelineEntry {
    /// The time, in milliseconds since the Unix epoch: by the manager's clock for the manager's entries, by the
    /// agent's clock for the agent's.
    pub at_ms: i64,
    /// The source of the entry: `manager` or `agent`.
    pub by: &'static str,
    /// The event: a state such as `RUNNING`, or an agent's report such as `started`, `note`, `shed`, `ended`.
    pub what: String,
    /// The attempt to which the entry belongs.
    pub attempt: String,
    /// The reason, for a person.
    pub message: Option<String>,
}

/// Returns a trial in detail, without its curves and its output. `None` if there is no such trial.
pub async fn detail(
    trial_cache: &TrialCache,
    store: &Store,
    id: &TrialJobId,
) -> Result<Option<TrialDetail>, store::Error> {
    let snapshot = trial_cache.refresh().await?;
    let Some(summary) = snapshot.find(id.as_str()) else { return Ok(None) };
    let attempts = store.queries().attempts(id).await?;
    let mut events = store.trials().events(id).await?;
    // An event that changes nothing in the trial only means that a report arrived after its end.
    let state_of = |event: &store::TrialEventRow| {
        (event.state, event.attempt.clone(), event.intent, event.message.clone())
    };
    events.dedup_by(|later, earlier| {
        later.exit_code.is_none() && state_of(later) == state_of(earlier)
    });
    let mut timeline: Vec<_> = events.into_iter().map(manager_entry).collect();
    let (mut command, mut host, mut agent_version, mut verdict) = (None, None, None, None);
    for attempt in &attempts {
        for report in store.queries().other_reports(attempt, MAX_TIMELINE_ENTRIES).await? {
            if attempt.attempt.as_str() == summary.attempt {
                if let Ok(started) = serde_json::from_value::<Started>(report.body.clone())
                    && report.kind == "started"
                {
                    command = Some(started.command);
                    host = started.host;
                    agent_version = Some(started.agent_version);
                } else if report.kind == "ended" {
                    verdict = serde_json::from_value(report.body.clone()).ok();
                }
            }
            timeline.push(agent_entry(&report));
        }
    }
    timeline.sort_by_key(|entry| entry.at_ms);
    let attempts = attempts.iter().map(attempt_view).collect();
    let summary = summary.clone();
    let (mut code, mut image, mut training_service) = (None, None, None);
    if let Ok(attempt) = AttemptId::new(&summary.attempt) {
        let submitted = ids::submitted_attempt(&attempt);
        code = store.attempt_records().code(id, &submitted).await?;
        image = store.attempt_records().image(id, &submitted).await?;
        training_service = store.attempt_records().part(id, &submitted).await?;
    }
    let last = summary.final_value.clone().map(MetricValue::from);
    let violations = last.map(|last| trial_cache.goals().violations(&last)).unwrap_or_default();
    Ok(Some(TrialDetail {
        summary,
        command,
        host,
        code,
        image,
        training_service,
        agent_version,
        attempts,
        timeline,
        verdict,
        violations,
    }))
}

fn attempt_view(row: &AttemptRow) -> AttemptView {
    AttemptView {
        attempt: row.attempt.to_string(),
        last_heard_ms: row.last_heard_ms,
        facts_through: row.facts_through,
        bulk_through: row.bulk_through,
        ended: row.ended,
    }
}

fn manager_entry(event: store::TrialEventRow) -> TimelineEntry {
    let stop = event.intent.and_then(json_word).map(|reason| format!("stop requested: {reason}"));
    let code = event.exit_code.map(|code| format!("exit code {code}"));
    let parts: Vec<_> = [stop, code, event.message].into_iter().flatten().collect();
    TimelineEntry {
        at_ms: event.at_ms,
        by: "manager",
        what: event.state.as_str().to_owned(),
        attempt: event.attempt.to_string(),
        message: (!parts.is_empty()).then(|| parts.join("; ")),
    }
}

/// Returns a command in the form for a shell. `None` if the value is not a command.
fn shell_command(command: &Value) -> Option<String> {
    let words = command.as_array()?.iter().map(|word| word.as_str().map(str::to_owned));
    Some(command_line(&words.collect::<Option<Vec<_>>>()?))
}

fn agent_entry(report: &ReportRow) -> TimelineEntry {
    let text = |name: &str| report.body.get(name).and_then(Value::as_str).map(str::to_owned);
    let message = match report.kind.as_str() {
        "started" => report.body.get("command").and_then(shell_command),
        "shed" => Some(format!(
            "dropped because the spool was full: {} bytes of log, {} samples",
            report.body.get("log_bytes").unwrap_or(&Value::from(0)),
            report.body.get("samples").unwrap_or(&Value::from(0)),
        )),
        "note" => match (text("code"), text("message")) {
            (Some(code), Some(message)) => Some(format!("{code}: {message}")),
            (code, message) => message.or(code),
        },
        _ => text("message"),
    };
    TimelineEntry {
        at_ms: report.observed_at_ms,
        by: if report.is_own() { "manager" } else { "agent" },
        what: report.kind.clone(),
        attempt: report.attempt.to_string(),
        message,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::json;

    use super::*;

    /// Returns a waiting trial without reports.
    pub(crate) fn summary(key: i64, sequence: u64) -> TrialSummary {
        TrialSummary {
            id: format!("t{sequence}"),
            sequence,
            state: JobState::Waiting,
            parameters: json!({}),
            parameter_id: None,
            attempt: format!("t{sequence}-1"),
            metric: None,
            final_value: None,
            estimate: None,
            latest: None,
            latest_step: None,
            created_at_ms: 0,
            started_at_ms: None,
            ended_at_ms: None,
            stopping: None,
            message: None,
            exit_code: None,
            lost: None,
            cause: None,
            class: None,
            change: 0,
            steps_name: None,
            metrics: BTreeMap::new(),
            reported_final: None,
            reported_latest: None,
            key,
            facts_through: None,
            revision: 0,
        }
    }
}
