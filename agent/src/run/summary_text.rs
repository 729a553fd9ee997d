//! PURE: the summary for the user at the end of a run.

use std::fmt::Write;
use std::path::Path;

use trial_protocol::Verdict;

use crate::supervise::recorder::MetricSummary;

/// The content of the summary.
#[derive(Debug, Clone, Copy)]
pub struct RunSummary<'a> {
    /// The verdict.
    pub verdict: &'a Verdict,
    /// The counts of collected metrics.
    pub metrics: &'a MetricSummary,
    /// The directory of the run's files.
    pub dir: Option<&'a Path>,
    /// Number of reports that were not delivered to the manager; `None` without a manager.
    pub undelivered: Option<u64>,
}

/// Returns the summary, several lines.
pub fn render_summary(run: &RunSummary<'_>) -> String {
    let mut lines = vec![("result", run.verdict.message.clone())];
    let metrics = run.metrics;
    if let Some(value) = &metrics.final_value {
        let name = metrics.name.as_deref().unwrap_or_default();
        let derived = if metrics.derived { " (the last intermediate result)" } else { "" };
        lines.push(("metric", format!("{name} = {}{derived}", value.as_json())));
    }
    let results = match (&metrics.final_value, metrics.intermediate) {
        (None, 0) => {
            "none found (supported: name=value, name: value of known metrics, JSON lines; --metric-pattern adds others)"
                .to_owned()
        }
        (_, count) => format!("{count} intermediate"),
    };
    lines.push(("results", results));
    if metrics.unreadable > 0 {
        lines.push(("unreadable", format!("{} metric-like values", metrics.unreadable)));
    }
    lines.extend(metrics.notes.iter().map(|note| ("note", note.clone())));
    if let Some(duration) = run.verdict.duration_ms {
        lines.push(("duration", format_duration(duration)));
    }
    if let Some(exit) = run.verdict.exit {
        lines.push(("exit code", exit.shell_code().to_string()));
    }
    if let Some(undelivered @ 1..) = run.undelivered {
        lines.push(("undelivered", format!("{undelivered} reports")));
    }
    if let Some(dir) = run.dir {
        lines.push(("files", dir.display().to_string()));
    }
    let width = lines.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    lines.iter().fold(String::new(), |mut text, (name, value)| {
        writeln!(text, "trialkeeper: {name:width$}  {value}")
            .expect("writing to a String cannot fail");
        text
    })
}

fn format_duration(millis: u64) -> String {
    let (seconds, rest) = (millis / 1000, millis % 1000);
    match seconds {
        0..60 => format!("{seconds}.{rest:03} s"),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        _ => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
    }
}

#[cfg(test)]
mod tests {
    use trial_protocol::{MetricValue, TrialExit};

    use super::*;
    use crate::verdict::{Observations, TrialEnd, conclude};

    #[test]
    fn the_summary_of_a_good_run_lists_its_content() {
        let exit = TrialExit::Code(0);
        let end = TrialEnd::Exited { exit, wait_status: Some(0) };
        let verdict =
            conclude(&Observations { end, duration_ms: Some(61_500), ..Observations::default() });
        let metrics = MetricSummary {
            intermediate: 3,
            final_value: Some(MetricValue::from(0.5)),
            name: Some("loss".to_owned()),
            notes: vec!["of 2".to_owned()],
            ..MetricSummary::default()
        };
        let run = RunSummary {
            verdict: &verdict,
            metrics: &metrics,
            dir: Some(Path::new("/r")),
            undelivered: None,
        };
        let text = render_summary(&run);
        let rest: Vec<_> = text.lines().skip(1).collect();
        assert_eq!(
            rest,
            [
                "trialkeeper: metric     loss = 0.5",
                "trialkeeper: results    3 intermediate",
                "trialkeeper: note       of 2",
                "trialkeeper: duration   1 min 1 s",
                "trialkeeper: exit code  0",
                "trialkeeper: files      /r",
            ]
        );
    }

    #[test]
    fn times_use_at_most_two_units() {
        for (millis, text) in
            [(7, "0.007 s"), (59_999, "59.999 s"), (60_000, "1 min 0 s"), (3_660_000, "1 h 1 min")]
        {
            assert_eq!(format_duration(millis), text);
        }
    }
}
