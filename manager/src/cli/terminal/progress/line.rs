//! PURE: the line that shows a search's progress: on a terminal with a bar, in the most detailed form that fits its
//! width; elsewhere as a sentence.

use std::time::Duration;

use unicode_width::UnicodeWidthStr as _;

use crate::cli::terminal::cells::{cut, shorten};
use crate::cli::terminal::sparkline::{MAX_SPARKLINE_CHARS, bar, sparkline};
use crate::view;

/// The maximum width of the name of an objective.
const MAX_NAME_WIDTH: usize = 16;

/// The numbers of a search.
#[derive(Debug, Clone, Default)]
pub(super) struct SearchProgress {
    /// The time since the manager started.
    pub(super) elapsed: Duration,
    /// The number of trials that have ended, also under earlier managers.
    pub(super) ended: u64,
    /// The number of trials that have ended under this manager, which determines the rate.
    pub(super) ended_here: u64,
    /// The maximum number of trials, if there is one.
    pub(super) trials: Option<u64>,
    pub(super) running: usize,
    pub(super) failed: usize,
    /// The best result and its trial. Of several objectives, the first counts.
    pub(super) best: Option<(String, u64)>,
    /// The name of the first of several objectives.
    pub(super) objective: Option<String>,
    /// The number of trials on the Pareto front, if there are several objectives.
    pub(super) front: Option<usize>,
    /// The results that were better than all earlier results.
    pub(super) improvements: Vec<f64>,
}

/// A level of detail of the line.
#[derive(Debug, Clone, Copy)]
struct LineDetail {
    /// The length of the bar, in characters. 0 for no bar.
    bar: usize,
    /// The length of the curve, in characters. 0 for no curve.
    curve: usize,
    has_clock: bool,
    has_rate: bool,
    /// `true` if the number of the best trial is shown.
    has_trial: bool,
}

/// The levels of detail, the highest first.
const DETAIL_LEVELS: [LineDetail; 8] = [
    LineDetail {
        bar: 30,
        curve: MAX_SPARKLINE_CHARS,
        has_clock: true,
        has_rate: true,
        has_trial: true,
    },
    LineDetail { bar: 30, curve: 8, has_clock: true, has_rate: true, has_trial: true },
    LineDetail { bar: 10, curve: 8, has_clock: true, has_rate: true, has_trial: true },
    LineDetail { bar: 10, curve: 8, has_clock: false, has_rate: true, has_trial: true },
    LineDetail { bar: 10, curve: 8, has_clock: false, has_rate: false, has_trial: true },
    LineDetail { bar: 6, curve: 8, has_clock: false, has_rate: false, has_trial: false },
    LineDetail { bar: 0, curve: 8, has_clock: false, has_rate: false, has_trial: false },
    LineDetail { bar: 0, curve: 0, has_clock: false, has_rate: false, has_trial: false },
];

impl SearchProgress {
    /// Returns the line for a terminal of `width` columns.
    pub(super) fn line(&self, width: usize) -> String {
        let mut lines = DETAIL_LEVELS.into_iter().map(|detail| self.with_detail(detail)).peekable();
        while let Some(line) = lines.next() {
            if line.width() <= width || lines.peek().is_none() {
                return cut(&line, width);
            }
        }
        String::new()
    }

    /// Returns the sentence for a log.
    pub(super) fn sentence(&self) -> String {
        let LineDetail { has_rate, has_trial, .. } = DETAIL_LEVELS[0];
        let limit = self.reachable_limit();
        let counted = limit.unwrap_or(self.ended);
        let all = limit.map(|all| format!(" of {all}")).unwrap_or_default();
        let plural = if counted == 1 { "" } else { "s" };
        let ended = format!("{}{all} trial{plural} ended", self.ended);
        let (counts, best) = (self.counts(), self.best(has_trial));
        format!("{ended}{counts}{best}{}{}", self.front(), self.pace(has_rate))
    }

    fn with_detail(&self, detail: LineDetail) -> String {
        let clock = format!("{} ", clock(self.elapsed));
        let clock = if detail.has_clock { clock } else { String::new() };
        let real = |count: u64| u32::try_from(count).map_or(f64::MAX, f64::from);
        let bar = self.trials.filter(|all| detail.bar > 0 && *all > 0).map(|all| {
            let share = (real(self.ended) / real(all)).min(1.0);
            format!("[{}] ", bar(share, detail.bar))
        });
        let bar = bar.unwrap_or_default();
        let all = self.reachable_limit().map(|all| format!("/{all}")).unwrap_or_default();
        let ended = format!("{}{all} trials", self.ended);
        let curve = &self.improvements[self.improvements.len().saturating_sub(detail.curve)..];
        let curve = if curve.len() > 1 { format!(" {}", sparkline(curve)) } else { String::new() };
        let (counts, best) = (self.counts(), self.best(detail.has_trial));
        let (front, pace) = (self.front(), self.pace(detail.has_rate));
        format!("{clock}{bar}{ended}{counts}{best}{curve}{front}{pace}")
    }

    /// Returns the number of trials that the limit permits. `None` if there is no limit, or if more trials have ended
    /// because it was lowered.
    fn reachable_limit(&self) -> Option<u64> {
        self.trials.filter(|all| self.ended <= *all)
    }

    fn counts(&self) -> String {
        let failed = (self.failed > 0).then(|| format!(", {} failed", self.failed));
        format!(", {} running{}", self.running, failed.unwrap_or_default())
    }

    fn best(&self, has_trial: bool) -> String {
        let Some((best, trial)) = &self.best else { return String::new() };
        let trial = if has_trial { format!(" (trial {trial})") } else { String::new() };
        let objective =
            self.objective.as_ref().map(|name| format!("{} ", shorten(name, MAX_NAME_WIDTH)));
        format!(", best {}{best}{trial}", objective.unwrap_or_default())
    }

    /// Returns the size of the Pareto front.
    fn front(&self) -> String {
        let front = self.front.filter(|count| *count > 0);
        front.map(|count| format!(", Pareto front of {count}")).unwrap_or_default()
    }

    /// Returns the number of trials that end in an hour, if `has_rate` is set, and the remaining time. Empty until a
    /// trial has ended.
    fn pace(&self, has_rate: bool) -> String {
        let real = |count: u64| u32::try_from(count).map_or(f64::MAX, f64::from);
        let rate = real(self.ended_here) / self.elapsed.as_secs_f64();
        if self.ended_here == 0 || !rate.is_finite() {
            return String::new();
        }
        let per_hour = format!(", {:.0}/h", rate * 3600.0);
        let per_hour = if has_rate { per_hour } else { String::new() };
        let left = self.trials.and_then(|all| all.checked_sub(self.ended)).filter(|left| *left > 0);
        let left = left.and_then(|left| Duration::try_from_secs_f64(real(left) / rate).ok());
        let left = left.and_then(|left| u64::try_from(left.as_millis()).ok());
        let left =
            left.map(|ms| format!(", {} left", view::format_duration(ms))).unwrap_or_default();
        per_hour + &left
    }
}

/// Returns a length of time as `01:02:03`.
fn clock(time: Duration) -> String {
    let seconds = time.as_secs();
    format!("{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn search_progress() -> SearchProgress {
        SearchProgress {
            elapsed: Duration::from_hours(1),
            ended: 15,
            ended_here: 12,
            trials: Some(20),
            running: 2,
            failed: 1,
            best: Some(("0.9583".to_owned(), 4)),
            objective: None,
            front: None,
            improvements: vec![0.5, 0.75, 1.0],
        }
    }

    #[test]
    fn a_line_is_as_detailed_as_the_terminal_is_wide() {
        #[rustfmt::skip]
        let table = [
            (200, "01:00:00 [██████████████████████░░░░░░░░] 15/20 trials, 2 running, 1 failed, best 0.9583 (trial 4) ▁▅█, 12/h, 25 min left"),
            (105, "01:00:00 [███████░░░] 15/20 trials, 2 running, 1 failed, best 0.9583 (trial 4) ▁▅█, 12/h, 25 min left"),
            (80,  "[████░░] 15/20 trials, 2 running, 1 failed, best 0.9583 ▁▅█, 25 min left"),
            (66,  "15/20 trials, 2 running, 1 failed, best 0.9583 ▁▅█, 25 min left"),
            (60,  "15/20 trials, 2 running, 1 failed, best 0.9583, 25 min left"),
            (20,  "15/20 trials, 2 run…"),
        ];
        for (width, expected) in table {
            assert_eq!(search_progress().line(width), expected, "{width}");
        }
        let several = SearchProgress {
            objective: Some("loss".to_owned()),
            front: Some(3),
            improvements: Vec::new(),
            ..search_progress()
        };
        let expected =
            "15/20 trials, 2 running, 1 failed, best loss 0.9583, Pareto front of 3, 25 min left";
        assert_eq!(several.line(85), expected);
        let sentence = several.sentence();
        assert!(
            sentence.contains(", best loss 0.9583 (trial 4), Pareto front of 3, "),
            "{sentence}"
        );
        let open = SearchProgress {
            trials: None,
            best: None,
            improvements: vec![1.0],
            ..search_progress()
        };
        assert_eq!(open.line(80), "01:00:00 15 trials, 2 running, 1 failed, 12/h");
    }

    #[test]
    fn a_sentence_has_the_rate_and_the_remaining_time() {
        let just = |ended, trials, seconds| SearchProgress {
            elapsed: Duration::from_secs(seconds),
            ended,
            ended_here: ended,
            trials,
            ..SearchProgress::default()
        };
        let resumed = SearchProgress { ended_here: 1, ..just(5, Some(10), 60) };
        #[rustfmt::skip]
        let table = [
            (just(0, Some(10), 60), "0 of 10 trials ended, 0 running"),
            (just(5, None, 60), "5 trials ended, 0 running, 300/h"),
            (just(1, None, 60), "1 trial ended, 0 running, 60/h"),
            (just(5, Some(10), 60), "5 of 10 trials ended, 0 running, 300/h, 1 min left"),
            (just(10, Some(10), 60), "10 of 10 trials ended, 0 running, 600/h"),
            (just(12, Some(10), 60), "12 trials ended, 0 running, 720/h"),
            (just(1, Some(1), 0), "1 of 1 trial ended, 0 running"),
            (resumed, "5 of 10 trials ended, 0 running, 60/h, 5 min left"),
            (search_progress(), "15 of 20 trials ended, 2 running, 1 failed, best 0.9583 (trial 4), 12/h, 25 min left"),
        ];
        for (progress, expected) in table {
            assert_eq!(progress.sentence(), expected);
        }
    }

    proptest! {
        #[test]
        fn a_line_fits_its_terminal(
            width in 1_usize..250,
            ended in any::<u64>(),
            trials in prop::option::of(any::<u64>()),
            improvements in prop::collection::vec(any::<f64>(), 0..40),
        ) {
            let line = SearchProgress { ended, trials, improvements, ..search_progress() }.line(width);
            prop_assert!(line.width() <= width, "{width}: {line}");
        }
    }
}
