//! `trialkeeper doctor`: checks the conditions for a trial on this machine, and finds the first hop to the manager that
//! fails.
//!
//! The probes, which are submodules, change nothing. This module runs them and renders the report. Hops after a failed one are not checked,
//! because their failure would give no new information.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use serde::Serialize;

use crate::cli::{DoctorArgs, ManagerArgs, Output};
use crate::commands::tools::{create_runtime, print};

mod machine;
mod manager;
#[cfg(test)]
mod tests;

/// The outcome of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CheckState {
    /// The check passed.
    Ok,
    /// A trial can run, but the user should look into the finding.
    Warn,
    /// A trial would not work as it should.
    Fail,
    /// Not checked, because of an earlier failure or because there is nothing to check.
    Skipped,
}

/// The result of one check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    /// The name of the check.
    pub name: &'static str,
    /// The outcome of the check.
    pub state: CheckState,
    /// The finding.
    pub finding: String,
    /// The remedy, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advice: Option<&'static str>,
}

impl Check {
    fn ok(name: &'static str, finding: impl Into<String>) -> Self {
        Self { name, state: CheckState::Ok, finding: finding.into(), advice: None }
    }

    fn skipped(name: &'static str, finding: impl Into<String>) -> Self {
        Self { name, state: CheckState::Skipped, finding: finding.into(), advice: None }
    }

    fn warn(name: &'static str, finding: impl Into<String>, advice: &'static str) -> Self {
        Self { name, state: CheckState::Warn, finding: finding.into(), advice: Some(advice) }
    }

    fn fail(name: &'static str, finding: impl Into<String>, advice: &'static str) -> Self {
        Self { name, state: CheckState::Fail, finding: finding.into(), advice: Some(advice) }
    }
}

/// The results of all checks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Report {
    /// `true` if no check failed.
    ok: bool,
    /// The first check that failed.
    first_failure: Option<&'static str>,
    checks: Vec<Check>,
}

/// Runs the command. Returns exit code 0 if no check failed, otherwise 1.
pub fn main(args: DoctorArgs) -> ExitCode {
    let runtime = match create_runtime() {
        Ok(runtime) => runtime,
        Err(code) => return code,
    };
    let (output, gpu_program) = (args.output, args.gpu_program);
    let address = args.manager.address();
    let ManagerArgs { token_file, ca_file, .. } = args.manager;
    let spec = manager::ManagerSpec { address, token_file, ca_file };
    let mut checks = runtime.block_on(manager::check(&spec));
    // A pending name resolution must not delay the end of the command.
    runtime.shutdown_background();
    let output_dir = args.output_dir.unwrap_or_else(|| PathBuf::from("."));
    let spool_dir = args.spool_dir.unwrap_or_else(|| output_dir.join("spool"));
    checks.push(machine::check_directory("output directory", &output_dir));
    checks.push(machine::check_directory("spool", &spool_dir));
    checks.push(machine::check_gpus(&crate::commands::gpus::read_gpus(&gpu_program)));
    checks.push(machine::check_cgroup(std::path::Path::new("/")));

    let report = to_report(checks);
    let shown = match output {
        Output::Text => render_text(&report),
        Output::Json => {
            let json = serde_json::to_string_pretty(&report).expect("a report is texts");
            format!("{json}\n")
        }
    };
    match print(&shown) {
        ExitCode::SUCCESS if !report.ok => ExitCode::FAILURE,
        code => code,
    }
}

fn to_report(checks: Vec<Check>) -> Report {
    let failed = checks.iter().find(|check| check.state == CheckState::Fail);
    let first_failure = failed.map(|check| check.name);
    Report { ok: first_failure.is_none(), first_failure, checks }
}

/// Returns the report for people.
fn render_text(report: &Report) -> String {
    let mut text = String::new();
    let width = report.checks.iter().map(|check| check.name.len()).max().unwrap_or(0);
    for Check { name, state, finding, advice } in &report.checks {
        let word = match state {
            CheckState::Ok => "ok",
            CheckState::Warn => "warn",
            CheckState::Fail => "FAIL",
            CheckState::Skipped => "-",
        };
        writeln!(text, "{word:<4}  {name:<width$}  {finding}")
            .expect("writing to a String cannot fail");
        if let Some(advice) = advice {
            writeln!(text, "{:<4}  {:<width$}  -> {advice}", "", "")
                .expect("writing to a String cannot fail");
        }
    }
    match report.first_failure {
        Some(name) => writeln!(text, "\nFirst failure: {name}."),
        None => writeln!(text, "\nNo check failed."),
    }
    .expect("writing to a String cannot fail");
    text
}
