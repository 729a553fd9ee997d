//! Starts the trial, with pipes for its output. This module does not read the pipes: all work that can wait until the
//! trial runs is done later.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::process::ExitStatus;

use nix::sys::signal::Signal;
use tokio::sync::oneshot;

use crate::cli::ExitCodeMap;
use crate::run::settings::Settings;
use crate::spool::SpoolLock;
use crate::trial::reap::Reaper;
use crate::trial::reexec::{self, LiveState, ReexecState};
use crate::trial::{self, Trial, TrialCommand};
use crate::util::numbers::to_millis;

/// A started trial, and the receiver of its exit status.
pub(super) type StartedTrial = (Trial, oneshot::Receiver<ExitStatus>);

/// The result of the start, and the trial's output.
pub(super) struct LaunchResult {
    pub(super) started: Result<StartedTrial, trial::Error>,
    /// The trial's standard output and error. `None`: the trial writes to the agent's.
    pub(super) outputs: [Option<OwnedFd>; 2],
}

/// A reason not to start the trial.
#[derive(Debug)]
pub(super) enum StartFailure {
    /// A part that the trial needs is missing.
    Unready(String),
    /// This signal requested a stop before the start.
    Stopped(Signal),
}

/// The data for a hand-over while the trial runs.
pub(super) struct HandOverContext<'a> {
    pub(super) dir: Option<&'a Path>,
    pub(super) termination_log: Option<&'a Path>,
    pub(super) spool_lock: Option<&'a SpoolLock>,
}

/// Starts the trial and prepares the hand-over. Must be called on the main thread, see [`trial::start`].
pub(super) fn launch(
    settings: &Settings,
    command: &TrialCommand,
    start_failure: Option<StartFailure>,
    context: &HandOverContext<'_>,
    reaper: &Reaper,
) -> LaunchResult {
    let [(stdout, to_stdout), (stderr, to_stderr)] = [create_output_pipe(), create_output_pipe()];
    let started = match start_failure {
        Some(StartFailure::Unready(why)) => Err(trial::Error::Unready { why }),
        Some(StartFailure::Stopped(signal)) => Err(trial::Error::Stopped { signal }),
        None => trial::start(command, to_stdout, to_stderr, reaper),
    };
    let outputs = [stdout, stderr];
    if let Ok((trial, _)) = &started {
        let state = ReexecState {
            pid: trial.pid().cast_signed(),
            grace_ms: to_millis(settings.grace),
            drain_ms: to_millis(settings.drain),
            dir: context.dir.map(Path::to_owned),
            termination_log: context.termination_log.map(Path::to_owned),
            secret_variables: settings.secret_variables.clone(),
            maps_exit_code: settings.exit_code_map == Some(ExitCodeMap::Frameworkcontroller),
            live: LiveState {
                outputs: outputs.each_ref().map(|output| output.as_ref().map(AsRawFd::as_raw_fd)),
                ..LiveState::default()
            },
        };
        reexec::arm(&state, context.spool_lock.and_then(SpoolLock::descriptor));
    }
    LaunchResult { started, outputs }
}

/// Returns a pipe, the agent's end first, or `None` twice if the system has none.
fn create_output_pipe() -> (Option<OwnedFd>, Option<OwnedFd>) {
    match io::pipe() {
        Ok((source, trials)) => (Some(source.into()), Some(trials.into())),
        Err(source) => {
            tracing::warn!("cannot read the trial's output ({source}); no metrics are found in it");
            (None, None)
        }
    }
}
