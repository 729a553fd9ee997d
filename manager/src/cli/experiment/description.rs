//! PURE: the description of an experiment.

use serde_json::Value;

use crate::cli::terminal::cells::{cell, list_items, member_text, moment};
use crate::cli::terminal::description::{
    LABEL_WIDTH, PAGE_MEMBER, linked_id, name_values, state, wrapped,
};
use crate::cli::terminal::parameter_cells::parameters;
use crate::cli::terminal::plain_text::printable;
use crate::cli::terminal::text_style::TextStyle;
use crate::cli::terminal::trial_cells::{code, estimate, part_name};
use crate::view;

/// Returns the description of an experiment.
pub(super) fn experiment(one: &Value, style: TextStyle) -> String {
    let counts = |name: &str| {
        let members = one.get(name).and_then(Value::as_object).into_iter().flatten();
        let counts: Vec<_> =
            members.map(|(word, count)| format!("{} {count}", printable(word))).collect();
        counts.join(", ")
    };
    let best = one.get("best").filter(|best| !best.is_null());
    let best_text = best.map_or_else(String::new, |best| {
        let result = estimate(best).map_or_else(|| member_text(best, "final"), |mean| mean + ",");
        let id = linked_trial(one, best, style);
        format!("{result} by trial {} ({id})", member_text(best, "sequence"))
    });
    let parameters = best.map(parameters).unwrap_or_default();
    let before = [
        ("id", linked_id(one, style)),
        ("name", member_text(one, "name")),
        ("state", state(one, style)),
        ("trouble", wrapped(one, "trouble", style, LABEL_WIDTH)),
        ("created (UTC)", moment(one, "created_at_ms")),
        (
            "run time",
            // 0 if unknown, because the manager was killed.
            one.get("elapsed_ms")
                .and_then(Value::as_u64)
                .filter(|ms| *ms > 0)
                .map(view::format_duration)
                .unwrap_or_default(),
        ),
        ("trials", member_text(one, "trials")),
        ("max trials", member_text(one, "max_trial_number")),
        ("concurrency", member_text(one, "trial_concurrency")),
        ("counts", counts("counts")),
        ("failures", counts("causes")),
        ("objective", objective(one, style, LABEL_WIDTH)),
        ("direction", wrapped(one, "untold_direction", style, LABEL_WIDTH)),
        ("best", best_text),
    ];
    let after = [
        ("objectives", objectives(one)),
        ("Pareto front", lines(one, "pareto", |trial| front_trial(one, trial, style))),
        ("services", lines(one, "training_services", service_part)),
        ("code", lines(one, "code", code)),
        ("difference", wrapped(one, "code_difference", style, LABEL_WIDTH)),
        ("packages", member_text(one, "packages_file")),
    ];
    let named = |(name, value): (&str, String)| (name.to_owned(), value);
    name_values(before.into_iter().map(named).chain(parameters).chain(after.into_iter().map(named)))
}

/// Returns a line for each item of a list.
fn lines(of: &Value, name: &str, describe: impl Fn(&Value) -> String) -> String {
    list_items(of, name).map(describe).collect::<Vec<_>>().join("\n")
}

/// Returns the id of a trial as a hyperlink to its page, if the page of its experiment is known.
fn linked_trial(one: &Value, trial: &Value, style: TextStyle) -> String {
    let (page, id) = (member_text(one, PAGE_MEMBER), member_text(trial, "id"));
    let page = if page.is_empty() { page } else { format!("{page}/trials/{id}") };
    style.link(&page, &id)
}

/// Returns the objectives and their directions, if there are several.
fn objectives(one: &Value) -> String {
    let parts = list_items(one, "objectives").map(|objective| {
        format!("{} {}", member_text(objective, "direction"), member_text(objective, "metric"))
    });
    parts.collect::<Vec<_>>().join(", ")
}

/// Returns a short description of a trial of the Pareto front.
fn front_trial(one: &Value, trial: &Value, style: TextStyle) -> String {
    let values = list_items(one, "objectives").map(|objective| {
        let metric = member_text(objective, "metric");
        let value = trial.get("final").and_then(|last| last.get(&metric)).map(cell);
        format!("{metric} {}", value.unwrap_or_default())
    });
    let values = values.collect::<Vec<_>>().join(", ");
    let id = linked_trial(one, trial, style);
    format!("{values} by trial {} ({id})", member_text(trial, "sequence"))
}

/// Returns the metric that counts, its direction, and any warning about them.
fn objective(one: &Value, style: TextStyle, indent: usize) -> String {
    let (named, chosen) = (member_text(one, "objective"), member_text(one, "chosen_objective"));
    let metric = match (named.is_empty(), chosen.is_empty()) {
        (false, _) => named,
        (true, false) => format!(
            "{chosen}, chosen from the metrics that trials print; set `objective` in the experiment file to choose another"
        ),
        (true, true) => return String::new(),
    };
    let warning = wrapped(one, "direction_warning", style, indent);
    let assumed = one.get("optimize_mode_assumed") == Some(&Value::Bool(true));
    let mode = member_text(one, "optimize_mode");
    let direction = if assumed { format!("{mode}, assumed") } else { mode };
    let lines = [style.wrap(&format!("{direction}: {metric}"), indent), warning];
    lines.into_iter().filter(|line| !line.is_empty()).collect::<Vec<_>>().join("\n")
}

/// Returns the line for one of several training services.
fn service_part(part: &Value) -> String {
    let count = |name: &str| part.get(name).and_then(Value::as_u64);
    let mut parts = vec![format!("{} running", count("running").unwrap_or(0))];
    let some = |name: &str, word: &str| {
        count(name).filter(|count| *count > 0).map(|count| format!("{count} {word}"))
    };
    parts.extend(some("waiting", "waiting"));
    match (count("free"), count("limit")) {
        (Some(free), Some(limit)) => parts.push(format!("room for {free} more (at most {limit})")),
        (Some(free), None) => parts.push(format!("room for {free} more")),
        (None, Some(limit)) => parts.push(format!("at most {limit}")),
        (None, None) => {}
    }
    parts.extend(some("succeeded", "succeeded"));
    parts.extend(some("failed", "failed"));
    parts.extend(count("mean_duration_ms").map(|ms| format!("{} each", view::format_duration(ms))));
    let trouble = part.get("trouble").and_then(Value::as_str);
    parts.extend(trouble.map(|why| format!("not reached: {}", printable(why))));
    format!("{}: {}", part_name(part), parts.join(", "))
}
