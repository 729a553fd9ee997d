//! Records all observations as messages of NNI's own keeper, line by line, in the spool.
//!
//! Metrics and the keeper's own lines are always kept. The trial's lines are dropped and counted when the spool is
//! full.

use std::cell::Cell;

use serde_json::Value;
use trial_protocol::{Cause, OBJECTIVE, ReportBody, Verdict};

use crate::collect::Line;
use crate::delivery::dialect::legacy::{self, Tag, VersionComparison};
use crate::spool::{Retention, Sender, Spool};
use crate::util::dates::civil_date;
use crate::util::secrets::Secrets;

/// The writer for an NNI manager.
#[derive(Debug)]
pub struct NniRecorder {
    spool: Spool,
    sender: Sender,
    parameter_id: Value,
    objective: Option<String>,
    secrets: Secrets,
    dropped: Cell<u64>,
}

impl NniRecorder {
    /// Creates a recorder for `sender`. NNI has one metric, without a name: `objective`, or else `default`. A metric
    /// that the trial did not print in the SDK's format gets `parameter_id`. `secrets` are masked in everything except
    /// metrics.
    pub fn new(
        spool: Spool,
        sender: Sender,
        parameter_id: Value,
        objective: Option<String>,
        secrets: Secrets,
    ) -> Self {
        Self { spool, sender, parameter_id, objective, secrets, dropped: Cell::new(0) }
    }

    /// Reports whether this keeper fits the manager. Must be the first message.
    pub fn compare_versions(&mut self, manager: &str, keeper: Option<&str>) {
        let comparison = legacy::compare_versions(manager, keeper);
        if comparison != VersionComparison::Match {
            tracing::warn!("{comparison} The trial runs anyway.");
        }
        self.spool.append_text(legacy::version_call_body(&comparison), Retention::Always);
    }

    /// Records a line of the trial's output.
    pub fn record_line(&mut self, now_ms: i64, line: Line) {
        match line {
            Line::Metric(object) => self.post_metric(&object),
            Line::Text(text) => {
                let taken = legacy::line_bodies(Tag::Trial, &self.secrets.mask_text(text))
                    .into_iter()
                    .all(|body| self.spool.append_text(body, Retention::IfRoom));
                if taken {
                    self.report_dropped(now_ms);
                } else {
                    self.dropped.set(self.dropped.get() + 1);
                }
            }
            // With the trial's tag, the server would read the line as a metric and end the experiment because of the
            // error.
            Line::Unreadable { excerpt, why } => {
                self.post_line(
                    now_ms,
                    "WARNING",
                    &format!("Unreadable metric, {why}: {excerpt}"),
                    Retention::Always,
                );
            }
        }
    }

    /// Records any other report.
    pub fn report(&self, now_ms: i64, body: &ReportBody) {
        match body {
            ReportBody::Started(started) => {
                let Some(pid) = started.pid else { return };
                // The shell's line is not split: only a shell can parse the command.
                let command = match &started.command[..] {
                    [shell, option, line] if shell == "/bin/sh" && option == "-c" => line.clone(),
                    words => words.join(" "),
                };
                let text = format!(
                    "Trial keeper spawns a subprocess (pid {pid}) to run command: {command}"
                );
                self.post_line(now_ms, "INFO", &text, Retention::Always);
            }
            ReportBody::Metric(metric) => {
                let names = [OBJECTIVE, self.objective.as_deref().unwrap_or(OBJECTIVE)];
                // NNI does not accept a result that the trial did not report.
                if names.contains(&metric.name.as_str()) && !metric.derived {
                    self.post_metric(&legacy::metric_object(
                        &self.parameter_id,
                        &self.sender,
                        metric,
                    ));
                }
            }
            ReportBody::Ended(verdict) => self.report_end(now_ms, verdict),
            ReportBody::Note { message, .. } => {
                self.post_line(now_ms, "WARNING", message, Retention::Always);
            }
            ReportBody::Shed(_)
            | ReportBody::Log(_)
            | ReportBody::Sample(_)
            | ReportBody::Unknown => {}
        }
    }

    fn report_end(&self, now_ms: i64, verdict: &Verdict) {
        self.report_dropped(now_ms);
        let plain = matches!(verdict.cause, Cause::Succeeded | Cause::Exit);
        if !plain || verdict.exit.is_none() {
            self.post_line(now_ms, "WARNING", &verdict.message, Retention::Always);
        }
        if let Some(exit) = verdict.exit {
            let code = exit.shell_code();
            let text = format!("subprocess terminated. Exit code is {code}. Quit");
            self.post_line(now_ms, "INFO", &text, Retention::Always);
            self.post_line(
                now_ms,
                "INFO",
                &format!("NNI trial keeper exit with code {code}"),
                Retention::SyncSoon,
            );
        }
    }

    fn post_metric(&self, object: &str) {
        self.spool.append_text(legacy::metric_body(object), Retention::Always);
    }

    fn report_dropped(&self, now_ms: i64) {
        let dropped = self.dropped.get();
        if dropped == 0 {
            return;
        }
        let text = format!("{dropped} lines before this one were dropped: the spool was full");
        self.dropped.set(0);
        self.post_line(now_ms, "WARNING", &text, Retention::Always);
    }

    fn post_line(&self, now_ms: i64, level: &str, text: &str, keep: Retention) {
        for line in self.secrets.mask_text(text.to_owned()).lines() {
            let line = format!("[{}] {level} {line}", format_time(now_ms));
            for body in legacy::line_bodies(Tag::Keeper, &line) {
                self.spool.append_text(body, keep);
            }
        }
    }
}

/// PURE: returns a time in NNI's format, `YYYY-MM-DD HH:MM:SS.ffffff`, in UTC.
fn format_time(now_ms: i64) -> String {
    let (seconds, millis) = (now_ms.div_euclid(1000), now_ms.rem_euclid(1000));
    let (year, month, date) = civil_date(seconds.div_euclid(86_400));
    let second = seconds.rem_euclid(86_400);
    let (hours, minutes, seconds) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{date:02} {hours:02}:{minutes:02}:{seconds:02}.{millis:03}000")
}
