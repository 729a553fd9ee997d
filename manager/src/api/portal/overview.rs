//! The overview: the state of the search, its best results, its failures with their causes, and its controls.

use axum::extract::State;
use axum::response::Response;
use maud::{Markup, html};
use serde_json::Value;
use trial_protocol::OBJECTIVE;

use super::super::Shared;
use super::super::user::{axes, present_view};
use super::base::url;
use super::display;
use super::goal_tables::{goal_tables, has_no_improvement, importance_tables, improvement_tables};
use super::page::{PageRefusal, Viewer, exact_time, page, time_zone};
use super::plot_place::{history_place, parallel_place, plot_keys, points_path, preload};
use super::trials::{downloads, states_value, table};
use crate::experiment::state::ExperimentState;
use crate::job_state::JobState;
use crate::view::state_names::EXTERNAL_ENDS;
use crate::view::{self, ExperimentView, TrialSummary};

/// The number of trials in the list of the newest.
const NEWEST_TRIALS: usize = 10;

/// The columns that the plots of the overview need.
const PLOT_COLUMNS: &str = "cause,latest,space";

/// `GET /`: shows the overview.
pub(super) async fn overview(
    viewer: Viewer,
    State(shared): State<Shared>,
) -> Result<Response, PageRefusal> {
    let snapshot = shared.state.trial_cache.refresh().await?;
    let shown = present_view(&shared, &snapshot).await?;
    let axes = axes(&shared).await?;
    let tables = goal_tables(&snapshot, &shown, &axes);
    let newest: Vec<_> =
        snapshot.trials.iter().rev().take(NEWEST_TRIALS).map(AsRef::as_ref).collect();
    let now_ms = shared.state.clock.now_ms();
    let title = shown.name.clone().unwrap_or_else(|| shown.id.clone());
    let top = html! {
        (summary(&shown, &title))
        @if shown.objectives.is_empty() {
            (best_section(&shown, view::leading_trial(&snapshot, shown.optimize_mode)))
        } @else {
            (super::pareto::front_table(&shown))
        }
    };
    let top = viewer.known_parts.part(top);
    let steps = viewer.known_parts.part(improvement_tables(&tables));
    let importance = viewer.known_parts.part(importance_tables(&tables));
    let failures = viewer.known_parts.part(causes_table(&shown));
    let objectives = if shown.objectives.is_empty() { "" } else { ",objectives" };
    let points = points_path(&format!("{PLOT_COLUMNS}{objectives}"));
    let content = html! {
        (preload(&points))
        div.overview {
            div.wide #summary data-live data-part=(top.mark) data-change=(shown.change) data-name=(result_name(&shown)) data-mode=(shown.optimize_mode) data-points=(points) { (top.content) }
            (history_place(&html! {
                details #improvements data-live data-part=(steps.mark) hidden[has_no_improvement(&tables)] { (steps.content) }
                (plot_keys())
            }))
            (parallel_place("broad"))
            section {
                h2 { "Parameter importance" }
                div #importance data-live data-part=(importance.mark) { (importance.content) }
            }
            section {
                h2 { "Failures by cause" }
                div #causes data-live data-part=(failures.mark) { (failures.content) }
            }
            (training_services(&viewer, &shown))
            section.wide {
                h2 { "Newest trials" }
                div #newest data-live { (table(&viewer.known_parts, (&newest, shared.state.trial_cache.goals()), now_ms, None)) }
                p { a href=(url("/trials")) { "All trials" } ". " (downloads(&[])) }
            }
            (control_section(&viewer, &shown, shared.state.handle.elapsed().is_some()))
        }
    };
    Ok(page(&viewer, &display::sanitize(&title), Some("overview"), &content))
}

/// Returns the heading of results: the name of the metric if it has one.
pub(super) fn result_name(shown: &ExperimentView) -> String {
    let metric = shown.best.as_ref().and_then(|best| best.metric.as_ref());
    let name = shown.objective.as_ref().or(metric).filter(|name| *name != OBJECTIVE);
    name.map_or_else(|| "result".to_owned(), |name| display::sanitize(name))
}

fn count_trials(shown: &ExperimentView, states: &[JobState]) -> usize {
    states.iter().filter_map(|state| shown.counts.get(state.as_str())).sum()
}

fn summary(shown: &ExperimentView, title: &str) -> Markup {
    let count = |states: &[JobState]| count_trials(shown, states);
    let ended = shown.trials
        - count(&[JobState::Waiting, JobState::Running, JobState::Lost, JobState::Unknown]);
    let limit = shown.max_experiment_duration_ms;
    let counted = |states: &[JobState], more: Option<String>, kind: Option<&str>| {
        html! {
            div data-kind=[kind] {
                dt { a href={ (url("/trials?state=")) (states_value(states)) } { (display::capitalized(&display::states(states))) } }
                dd { (count(states)) @if let Some(more) = more { " " small { (more) } } }
            }
        }
    };
    let failed = (count(&[JobState::Failed]) > 0).then_some("bad");
    html! {
        h1 {
            (display::sanitize(title)) " "
            span.state data-state=(shown.state) { (display::experiment_state(&shown.state)) }
        }
        p.hint { "Started " (exact_time(shown.created_at_ms)) " " (time_zone())
            @if let Some(at) = shown.ended_at_ms { ", ended " (exact_time(at)) " " (time_zone()) }
        }
        @if let Some(trouble) = &shown.trouble { p.trouble role="status" { (display::sanitize(trouble)) } }
        @if let Some(difference) = &shown.code_difference { p.trouble { (display::sanitize(difference)) } }
        dl.tiles {
            div {
                dt { a href=(url("/trials")) { "Trials" } }
                dd {
                    (shown.trials)
                    @if let Some(most) = shown.max_trial_number {
                        " " small {
                            "of " (most)
                            @if let Some(left_ms) = remaining_ms(shown, ended) { ", about " (display::format_duration(left_ms)) " left" }
                        }
                        progress value=(ended) max=(most) aria-label="ended trials" {}
                    }
                }
            }
            (counted(&[JobState::Running], Some(format!("of at most {}", shown.trial_concurrency)), None))
            (counted(&[JobState::Succeeded], None, None))
            @if count(&[JobState::EarlyStopped]) > 0 { (counted(&[JobState::EarlyStopped], None, None)) }
            (counted(&[JobState::Failed], None, failed))
            @if count(&EXTERNAL_ENDS) > 0 { (counted(&EXTERNAL_ENDS, None, None)) }
            div {
                dt { "Run time" }
                dd {
                    (run_time(shown))
                    @if let Some(limit) = limit {
                        " " small { "of " (display::format_duration(limit)) }
                        progress value=(shown.elapsed_ms) max=(limit) aria-label="used time" {}
                    }
                }
            }
            div {
                dt { "Ended per hour" }
                dd { (shown.ended_per_hour.map_or_else(|| "–".to_owned(), display::rate)) }
            }
        }
    }
}

/// Returns the run time. It is unknown if the manager was killed before it recorded the time.
fn run_time(shown: &ExperimentView) -> String {
    let is_unknown = shown.state == view::INTERRUPTED_STATE && shown.elapsed_ms == 0;
    if is_unknown { "–".to_owned() } else { display::format_duration(shown.elapsed_ms) }
}

/// Returns the time until all trials have ended at the present rate. `None` if the experiment has ended or has no rate.
fn remaining_ms(shown: &ExperimentView, ended: usize) -> Option<u64> {
    let rate = shown.ended_per_hour.filter(|rate| *rate > 0.0 && shown.ended_at_ms.is_none())?;
    let left = shown.max_trial_number?.checked_sub(u64::try_from(ended).ok()?)?;
    let left: f64 = left.to_string().parse().ok()?;
    // Whole seconds: an estimate is not more precise.
    let seconds = format!("{:.0}", 3600.0 * left / rate).parse::<u64>().ok()?;
    seconds.checked_mul(1000).filter(|ms| *ms > 0)
}

/// Renders the best trial or, before one has succeeded, the current leader.
fn best_section(shown: &ExperimentView, leading: Option<&TrialSummary>) -> Markup {
    let wanted = if shown.optimize_mode == "minimize" { "smallest" } else { "largest" };
    let name = result_name(shown);
    html! {
        div.best {
            @if shown.optimize_mode_assumed {
                p.hint {
                    "The experiment file states no direction; "
                    (shown.optimize_mode) " is assumed, the tuner's default."
                }
            }
            @if let Some(metric) = &shown.chosen_objective {
                p.hint {
                    "The experiment file names no objective, so " code { (display::sanitize(metric)) }
                    " was chosen from the trials' output. Set " code { "objective" } " to choose another metric."
                }
            }
            @for warning in [&shown.direction_warning, &shown.untold_direction].into_iter().flatten() {
                @for line in warning.lines() { p.trouble { (display::sanitize(line)) } }
            }
            @if let Some(best) = &shown.best {
                p {
                    "Best " (name) " (" (wanted) "): "
                    strong { (display::competing(best)) }
                    ", " a href={ (url("/trials/")) (best.id) } { "trial " (best.sequence) }
                }
                (super::trial::parameters_section(&best.parameters))
            } @else {
                p {
                    "No trial has succeeded with a numeric result yet."
                    @if let Some(trial) = leading {
                        " Among the running trials, "
                        a href={ (url("/trials/")) (trial.id) } { "trial " (trial.sequence) }
                        " leads with " strong { (trial.latest.as_ref().map(display::result).unwrap_or_default()) }
                        @if let Some(step) = trial.latest_step { " at step " (step) }
                        "."
                    }
                }
            }
        }
    }
}

pub(super) fn causes_table(shown: &ExperimentView) -> Markup {
    let mut causes: Vec<_> = shown.causes.iter().collect();
    causes.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
    html! {
        @if causes.is_empty() {
            p.hint { "No trial has failed." }
        } @else {
            table {
                tbody {
                    @for (cause, count) in causes {
                        tr {
                            th scope="row" { a href={ (url("/trials?state=FAILED&cause=")) (cause) } { (display::cause(cause)) } }
                            td.number { (count) }
                        }
                    }
                }
            }
        }
    }
}

/// Renders the training services, if there are several.
fn training_services(viewer: &Viewer, shown: &ExperimentView) -> Markup {
    let services = viewer.known_parts.part(service_table(shown));
    html! {
        @if !shown.training_services.is_empty() {
            section.wide {
                h2 { "Training services" }
                div.scroll #services tabindex="0" role="region" aria-label="Training services" data-live data-part=(services.mark) { (services.content) }
            }
        }
    }
}

fn service_table(shown: &ExperimentView) -> Markup {
    const NUMBERS: [&str; 6] =
        ["Running", "Waiting", "Free room", "Succeeded", "Failed", "Mean duration"];
    let unknown = || "–".to_owned();
    html! {
        table {
            thead { tr {
                th scope="col" { "Service" }
                @for name in NUMBERS { th.number scope="col" { (name) } }
            } }
            tbody {
                @for part in &shown.training_services {
                    tr {
                        th scope="row" {
                            (part.index) " " (display::sanitize(&part.platform))
                            @if let Some(why) = &part.trouble { " " span.hint { "unreachable: " (display::sanitize(why)) } }
                        }
                        td.number { (part.running) @if let Some(limit) = part.limit { " " small { "of " (limit) } } }
                        td.number { (part.waiting) }
                        td.number { (part.free.map_or_else(unknown, |free| free.to_string())) }
                        td.number { (part.succeeded) }
                        td.number { (part.failed) }
                        td.number { (part.mean_duration_ms.map_or_else(unknown, display::format_duration)) }
                    }
                }
            }
        }
    }
}

/// Renders the command that continues an experiment that does not run. A manager that still serves the experiment can
/// continue it.
fn continuation_hint(shown: &ExperimentView, has_manager: bool) -> Markup {
    let id = &shown.id;
    let is_done = shown.state == ExperimentState::Done.as_str();
    let (state, command, result) = match (is_done, has_manager) {
        (true, true) => (
            "is done",
            format!("trial-manager experiment limit -e {id} --max-trial-number N"),
            "continues it with a higher limit",
        ),
        (true, false) => (
            "is done",
            format!("trial-manager resume {id} --max-trial-number N"),
            "continues it with a higher limit",
        ),
        (false, _) => ("is not running", format!("trial-manager resume {id}"), "continues it"),
    };
    html! { p.hint { "The experiment " (state) ". " code { (command) } " " (result) "." } }
}

fn control_section(viewer: &Viewer, shown: &ExperimentView, has_manager: bool) -> Markup {
    let limit = shown.max_experiment_duration_ms;
    let allowed = limit.map_or_else(|| "such as 90m".to_owned(), display::format_duration);
    html! {
        section.wide {
            h2 { "Controls" }
            @if !viewer.may_change {
                p.hint { a href=(url("/login")) { "Log in" } " to change limits or to stop the experiment." }
            } @else if shown.ended_at_ms.is_some() || shown.state == view::INTERRUPTED_STATE {
                (continuation_hint(shown, has_manager))
            } @else {
                // An empty field leaves its limit unchanged, even if another user changes that limit meanwhile.
                form.inline method="post" action=(url("/limits")) {
                    label { "Concurrent trials " input name="trial_concurrency" type="number" min="1" placeholder=(shown.trial_concurrency); }
                    label { "Total trials " input name="max_trial_number" type="number" min="1" placeholder=[shown.max_trial_number]; }
                    label { "Total time " input name="max_experiment_duration" size="12" placeholder=(allowed); }
                    button { "Change limits" }
                }
                form.inline method="post" action=(url("/stop")) data-confirm="Stop all trials? The experiment can be resumed." {
                    button.danger { "Stop the experiment" }
                }
            }
        }
    }
}

/// `GET /configuration`: shows the configuration.
pub(super) async fn configuration(
    viewer: Viewer,
    State(shared): State<Shared>,
) -> Result<Response, PageRefusal> {
    let row = shared.state.store.experiment().row().await?;
    let row = row.ok_or(super::super::Error::NotFound)?;
    let safe = view::redact_secrets(&row.canonical);
    let text = display::outline(&safe);
    let space = safe.get("searchSpace").and_then(|space| space.as_object());
    let space = space.filter(|space| !space.is_empty());
    // The search space of a user's own tuner may have any form.
    let values = |entry: &Value| {
        let values = if entry.get("_type").is_some() { &entry["_value"] } else { entry };
        if values.is_string() {
            display::value(values)
        } else {
            display::sanitize(&display::in_one_line(values))
        }
    };
    let content = html! {
        h1 { "Configuration" }
        div.parts {
            @if let Some(space) = space {
                section {
                    h2 { "Search space" }
                    div.scroll tabindex="0" role="region" aria-label="Search space" {
                        table.cards {
                            thead { tr { th scope="col" { "Parameter" } th scope="col" { "Type" } th scope="col" { "Values" } } }
                            tbody {
                                @for (name, range) in space {
                                    tr {
                                        th scope="row" { (display::sanitize(name)) }
                                        td { (range.get("_type").map(display::value).unwrap_or_default()) }
                                        td.wrap { code { (values(range)) } }
                                    }
                                }
                            }
                        }
                    }
                }
            }
            section {
                h2 { "Checked configuration" }
                pre.file tabindex="0" { (display::sanitize(&text)) }
            }
        }
    };
    Ok(page(&viewer, "Configuration", None, &content))
}
