//! PURE: the list of trials of `top`. It has as many columns as fit into the terminal, in the most detailed form that
//! fits.

use std::fmt::Write as _;

use serde_json::Value;

use crate::cli::terminal::cells::{bytes, cut, member_text, shorten};
use crate::cli::terminal::parameter_cells::ParameterColumns;
use crate::cli::terminal::sparkline::{MAX_SPARKLINE_CHARS, bar, sparkline};
use crate::cli::terminal::table::{ColumnFit, Columns};
use crate::cli::terminal::text_style::TextStyle;
use crate::cli::terminal::trial_cells::{result_text, trial_place};
use crate::job_state::JobState;
use crate::view;
use crate::view::curve::points_of;
use crate::view::state_names::trial_state;

/// The maximum number of parameters with a column.
const MAX_PARAMETER_COLUMNS: usize = 6;
/// The maximum width of the name of a parameter or a machine.
const MAX_NAME_WIDTH: usize = 24;
/// The maximum width of the reason of a trial's end.
const MAX_REASON_WIDTH: usize = 40;

/// A level of detail of the rows.
#[derive(Debug, Clone, Copy)]
struct RowDetail {
    /// The length of a curve, in characters.
    curve: usize,
    /// The length of a bar, in characters. 0 for no bars.
    bar: usize,
    /// `true` if each GPU has its own numbers, `false` for one summary.
    each_gpu: bool,
}

/// The levels of detail, the highest first.
const DETAIL_LEVELS: [RowDetail; 4] = [
    RowDetail { curve: MAX_SPARKLINE_CHARS, bar: 10, each_gpu: true },
    RowDetail { curve: MAX_SPARKLINE_CHARS, bar: 10, each_gpu: false },
    RowDetail { curve: MAX_SPARKLINE_CHARS, bar: 0, each_gpu: false },
    RowDetail { curve: 10, bar: 0, each_gpu: false },
];

/// A listed trial.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ListedTrial {
    /// The trial as the API describes it.
    pub(super) trial: Value,
    /// The intermediate results, the oldest first.
    values: Vec<f64>,
    /// The latest sample, or null.
    sample: Value,
    /// The time for which the trial has run. `None` if it is unknown.
    ran_ms: Option<u64>,
}

impl ListedTrial {
    /// Creates the row of a trial with its curve and its latest samples, as the API returns them. `now_ms` is `None` if
    /// no manager runs the search, because the end of a running trial is then unknown.
    pub(super) fn new(trial: Value, curve: &Value, samples: &Value, now_ms: Option<i64>) -> Self {
        let name = trial.get("metric").and_then(Value::as_str);
        let metrics = curve.get("metrics").and_then(Value::as_array).into_iter().flatten();
        let points = metrics.flat_map(|one| {
            points_of(&member_text(one, "name"), one.get("value").unwrap_or(&Value::Null))
        });
        let counted = points.filter(|(curve, _)| name.is_none_or(|name| name == curve));
        let values = counted.map(|(_, number)| number).collect();
        let last = samples.get("samples").and_then(Value::as_array).and_then(|all| all.last());
        let sample = last.and_then(|one| one.get("sample")).cloned().unwrap_or_default();
        let at = |name: &str| trial.get(name).and_then(Value::as_i64);
        let until = at("ended_at_ms").or(now_ms);
        let ran = at("started_at_ms").zip(until).map(|(from, until)| until.saturating_sub(from));
        let ran_ms = ran.map(|ms| u64::try_from(ms).unwrap_or(0));
        Self { trial, values, sample, ran_ms }
    }

    /// Returns the id of the trial.
    pub(super) fn id(&self) -> String {
        member_text(&self.trial, "id")
    }

    fn state(&self) -> JobState {
        member_text(&self.trial, "state").parse().unwrap_or(JobState::Unknown)
    }

    /// Returns the final result, or else the latest one.
    fn result(&self) -> String {
        let metric = member_text(&self.trial, "metric");
        let result = |name: &str| result_text(&self.trial, name, &metric);
        let last = result("final");
        if last.is_empty() { result("latest") } else { last }
    }

    fn curve(&self, detail: RowDetail) -> String {
        sparkline(&self.values[self.values.len().saturating_sub(detail.curve)..])
    }

    /// Returns the memory, with a bar if its limit is known.
    fn memory(&self, detail: RowDetail) -> String {
        let read = |path: &str| self.sample.pointer(path).and_then(Value::as_f64);
        let limit = read("/cgroup/memory_limit_bytes");
        match (read("/cgroup/memory_bytes").filter(|_| limit.is_some()), limit) {
            (Some(used), Some(limit)) => {
                let bar = bar_of(used / limit, detail);
                format!("{bar}{} of {}", bytes(used), bytes(limit))
            }
            _ => read("/process/memory_bytes").map_or_else(String::new, bytes),
        }
    }

    /// Returns the utilization and the memory of the GPUs.
    fn gpus(&self, detail: RowDetail) -> String {
        let gpus = self.sample.get("gpus").and_then(Value::as_array).into_iter().flatten();
        let gpus: Vec<_> = gpus.collect();
        let read = |gpu: &Value, name: &str| gpu.get(name).and_then(Value::as_f64);
        if gpus.len() > 1 && !detail.each_gpu {
            let all =
                |name: &str| gpus.iter().filter_map(|gpu| read(gpu, name)).collect::<Vec<_>>();
            let (busy, used) = (all("utilization_percent"), all("memory_used_bytes"));
            let count = u32::try_from(busy.len()).map_or(1.0, f64::from).max(1.0);
            let percent = busy.iter().sum::<f64>() / count;
            return format!("{} × {percent:.0} % {}", gpus.len(), bytes(used.iter().sum()));
        }
        let text = gpus.into_iter().fold(String::new(), |mut text, gpu| {
            if let Some(percent) = read(gpu, "utilization_percent") {
                write!(text, "{}{percent:.0} % ", bar_of(percent / 100.0, detail))
                    .unwrap_or_default();
            }
            if let Some(used) = read(gpu, "memory_used_bytes") {
                write!(text, "{}  ", bytes(used)).unwrap_or_default();
            }
            text
        });
        text.trim_end().to_owned()
    }
}

/// Returns a bar and a blank, or nothing at a level without bars.
fn bar_of(part: f64, detail: RowDetail) -> String {
    if detail.bar == 0 { String::new() } else { bar(part, detail.bar) + " " }
}

/// Returns a length of time as hours, minutes and seconds: `1:02:03`. From 100 hours on, it is in days and hours.
fn clock(ms: u64) -> String {
    let seconds = ms / 1000;
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    if hours >= 100 {
        view::format_duration(ms)
    } else if hours > 0 {
        format!("{hours}:{minutes:02}:{seconds:02}")
    } else {
        format!("{minutes}:{seconds:02}")
    }
}

/// Renders the list. The least important columns, which are the rightmost, are left out first.
pub(super) fn render(rows: &[ListedTrial], style: TextStyle) -> String {
    let fits = |detail: &RowDetail| {
        columns(rows, *detail, &ParameterColumns::default()).render(style).1 == 0
    };
    let detail =
        DETAIL_LEVELS.into_iter().find(fits).unwrap_or(DETAIL_LEVELS[DETAIL_LEVELS.len() - 1]);
    let parameters = rows.iter().map(|row| &row.trial["parameters"]);
    let parameters = ParameterColumns::new(parameters, MAX_PARAMETER_COLUMNS);
    columns(rows, detail, &parameters).render(style).0
}

/// Returns the table in this detail, with columns for these parameters.
fn columns(rows: &[ListedTrial], detail: RowDetail, parameters: &ParameterColumns) -> Columns {
    let all_run = rows.iter().all(|row| row.state() == JobState::Running);
    let heads = [("trial", ColumnFit::Number), ("id", ColumnFit::Text)];
    let state = (!all_run).then_some(("state", ColumnFit::State));
    let result = (if all_run { "latest" } else { "result" }, ColumnFit::Number);
    let rest = [
        ("time", ColumnFit::OptionalNumber),
        ("why", ColumnFit::Optional),
        ("curve", ColumnFit::Optional),
        ("GPUs", ColumnFit::Optional),
        ("memory", ColumnFit::Optional),
        ("where", ColumnFit::Optional),
    ];
    let heads = heads.into_iter().chain(state).chain([result]).chain(rest);
    let heads = heads.map(|(name, fit)| (name.to_owned(), fit));
    let parameter_heads =
        parameters.heads().map(|(name, fit)| (shorten(&name, MAX_NAME_WIDTH), fit));
    let mut columns = Columns::new(heads.chain(parameter_heads));
    for row in rows {
        let own = [member_text(&row.trial, "sequence"), row.id()];
        let state = (!all_run).then(|| trial_state(row.state()).to_owned());
        let rest = [
            row.result(),
            row.ran_ms.map(clock).unwrap_or_default(),
            cut(&member_text(&row.trial, "message"), MAX_REASON_WIDTH),
            row.curve(detail),
            row.gpus(detail),
            row.memory(detail),
            shorten(&trial_place(&row.trial), MAX_NAME_WIDTH),
        ];
        let values = parameters.cells(&row.trial["parameters"]);
        columns.push(own.into_iter().chain(state).chain(rest).chain(values).collect());
    }
    columns
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::json;
    use unicode_width::UnicodeWidthStr as _;

    use super::*;

    /// Creates a row with a number and an id.
    pub(in super::super) fn numbered_trial(number: usize, id: &str) -> ListedTrial {
        let trial = json!({"sequence": number, "id": id, "state": "RUNNING", "latest": number});
        ListedTrial::new(trial, &Value::Null, &Value::Null, None)
    }

    fn running_trial(gpus: usize) -> ListedTrial {
        let metric = |name: &str, value: f64| json!({"name": name, "value": value});
        let curve = json!({"metrics": [metric("acc", 0.0), metric("loss", 9.0), metric("acc", 1.0), metric("acc", 0.5)]});
        let gpu = json!({"utilization_percent": 90.0, "memory_used_bytes": 2e9});
        let sample = json!({
            "cgroup": {"memory_bytes": 5e9, "memory_limit_bytes": 1e10}, "gpus": vec![gpu; gpus],
        });
        let trial = json!({
            "sequence": 1234, "id": "a1b2c", "state": "RUNNING", "metric": "acc", "latest": 0.512_345,
            "started_at_ms": 1000, "host": "ip-10-0-3-44.eu-central-1.compute.internal",
            "parameters": {"learning_rate_of_the_second_optimizer": 0.000_123_456, "act": "relu"},
        });
        ListedTrial::new(
            trial,
            &curve,
            &json!({"samples": [{"sample": sample}]}),
            Some(1000 + 3_723_000),
        )
    }

    /// Returns the heading and the rows of a list, with one blank between cells.
    fn rendered_lines(rows: &[ListedTrial], width: Option<usize>) -> Vec<String> {
        let text = render(rows, TextStyle { width, ..TextStyle::default() });
        assert!(text.lines().all(|line| line.width() <= width.unwrap_or(usize::MAX)), "{text}");
        let lines = text.lines().filter(|line| !line.starts_with('─'));
        lines.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
    }

    #[test]
    fn a_list_has_the_columns_that_fit() {
        let all = [
            "trial id latest time curve GPUs memory where learning_rat…d_optimizer act",
            "1234 a1b2c 0.5123 1:02:03 ▁█▅ █████████░ 90 % 2.0 GB █████░░░░░ 5.0 GB of 10.0 GB ip-10-0-3-44…te.internal 0.0001235 relu",
        ];
        #[rustfmt::skip]
        let table = [
            (Some(30), ["trial id latest", "1234 a1b2c 0.5123"]),
            (Some(40), ["trial id latest time", "1234 a1b2c 0.5123 1:02:03"]),
            (Some(60), ["trial id latest time curve GPUs", "1234 a1b2c 0.5123 1:02:03 ▁█▅ 90 % 2.0 GB"]),
            (Some(80), ["trial id latest time curve GPUs memory", "1234 a1b2c 0.5123 1:02:03 ▁█▅ 90 % 2.0 GB 5.0 GB of 10.0 GB"]),
            (Some(200), all),
            (None, all),
        ];
        for (width, expected) in table {
            assert_eq!(rendered_lines(&[running_trial(1)], width), expected, "{width:?}");
        }
    }

    #[test]
    fn many_gpus_are_a_summary_unless_they_fit() {
        let gpus = |width| {
            let style = TextStyle { width: Some(width), ..TextStyle::default() };
            render(&[running_trial(8)], style)
        };
        assert!(gpus(80).contains("8 × 90 % 16.0 GB"), "{}", gpus(80));
        assert!(gpus(400).contains(&["█████████░ 90 % 2.0 GB"; 8].join("  ")), "{}", gpus(400));
    }

    #[test]
    fn a_list_of_ended_trials_has_their_states_and_reasons() {
        let trial = json!({
            "sequence": 3, "id": "t", "state": "FAILED", "latest": 0.5, "message": "it exited with 1",
            "started_at_ms": 0, "ended_at_ms": 59_000,
        });
        let failed = ListedTrial::new(trial, &Value::Null, &Value::Null, Some(99));
        let done = json!({"sequence": 4, "id": "u", "state": "SUCCEEDED", "latest": 1, "final": 2});
        let done = ListedTrial::new(done, &Value::Null, &Value::Null, Some(99));
        let expected = [
            "trial id state result time why",
            "3 t failed 0.5 0:59 it exited with 1",
            "4 u succeeded 2",
        ];
        assert_eq!(rendered_lines(&[failed, done], None), expected);
    }

    #[test]
    fn memory_is_that_of_the_process_without_a_limit() {
        let sample = json!({"samples": [{"sample": {"process": {"memory_bytes": 3_321_856}}}]});
        let small = ListedTrial::new(json!({}), &Value::Null, &sample, None);
        assert_eq!(small.memory(DETAIL_LEVELS[0]), "3 MB");
        let silent = ListedTrial::new(json!({}), &Value::Null, &Value::Null, None);
        let detail = DETAIL_LEVELS[0];
        assert_eq!(
            [silent.curve(detail), silent.gpus(detail), silent.memory(detail)],
            ["", "", ""]
        );
    }
}
