//! The terminal that the trial reads from, when `trialkeeper` was started at one.
//!
//! The trial leads a process group of its own, and a terminal listens to one group only: a reader outside it is
//! stopped. So the trial's group is put into the foreground while it runs. The agent's group comes back when the trial
//! has ended or was stopped (Ctrl-Z). Then the agent stops itself as well, for the shell that waits for it and says
//! `fg` later.
//!
//! In a pipeline it is lent to the trial only once that reads: it is the pager's behind it, or free.
//!
//! Invariant: nothing is taken from another job. The agent gives the foreground away only where it has it, and takes it
//! back only after it gave it.

use nix::poll::poll;
use nix::sys::signal::{Signal, kill};
use rustix::process::{Pid, getpgrp, getpid};
use rustix::stdio::{stdin, stdout};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetpgrp, tcsetattr, tcsetpgrp};

use crate::trial::signals::number;

/// The time in which the last output before a stop is passed on, in milliseconds.
const PUMPED_IN: u8 = 20;

/// The agent's standard input, where that is the terminal of its session.
#[derive(Debug)]
pub struct Terminal {
    /// The trial's group has it.
    given: bool,
    /// The terminal's modes before the trial, if the trial got it.
    modes: Option<Termios>,
}

impl Terminal {
    /// The terminal, if standard input is that of the agent's session.
    pub fn find() -> Option<Self> {
        tcgetpgrp(stdin()).ok().map(|_| Self { given: false, modes: None })
    }

    /// Returns whether the terminal listens to the agent.
    pub fn has_foreground(&self) -> bool {
        tcgetpgrp(stdin()) == Ok(getpgrp())
    }

    /// Returns whether the agent's output goes there, too. Else the agent may be the first of a pipeline. The last of
    /// one, such as a pager, needs the terminal more than a trial that may never read.
    pub fn shows_output(&self) -> bool {
        tcgetpgrp(stdout()).is_ok()
    }

    /// Returns whether it listens to the trial.
    pub fn is_given(&self) -> bool {
        self.given
    }

    /// A child that is about to become the trial takes it, see [`take_in_child`].
    pub fn will_be_taken(&mut self) {
        self.modes = tcgetattr(stdin()).ok();
        self.given = true;
    }

    /// Gives the terminal to the trial's `group`, if the agent has it.
    pub fn give(&mut self, group: u32) {
        let group = i32::try_from(group).ok().and_then(Pid::from_raw);
        if let Some(group) = group.filter(|_| self.has_foreground()) {
            self.modes = self.modes.take().or_else(|| tcgetattr(stdin()).ok());
            self.given = tcsetpgrp(stdin(), group).is_ok();
        }
    }

    /// Takes it back, if it was given. `reset`: its modes too, since the trial had no chance to.
    pub fn take_back(&mut self, reset: bool) {
        if !std::mem::take(&mut self.given) {
            return;
        }
        // The agent is in the background now and may do this as SIGTTOU is blocked. A terminal that has gone is free.
        tcsetpgrp(stdin(), getpgrp()).ok();
        if let Some(modes) = self.modes.as_ref().filter(|_| reset) {
            tcsetattr(stdin(), OptionalActions::Now, modes).ok();
        }
    }

    /// The trial's own process was stopped by `signal`: the agent follows it, if a terminal's user or the terminal
    /// itself did that. Returns when the agent is continued, or at once where no process could continue it and the
    /// kernel let it be.
    pub fn follow(&mut self, signal: i32) {
        let job_control = [Signal::SIGTSTP, Signal::SIGTTIN, Signal::SIGTTOU].map(number);
        if self.given || job_control.contains(&signal) {
            self.take_back(false);
            // What the trial has printed should be seen before the shell's answer; the pumps are threads of their own.
            poll(&mut [], PUMPED_IN).ok();
            // The whole group of the agent, as a terminal does: it may be a pipeline, and its shell waits for all of
            // it.
            kill(nix::unistd::Pid::from_raw(0), Signal::SIGTSTP).ok();
        }
    }
}

/// Puts the calling process, which leads its group, into the foreground. For the child before its exec: makes two
/// system calls and nothing else. The child is in the background when it asks; the signal mask that it has from the
/// agent allows it.
pub fn take_in_child() {
    tcsetpgrp(stdin(), getpid()).ok();
}
