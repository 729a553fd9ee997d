//! `doctor`: looks whether the experiment of a file can run, part by part, and with `--probe` runs one trial
//! that does nothing but say a word, in the very place and by the very way of the experiment's own.

use std::io::{self, Write as _};
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use super::ask::{Error, Format};
use super::out::print;
use super::run::settings;
use super::signals::Signals;
use super::{BAD_INPUT, Common, DONE, NOTHING_SUCCEEDED, show};
use crate::app::{self, Running, Settings, What};
use crate::code_archive;
use crate::config::{self, ExperimentSpec, TrainingServiceSpec};
use crate::errors::chain;
use crate::experiment::notice::Notice;
use crate::job_state::JobState;

/// What the probe's trial runs.
const WORD: &str = "echo probe=1";

/// How long the probe's trial may take to start, and to run.
const PATIENCE: Duration = Duration::from_mins(5);

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
    let mut good = true;
    if spec.training_service.needs_code() {
        let found = code_archive::survey(&spec.trial_code_directory);
        good &= checks.check("code", found.map_err(|error| chain(&error)));
    }
    if let Some((program, found)) = app::look_for_trial_program(&spec) {
        good &= checks.check("trial", found.map(|()| format!("{program} is there")));
    }
    for (name, found) in app::look_outside(&spec).await {
        good &= checks.check("tuner", found.map(|()| format!("{name} can be run")));
    }
    let found = app::look(common.agent.clone(), &spec.training_service).await;
    let place = match &spec.training_service {
        TrainingServiceSpec::Local(_) => "this machine has what trials need",
        TrainingServiceSpec::FrameworkController(_) => {
            "it answers, knows Frameworks, grants the rights; FrameworkController is at work"
        }
    };
    good &= checks.check("place", found.map(|()| place.to_owned()).map_err(|error| chain(&error)));
    if probe && good {
        let found = run_probe(spec, settings(common), &mut checks).await;
        good &=
            checks.check("probe", found.map(|()| "a trial ran, and its agent reported".to_owned()));
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

/// Runs one trial of the experiment, with a word for its command. Nothing of it is left.
async fn run_probe(
    spec: ExperimentSpec,
    settings: Settings,
    checks: &mut Checks,
) -> Result<(), String> {
    let folder = tempfile::tempdir().map_err(|error| chain(&error))?;
    let settings = Settings { data_dir: folder.path().to_owned(), ..settings };
    let mut signals = Signals::new().map_err(|error| chain(&error))?;
    let what = What::New(Box::new(reduced(spec)));
    let mut running = app::start(settings, what).await.map_err(|error| chain(&error))?;
    let mut ended = Err("it was interrupted".to_owned());
    loop {
        let notice = tokio::select! {
            notice = running.notices.recv() => notice,
            _ = signals.next() => {
                running.handle.stop();
                continue;
            }
        };
        match notice {
            None => break,
            Some(Notice::Told(message)) => checks.tell("-", "probe", &message),
            Some(Notice::Waits { why, .. }) => {
                checks.tell("-", "probe", &format!("it waits: {why}"));
            }
            Some(Notice::Ended { end, .. }) => {
                let why = end.message.unwrap_or_else(|| end.state.to_string());
                ended = if end.state == JobState::Succeeded { Ok(()) } else { Err(why) };
            }
            Some(
                Notice::Running { .. }
                | Notice::Lost { .. }
                | Notice::Found { .. }
                | Notice::State(_),
            ) => {}
        }
    }
    finish(running).await?;
    ended
}

async fn finish(running: Running) -> Result<(), String> {
    let mut ended = running.end().await.map_err(|error| chain(&error))?;
    ended.stop_serving().await;
    ended.store.close().await;
    Ok(())
}

/// The experiment with one trial that says a word.
fn reduced(mut spec: ExperimentSpec) -> ExperimentSpec {
    WORD.clone_into(&mut spec.trial_command);
    spec.max_trial_number = Some(1);
    spec.trial_concurrency = 1;
    spec.max_trial_duration = Some(PATIENCE);
    (spec.assessor, spec.objective) = (None, None);
    if let TrainingServiceSpec::FrameworkController(service) = &mut spec.training_service {
        service.start_up_deadline = service.start_up_deadline.min(PATIENCE);
        for role in &mut service.roles {
            WORD.clone_into(&mut role.command);
        }
    }
    spec
}

/// What was found, part by part.
struct Checks {
    format: Format,
    /// For a program, which is told at the end.
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
            // Whoever closed the terminal does not want to know.
            Format::Table => {
                drop(writeln!(io::stdout(), "{state:<4}  {what:<5}  {text}"));
            }
            Format::Json | Format::Yaml => {
                let state = if state == "-" { "note".to_owned() } else { state.to_lowercase() };
                self.told.push(json!({"name": what, "state": state, "finding": text}));
            }
        }
    }

    /// Tells a program everything; a person was told as it came.
    fn close(self, good: bool) -> Result<(), Error> {
        print(self.format, &json!({"ok": good, "checks": self.told}), |_| String::new())
    }
}
