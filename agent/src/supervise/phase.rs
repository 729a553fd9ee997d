//! PURE: the phases of the trial, as one transition table.
//!
//! Invariants:
//!
//! * The trial's tree gets SIGTERM before SIGKILL, and always some time in between.
//! * A second stop request from another source (a directive, then the platform's SIGTERM) never shortens the grace.
//!   Only a second SIGTERM does.
//! * After the end of the trial's own process, all other processes end within the drain (or the rest of the grace). A
//!   process that survives SIGKILL gets at most [`KILL_WAIT`] more.
//! * [`Phase::Done`] is final.

use std::time::{Duration, Instant};

use trial_protocol::TrialExit;

/// The remaining grace after a second SIGTERM.
pub const HURRIED_GRACE: Duration = Duration::from_secs(1);

/// The maximum wait for killed processes to disappear. The kernel needs microseconds, unless a process hangs in a
/// device or a network file system. A longer wait does not help then.
pub const KILL_WAIT: Duration = Duration::from_secs(2);

/// The phase of the trial.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Phase {
    /// The trial's own process is alive, and no stop was requested.
    Running,
    /// The tree got SIGTERM.
    Stopping {
        /// The time at which the tree gets SIGKILL.
        kill_at: Instant,
    },
    /// The tree got SIGKILL. The trial's own process was not reaped yet.
    Killing {
        /// The time at which the wait for the process ends.
        give_up_at: Instant,
    },
    /// The trial's own process has ended without a stop, and its output is still open: another process may be writing.
    Draining {
        /// The exit of the process.
        exit: TrialExit,
        /// The time at which the leftover processes get SIGTERM.
        terminate_at: Instant,
        /// The time at which they get SIGKILL.
        kill_at: Instant,
    },
    /// The trial's own process has ended, and the rest of the tree got SIGTERM.
    Clearing {
        /// The exit of the process.
        exit: TrialExit,
        /// The time at which the rest gets SIGKILL.
        kill_at: Instant,
    },
    /// The rest of the tree got SIGKILL, and its end is being verified.
    Verifying {
        /// The exit of the process.
        exit: TrialExit,
        /// The time at which the wait ends.
        give_up_at: Instant,
    },
    /// The trial has ended. `None`: its own process survived SIGKILL.
    Done(Option<TrialExit>),
}

/// An event of the trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The trial must end within `grace`.
    StopRequested {
        /// The time between SIGTERM and SIGKILL.
        grace: Duration,
    },
    /// The agent has received SIGTERM again: the sender wants a faster end.
    StopHurried,
    /// The trial's own process was reaped.
    Exited {
        /// The exit of the process.
        exit: TrialExit,
        /// The rest of the trial.
        left: Remaining,
    },
    /// The rest of the trial was checked, or has changed.
    Checked(Remaining),
    /// [`Phase::deadline`] has passed, with this rest of the trial.
    DeadlinePassed(Remaining),
}

/// The rest of a trial apart from its own process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Remaining {
    /// `true` if a process holds stdout or stderr open, or some output was not read yet.
    pub output: bool,
    /// `true` if descendants are alive.
    pub processes: bool,
}

impl Remaining {
    /// Neither output nor processes.
    pub const NOTHING: Self = Self { output: false, processes: false };

    /// The assumed rest before the first check.
    pub const ANYTHING: Self = Self { output: true, processes: true };
}

/// An action on the trial's whole tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Send SIGTERM.
    Stop,
    /// Send SIGKILL.
    Kill,
}

impl Phase {
    /// Returns the time at which [`Event::DeadlinePassed`] is due.
    pub fn deadline(&self) -> Option<Instant> {
        match self {
            Self::Running | Self::Done(_) => None,
            Self::Stopping { kill_at } | Self::Clearing { kill_at, .. } => Some(*kill_at),
            Self::Killing { give_up_at } | Self::Verifying { give_up_at, .. } => Some(*give_up_at),
            Self::Draining { terminate_at, .. } => Some(*terminate_at),
        }
    }

    /// Returns the name of the phase for the status page.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Stopping { .. } | Self::Killing { .. } => "stopping",
            Self::Draining { .. } | Self::Clearing { .. } | Self::Verifying { .. } => "draining",
            Self::Done(_) => "ended",
        }
    }

    /// Returns whether SIGKILL was sent, so that the agent must search repeatedly for processes forked meanwhile.
    pub fn is_killing(&self) -> bool {
        matches!(self, Self::Killing { .. } | Self::Verifying { .. })
    }

    /// Returns whether the trial's own process was reaped. Its pid may then belong to another process.
    pub fn reaped(&self) -> bool {
        match self {
            Self::Running | Self::Stopping { .. } | Self::Killing { .. } => false,
            Self::Draining { .. } | Self::Clearing { .. } | Self::Verifying { .. } => true,
            Self::Done(exit) => exit.is_some(),
        }
    }

    /// Returns the phase and the effect that follow from `event` at `now`. `drain` limits the time after the end of the
    /// trial's own process: the rest of the tree may end on its own in the first half, and after SIGTERM in the second
    /// half.
    #[must_use]
    #[expect(clippy::too_many_lines, reason = "the table of all transitions")]
    pub fn step(self, event: Event, now: Instant, drain: Duration) -> (Self, Option<Effect>) {
        use Phase::{Clearing, Done, Draining, Killing, Running, Stopping, Verifying};
        let killed = || now + KILL_WAIT;
        match (self, event) {
            (Running, Event::StopRequested { grace }) => {
                (Stopping { kill_at: now + grace }, Some(Effect::Stop))
            }
            (Running, Event::StopHurried) => {
                (Stopping { kill_at: now + HURRIED_GRACE }, Some(Effect::Stop))
            }
            (Stopping { kill_at }, Event::StopRequested { grace }) => {
                (Stopping { kill_at: kill_at.min(now + grace) }, None)
            }
            (Stopping { kill_at }, Event::StopHurried) => {
                (Stopping { kill_at: kill_at.min(now + HURRIED_GRACE) }, None)
            }
            (Stopping { .. }, Event::DeadlinePassed(_)) => {
                (Killing { give_up_at: killed() }, Some(Effect::Kill))
            }
            (Killing { .. }, Event::DeadlinePassed(_)) => (Done(None), None),

            (
                Running | Stopping { .. } | Killing { .. },
                Event::Exited { exit, left: Remaining::NOTHING },
            ) => (Done(Some(exit)), None),
            (Running, Event::Exited { exit, left: Remaining { output: true, .. } }) => {
                (Draining { exit, terminate_at: now + drain / 2, kill_at: now + drain }, None)
            }
            (Running, Event::Exited { exit, left: Remaining { output: false, .. } }) => {
                (Clearing { exit, kill_at: now + drain }, Some(Effect::Stop))
            }
            // The tree already got SIGTERM and keeps its grace, unless no process is left.
            (Stopping { kill_at }, Event::Exited { exit, left }) => {
                let kill_at = if left.processes { kill_at } else { kill_at.min(now + drain) };
                (Clearing { exit, kill_at }, None)
            }
            (Killing { give_up_at }, Event::Exited { exit, .. }) => {
                (Verifying { exit, give_up_at }, Some(Effect::Kill))
            }

            (
                Draining { exit, .. } | Clearing { exit, .. } | Verifying { exit, .. },
                Event::Checked(Remaining::NOTHING),
            ) => (Done(Some(exit)), None),
            // The leftover processes have closed the output, so no more output is possible.
            (
                Draining { exit, kill_at, .. },
                Event::Checked(Remaining { output: false, .. }) | Event::DeadlinePassed(_),
            ) => (Clearing { exit, kill_at }, Some(Effect::Stop)),
            (Draining { exit, kill_at, .. }, Event::StopRequested { grace }) => {
                (Clearing { exit, kill_at: kill_at.min(now + grace) }, Some(Effect::Stop))
            }
            (Draining { exit, kill_at, .. }, Event::StopHurried) => {
                (Clearing { exit, kill_at: kill_at.min(now + HURRIED_GRACE) }, Some(Effect::Stop))
            }
            (Clearing { exit, kill_at }, Event::Checked(Remaining { processes: false, .. })) => {
                (Clearing { exit, kill_at: kill_at.min(now + drain) }, None)
            }
            (Clearing { exit, kill_at }, Event::StopRequested { grace }) => {
                (Clearing { exit, kill_at: kill_at.min(now + grace) }, None)
            }
            (Clearing { exit, kill_at }, Event::StopHurried) => {
                (Clearing { exit, kill_at: kill_at.min(now + HURRIED_GRACE) }, None)
            }
            // A process outside the tree holds the output open. The agent must not end it and need not wait for it.
            (Clearing { exit, .. }, Event::DeadlinePassed(Remaining { processes: false, .. }))
            | (Verifying { exit, .. }, Event::DeadlinePassed(_)) => (Done(Some(exit)), None),
            (Clearing { exit, .. }, Event::DeadlinePassed(_)) => {
                (Verifying { exit, give_up_at: killed() }, Some(Effect::Kill))
            }

            // All other events are outdated.
            (phase, _) => (phase, None),
        }
    }
}

#[cfg(test)]
mod tests;
