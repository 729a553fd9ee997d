//! Ends the agents that an experiment without a manager left on this machine.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::time::Instant;
use trial_protocol::TrialJobId;

use crate::training_service::AGENT_END_TIMEOUT;
use crate::util::files::{LockOutcome, try_lock};
use crate::util::layout::ExperimentDir;

/// The time limit for the end of an agent after SIGKILL.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);
/// The interval between two lists of processes.
const POLL_PAUSE: Duration = Duration::from_millis(50);

/// Some agents still run.
#[derive(Debug, thiserror::Error)]
#[error(
    "trials still run: {}; `spool/lock` in each trial's folder is held, perhaps by a process of another machine or container",
    .0.join(", ")
)]
pub(super) struct RemainingAgents(Vec<String>);

/// Stops the agents of an experiment as a stop of their trials would, and waits for their ends.
pub(super) async fn clean(dir: &ExperimentDir) -> Result<(), RemainingAgents> {
    for (signal, limit) in [(Signal::SIGTERM, AGENT_END_TIMEOUT), (Signal::SIGKILL, KILL_TIMEOUT)] {
        for agent in running_agents(dir) {
            // Ignored: the agent may end on its own.
            kill(agent, signal).ok();
        }
        let until = Instant::now() + limit;
        while !running_agents(dir).is_empty() && Instant::now() < until {
            tokio::time::sleep(POLL_PAUSE).await;
        }
    }
    let is_held =
        |id: &TrialJobId| matches!(try_lock(&dir.trial(id).agent_lock()), Ok(LockOutcome::Busy(_)));
    let left = dir.trials().into_iter().filter(is_held);
    let left: Vec<String> = left.map(|trial| trial.to_string()).collect();
    if left.is_empty() { Ok(()) } else { Err(RemainingAgents(left)) }
}

/// Returns the processes of this machine whose command line is that of an agent with a trial's folder in `dir`. Unlike
/// the lock, the command line also shows an agent that was started just before its manager ended.
fn running_agents(dir: &ExperimentDir) -> Vec<Pid> {
    let Ok(folder) = dir.path().canonicalize() else { return Vec::new() };
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let is_agent = |pid: &i32| {
        let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        output_dir(&command).and_then(|path| path.parent()?.canonicalize().ok())
            == Some(folder.clone())
    };
    pids.filter(is_agent).map(Pid::from_raw).collect()
}

/// Returns the `--output-dir` in the command line of an agent that runs a trial, from `/proc/PID/cmdline`.
fn output_dir(command: &[u8]) -> Option<&Path> {
    let mut words = command.split(|byte| *byte == 0).skip_while(|word| word != b"run");
    words.next()?;
    // The manager gives the folder before the trial's command, which may contain any words.
    let flag = words.find(|word| word == b"--output-dir" || word == b"--shell")?;
    let path = words.next().filter(|_| flag == b"--output-dir")?;
    Some(Path::new(OsStr::from_bytes(path)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_output_dir_of_an_agent_is_found() {
        for (command, expected) in [
            ("agent run --experiment e --output-dir /d/e/t --shell x", Some("/d/e/t")),
            ("sh agent run --output-dir /d/e/t", Some("/d/e/t")),
            ("agent replay /d/e/t --output-dir /d/e/t", None),
            ("agent run --output-dir", None),
            ("agent run --shell /d/e/t --output-dir /d/e/t", None),
            ("vi --output-dir /d/e/t", None),
            ("", None),
        ] {
            let words = command.replace(' ', "\0");
            assert_eq!(output_dir(words.as_bytes()), expected.map(Path::new), "{command}");
        }
    }

    proptest! {
        #[test]
        fn random_command_lines_never_panic(command: Vec<u8>) {
            output_dir(&command);
        }
    }
}
