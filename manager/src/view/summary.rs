//! PURE: an experiment in a list of experiments.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::ExperimentView;
use crate::store::ExperimentRow;

/// The best trial of an experiment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct BestTrial {
    /// The trial's id.
    pub id: String,
    /// The trial's position in the experiment, from 0.
    pub sequence: u64,
    /// The trial's result, or the mean of its point if the experiment repeats its points.
    pub value: f64,
}

/// An experiment in a list.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ExperimentSummary {
    /// The experiment's id.
    pub id: String,
    /// The experiment's name. Absence means that it has none.
    pub name: Option<String>,
    /// The experiment's state, with NNI's name, such as `RUNNING` or `DONE`. `INTERRUPTED` means that it has not ended
    /// and that no manager runs it. `UNREADABLE` means that its store cannot be read.
    pub state: String,
    /// The present trouble, as a sentence. Absence means that no trouble is known.
    pub trouble: Option<String>,
    /// The time at which it was created, in milliseconds since the Unix epoch.
    pub created_at_ms: i64,
    /// The time at which it ended. Absence means that it has not ended.
    pub ended_at_ms: Option<i64>,
    /// The run time in milliseconds, without interruptions.
    pub elapsed_ms: u64,
    /// `maximize` or `minimize`.
    pub optimize_mode: String,
    /// The metric that is optimised. Absence means the metric of NNI's SDK.
    pub metric: Option<String>,
    /// The best trial. Absence means that none has succeeded with a numeric result.
    pub best: Option<BestTrial>,
    /// The number of trials on the Pareto front. Absence means that the experiment has one objective.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub front: Option<usize>,
    /// The number of trials so far.
    pub trials: usize,
    /// The number of trials that have ended.
    pub ended: usize,
    /// The number of trials that succeeded.
    pub succeeded: usize,
    /// The number of trials that failed.
    pub failed: usize,
    /// The number of trials that run, also without contact to their agents.
    pub running: usize,
    /// The total number of trials. Absence means no limit.
    pub max_trial_number: Option<u64>,
    /// The owner of the search. Absence means that it was not recorded.
    pub owner: Option<String>,
    /// The tags with which users find the experiment.
    pub tags: Vec<String>,
    /// The platform on which its trials run, such as `local`.
    pub platform: String,
}

/// The states of trials that have not ended.
const OPEN_STATES: [&str; 4] = ["WAITING", "RUNNING", "LOST", "UNKNOWN"];

impl ExperimentSummary {
    /// Creates the summary of an experiment from its record and its view.
    pub fn new(row: &ExperimentRow, view: &ExperimentView) -> Self {
        let text = |value: Option<&Value>| value.and_then(Value::as_str).map(str::to_owned);
        let tags = row.canonical.get("tags").and_then(Value::as_array);
        let count = |state: &str| view.counts.get(state).copied().unwrap_or_default();
        let best = view.best.as_ref().and_then(|best| {
            let mean = best.estimate.map(|estimate| estimate.mean);
            let value = mean.or_else(|| best.number()).filter(|number| number.is_finite())?;
            Some(BestTrial { id: best.id.clone(), sequence: best.sequence, value })
        });
        let metric = view.objective.clone().or_else(|| view.chosen_objective.clone());
        Self {
            id: view.id.clone(),
            name: view.name.clone(),
            state: view.state.clone(),
            trouble: view.trouble.clone(),
            created_at_ms: view.created_at_ms,
            ended_at_ms: view.ended_at_ms,
            elapsed_ms: view.elapsed_ms,
            optimize_mode: view.optimize_mode.to_owned(),
            metric,
            best,
            front: (!view.objectives.is_empty()).then_some(view.pareto.len()),
            trials: view.trials,
            ended: view.trials.saturating_sub(OPEN_STATES.into_iter().map(count).sum()),
            succeeded: count("SUCCEEDED"),
            failed: count("FAILED"),
            running: count("RUNNING") + count("LOST"),
            max_trial_number: view.max_trial_number,
            owner: text(row.canonical.get("owner")),
            tags: tags.into_iter().flatten().filter_map(|tag| text(Some(tag))).collect(),
            platform: crate::config::stored_platform(&row.canonical).to_owned(),
        }
    }

    /// Creates the summary of an experiment whose store cannot be read, with the reason.
    pub fn unreadable(id: &str, problem: String) -> Self {
        Self {
            id: id.to_owned(),
            name: None,
            state: "UNREADABLE".to_owned(),
            trouble: Some(problem),
            created_at_ms: 0,
            ended_at_ms: None,
            elapsed_ms: 0,
            optimize_mode: String::new(),
            metric: None,
            best: None,
            front: None,
            trials: 0,
            ended: 0,
            succeeded: 0,
            failed: 0,
            running: 0,
            max_trial_number: None,
            owner: None,
            tags: Vec::new(),
            platform: String::new(),
        }
    }
}
