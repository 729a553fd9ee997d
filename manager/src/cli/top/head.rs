//! PURE: the upper part of `top`: a search's state, progress and best result.

use serde_json::Value;
use trial_protocol::OBJECTIVE;
use unicode_width::UnicodeWidthStr as _;

use crate::cli::terminal::cells::{heading, member_text, shorten};
use crate::cli::terminal::parameter_cells::parameter_cells;
use crate::cli::terminal::plain_text::printable;
use crate::cli::terminal::sparkline::{bar, sparkline};
use crate::cli::terminal::text_style::TextStyle;
use crate::cli::terminal::trial_cells::{estimate, result_text};
use crate::job_state::JobState;
use crate::view;
use crate::view::state_names::{experiment_state, trial_state};

/// The length of the bar of trials, in columns, and its length in a narrow terminal.
const BAR_WIDTH: usize = 24;
const SHORT_BAR_WIDTH: usize = 10;
/// The width of a long name in a narrow terminal, and the minimum width of a shortened name.
const MAX_NAME_WIDTH: usize = 24;
const MIN_NAME_WIDTH: usize = 8;
/// The maximum number of lines for the parameters of the best trial.
const MAX_PARAMETER_LINES: usize = 2;
/// The states in the order in which their trials are counted.
const COUNTED_STATES: [JobState; 8] = [
    JobState::Running,
    JobState::Waiting,
    JobState::Succeeded,
    JobState::EarlyStopped,
    JobState::Failed,
    JobState::Lost,
    JobState::UserCanceled,
    JobState::SysCanceled,
];

/// Returns the lines for an experiment from the API, the most important lines first.
pub(super) fn head(one: &Value, style: TextStyle) -> Vec<String> {
    let mut lines = vec![title(one, style), progress(one, style)];
    lines.extend(counts(one, style));
    lines.extend(best(one, style));
    for (member, paint) in [
        ("trouble", "FAILED"),
        ("direction_warning", "LOST"),
        ("untold_direction", "LOST"),
        ("code_difference", "LOST"),
    ] {
        let sentence = one.get(member).and_then(Value::as_str).unwrap_or_default();
        let wrapped = sentence.lines().map(|line| style.wrap(&printable(line), 0));
        let wrapped = wrapped.collect::<Vec<_>>().join("\n");
        lines.extend(wrapped.lines().map(|line| style.paint(paint, line)));
    }
    lines.into_iter().filter(|line| !line.is_empty()).collect()
}

/// Returns the first of these lines that fits, or else the last one.
fn first_fitting<const COUNT: usize>(lines: [String; COUNT], style: TextStyle) -> String {
    let room = style.width.unwrap_or(usize::MAX);
    let mut left = lines.into_iter().peekable();
    while let Some(line) = left.next() {
        if line.width() <= room || left.peek().is_none() {
            return line;
        }
    }
    String::new()
}

/// Distributes parts over lines, without splitting a part. Each part is its plain text and its text with colours. If
/// `most` lines have no room for all, the last line ends with the number of the others.
fn flow(parts: &[(String, String)], most: usize, style: TextStyle) -> Vec<String> {
    const PART_GAP: usize = 3;
    let room = style.width.unwrap_or(usize::MAX);
    let (mut lines, mut used) = (vec![String::new()], 0);
    for (at, (plain, painted)) in parts.iter().enumerate() {
        let left = parts.len() - at;
        let more = format!("and {left} more");
        // The last line keeps room for the number of the others.
        let is_last = lines.len() == most;
        let spare = if is_last && left > 1 { PART_GAP + more.width() } else { 0 };
        if used > 0 && used + PART_GAP + plain.width() + spare > room {
            if is_last {
                lines[most - 1].push_str(&" ".repeat(PART_GAP));
                lines[most - 1].push_str(&more);
                break;
            }
            lines.push(String::new());
            used = 0;
        }
        let gap = if used > 0 { PART_GAP } else { 0 };
        let last = lines.len() - 1;
        lines[last].push_str(&" ".repeat(gap));
        lines[last].push_str(painted);
        used += gap + plain.width();
    }
    lines
}

/// Returns the name and the id of the experiment, its state and its run time.
fn title(one: &Value, style: TextStyle) -> String {
    let name = printable(one.get("name").and_then(Value::as_str).unwrap_or_default());
    let (id, state) = (member_text(one, "id"), member_text(one, "state"));
    let word = printable(&experiment_state(&state));
    let elapsed = number(one, "elapsed_ms").filter(|ms| *ms > 0).map(view::format_duration);
    let elapsed = elapsed.map(|span| format!(" for {span}")).unwrap_or_default();
    let room = style.width.unwrap_or(usize::MAX);
    let titled = |name: &str| if name.is_empty() { id.clone() } else { format!("{name} ({id})") };
    let beside = |elapsed: &str| room.saturating_sub(2 + word.width() + elapsed.width());
    // The name gives way to the id, with which other commands find the experiment, and to the state.
    let shown = |elapsed: &str| {
        let around = if name.is_empty() { 0 } else { id.width() + 3 };
        let space = beside(elapsed).checked_sub(around)?;
        let fits = name.width() <= space || space >= MIN_NAME_WIDTH;
        fits.then(|| titled(&shorten(&name, space)))
    };
    let (title, elapsed) = match (shown(&elapsed), shown("")) {
        (Some(title), _) => (title, elapsed.as_str()),
        (None, Some(title)) => (title, ""),
        (None, None) => (id.clone(), ""),
    };
    format!("{title}  {}{elapsed}", style.paint(&state, &word))
}

fn number(of: &Value, name: &str) -> Option<u64> {
    of.get(name).and_then(Value::as_u64)
}

/// Returns the number of trials that have ended, their rate, and the remaining time. If the number of trials is
/// limited, a bar shows the share. Without room, the bar becomes shorter, then the rate is left out, then the bar.
fn progress(one: &Value, style: TextStyle) -> String {
    let count = |state: &str| one.pointer(&format!("/counts/{state}")).and_then(Value::as_u64);
    let going = ["RUNNING", "WAITING", "LOST", "UNKNOWN"];
    let going: u64 = going.into_iter().filter_map(count).sum();
    let ended = number(one, "trials").unwrap_or(0).saturating_sub(going);
    let limit = number(one, "max_trial_number").filter(|limit| *limit > 0);
    let rate = one.get("ended_per_hour").and_then(Value::as_f64).filter(|rate| *rate > 0.0);
    let real = |count: u64| u32::try_from(count).map_or(f64::MAX, f64::from);
    let trials = match limit {
        Some(limit) => format!("{ended} of {limit} trials"),
        None => format!("{ended} trials have ended"),
    };
    let bar = |width: usize| limit.map(|limit| bar(real(ended) / real(limit), width) + " ");
    let per_hour = rate.map(|rate| format!("   {rate:.0} per hour")).unwrap_or_default();
    let to_come = match member_text(one, "state").as_str() {
        "RUNNING" => limit.map(|limit| limit.saturating_sub(ended)),
        // No other trial is started.
        "NO_MORE_TRIAL" | "TUNER_NO_MORE_TRIAL" => Some(going),
        _ => None,
    };
    let left = to_come.zip(rate).and_then(|(trials, rate)| {
        let hours = real(trials) / rate;
        let left = std::time::Duration::try_from_secs_f64(hours * 3600.0).ok()?;
        let ms = u64::try_from(left.as_millis()).ok().filter(|ms| *ms > 0)?;
        Some(format!("   about {} left", view::format_duration(ms)))
    });
    let left = left.unwrap_or_default();
    let [long, short] = [BAR_WIDTH, SHORT_BAR_WIDTH].map(|width| bar(width).unwrap_or_default());
    let lines = [
        format!("{long}{trials}{per_hour}{left}"),
        format!("{short}{trials}{per_hour}{left}"),
        format!("{short}{trials}{left}"),
        format!("{trials}{left}"),
        trials,
    ];
    first_fitting(lines, style)
}

fn counts(one: &Value, style: TextStyle) -> Vec<String> {
    let count = |state: &str| one.pointer(&format!("/counts/{state}")).and_then(Value::as_u64);
    let counted = COUNTED_STATES.into_iter().filter_map(|state| {
        let count = count(state.as_str()).filter(|count| *count > 0)?;
        let words = format!("{count} {}", trial_state(state));
        Some((words.clone(), style.paint(state.as_str(), &words)))
    });
    flow(&counted.collect::<Vec<_>>(), COUNTED_STATES.len(), style)
}

/// Returns the best result so far, the curve of improvements, and the parameters.
fn best(one: &Value, style: TextStyle) -> Vec<String> {
    // Several objectives have no best trial. The front begins with the best trial of the first objective.
    let front = one.get("pareto").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let best = one.get("best").filter(|best| !best.is_null()).or_else(|| front.first());
    let Some(best) = best else { return Vec::new() };
    let objective = one.pointer("/objectives/0/metric").and_then(Value::as_str);
    let improvements = one.get("improvements").and_then(Value::as_array).into_iter().flatten();
    let values = improvements.filter_map(|step| step.get("value").and_then(Value::as_f64));
    let curve = sparkline(&values.collect::<Vec<_>>());
    let name = objective.map_or_else(|| member_text(best, "metric"), str::to_owned);
    let metric = Some(&name).filter(|name| *name != OBJECTIVE);
    let metric = metric.map(|name| heading(name)).unwrap_or_default();
    let result =
        estimate(best).map_or_else(|| result_text(best, "final", &name), |mean| format!("{mean},"));
    let by = format!("{result} by trial {}", member_text(best, "sequence"));
    let of = match front.len() {
        0 => String::new(),
        count => format!(", Pareto front of {count}"),
    };
    let line = |width: usize, id: String, curve: &str| {
        let metric = shorten(&metric, width);
        let metric = if metric.is_empty() { metric } else { format!("{metric} ") };
        format!("best {metric}{by}{id}{of}   {curve}").trim_end().to_owned()
    };
    let id = || format!(" ({})", member_text(best, "id"));
    let lines = [
        line(usize::MAX, id(), &curve),
        line(MAX_NAME_WIDTH, id(), &curve),
        line(MAX_NAME_WIDTH, String::new(), &curve),
        line(MAX_NAME_WIDTH, String::new(), ""),
        line(MIN_NAME_WIDTH, String::new(), ""),
    ];
    let parameters = parameter_cells(best).into_iter().map(|(name, value)| {
        let part = format!("{} {value}", shorten(&name, MAX_NAME_WIDTH));
        (part.clone(), part)
    });
    let parameters = flow(&parameters.collect::<Vec<_>>(), MAX_PARAMETER_LINES, style);
    [first_fitting(lines, style)].into_iter().chain(parameters).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_head_shows_a_search_in_a_few_lines() {
        let one = json!({
            "id": "abc", "name": "digits", "state": "RUNNING", "elapsed_ms": 1_068_000, "trials": 12,
            "max_trial_number": 20, "ended_per_hour": 60.0, "counts": {"RUNNING": 2, "SUCCEEDED": 9, "FAILED": 1},
            "best": {"id": "t", "sequence": 7, "metric": "acc", "final": 0.912_345_6, "parameters": {"lr": 0.1, "act": "re\nlu"}},
            "improvements": [{"sequence": 0, "value": 0.5}, {"sequence": 7, "value": 0.9}],
            "trouble": null,
        });
        let expected = [
            "digits (abc)  running for 17 min 48 s",
            "████████████░░░░░░░░░░░░ 10 of 20 trials   60 per hour   about 10 min left",
            "2 running   9 succeeded   1 failed",
            "best acc 0.9123 by trial 7 (t)   ▁█",
            "lr 0.1   act re\u{fffd}lu",
        ];
        assert_eq!(head(&one, TextStyle::default()), expected);
        let at = |width| head(&one, TextStyle { width: Some(width), ..TextStyle::default() });
        assert_eq!(at(74), expected);
        let narrow = "█████░░░░░ 10 of 20 trials   60 per hour   about 10 min left";
        assert_eq!(at(60)[..2], ["digits (abc)  running for 17 min 48 s", narrow]);
        assert_eq!(
            at(37)[..4],
            [
                "digits (abc)  running for 17 min 48 s",
                "10 of 20 trials   about 10 min left",
                "2 running   9 succeeded   1 failed",
                "best acc 0.9123 by trial 7 (t)   ▁█",
            ]
        );
        assert_eq!(
            at(24)[..5],
            [
                "digits (abc)  running",
                "10 of 20 trials",
                "2 running   9 succeeded",
                "1 failed",
                "best acc 0.9123 by trial 7",
            ]
        );
        let coloured = head(&one, TextStyle { width: Some(80), colours: true, links: false });
        assert!(coloured[0].contains("\u{1b}[36mrunning\u{1b}[0m"), "{coloured:?}");
        assert!(coloured[2].ends_with("\u{1b}[31m1 failed\u{1b}[0m"), "{coloured:?}");
        let bare = head(&json!({"id": "abc", "state": "DONE", "trials": 0}), TextStyle::default());
        assert_eq!(bare, ["abc  done", "0 trials have ended"]);
    }

    #[test]
    fn several_objectives_have_a_front_instead_of_a_best_trial() {
        let trial = json!({"id": "t", "sequence": 7, "metric": "loss", "parameters": {"lr": 0.1},
            "final": {"default": "Infinity", "loss": 0.123_456, "speed": 3}});
        let one = json!({
            "id": "abc", "state": "RUNNING", "trials": 9, "best": null, "pareto": [trial, trial],
            "objectives": [{"metric": "loss"}, {"metric": "speed"}],
            "improvements": [{"sequence": 0, "value": 0.5}, {"sequence": 7, "value": 0.125}],
        });
        let lines = head(&one, TextStyle::default());
        assert_eq!(
            lines[2..],
            ["best loss 0.1235 by trial 7 (t), Pareto front of 2   █▁", "lr 0.1"]
        );
    }

    #[test]
    fn long_names_are_shortened_and_numbers_are_not() {
        let parameters: serde_json::Map<String, Value> = (0..9)
            .map(|at| (format!("a_long_name_of_a_parameter_{at}"), json!(0.123_456)))
            .collect();
        let one = json!({
            "id": "k3v9qd2m", "name": "segmentation baseline with a descriptive name", "state": "RUNNING",
            "elapsed_ms": 1_068_000, "trials": 12, "max_trial_number": 20,
            "best": {"id": "a1b2c", "sequence": 123, "metric": "validation/accuracy_top_five_of_the_ensemble", "final": 0.912_345_6, "parameters": parameters},
            "improvements": [{"sequence": 0, "value": 0.5}, {"sequence": 7, "value": 0.9}],
        });
        let lines = head(&one, TextStyle { width: Some(60), ..TextStyle::default() });
        let expected = [
            "segmentation…iptive name (k3v9qd2m)  running for 17 min 48 s",
            "██████████████░░░░░░░░░░ 12 of 20 trials",
            "best validation/a…he_ensemble 0.9123 by trial 123   ▁█",
            "a_long_name_…parameter_0 0.1235",
            "a_long_name_…parameter_1 0.1235   and 7 more",
        ];
        assert_eq!(lines, expected);
        assert!(lines.iter().all(|line| line.width() <= 60), "{lines:#?}");
    }

    #[test]
    fn a_search_that_starts_no_more_trials_shows_its_state_and_its_end() {
        #[rustfmt::skip]
        let table = [
            ("NO_MORE_TRIAL",       "abc  last trials are running",      "10 of 20 trials   60 per hour   about 2 min left"),
            ("TUNER_NO_MORE_TRIAL", "abc  tuner has no more to propose", "10 of 20 trials   60 per hour   about 2 min left"),
            ("STOPPED",             "abc  stopped",                      "10 of 20 trials   60 per hour"),
        ];
        for (state, title, progress) in table {
            let one = json!({
                "id": "abc", "state": state, "trials": 12, "max_trial_number": 20, "ended_per_hour": 60.0,
                "counts": {"RUNNING": 2, "SUCCEEDED": 10},
            });
            let lines = head(&one, TextStyle::default());
            assert!(lines[0] == title && lines[1].ends_with(progress), "{lines:?}");
        }
    }
}
