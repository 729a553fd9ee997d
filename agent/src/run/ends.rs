//! How a run is announced, and what its end means: for the verdict, the exit code, and a person.

use std::io::{self, Write};
use std::path::Path;

use trial_protocol::{Started, Verdict};

use crate::book::Tally;
use crate::cli::{ExitCodeMap, KEEPER_FAULT};
use crate::settings::Settings;
use crate::trial::{self, Trial};
use crate::verdict::{End, exit_code_for_frameworkcontroller};
use crate::{deliver, standalone};

pub(super) fn announcement(settings: &Settings, trial: Option<&Trial>) -> Started {
    let task = settings.pod.task.as_ref();
    let command = settings.command.iter().map(|word| word.to_string_lossy().into_owned());
    Started {
        command: command.collect(),
        pid: trial.map(Trial::pid),
        host: nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok()),
        agent_version: env!("CARGO_PKG_VERSION").to_owned(),
        role: task.map(|task| task.role.clone()),
        role_index: task.map(|task| task.index),
    }
}

/// What is worth telling of the attempt that was in this directory before.
pub(super) fn of_earlier(earlier: &Verdict) -> String {
    let how = match earlier.exit {
        Some(_) => "ended",
        None => "was cut off together with its agent; its last written verdict",
    };
    format!("An earlier attempt in this directory {how}: {}", earlier.message)
}

pub(super) fn never_started(error: &trial::Error) -> End {
    let source = |source: &io::Error| source.to_string();
    match error {
        trial::Error::NotFound { program, .. } => {
            End::NotFound { program: program.display().to_string() }
        }
        trial::Error::NotExecutable { program, source: why } => {
            End::NotExecutable { program: program.display().to_string(), why: source(why) }
        }
        trial::Error::Unready { why } => End::KeeperFailed { why: why.clone() },
        trial::Error::Spawn { source: why, .. } => {
            End::KeeperFailed { why: format!("no process could be started: {why}") }
        }
    }
}

/// The exit code: the trial's own, unless the platform wants the verdict's class.
pub(super) fn exit_code(end: &End, verdict: &Verdict, map: Option<ExitCodeMap>) -> u8 {
    let own = match end {
        End::Exited { exit, .. } => exit.shell_code(),
        End::NotFound { .. } => 127,
        End::NotExecutable { .. } => 126,
        End::KeeperFailed { .. } | End::Running => KEEPER_FAULT,
    };
    match map {
        Some(ExitCodeMap::Frameworkcontroller) => {
            exit_code_for_frameworkcontroller(verdict.class, own)
        }
        None => own,
    }
}

pub(super) fn say_goodbye(
    settings: &Settings,
    verdict: &Verdict,
    tally: &Tally,
    dir: Option<&Path>,
    outcome: Option<&deliver::Outcome>,
) {
    if let Some(error) = outcome.and_then(|outcome| outcome.last_error.as_ref()) {
        tracing::warn!("not everything was delivered: {error}");
    }
    if settings.manager.is_none() || settings.verbose >= 1 {
        let undelivered = outcome.map(|outcome| outcome.undelivered);
        let facts = standalone::Facts { verdict, tally, dir, undelivered };
        // A closed stderr is no fault of the trial's.
        io::stderr().write_all(standalone::summary(&facts).as_bytes()).ok();
    }
}
