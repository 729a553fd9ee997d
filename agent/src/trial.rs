//! Starts the trial's command in its own process group, and signals its whole tree.
//!
//! The one place of the workspace that needs `unsafe`, and the only one that sends signals. It must not
//! wait for a process: that is `reap`'s.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::{Pid, getppid};
use tokio::sync::oneshot;

use crate::environment::Changes;
use crate::reap::{Reaper, Role};
use crate::tree::{self, Process};

/// What is to be started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The program, looked up in `PATH` if it has no slash.
    pub program: OsString,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// How its environment differs from ours.
    pub environment: Changes,
    /// Let the trial live on if the agent is killed.
    pub detach_on_death: bool,
}

/// Why the trial's command could not be started.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no such program.
    #[error("cannot find {}; is it installed in this image, and is its interpreter?", .program.display())]
    NotFound {
        /// What was looked for.
        program: PathBuf,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// It is there and cannot be executed.
    #[error("cannot execute {}; is it a program for this machine, with permission to execute?", .program.display())]
    NotExecutable {
        /// What was tried.
        program: PathBuf,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// Nothing to do with the command.
    #[error("cannot start a process for {}; is a limit on processes or memory reached?", .program.display())]
    Spawn {
        /// What was tried.
        program: PathBuf,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
}

impl Error {
    /// The exit code that says so, as a shell or `env` would.
    pub fn code(&self) -> u8 {
        match self {
            Self::NotFound { .. } => 127,
            Self::NotExecutable { .. } => 126,
            Self::Spawn { .. } => 125,
        }
    }
}

/// A trial that was started.
#[derive(Debug)]
pub struct Trial {
    pid: Pid,
    reaper: Reaper,
}

/// Starts the trial with the given standard output and error.
///
/// Must be called on the main thread, see [`Reaper::spawn`].
pub fn start(
    plan: &Plan,
    stdout: Stdio,
    stderr: Stdio,
    reaper: &Reaper,
) -> Result<(Trial, oneshot::Receiver<ExitStatus>), Error> {
    let mut command = command(plan);
    // std resets the signal mask and SIGPIPE for the child; handlers of ours end with exec anyway.
    command.stdout(stdout).stderr(stderr).process_group(0);
    if !plan.detach_on_death {
        die_with_us(&mut command);
    }
    let (child, exit) = reaper
        .spawn(&mut command, Role::Trial)
        .map_err(|source| refused(PathBuf::from(&plan.program), source))?;
    let pid = Pid::from_raw(i32::try_from(child.id()).expect("Linux has pids below 2^22"));
    Ok((Trial { pid, reaper: reaper.clone() }, exit))
}

/// Becomes the trial: the last resort where the agent cannot do its own work.
pub fn step_aside(plan: &Plan) -> Error {
    let source = command(plan).exec();
    refused(PathBuf::from(&plan.program), source)
}

fn command(plan: &Plan) -> Command {
    let mut command = Command::new(&plan.program);
    command.args(&plan.arguments);
    for name in &plan.environment.remove {
        command.env_remove(name);
    }
    command.envs(plan.environment.set.iter().map(|(name, value)| (name, value)));
    command
}

fn refused(program: PathBuf, source: io::Error) -> Error {
    match source.raw_os_error().map(Errno::from_raw) {
        Some(Errno::ENOENT | Errno::ENOTDIR) => Error::NotFound { program, source },
        Some(Errno::EAGAIN | Errno::ENOMEM | Errno::EMFILE | Errno::ENFILE | Errno::ESRCH) => {
            Error::Spawn { program, source }
        }
        _ => Error::NotExecutable { program, source },
    }
}

/// Asks the kernel to kill the trial when the agent is killed.
fn die_with_us(command: &mut Command) {
    let parent = nix::unistd::getpid();
    let guard = move || {
        nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?;
        // We may have been killed before the line above took effect; then the trial must not start.
        if getppid() == parent { Ok(()) } else { Err(io::Error::from(Errno::ESRCH)) }
    };
    #[expect(unsafe_code, reason = "std has no safe way to set the parent-death signal")]
    // SAFETY: between fork and exec only async-signal-safe work is allowed. The closure makes two system
    // calls, prctl and getppid, compares two integers, and builds an `io::Error` from a number, which does
    // not allocate. It owns one integer, takes no lock and touches no memory of another thread.
    unsafe {
        command.pre_exec(guard);
    }
}

impl Trial {
    /// Its process id, which is also its process group.
    pub fn pid(&self) -> u32 {
        self.pid.as_raw().unsigned_abs()
    }

    /// Passes a signal on to the trial's group. Only while its own process has not been reaped.
    pub fn forward(&self, signal: Signal) {
        self.to_group(signal);
    }

    /// The living members of the tree, the trial's own process included.
    pub fn tree(&self) -> Vec<Process> {
        tree::descendants(std::process::id(), &self.reaper.helpers())
    }

    /// Asks the whole tree to end. `reaped`: the trial's own process is gone, its pid not ours any more.
    pub fn terminate(&self, reaped: bool) {
        self.to_tree(Signal::SIGTERM, reaped);
        // A stopped process hears TERM only when it goes on.
        self.to_tree(Signal::SIGCONT, reaped);
    }

    /// Kills the whole tree and returns who was alive.
    pub fn kill(&self, reaped: bool) -> Vec<Process> {
        self.to_tree(Signal::SIGKILL, reaped)
    }

    fn to_tree(&self, signal: Signal, reaped: bool) -> Vec<Process> {
        let tree = self.tree();
        if !reaped {
            self.to_group(signal);
        }
        for member in tree.iter().filter(|member| reaped || member.group != self.pid()) {
            if let Ok(pid) = i32::try_from(member.pid) {
                // It may have ended since the walk.
                kill(Pid::from_raw(pid), signal).ok();
            }
        }
        tree
    }

    fn to_group(&self, signal: Signal) {
        // The trial may have moved to another group, even to one of its own.
        if killpg(self.pid, signal) == Err(Errno::ESRCH) {
            kill(self.pid, signal).ok();
        }
    }
}
