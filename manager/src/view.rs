//! The view of an experiment: its trials with their results, kept in memory. The store's own record of changes keeps
//! the view up to date, so that no page asks for everything again. The view decides nothing and writes nothing.

pub mod attempts;
mod board;
mod chosen_curves;
pub mod code;
pub mod curve;
pub mod export;
pub mod filter;
pub mod importance;
pub mod origin;
pub mod pareto;
pub mod service_part;
pub mod space;
mod span;
pub mod state_names;
mod summary;
pub mod table;
mod trial;

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;
use trial_protocol::{MetricValue, OBJECTIVE};
use utoipa::ToSchema;

pub use board::{Board, Snapshot};
pub use chosen_curves::chosen_curves;
pub use span::span;
pub use summary::{BestTrial, ExperimentSummary};
pub use trial::{AttemptView, TimelineEntry, TrialDetail, TrialSummary, detail};

use crate::config::ExperimentSpec;
use crate::experiment::result::is_better;
use crate::job_state::JobState;
use crate::search::repeats::competitors;
use crate::search::tuner::OptimizeMode;
use crate::store::{CodeRow, ExperimentRow};
use curve::Improvement;

/// An experiment, in numbers.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct ExperimentView {
    /// Its id.
    pub id: String,
    /// Its name. Absence means that it has none.
    pub name: Option<String>,
    /// Where it stands, in NNI's words: `RUNNING`, `NO_MORE_TRIAL`, `TUNER_NO_MORE_TRIAL`, `DONE`,
    /// `STOPPING`, `STOPPED`, `ERROR`.
    pub state: String,
    /// The present trouble, as a sentence: the database cannot be written, or a tuner or an assessor outside the
    /// manager does not answer, was started again, or is lost. Absence means that nothing is known to be wrong.
    pub trouble: Option<String>,
    /// When it was created, in milliseconds since the Unix epoch.
    pub created_at_ms: i64,
    /// When it ended. Absence means that it goes on.
    pub ended_at_ms: Option<i64>,
    /// The time that it has run, in milliseconds, interruptions left out.
    pub elapsed_ms: u64,
    /// `maximize` or `minimize`.
    pub optimize_mode: &'static str,
    /// `true` if the experiment file states no direction, so that `optimize_mode` is the tuner's default.
    pub optimize_mode_assumed: bool,
    /// The metric that is optimised. Absence means the SDK's own.
    pub objective: Option<String>,
    /// The newest hundred of the results that were better than all before them.
    pub improvements: Vec<Improvement>,
    /// The metric whose values count because trials print it and the file names none. Absence means that the file names
    /// one, that trials report by NNI's SDK, or that no trial has reported yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chosen_objective: Option<String>,
    /// A warning that the metric's name suggests the other direction, such as a maximised `val_loss`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub direction_warning: Option<String>,
    /// Classes of the user's own that are not given the direction, a sentence and a line for each. Absence means that there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub untold_direction: Option<String>,
    /// Trials of each point. A point is judged by the mean of their results.
    pub trial_repeats: u64,
    /// Trials that may run at a time.
    pub trial_concurrency: usize,
    /// Trials in all. Absence means no limit.
    pub max_trial_number: Option<u64>,
    /// Running time in all, in milliseconds. Absence means no limit.
    pub max_experiment_duration_ms: Option<u64>,
    /// Trials so far.
    pub trials: usize,
    /// The number of trials in each state.
    pub counts: BTreeMap<&'static str, usize>,
    /// The number of failed trials by the cause of their end; `unknown` where no agent lived to tell.
    pub causes: BTreeMap<String, usize>,
    /// Trials that ended in the last hour of running. Absence means that none has ended.
    pub ended_per_hour: Option<f64>,
    /// The best trial. Absence means that none succeeded with a number, or that there are several objectives.
    pub best: Option<TrialSummary>,
    /// The objectives, where there are several. Then `objective` is the first one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub objectives: Vec<pareto::ObjectiveView>,
    /// The best trials where there are several objectives: those that no other trial dominates, from the best of the first
    /// objective to its worst.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pareto: Vec<TrialSummary>,
    /// The code that local trials were started with, the versions in the order in which they were seen, the first twenty.
    /// Empty where trials do not run in the code directory itself.
    pub code: Vec<code::CodeUse>,
    /// Which trials ran other code than the first ones, as a sentence. Absence means that none did.
    pub code_difference: Option<String>,
    /// The file that lists the packages of the user's Python, as pip does, when the search was last started. Absence means
    /// that they are not recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub packages_file: Option<String>,
    /// The training services, where there are several, in the order of the experiment file.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub training_services: Vec<service_part::ServicePartView>,
    /// The number of the newest change of any trial: where a stream of events goes on.
    pub change: i64,
}

/// Returns the view of the experiment `row` with its trials, as of now.
pub fn experiment(
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
        untold_direction: spec.untold_direction(),
        chosen_objective,
        improvements: newest_improvements(snapshot, spec.optimize_mode),
        id: row.id.to_string(),
        name: spec.name.clone(),
        state: row.state.clone(),
        trouble: row.trouble.clone(),
        created_at_ms: row.created_at_ms,
        ended_at_ms: row.ended_at_ms,
        elapsed_ms,
        optimize_mode: spec.optimize_mode.word(),
        optimize_mode_assumed: spec.optimize_mode_assumed,
        objective: spec.objective.clone(),
        trial_repeats: spec.trial_repeats,
        trial_concurrency: spec.trial_concurrency,
        max_trial_number: spec.max_trial_number,
        max_experiment_duration_ms: spec
            .max_experiment_duration
            .map(|limit| u64::try_from(limit.as_millis()).unwrap_or(u64::MAX)),
        trials: snapshot.trials.len(),
        counts,
        causes,
        ended_per_hour: throughput(snapshot, row.ended_at_ms.unwrap_or(now_ms)),
        best: best(snapshot, spec.optimize_mode)
            .filter(|_| !spec.goals.has_several_objectives())
            .cloned(),
        objectives: pareto::objectives(&spec.goals),
        pareto: pareto::front(snapshot, &spec.goals),
        code: code::uses(versions),
        code_difference: code::difference(versions),
        packages_file: None,
        training_services: Vec::new(),
        change: snapshot.through,
    }
}

/// Returns the newest of the results that were better than all before them.
fn newest_improvements(snapshot: &Snapshot, mode: OptimizeMode) -> Vec<Improvement> {
    const NEWEST: usize = 100;
    let mut steps = improvements(snapshot, mode);
    steps.drain(..steps.len().saturating_sub(NEWEST));
    steps
}

/// Returns every result that was better than all before it, or every mean where points are repeated.
pub fn improvements(snapshot: &Snapshot, mode: OptimizeMode) -> Vec<Improvement> {
    let results = competing(snapshot).into_iter().map(|(trial, number)| (trial.sequence, number));
    curve::improvements(results, mode)
}

/// Returns the metric that counts although the experiment file names none: that of the first trial that reported one.
fn chosen_objective(spec: &ExperimentSpec, snapshot: &Snapshot) -> Option<String> {
    let mut metrics = snapshot.trials.iter().filter_map(|trial| trial.metric.as_deref());
    let chosen = metrics.find(|name| *name != OBJECTIVE).filter(|_| spec.objective.is_none());
    chosen.map(str::to_owned)
}

/// Returns the trouble of an experiment that has not ended and that no manager runs, for the user. `open`: whether a
/// process has its database open to write, if that is known.
pub fn left(row: &ExperimentRow, open: Option<bool>) -> Option<String> {
    let id = &row.id;
    (row.ended_at_ms.is_none() && open == Some(false))
        .then(|| format!("its manager was killed; run `trial-manager resume {id}`"))
}

/// The succeeded trials that compete for the best, each with the number that counts: its result, or the mean of its point
/// where points are repeated.
pub fn competing(snapshot: &Snapshot) -> Vec<(&TrialSummary, f64)> {
    let succeeded = snapshot.trials.iter().filter(|trial| trial.state == JobState::Succeeded);
    let results = succeeded.filter_map(|trial| {
        let number = trial.number().filter(|number| number.is_finite())?;
        Some((trial.as_ref(), &trial.parameters, number))
    });
    competitors(results, snapshot.repeats)
}

/// The best of the succeeded trials; of equals, the first. Where points are repeated, it is the trial that completed the
/// point with the best mean.
pub fn best(snapshot: &Snapshot, mode: OptimizeMode) -> Option<&TrialSummary> {
    let mut best: Option<(&TrialSummary, f64)> = None;
    for (trial, number) in competing(snapshot) {
        if is_better(mode, Some(number), best.map(|(_, best)| best)) {
            best = Some((trial, number));
        }
    }
    best.map(|(trial, _)| trial)
}

/// The running trial whose latest intermediate result is the best; of equals, the first.
pub fn leading<'a>(snapshot: &'a Snapshot, mode: &str) -> Option<&'a TrialSummary> {
    let mode = OptimizeMode::from_word(mode).unwrap_or(OptimizeMode::Maximize);
    let latest = |trial: &TrialSummary| MetricValue::from(trial.latest.clone()?).number();
    let mut leading: Option<&TrialSummary> = None;
    for trial in snapshot.trials.iter().filter(|trial| trial.state == JobState::Running) {
        if is_better(mode, latest(trial), leading.and_then(latest)) {
            leading = Some(trial);
        }
    }
    leading
}

/// Trials that ended per hour, over the hour before `until_ms` or as much of it as there was.
fn throughput(snapshot: &Snapshot, until_ms: i64) -> Option<f64> {
    const HOUR_MS: i64 = 3_600_000;
    let begun = snapshot.trials.iter().map(|trial| trial.created_at_ms).min()?;
    let from = begun.max(until_ms.saturating_sub(HOUR_MS));
    let ended = snapshot.trials.iter().filter_map(|trial| trial.ended_at_ms);
    let ended = u32::try_from(ended.filter(|at| *at >= from && *at <= until_ms).count()).ok()?;
    let span = u32::try_from(until_ms - from).ok().filter(|span| *span > 0)?;
    (ended > 0).then(|| f64::from(ended) * 3_600_000.0 / f64::from(span))
}

/// Stands for the cause of a trial that has no verdict.
pub const UNKNOWN_CAUSE: &str = "unknown";

/// A configuration without secrets: the values of members whose names speak of them.
pub fn without_secrets(value: &Value) -> Value {
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
                        without_secrets(value)
                    };
                    (name.clone(), shown)
                })
                .collect(),
        ),
        Value::Array(items) => Value::Array(items.iter().map(without_secrets).collect()),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.clone(),
    }
}

/// Returns whether a member of this name is secret.
fn is_secret(name: &str) -> bool {
    const SECRET: [&str; 12] = [
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
    // A webhook's address is often all that it takes to write there.
    plain == "webhookurl" || SECRET.iter().any(|word| plain.contains(word))
}

/// Returns whether a character turns the direction of writing around, so that a text reads otherwise than it is. These
/// are Unicode's bidirectional marks, embeddings, overrides and isolates (Unicode Technical Report 36, section 3.1).
pub fn turns_writing(character: char) -> bool {
    matches!(
        character,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    )
}

/// A command as a shell takes it: words that it would split or read otherwise are quoted.
pub fn command_line(words: &[String]) -> String {
    let plain = |c: char| c.is_alphanumeric() || "-_./:=,@%+".contains(c);
    let quoted = words.iter().map(|word| {
        if !word.is_empty() && word.chars().all(plain) {
            word.clone()
        } else {
            format!("'{}'", word.replace('\'', r"'\''"))
        }
    });
    quoted.collect::<Vec<_>>().join(" ")
}

/// A trial's parameters as name and value, members of nested choices as `outer.inner`.
pub fn flat(parameters: &Value) -> Vec<(String, &Value)> {
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
        let shown = without_secrets(&json!({
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
    fn a_command_is_shown_as_a_shell_takes_it() {
        let words = ["sh", "-c", "echo it's $X", "", "a=b"].map(str::to_owned);
        assert_eq!(command_line(&words), r"sh -c 'echo it'\''s $X' '' a=b");
    }

    #[test]
    fn nested_parameters_have_dotted_names() {
        let parameters = json!({"lr": 0.1, "layer": {"_name": "conv", "size": 3}});
        let names: Vec<_> = flat(&parameters).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["lr", "layer._name", "layer.size"]);
    }
}
