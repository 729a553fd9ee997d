//! PURE: the answers of the API as tables for people. Control characters in foreign text are replaced.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use serde_json::Value;
use trial_protocol::OBJECTIVE;
use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

use super::plain_text::{counted, printable};
use crate::view;
use columns::{ColumnFit, Columns, TextStyle};

pub(in crate::cli) mod columns;

/// The maximum number of characters in a cell.
const CELL_WIDTH: usize = 60;
/// The maximum number of characters in a column of values.
const VALUE_WIDTH: usize = 20;
/// The maximum number of parameters with a column.
const MAX_PARAMETER_COLUMNS: usize = 6;
/// The maximum number of other numbers of a result with a column.
const MAX_OTHER_RESULTS: usize = 4;
/// The maximum width of the name of a metric at the head of a column.
const HEADING_WIDTH: usize = 24;

/// Returns a member as text, empty if it is absent.
pub(in crate::cli) fn member_text(of: &Value, name: &str) -> String {
    of.get(name).map(cell).unwrap_or_default()
}

/// Returns a value on one line of limited width.
pub(in crate::cli) fn cell(value: &Value) -> String {
    let text = match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => value.to_string(),
    };
    cut(&printable(&text), CELL_WIDTH)
}

/// Shortens a text to at most `width` characters.
pub(in crate::cli) fn cut(text: &str, width: usize) -> String {
    if text.chars().nth(width).is_none() {
        return text.to_owned();
    }
    text.chars().take(width.saturating_sub(1)).chain(['…']).collect()
}

/// Shortens a name to at most `width` columns. The beginning and the end stay, because similar names differ at either.
pub(in crate::cli) fn shorten(name: &str, width: usize) -> String {
    if name.width() <= width {
        return name.to_owned();
    }
    let room = width.saturating_sub(1);
    let fitting = |letters: &mut dyn Iterator<Item = char>, room: usize| {
        let mut used = 0;
        let fits = |letter: &char| {
            used += letter.width().unwrap_or(0);
            used <= room
        };
        letters.take_while(fits).collect::<Vec<_>>()
    };
    let first = fitting(&mut name.chars(), room.div_ceil(2));
    let last = fitting(&mut name.chars().rev(), room / 2);
    first.into_iter().chain(['…']).take(width).chain(last.into_iter().rev()).collect()
}

/// Returns a foreign name as a printable heading.
pub(in crate::cli) fn heading(name: &str) -> String {
    cut(&printable(name), CELL_WIDTH)
}

/// Returns a value for a column. Floats have four significant digits; commands that show a single object show all
/// digits.
pub(in crate::cli) fn brief(value: &Value) -> String {
    let rounded = value.as_f64().filter(|_| value.is_f64()).and_then(|number| {
        let number: f64 = format!("{number:.3e}").parse().ok()?;
        Some(if (1e-4..1e6).contains(&number.abs()) || number == 0.0 {
            number.to_string()
        } else {
            format!("{number:e}")
        })
    });
    rounded.unwrap_or_else(|| cut(&cell(value), VALUE_WIDTH))
}

/// Returns a member for a column.
pub(in crate::cli) fn brief_text(of: &Value, name: &str) -> String {
    of.get(name).map(brief).unwrap_or_default()
}

/// Returns the lines of a text, each printable.
fn printable_lines(text: &str) -> Vec<String> {
    text.trim_end().lines().map(printable).collect()
}

/// Returns a member in full length, wrapped to the space next to `indent` columns of other text.
fn wrapped(of: &Value, name: &str, style: TextStyle, indent: usize) -> String {
    let text = of.get(name).and_then(Value::as_str).unwrap_or_default();
    let lines = printable_lines(text).into_iter().map(|line| style.wrap(&line, indent));
    lines.collect::<Vec<_>>().join("\n")
}

/// Returns a member in full length, for a column that wraps its lines.
fn full_text(of: &Value, name: &str) -> String {
    printable_lines(of.get(name).and_then(Value::as_str).unwrap_or_default()).join("\n")
}

/// Returns a result with all its digits, and an object with all its members.
fn full_result(of: &Value, name: &str) -> String {
    match of.get(name) {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => printable(text),
        Some(value) => printable(&value.to_string()),
    }
}

/// Returns a time in UTC.
fn moment(of: &Value, name: &str) -> String {
    let ms = of.get(name).and_then(Value::as_i64);
    let at = ms.and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
    at.map(|at| at.strftime("%Y-%m-%d %H:%M:%S").to_string()).unwrap_or_default()
}

/// Returns the time between two moments, such as `17 min 48 s`. Empty if either of them is unknown.
pub(in crate::cli) fn duration(from_ms: Option<i64>, to_ms: Option<i64>) -> String {
    let span = from_ms.zip(to_ms).map(|(from, to)| to.saturating_sub(from));
    span.map_or_else(String::new, |ms| view::span(u64::try_from(ms).unwrap_or(0)))
}

/// Returns the duration of a trial's current attempt.
fn trial_duration(trial: &Value) -> String {
    let at = |name: &str| trial.get(name).and_then(Value::as_i64);
    duration(at("started_at_ms"), at("ended_at_ms"))
}

fn table(
    heads: impl IntoIterator<Item = (&'static str, ColumnFit)>,
    rows: impl Iterator<Item = Vec<String>>,
    style: TextStyle,
) -> String {
    let mut columns = Columns::new(heads.into_iter().map(|(name, fit)| (name.to_owned(), fit)));
    rows.for_each(|row| columns.push(row));
    columns.render(style).0
}

/// Returns lines of names and values. A value may have several lines; a name without a value is left out.
fn name_values(pairs: impl Iterator<Item = (String, String)>) -> String {
    let pairs: Vec<_> = pairs.filter(|(_, value)| !value.is_empty()).collect();
    let width = pairs.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    pairs.into_iter().fold(String::new(), |mut text, (name, value)| {
        let value = value.replace('\n', &format!("\n{:width$}  ", ""));
        writeln!(text, "{name:width$}  {value}").unwrap_or_default();
        text
    })
}

fn list_items<'a>(of: &'a Value, name: &str) -> impl Iterator<Item = &'a Value> {
    of.get(name).and_then(Value::as_array).into_iter().flatten()
}

/// Returns a list of experiments.
pub(in crate::cli) fn experiments(all: &Value, style: TextStyle) -> String {
    let all = all.as_array().map(Vec::as_slice).unwrap_or_default();
    let any = |name: &str| all.iter().any(|one| one.get(name).is_some_and(Value::is_string));
    let (run, troubled) = (any("url"), any("trouble"));
    let row = |one: &Value| {
        let count = |name: &str| one.get(name).and_then(Value::as_u64);
        let shown = |name: &str| count(name).filter(|count| *count > 0);
        let cell = |count: Option<u64>| count.map(|count| count.to_string()).unwrap_or_default();
        let most = count("max_trial_number").map(|most| format!(" of {most}")).unwrap_or_default();
        let own = vec![
            member_text(one, "id"),
            member_text(one, "state"),
            moment(one, "created_at_ms"),
            member_text(one, "name"),
            count("trials").map(|trials| format!("{trials}{most}")).unwrap_or_default(),
            cell(count("succeeded")),
            cell(shown("failed")),
            cell(shown("running")),
            one.get("best").map(|best| brief_text(best, "value")).unwrap_or_default(),
        ];
        let url = run.then(|| member_text(one, "url"));
        own.into_iter().chain(url).chain(troubled.then(|| full_text(one, "trouble"))).collect()
    };
    let heads = [
        ("id", ColumnFit::Link),
        ("state", ColumnFit::State),
        ("created (UTC)", ColumnFit::Text),
        ("name", ColumnFit::Text),
        ("trials", ColumnFit::OptionalNumber),
        ("succeeded", ColumnFit::OptionalNumber),
        ("failed", ColumnFit::OptionalNumber),
        ("running", ColumnFit::OptionalNumber),
        ("best", ColumnFit::OptionalNumber),
    ];
    let run = run.then_some(("address", ColumnFit::Text));
    let trouble = troubled.then_some(("trouble", ColumnFit::Sentence));
    let heads = heads.into_iter().chain(run).chain(trouble);
    let mut columns = Columns::new(heads.map(|(name, fit)| (name.to_owned(), fit)));
    for one in all {
        columns.push_linked(row(one), member_text(one, "url"));
    }
    columns.render(style).0
}

/// Returns the member `state` in its colour.
fn state(of: &Value, style: TextStyle) -> String {
    let state = member_text(of, "state");
    style.paint(&state, &state)
}

/// Returns the id as a hyperlink to the page, if known.
fn linked_id(of: &Value, style: TextStyle) -> String {
    style.link(&member_text(of, PAGE_MEMBER), &member_text(of, "id"))
}

/// Returns the id of a trial as a hyperlink to its page, if the page of its experiment is known.
fn linked_trial(one: &Value, trial: &Value, style: TextStyle) -> String {
    let (page, id) = (member_text(one, PAGE_MEMBER), member_text(trial, "id"));
    let page = if page.is_empty() { page } else { format!("{page}/trials/{id}") };
    style.link(&page, &id)
}

/// Returns the description of an experiment.
pub(in crate::cli) fn experiment(one: &Value, style: TextStyle) -> String {
    // The width of the longest label and the gap after it.
    const LABEL_WIDTH: usize = 15;
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
                .map(view::span)
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
        (
            "Pareto front",
            list_items(one, "pareto")
                .map(|trial| front_trial(one, trial, style))
                .collect::<Vec<_>>()
                .join("\n"),
        ),
        (
            "services",
            list_items(one, "training_services").map(service_part).collect::<Vec<_>>().join("\n"),
        ),
        ("code", list_items(one, "code").map(code).collect::<Vec<_>>().join("\n")),
        ("difference", wrapped(one, "code_difference", style, LABEL_WIDTH)),
        ("packages", member_text(one, "packages_file")),
    ];
    let named = |(name, value): (&str, String)| (name.to_owned(), value);
    name_values(before.into_iter().map(named).chain(parameters).chain(after.into_iter().map(named)))
}

/// Returns the mean of a trial's point with its confidence interval, or `None` if points are not repeated.
pub(in crate::cli) fn estimate(trial: &Value) -> Option<String> {
    let estimate = trial.get("estimate").filter(|estimate| !estimate.is_null())?;
    let within = estimate.get("half_width").map(|half_width| format!(" ± {}", brief(half_width)));
    let (mean, within) = (brief_text(estimate, "mean"), within.unwrap_or_default());
    Some(format!("{mean}{within}, the mean of {} trials", member_text(estimate, "results")))
}

/// Returns the objectives and their directions, if there are several.
fn objectives(one: &Value) -> String {
    let parts = list_items(one, "objectives").map(|objective| {
        format!(
            "{} {}",
            member_text(objective, "direction"),
            printable(&member_text(objective, "metric"))
        )
    });
    parts.collect::<Vec<_>>().join(", ")
}

/// Returns a short description of a trial of the Pareto front.
fn front_trial(one: &Value, trial: &Value, style: TextStyle) -> String {
    let values = list_items(one, "objectives").map(|objective| {
        let metric = member_text(objective, "metric");
        let value = trial.get("final").and_then(|last| last.get(&metric)).map(cell);
        format!("{} {}", printable(&metric), value.unwrap_or_default())
    });
    let values = values.collect::<Vec<_>>().join(", ");
    let id = linked_trial(one, trial, style);
    format!("{values} by trial {} ({id})", member_text(trial, "sequence"))
}

/// Returns the metric that counts, its direction, and any warning about them.
fn objective(one: &Value, style: TextStyle, indent: usize) -> String {
    let named = [member_text(one, "objective"), member_text(one, "chosen_objective")];
    let [named, chosen] = named.map(|name| printable(&name));
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
    parts.extend(count("mean_duration_ms").map(|ms| format!("{} each", view::span(ms))));
    let trouble = part.get("trouble").and_then(Value::as_str);
    parts.extend(trouble.map(|why| format!("not reached: {}", printable(why))));
    format!("{}: {}", part_name(part), parts.join(", "))
}

/// Returns the name of one of several training services.
fn part_name(part: &Value) -> String {
    format!("[{}] {}", member_text(part, "index"), printable(&member_text(part, "platform")))
}

/// Returns a short description of a version of the code.
fn code(version: &Value) -> String {
    let known = serde_json::from_value(version.clone()).ok();
    let brief = known.map(|version| printable(&view::code::brief(&version))).unwrap_or_default();
    match version.get("trials").and_then(Value::as_str) {
        Some(trials) => {
            let plural = if trials.contains(['-', ',']) { "s" } else { "" };
            format!("{brief}: trial{plural} {}", printable(trials))
        }
        None => brief,
    }
}

/// Returns a trial's parameters as names and values, for a line each.
fn parameters(trial: &Value) -> Vec<(String, String)> {
    let flat =
        view::flatten_parameters(trial.get("parameters").unwrap_or(&Value::Null)).into_iter();
    flat.map(|(name, value)| (format!("  {}", heading(&name)), cell(value))).collect()
}

/// Returns a trial's parameters as names and short values, for a common line.
pub(in crate::cli) fn parameter_cells(trial: &Value) -> Vec<(String, String)> {
    let flat =
        view::flatten_parameters(trial.get("parameters").unwrap_or(&Value::Null)).into_iter();
    flat.map(|(name, value)| (heading(&name), brief(value))).collect()
}

/// Returns the parameters with a column, in the order of their first occurrence, and the number of parameters without a
/// column.
pub(in crate::cli) fn parameter_columns<'a>(
    all: impl Iterator<Item = &'a Value>,
    most: usize,
) -> (Vec<String>, usize) {
    let mut names: Vec<String> = Vec::new();
    for (name, _) in all.flat_map(view::flatten_parameters) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let more = names.len().saturating_sub(most);
    names.truncate(most);
    (names, more)
}

/// Returns a parameter for a column. Empty if the trial has no parameter of that name.
pub(in crate::cli) fn parameter(flat: &[(String, &Value)], name: &str) -> String {
    let found = flat.iter().find(|(known, _)| known == name);
    found.map(|(_, value)| brief(value)).unwrap_or_default()
}

/// Returns a note on the number of parameters without a column. Empty if there are none.
pub(in crate::cli) fn omitted_parameters_note(parameters: usize, whole: &str) -> String {
    match parameters {
        0 => String::new(),
        _ => format!("{}; {whole}\n", counted(parameters, "more parameter")),
    }
}

/// The member of a trial or an experiment with the address of its page, if known.
pub(in crate::cli) const PAGE_MEMBER: &str = "page";

/// Returns a list of trials.
pub(in crate::cli) fn trials(all: &Value, style: TextStyle) -> String {
    let all = all.as_array().map(Vec::as_slice).unwrap_or_default();
    let (names, left) = parameter_columns(
        all.iter().filter_map(|trial| trial.get("parameters")),
        MAX_PARAMETER_COLUMNS,
    );
    // The reason of a failure is more important to the user than the numbers, so it is on their left.
    let has_reasons = all.iter().any(|trial| !member_text(trial, "message").is_empty());
    let heads =
        [("trial", ColumnFit::Number), ("id", ColumnFit::Link), ("state", ColumnFit::State)];
    let why = has_reasons.then_some(("why", ColumnFit::Sentence));
    let result = result_name(all.iter().map(|trial| member_text(trial, "metric")));
    let others = other_results(all);
    let numbers = [("latest", ColumnFit::OptionalNumber), ("time", ColumnFit::OptionalNumber)];
    let places: BTreeSet<String> =
        all.iter().map(trial_place).filter(|place| !place.is_empty()).collect();
    let has_places = places.len() > 1;
    let owned = |(name, fit): (&str, ColumnFit)| (name.to_owned(), fit);
    let heads = heads.into_iter().chain(why).map(owned).chain([(result, ColumnFit::Number)]);
    let heads =
        heads.chain(others.iter().map(|name| (short_heading(name), ColumnFit::OptionalNumber)));
    let heads = heads.chain(numbers.into_iter().map(owned));
    let heads = heads.chain(has_places.then_some(("where", ColumnFit::Optional)).map(owned));
    let parameters = names.iter().map(|name| (heading(name), ColumnFit::Optional));
    let mut columns = Columns::new(heads.chain(parameters));
    for trial in all {
        let flat = view::flatten_parameters(trial.get("parameters").unwrap_or(&Value::Null));
        let own = ["sequence", "id", "state"].into_iter().map(|name| member_text(trial, name));
        let why = has_reasons.then(|| member_text(trial, "message"));
        let metric = member_text(trial, "metric");
        let member = |name: &String| {
            trial.get("final").and_then(|last| last.get(name)).map(brief).unwrap_or_default()
        };
        let results = [result_text(trial, "final", &metric)].into_iter();
        let results = results.chain(others.iter().map(member));
        let results = results.chain([result_text(trial, "latest", &metric)]);
        let values = names.iter().map(|name| parameter(&flat, name));
        let row = own.chain(why).chain(results).chain([trial_duration(trial)]);
        let row = row.chain(has_places.then(|| trial_place(trial))).chain(values);
        columns.push_linked(row.collect(), member_text(trial, PAGE_MEMBER));
    }
    let (text, left_out) = columns.render(style);
    text + &omitted_parameters_note(left + left_out, "`trial show` and `-o json` show all")
}

/// Returns the heading of the results: the name of their metric, or `final` if trials report none by name.
pub(in crate::cli) fn result_name(mut metrics: impl Iterator<Item = String>) -> String {
    let name = metrics.find(|name| !name.is_empty() && name != OBJECTIVE);
    name.map_or_else(|| "final".to_owned(), |name| short_heading(&name))
}

/// Returns a name for the head of a column.
fn short_heading(name: &str) -> String {
    shorten(&heading(name), HEADING_WIDTH)
}

/// Returns the names of the other numbers of results that are objects, such as further objectives.
fn other_results(trials: &[Value]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for trial in trials {
        let metric = member_text(trial, "metric");
        let members = trial.get("final").and_then(Value::as_object).into_iter().flatten();
        for (name, value) in members {
            let is_new = name != OBJECTIVE && *name != metric && !names.contains(name);
            if is_new && value.is_number() && names.len() < MAX_OTHER_RESULTS {
                names.push(name.clone());
            }
        }
    }
    names
}

/// Returns a trial's result for a column. Of an object, it is the member `metric`, or else the one that counts.
pub(in crate::cli) fn result_text(trial: &Value, name: &str, metric: &str) -> String {
    let Some(value) = trial.get(name) else { return String::new() };
    counting_value(value, metric)
}

/// Returns a result for a column. Of an object, it is the member `metric`, or else the one that counts.
pub(in crate::cli) fn counting_value(result: &Value, metric: &str) -> String {
    let member = result.get(metric).or_else(|| result.get(OBJECTIVE));
    brief(member.unwrap_or(result))
}

/// Returns the place of a trial: its machine, after the index of its training service if there are several services.
pub(in crate::cli) fn trial_place(trial: &Value) -> String {
    let part =
        trial.get("training_service").map(|part| format!("[{}]", member_text(part, "index")));
    let host = Some(member_text(trial, "host")).filter(|host| !host.is_empty());
    part.into_iter().chain(host).collect::<Vec<_>>().join(" ")
}

/// Returns the description of a trial.
pub(in crate::cli) fn trial(one: &Value, style: TextStyle) -> String {
    // The width of the longest label and the gap after it.
    const LABEL_WIDTH: usize = 15;
    let command = list_items(one, "command").filter_map(Value::as_str).map(str::to_owned);
    let command = view::command_line(&command.collect::<Vec<_>>());
    let own = [
        ("trial", member_text(one, "sequence")),
        ("id", linked_id(one, style)),
        ("state", state(one, style)),
        ("why", wrapped(one, "message", style, LABEL_WIDTH)),
        ("metric", member_text(one, "metric")),
        ("final", full_result(one, "final")),
        ("mean", estimate(one).unwrap_or_default()),
        ("latest", full_result(one, "latest")),
        ("started (UTC)", moment(one, "started_at_ms")),
        ("ended (UTC)", moment(one, "ended_at_ms")),
        ("time", trial_duration(one)),
        ("exit code", member_text(one, "exit_code")),
        ("being stopped", member_text(one, "stopping")),
        ("command", printable_lines(&command).join("\n")),
        ("host", member_text(one, "host")),
        ("service", one.get("training_service").map(part_name).unwrap_or_default()),
        ("code", one.get("code").map(code).unwrap_or_default()),
        ("attempt", member_text(one, "attempt")),
        ("attempts", list_items(one, "attempts").count().to_string()),
    ];
    let own = own.into_iter().map(|(name, value)| (name.to_owned(), value));
    name_values(own.chain(parameters(one)))
}

/// Returns the why of a trial's state: verdict, evidence and timeline.
pub(in crate::cli) fn explanation(one: &Value, style: TextStyle) -> String {
    let violations = list_items(one, "violations").filter_map(Value::as_str).map(printable);
    let own = [
        ("state", state(one, style)),
        ("why", wrapped(one, "message", style, VERDICT_INDENT)),
        ("violates", violations.collect::<Vec<_>>().join("\n")),
    ];
    let mut shown = name_values(own.into_iter().map(|(name, value)| (name.to_owned(), value)));
    if let Some(verdict) = one.get("verdict").filter(|verdict| !verdict.is_null()) {
        // The verdict's message is shown only if it differs from the trial's message above.
        let own_message = verdict.get("message") != one.get("message");
        shown.push_str(&verdict_text(verdict, own_message, style));
    }
    shown.push('\n');
    let rows = list_items(one, "timeline").map(|entry| {
        let why = full_text(entry, "message");
        vec![moment(entry, "at_ms"), member_text(entry, "by"), member_text(entry, "what"), why]
    });
    let heads = [
        ("time (UTC)", ColumnFit::Text),
        ("by", ColumnFit::Text),
        ("what", ColumnFit::Text),
        ("why", ColumnFit::Sentence),
    ];
    shown.push_str(&table(heads, rows, style));
    shown
}

/// The width of the longest label of a verdict's own members, and the gap after it.
const VERDICT_INDENT: usize = 14;

/// Returns a verdict with its evidence: measurements, then the ends of the streams.
fn verdict_text(verdict: &Value, own_message: bool, style: TextStyle) -> String {
    let message = own_message.then(|| wrapped(verdict, "message", style, VERDICT_INDENT));
    let ran = duration(Some(0), verdict.get("duration_ms").and_then(Value::as_i64));
    let known = [
        ("message", message.unwrap_or_default()),
        ("cause", member_text(verdict, "cause")),
        ("class", member_text(verdict, "class")),
        ("confidence", member_text(verdict, "confidence")),
        ("exit", exit_text(verdict)),
        ("stop", member_text(verdict, "stop")),
        ("duration", ran),
    ];
    let known = known.into_iter().map(|(name, value)| (format!("  {name}"), value));
    let mut shown = format!("\nverdict\n{}", name_values(known));
    let evidence = || verdict.get("evidence").and_then(Value::as_object).into_iter().flatten();
    if evidence().next().is_some() {
        shown.push_str("evidence\n");
    }
    let is_stream = |name: &str| name.ends_with("_tail");
    let measured = evidence().filter(|(name, _)| !is_stream(name));
    let measured = measured.map(|(name, value)| measurement(name, value));
    shown.push_str(&name_values(measured.map(|(name, value)| (format!("  {name}"), value))));
    for (name, value) in evidence().filter(|(name, _)| is_stream(name)) {
        writeln!(shown, "  {}", heading(&name.replace('_', " "))).unwrap_or_default();
        for line in value.as_str().unwrap_or_default().lines() {
            writeln!(shown, "    | {}", printable(line)).unwrap_or_default();
        }
    }
    shown
}

/// Returns the exit of a verdict, such as `code 3` or `signal 9`.
fn exit_text(verdict: &Value) -> String {
    let exit = verdict.get("exit").unwrap_or(&Value::Null);
    let number = |name: &str| exit.get(name).map(|number| format!("{name} {}", cell(number)));
    number("code").or_else(|| number("signal")).unwrap_or_else(|| cell(exit))
}

/// Returns the label and the text of a measurement. The end of its name is the unit.
fn measurement(name: &str, value: &Value) -> (String, String) {
    let label = |name: &str| heading(&name.replace('_', " "));
    match (name.strip_suffix("_bytes"), value.as_f64()) {
        (Some(name), Some(amount)) => (label(name), bytes(amount)),
        // Not shortened: the platform's own message explains why the trial ended.
        _ => {
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            (label(name), printable(&text))
        }
    }
}

/// Returns an amount of memory in MB or GB.
pub(in crate::cli) fn bytes(amount: f64) -> String {
    if amount < 1e9 { format!("{:.0} MB", amount / 1e6) } else { format!("{:.1} GB", amount / 1e9) }
}

/// Returns the list of a trial's metrics.
pub(in crate::cli) fn metrics(all: &Value, style: TextStyle) -> String {
    let rows = all.as_array().into_iter().flatten().map(|one| {
        ["name", "type", "step", "value"].into_iter().map(|name| member_text(one, name)).collect()
    });
    let heads = [
        ("metric", ColumnFit::Text),
        ("type", ColumnFit::Text),
        ("step", ColumnFit::Number),
        ("value", ColumnFit::Text),
    ];
    table(heads, rows, style)
}

/// Returns the list of a trial's files, and their folder.
pub(in crate::cli) fn files(all: &Value, style: TextStyle) -> String {
    let rows = list_items(all, "files").map(|one| {
        vec![member_text(one, "name"), member_text(one, "bytes"), moment(one, "modified_ms")]
    });
    let heads =
        [("file", ColumnFit::Text), ("bytes", ColumnFit::Number), ("changed", ColumnFit::Text)];
    let more = if all["cut"] == true { "and more\n" } else { "" };
    format!("{}{more}in {}\n", table(heads, rows, style), member_text(all, "folder"))
}

#[cfg(test)]
mod tests;
