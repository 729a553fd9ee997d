//! `doctor`: checks each part of an experiment file, and with `--probe` runs one of its trials.

mod probe;

use std::io::{self, Write as _};
use std::path::Path;

use serde_json::{Value, json};

use super::run::settings;
use super::selection::{Error, Format};
use super::terminal::output::print_value;
use super::terminal::plain_text::printable;
use super::terminal::signals::Signals;
use super::{EXIT_BAD_INPUT, EXIT_DONE, EXIT_FAILED, ManagerArgs, print_error};
use crate::app;
use crate::code_archive;
use crate::config::{self, ExperimentSpec};
use crate::training_service::platform::platform;
use crate::util::errors::error_chain;

/// Runs all checks, prints the findings and returns the exit code: 0 if no check fails.
pub(super) async fn doctor(file: &Path, probe: bool, manager_args: ManagerArgs) -> u8 {
    let spec = match config::load(file) {
        Ok(spec) => spec,
        Err(error) => {
            print_error(&error);
            return EXIT_BAD_INPUT;
        }
    };
    let mut checks = Checks { format: manager_args.output, findings: Vec::new() };
    checks.print("ok", "file", &file.display().to_string());
    print_warnings(&spec, &mut checks);
    let mut good = true;
    if spec.training_service.section().needs_code() {
        let found = code_archive::describe_archive(&spec.trial_code_directory);
        good &= checks.check("code", found.map_err(|error| error_chain(&error)));
    }
    if let Some((program, found)) = app::find_trial_program(&spec) {
        good &= checks.check("trial", found.map(|()| format!("{program} exists")));
    }
    if let Some(warning) = app::missing_script_warning(&spec) {
        checks.print("-", "trial", &warning);
    }
    let mut can_ask = true;
    for (name, found) in app::check_advisers(&spec).await {
        can_ask &= checks.check("tuner", found.map(|()| format!("{name} can be run")));
    }
    good &= can_ask && try_tuner(&spec, &mut checks).await;
    good &= check_place(&spec, &manager_args, &mut checks).await;
    if good {
        for finding in platform(&spec.training_service).examine(&spec).await {
            good &= checks.check("place", finding.found);
        }
    }
    if probe && good {
        let note = |text: &str| checks.print("-", "probe", text);
        let found = probe::run(spec, settings(manager_args), note).await;
        good &= checks.check("probe", found);
    } else if probe {
        checks.print("-", "probe", "not run, because a check failed");
    }
    match checks.close(good) {
        Ok(()) if good => EXIT_DONE,
        Ok(()) => EXIT_FAILED,
        Err(error) => {
            print_error(&error);
            EXIT_FAILED
        }
    }
}

/// Prints the warnings about the settings of the file.
fn print_warnings(spec: &ExperimentSpec, checks: &mut Checks) {
    let warnings = spec.ignored_warning().into_iter().chain(spec.constant_options_warning());
    for warning in warnings.chain(config::space_warnings(spec)).chain(config::endless_warning(spec))
    {
        checks.print("-", "file", &warning);
    }
    if let Some(sentence) = spec.assumed_direction_hint() {
        checks.print("-", "objective", &sentence);
    }
    if let Some(warning) = spec.objective.as_deref().and_then(|name| spec.direction_warning(name)) {
        checks.print("-", "objective", &warning);
    }
    for sentence in spec.missing_direction_warning().iter().flat_map(|all| all.lines()) {
        checks.print("-", "tuner", sentence);
    }
}

/// Checks whether trials can run at the training service. Returns `false` if they cannot.
async fn check_place(
    spec: &ExperimentSpec,
    manager_args: &ManagerArgs,
    checks: &mut Checks,
) -> bool {
    let found = app::check_platform(manager_args.agent.clone(), spec).await;
    for note in found.iter().flatten() {
        checks.print("-", "place", note);
    }
    let place = platform(&spec.training_service).success_message();
    checks.check("place", found.map(|_| place).map_err(|error| error_chain(&error)))
}

/// Requests parameters from the user's own tuner and records the finding. Returns `false` if the tuner does not propose
/// any.
async fn try_tuner(spec: &ExperimentSpec, checks: &mut Checks) -> bool {
    let answer = async {
        let mut signals = Signals::new().map_err(|error| error_chain(&error))?;
        tokio::select! {
            answer = app::try_tuner(spec) => Ok(answer),
            // Dropping the future ends the tuner.
            _ = signals.next() => Err("it was interrupted".to_owned()),
        }
    };
    match answer.await {
        Ok(None) => true,
        Ok(Some((name, found))) => {
            checks.check("tuner", found.map(|()| format!("{name} proposes parameters")))
        }
        Err(problem) => checks.check("tuner", Err(problem)),
    }
}

/// The findings of the checks.
struct Checks {
    format: Format,
    /// The findings for JSON and YAML, which are printed at the end.
    findings: Vec<Value>,
}

impl Checks {
    /// Records the finding of a check. Returns `false` if the check failed.
    fn check(&mut self, what: &str, found: Result<String, String>) -> bool {
        let good = found.is_ok();
        let (Ok(text) | Err(text)) = found;
        self.print(if good { "ok" } else { "FAIL" }, what, &text);
        good
    }

    fn print(&mut self, state: &str, what: &str, text: &str) {
        match self.format {
            // Ignored: standard output may be closed.
            Format::Table => {
                drop(writeln!(io::stdout(), "{state:<4}  {what:<5}  {}", printable(text)));
            }
            Format::Json | Format::Yaml => {
                let state = if state == "-" { "note".to_owned() } else { state.to_lowercase() };
                self.findings.push(json!({"name": what, "state": state, "finding": text}));
            }
        }
    }

    /// Prints all findings as JSON or YAML. As a table, each finding was printed immediately.
    fn close(self, good: bool) -> Result<(), Error> {
        print_value(self.format, &json!({"ok": good, "checks": self.findings}), |_, _| {
            String::new()
        })
    }
}
