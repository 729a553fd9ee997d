//! `doctor`: looks whether the experiment of a file can run, part by part, and with `--probe` runs one of its trials.

mod probe;

use std::io::{self, Write as _};
use std::path::Path;

use serde_json::{Value, json};

use super::ask::{Error, Format};
use super::out::print;
use super::progress::printable;
use super::run::settings;
use super::signals::Signals;
use super::{BAD_INPUT, Common, DONE, NOTHING_SUCCEEDED, show};
use crate::app;
use crate::code_archive;
use crate::config::{self, ExperimentSpec};
use crate::training_service::platform::platform;
use crate::util::errors::chain;

/// Looks at everything, says what it finds, and returns the program's exit code: 0 if nothing fails.
pub(super) async fn doctor(file: &Path, probe: bool, common: Common) -> u8 {
    let spec = match config::load(file) {
        Ok(spec) => spec,
        Err(error) => {
            show(&error);
            return BAD_INPUT;
        }
    };
    let mut checks = Checks { format: common.output, told: Vec::new() };
    checks.tell("ok", "file", &file.display().to_string());
    if let Some(sentence) = spec.assumed_direction() {
        checks.tell("-", "objective", &sentence);
    }
    if let Some(warning) = spec.objective.as_deref().and_then(|name| spec.direction_warning(name)) {
        checks.tell("-", "objective", &warning);
    }
    for sentence in spec.untold_direction().iter().flat_map(|all| all.lines()) {
        checks.tell("-", "tuner", sentence);
    }
    let mut good = true;
    if spec.training_service.section().needs_code() {
        let found = code_archive::survey(&spec.trial_code_directory);
        good &= checks.check("code", found.map_err(|error| chain(&error)));
    }
    if let Some((program, found)) = app::look_for_trial_program(&spec) {
        good &= checks.check("trial", found.map(|()| format!("{program} is there")));
    }
    let mut can_ask = true;
    for (name, found) in app::look_outside(&spec).await {
        can_ask &= checks.check("tuner", found.map(|()| format!("{name} can be run")));
    }
    good &= can_ask && ask_tuner(&spec, &mut checks).await;
    let found = app::look(common.agent.clone(), &spec).await;
    let place = platform(&spec.training_service).describe();
    good &= checks.check("place", found.map(|()| place).map_err(|error| chain(&error)));
    if good {
        for finding in platform(&spec.training_service).examine(&spec).await {
            good &= checks.check("place", finding.found);
        }
    }
    if probe && good {
        let note = |text: &str| checks.tell("-", "probe", text);
        let found = probe::run(spec, settings(common), note).await;
        good &= checks.check("probe", found);
    } else if probe {
        checks.tell("-", "probe", "not tried, since something fails already");
    }
    match checks.close(good) {
        Ok(()) if good => DONE,
        Ok(()) => NOTHING_SUCCEEDED,
        Err(error) => {
            show(&error);
            NOTHING_SUCCEEDED
        }
    }
}

/// Asks a tuner outside the manager for parameters, and tells what was found; `false` if it does not propose any.
async fn ask_tuner(spec: &ExperimentSpec, checks: &mut Checks) -> bool {
    let asked = async {
        let mut signals = Signals::new().map_err(|error| chain(&error))?;
        tokio::select! {
            asked = app::ask_tuner(spec) => Ok(asked),
            // It is ended when it is dropped.
            _ = signals.next() => Err("it was interrupted".to_owned()),
        }
    };
    match asked.await {
        Ok(None) => true,
        Ok(Some((name, found))) => {
            checks.check("tuner", found.map(|()| format!("{name} proposes parameters")))
        }
        Err(problem) => checks.check("tuner", Err(problem)),
    }
}

/// The findings, part by part.
struct Checks {
    format: Format,
    /// The results for a program, which are printed at the end.
    told: Vec<Value>,
}

impl Checks {
    /// Tells what was found of a part; `false` if it fails.
    fn check(&mut self, what: &str, found: Result<String, String>) -> bool {
        let good = found.is_ok();
        let (Ok(text) | Err(text)) = found;
        self.tell(if good { "ok" } else { "FAIL" }, what, &text);
        good
    }

    fn tell(&mut self, state: &str, what: &str, text: &str) {
        match self.format {
            // A closed standard output is no reason to fail.
            Format::Table => {
                drop(writeln!(io::stdout(), "{state:<4}  {what:<5}  {}", printable(text)));
            }
            Format::Json | Format::Yaml => {
                let state = if state == "-" { "note".to_owned() } else { state.to_lowercase() };
                self.told.push(json!({"name": what, "state": state, "finding": text}));
            }
        }
    }

    /// Tells a program everything; a person was told as it came.
    fn close(self, good: bool) -> Result<(), Error> {
        print(self.format, &json!({"ok": good, "checks": self.told}), |_, _| String::new())
    }
}
