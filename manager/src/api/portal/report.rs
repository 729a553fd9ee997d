//! The report: the whole search as one page that needs no manager. The page contains its style, and its plots as
//! pictures.

use axum::extract::State;
use axum::http::{HeaderValue, header};
use axum::response::{Html, IntoResponse as _, Response};
use maud::{DOCTYPE, Markup, PreEscaped, html};
use trial_protocol::{Direction, TrialJobId};

use super::super::user::{
    ValuesQuery, axes, improvements_of, metric_page, parameter_importance, present_view,
};
use super::super::{Error, Shared};
use super::display;
use super::figures::{Axis, Curve, Figure, MarkShape, Marks};
use super::goal_tables::importance_hint;
use super::overview::result_name;
use super::page::{PageRefusal, Viewer};
use crate::job_state::JobState;
use crate::view::curve::points_of;
use crate::view::importance::Importance;
use crate::view::pareto::value_of;
use crate::view::space::ParameterAxis;
use crate::view::state_names::EXTERNAL_ENDS;
use crate::view::{self, ExperimentView, Snapshot, TrialSummary};

/// The maximum number of the best trials in the report.
const MAX_LISTED_TRIALS: usize = 25;
/// The maximum number of trials on the Pareto front in the report.
const MAX_FRONT: usize = 100;
/// The maximum number of marks of one kind in the history, and in a smaller plot.
const HISTORY_MARKS: usize = 1500;
const PARAMETER_MARKS: usize = 400;
/// The maximum number of parameters with a plot.
const MAX_PARAMETER_FIGURES: usize = 12;
/// The number of the best trials whose intermediate results are drawn, and the number of points of each.
const MAX_CURVES: usize = 8;
const CURVE_POINTS: u32 = 100;
/// The maximum number of a trial's reports that are read for its curve.
const MAX_REPORTS: u64 = 100_000;
/// The counted states of trials. A state without trials is left out.
const COUNTED_STATES: [&[JobState]; 6] = [
    &[JobState::Succeeded],
    &[JobState::EarlyStopped],
    &[JobState::Failed],
    &EXTERNAL_ENDS,
    &[JobState::Running],
    &[JobState::Waiting],
];
/// Allows only the style within the page.
const REPORT_POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The content of the report.
struct Report<'a> {
    view: &'a ExperimentView,
    snapshot: &'a Snapshot,
    /// The trials that compete for the best, the best first.
    ranked: Vec<&'a TrialSummary>,
    /// The curves of the best trials.
    curves: Vec<Curve>,
    axes: &'a [ParameterAxis],
    configuration: &'a str,
    /// The time at which the report was created.
    created: String,
}

/// `GET /report.html`: sends the report.
pub(super) async fn report(
    _: Viewer,
    State(shared): State<Shared>,
) -> Result<Response, PageRefusal> {
    let snapshot = shared.state.trial_cache.refresh().await?;
    let view = present_view(&shared, &snapshot).await?;
    let row = shared.state.store.experiment().row().await?.ok_or(Error::NotFound)?;
    let configuration = view::redact_secrets(&row.canonical);
    let configuration = display::outline(&configuration);
    let maximize = view.optimize_mode == Direction::Maximize.as_str();
    let ranked = rank_trials(&snapshot, maximize);
    let report = Report {
        view: &view,
        snapshot: &snapshot,
        curves: read_curves(&shared, &ranked).await?,
        ranked,
        axes: &axes(&shared).await?,
        configuration: &configuration,
        created: display::moment(shared.state.clock.now_ms()),
    };
    let page = report.document();
    let mut response = Html(page.into_string()).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(REPORT_POLICY));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

/// Returns the trials that compete for the best, the best first.
fn rank_trials(snapshot: &Snapshot, maximize: bool) -> Vec<&TrialSummary> {
    let mut ranked = view::competing_trials(snapshot);
    ranked.sort_by(|(_, a), (_, b)| if maximize { b.total_cmp(a) } else { a.total_cmp(b) });
    ranked.into_iter().map(|(trial, _)| trial).collect()
}

/// Reads the intermediate results of the best trials.
async fn read_curves(shared: &Shared, ranked: &[&TrialSummary]) -> Result<Vec<Curve>, Error> {
    let mut curves = Vec::new();
    for trial in ranked.iter().take(MAX_CURVES) {
        let queries = shared.state.store.queries();
        let is_short = !queries.report_counts(vec![trial.key()], MAX_REPORTS).await?.is_empty();
        let Ok(id) = TrialJobId::new(&trial.id) else { continue };
        if !is_short {
            continue;
        }
        let page = metric_page(shared, &id, &ValuesQuery::intermediate(CURVE_POINTS)).await?;
        let values = page.metrics.iter().flat_map(|metric| {
            let step: f64 = metric.step.to_string().parse().unwrap_or(f64::NAN);
            let points = points_of(&metric.name, &metric.value).into_iter();
            points.map(move |(name, value)| (name, (step, value)))
        });
        let counts = |name: &String| trial.metric.as_ref().is_none_or(|metric| metric == name);
        let points: Vec<_> =
            values.filter(|(name, _)| counts(name)).map(|(_, point)| point).collect();
        if points.len() > 1 {
            curves.push(Curve { name: format!("trial {}", trial.sequence), points });
        }
    }
    Ok(curves)
}

/// Returns a trial's result as a finite number: the final one, or else the latest.
fn number(trial: &TrialSummary) -> Option<f64> {
    let latest = || trial_protocol::MetricValue::from(trial.latest.clone()?).number();
    trial.number().or_else(latest).filter(|number| number.is_finite())
}

/// Returns the position of a trial as the coordinate of a plot.
fn position_of(trial: &TrialSummary) -> f64 {
    trial.sequence.to_string().parse().unwrap_or(f64::NAN)
}

/// Returns at most `most` of the points, evenly distributed.
fn thinned<T>(points: Vec<T>, most: usize) -> Vec<T> {
    let each = points.len().div_ceil(most).max(1);
    points.into_iter().step_by(each).collect()
}

impl Report<'_> {
    fn document(&self) -> Markup {
        let view = self.view;
        let title = display::sanitize(view.name.as_deref().unwrap_or(&view.id));
        let direction = view.optimize_mode;
        let importance = parameter_importance(self.snapshot, self.axes, direction);
        html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    meta name="color-scheme" content="light dark";
                    title { (title) " · report" }
                    style { (PreEscaped(include_str!("../../../portal/report.css"))) }
                }
                body {
                    h1 { (title) }
                    p.hint { "Experiment " code { (view.id) } ", " (display::experiment_state(&view.state)) ". Created " (self.created) " UTC." }
                    (facts_section(view))
                    @if view.objectives.is_empty() {
                        h2 { "History" }
                        (self.history_figure())
                        h2 { "Best trials" }
                        (best_table(&self.ranked, &result_name(view)))
                    } @else {
                        h2 { "Pareto front" }
                        (self.front_section())
                    }
                    h2 { "Parameter importance" }
                    (importance_bars(&importance))
                    h2 { "Results by parameter" }
                    div.panels { @for panel in self.parameter_figures(&importance) { (panel.render()) } }
                    @if !self.curves.is_empty() {
                        h2 { "Intermediate results of the best trials" }
                        (self.curve_figure().render())
                    }
                    h2 { "Failures by cause" }
                    (causes_section(view))
                    @if !view.code.is_empty() {
                        h2 { "Code" }
                        (code_section(view))
                    }
                    h2 { "Configuration" }
                    pre { (display::sanitize(self.configuration)) }
                }
            }
        }
    }

    /// Returns the marks of all trials, at the positions that `horizontal` returns.
    fn marks(&self, most: usize, horizontal: impl Fn(&TrialSummary) -> Option<f64>) -> Vec<Marks> {
        let kind = |name: &str, shape, is_kind: &dyn Fn(&TrialSummary) -> bool| {
            let trials = self.snapshot.trials.iter().filter(|trial| is_kind(trial));
            let points: Vec<_> = trials
                // The last step of a failed trial says little about its parameters.
                .filter_map(|trial| {
                    Some((horizontal(trial)?, number(trial).filter(|_| shape != MarkShape::Failed)))
                })
                .filter(|(_, y)| shape == MarkShape::Failed || y.is_some())
                .collect();
            let count = points.len();
            Marks { name: name.to_owned(), shape, points: thinned(points, most), count }
        };
        let all = [
            kind("succeeded", MarkShape::Succeeded, &|trial| trial.state == JobState::Succeeded),
            kind("stopped early", MarkShape::Stopped, &|trial| {
                trial.state == JobState::EarlyStopped
            }),
            kind("failed", MarkShape::Failed, &|trial| trial.state == JobState::Failed),
        ];
        all.into_iter().filter(|marks| marks.count > 0).collect()
    }

    fn history_figure(&self) -> Markup {
        let maximize = self.view.optimize_mode == Direction::Maximize.as_str();
        let marks = self.marks(HISTORY_MARKS, |trial| Some(position_of(trial)));
        let left_out = marks.iter().any(|marks| marks.points.len() < marks.count);
        let last = self.snapshot.trials.last().map(|trial| position_of(trial));
        let mut points: Vec<(f64, f64)> = Vec::new();
        for step in improvements_of(self.snapshot, maximize) {
            let at = step.sequence.to_string().parse().unwrap_or(f64::NAN);
            points.extend(points.last().map(|(_, before)| (at, *before)));
            points.push((at, step.value));
        }
        points.extend(last.zip(points.last().map(|(_, value)| *value)));
        let name = "best so far".to_owned();
        let curves = if points.is_empty() { Vec::new() } else { vec![Curve { name, points }] };
        let figure = Figure {
            title: "Optimisation history".to_owned(),
            horizontal: Axis::of_numbers("trial"),
            vertical: Axis::of_numbers(&result_name(self.view)),
            marks,
            curves,
        };
        html! {
            (figure.render())
            p.hint {
                "Vertical: " (figure.vertical.name) ". Failed trials are at the bottom."
                @if left_out { " Not all trials are drawn." }
            }
        }
    }

    /// Returns a plot of the results for each parameter, the most important first.
    fn parameter_figures(&self, importance: &[Importance]) -> Vec<Figure> {
        let rank = |axis: &&ParameterAxis| {
            let found = importance.iter().position(|one| one.name == axis.name);
            found.unwrap_or(usize::MAX)
        };
        let mut shown: Vec<_> = self.axes.iter().collect();
        shown.sort_by_key(rank);
        let panel = |parameter: &ParameterAxis| {
            let horizontal = Axis::of_parameter(parameter);
            let place = |trial: &TrialSummary| {
                let flat = view::flatten_parameters(&trial.parameters);
                let value = flat.into_iter().find(|(name, _)| *name == parameter.name)?.1;
                horizontal.place(value)
            };
            let marks = self.marks(PARAMETER_MARKS, place);
            let vertical = Axis::of_numbers(&result_name(self.view));
            let title = format!("{} by {}", vertical.name, horizontal.name);
            Figure { title, horizontal, vertical, marks, curves: Vec::new() }
        };
        shown.into_iter().take(MAX_PARAMETER_FIGURES).map(panel).collect()
    }

    fn curve_figure(&self) -> Figure {
        Figure {
            title: "Intermediate results".to_owned(),
            horizontal: Axis::of_numbers("step"),
            vertical: Axis::of_numbers(&result_name(self.view)),
            marks: Vec::new(),
            curves: self.curves.clone(),
        }
    }

    /// Renders the trials that no other trial dominates, and the first objective against each other one.
    fn front_section(&self) -> Markup {
        let view = self.view;
        let value = |trial: &TrialSummary, metric: &str| {
            let value = value_of(trial.final_value.as_ref(), metric)?;
            let number = trial_protocol::MetricValue::from(value).number();
            number.filter(|number| number.is_finite())
        };
        let is_on_front =
            |trial: &TrialSummary| view.pareto.iter().any(|one| one.sequence == trial.sequence);
        let figures = view.objectives.iter().skip(1).filter_map(|other| {
            let first = view.objectives.first()?;
            let marks = |name: &str, shape, wanted: bool| {
                let trials = self.snapshot.trials.iter().filter(|trial| {
                    trial.state == JobState::Succeeded && is_on_front(trial) == wanted
                });
                let points: Vec<_> = trials
                    .filter_map(|trial| {
                        Some((value(trial, &first.metric)?, Some(value(trial, &other.metric)?)))
                    })
                    .collect();
                let count = points.len();
                Marks {
                    name: name.to_owned(),
                    shape,
                    points: thinned(points, HISTORY_MARKS),
                    count,
                }
            };
            let (horizontal, vertical) =
                (Axis::of_numbers(&first.metric), Axis::of_numbers(&other.metric));
            let title = format!("{} against {}", vertical.name, horizontal.name);
            let marks = [
                marks("dominated", MarkShape::Stopped, false),
                marks("on the front", MarkShape::Succeeded, true),
            ];
            let marks = marks.into_iter().filter(|marks| marks.count > 0).collect();
            Some(Figure { title, horizontal, vertical, marks, curves: Vec::new() })
        });
        let trials: Vec<_> = view.pareto.iter().take(MAX_FRONT).collect();
        let columns: Vec<_> = view
            .objectives
            .iter()
            .map(|one| (one.metric.clone(), format!("{} ({})", one.metric, one.direction)))
            .collect();
        let cells = |trial: &TrialSummary| -> Vec<String> {
            let final_value = trial.final_value.as_ref();
            let value = |(metric, _): &(String, String)| value_of(final_value, metric);
            columns
                .iter()
                .map(|one| value(one).as_ref().map(display::value).unwrap_or_default())
                .collect()
        };
        let names: Vec<_> = columns.iter().map(|(_, name)| name.clone()).collect();
        html! {
            @for figure in figures { (figure.render()) p.hint { "Vertical: " (figure.vertical.name) "." } }
            (trials_table(&trials, &names, cells))
            @if view.pareto.len() > MAX_FRONT { p.hint { "Showing the first " (MAX_FRONT) " of " (view.pareto.len()) "." } }
        }
    }
}

fn facts_section(view: &ExperimentView) -> Markup {
    let count = |states: &[JobState]| -> usize {
        states.iter().filter_map(|state| view.counts.get(state.as_str()).copied()).sum()
    };
    let counted = COUNTED_STATES
        .map(|states| (display::capitalized(&display::states(states)), count(states)));
    html! {
        dl {
            @if let Some(best) = &view.best {
                div { dt { "Best " (result_name(view)) " (" @if view.optimize_mode == "minimize" { "smallest" } @else { "largest" } ")" } dd { (display::competing(best)) } }
            }
            @if !view.objectives.is_empty() { div { dt { "On the Pareto front" } dd { (view.pareto.len()) } } }
            div { dt { "Trials" } dd { (view.trials) } }
            @for (name, count) in counted { @if count > 0 { div { dt { (name) } dd { (count) } } } }
            div { dt { "Run time" } dd { (display::format_duration(view.elapsed_ms)) } }
            div { dt { "Started" } dd { (display::moment(view.created_at_ms)) " UTC" } }
        }
        @if let Some(trouble) = &view.trouble { p { (display::sanitize(trouble)) } }
    }
}

fn causes_section(view: &ExperimentView) -> Markup {
    let mut causes: Vec<_> = view.causes.iter().collect();
    causes.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
    html! {
        @if causes.is_empty() { p { "No trial has failed." } } @else {
            table { tbody { @for (cause, count) in causes { tr { th scope="row" { (display::cause(cause)) } td.number { (count) } } } } }
        }
    }
}

/// Renders the versions of the code, and the trials that ran each.
fn code_section(view: &ExperimentView) -> Markup {
    html! {
        @if let Some(difference) = &view.code_difference { p { (display::sentence(&display::sanitize(difference))) } }
        table {
            tbody {
                @for one in &view.code {
                    tr {
                        td { code { (display::sanitize(&view::code::describe_version(&one.version))) } }
                        td { @if let Some(trials) = &one.trials { "trials " (trials) } @else { "all trials" } }
                    }
                }
            }
        }
    }
}

/// Renders the importance of the parameters as bars.
fn importance_bars(importance: &[Importance]) -> Markup {
    html! {
        (importance_hint(importance))
        @if !importance.is_empty() {
            table.bars {
                tbody {
                    @for one in importance {
                        tr {
                            th scope="row" { (display::sanitize(&one.name)) }
                            td.bar { svg width="100%" height="14" aria-hidden="true" { rect width=(format!("{:.1}%", one.share * 100.0)) height="14" {} } }
                            td.number { (format!("{:.0} %", one.share * 100.0)) }
                        }
                    }
                }
            }
        }
    }
}

fn best_table(ranked: &[&TrialSummary], name: &str) -> Markup {
    let shown = &ranked[..ranked.len().min(MAX_LISTED_TRIALS)];
    html! {
        (trials_table(shown, &[name.to_owned()], |trial| vec![display::competing(trial)]))
        @if ranked.len() > MAX_LISTED_TRIALS { p.hint { "Showing the best " (MAX_LISTED_TRIALS) " of " (ranked.len()) "." } }
    }
}

/// Renders a table of trials with their results, which have these names, and their parameters.
fn trials_table(
    trials: &[&TrialSummary],
    results: &[String],
    cells: impl Fn(&TrialSummary) -> Vec<String>,
) -> Markup {
    let mut names: Vec<String> = Vec::new();
    for trial in trials {
        let new = view::flatten_parameters(&trial.parameters).into_iter().map(|(name, _)| name);
        names.extend(new.filter(|name| !names.contains(name)).collect::<Vec<_>>());
    }
    html! {
        @if trials.is_empty() { p { "No trial has succeeded with a numeric result." } } @else {
            div.scroll {
                table {
                    thead { tr {
                        th.number scope="col" { "Trial" }
                        @for name in results { th.number scope="col" { (display::sanitize(name)) } }
                        @for name in &names { th scope="col" { (display::sanitize(name)) } }
                    } }
                    tbody {
                        @for trial in trials {
                            @let values = view::flatten_parameters(&trial.parameters);
                            tr {
                                th.number scope="row" { (trial.sequence) }
                                @for cell in cells(trial) { td.number { (cell) } }
                                @for name in &names { td { (values.iter().find(|(known, _)| known == name).map(|(_, value)| display::short_value(value)).unwrap_or_default()) } }
                            }
                        }
                    }
                }
            }
        }
    }
}
