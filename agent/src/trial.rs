//! Starts the trial's command in its own process group, and signals its whole tree.
//!
//! Only this module and its submodules contain `unsafe` code, and only they send signals to the trial. They must not
//! wait for a process: that is the task of `reap`.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

use nix::errno::Errno;
use nix::sys::signal::{SigHandler, Signal, kill, killpg};
use nix::unistd::Pid;
use tokio::sync::oneshot;

use crate::trial::environment::EnvironmentChanges;
use crate::trial::guard::{Guard, GuardTask};
use crate::trial::reap::{ChildRole, Reaper};
use crate::trial::signals::{handles_sigterm, signal_number};
use crate::trial::terminal::Terminal;
use spawn::Outputs;
use tree::Process;

pub mod environment;
pub mod guard;
pub mod parameters;
pub mod reap;
pub mod reexec;
pub mod signals;
mod spawn;
pub mod terminal;
pub mod tree;

/// The process to start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrialCommand {
    /// The program, looked up in `PATH` if it has no slash.
    pub program: OsString,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// The working directory. `None`: the agent's.
    pub directory: Option<PathBuf>,
    /// The differences of its environment from the agent's.
    pub environment: EnvironmentChanges,
    /// The mark of the trial's processes, see [`crate::trial::guard::RUN_VARIABLE`]. `environment` contains it too.
    pub run_mark: String,
    /// `true` if the trial continues when the agent is killed.
    pub detach_on_death: bool,
}

/// The errors of starting the trial's command.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The program does not exist.
    #[error("cannot find {}; are the program and its interpreter installed in this image?", .program.display())]
    NotFound {
        /// The program that was looked for.
        program: PathBuf,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// The program exists and cannot be executed.
    #[error("cannot execute {}; is it a program for this machine, with permission to execute?", .program.display())]
    NotExecutable {
        /// The program that was tried.
        program: PathBuf,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// A file or a device that the trial needs is missing.
    #[error("{why}")]
    Unready {
        /// The missing part, and the reason.
        why: String,
    },
    /// The agent received a signal to stop first.
    #[error("{signal} requested a stop before the trial was started")]
    Stopped {
        /// The signal.
        signal: Signal,
    },
    /// The system refused to create a process, whatever the program.
    #[error("cannot start a process for {}; is a limit on processes or memory reached?", .program.display())]
    Spawn {
        /// The program that was tried.
        program: PathBuf,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
}

/// A trial that was started.
#[derive(Debug)]
pub struct Trial {
    pid: Pid,
    reaper: Reaper,
    /// The fate of the trial if the agent is killed. `None`: no guard is needed, or this process does not start one.
    on_agent_death: Option<OnAgentDeath>,
    guard: Option<Guard>,
    /// The number of guards started so far.
    guard_count: u32,
    terminal: Option<Terminal>,
    reaped: bool,
    /// The programs that handled SIGTERM when the trial was stopped.
    stopped_programs: Vec<u32>,
    /// Processes below them, which got no signal of their own.
    spared: Vec<u32>,
}

/// A guard that has ended before the agent.
#[derive(Debug)]
pub struct LostGuard {
    /// The end of the process.
    pub status: ExitStatus,
    /// `true` if another guard will be started.
    pub replaced: bool,
}

/// The maximum number of guards for a trial, one after the other.
const MAX_GUARDS: u32 = 4;

/// The fate of a trial if the agent is killed.
#[derive(Debug)]
enum OnAgentDeath {
    /// The trial ends. The text marks its processes.
    EndTrial(String),
    /// The trial continues.
    Detach,
}

/// Sets the agent's actions for two signals, whatever its parent set.
///
/// If SIGCHLD were ignored, the kernel would reap the children, and their exit status would be lost (`man 2 wait`,
/// notes). If a file of the agent exceeds a limit (`ulimit -f`), SIGXFSZ would end the agent and the trial; ignored, it
/// lets the write fail.
pub fn set_signal_actions() {
    let settled = [(Signal::SIGCHLD, SigHandler::SigDfl), (Signal::SIGXFSZ, SigHandler::SigIgn)];
    for (signal, handler) in settled {
        #[expect(unsafe_code, reason = "std has no safe function to set a signal's action")]
        // SAFETY: neither action runs code of this program.
        let set = unsafe { nix::sys::signal::signal(signal, handler) };
        // Fails only for a signal that does not exist.
        set.ok();
    }
}

/// Ends the agent and its group by a signal that a key sent to the trial, as the key would have done without the agent.
/// A shell then also ends its loop or script. Returns only if the signal cannot end the agent.
pub fn end_job(signal: u8) {
    let Ok(signal) = Signal::try_from(i32::from(signal)) else { return };
    #[expect(unsafe_code, reason = "std has no safe function to set a signal's action")]
    // SAFETY: the default action runs no code of this program.
    let set = unsafe { nix::sys::signal::signal(signal, SigHandler::SigDfl) };
    set.ok();
    signals::unblock_all();
    kill(Pid::from_raw(0), signal).ok();
}

/// Starts the trial with the given standard output and error. `None`: the agent's.
///
/// Must be called on the main thread: the kernel sends the parent-death signal when the *thread* that started the child
/// ends.
pub fn start(
    command: &TrialCommand,
    stdout: Option<OwnedFd>,
    stderr: Option<OwnedFd>,
    reaper: &Reaper,
) -> Result<(Trial, oneshot::Receiver<ExitStatus>), Error> {
    let mut terminal = Terminal::find();
    let given = terminal
        .as_mut()
        .filter(|terminal| terminal.has_foreground() && terminal.has_agent_output());
    let takes = given.map(Terminal::prepare_take).is_some();
    let outputs = Outputs { stdout, stderr };
    let spawned = reaper.spawn_with(ChildRole::Trial, || spawn::spawn(command, &outputs, takes));
    let (pid, exit) = spawned.map_err(|source| {
        if let Some(terminal) = &mut terminal {
            terminal.take_back(false);
        }
        start_error(PathBuf::from(&command.program), source)
    })?;
    // When PID 1 ends, the kernel ends all other processes of the namespace.
    let on_agent_death = match std::process::id() {
        1 => None,
        _ if command.detach_on_death => Some(OnAgentDeath::Detach),
        _ => Some(OnAgentDeath::EndTrial(command.run_mark.clone())),
    };
    let reaper = reaper.clone();
    Ok((
        Trial {
            pid,
            reaper,
            on_agent_death,
            guard: None,
            guard_count: 0,
            terminal,
            reaped: false,
            stopped_programs: Vec::new(),
            spared: Vec::new(),
        },
        exit,
    ))
}

fn start_error(program: PathBuf, source: io::Error) -> Error {
    match source.raw_os_error().map(Errno::from_raw) {
        Some(Errno::ENOENT | Errno::ENOTDIR) => Error::NotFound { program, source },
        Some(Errno::EAGAIN | Errno::ENOMEM | Errno::EMFILE | Errno::ENFILE | Errno::ESRCH) => {
            Error::Spawn { program, source }
        }
        _ => Error::NotExecutable { program, source },
    }
}

/// Sends a signal to a process, which may have ended since it was found.
fn send_signal(pid: u32, signal: Signal) {
    if let Ok(pid) = i32::try_from(pid) {
        kill(Pid::from_raw(pid), signal).ok();
    }
}

impl Trial {
    /// Takes over a running trial and its `guard`. This process's previous program started both.
    pub fn adopt(
        pid: Pid,
        guard: Option<Guard>,
        reaper: &Reaper,
    ) -> (Self, oneshot::Receiver<ExitStatus>) {
        let exit = reaper.adopt(pid.as_raw().unsigned_abs(), ChildRole::Trial);
        let reaper = reaper.clone();
        (
            Self {
                pid,
                reaper,
                on_agent_death: None,
                guard,
                guard_count: 0,
                terminal: None,
                reaped: false,
                stopped_programs: Vec::new(),
                spared: Vec::new(),
            },
            exit,
        )
    }

    /// Returns the process id, which is also the id of the process group.
    pub fn pid(&self) -> u32 {
        self.pid.as_raw().unsigned_abs()
    }

    /// Starts the guard, unless one is running. If the agent is killed, the guard ends the rest of the trial, or copies
    /// the trial's `outputs` to the files in `dir`. The start is deferred, because a trial must not wait for it and a
    /// short trial needs no guard.
    pub fn start_guard(
        &mut self,
        outputs: impl FnOnce() -> [Option<OwnedFd>; 2],
        dir: Option<&Path>,
    ) {
        if self.guard.is_some() {
            return;
        }
        let started = match &self.on_agent_death {
            None => return,
            Some(OnAgentDeath::EndTrial(mark)) => {
                let group = Some(self.pid()).filter(|_| !self.reaped);
                Guard::start(&self.reaper, GuardTask::End { mark, group })
            }
            Some(OnAgentDeath::Detach) => {
                Guard::start(&self.reaper, GuardTask::Drain { outputs: outputs(), dir })
            }
        };
        match started {
            Ok(guard) => {
                reexec::record_guard(&guard);
                self.guard = Some(guard);
                self.guard_count += 1;
            }
            Err(source) => {
                tracing::debug!("cannot start the guard: {source}");
            }
        }
    }

    /// Returns the guard if it has ended before the agent, and forgets it. `None`: the guard is running.
    pub fn take_lost_guard(&mut self) -> Option<LostGuard> {
        let status = self.guard.as_mut()?.take_exit_status()?;
        self.guard = None;
        // After so many guards, the kills must be deliberate.
        let replaced = self.on_agent_death.is_some() && self.guard_count < MAX_GUARDS;
        Some(LostGuard { status, replaced })
    }

    /// Records that the trial's own process was reaped; `killed`: a signal ended it. Returns whether the trial had the
    /// terminal, whose user can interrupt the trial without the agent's notice.
    pub fn record_reaped(&mut self, killed: bool) -> bool {
        self.reaped = true;
        if let Some(guard) = &mut self.guard {
            guard.forget_group();
        }
        let Some(terminal) = &mut self.terminal else { return false };
        let given = terminal.is_with_trial();
        terminal.take_back(killed);
        given
    }

    /// Forwards a signal to the trial's group. Must not be called after the trial's own process was reaped.
    pub fn forward_signal(&mut self, signal: Signal) {
        if signal == Signal::SIGCONT {
            // After a shell's `fg`, the agent has the terminal.
            self.give_terminal();
        }
        self.signal_group(signal);
    }

    /// Checks whether the trial's own process was stopped, for example by Ctrl-Z. If so, stops the agent too, until
    /// another process continues it.
    pub fn follow_suspension(&mut self) {
        let pid = self.pid();
        let Some(terminal) = &mut self.terminal else { return };
        if let Some(signal) = self.reaper.take_suspend_signal(pid) {
            // A trial that stopped only to read gets the terminal, if the agent has it.
            if signal != signal_number(Signal::SIGTTIN) || !terminal.has_foreground() {
                terminal.stop_agent_too(signal);
            }
            // The agent was continued in the foreground, or its process group is orphaned and cannot be stopped.
            if self.give_terminal() {
                self.signal_group(Signal::SIGCONT);
            }
        }
    }

    fn give_terminal(&mut self) -> bool {
        let group = self.pid();
        let foreground = self.terminal.as_mut().filter(|terminal| terminal.has_foreground());
        foreground.map(|terminal| terminal.give_to(group)).is_some()
    }

    /// Returns the live processes of the tree, the trial's own process included.
    pub fn tree(&self) -> Vec<Process> {
        tree::descendants(std::process::id(), &self.reaper.helpers())
    }

    /// Sends SIGTERM to the tree, and spares the processes below programs that handle SIGTERM: a training script may need
    /// them for its last checkpoint. `reaped`: the trial's own process was reaped, so its pid may belong to another
    /// process.
    pub fn stop(&mut self, reaped: bool) {
        let tree = self.tree();
        self.stopped_programs = tree::programs_with_handler(&tree, handles_sigterm);
        self.spared = tree::below(&tree, &self.stopped_programs);
        self.signal_tree(Signal::SIGTERM, reaped, &self.spared);
        // A stopped process receives SIGTERM only after it is continued.
        self.signal_tree(Signal::SIGCONT, reaped, &[]);
    }

    /// Sends SIGTERM to the spared processes whose program has ended.
    pub fn stop_orphans(&mut self) {
        if self.spared.is_empty() {
            return;
        }
        let tree = self.tree();
        let below = tree::below(&tree, &self.stopped_programs);
        for Process { pid, .. } in tree {
            if self.spared.contains(&pid) && !below.contains(&pid) {
                send_signal(pid, Signal::SIGTERM);
            }
        }
        self.spared = below;
    }

    /// Sends SIGKILL to the whole tree and returns the processes that were alive.
    pub fn kill(&self, reaped: bool) -> Vec<Process> {
        self.signal_tree(Signal::SIGKILL, reaped, &[])
    }

    fn signal_tree(&self, signal: Signal, reaped: bool, spared: &[u32]) -> Vec<Process> {
        let tree = self.tree();
        // The group would include processes to spare.
        let by_group = !reaped && spared.is_empty();
        if by_group {
            self.signal_group(signal);
        } else if !reaped {
            send_signal(self.pid(), signal);
        }
        let own = self.pid();
        for Process { pid, group, .. } in &tree {
            let is_done = !reaped && *pid == own || by_group && *group == own;
            if !is_done && !spared.contains(pid) {
                send_signal(*pid, signal);
            }
        }
        tree
    }

    fn signal_group(&self, signal: Signal) {
        // The trial's process may have moved to another group.
        if killpg(self.pid, signal) == Err(Errno::ESRCH) {
            kill(self.pid, signal).ok();
        }
    }
}
