//! PURE: the upper part of `top`: a search's state, progress and best result.

use serde_json::Value;
use trial_protocol::OBJECTIVE;

use super::bar;
use crate::cli::progress::printable;
use crate::cli::spark::spark;
use crate::cli::table::columns::TextStyle;
use crate::cli::table::{brief_text, estimate, heading, parameter_cells, text};
use crate::job_state::JobState;
use crate::view;
use crate::view::state_names::{experiment_state, trial_state};

/// The length of the bar of trials, in columns.
const BAR: usize = 24;
/// The states in the order in which their trials are counted.
const COUNTED: [JobState; 8] = [
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
    let name = text(one, "name");
    let id = text(one, "id");
    let title = if name.is_empty() { id } else { format!("{name} ({id})") };
    let state = text(one, "state");
    let elapsed = number(one, "elapsed_ms").filter(|ms| *ms > 0).map(view::span);
    let elapsed = elapsed.map(|span| format!(" for {span}")).unwrap_or_default();
    let mut lines = vec![
        format!("{title}  {}{elapsed}", style.paint(&state, &printable(&experiment_state(&state)))),
        progress(one),
        counts(one, style),
    ];
    lines.extend(best(one));
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

fn number(of: &Value, name: &str) -> Option<u64> {
    of.get(name).and_then(Value::as_u64)
}

/// Returns the number of trials that have ended, their rate, and the remaining time. If the number of trials is
/// limited, a bar shows the share.
fn progress(one: &Value) -> String {
    let count = |state: &str| one.pointer(&format!("/counts/{state}")).and_then(Value::as_u64);
    let going = ["RUNNING", "WAITING", "LOST", "UNKNOWN"];
    let going: u64 = going.into_iter().filter_map(count).sum();
    let ended = number(one, "trials").unwrap_or(0).saturating_sub(going);
    let limit = number(one, "max_trial_number").filter(|limit| *limit > 0);
    let rate = one.get("ended_per_hour").and_then(Value::as_f64).filter(|rate| *rate > 0.0);
    let real = |count: u64| u32::try_from(count).map_or(f64::MAX, f64::from);
    let trials = match limit {
        Some(limit) => format!("{} {ended} of {limit} trials", bar(real(ended) / real(limit), BAR)),
        None => format!("{ended} trials have ended"),
    };
    let per_hour = rate.map(|rate| format!("{rate:.0} per hour"));
    let to_come = match text(one, "state").as_str() {
        "RUNNING" => limit.map(|limit| limit.saturating_sub(ended)),
        // No other trial is started.
        "NO_MORE_TRIAL" | "TUNER_NO_MORE_TRIAL" => Some(going),
        _ => None,
    };
    let left = to_come.zip(rate).and_then(|(trials, rate)| {
        let hours = real(trials) / rate;
        let left = std::time::Duration::try_from_secs_f64(hours * 3600.0).ok()?;
        let ms = u64::try_from(left.as_millis()).ok().filter(|ms| *ms > 0)?;
        Some(format!("about {} left", view::span(ms)))
    });
    [Some(trials), per_hour, left].into_iter().flatten().collect::<Vec<_>>().join("   ")
}

fn counts(one: &Value, style: TextStyle) -> String {
    let count = |state: &str| one.pointer(&format!("/counts/{state}")).and_then(Value::as_u64);
    let counted = COUNTED.into_iter().filter_map(|state| {
        let count = count(state.as_str()).filter(|count| *count > 0)?;
        Some(style.paint(state.as_str(), &format!("{count} {}", trial_state(state))))
    });
    counted.collect::<Vec<_>>().join("   ")
}

/// Returns the best result so far, the curve of improvements, and the parameters.
fn best(one: &Value) -> Vec<String> {
    let Some(best) = one.get("best").filter(|best| !best.is_null()) else { return Vec::new() };
    let improvements = one.get("improvements").and_then(Value::as_array).into_iter().flatten();
    let values = improvements.filter_map(|step| step.get("value").and_then(Value::as_f64));
    let metric = Some(text(best, "metric")).filter(|name| name != OBJECTIVE);
    let metric = metric.map(|name| format!("{} ", heading(&name))).unwrap_or_default();
    let first = format!(
        "best {metric}{} by trial {} ({})   {}",
        estimate(best).map_or_else(|| brief_text(best, "final"), |mean| format!("{mean},")),
        text(best, "sequence"),
        text(best, "id"),
        spark(&values.collect::<Vec<_>>()),
    );
    let parameters: Vec<_> =
        parameter_cells(best).into_iter().map(|(name, value)| format!("{name} {value}")).collect();
    vec![first.trim_end().to_owned(), parameters.join("   ")]
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
        let coloured = head(&one, TextStyle { width: Some(80), colours: true, links: false });
        assert!(coloured[0].contains("\u{1b}[36mrunning\u{1b}[0m"), "{coloured:?}");
        assert!(coloured[2].ends_with("\u{1b}[31m1 failed\u{1b}[0m"), "{coloured:?}");
        let bare = head(&json!({"id": "abc", "state": "DONE", "trials": 0}), TextStyle::default());
        assert_eq!(bare, ["abc  done", "0 trials have ended"]);
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
