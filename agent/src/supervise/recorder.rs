//! Records all observations of the trial in the spool: findings become metrics, events become notes. It also counts for
//! the summary.

use std::sync::Arc;

use trial_protocol::{Metric, MetricKind, MetricValue, ReportBody};

use crate::collect::{CollectSpec, Finding, Line, MetricRegistry, Source};
use crate::spool::Spool;
use crate::supervise::rules::{RuleViolation, Rules};
use crate::util::clock::Clock;
use crate::util::log::{PRINT_WAIT, print};
use crate::util::secrets::Secrets;

mod nni;

pub use nni::NniRecorder;

/// The maximum number of noted findings that look like metrics and cannot be read. Further ones are only counted.
const MAX_UNREADABLE_NOTES: u64 = 10;

/// The recorder of one attempt.
pub struct Recorder {
    registry: MetricRegistry,
    spool: Spool,
    clock: Arc<dyn Clock>,
    prints_metrics: bool,
    secrets: Secrets,
    summary: MetricSummary,
    /// `true` if another pod reports the metrics.
    ignores_metrics: bool,
    rules: Rules,
    /// The violated rule that the supervisor has not taken yet.
    violation: Option<RuleViolation>,
    /// The writer for an NNI manager, if one started the agent.
    nni: Option<NniRecorder>,
}

/// Counts of the collected metrics.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct MetricSummary {
    /// The number of intermediate results, over all names.
    pub intermediate: u64,
    /// The first final result, which is the one that counts.
    pub final_value: Option<MetricValue>,
    /// The name of the final result's metric.
    pub name: Option<String>,
    /// `true` if it was derived from the last intermediate result.
    pub derived: bool,
    /// The number of unreadable values that looked like metrics.
    pub unreadable: u64,
    /// Notes for the user.
    pub notes: Vec<String>,
}

impl Recorder {
    /// Creates a recorder that writes into `spool`. With `prints_metrics`, it also prints metrics to stderr. `secrets`
    /// are masked in notes.
    pub fn new(
        spec: &CollectSpec,
        spool: Spool,
        clock: Arc<dyn Clock>,
        prints_metrics: bool,
        secrets: Secrets,
    ) -> Self {
        let (registry, summary) = (MetricRegistry::new(spec), MetricSummary::default());
        let (rules, violation) = (Rules::default(), None);
        Self {
            registry,
            spool,
            clock,
            prints_metrics,
            secrets,
            summary,
            ignores_metrics: false,
            rules,
            violation,
            nni: None,
        }
    }

    /// Records for an NNI manager, with the messages of NNI's own keeper.
    #[must_use]
    pub fn for_nni(self, nni: NniRecorder) -> Self {
        Self { nni: Some(nni), ..self }
    }

    /// Records no metrics, because another pod of the trial reports them. They are still counted: a pod that takes
    /// steps is alive.
    #[must_use]
    pub fn without_metrics(self) -> Self {
        Self { ignores_metrics: true, ..self }
    }

    /// Records findings, and returns the number of intermediate results among them, each the end of a step.
    pub fn record(&mut self, findings: Vec<Finding>) -> u64 {
        self.record_all(findings, false)
    }

    /// Records the lines of a portion, for a manager that expects lines, and the findings in them. Returns the same
    /// number.
    pub fn record_lines(&mut self, lines: Vec<Line>, findings: Vec<Finding>) -> u64 {
        if let Some(nni) = &mut self.nni {
            for line in lines {
                nni.record_line(self.clock.now_ms(), line);
            }
        }
        self.record_all(findings, true)
    }

    fn record_all(&mut self, findings: Vec<Finding>, from_lines: bool) -> u64 {
        let before = self.summary.intermediate;
        for finding in findings {
            match finding {
                Finding::Metric(found) => {
                    // The SDK's own line was already sent as printed.
                    let already_sent = from_lines && found.source == Source::Sdk;
                    if let Some(metric) = self.registry.register(found) {
                        self.count_metric(&metric);
                        if !already_sent && !self.ignores_metrics {
                            self.report(ReportBody::Metric(metric));
                        }
                    }
                }
                // The line itself was already sent.
                Finding::Unreadable { source: Source::Sdk, .. } if from_lines => {
                    self.summary.unreadable += 1;
                }
                Finding::Unreadable { excerpt, why, .. } => {
                    self.summary.unreadable += 1;
                    if self.summary.unreadable <= MAX_UNREADABLE_NOTES {
                        let colon = if excerpt.is_empty() { "" } else { ": " };
                        self.note("metric-unreadable", format!("{why}{colon}{excerpt}"));
                    }
                }
            }
        }
        self.summary.intermediate - before
    }

    /// Derives the final result if the trial reported none, and records the closing notes.
    pub fn conclude(&mut self, succeeded: bool) {
        if let Some(metric) = self.registry.conclude(succeeded) {
            self.count_metric(&metric);
            if !self.ignores_metrics {
                self.report(ReportBody::Metric(metric));
            }
        }
        for (code, message) in self.registry.notes() {
            self.summary.notes.push(message.clone());
            self.note(code, message);
        }
        if let Some(more) = self.summary.unreadable.checked_sub(MAX_UNREADABLE_NOTES + 1) {
            let message = format!("{} more unreadable metrics were ignored", more + 1);
            self.note("metric-unreadable", message);
        }
    }

    /// Records a note for the trial's timeline.
    pub fn note(&self, code: &str, message: String) {
        let message = self.secrets.mask_text(message);
        self.report(ReportBody::Note { code: code.to_owned(), message });
    }

    /// Records any report.
    pub fn report(&self, body: ReportBody) {
        let now_ms = self.clock.now_ms();
        match &self.nni {
            Some(nni) => nni.report(now_ms, &body),
            None => self.spool.append(now_ms, body),
        }
    }

    /// Returns the stop rules for the trial's metrics.
    pub fn rules(&mut self) -> &mut Rules {
        &mut self.rules
    }

    /// Returns the rule that a metric has violated since the last call.
    pub fn take_violation(&mut self) -> Option<RuleViolation> {
        self.violation.take()
    }

    /// Returns the counts so far.
    pub fn metric_summary(&self) -> &MetricSummary {
        &self.summary
    }

    /// Returns the last number of each metric, by name.
    pub fn last_numbers(&self) -> Vec<(&str, f64)> {
        self.registry
            .last_values()
            .filter_map(|(name, value)| Some((name, value.number()?)))
            .collect()
    }

    fn count_metric(&mut self, metric: &Metric) {
        let now = tokio::time::Instant::now().into_std();
        // Every metric is checked against the rules; the first violation counts.
        let violation = self.rules.violation_of(metric, now);
        self.violation = self.violation.take().or(violation);
        match metric.kind {
            MetricKind::Intermediate => self.summary.intermediate += 1,
            MetricKind::Final if self.summary.final_value.is_none() => {
                self.summary.final_value = Some(metric.value.clone());
                self.summary.name = Some(metric.name.clone());
                self.summary.derived = metric.derived;
            }
            MetricKind::Final => {}
        }
        if self.prints_metrics {
            let kind = match metric.kind {
                MetricKind::Intermediate => format!("[{}]", metric.sequence),
                MetricKind::Final => " (final)".to_owned(),
            };
            let value = metric.value.as_json();
            print(&format!("trialkeeper: {}{kind} = {value}\n", metric.name), PRINT_WAIT);
        }
    }
}
