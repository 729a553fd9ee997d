//! PURE: the life of the trial, one transition table.
//!
//! Invariants:
//!
//! * The trial's tree is asked (TERM) before it is killed (KILL), and always has some time in between.
//! * A stop that comes a second time on another way (a directive, then the platform's TERM) never shortens
//!   the grace; only a second TERM does.
//! * After the trial's own process has ended, everything ends within the drain (or what is left of the grace). A
//!   process that even KILL does not end at once has [`KILL_WAIT`] more.
//! * [`Phase::Done`] is final.

use std::time::{Duration, Instant};

use trial_protocol::TrialExit;

/// The time that is left of the grace after a second TERM.
pub const HURRIED_GRACE: Duration = Duration::from_secs(1);

/// The time that killed processes may take to vanish. The kernel needs microseconds, unless a process hangs in
/// a device or a network file system; then nothing helps, and waiting longer does not either.
pub const KILL_WAIT: Duration = Duration::from_secs(2);

/// The phase of the trial.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Phase {
    /// Its own process lives, and no stop was requested.
    Running,
    /// The tree was asked to end.
    Stopping {
        /// The time at which it is killed.
        kill_at: Instant,
    },
    /// The tree was killed; its own process has not been reaped yet.
    Killing {
        /// The time at which the wait for it ends.
        give_up_at: Instant,
    },
    /// Its own process has ended by itself, and its output is still open: another process may be writing.
    Draining {
        /// The end of the process.
        exit: TrialExit,
        /// The time at which the leftovers get TERM.
        ask_at: Instant,
        /// The time at which it is killed.
        kill_at: Instant,
    },
    /// Its own process has ended, and the rest of the tree was asked to end.
    Clearing {
        /// The end of the process.
        exit: TrialExit,
        /// The time at which the rest is killed.
        kill_at: Instant,
    },
    /// The rest of the tree was killed, and that is being verified.
    Verifying {
        /// The end of the process.
        exit: TrialExit,
        /// The time at which the wait ends.
        give_up_at: Instant,
    },
    /// All is over. `None`: its own process could not even be killed.
    Done(Option<TrialExit>),
}

/// An event of the trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The trial is to end within `grace`.
    StopRequested {
        /// The time that the tree may take.
        grace: Duration,
    },
    /// The agent has received TERM again: the sender is losing patience.
    StopHurried,
    /// The trial's own process was reaped.
    Exited {
        /// The end of the process.
        exit: TrialExit,
        /// The processes that are left.
        left: Remaining,
    },
    /// The rest of the trial was inspected, or has changed.
    Looked(Remaining),
    /// [`Phase::deadline`] is over, and this is left.
    DeadlinePassed(Remaining),
}

/// The rest of a trial apart from its own process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Remaining {
    /// A process holds its stdout or stderr open, or not everything was read yet.
    pub output: bool,
    /// Descendants are alive.
    pub processes: bool,
}

impl Remaining {
    /// Nothing at all.
    pub const NOTHING: Self = Self { output: false, processes: false };

    /// Everything that there can be, before the first look.
    pub const ANYTHING: Self = Self { output: true, processes: true };
}

/// An action on the trial's whole tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// TERM.
    Stop,
    /// KILL.
    Kill,
}

impl Phase {
    /// Returns the time at which [`Event::DeadlinePassed`] is due.
    pub fn deadline(&self) -> Option<Instant> {
        match self {
            Self::Running | Self::Done(_) => None,
            Self::Stopping { kill_at } | Self::Clearing { kill_at, .. } => Some(*kill_at),
            Self::Killing { give_up_at } | Self::Verifying { give_up_at, .. } => Some(*give_up_at),
            Self::Draining { ask_at, .. } => Some(*ask_at),
        }
    }

    /// A word for it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Stopping { .. } | Self::Killing { .. } => "stopping",
            Self::Draining { .. } | Self::Clearing { .. } | Self::Verifying { .. } => "draining",
            Self::Done(_) => "ended",
        }
    }

    /// Returns whether KILL was sent, so that a process forked meanwhile must be looked for again and again.
    pub fn hunts(&self) -> bool {
        matches!(self, Self::Killing { .. } | Self::Verifying { .. })
    }

    /// Returns whether the trial's own process has been reaped: its pid may be another's now.
    pub fn reaped(&self) -> bool {
        match self {
            Self::Running | Self::Stopping { .. } | Self::Killing { .. } => false,
            Self::Draining { .. } | Self::Clearing { .. } | Self::Verifying { .. } => true,
            Self::Done(exit) => exit.is_some(),
        }
    }

    /// Returns the phase and the action that follow from `event` at `now`. `drain` bounds what follows the end of the
    /// trial's own process: the first half for what is left to end by itself, the second half after it was asked.
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
                (Draining { exit, ask_at: now + drain / 2, kill_at: now + drain }, None)
            }
            (Running, Event::Exited { exit, left: Remaining { output: false, .. } }) => {
                (Clearing { exit, kill_at: now + drain }, Some(Effect::Stop))
            }
            // The tree was asked already and keeps its grace, unless no process of it is left.
            (Stopping { kill_at }, Event::Exited { exit, left }) => {
                let kill_at = if left.processes { kill_at } else { kill_at.min(now + drain) };
                (Clearing { exit, kill_at }, None)
            }
            (Killing { give_up_at }, Event::Exited { exit, .. }) => {
                (Verifying { exit, give_up_at }, Some(Effect::Kill))
            }

            (
                Draining { exit, .. } | Clearing { exit, .. } | Verifying { exit, .. },
                Event::Looked(Remaining::NOTHING),
            ) => (Done(Some(exit)), None),
            // The leftovers have let go of the output, so they have nothing more to tell.
            (
                Draining { exit, kill_at, .. },
                Event::Looked(Remaining { output: false, .. }) | Event::DeadlinePassed(_),
            ) => (Clearing { exit, kill_at }, Some(Effect::Stop)),
            (Draining { exit, kill_at, .. }, Event::StopRequested { grace }) => {
                (Clearing { exit, kill_at: kill_at.min(now + grace) }, Some(Effect::Stop))
            }
            (Draining { exit, kill_at, .. }, Event::StopHurried) => {
                (Clearing { exit, kill_at: kill_at.min(now + HURRIED_GRACE) }, Some(Effect::Stop))
            }
            (Clearing { exit, kill_at }, Event::Looked(Remaining { processes: false, .. })) => {
                (Clearing { exit, kill_at: kill_at.min(now + drain) }, None)
            }
            (Clearing { exit, kill_at }, Event::StopRequested { grace }) => {
                (Clearing { exit, kill_at: kill_at.min(now + grace) }, None)
            }
            (Clearing { exit, kill_at }, Event::StopHurried) => {
                (Clearing { exit, kill_at: kill_at.min(now + HURRIED_GRACE) }, None)
            }
            // A process outside the tree holds the output: the agent must not end it, and need not wait for it.
            (Clearing { exit, .. }, Event::DeadlinePassed(Remaining { processes: false, .. }))
            | (Verifying { exit, .. }, Event::DeadlinePassed(_)) => (Done(Some(exit)), None),
            (Clearing { exit, .. }, Event::DeadlinePassed(_)) => {
                (Verifying { exit, give_up_at: killed() }, Some(Effect::Kill))
            }

            // Everything else is late news.
            (phase, _) => (phase, None),
        }
    }
}

#[cfg(test)]
mod tests;
