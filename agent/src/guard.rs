//! Kills what is left of the trial when the agent itself is killed with SIGKILL.
//!
//! The kernel ends the trial's own process then (parent-death signal), and as PID 1 everything else; but what the
//! trial has forked would live on. So a second process of this program waits on a pipe whose other end only the
//! agent holds. When that closes, it kills whoever bears the trial's mark in their environment, is below such a
//! process, or is in the trial's group: those that called `setsid` or have another parent by now, too.
//!
//! Invariants: it holds nothing of the trial's and none of the agent's files; it is a helper and so no part of the
//! trial's tree; it never outlives the agent by more than the hunt; when the agent ends in an orderly way it is killed
//! before its pipe closes, and so harms nobody. Where the agent's process becomes `hold`, that has the guard from then
//! on; if the pipe closes and the agent lives on all the same, the guard goes without a hunt.

use std::ffi::OsString;
use std::io::{self, PipeWriter, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};

use nix::poll::{PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal, kill};
use nix::unistd::Pid;

use crate::reap::{Reaper, Role};
use crate::tree;

/// The variable that marks every process of a trial. Its value is new for each run.
pub const RUN_VARIABLE: &str = "TRIALKEEPER_RUN";

/// The word that makes this program a guard; nobody else is to use it.
const GUARD_WORD: &str = "guard-of-a-trial";

/// How often is looked whether the agent is really gone, whose pipe closes a moment before.
const LOOKS: u32 = 50;

/// How often is looked for what was forked meanwhile, in milliseconds, and how many times at most.
const HUNT_EVERY: u16 = 20;
const HUNTS: u32 = 500;

/// The agent's side: the guard lives as long as this.
#[derive(Debug)]
pub struct Guard {
    process: u32,
    pipe: PipeWriter,
    reaper: Reaper,
}

impl Guard {
    /// Starts the guard of the trial whose processes bear `mark` and whose own process, if it lives, leads `group`.
    pub fn start(reaper: &Reaper, mark: &str, group: Option<u32>) -> Result<Self, io::Error> {
        let (theirs, pipe) = io::pipe()?;
        // Not by its path: the file may have been replaced or removed since.
        let mut command = Command::new("/proc/self/exe");
        let group = group.map_or_else(String::new, |group| group.to_string());
        let agent = std::process::id().to_string();
        command.args([GUARD_WORD, mark, &agent, &group]).env_clear().current_dir("/");
        command.stdin(theirs).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        let (child, _) = reaper.spawn(&mut command, Role::Helper)?;
        Ok(Self { process: child.id(), pipe, reaper: reaper.clone() })
    }

    /// The guard `process` that the program before us has started, and `pipe`, the agent's end of its pipe.
    pub fn adopt(reaper: &Reaper, process: u32, pipe: OwnedFd) -> Self {
        // Nobody waits for its end.
        drop(reaper.adopt(process, Role::Helper));
        Self { process, pipe: pipe.into(), reaper: reaper.clone() }
    }

    /// Its process, and the agent's end of its pipe.
    pub fn parts(&self) -> (u32, RawFd) {
        (self.process, self.pipe.as_raw_fd())
    }

    /// The trial's own process was reaped: the number of its group may be somebody else's one day.
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
    if words.next()? != GUARD_WORD {
        return None;
    }
    let mut word = || words.next()?.into_string().ok();
    let (mark, agent, group) = (word()?, word()?.parse().ok()?, word()?);
    // Whoever ends everything politely ends the agent too, which then ends its guard.
    SigSet::all().thread_block().ok();
    // For whoever looks at a list of processes; it would be called `exe`.
    nix::sys::prctl::set_name(c"trialkeeper").ok();
    let mut group = group.parse().ok();
    let mut byte = [0];
    while io::stdin().read(&mut byte).is_ok_and(|read| read > 0) {
        group = None;
    }
    if is_gone(agent) {
        hunt(format!("{RUN_VARIABLE}={mark}").as_bytes(), group);
    }
    Some(ExitCode::SUCCESS)
}

/// Whether the agent, our parent, has ended or is about to.
fn is_gone(agent: u32) -> bool {
    (0..LOOKS).any(|_| {
        let gone = std::os::unix::process::parent_id() != agent || tree::is_ending(agent);
        if !gone {
            pause();
        }
        gone
    })
}

/// Kills until nobody is found twice in a row: somebody may have been forked during the first look.
fn hunt(mark: &[u8], group: Option<u32>) {
    let mut quiet = 0;
    for _ in 0..HUNTS {
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
            &[GUARD_WORD, "m", "x", "1"],
        ] {
            assert_eq!(main(words.iter().map(OsString::from)), None, "{words:?}");
        }
    }
}
