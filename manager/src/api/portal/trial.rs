//! A trial's own page: its parameters, its curves, its end with the reasons, and its output.

mod actions;
mod execution;
mod output;
mod results;
mod verdict;

use axum::extract::State;
use axum::response::Response;
use maud::{Markup, html};
use serde_json::Value;
use trial_protocol::TrialJobId;

use self::actions::actions;
use self::execution::{attempts, command, files, timeline};
use self::output::output_section;
use self::results::{
    goal_charts, goal_names, is_repeated, latest_tile, result_tiles, results_table,
};
use self::verdict::verdict_section;
use super::super::user::{LogQuery, TrialPath, ValuesQuery, code_diff, log_view, metric_page};
use super::super::{Error, Shared};
use super::base::url;
use super::display;
use super::page::{PageRefusal, Viewer, page};
use crate::job_state::JobState;
use crate::search::goals::Goals;
use crate::view::{self, TrialDetail};

/// The number of bytes of each stream that the page shows at first.
const TAIL_BYTES: u32 = 64 << 10;
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

/// The position and id of the previous and of the next trial.
type Neighbours = [Option<(u64, String)>; 2];

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
            @if let Some(code) = &detail.code { ", code " code { (display::sanitize(&view::code::describe_version(code))) } }
        }
        dl.tiles {
            @if let Some(estimate) = &trial.estimate {
                div { dt { "With these parameters" } dd { (display::estimate(estimate)) } }
            }
            (result_tiles(trial.final_value.as_ref(), trial.metric.as_deref(), goals))
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
