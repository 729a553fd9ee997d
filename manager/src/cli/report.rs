//! The report at an experiment's end: a table for people, or one JSON or YAML document for programs.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use trial_protocol::{Direction, ExperimentId, MetricValue, OBJECTIVE};

use super::selection::{Error, Format};
use super::terminal::cells::{cell, duration, heading, short_cell};
use super::terminal::output::{text_style, write_stdout};
use super::terminal::parameter_cells::ParameterColumns;
use super::terminal::plain_text::{pluralize, printable};
use super::terminal::table::{ColumnFit, Columns};
use super::terminal::text_style::TextStyle;
use super::terminal::trial_cells::{self, counting_value, result_name};
use crate::config::ExperimentSpec;
use crate::experiment::result::TrialResult;
use crate::experiment::state::ExperimentState;
use crate::experiment::task::trial_result;
use crate::job_state::JobState;
use crate::search::goals::{Goals, Objective, is_better};
use crate::search::repeats::{Estimate, competitors};
use crate::store::{self, Store, TrialRow};
use crate::util::nearest::nearest;
use crate::view::state_names::trial_state;
use crate::view::{self, pareto};

/// The number of trials in the table.
const MAX_TABLE_TRIALS: usize = 10;
/// The states in the order in which the report counts their trials.
const COUNTED_STATES: [JobState; 8] = [
    JobState::Succeeded,
    JobState::Failed,
    JobState::EarlyStopped,
    JobState::UserCanceled,
    JobState::SysCanceled,
    JobState::Lost,
    JobState::Running,
    JobState::Waiting,
];
/// The number of parameters with a column in the table.
const MAX_PARAMETER_COLUMNS: usize = 8;

/// An experiment's results.
#[derive(Debug)]
pub(super) struct Summary {
    id: ExperimentId,
    state: ExperimentState,
    direction: Direction,
    objective: Option<String>,
    goals: Goals,
    /// The number of trials for each point.
    repeats: u64,
    trials: Vec<(TrialRow, TrialResult)>,
    /// The names of the metrics of a succeeded trial that did not report the objective.
    reported: BTreeSet<String>,
    /// `true` if no user requested the stop. A stopped experiment is then held until the user fixes the cause.
    unrequested_stop: bool,
}

impl Summary {
    /// Reads the results from the store.
    pub(super) async fn read(
        store: &Store,
        id: ExperimentId,
        state: ExperimentState,
        spec: &ExperimentSpec,
    ) -> Result<Self, store::Error> {
        let mut trials = Vec::new();
        for row in store.trials().all().await? {
            let result = trial_result(store, spec, &row.id, &row.attempt).await?;
            trials.push((row, result));
        }
        let silent = trials
            .iter()
            .find(|(row, result)| row.state == JobState::Succeeded && result.final_value.is_none());
        let mut reported = BTreeSet::new();
        if let Some((row, _)) = silent {
            let metrics = store.reports().metrics(&row.id).await?;
            reported.extend(metrics.into_iter().map(|row| printable(&row.metric.name)));
        }
        let (direction, objective) = (spec.direction, spec.objective.clone());
        let (goals, repeats) = (spec.goals.clone(), spec.trial_repeats);
        Ok(Self {
            id,
            state,
            direction,
            objective,
            goals,
            repeats,
            trials,
            reported,
            unrequested_stop: false,
        })
    }

    /// Returns the report of an experiment whose stop was not requested.
    pub(super) fn with_unrequested_stop(self) -> Self {
        Self { unrequested_stop: true, ..self }
    }

    /// Returns whether at least one trial failed.
    pub(super) fn has_failed_trials(&self) -> bool {
        self.trials.iter().any(|(row, _)| row.state == JobState::Failed)
    }

    /// Returns whether the user stopped the experiment before its end.
    pub(super) fn is_interrupted(&self) -> bool {
        self.is_stopped() && !self.unrequested_stop
    }

    /// Returns whether the experiment continues only after the user fixes a problem: the tuner, or the cause of several
    /// failures in a row.
    pub(super) fn is_held(&self) -> bool {
        self.is_stopped() && self.unrequested_stop
    }

    fn is_stopped(&self) -> bool {
        matches!(self.state, ExperimentState::Stopping | ExperimentState::Stopped)
    }

    /// Returns whether at least one trial succeeded with a final result that is a number.
    pub(super) fn has_result(&self) -> bool {
        !self.ranked().is_empty()
    }

    /// Returns the succeeded trials that compete, each with the number that counts, the best first. Of equals, the
    /// earlier trial is first.
    fn ranked(&self) -> Vec<(&TrialRow, &TrialResult, f64)> {
        let succeeded = self.trials.iter().filter(|(row, _)| row.state == JobState::Succeeded);
        let results = succeeded.filter_map(|trial| {
            let (row, result) = trial;
            let number = result.final_value.as_ref()?.number().filter(|number| !number.is_nan())?;
            Some((trial, &row.parameters, number))
        });
        let competing = competitors(results, self.repeats).into_iter();
        let mut ranked: Vec<_> =
            competing.map(|((row, result), number)| (row, result, number)).collect();
        ranked.sort_by(|(_, _, a), (_, _, b)| {
            match (
                is_better(self.direction, Some(*a), Some(*b)),
                is_better(self.direction, Some(*b), Some(*a)),
            ) {
                (true, _) => std::cmp::Ordering::Less,
                (_, true) => std::cmp::Ordering::Greater,
                (false, false) => std::cmp::Ordering::Equal,
            }
        });
        ranked
    }

    /// Returns the succeeded trials that no other trial dominates, sorted by the first objective, the best first.
    /// Empty if there is only one objective.
    fn front(&self) -> Vec<(&TrialRow, &TrialResult)> {
        let succeeded = self.trials.iter().filter(|(row, _)| row.state == JobState::Succeeded);
        let results: Vec<_> = succeeded
            .filter_map(|(row, result)| Some((row, result, result.final_value.as_ref()?)))
            .collect();
        let front = pareto::front_of(results.iter().map(|(.., value)| *value), &self.goals);
        front.into_iter().map(|at| (results[at].0, results[at].1)).collect()
    }

    fn json(&self) -> Value {
        let trials: Vec<_> =
            self.trials.iter().map(|(row, result)| trial_json(row, result)).collect();
        let mut ranked = self.ranked();
        if self.goals.has_several_objectives() {
            ranked.clear();
        }
        let best = ranked.first().map(|(row, result, _)| {
            let mut best = trial_json(row, result);
            if let Some(estimate) = self.estimate(row) {
                best["estimate"] = json!(estimate);
            }
            best
        });
        let mut document = json!({
            "experiment": { "id": self.id, "state": self.state.as_str() },
            "trials": trials,
            "best": best,
        });
        if self.goals.has_several_objectives() {
            let front = self.front();
            let front: Vec<_> = front.iter().map(|(row, result)| trial_json(row, result)).collect();
            document["pareto"] = Value::Array(front);
        }
        document
    }

    /// Returns advice if there is no result: on reporting one, or, if no trial succeeded, on the first failure.
    pub(super) fn missing_result_hint(&self) -> Option<String> {
        let in_state = |state| self.trials.iter().filter(move |(row, _)| row.state == state);
        let mut succeeded = in_state(JobState::Succeeded).peekable();
        if succeeded.peek().is_none() {
            let (failed, _) = in_state(JobState::Failed).next()?;
            let (sequence, id) = (failed.sequence, &self.id);
            return Some(format!(
                "`trial-manager trial why {sequence} -e {id}` shows why trial {sequence} failed"
            ));
        }
        let is_missing = succeeded.all(|(_, result)| result.final_value.is_none());
        is_missing.then(|| reporting_hint(self.objective.as_deref(), &self.reported))
    }

    fn text(&self, style: TextStyle) -> String {
        let ranked = self.ranked();
        let counts = COUNTED_STATES.into_iter().filter_map(|state| {
            let count = self.trials.iter().filter(|(row, _)| row.state == state).count();
            let always = matches!(state, JobState::Succeeded | JobState::Failed);
            (always || count > 0).then(|| format!("{count} {}", trial_state(state)))
        });
        let counts = counts.collect::<Vec<_>>().join(", ");
        let trials = pluralize(self.trials.len(), "trial");
        let mut lines = vec![format!("experiment {} {}: {trials}, {counts}", self.id, self.state)];
        if self.goals.has_several_objectives() && !ranked.is_empty() {
            lines.extend(self.front_lines());
        } else if let Some((row, result, _)) = ranked.first() {
            let (table, note) = best_trials_table(&ranked, self.repeats, style);
            lines.push(table.trim_end().to_owned());
            lines.push(note);
            if ranked.len() > MAX_TABLE_TRIALS {
                lines
                    .push(format!("the best {MAX_TABLE_TRIALS} of {} with a result", ranked.len()));
            }
            lines.push(self.best_line(row, result));
            for (name, value) in view::flatten_parameters(&row.parameters) {
                lines.push(format!("  {}: {}", heading(&name), value_text(value)));
            }
        } else {
            lines.push("no trial succeeded with a final result".to_owned());
            lines.extend(self.missing_result_hint());
        }
        if self.is_interrupted() {
            lines.push(format!("interrupted; `trial-manager resume {}` continues", self.id));
        } else if self.is_held() {
            lines.push(format!(
                "held for the reason above; `trial-manager resume {}` continues with the recorded experiment file",
                self.id
            ));
        }
        lines.push(String::new());
        lines.join("\n")
    }
}

impl Summary {
    /// Returns the line that names the best trial. If points are repeated, the line shows the mean of the trial's
    /// point.
    fn best_line(&self, row: &TrialRow, result: &TrialResult) -> String {
        let name = result.name.as_deref().filter(|name| *name != OBJECTIVE);
        let name = name.map(|name| format!("{} ", printable(name))).unwrap_or_default();
        let direction = match self.direction {
            Direction::Maximize => "the largest",
            Direction::Minimize => "the smallest",
        };
        let (sequence, id) = (row.sequence, &row.id);
        match self.estimate(row) {
            Some(estimate) => {
                let mean = trial_cells::estimate(&json!({"estimate": estimate}));
                let mean = mean.unwrap_or_default();
                format!("best: trial {sequence} ({id}) with {name}{mean}, {direction}")
            }
            None => {
                let last = result.final_value.as_ref().map(|value| value_text(value.as_json()));
                let last = last.unwrap_or_default();
                format!("best: trial {sequence} ({id}) with {name}{last}, {direction}")
            }
        }
    }

    /// Returns the estimate for a trial's point, or `None` if points are not repeated.
    fn estimate(&self, of: &TrialRow) -> Option<Estimate> {
        let same = self
            .trials
            .iter()
            .filter(|(row, _)| row.state == JobState::Succeeded && row.parameters == of.parameters);
        let numbers = same.filter_map(|(_, result)| result.final_value.as_ref()?.number());
        let estimate = Estimate::new(&numbers.collect::<Vec<_>>(), self.repeats);
        estimate.filter(|_| self.repeats > 1)
    }

    /// Returns the lines that name the best trials for several objectives.
    fn front_lines(&self) -> Vec<String> {
        let front = self.front();
        let line = |(row, result): &(&TrialRow, &TrialResult)| {
            let value = |objective: &Objective| {
                let last = result.final_value.as_ref().map(MetricValue::as_json);
                let value = pareto::value_of(last, &objective.metric);
                let value = value.as_ref().map(short_cell).unwrap_or_default();
                format!("{} {value}", printable(&objective.metric))
            };
            let values: Vec<_> = self.goals.objectives.iter().map(value).collect();
            format!("  trial {} ({}): {}", row.sequence, row.id, values.join(", "))
        };
        let count = pluralize(front.len(), "trial");
        let mut lines = vec![format!("Pareto front: {count} that no other trial dominates")];
        lines.extend(front.iter().map(line));
        if front.is_empty() {
            lines.push(
                "no successful trial satisfies the constraints and has a number for each objective"
                    .to_owned(),
            );
        }
        lines
    }
}

/// Returns the hint that explains how a trial reports its result. `reported`: the metrics that it did report.
fn reporting_hint(objective: Option<&str>, reported: &BTreeSet<String>) -> String {
    match objective {
        Some(name) => {
            let name = printable(name);
            let advice = if reported.is_empty() {
                format!("print it as {name}=0.93, or report it with NNI's SDK")
            } else {
                let list: Vec<_> = reported.iter().map(|other| format!("`{other}`")).collect();
                let meant = nearest(&name, reported.iter().map(String::as_str));
                let meant = meant.map(|meant| format!("; did you mean `{meant}`?"));
                format!("they reported {}{}", list.join(", "), meant.unwrap_or_default())
            };
            format!(
                "no successful trial reported the metric `{name}`, which is the `objective` of the experiment file: {advice}"
            )
        }
        None => "no successful trial reported a result: print a result as name=value, such as accuracy=0.93, or call \
                 nni.report_final_result; if trials print several names, set `objective` in the experiment file to the \
                 one that counts"
            .to_owned(),
    }
}

/// Returns the table of the best trials, and a note on the parameters without a column.
fn best_trials_table(
    ranked: &[(&TrialRow, &TrialResult, f64)],
    repeats: u64,
    style: TextStyle,
) -> (String, String) {
    let best = &ranked[..ranked.len().min(MAX_TABLE_TRIALS)];
    let parameters =
        ParameterColumns::new(best.iter().map(|(row, ..)| &row.parameters), MAX_PARAMETER_COLUMNS);
    let metrics = best.iter().filter_map(|(_, result, _)| result.name.clone());
    let counts = if repeats > 1 { "mean".to_owned() } else { result_name(metrics) };
    let fixed = [("trial", ColumnFit::Number), ("id", ColumnFit::Text)];
    let fixed = fixed.into_iter().map(|(name, fit)| (name.to_owned(), fit));
    let fixed = fixed.chain([(counts, ColumnFit::Number), ("time".to_owned(), ColumnFit::Number)]);
    let mut table = Columns::new(fixed.chain(parameters.heads()));
    for (row, result, number) in best {
        let metric = result.name.as_deref().unwrap_or_default();
        let last = result.final_value.as_ref().map(|value| counting_value(value.as_json(), metric));
        let last = last.unwrap_or_default();
        let last = if repeats > 1 { short_cell(&json!(number)) } else { last };
        let time = duration(row.started_at_ms, row.ended_at_ms);
        let fixed = [row.sequence.to_string(), row.id.to_string(), last, time];
        table.push(fixed.into_iter().chain(parameters.cells(&row.parameters)).collect());
    }
    let (text, left_out) = table.render(style);
    (text, parameters.omission_note(left_out, "`--output json` shows all"))
}

fn trial_json(row: &TrialRow, result: &TrialResult) -> Value {
    json!({
        "id": row.id,
        "sequence": row.sequence,
        "state": row.state.as_str(),
        "parameters": row.parameters,
        "final": result.final_value,
        "intermediate": result.intermediate,
    })
}

/// Returns a value on one line of limited width.
fn value_text(value: &Value) -> String {
    if value.is_null() { "null".to_owned() } else { cell(value) }
}

/// Prints the results on standard output.
pub(super) fn print_results(summary: &Summary, output: Format) -> Result<(), Error> {
    let text = match output {
        Format::Table => summary.text(text_style()),
        Format::Json => format!("{}\n", summary.json()),
        Format::Yaml => serde_saphyr::to_string(&summary.json()).unwrap_or_default(),
    };
    write_stdout(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hint_for_a_missing_result_names_the_metrics_that_were_reported() {
        #[rustfmt::skip]
        let table: [(Option<&str>, &[&str], &str); 5] = [
            (Some("loss"),  &[],                "print it as loss=0.93"),
            (Some("losss"), &["acc", "loss"],   "they reported `acc`, `loss`; did you mean `loss`?"),
            (Some("score"), &["acc", "loss"],   "they reported `acc`, `loss`"),
            (None,          &[],                "print a result as name=value"),
            (None,          &["epoch"],         "set `objective` in the experiment file"),
        ];
        for (objective, reported, expected) in table {
            let reported = reported.iter().map(|name| (*name).to_owned()).collect();
            let hint = reporting_hint(objective, &reported);
            assert!(hint.contains(expected), "{hint}");
        }
    }
}
