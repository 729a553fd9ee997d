//! `trialkeeper inspect`: shows the result of a trial from the files in its directory.
//!
//! While no manager has accepted its reports, the spool contains all metrics. Afterwards, the output and the metric
//! files are read again, with the collectors of the run. This gives the same metrics, except for those from the SDK's
//! channel.

use std::fmt::Write as _;
use std::fs;
use std::io::{self, Write as _};
use std::path::Path;
use std::process::ExitCode;

use serde_json::{Value, json};
use trial_protocol::{Lane, Metric, MetricKind, Report, ReportBody, Stream, TrialExit, Verdict};

use crate::cli::{AGENT_FAULT, Output};
use crate::collect::{Finding, MetricRegistry, StreamScanner};
use crate::commands::tools::print;
use crate::output::run_dir::{PARAMETERS_FILE, VERDICT_FILE};
use crate::spool::{LaneFiles, lane_files};

mod collectors_file;

pub use collectors_file::{CollectorsFile, REPORTS_FILE, SDK_METRIC_FILE};

/// The content of a directory.
#[derive(Debug, Default)]
struct TrialFiles {
    parameters: Option<Value>,
    verdict: Option<Verdict>,
    metrics: Vec<Metric>,
    /// The number of reports that wait for a manager.
    undelivered: usize,
    /// The name and size in bytes of each output file.
    files: Vec<(String, u64)>,
}

/// Shows the result of the trial in `dir`.
pub fn inspect(dir: &Path, output: Output) -> ExitCode {
    let found = read_trial_files(dir);
    if found.verdict.is_none() && found.parameters.is_none() && found.files.is_empty() {
        let message =
            format!("trialkeeper: error: {} is not a trial's output directory\n", dir.display());
        io::stderr().write_all(message.as_bytes()).ok();
        return ExitCode::from(AGENT_FAULT);
    }
    print(&match output {
        Output::Text => render_text(&found),
        Output::Json => format!("{}\n", to_json(&found)),
    })
}

fn read_trial_files(dir: &Path) -> TrialFiles {
    let json = |name: &str| fs::read(dir.join(name)).ok();
    let verdict: Option<Verdict> =
        json(VERDICT_FILE).and_then(|bytes| serde_json::from_slice(&bytes).ok());
    let files = ["stdout.1", "stdout", "stderr.1", "stderr"]
        .into_iter()
        .filter_map(|name| Some((name.to_owned(), fs::metadata(dir.join(name)).ok()?.len())));
    let (facts, is_complete) = read_spooled_facts(&dir.join("spool"));
    let metrics = if is_complete {
        let metric = |report: &Report| {
            let ReportBody::Metric(metric) = &report.body else { return None };
            Some(metric.clone())
        };
        facts.iter().filter_map(metric).collect()
    } else {
        let succeeded =
            verdict.as_ref().is_some_and(|verdict| verdict.exit == Some(TrialExit::Code(0)));
        collect_again(dir, succeeded)
    };
    TrialFiles {
        parameters: json(PARAMETERS_FILE).and_then(|bytes| serde_json::from_slice(&bytes).ok()),
        verdict,
        metrics,
        undelivered: facts.len(),
        files: files.collect(),
    }
}

/// Returns the facts of the last attempt that are still in the spool, and whether no manager has accepted any of its
/// facts.
fn read_spooled_facts(spool: &Path) -> (Vec<Report>, bool) {
    let attempts = lane_files::list_attempts(spool);
    let Some(attempt) = attempts.last() else { return (Vec::new(), false) };
    let Ok(mut lane) = LaneFiles::open(&spool.join(attempt.as_str()), Lane::Facts) else {
        return (Vec::new(), false);
    };
    let records = lane.read(lane.acked(), u64::MAX, usize::MAX).unwrap_or_default();
    let facts: Vec<Report> =
        records.iter().filter_map(|record| serde_json::from_str(&record.json).ok()).collect();
    let is_complete = !facts.is_empty() && lane.acked().is_none();
    (facts, is_complete)
}

/// Returns the metrics in the output files and in the metric files.
fn collect_again(dir: &Path, succeeded: bool) -> Vec<Metric> {
    let collectors = CollectorsFile::read_in(dir);
    let spec = &collectors.collect;
    let mut registry = MetricRegistry::new(spec);
    let mut findings = Vec::new();
    for (stream, name) in [(Stream::Stdout, "stdout"), (Stream::Stderr, "stderr")] {
        let mut scanner = StreamScanner::new(spec, stream);
        for name in [&format!("{name}.1"), name] {
            if let Ok(bytes) = fs::read(dir.join(name)) {
                scanner.feed(&bytes, &mut findings);
            }
        }
        scanner.finish(&mut findings);
    }
    collectors.read_files(&mut findings);
    let found = findings.into_iter().filter_map(|finding| match finding {
        Finding::Metric(found) => Some(found),
        Finding::Unreadable { .. } => None,
    });
    let mut metrics: Vec<Metric> = found.filter_map(|found| registry.register(found)).collect();
    metrics.extend(registry.conclude(succeeded));
    metrics
}

fn metrics_of_kind(found: &TrialFiles, kind: MetricKind) -> impl Iterator<Item = &Metric> {
    found.metrics.iter().filter(move |metric| metric.kind == kind)
}

fn to_json(found: &TrialFiles) -> Value {
    let result = metrics_of_kind(found, MetricKind::Final).next();
    let intermediate: Vec<_> = metrics_of_kind(found, MetricKind::Intermediate).collect();
    let files: serde_json::Map<_, _> =
        found.files.iter().map(|(name, size)| (name.clone(), json!(size))).collect();
    json!({
        "parameters": found.parameters,
        "verdict": found.verdict,
        "final": result,
        "intermediate": intermediate,
        "waiting": found.undelivered,
        "files": files,
    })
}

fn render_text(found: &TrialFiles) -> String {
    let mut lines = Vec::new();
    if let Some(parameters) = &found.parameters {
        lines.push(("parameters", parameters.to_string()));
    }
    match &found.verdict {
        Some(verdict) => {
            lines.push(("result", verdict.message.clone()));
            if let Some(exit) = verdict.exit {
                lines.push(("exit code", exit.shell_code().to_string()));
            }
        }
        None => lines.push(("result", "none yet".to_owned())),
    }
    for metric in metrics_of_kind(found, MetricKind::Final).take(1) {
        lines.push(("metric", format!("{} = {}", metric.name, metric.value.as_json())));
    }
    let count = metrics_of_kind(found, MetricKind::Intermediate).count();
    lines.push(("results", format!("{count} intermediate")));
    for metric in metrics_of_kind(found, MetricKind::Intermediate).skip(count.saturating_sub(5)) {
        let Metric { name, sequence, value, .. } = metric;
        lines.push(("", format!("{name}[{sequence}] = {}", value.as_json())));
    }
    if found.undelivered > 0 {
        lines.push(("spool", format!("{} facts not delivered to a manager", found.undelivered)));
    }
    for (name, size) in &found.files {
        lines.push(("file", format!("{name}, {size} bytes")));
    }
    lines.iter().fold(String::new(), |mut text, (name, value)| {
        writeln!(text, "{name:10}  {value}").expect("writing to a String cannot fail");
        text
    })
}
