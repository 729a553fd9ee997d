//! The view of an experiment: its trials with their results, kept in memory. The store's own record of changes keeps
//! the view up to date, so no page reads everything again. The view makes no decisions and writes nothing.

pub mod attempts;
mod chosen_curves;
pub mod code;
pub mod curve;
mod duration;
pub mod export;
pub mod filter;
pub mod importance;
pub mod origin;
pub mod pareto;
pub mod service_part;
pub mod space;
pub mod state_names;
mod summary;
pub mod table;
mod trial;
mod trial_cache;

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;
use trial_protocol::{Direction, MetricValue, OBJECTIVE};
use utoipa::ToSchema;

pub use chosen_curves::chosen_curves;
pub use duration::format_duration;
pub use summary::{BestTrial, ExperimentSummary};
#[cfg(test)]
pub(crate) use trial::tests::summary;
pub use trial::{AttemptView, TimelineEntry, TrialDetail, TrialSummary, detail};
pub use trial_cache::{Snapshot, TrialCache};

use crate::config::ExperimentSpec;
use crate::job_state::JobState;
use crate::search::class_args::parse_direction;
use crate::search::goals::is_better;
use crate::search::repeats::competitors;
use crate::store::{CodeRow, ExperimentRow};
use crate::util::clock::to_ms;
use curve::Improvement;

/// An experiment, in numbers.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct ExperimentView {
    /// The experiment's id.
    pub id: String,
    /// The experiment's name. Absence means that it has none.
    pub name: Option<String>,
    /// The experiment's state, with NNI's name: `RUNNING`, `NO_MORE_TRIAL`, `TUNER_NO_MORE_TRIAL`, `DONE`,
    /// `STOPPING`, `STOPPED`, `ERROR`. `INTERRUPTED` means that it has not ended and that no manager runs it.
    pub state: String,
    /// The present trouble, as a sentence: the database cannot be written, or an external tuner or assessor does not
    /// answer, was restarted, or is lost. Absence means that no trouble is known.
    pub trouble: Option<String>,
    /// The time at which it was created, in milliseconds since the Unix epoch.
    pub created_at_ms: i64,
    /// The time at which it ended. Absence means that it has not ended.
    pub ended_at_ms: Option<i64>,
    /// The run time in milliseconds, without interruptions.
    pub elapsed_ms: u64,
    /// `maximize` or `minimize`.
    pub optimize_mode: &'static str,
    /// `true` if the experiment file sets no direction, so `optimize_mode` is the tuner's default.
    pub optimize_mode_assumed: bool,
    /// The metric that is optimised. Absence means the metric of NNI's SDK.
    pub objective: Option<String>,
    /// The newest hundred results that were better than all before them.
    pub improvements: Vec<Improvement>,
    /// The metric that counts because trials print it and the file names none. Absence means that the file names one,
    /// that trials report through NNI's SDK, or that no trial has reported yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chosen_objective: Option<String>,
    /// A warning that the metric's name suggests the other direction, such as a maximised `val_loss`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub direction_warning: Option<String>,
    /// The user's own classes that do not receive the direction: a sentence, and a line for each class. Absence means
    /// that there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub untold_direction: Option<String>,
    /// The number of trials of each point. A point is judged by the mean of their results.
    pub trial_repeats: u64,
    /// The maximum number of concurrent trials.
    pub trial_concurrency: usize,
    /// The total number of trials. Absence means no limit.
    pub max_trial_number: Option<u64>,
    /// The total run time, in milliseconds. Absence means no limit.
    pub max_experiment_duration_ms: Option<u64>,
    /// The number of trials so far.
    pub trials: usize,
    /// The number of trials in each state.
    pub counts: BTreeMap<&'static str, usize>,
    /// The number of failed trials by the cause of their end. `unknown` means that the agent reported no verdict.
    pub causes: BTreeMap<String, usize>,
    /// The number of trials that ended in the last hour of the run. Absence means that none has ended, or that the
    /// experiment is interrupted.
    pub ended_per_hour: Option<f64>,
    /// The best trial. Absence means that none has succeeded with a numeric result, or that there are several
    /// objectives.
    pub best: Option<TrialSummary>,
    /// The objectives, if there are several. `objective` is then the first one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub objectives: Vec<pareto::ObjectiveView>,
    /// The best trials, if there are several objectives: those that no other trial dominates, from the best to the
    /// worst of the first objective.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pareto: Vec<TrialSummary>,
    /// The first twenty versions of the code with which local trials were started, in the order of their first use.
    /// Empty if trials do not run in the code directory itself.
    pub code: Vec<code::CodeUse>,
    /// A sentence about trials that ran other code than the first ones. Absence means that there are none.
    pub code_difference: Option<String>,
    /// The file with the list of packages of the user's Python, in pip's format, at the latest start of the search.
    /// Absence means that the packages are not recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub packages_file: Option<String>,
    /// The training services, if there are several, in the order of the experiment file.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub training_services: Vec<service_part::ServicePartView>,
    /// The number of the newest change of any trial, from which an event stream continues.
    pub change: i64,
}

/// Returns the present view of the experiment `row` with its trials.
pub fn experiment_view(
    row: &ExperimentRow,
    spec: &ExperimentSpec,
    snapshot: &Snapshot,
    versions: &[CodeRow],
    elapsed_ms: u64,
    now_ms: i64,
) -> ExperimentView {
    let mut counts = BTreeMap::new();
    let mut causes = BTreeMap::new();
    for trial in &snapshot.trials {
        *counts.entry(trial.state.as_str()).or_default() += 1;
        if trial.state == JobState::Failed {
            *causes.entry(table::cause_of(trial).to_owned()).or_default() += 1;
        }
    }
    let chosen_objective = chosen_objective(spec, snapshot);
    let metric = spec.objective.as_deref().or(chosen_objective.as_deref());
    ExperimentView {
        direction_warning: metric.and_then(|metric| spec.direction_warning(metric)),
        untold_direction: spec.missing_direction_warning(),
        chosen_objective,
        improvements: newest_improvements(snapshot, spec.direction),
        id: row.id.to_string(),
        name: spec.name.clone(),
        state: row.state.clone(),
        trouble: row.trouble.clone(),
        created_at_ms: row.created_at_ms,
        ended_at_ms: row.ended_at_ms,
        elapsed_ms,
        optimize_mode: spec.direction.as_str(),
        optimize_mode_assumed: spec.direction_assumed,
        objective: spec.objective.clone(),
        trial_repeats: spec.trial_repeats,
        trial_concurrency: spec.trial_concurrency,
        max_trial_number: spec.max_trial_number,
        max_experiment_duration_ms: spec.max_experiment_duration.map(to_ms),
        trials: snapshot.trials.len(),
        counts,
        causes,
        ended_per_hour: throughput(snapshot, row.ended_at_ms.unwrap_or(now_ms)),
        best: best_trial(snapshot, spec.direction)
            .filter(|_| !spec.goals.has_several_objectives())
            .cloned(),
        objectives: pareto::objectives(&spec.goals),
        pareto: pareto::front(snapshot, &spec.goals),
        code: code::code_uses(versions),
        code_difference: code::difference(versions),
        packages_file: None,
        training_services: Vec::new(),
        change: snapshot.through,
    }
}

/// Returns the newest results that were better than all before them.
fn newest_improvements(snapshot: &Snapshot, direction: Direction) -> Vec<Improvement> {
    const MAX_IMPROVEMENTS: usize = 100;
    let mut steps = improvements(snapshot, direction);
    steps.drain(..steps.len().saturating_sub(MAX_IMPROVEMENTS));
    steps
}

/// Returns every result that was better than all before it, or every such mean if points are repeated.
pub fn improvements(snapshot: &Snapshot, direction: Direction) -> Vec<Improvement> {
    let results =
        competing_trials(snapshot).into_iter().map(|(trial, number)| (trial.sequence, number));
    curve::improvements(results, direction)
}

/// Returns the metric that counts although the experiment file names none: the metric of the first trial that
/// reported one.
fn chosen_objective(spec: &ExperimentSpec, snapshot: &Snapshot) -> Option<String> {
    let mut metrics = snapshot.trials.iter().filter_map(|trial| trial.metric.as_deref());
    let chosen = metrics.find(|name| *name != OBJECTIVE).filter(|_| spec.objective.is_none());
    chosen.map(str::to_owned)
}

/// The state of an interrupted experiment. NNI has no name for it.
pub const INTERRUPTED_STATE: &str = "INTERRUPTED";

/// Returns whether an experiment is interrupted: it has not ended, and no manager runs it. `open` is `true` if a
/// process has its database open for writing, and `None` if this is unknown.
pub fn is_interrupted(ended_at_ms: Option<i64>, open: Option<bool>) -> bool {
    ended_at_ms.is_none() && open == Some(false)
}

/// Returns the trouble of an interrupted experiment, for the user.
pub fn missing_manager_notice(id: &str) -> String {
    format!("its manager was killed; run `trial-manager resume {id}`")
}

impl ExperimentView {
    /// Returns the view of the experiment while it is interrupted. Its store still has the state that its manager
    /// recorded last.
    #[must_use]
    pub fn interrupted(self) -> Self {
        let trouble = Some(missing_manager_notice(&self.id));
        Self { state: INTERRUPTED_STATE.to_owned(), trouble, ended_per_hour: None, ..self }
    }
}

/// Returns the succeeded trials that compete for the best, each with the number that counts: its result, or the mean
/// of its point if points are repeated.
pub fn competing_trials(snapshot: &Snapshot) -> Vec<(&TrialSummary, f64)> {
    let succeeded = snapshot.trials.iter().filter(|trial| trial.state == JobState::Succeeded);
    let results = succeeded.filter_map(|trial| {
        let number = trial.number().filter(|number| number.is_finite())?;
        Some((trial.as_ref(), &trial.parameters, number))
    });
    competitors(results, snapshot.repeats)
}

/// Returns the best succeeded trial, or the first of several equal ones. If points are repeated, returns the trial
/// that completed the point with the best mean.
pub fn best_trial(snapshot: &Snapshot, direction: Direction) -> Option<&TrialSummary> {
    let mut best: Option<(&TrialSummary, f64)> = None;
    for (trial, number) in competing_trials(snapshot) {
        if is_better(direction, Some(number), best.map(|(_, best)| best)) {
            best = Some((trial, number));
        }
    }
    best.map(|(trial, _)| trial)
}

/// Returns the running trial with the best latest intermediate result, or the first of several equal ones.
pub fn leading_trial<'a>(snapshot: &'a Snapshot, direction: &str) -> Option<&'a TrialSummary> {
    let direction = parse_direction(direction).unwrap_or(Direction::Maximize);
    let latest = |trial: &TrialSummary| MetricValue::from(trial.latest.clone()?).number();
    let mut leading: Option<&TrialSummary> = None;
    for trial in snapshot.trials.iter().filter(|trial| trial.state == JobState::Running) {
        if is_better(direction, latest(trial), leading.and_then(latest)) {
            leading = Some(trial);
        }
    }
    leading
}

/// Returns the number of trials that ended per hour, in the hour before `until_ms` or in a shorter run.
fn throughput(snapshot: &Snapshot, until_ms: i64) -> Option<f64> {
    const HOUR_MS: i64 = 3_600_000;
    let begun = snapshot.trials.iter().map(|trial| trial.created_at_ms).min()?;
    let from = begun.max(until_ms.saturating_sub(HOUR_MS));
    let ended = snapshot.trials.iter().filter_map(|trial| trial.ended_at_ms);
    let ended = u32::try_from(ended.filter(|at| *at >= from && *at <= until_ms).count()).ok()?;
    let span = u32::try_from(until_ms - from).ok().filter(|span| *span > 0)?;
    (ended > 0).then(|| f64::from(ended) * 3_600_000.0 / f64::from(span))
}

/// The cause of a trial without a verdict.
pub const UNKNOWN_CAUSE: &str = "unknown";

/// Returns a configuration without secrets: the values of members with a secret's name are hidden.
pub fn redact_secrets(value: &Value) -> Value {
    match value {
        Value::Object(members) => Value::Object(
            members
                .iter()
                .map(|(name, value)| {
                    // An environment variable of a template: `{name: WANDB_API_KEY, value: ...}`.
                    let variable = members.get("name").and_then(Value::as_str);
                    let secret =
                        is_secret(name) || name == "value" && variable.is_some_and(is_secret);
                    let shown = if secret && !(value.is_object() || value.is_array()) {
                        Value::from("(hidden)")
                    } else {
                        redact_secrets(value)
                    };
                    (name.clone(), shown)
                })
                .collect(),
        ),
        Value::Array(items) => Value::Array(items.iter().map(redact_secrets).collect()),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.clone(),
    }
}

/// Returns whether the value of a member with this name is secret.
fn is_secret(name: &str) -> bool {
    const SECRET_NAMES: [&str; 12] = [
        "password",
        "passwd",
        "passphrase",
        "secret",
        "token",
        "apikey",
        "privatekey",
        "accesskey",
        "accountkey",
        "saskey",
        "credential",
        "authorization",
    ];
    let plain = name.to_lowercase().replace(['_', '-'], "");
    // The address of a webhook often suffices to send messages to it.
    plain == "webhookurl" || SECRET_NAMES.iter().any(|word| plain.contains(word))
}

/// Returns whether a character changes the direction of the text, and can so disguise it. These are
/// Unicode's bidirectional marks, embeddings, overrides and isolates (Unicode Technical Report 36, section 3.1).
pub fn is_direction_mark(character: char) -> bool {
    matches!(
        character,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    )
}

/// Returns a trial's parameters as names and values. Members of nested choices have names such as `outer.inner`.
pub fn flatten_parameters(parameters: &Value) -> Vec<(String, &Value)> {
    fn walk<'a>(prefix: &str, value: &'a Value, into: &mut Vec<(String, &'a Value)>) {
        for (name, value) in value.as_object().into_iter().flatten() {
            let name = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
            if value.is_object() {
                walk(&name, value, into);
            } else {
                into.push((name, value));
            }
        }
    }
    let mut pairs = Vec::new();
    walk("", parameters, &mut pairs);
    pairs
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn secrets_are_not_shown() {
        let shown = redact_secrets(&json!({
            "trainingService": {"machineList": [{"host": "h", "password": "p", "ssh_passphrase": 7}]},
            "storage": {"azureAccountKey": "k", "accountName": "n"},
            "notifications": {"webhookUrl": "https://h/s", "webhookUrlFile": "f"},
            "searchSpace": {"token_count": {"_type": "choice", "_value": [1]}},
            "env": [{"name": "WANDB_API_KEY", "value": "abc"}, {"name": "LEVEL", "value": "1"}],
            "tuner": {"classArgs": {"api_key": "k", "private-key": "p", "Authorization": "Bearer x", "seed": 1}},
        }));
        let expected = json!({
            "trainingService": {"machineList": [{"host": "h", "password": "(hidden)", "ssh_passphrase": "(hidden)"}]},
            "storage": {"azureAccountKey": "(hidden)", "accountName": "n"},
            "notifications": {"webhookUrl": "(hidden)", "webhookUrlFile": "f"},
            "searchSpace": {"token_count": {"_type": "choice", "_value": [1]}},
            "env": [{"name": "WANDB_API_KEY", "value": "(hidden)"}, {"name": "LEVEL", "value": "1"}],
            "tuner": {"classArgs": {
                "api_key": "(hidden)", "private-key": "(hidden)", "Authorization": "(hidden)", "seed": 1,
            }},
        });
        assert_eq!(shown, expected);
    }

    #[test]
    fn an_experiment_without_a_manager_is_interrupted_until_it_ends() {
        #[rustfmt::skip]
        let table = [
            (None,    Some(true),  false),
            (None,    Some(false), true),
            (None,    None,        false),
            (Some(1), Some(false), false),
        ];
        for (ended_at_ms, open, expected) in table {
            assert_eq!(is_interrupted(ended_at_ms, open), expected, "{ended_at_ms:?} {open:?}");
        }
    }

    #[test]
    fn nested_parameters_have_dotted_names() {
        let parameters = json!({"lr": 0.1, "layer": {"_name": "conv", "size": 3}});
        let names: Vec<_> =
            flatten_parameters(&parameters).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["lr", "layer._name", "layer.size"]);
    }
}
