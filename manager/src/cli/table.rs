//! PURE: what the API says, as tables for a person. Foreign text is made printable.

use std::fmt::Write as _;

use comfy_table::{Table, TableComponent, presets};
use serde_json::Value;

use super::progress::{counted, printable};
use crate::view;

/// Characters of a cell.
const WIDTH: usize = 60;
/// Characters of a number's or another value's column.
const BRIEF: usize = 20;
/// Characters of a line of a reason, which is never cut.
const LINE: usize = 90;
/// Parameters that have a column.
const COLUMNS: usize = 6;

/// A member as text; empty where it is absent.
pub(super) fn text(of: &Value, name: &str) -> String {
    of.get(name).map(cell).unwrap_or_default()
}

/// A value on one line of bounded width.
pub(super) fn cell(value: &Value) -> String {
    let text = match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => value.to_string(),
    };
    cut(&printable(&text), WIDTH)
}

/// At most so many characters.
pub(super) fn cut(text: &str, width: usize) -> String {
    if text.chars().nth(width).is_none() {
        return text.to_owned();
    }
    text.chars().take(width.saturating_sub(1)).chain(['…']).collect()
}

/// A name that others chose, as a heading.
pub(super) fn heading(name: &str) -> String {
    cut(&printable(name), WIDTH)
}

/// A value for a column: floats to four significant digits, for all are shown where one thing is.
pub(super) fn brief(value: &Value) -> String {
    let rounded = value.as_f64().filter(|_| value.is_f64()).and_then(|number| {
        let number: f64 = format!("{number:.3e}").parse().ok()?;
        Some(if (1e-4..1e6).contains(&number.abs()) || number == 0.0 {
            number.to_string()
        } else {
            format!("{number:e}")
        })
    });
    rounded.unwrap_or_else(|| cut(&cell(value), BRIEF))
}

/// A member for a column.
pub(super) fn brief_text(of: &Value, name: &str) -> String {
    of.get(name).map(brief).unwrap_or_default()
}

/// A text's own lines, each printable.
fn lines(text: &str) -> Vec<String> {
    text.trim_end().lines().map(printable).collect()
}

/// A member whole, on as many lines as it takes.
fn wrapped(of: &Value, name: &str) -> String {
    let text = of.get(name).and_then(Value::as_str).unwrap_or_default();
    let mut wrapped = Vec::new();
    for own in lines(text) {
        let mut line = String::new();
        for word in own.split(' ') {
            if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > LINE {
                wrapped.push(std::mem::take(&mut line));
            } else if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
        wrapped.push(line);
    }
    wrapped.join("\n")
}

/// A moment, in universal time.
fn moment(of: &Value, name: &str) -> String {
    let ms = of.get(name).and_then(Value::as_i64);
    let at = ms.and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
    at.map(|at| at.strftime("%Y-%m-%d %H:%M:%S").to_string()).unwrap_or_default()
}

fn seconds(from: Option<&Value>, to: Option<&Value>) -> String {
    let span = from.and_then(Value::as_i64).zip(to.and_then(Value::as_i64));
    span.map_or_else(String::new, |(from, to)| {
        let ms = to.saturating_sub(from).max(0);
        format!("{}.{}", ms / 1000, ms % 1000 / 100)
    })
}

fn table(header: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    for component in [TableComponent::HeaderLines, TableComponent::MiddleHeaderIntersections] {
        table.set_style(component, '─');
    }
    table.set_header(header.iter().map(|name| heading(name)));
    for row in rows {
        table.add_row(row);
    }
    format!("{}\n", table.trim_fmt())
}

/// Names and values, a line each, or as many as a value has; a name without a value is left out.
fn pairs(pairs: impl Iterator<Item = (String, String)>) -> String {
    let pairs: Vec<_> = pairs.filter(|(_, value)| !value.is_empty()).collect();
    let width = pairs.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    pairs.into_iter().fold(String::new(), |mut text, (name, value)| {
        let value = value.replace('\n', &format!("\n{:width$}  ", ""));
        writeln!(text, "{name:width$}  {value}").unwrap_or_default();
        text
    })
}

fn items<'a>(of: &'a Value, name: &str) -> impl Iterator<Item = &'a Value> {
    of.get(name).and_then(Value::as_array).into_iter().flatten()
}

/// The experiments of this machine.
pub(super) fn experiments(all: &Value) -> String {
    let all = all.as_array().map(Vec::as_slice).unwrap_or_default();
    let any = |name: &str| all.iter().any(|one| one.get(name).is_some_and(Value::is_string));
    let (run, troubled) = (any("url"), any("trouble"));
    let rows = all.iter().map(|one| {
        let own = vec![
            text(one, "id"),
            text(one, "state"),
            moment(one, "created_at_ms"),
            text(one, "name"),
        ];
        let url = run.then(|| text(one, "url"));
        own.into_iter().chain(url).chain(troubled.then(|| wrapped(one, "trouble"))).collect()
    });
    let header = ["id", "state", "created (UTC)", "name"].into_iter();
    let header = header.chain(run.then_some("run at")).chain(troubled.then_some("trouble"));
    table(&header.collect::<Vec<_>>(), rows)
}

/// How an experiment stands.
pub(super) fn experiment(one: &Value) -> String {
    let counts = |name: &str| {
        let members = one.get(name).and_then(Value::as_object).into_iter().flatten();
        let said: Vec<_> =
            members.map(|(word, count)| format!("{} {count}", printable(word))).collect();
        said.join(", ")
    };
    let best = one.get("best").filter(|best| !best.is_null());
    let best_said = best.map_or_else(String::new, |best| {
        format!(
            "{} by trial {} ({})",
            text(best, "final"),
            text(best, "sequence"),
            text(best, "id")
        )
    });
    let parameters = best.map(parameters).unwrap_or_default();
    let own = [
        ("id", text(one, "id")),
        ("name", text(one, "name")),
        ("state", text(one, "state")),
        ("trouble", wrapped(one, "trouble")),
        ("created (UTC)", moment(one, "created_at_ms")),
        (
            "running time",
            // Of one whose manager was killed it is not known.
            one.get("elapsed_ms")
                .and_then(Value::as_u64)
                .filter(|ms| *ms > 0)
                .map(|ms| format!("{} s", ms / 1000))
                .unwrap_or_default(),
        ),
        ("trials", text(one, "trials")),
        ("at most", text(one, "max_trial_number")),
        ("at a time", text(one, "trial_concurrency")),
        ("counts", counts("counts")),
        ("failures", counts("causes")),
        ("objective", objective(one)),
        ("best", best_said),
        ("code", items(one, "code").map(code).collect::<Vec<_>>().join("\n")),
        ("difference", wrapped(one, "code_difference")),
    ];
    let own = own.into_iter().map(|(name, value)| (name.to_owned(), value));
    pairs(own.chain(parameters))
}

/// The metric that counts, its direction, and what is doubtful about them.
fn objective(one: &Value) -> String {
    let named = [text(one, "objective"), text(one, "chosen_objective")];
    let [named, chosen] = named.map(|name| printable(&name));
    let metric = match (named.is_empty(), chosen.is_empty()) {
        (false, _) => named,
        (true, false) => format!(
            "{chosen}, chosen from what trials print; `objective` in the experiment file names another"
        ),
        (true, true) => return String::new(),
    };
    let warning = wrapped(one, "direction_warning");
    let assumed = one.get("optimize_mode_assumed") == Some(&Value::Bool(true));
    let mode = text(one, "optimize_mode");
    let direction = if assumed { format!("{mode}, assumed") } else { mode };
    let lines = [format!("{direction}: {metric}"), warning];
    lines.into_iter().filter(|line| !line.is_empty()).collect::<Vec<_>>().join("\n")
}

/// A version of the code in a few words.
fn code(version: &Value) -> String {
    let known = serde_json::from_value(version.clone()).ok();
    let brief = known.map(|version| printable(&view::code::brief(&version))).unwrap_or_default();
    match version.get("trials").and_then(Value::as_str) {
        Some(trials) => format!("{brief}: trials {}", printable(trials)),
        None => brief,
    }
}

/// A trial's parameters as names and values, a line each.
fn parameters(trial: &Value) -> Vec<(String, String)> {
    let flat = view::flat(trial.get("parameters").unwrap_or(&Value::Null)).into_iter();
    flat.map(|(name, value)| (format!("  {}", heading(&name)), cell(value))).collect()
}

/// The parameters that have a column, in the order in which they are first met, and how many have none.
pub(super) fn columns<'a>(
    all: impl Iterator<Item = &'a Value>,
    most: usize,
) -> (Vec<String>, usize) {
    let mut names: Vec<String> = Vec::new();
    for (name, _) in all.flat_map(view::flat) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let more = names.len().saturating_sub(most);
    names.truncate(most);
    (names, more)
}

/// A parameter for a column; empty where a trial has none of that name.
pub(super) fn parameter(flat: &[(String, &Value)], name: &str) -> String {
    let found = flat.iter().find(|(known, _)| known == name);
    found.map(|(_, value)| brief(value)).unwrap_or_default()
}

/// That there are parameters without a column; nothing where there are none.
pub(super) fn more(parameters: usize, whole: &str) -> String {
    match parameters {
        0 => String::new(),
        _ => format!("{} more; {whole}\n", counted(parameters, "parameter")),
    }
}

/// A list of trials.
pub(super) fn trials(all: &Value) -> String {
    let all = all.as_array().map(Vec::as_slice).unwrap_or_default();
    let (names, left) = columns(all.iter().filter_map(|trial| trial.get("parameters")), COLUMNS);
    let header: Vec<_> = ["trial", "id", "state", "final", "latest", "seconds"]
        .into_iter()
        .chain(names.iter().map(String::as_str))
        .chain(["why"])
        .collect();
    let rows = all.iter().map(|trial| {
        let flat = view::flat(trial.get("parameters").unwrap_or(&Value::Null));
        let mut row: Vec<_> =
            ["sequence", "id", "state"].into_iter().map(|name| text(trial, name)).collect();
        row.extend(["final", "latest"].into_iter().map(|name| brief_text(trial, name)));
        row.push(seconds(trial.get("started_at_ms"), trial.get("ended_at_ms")));
        row.extend(names.iter().map(|name| parameter(&flat, name)));
        row.push(text(trial, "message"));
        row
    });
    table(&header, rows) + &more(left, "`trial show` and `-o json` have all")
}

/// One trial.
pub(super) fn trial(one: &Value) -> String {
    let command = items(one, "command").filter_map(Value::as_str).map(str::to_owned);
    let command = view::command_line(&command.collect::<Vec<_>>());
    let own = [
        ("trial", text(one, "sequence")),
        ("id", text(one, "id")),
        ("state", text(one, "state")),
        ("metric", text(one, "metric")),
        ("final", text(one, "final")),
        ("latest", text(one, "latest")),
        ("began (UTC)", moment(one, "started_at_ms")),
        ("ended (UTC)", moment(one, "ended_at_ms")),
        ("seconds", seconds(one.get("started_at_ms"), one.get("ended_at_ms"))),
        ("exit code", text(one, "exit_code")),
        ("why", wrapped(one, "message")),
        ("being stopped", text(one, "stopping")),
        ("command", lines(&command).join("\n")),
        ("host", text(one, "host")),
        ("code", one.get("code").map(code).unwrap_or_default()),
        ("attempt", text(one, "attempt")),
        ("attempts", items(one, "attempts").count().to_string()),
    ];
    let own = own.into_iter().map(|(name, value)| (name.to_owned(), value));
    pairs(own.chain(parameters(one)))
}

/// Why a trial stands where it does.
pub(super) fn why(one: &Value) -> String {
    let mut said = pairs(
        [("state", text(one, "state")), ("why", wrapped(one, "message"))]
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value)),
    );
    if let Some(verdict) = one.get("verdict").filter(|verdict| !verdict.is_null()) {
        said.push_str("\nverdict\n");
        let members = ["cause", "class", "confidence", "exit", "stop", "duration_ms"];
        let members = members.into_iter().map(|name| (name, text(verdict, name)));
        // What the trial's own line says already is not said twice.
        let message =
            (verdict.get("message") != one.get("message")).then(|| wrapped(verdict, "message"));
        let message = message.map(|message| ("message", message));
        let members = message.into_iter().chain(members);
        said.push_str(&pairs(members.map(|(name, value)| (format!("  {name}"), value))));
        let evidence = verdict.get("evidence").and_then(Value::as_object).into_iter().flatten();
        for (name, value) in evidence {
            match value.as_str() {
                Some(lines) if name.ends_with("_tail") => {
                    writeln!(said, "  {}", name.replace('_', " ")).unwrap_or_default();
                    for line in lines.lines() {
                        writeln!(said, "    | {}", printable(line)).unwrap_or_default();
                    }
                }
                _ => writeln!(said, "  {}: {}", heading(name), cell(value)).unwrap_or_default(),
            }
        }
    }
    said.push('\n');
    let rows = items(one, "timeline").map(|entry| {
        let why = wrapped(entry, "message");
        vec![moment(entry, "at_ms"), text(entry, "by"), text(entry, "what"), why]
    });
    said.push_str(&table(&["time (UTC)", "by", "what", "why"], rows));
    said
}

/// Trials that run, as `top` shows them.
pub(super) fn running(rows: Vec<Vec<String>>) -> String {
    table(&["trial", "id", "latest", "curve", "memory", "GPUs"], rows.into_iter())
}

/// A trial's metrics.
pub(super) fn metrics(all: &Value) -> String {
    let rows = all.as_array().into_iter().flatten().map(|one| {
        ["name", "type", "step", "value"].into_iter().map(|name| text(one, name)).collect()
    });
    table(&["metric", "type", "step", "value"], rows)
}

#[cfg(test)]
mod tests;
