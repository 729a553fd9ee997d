//! The terminal on the agent's standard input, from which the trial may read.
//!
//! The trial has its own process group. A terminal has one foreground group, and stops a reader from any other group.
//! So the trial's group is in the foreground while the trial runs. When the trial has ended or was stopped (Ctrl-Z),
//! the agent's group returns to the foreground. After a stop, the agent also stops itself, because its shell waits for
//! that before the user can run `fg`.
//!
//! In a pipeline, the trial gets the terminal only when it reads from it. A pager at the pipeline's end may need the
//! terminal.
//!
//! Invariant: the agent takes the terminal from no other job. It gives up the foreground only if it has it, and takes
//! it back only after it gave it up.

use nix::poll::poll;
use nix::sys::signal::{Signal, kill};
use rustix::process::{Pid, getpgrp, getpid};
use rustix::stdio::{stdin, stdout};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetpgrp, tcsetattr, tcsetpgrp};

use crate::trial::signals::signal_number;

/// The time to copy the trial's last output before a stop, in milliseconds.
const OUTPUT_WAIT_MS: u8 = 20;

/// The agent's standard input, if it is the terminal of the agent's session.
#[derive(Debug)]
pub struct Terminal {
    /// `true` while the trial's group is in the foreground.
    with_trial: bool,
    /// The terminal's modes before the trial, if the trial got it.
    modes: Option<Termios>,
}

impl Terminal {
    /// Returns the terminal, if standard input is the terminal of the agent's session.
    pub fn find() -> Option<Self> {
        tcgetpgrp(stdin()).ok().map(|_| Self { with_trial: false, modes: None })
    }

    /// Returns whether the agent's group is in the foreground.
    pub fn has_foreground(&self) -> bool {
        tcgetpgrp(stdin()) == Ok(getpgrp())
    }

    /// Returns whether the agent's output goes to the terminal too. If not, the agent may be the first program of a
    /// pipeline. The last one, such as a pager, needs the terminal more than a trial that may never read.
    pub fn has_agent_output(&self) -> bool {
        tcgetpgrp(stdout()).is_ok()
    }

    /// Returns whether the trial has the terminal.
    pub fn is_with_trial(&self) -> bool {
        self.with_trial
    }

    /// Prepares the terminal for a child that will take it, see [`take_foreground_in_child`].
    pub fn prepare_take(&mut self) {
        self.modes = tcgetattr(stdin()).ok();
        self.with_trial = true;
    }

    /// Gives the terminal to the trial's `group`, if the agent has it.
    pub fn give_to(&mut self, group: u32) {
        let group = i32::try_from(group).ok().and_then(Pid::from_raw);
        if let Some(group) = group.filter(|_| self.has_foreground()) {
            self.modes = self.modes.take().or_else(|| tcgetattr(stdin()).ok());
            self.with_trial = tcsetpgrp(stdin(), group).is_ok();
        }
    }

    /// Takes the terminal back from the trial. `reset`: restores its modes too, because the trial could not do so.
    pub fn take_back(&mut self, reset: bool) {
        if !std::mem::take(&mut self.with_trial) {
            return;
        }
        // The agent is in the background here. SIGTTOU is blocked, so the call works. An error means that the terminal
        // no longer exists.
        tcsetpgrp(stdin(), getpgrp()).ok();
        if let Some(modes) = self.modes.as_ref().filter(|_| reset) {
            tcsetattr(stdin(), OptionalActions::Now, modes).ok();
        }
    }

    /// Stops the agent after `signal` stopped the trial's own process, if a key or the terminal itself caused the stop.
    /// Returns when the agent is continued. Returns at once in an orphaned process group: the kernel ignores the stop
    /// there, because no process could continue the agent.
    pub fn stop_agent_too(&mut self, signal: i32) {
        let job_control = [Signal::SIGTSTP, Signal::SIGTTIN, Signal::SIGTTOU].map(signal_number);
        if self.with_trial || job_control.contains(&signal) {
            self.take_back(false);
            // The trial's output must appear before the shell's prompt. Other threads copy the output.
            poll(&mut [], OUTPUT_WAIT_MS).ok();
            // Stops the agent's whole group, like a terminal: the group may be a pipeline, and its shell waits for all
            // of it.
            kill(nix::unistd::Pid::from_raw(0), Signal::SIGTSTP).ok();
        }
    }
}

/// Puts the calling process, the leader of its group, into the foreground. Called in the child before its exec, so it
/// makes only two system calls. The child is in the background, but the signal mask inherited from the agent permits
/// the call.
pub fn take_foreground_in_child() {
    tcsetpgrp(stdin(), getpid()).ok();
}
