//! What is printed at an experiment's end: a table for a person, or one JSON object for a program.

use std::io::Write as _;

use comfy_table::{CellAlignment, Table, presets};
use serde_json::{Value, json};
use trial_protocol::ExperimentId;

use super::progress::printable;
use crate::config::ExperimentSpec;
use crate::experiment::conduct::trial_result;
use crate::experiment::result::{TrialResult, is_better};
use crate::experiment::state::ExperimentState;
use crate::job_state::JobState;
use crate::store::{self, Store, TrialRow};
use crate::tuner::OptimizeMode;

/// How many trials the table shows.
const BEST: usize = 10;
/// How many parameters the table shows; the winner's are listed in full below it.
const COLUMNS: usize = 8;
/// How long a value may be in the table, in characters.
const CELL: usize = 16;
/// How long a value may be on a line of its own, in characters.
const WIDTH: usize = 200;

/// An experiment's results.
#[derive(Debug)]
pub(super) struct Summary {
    id: ExperimentId,
    stands: ExperimentState,
    mode: OptimizeMode,
    trials: Vec<(TrialRow, TrialResult)>,
}

impl Summary {
    /// Reads the results from the store.
    pub(super) async fn read(
        store: &Store,
        id: ExperimentId,
        stands: ExperimentState,
        spec: &ExperimentSpec,
    ) -> Result<Self, store::Error> {
        let mut trials = Vec::new();
        for row in store.trials().await? {
            let result = trial_result(store, spec, &row.id, &row.attempt).await?;
            trials.push((row, result));
        }
        Ok(Self { id, stands, mode: spec.optimize_mode, trials })
    }

    /// Whether at least one trial succeeded.
    pub(super) fn succeeded(&self) -> bool {
        self.trials.iter().any(|(row, _)| row.state == JobState::Succeeded)
    }

    /// The succeeded trials with a number, the best first; of equals, the earlier first.
    fn ranked(&self) -> Vec<(&TrialRow, &TrialResult, f64)> {
        let mut ranked: Vec<_> = self
            .trials
            .iter()
            .filter(|(row, _)| row.state == JobState::Succeeded)
            .filter_map(|(row, result)| {
                let number = result.last.as_ref()?.number().filter(|number| !number.is_nan())?;
                Some((row, result, number))
            })
            .collect();
        ranked.sort_by(|(_, _, a), (_, _, b)| {
            match (
                is_better(self.mode, Some(*a), Some(*b)),
                is_better(self.mode, Some(*b), Some(*a)),
            ) {
                (true, _) => std::cmp::Ordering::Less,
                (_, true) => std::cmp::Ordering::Greater,
                (false, false) => std::cmp::Ordering::Equal,
            }
        });
        ranked
    }

    fn json(&self) -> Value {
        let trials: Vec<_> =
            self.trials.iter().map(|(row, result)| trial_json(row, result)).collect();
        let best = self.ranked().first().map(|(row, result, _)| trial_json(row, result));
        json!({
            "experiment": { "id": self.id, "state": self.stands.as_str() },
            "trials": trials,
            "best": best,
        })
    }

    fn text(&self) -> String {
        let ranked = self.ranked();
        let count = |state| self.trials.iter().filter(|(row, _)| row.state == state).count();
        let mut lines = vec![format!(
            "experiment {} {}: {} trials, {} succeeded, {} failed",
            self.id,
            self.stands,
            self.trials.len(),
            count(JobState::Succeeded),
            count(JobState::Failed),
        )];
        if let Some((row, result, _)) = ranked.first() {
            lines.push(table(&ranked).to_string());
            lines.push(String::new());
            let last = result.last.as_ref().map(|value| shown(value.as_json())).unwrap_or_default();
            lines.push(format!("best: trial {} ({}) with {last}", row.sequence, row.id));
            for (name, value) in row.parameters.as_object().into_iter().flatten() {
                lines.push(format!("  {}: {}", printable(name), shown(value)));
            }
        } else {
            lines.push("no trial succeeded with a final result".to_owned());
        }
        if self.stands == ExperimentState::Stopped {
            lines.push(format!("interrupted; `trial-manager resume {}` goes on", self.id));
        }
        lines.push(String::new());
        lines.join("\n")
    }
}

fn table(ranked: &[(&TrialRow, &TrialResult, f64)]) -> Table {
    let best = &ranked[..ranked.len().min(BEST)];
    let mut names: Vec<&String> = Vec::new();
    for (row, _, _) in best {
        // With nested spaces not every trial has every parameter.
        let own = row.parameters.as_object().into_iter().flat_map(|members| members.keys());
        own.for_each(|name| {
            if !names.contains(&name) {
                names.push(name);
            }
        });
    }
    names.truncate(COLUMNS);
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    let fixed = ["trial", "id", "seconds", "final"].map(str::to_owned);
    table.set_header(fixed.into_iter().chain(names.iter().map(|name| printable(name))));
    for (row, result, _) in best {
        let seconds =
            row.started_at_ms.zip(row.ended_at_ms).map_or_else(String::new, |(from, to)| {
                let ms = to.saturating_sub(from).max(0);
                format!("{}.{}", ms / 1000, ms % 1000 / 100)
            });
        let last = result.last.as_ref().map(|value| brief(value.as_json())).unwrap_or_default();
        let fixed = [row.sequence.to_string(), row.id.to_string(), seconds, last];
        let values =
            names.iter().map(|name| row.parameters.get(*name).map(brief).unwrap_or_default());
        table.add_row(fixed.into_iter().chain(values));
    }
    for column in table.column_iter_mut().enumerate().filter(|(at, _)| *at != 1) {
        column.1.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// A value for a column: six digits of a float are enough to compare by eye.
fn brief(value: &Value) -> String {
    let text = match value.as_f64() {
        Some(number) if value.is_f64() && number.abs() >= 1e-4 && number.abs() < 1e9 => {
            let digits = 5 - i32::min(5, magnitude(number));
            let text = format!("{number:.*}", usize::try_from(digits).unwrap_or(0));
            if text.contains('.') {
                text.trim_end_matches('0').trim_end_matches('.').to_owned()
            } else {
                text
            }
        }
        Some(number) if value.is_f64() && number != 0.0 => format!("{number:.3e}"),
        Some(_) | None => shown(value),
    };
    if text.chars().count() <= CELL {
        return text;
    }
    text.chars().take(CELL - 1).chain(['…']).collect()
}

/// The power of ten of a number's first digit.
fn magnitude(number: f64) -> i32 {
    let text = format!("{number:e}");
    text.rsplit('e').next().and_then(|power| power.parse().ok()).unwrap_or(0)
}

fn trial_json(row: &TrialRow, result: &TrialResult) -> Value {
    json!({
        "id": row.id,
        "sequence": row.sequence,
        "state": row.state.as_str(),
        "parameters": row.parameters,
        "final": result.last,
        "intermediate": result.intermediate,
    })
}

/// A value on one line of bounded width.
fn shown(value: &Value) -> String {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
            value.to_string()
        }
    };
    let text = printable(&text);
    if text.chars().count() <= WIDTH {
        return text;
    }
    text.chars().take(WIDTH - 1).chain(['…']).collect()
}

/// Prints the results on standard output.
pub(super) fn print(summary: &Summary, as_json: bool) {
    let text = if as_json { format!("{}\n", summary.json()) } else { summary.text() };
    // The reader may have gone; everything is in the store.
    drop(std::io::stdout().lock().write_all(text.as_bytes()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_brief_in_the_table() {
        #[rustfmt::skip]
        let table = [
            (json!(0.162_088_882_652_226),   "0.162089"),
            (json!(0.9667),                  "0.9667"),
            (json!(1234.5678),               "1234.57"),
            (json!(123_456_789.5),           "123456790"),
            (json!(0.000_030_557),           "3.056e-5"),
            (json!(5.0),                     "5"),
            (json!(0.0),                     "0.0"),
            (json!(-2.5),                    "-2.5"),
            (json!(64),                      "64"),
            (json!("tanh"),                  "tanh"),
            (json!("NaN"),                   "NaN"),
            (json!("a very long name indeed"), "a very long nam…"),
            (json!({"_name": "a"}),          r#"{"_name":"a"}"#),
            (json!("\u{1b}[31m"),            "\u{fffd}[31m"),
        ];
        for (value, text) in table {
            assert_eq!(brief(&value), text, "{value}");
        }
    }
}
