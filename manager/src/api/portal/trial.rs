//! A trial's own page: its parameters, its curves, its end with the reasons, and its output.

mod output;
mod verdict;

use axum::extract::State;
use axum::response::Response;
use maud::{Markup, html};
use serde_json::Value;
use trial_protocol::{OBJECTIVE, TrialJobId};

use self::output::output_section;
use self::verdict::verdict_section;
use super::super::user::{
    LogQuery, MetricView, TrialPath, ValuesQuery, code_diff, files as trial_files, log_view,
    metric_page,
};
use super::super::{Error, Shared, percent};
use super::base::url;
use super::columns;
use super::display;
use super::page::{PageRefusal, Viewer, exact_time, page, time_zone};
use crate::job_state::JobState;
use crate::search::goals::Goals;
use crate::search::user_point;
use crate::view::{self, TrialDetail, TrialSummary};

/// The number of bytes of each stream that the page shows at first.
const TAIL_BYTES: u32 = 64 << 10;
/// The maximum number of members of a result that have a tile of their own.
const MAX_MEMBER_TILES: usize = 8;
/// The maximum number of values in the table of metrics.
const MAX_TABLE_VALUES: u32 = 50;

/// The charts of the machine, by the script's name for them.
const MACHINE_CHARTS: [(&str, &str); 4] =
    [("memory", "memory"), ("load", "use"), ("gpu-memory", "GPU memory"), ("power", "GPU power")];

/// `GET /trials/{trial}`: shows a trial.
pub(super) async fn trial(
    viewer: Viewer,
    State(shared): State<Shared>,
    TrialPath(id): TrialPath,
) -> Result<Response, PageRefusal> {
    let state = &shared.state;
    let detail = view::detail(&state.trial_cache, &state.store, &id).await?;
    let detail = detail.ok_or_else(|| Error::UnknownTrial(id.clone()))?;
    let summary = &detail.summary;
    let title = format!("Trial {}", summary.sequence);
    let snapshot = state.trial_cache.refresh().await?;
    let neighbours = [summary.sequence.checked_sub(1), summary.sequence.checked_add(1)];
    let neighbours = neighbours.map(|at| Some((at?, snapshot.at(at?)?.id.clone())));
    let top = html! {
        (summary_section(&detail, &title, (state.trial_cache.goals(), state.clock.now_ms()), &neighbours))
        (actions(&viewer, &detail))
    };
    let top = viewer.known_parts.part(top);
    // A page that is already shown gets the rest from the event stream.
    let rest = if viewer.known_parts.has_page() {
        TrialPageParts::default()
    } else {
        initial_parts(&shared, &id, &detail).await?
    };
    let story = [timeline(&detail), command(&detail), files(&shared, &id).await, attempts(&detail)];
    let content = html! {
        div #summary data-live data-part=(top.mark) data-trial=(summary.id) data-metric=[summary.metric.as_deref()]
            data-goals=[goal_names(state.trial_cache.goals())]
            data-after=[rest.after] data-ended[summary.state.is_final()] { (top.content) }
        div.parts { (rest.content) }
        div.parts #story data-live {
            @for part in story.into_iter().filter(|part| !part.0.is_empty()) {
                @let part = viewer.known_parts.part(part);
                section data-part=(part.mark) { (part.content) }
            }
        }
    };
    Ok(page(&viewer, &title, Some("trial"), &content))
}

/// The parts of a page that are sent only once: results, output and machine.
#[derive(Default)]
struct TrialPageParts {
    content: Markup,
    /// The position at which the event stream continues. It repeats events that the page's curves also fetch
    /// themselves. `None` if the current attempt has sent nothing.
    after: Option<String>,
}

async fn initial_parts(
    shared: &Shared,
    id: &TrialJobId,
    detail: &TrialDetail,
) -> Result<TrialPageParts, Error> {
    let stdout = log_view(shared, id, &LogQuery::tail("stdout", TAIL_BYTES)).await?;
    let stderr = log_view(shared, id, &LogQuery::tail("stderr", TAIL_BYTES)).await?;
    let metrics = metric_page(shared, id, &ValuesQuery::thinned(MAX_TABLE_VALUES)).await?;
    let attempts = shared.state.store.queries().attempts(id).await?;
    let changes = code_diff(shared, id).await?;
    let summary = &detail.summary;
    let attempt = attempts.iter().find(|known| known.attempt.as_str() == summary.attempt);
    let after = attempt.map(|attempt| {
        let through = |seq: Option<u64>| seq.map_or(-1, |seq| i64::try_from(seq).unwrap_or(-1));
        let (facts, bulk) = (through(attempt.facts_through), through(attempt.bulk_through));
        format!("{}.{facts}.{bulk}.{}.{}", attempt.key, stdout.next, stderr.next)
    });
    let content = html! {
        section {
            h2 #curves-title { "Results" }
            (goal_charts(shared.state.trial_cache.goals()))
            figure.chart data-chart="metrics" aria-labelledby="curves-title" {}
            p.hint #curves-hint {
                span #curves-click { "Click a name below the chart to show or hide its curve. " } span #curves-left {} " Download: "
                a href={ (url("/api/v1/experiment/export?format=csv&trial=")) (summary.id) } download { "CSV" } ", "
                a href={ (url("/api/v1/experiment/export?format=json&trial=")) (summary.id) } download { "JSON" }
            }
            (results_table(&metrics.metrics))
        }
        section {
            h2 { "Output" }
            (output_section(&summary.id, "stdout", "Standard output", &stdout))
            (output_section(&summary.id, "stderr", "Standard error", &stderr))
        }
        @if let Some(changes) = &changes { (code_section(&summary.id, detail, changes)) }
        section.wide {
            h2 { "Machine" }
            div.machine {
                @for (name, title) in MACHINE_CHARTS {
                    figure.chart data-chart=(name) aria-label={ (title) " over time" } {}
                }
            }
            p.hint { "The samples are also available as numbers from " a href={ (url("/api/v1/trials/")) (summary.id) "/samples" } { "the API" } "." }
        }
    };
    Ok(TrialPageParts { content, after })
}

fn results_table(metrics: &[MetricView]) -> Markup {
    html! {
        details #results hidden[metrics.is_empty()] {
            summary { "As a table" }
            div.scroll tabindex="0" role="region" aria-label="Results" {
                table {
                    thead { tr { th scope="col" { "Metric" } th.number scope="col" { "Step" } th.number scope="col" { "Value" } th scope="col" { "Time (" (time_zone()) ")" } } }
                    tbody {
                        @for metric in metrics {
                            tr {
                                td { (display::metric(&metric.name)) }
                                td.number { @if metric.is_final() { "final" } @else { (metric.step) } }
                                td.number { (display::brief(&metric.value)) }
                                td { (exact_time(metric.observed_at_ms)) }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Renders the places for the curves of several counting metrics. The script shows those that have a curve.
fn goal_charts(goals: &Goals) -> Markup {
    let names = goals.metrics();
    html! {
        @if names.len() > 1 {
            div.machine {
                @for (at, name) in names.iter().enumerate() {
                    figure.chart hidden data-chart={ "goal-" (at) } aria-label=(display::sanitize(name)) {}
                }
            }
        }
    }
}

/// The position and id of the previous and of the next trial.
type Neighbours = [Option<(u64, String)>; 2];

/// Returns the names of the counting metrics, if there are several, in the form that the script reads.
fn goal_names(goals: &Goals) -> Option<String> {
    let names = goals.metrics();
    (names.len() > 1).then(|| Value::from(names).to_string())
}

fn summary_section(
    detail: &TrialDetail,
    title: &str,
    (goals, now_ms): (&Goals, i64),
    neighbours: &Neighbours,
) -> Markup {
    let trial = &detail.summary;
    let bad = matches!(trial.state, JobState::Failed | JobState::Lost);
    let kind = if bad { "best bad" } else { "best" };
    // The verdict contains the same message with its reasons.
    let verdict_message = detail.verdict.as_ref().map(|verdict| &verdict.message);
    let shows_exit = detail.verdict.as_ref().is_some_and(|verdict| verdict.exit.is_some());
    let shows_duration =
        detail.verdict.as_ref().is_some_and(|verdict| verdict.duration_ms.is_some());
    let message = trial.message.as_ref().filter(|message| verdict_message != Some(message));
    html! {
        nav.neighbours aria-label="Adjacent trials" {
            @for (at, (word, neighbour)) in [("prev", &neighbours[0]), ("next", &neighbours[1])].iter().enumerate() {
                @if let Some((sequence, id)) = neighbour {
                    a rel=(word) href={ (url("/trials/")) (id) } { @if at == 0 { "← " } "trial " (sequence) @if at == 1 { " →" } }
                }
            }
        }
        h1 { (title) " " span.state data-state=(trial.state.as_str()) { (display::state(trial.state)) } }
        p.hint {
            "id " code { (trial.id) } ", attempt " code { (trial.attempt) }
            @if let Some(host) = &detail.host { ", on " (display::sanitize(host)) }
            @if let Some(part) = &detail.training_service { ", training service " (part.index) " (" (display::sanitize(&part.platform)) ")" }
            @if let Some(image) = &detail.image { ", image " code { (display::sanitize(image)) } }
            @if let Some(code) = &detail.code { ", code " code { (display::sanitize(&view::code::brief(code))) } }
        }
        dl.tiles {
            @if let Some(estimate) = &trial.estimate {
                div { dt { "With these parameters" } dd { (display::estimate(estimate)) } }
            }
            (result_tiles(trial.last.as_ref(), trial.metric.as_deref(), goals))
            @if !is_repeated(trial) { (latest_tile(trial, goals)) }
            @if !shows_duration { div { dt { "Time" } dd { (display::span_if_any(trial.duration_ms(now_ms))) } } }
            @if let Some(code) = trial.exit_code.filter(|_| !shows_exit) { div { dt { "Exit code" } dd { (code) } } }
        }
        @if let Some(message) = message { p class=(kind) { (display::sanitize(message)) } }
        @if let Some(lost) = &trial.lost { p.trouble { (display::sanitize(lost)) } }
        @if let Some(reason) = &trial.stopping { p.best { "Being stopped: " (reason) } }
        div.facts {
            @if let Some(verdict) = &detail.verdict { (verdict_section(verdict, kind)) }
            section { h2 { "Parameters" } (parameters_section(&trial.parameters)) }
        }
    }
}

/// Returns whether the latest result of a trial is its final result.
fn is_repeated(trial: &TrialSummary) -> bool {
    trial.state.is_final() && columns::is_latest_final(trial)
}

/// Renders the tile of the latest result.
fn latest_tile(trial: &TrialSummary, goals: &Goals) -> Markup {
    let metric = trial.metric.as_ref().filter(|_| !goals.is_plain());
    let value = trial.latest.as_ref().map_or_else(|| "–".to_owned(), display::result);
    html! {
        div {
            dt { "Latest " @if let Some(metric) = metric { (display::sanitize(metric)) } @else { "step" } }
            dd { (value) @if let Some(step) = trial.latest_step { " " small { "@" (step) } } }
        }
    }
}

/// Renders the tiles of a trial's results. With several counting metrics, each has a tile with the limit that it
/// breaks. Otherwise the tiles are the result and the other numbers of the same report.
fn result_tiles(last: Option<&Value>, metric: Option<&str>, goals: &Goals) -> Markup {
    let none = || "none".to_owned();
    let members = last.and_then(Value::as_object);
    let counted = members.filter(|members| goals.is_plain() && members.contains_key(OBJECTIVE));
    let beside = counted.into_iter().flatten().filter(|(name, _)| *name != OBJECTIVE);
    html! {
        @for name in goals.metrics() {
            @let value = members.and_then(|members| members.get(name));
            @let broken = goals.describe_violated_limit(name, last);
            @let direction = goals.objectives.iter().find(|objective| objective.metric == name);
            div data-kind=[broken.is_some().then_some("bad")] {
                dt { "Final " (display::sanitize(name)) @if let Some(objective) = direction { " " small { (objective.direction.as_str()) } } }
                dd { (value.map_or_else(none, display::value)) @if let Some(limit) = broken { " " small { (limit) } } }
            }
        }
        @if goals.is_plain() {
            div { dt { "Final " @match metric.filter(|name| *name != OBJECTIVE) { Some(name) => (display::sanitize(name)), None => "result" } } dd { (last.map_or_else(none, display::result)) } }
            @for (name, value) in beside.take(MAX_MEMBER_TILES) {
                div { dt { "Final " (display::sanitize(name)) } dd { (display::brief(value)) } }
            }
        }
    }
}

/// Renders the parameters of a trial.
pub(super) fn parameters_section(parameters: &Value) -> Markup {
    html! {
        dl.parameters {
            @for (name, value) in view::flatten_parameters(parameters) {
                div { dt { (display::sanitize(&name)) } dd { (display::value(value)) } }
            }
        }
    }
}

fn actions(viewer: &Viewer, detail: &TrialDetail) -> Markup {
    let trial = &detail.summary;
    html! {
        @if viewer.may_change {
            @if trial.state.is_final() {
                form.inline method="post" action={ (url("/trials/")) (trial.id) "/rerun" } { button { "Rerun" } }
            } @else {
                form.inline method="post" action={ (url("/trials/")) (trial.id) "/stop" } data-confirm="Stop this trial?" {
                    button.danger { "Stop this trial" }
                }
            }
            details {
                summary { "Run with other parameters" }
                form.point method="post" action=(url("/points")) {
                    @for (name, value) in view::flatten_parameters(&trial.parameters) {
                        label { (display::sanitize(&name)) " " input name=(name) value=(input_text(value)) autocomplete="off"; }
                    }
                    button { "Run this point" }
                }
                p.hint { "The new trial runs before the tuner's next ones. The value of an empty field is drawn from the search space." }
            }
        }
    }
}

/// Returns a parameter in the form of an input field. A text that would be read as another type is in quotes.
fn input_text(value: &Value) -> String {
    match value {
        Value::String(text) if user_point::parse_written_value(text) == *value => text.clone(),
        value @ (Value::Null
        | Value::Bool(_)
        | Value::Number(_)
        | Value::String(_)
        | Value::Array(_)
        | Value::Object(_)) => value.to_string(),
    }
}

/// Renders the changes of the code since the commit that the trial ran.
fn code_section(id: &str, detail: &TrialDetail, changes: &str) -> Markup {
    let files = changes.lines().filter(|line| line.starts_with("diff --git ")).count();
    let commit = detail.code.as_ref().and_then(|code| code.git.as_ref()).map(|git| &git.commit);
    html! {
        section {
            h2 { "Code" }
            details {
                summary { (files) @if files == 1 { " changed file" } @else { " changed files" } @if let Some(commit) = commit { " since commit " code { (display::sanitize(commit).chars().take(12).collect::<String>()) } } }
                p.hint { a href={ (url("/api/v1/trials/")) (id) "/diff" } download={ (id) ".diff" } { "Download" } ". Apply it with " code { "git apply" } "." }
                pre.log.file tabindex="0" aria-label="Code changes" { (display::sanitize(changes)) }
            }
        }
    }
}

fn timeline(detail: &TrialDetail) -> Markup {
    html! {
        h2 { "Timeline" }
        div.scroll tabindex="0" role="region" aria-label="Timeline" {
            table.cards {
                thead { tr { th scope="col" { "Time (" (time_zone()) ")" } th scope="col" { "Source" } th scope="col" { "Event" } th scope="col" { "Reason" } th scope="col" { "Attempt" } } }
                tbody {
                    @for entry in &detail.timeline {
                        tr {
                            td { (exact_time(entry.at_ms)) }
                            td { (entry.by) }
                            td { (event_words(&entry.what)) }
                            td.why { (entry.message.as_deref().map(display::sanitize).unwrap_or_default()) }
                            td data-label="attempt" { code { (entry.attempt) } }
                        }
                    }
                }
            }
        }
    }
}

/// Returns an event of the timeline in words. The manager names the states of trials as the API does.
fn event_words(what: &str) -> String {
    let state = what.parse::<JobState>();
    state.map_or_else(|_| display::sanitize(what), |state| display::state(state).to_owned())
}

fn command(detail: &TrialDetail) -> Markup {
    html! {
        h2 { "Command" }
        @if let Some(command) = &detail.command {
            pre.file tabindex="0" { (display::sanitize(&view::command_line(command))) }
            @if let Some(version) = &detail.agent_version { p.hint { "Started by trialkeeper " (display::sanitize(version)) } }
        } @else {
            p.hint { "The command has not been started." }
        }
    }
}

/// Renders the files that a trial left on the manager's machine, if any.
async fn files(shared: &Shared, id: &TrialJobId) -> Markup {
    let Some(found) = trial_files(shared, id).await.ok().filter(|found| !found.files.is_empty())
    else {
        return Markup::default();
    };
    let address =
        |name: &str| url(&format!("/api/v1/trials/{id}/file?name={}", percent::encode(name)));
    html! {
        h2 { "Files" }
        p.hint { "In " code { (display::sanitize(&found.folder)) } @if found.cut { "; the list is incomplete" } }
        div.scroll tabindex="0" role="region" aria-label="Files" {
            table.cards {
                thead { tr { th scope="col" { "File" } th.number scope="col" { "Bytes" } th scope="col" { "Changed (" (time_zone()) ")" } } }
                tbody {
                    @for file in &found.files {
                        tr {
                            td { a href=(address(&file.name)) download { (display::sanitize(&file.name)) } }
                            td.number { (file.bytes) }
                            td { (exact_time(file.modified_ms)) }
                        }
                    }
                }
            }
        }
    }
}

/// Renders the attempts, if there are several: the rest of the page describes a single one.
fn attempts(detail: &TrialDetail) -> Markup {
    if detail.attempts.len() < 2 {
        return Markup::default();
    }
    html! {
        h2 { "Attempts" }
        div.scroll tabindex="0" role="region" aria-label="Attempts" {
        table.cards {
            thead { tr { th scope="col" { "Attempt" } th scope="col" { "Last report (" (time_zone()) ")" } th scope="col" { "Ended" } } }
            tbody {
                @for attempt in &detail.attempts {
                    tr {
                        td { code { (attempt.attempt) } }
                        td { (exact_time(attempt.last_heard_ms)) }
                        td { @if attempt.ended { "yes" } @else { "no" } }
                    }
                }
            }
        }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::search::goals::{Constraint, Objective};
    use trial_protocol::Direction;

    #[test]
    fn each_objective_has_its_name_and_value() {
        let objective =
            |metric: &str, direction| Objective { metric: metric.to_owned(), direction };
        let two = Goals {
            objectives: vec![
                objective("loss", Direction::Minimize),
                objective("<b>", Direction::Maximize),
            ],
            constraints: vec![Constraint {
                metric: "memory".to_owned(),
                min: None,
                max: Some(16.0),
            }],
        };
        let kept = json!({"default": 1, "loss": 1, "<b>": 0.5, "memory": 16});
        let broken = json!({"default": "Infinity", "loss": 1, "<b>": 0.5, "memory": 40});
        let bare = json!({"default": 0.5, "f1": 0.25});
        #[rustfmt::skip]
        let table: [(&Goals, Option<Value>, &[&str]); 6] = [
            (&two, Some(kept.clone()), &["<dt>Final loss <small>minimize</small></dt><dd>1</dd>", "<dt>Final &lt;b&gt; <small>maximize</small></dt><dd>0.5</dd>"]),
            (&two, Some(kept), &["<div><dt>Final memory</dt><dd>16</dd>"]),
            (&two, Some(broken), &["<div data-kind=\"bad\"><dt>Final memory</dt><dd>40 <small>above 16</small></dd>"]),
            (&two, None, &["<dt>Final memory</dt><dd>none</dd>"]),
            (&Goals::default(), Some(bare), &["<dt>Final result</dt><dd>0.5</dd>", "<dt>Final f1</dt><dd>0.25</dd>"]),
            (&Goals::default(), Some(json!(0.5)), &["<dt>Final result</dt><dd>0.5</dd>"]),
        ];
        for (goals, last, parts) in table {
            let page = result_tiles(last.as_ref(), None, goals).into_string();
            for part in parts {
                assert!(page.contains(part), "{part} in {page}");
            }
            assert!(!page.contains('{'), "{page}");
        }
        let named = result_tiles(Some(&json!(0.5)), Some("acc"), &Goals::default());
        assert!(named.into_string().contains("<dt>Final acc</dt><dd>0.5</dd>"));
    }

    #[test]
    fn the_latest_result_is_shown_unless_it_is_the_final_one() {
        let trial = |state, last: Option<f64>, latest: Option<f64>| {
            let mut trial = view::summary(0, 0);
            (trial.state, trial.last) = (state, last.map(Value::from));
            trial.latest = latest.map(Value::from);
            trial
        };
        let (running, done) = (JobState::Running, JobState::Succeeded);
        for (trial, expected) in [
            (trial(running, None, None), false),
            (trial(running, None, Some(0.5)), false),
            (trial(done, Some(0.5), Some(0.5)), true),
            (trial(done, Some(0.5), None), true),
            (trial(done, Some(0.5), Some(0.4)), false),
            (trial(JobState::Failed, None, Some(0.4)), false),
        ] {
            assert_eq!(is_repeated(&trial), expected, "{trial:?}");
        }
        let mut running = trial(running, None, Some(0.5));
        (running.metric, running.latest_step) = (Some("acc".to_owned()), Some(3));
        let tile = latest_tile(&running, &Goals::default()).into_string();
        assert_eq!(tile, "<div><dt>Latest step</dt><dd>0.5 <small>@3</small></dd></div>");
    }
}
