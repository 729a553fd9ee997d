//! PURE: the list of experiments as CSV.

use super::ListedExperiment;

/// The columns of the exported list.
pub(super) const CSV_COLUMNS: [&str; 18] = [
    "id",
    "name",
    "state",
    "metric",
    "optimize_mode",
    "best",
    "best_trial",
    "trials",
    "ended",
    "failed",
    "max_trial_number",
    "owner",
    "platform",
    "tags",
    "created_at_ms",
    "ended_at_ms",
    "archived",
    "notes",
];

/// Returns the fields of an experiment, in the order of [`CSV_COLUMNS`].
pub(super) fn csv_fields(experiment: &ListedExperiment) -> [String; CSV_COLUMNS.len()] {
    let ListedExperiment { summary, standing, archived, notes, .. } = experiment;
    let text = |text: Option<&str>| text.unwrap_or_default().to_owned();
    let best = summary.best.as_ref();
    let most = summary.max_trial_number.map(|most| most.to_string());
    let created_at_ms = Some(summary.created_at_ms).filter(|at_ms| *at_ms > 0);
    [
        summary.id.clone(),
        text(summary.name.as_deref()),
        (*standing).to_owned(),
        text(summary.metric.as_deref()),
        summary.optimize_mode.clone(),
        best.map(|best| best.value.to_string()).unwrap_or_default(),
        text(best.map(|best| best.id.as_str())),
        summary.trials.to_string(),
        summary.ended.to_string(),
        summary.failed.to_string(),
        most.unwrap_or_default(),
        text(summary.owner.as_deref()),
        summary.platform.clone(),
        summary.tags.join(" "),
        created_at_ms.map(|at_ms| at_ms.to_string()).unwrap_or_default(),
        summary.ended_at_ms.map(|at_ms| at_ms.to_string()).unwrap_or_default(),
        archived.to_string(),
        notes.clone(),
    ]
}
