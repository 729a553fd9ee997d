//! Kills the remaining processes of the trial when the agent itself is killed with SIGKILL.
//!
//! The kernel then ends the trial's own process (parent-death signal), and all processes if the agent was PID 1.
//! Processes that the trial forked would continue. So a second process of this program, the guard, waits on a pipe
//! whose other end only the agent holds. When that end closes, the guard kills every process that has the trial's mark
//! in its environment, is a descendant of such a process, or is in the trial's group. It thus also finds processes that
//! called `setsid` or have another parent by now.
//!
//! With `detach_on_death`, the guard drains the trial instead. Without a reader of its pipes, the trial would die when
//! it prints the next line. The guard holds these pipes too, and appends their content to the trial's own files after
//! the agent's end.
//!
//! Invariants: the guard holds none of the agent's files, and of the trial only the pipes that it drains. It is a
//! helper, so it is not part of the trial's tree. It outlives the agent only until the kills are done, or until the
//! trial's last writer ends. When the agent ends in an orderly way, it kills the guard before the pipe closes, so the
//! guard does nothing. If the agent executes itself as its fallback, the fallback takes over the guard. If the pipe
//! closes and the agent lives, the guard ends without killing.

use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::io::{self, PipeWriter, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode, ExitStatus, Stdio};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal, kill};
use nix::unistd::Pid;
use tokio::sync::oneshot;

use crate::trial::reap::{ChildRole, Reaper};
use crate::trial::tree;

/// The variable that marks every process of a trial. Its value is new for each run.
pub const RUN_VARIABLE: &str = "TRIALKEEPER_RUN";

/// The file of this program: a link that works even if the file was replaced or removed.
pub const OWN_PROGRAM: &str = "/proc/self/exe";

/// The first arguments that make this program a guard; no other caller uses them.
const GUARD_WORD: &str = "guard-of-a-trial";
const DRAIN_WORD: &str = "drain-of-a-trial";

/// Number of bytes to copy at once.
const CHUNK_BYTES: usize = 16 * 1024;

/// The task of a guard after the agent's end.
#[derive(Debug)]
pub enum GuardTask<'a> {
    /// End the trial whose processes have the mark `mark` and whose own process, if alive, leads `group`.
    End {
        /// The value of [`RUN_VARIABLE`].
        mark: &'a str,
        /// The trial's process group.
        group: Option<u32>,
    },
    /// Let the trial continue, and copy its output to files.
    Drain {
        /// The sources of the trial's standard output and error.
        outputs: [Option<OwnedFd>; 2],
        /// The directory of the trial's files. Without one, the guard discards the output.
        dir: Option<&'a Path>,
    },
}

/// The maximum number of checks, at intervals of [`SEARCH_INTERVAL_MS`], until the agent is gone. Its pipe closes
/// shortly before its end.
const MAX_GONE_CHECKS: u32 = 50;

/// The interval between two searches for the trial's processes, in milliseconds, and the maximum number of searches.
const SEARCH_INTERVAL_MS: u16 = 20;
const MAX_SEARCHES: u32 = 500;

/// The agent's handle of the guard. Dropping it ends the guard.
#[derive(Debug)]
pub struct Guard {
    process: u32,
    pipe: PipeWriter,
    reaper: Reaper,
    end: oneshot::Receiver<ExitStatus>,
}

impl Guard {
    /// Starts a guard.
    pub fn start(reaper: &Reaper, task: GuardTask<'_>) -> Result<Self, io::Error> {
        let (guard_end, pipe) = io::pipe()?;
        let mut command = Command::new(OWN_PROGRAM);
        let agent = std::process::id().to_string();
        command.stdin(guard_end).stdout(Stdio::null()).stderr(Stdio::null());
        match task {
            GuardTask::End { mark, group } => {
                let group = group.map_or_else(String::new, |group| group.to_string());
                command.args([GUARD_WORD, &agent, mark, &group]);
            }
            GuardTask::Drain { outputs: [stdout, stderr], dir } => {
                command.args([DRAIN_WORD, &agent]).arg(dir.map_or(OsStr::new(""), Path::as_os_str));
                // The guard reads from its own stdout and stderr: a new program has these two descriptors anyway.
                if let Some(source) = stdout {
                    command.stdout(source);
                }
                if let Some(source) = stderr {
                    command.stderr(source);
                }
            }
        }
        command.env_clear().current_dir("/").process_group(0);
        let (child, end) = reaper.spawn(&mut command, ChildRole::Helper)?;
        Ok(Self { process: child.id(), pipe, reaper: reaper.clone(), end })
    }

    /// Takes over the guard `process` that this process's previous program started, with `pipe`, the agent's end of its
    /// pipe.
    pub fn adopt(reaper: &Reaper, process: u32, pipe: OwnedFd) -> Self {
        let end = reaper.adopt(process, ChildRole::Helper);
        Self { process, pipe: pipe.into(), reaper: reaper.clone(), end }
    }

    /// Returns the guard's exit status, once, if [`Reaper::reap_ended`] has reaped it. The guard ends on its own only
    /// after the agent.
    pub fn take_exit_status(&mut self) -> Option<ExitStatus> {
        self.end.try_recv().ok()
    }

    /// Returns the guard's pid and the agent's end of its pipe.
    pub fn pid_and_pipe(&self) -> (u32, RawFd) {
        (self.process, self.pipe.as_raw_fd())
    }

    /// Notifies the guard that the trial's own process was reaped: the id of its group may be reused.
    pub fn forget_group(&mut self) {
        // A write without a reader means that the guard is gone, so the error is ignored.
        self.pipe.write_all(b"r").ok();
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // A bug that ends the agent is like a kill: the guard is needed.
        if !std::thread::panicking() {
            self.reaper.kill_helper(self.process);
        }
    }
}

/// Runs the guard, if `words` (the arguments without the program's name) ask for it. Returns when the guard is no
/// longer needed.
pub fn main(mut words: impl Iterator<Item = OsString>) -> Option<ExitCode> {
    let task = words.next().filter(|word| word == GUARD_WORD || word == DRAIN_WORD)?;
    let agent = words.next()?.into_string().ok()?.parse().ok()?;
    let first = words.next()?;
    let second = if task == GUARD_WORD { Some(words.next()?.into_string().ok()?) } else { None };
    // A SIGTERM to all processes ends the agent too, which then ends its guard.
    SigSet::all().thread_block().ok();
    // The name in process lists, which would otherwise be `exe`.
    nix::sys::prctl::set_name(c"trialkeeper").ok();
    let mut group = second.as_ref().and_then(|group| group.parse().ok());
    let mut byte = [0];
    while io::stdin().read(&mut byte).is_ok_and(|read| read > 0) {
        group = None;
    }
    if is_agent_gone(agent) {
        if second.is_some() {
            kill_trial_processes(
                &[RUN_VARIABLE.as_bytes(), b"=", first.as_encoded_bytes()].concat(),
                group,
            );
        } else {
            drain_outputs(Some(Path::new(&first)).filter(|dir| !dir.as_os_str().is_empty()));
        }
    }
    Some(ExitCode::SUCCESS)
}

/// One output stream of a trial that continues.
struct DrainedStream {
    source: File,
    /// `None`: the output is discarded.
    file: Option<File>,
}

/// Reads the trial's output until the last writer closes it.
fn drain_outputs(dir: Option<&Path>) {
    let (stdout, stderr) = (io::stdout(), io::stderr());
    let drained = |source: io::Result<OwnedFd>, name: &str| {
        let file = dir
            .and_then(|dir| OpenOptions::new().create(true).append(true).open(dir.join(name)).ok());
        source.ok().map(|source| DrainedStream { source: File::from(source), file })
    };
    let mut streams: Vec<DrainedStream> = [
        drained(stdout.as_fd().try_clone_to_owned(), "stdout"),
        drained(stderr.as_fd().try_clone_to_owned(), "stderr"),
    ]
    .into_iter()
    .flatten()
    .collect();
    let mut buffer = vec![0; CHUNK_BYTES];
    while !streams.is_empty() {
        let mut fds: Vec<_> = streams
            .iter()
            .map(|stream| PollFd::new(stream.source.as_fd(), PollFlags::POLLIN))
            .collect();
        // The result is ignored, because the reads below detect every state.
        poll(&mut fds, PollTimeout::NONE).ok();
        let ready: Vec<bool> = fds.iter().map(|fd| fd.any().unwrap_or(true)).collect();
        let mut ready = ready.into_iter();
        streams
            .retain_mut(|stream| !ready.next().unwrap_or(false) || stream.copy_chunk(&mut buffer));
    }
}

impl DrainedStream {
    /// Copies one chunk. Returns `false` at the end of the stream.
    fn copy_chunk(&mut self, buffer: &mut [u8]) -> bool {
        match self.source.read(buffer) {
            Ok(length @ 1..) => {
                if let Some(file) = &mut self.file {
                    // A full disk must not end the trial. Later writes may succeed.
                    file.write_all(&buffer[..length]).ok();
                }
                true
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => true,
            Ok(0) | Err(_) => false,
        }
    }
}

/// Returns whether the agent, the guard's parent, has ended or is about to.
fn is_agent_gone(agent: u32) -> bool {
    (0..MAX_GONE_CHECKS).any(|_| {
        let gone = std::os::unix::process::parent_id() != agent || tree::is_ending(agent);
        if !gone {
            wait_for_search_interval();
        }
        gone
    })
}

/// Kills the trial's processes until two searches in a row find none: a process may be forked during the first.
fn kill_trial_processes(mark: &[u8], group: Option<u32>) {
    let mut quiet = 0;
    for _ in 0..MAX_SEARCHES {
        let found = tree::find_marked(mark, group);
        quiet = if found.is_empty() { quiet + 1 } else { 0 };
        if quiet == 2 {
            return;
        }
        for process in found {
            if let Ok(pid) = i32::try_from(process.pid) {
                // The process may have ended since the search.
                kill(Pid::from_raw(pid), Signal::SIGKILL).ok();
            }
        }
        wait_for_search_interval();
    }
}

fn wait_for_search_interval() {
    // Waits for nothing but the timeout.
    poll(&mut [], PollTimeout::from(SEARCH_INTERVAL_MS)).ok();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_complete_arguments_make_a_guard() {
        for words in [
            &[][..],
            &["run"],
            &["--", GUARD_WORD],
            &[GUARD_WORD],
            &[GUARD_WORD, "m", "1"],
            &[GUARD_WORD, "x", "m", "1"],
            &[DRAIN_WORD, "1"],
            &[DRAIN_WORD, "x", "/"],
        ] {
            assert_eq!(main(words.iter().map(OsString::from)), None, "{words:?}");
        }
    }
}
