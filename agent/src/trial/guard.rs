//! Kills what is left of the trial when the agent itself is killed with SIGKILL.
//!
//! The kernel ends the trial's own process then (parent-death signal), and as PID 1 everything else; but processes that
//! the trial has forked would live on. So a second process of this program waits on a pipe whose other end only the
//! agent holds. Once that closes, the guard kills every process that bears the trial's mark in its environment, is
//! below such a process, or is in the trial's group. It so finds those that called `setsid` or have another parent by
//! now, too.
//!
//! A trial that is to live on is drained instead: it would die of its next line, since its pipes have no reader any
//! more. Its guard has them too, and what comes out of them after the agent goes to the ends of the trial's own files.
//!
//! Invariants: it holds none of the agent's files, and of the trial only what it drains; it is a helper and so no part
//! of the trial's tree; it never outlives the agent by more than the hunt, or the trial's last writer; when the agent
//! ends in an orderly way it is killed before its pipe closes, and so does no harm. Where the agent's process becomes
//! `hold`, that has the guard from then on; if the pipe closes and the agent lives on all the same, the guard goes
//! without a hunt.

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

/// The words that make this program a guard; no other caller uses them.
const GUARD_WORD: &str = "guard-of-a-trial";
const DRAIN_WORD: &str = "drain-of-a-trial";

/// Bytes that are drained at once.
const CHUNK: usize = 16 * 1024;

/// The duty of a guard when the agent is gone.
#[derive(Debug)]
pub enum GuardTask<'a> {
    /// Ends the trial whose processes bear `mark` and whose own process, if it lives, leads `group`.
    End {
        /// The value of [`RUN_VARIABLE`].
        mark: &'a str,
        /// The group.
        group: Option<u32>,
    },
    /// Lets it live on, and takes what it prints.
    Drain {
        /// The sources of its standard output and error.
        outputs: [Option<OwnedFd>; 2],
        /// The directory of its files; without one, its output is discarded.
        dir: Option<&'a Path>,
    },
}

/// The interval of looks whether the agent is really gone, whose pipe closes a moment before.
const GONE_CHECKS: u32 = 50;

/// The interval of looks for what was forked meanwhile, in milliseconds, and their number at most.
const HUNT_EVERY: u16 = 20;
const MOST_HUNTS: u32 = 500;

/// The agent's side: the guard lives as long as this.
#[derive(Debug)]
pub struct Guard {
    process: u32,
    pipe: PipeWriter,
    reaper: Reaper,
    end: oneshot::Receiver<ExitStatus>,
}

impl Guard {
    /// Starts a guard.
    pub fn start(reaper: &Reaper, duty: GuardTask<'_>) -> Result<Self, io::Error> {
        let (theirs, pipe) = io::pipe()?;
        // Not by its path: the file may have been replaced or removed since.
        let mut command = Command::new("/proc/self/exe");
        let agent = std::process::id().to_string();
        command.stdin(theirs).stdout(Stdio::null()).stderr(Stdio::null());
        match duty {
            GuardTask::End { mark, group } => {
                let group = group.map_or_else(String::new, |group| group.to_string());
                command.args([GUARD_WORD, &agent, mark, &group]);
            }
            GuardTask::Drain { outputs: [stdout, stderr], dir } => {
                command.args([DRAIN_WORD, &agent]).arg(dir.map_or(OsStr::new(""), Path::as_os_str));
                // It reads from them: two descriptors that a new program has anyway.
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

    /// The guard `process` that the program before has started, and `pipe`, the agent's end of its pipe.
    pub fn adopt(reaper: &Reaper, process: u32, pipe: OwnedFd) -> Self {
        let end = reaper.adopt(process, ChildRole::Helper);
        Self { process, pipe: pipe.into(), reaper: reaper.clone(), end }
    }

    /// Returns how the guard ended, once, if [`Reaper::sweep`] has seen that. It ends by itself only after the agent.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.end.try_recv().ok()
    }

    /// Its process, and the agent's end of its pipe.
    pub fn parts(&self) -> (u32, RawFd) {
        (self.process, self.pipe.as_raw_fd())
    }

    /// The trial's own process was reaped: the number of its group may be another's one day.
    pub fn forget_group(&mut self) {
        // Without a reader there is no guard, and nothing to tell.
        self.pipe.write_all(b"r").ok();
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // A bug that ends the agent is as good as a kill: then the guard is needed.
        if !std::thread::panicking() {
            self.reaper.end(self.process);
        }
    }
}

/// Is the guard, if `words` (without the program's name) say so, and ends only when it is not needed any more.
pub fn main(mut words: impl Iterator<Item = OsString>) -> Option<ExitCode> {
    let duty = words.next().filter(|word| word == GUARD_WORD || word == DRAIN_WORD)?;
    let agent = words.next()?.into_string().ok()?.parse().ok()?;
    let first = words.next()?;
    let second = if duty == GUARD_WORD { Some(words.next()?.into_string().ok()?) } else { None };
    // A polite end of all processes ends the agent too, which then ends its guard.
    SigSet::all().thread_block().ok();
    // For lists of processes; it would be called `exe`.
    nix::sys::prctl::set_name(c"trialkeeper").ok();
    let mut group = second.as_ref().and_then(|group| group.parse().ok());
    let mut byte = [0];
    while io::stdin().read(&mut byte).is_ok_and(|read| read > 0) {
        group = None;
    }
    if is_gone(agent) {
        if second.is_some() {
            hunt(&[RUN_VARIABLE.as_bytes(), b"=", first.as_encoded_bytes()].concat(), group);
        } else {
            drain(Some(Path::new(&first)).filter(|dir| !dir.as_os_str().is_empty()));
        }
    }
    Some(ExitCode::SUCCESS)
}

/// One stream of a trial that lives on.
struct DrainedStream {
    source: File,
    /// `None`: there is no place for what comes.
    file: Option<File>,
}

/// Reads what the trial prints until no writer is left.
fn drain(dir: Option<&Path>) {
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
    let mut buffer = vec![0; CHUNK];
    while !streams.is_empty() {
        let mut fds: Vec<_> = streams
            .iter()
            .map(|stream| PollFd::new(stream.source.as_fd(), PollFlags::POLLIN))
            .collect();
        // Whatever it returns, the next look tells what is the case.
        poll(&mut fds, PollTimeout::NONE).ok();
        let ready: Vec<bool> = fds.iter().map(|fd| fd.any().unwrap_or(true)).collect();
        let mut ready = ready.into_iter();
        streams.retain_mut(|stream| !ready.next().unwrap_or(false) || stream.carry(&mut buffer));
    }
}

impl DrainedStream {
    /// Carries one portion; false at the end.
    fn carry(&mut self, buffer: &mut [u8]) -> bool {
        match self.source.read(buffer) {
            Ok(length @ 1..) => {
                if let Some(file) = &mut self.file {
                    // A full disk must not end the trial; there may be room later.
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
fn is_gone(agent: u32) -> bool {
    (0..GONE_CHECKS).any(|_| {
        let gone = std::os::unix::process::parent_id() != agent || tree::is_ending(agent);
        if !gone {
            pause();
        }
        gone
    })
}

/// Kills until two looks in a row find no process: one may have been forked during the first look.
fn hunt(mark: &[u8], group: Option<u32>) {
    let mut quiet = 0;
    for _ in 0..MOST_HUNTS {
        let found = tree::marked(mark, group);
        quiet = if found.is_empty() { quiet + 1 } else { 0 };
        if quiet == 2 {
            return;
        }
        for process in found {
            if let Ok(pid) = i32::try_from(process.pid) {
                // It may have ended since the look.
                kill(Pid::from_raw(pid), Signal::SIGKILL).ok();
            }
        }
        pause();
    }
}

fn pause() {
    // Nothing is waited for.
    poll(&mut [], PollTimeout::from(HUNT_EVERY)).ok();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_word_makes_a_guard() {
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
