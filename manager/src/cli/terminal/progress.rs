//! The progress of a running experiment: a bar on a terminal; elsewhere a status line when a trial ends, at most once
//! a minute. Each important event also gets a line. All of this goes to standard error; standard output is for the
//! result.

use std::collections::{HashMap, HashSet};
use std::io::{IsTerminal as _, Write as _};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::json;
use tokio::time::Instant;
use trial_protocol::{ExperimentId, MetricValue};

use super::cells;
use super::output::{stderr_link, stderr_width};
use super::plain_text::printable;
use crate::app::RunningManager;
use crate::config::{self, ExperimentSpec};
use crate::experiment::notice::Notice;
use crate::experiment::state::ExperimentState;
use crate::job_state::JobState;
use crate::search::goals::{Goals, is_better};
use crate::view::{self, Snapshot, pareto};

mod line;

use line::SearchProgress;

/// The number of lines that are shown of a failed trial's output.
const MAX_OUTPUT_LINES: usize = 5;
/// The minimum time between two status lines. They are printed without a terminal, where a log may keep them.
const PROGRESS_INTERVAL: Duration = Duration::from_mins(1);

/// The display of an experiment's progress.
pub(in crate::cli) struct Progress {
    bar: ProgressBar,
    spec: ExperimentSpec,
    /// `true` after the direction has been compared with the metric's name.
    direction_checked: bool,
    best: Option<(u64, f64)>,
    /// The results that no other result dominates, if there are several objectives.
    front: Vec<MetricValue>,
    /// The ids of the running trials.
    running: HashSet<String>,
    /// The states of the trials that have ended, by id.
    ended: HashMap<String, JobState>,
    /// The number of trials that have ended under this manager.
    ended_here: u64,
    terminal: bool,
    /// `true` while the search is done, but may continue.
    is_done: bool,
    /// The time of the last status line.
    last_status: Option<Instant>,
    began: Instant,
    /// The results that were better than all earlier results.
    improvements: Vec<f64>,
    /// The reasons for waiting that have been shown.
    waits: HashSet<String>,
}

impl Progress {
    /// Creates the display, and prints the experiment's address and folder.
    pub(in crate::cli) fn new(running: &RunningManager) -> Self {
        let terminal = std::io::stderr().is_terminal();
        let target =
            if terminal { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let style = ProgressStyle::with_template("{msg}").expect("the template is valid");
        let bar = ProgressBar::with_draw_target(None, target).with_style(style);
        let mut progress = Self {
            bar,
            spec: running.spec.clone(),
            direction_checked: false,
            best: None,
            front: Vec::new(),
            running: HashSet::new(),
            ended: HashMap::new(),
            ended_here: 0,
            terminal,
            is_done: false,
            last_status: None,
            began: Instant::now(),
            improvements: Vec::new(),
            waits: HashSet::new(),
        };
        progress.print_raw(&format!("experiment {} on {}", running.id, stderr_link(&running.url)));
        progress.print(&format!("  results are stored in {}", running.dir.path().display()));
        let spec = &running.spec;
        let directory = running.dir.path().parent();
        let directory = directory.and_then(|data_dir| spec.working_directory_warning(data_dir));
        let warnings = spec.ignored_warning().into_iter().chain(directory);
        let warnings = warnings.chain(spec.constant_options_warning());
        for warning in warnings.chain(config::space_warnings(spec)) {
            progress.print(&format!("  {warning}"));
        }
        if let Some(sentence) = running.spec.assumed_direction_hint() {
            progress.print(&format!("  {sentence}"));
        }
        for sentence in running.spec.missing_direction_warning().iter().flat_map(|all| all.lines())
        {
            progress.print(&format!("  {sentence}"));
        }
        if let Some(metric) = &running.spec.objective {
            progress.warn_of_direction(metric);
        }
        if let Some(url) = &running.advertised {
            progress
                .print(&format!("  trials reach the manager at {url} (change with --advertise)"));
            if ["://localhost", "://127.", "://[::1]"].iter().any(|own| url.contains(own)) {
                let why = "pods have their own loopback interface: they reach this address only on the host's network";
                progress.print(&format!("  {why}"));
            }
        }
        progress
    }

    /// Adds the trials of earlier managers.
    pub(in crate::cli) fn restore(&mut self, snapshot: &Snapshot) {
        for trial in &snapshot.trials {
            // A trial that its platform interrupted runs again.
            if trial.state.is_final() && trial.state != JobState::SysCanceled {
                self.ended.insert(trial.id.clone(), trial.state);
            } else if matches!(trial.state, JobState::Running | JobState::Lost) {
                self.running.insert(trial.id.clone());
            }
        }
        let steps = view::improvements(snapshot, self.spec.direction);
        self.best = steps.last().map(|step| (step.sequence, step.value));
        self.improvements = steps.iter().map(|step| step.value).collect();
        let front = pareto::front(snapshot, &self.spec.goals).into_iter();
        self.front = front.filter_map(|trial| trial.final_value).map(MetricValue::from).collect();
        self.draw();
    }

    /// Prints a warning, once, if the name of the metric that counts suggests the other direction.
    fn warn_of_direction(&mut self, metric: &str) {
        if !std::mem::replace(&mut self.direction_checked, true)
            && let Some(warning) = self.spec.direction_warning(metric)
        {
            self.print(&warning);
        }
    }

    /// Shows a notice.
    pub(in crate::cli) fn show(&mut self, notice: Notice) {
        match notice {
            Notice::Running { trial } => {
                // A trial that runs again has not ended.
                self.ended.remove(trial.as_str());
                self.running.insert(trial.to_string());
                self.is_done = false;
            }
            Notice::Lost { trial, sequence, message } => {
                self.print(&format!("trial {sequence} ({trial}) LOST: {message}"));
            }
            Notice::Found { trial, sequence } => {
                self.print(&format!("trial {sequence} ({trial}) reports again"));
            }
            Notice::Waits { trial, sequence, why } => {
                // Many trials may wait for the same reason, which is shown once.
                if self.waits.insert(why.clone()) {
                    self.print(&format!("trial {sequence} ({trial}) waits: {why}"));
                }
            }
            Notice::Ended { trial, sequence, end, result, last_lines, point_mean } => {
                self.running.remove(trial.as_str());
                let number = result.final_value.as_ref().and_then(MetricValue::number);
                if let Some(metric) = result.name.as_ref().filter(|_| number.is_some()) {
                    self.warn_of_direction(metric);
                }
                if end.state == JobState::Succeeded {
                    self.compare_with_best(sequence, point_mean);
                    self.extend_front(result.final_value.as_ref());
                    let problem = result_problem(result.final_value.as_ref(), &self.spec.goals);
                    if let Some(problem) = problem {
                        self.print(&format!("trial {sequence} ({trial}) succeeded, {problem}"));
                    }
                } else {
                    let why = end.message.unwrap_or_default();
                    let code = end.exit_code.map(|code| format!(" (exit code {code})"));
                    let code = code.unwrap_or_default();
                    self.print(&format!("trial {sequence} ({trial}) {}{code}: {why}", end.state));
                    // The message may already contain the only line.
                    let lines =
                        last_nonempty_lines(&last_lines).filter(|line| !why.contains(line.trim()));
                    for line in lines {
                        self.print(&format!("    | {line}"));
                    }
                }
                if end.state != JobState::SysCanceled {
                    self.ended.insert(trial.to_string(), end.state);
                    self.ended_here += 1;
                    self.print_status(Instant::now());
                }
            }
            Notice::State(ExperimentState::TunerNoMoreTrial) => {
                self.print("the tuner has nothing more to propose");
            }
            Notice::Message(message) => self.print(&message),
            Notice::State(state) => self.is_done = state == ExperimentState::Done,
        }
        self.draw();
    }

    /// Compares a result with the best one.
    fn compare_with_best(&mut self, sequence: u64, point_mean: Option<f64>) {
        if is_better(self.spec.direction, point_mean, self.best.map(|(_, best)| best)) {
            self.best = point_mean.map(|number| (sequence, number));
            self.improvements.extend(point_mean);
        }
    }

    /// Adds a result to the Pareto front, if no other result dominates it.
    fn extend_front(&mut self, result: Option<&MetricValue>) {
        if self.spec.goals.has_several_objectives() {
            self.front.extend(result.cloned());
            let front = pareto::front_of(self.front.iter(), &self.spec.goals);
            self.front = front.into_iter().map(|at| self.front[at].clone()).collect();
        }
    }

    /// Returns whether the display shows the elapsed time, so that it has to be redrawn.
    pub(in crate::cli) fn is_live(&self) -> bool {
        self.terminal && !self.is_done
    }

    /// Redraws the line at the bottom of the terminal.
    pub(in crate::cli) fn draw(&self) {
        if self.is_live() {
            // A terminal may wrap a line that reaches its last column.
            let width = stderr_width().saturating_sub(1);
            self.bar.set_message(self.search_progress().line(width));
        }
    }

    fn search_progress(&self) -> SearchProgress {
        let failed = self.ended.values().filter(|state| **state == JobState::Failed).count();
        let several = Some(&self.spec.goals).filter(|goals| goals.has_several_objectives());
        SearchProgress {
            objective: several.map(|goals| printable(&goals.objectives[0].metric)),
            front: several.map(|_| self.front.len()),
            elapsed: self.began.elapsed(),
            ended: u64::try_from(self.ended.len()).unwrap_or(u64::MAX),
            ended_here: self.ended_here,
            trials: self.spec.max_trial_number,
            running: self.running.len(),
            failed,
            best: self.best.map(|(trial, best)| (cells::short_cell(&json!(best)), trial)),
            improvements: self.improvements.clone(),
        }
    }

    /// Prints a status line if there is no bar and the last status line is old enough.
    fn print_status(&mut self, now: Instant) {
        if self.terminal || self.last_status.is_some_and(|last| now - last < PROGRESS_INTERVAL) {
            return;
        }
        self.last_status = Some(now);
        self.print(&self.search_progress().sentence());
    }

    /// Reports the first interruption.
    pub(in crate::cli) fn report_stop(&self) {
        self.print("stopping the trials; interrupt again to exit immediately");
    }

    /// Reports the second interruption.
    pub(in crate::cli) fn report_exit(&self, id: &ExperimentId) {
        // Cleared, because a finished bar would be drawn as full, with the shell's prompt on the same line.
        self.bar.finish_and_clear();
        let exiting = match self.running.len() {
            0 => "exiting".to_owned(),
            1 => "exiting while 1 trial still runs".to_owned(),
            more => format!("exiting while {more} trials still run"),
        };
        self.print(&format!("{exiting}; `trial-manager resume {id}` continues"));
    }

    /// Reports that the manager exits while its trials keep running.
    pub(in crate::cli) fn report_detached(&self, id: &ExperimentId) {
        self.print(&format!("the trials keep running; `trial-manager resume {id}` adopts them"));
    }

    /// Calls a function that prints, without the bar.
    pub(in crate::cli) fn suspend<T>(&self, print: impl FnOnce() -> T) -> T {
        self.bar.suspend(print)
    }

    /// Removes the bar.
    pub(in crate::cli) fn close(&self) {
        self.bar.finish_and_clear();
    }

    fn print(&self, text: &str) {
        self.print_raw(&printable(text));
    }

    /// Prints a line that may contain a hyperlink.
    fn print_raw(&self, line: &str) {
        self.bar.suspend(|| {
            // Ignored: standard error may be closed.
            drop(writeln!(std::io::stderr().lock(), "{line}"));
        });
    }
}

/// Returns the drawback of a succeeded trial's final result, if it has one.
pub(in crate::cli) fn result_problem(last: Option<&MetricValue>, goals: &Goals) -> Option<String> {
    let Some(value) = last else { return Some("and reported no final result".to_owned()) };
    match value.number() {
        Some(number) if number.is_nan() => Some("but its final result is NaN".to_owned()),
        Some(number) if number.is_infinite() => {
            let violations = goals.violations(value);
            Some(if violations.is_empty() {
                "but its final result is infinite, which is never the best".to_owned()
            } else {
                format!("but it violates the constraints: {}", violations.join("; "))
            })
        }
        Some(_) => None,
        None => {
            Some(match value.as_json().as_object() {
                Some(members) => {
                    let mut numbers = members.iter().filter(|(_, member)| member.is_number());
                    let advice = numbers.next().map(|(name, _)| {
                    format!("; `objective: {name}` in the experiment file would make that member count")
                });
                    let advice = advice.unwrap_or_default();
                    format!(
                        "but its final result is an object without a number called `default`{advice}"
                    )
                }
                None => "but its final result is not a number".to_owned(),
            })
        }
    }
}

/// Returns a number with no more digits than are needed to distinguish it from all others.
pub(in crate::cli) fn format_number(number: f64) -> String {
    if number == 0.0 || (1e-4..1e15).contains(&number.abs()) {
        number.to_string()
    } else {
        format!("{number:e}")
    }
}

/// Returns the last [`MAX_OUTPUT_LINES`] lines of a text that are not empty.
pub(in crate::cli) fn last_nonempty_lines(text: &str) -> impl Iterator<Item = &str> {
    let lines: Vec<_> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let from = lines.len().saturating_sub(MAX_OUTPUT_LINES);
    lines.into_iter().skip(from)
}

#[cfg(test)]
mod tests {
    use crate::search::goals::Constraint;

    use super::*;

    #[test]
    fn a_number_is_shown_with_the_digits_that_distinguish_it() {
        for (number, expected) in [
            (0.0, "0"),
            (0.973_158_4, "0.9731584"),
            (-1e308, "-1e308"),
            (1e38, "1e38"),
            (1e-300, "1e-300"),
            (123_456_789.25, "123456789.25"),
        ] {
            assert_eq!(format_number(number), expected);
        }
    }

    #[test]
    fn a_bad_result_is_reported_with_the_remedy() {
        let infinite = "but its final result is infinite, which is never the best";
        let object = "but its final result is an object without a number called `default`";
        let table = [
            (json!({"default": 1}), None),
            (json!({"note": "x"}), Some(object.to_owned())),
            (
                json!({"note": "x", "acc": 0.9, "loss": 1}),
                Some(format!(
                    "{object}; `objective: acc` in the experiment file would make that member count"
                )),
            ),
            (json!("good"), Some("but its final result is not a number".to_owned())),
            (json!("NaN"), Some("but its final result is NaN".to_owned())),
            (json!("Infinity"), Some(infinite.to_owned())),
            (json!("-Infinity"), Some(infinite.to_owned())),
            (json!({"default": "Infinity", "memory": 1}), Some(infinite.to_owned())),
            (
                json!({"default": "Infinity", "memory": 18}),
                Some("but it violates the constraints: memory is 18, above 16".to_owned()),
            ),
        ];
        let limit = Constraint { metric: "memory".to_owned(), min: None, max: Some(16.0) };
        let goals = Goals { objectives: Vec::new(), constraints: vec![limit] };
        for (value, expected) in table {
            // A plain number is the result of a search without constraints.
            let goals = if value.is_object() { goals.clone() } else { Goals::default() };
            assert_eq!(
                result_problem(Some(&MetricValue::from(value.clone())), &goals),
                expected,
                "{value}"
            );
        }
    }
}
