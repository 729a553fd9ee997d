//! PURE: the phases of the trial, as one transition table.
//!
//! Invariants:
//!
//! * The trial's tree gets SIGTERM before SIGKILL, and always some time in between.
//! * A second stop request (a directive, then the platform's SIGTERM) never lengthens the grace. It shortens the grace
//!   only if its own ends earlier, as that of a second SIGTERM does.
//! * After the end of the trial's own process, all other processes end within the drain (or the rest of the grace). A
//!   process that survives SIGKILL gets at most [`KILL_WAIT`] more.
//! * [`Phase::Done`] is final.

use std::time::{Duration, Instant};

use trial_protocol::TrialExit;

/// The remaining grace after a second SIGTERM.
pub const GRACE_AFTER_SECOND_SIGNAL: Duration = Duration::from_secs(1);

/// The interval at which killed trees are searched again for processes forked meanwhile.
pub const REPEAT_KILL_INTERVAL: Duration = Duration::from_millis(20);

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
    StoppingLeftovers {
        /// The exit of the process.
        exit: TrialExit,
        /// The time at which the rest gets SIGKILL.
        kill_at: Instant,
    },
    /// The rest of the tree got SIGKILL, and its end is being verified.
    KillingLeftovers {
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
    SecondStopSignal,
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
            Self::Stopping { kill_at } | Self::StoppingLeftovers { kill_at, .. } => Some(*kill_at),
            Self::Killing { give_up_at } | Self::KillingLeftovers { give_up_at, .. } => {
                Some(*give_up_at)
            }
            Self::Draining { terminate_at, .. } => Some(*terminate_at),
        }
    }

    /// Returns the name of the phase for the status page.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Stopping { .. } | Self::Killing { .. } => "stopping",
            Self::Draining { .. }
            | Self::StoppingLeftovers { .. }
            | Self::KillingLeftovers { .. } => "draining",
            Self::Done(_) => "ended",
        }
    }

    /// Returns whether SIGKILL was sent, so that the agent must search repeatedly for processes forked meanwhile.
    pub fn is_killing(&self) -> bool {
        matches!(self, Self::Killing { .. } | Self::KillingLeftovers { .. })
    }

    /// Returns whether the trial's own process was reaped. Its pid may then belong to another process.
    pub fn is_reaped(&self) -> bool {
        match self {
            Self::Running | Self::Stopping { .. } | Self::Killing { .. } => false,
            Self::Draining { .. }
            | Self::StoppingLeftovers { .. }
            | Self::KillingLeftovers { .. } => true,
            Self::Done(exit) => exit.is_some(),
        }
    }

    /// Returns the phase and the effect that follow from `event` at `now`. `drain` limits the time after the end of the
    /// trial's own process: the rest of the tree may end on its own in the first half, and after SIGTERM in the second
    /// half.
    #[must_use]
    pub fn step(self, event: Event, now: Instant, drain: Duration) -> (Self, Option<Effect>) {
        match event {
            Event::StopRequested { grace } => self.on_stop_request(now + grace),
            Event::SecondStopSignal => self.on_stop_request(now + GRACE_AFTER_SECOND_SIGNAL),
            Event::Exited { exit, left } => self.on_exit(exit, left, now, drain),
            Event::Checked(left) => self.on_check(left, now + drain),
            Event::DeadlinePassed(left) => self.on_deadline(left, now + KILL_WAIT),
        }
    }

    /// Returns what follows from a request to stop whose grace ends at `latest`.
    fn on_stop_request(self, latest: Instant) -> (Self, Option<Effect>) {
        match self {
            Self::Running => (Self::Stopping { kill_at: latest }, Some(Effect::Stop)),
            Self::Stopping { kill_at } => (Self::Stopping { kill_at: kill_at.min(latest) }, None),
            Self::Draining { exit, kill_at, .. } => {
                (Self::StoppingLeftovers { exit, kill_at: kill_at.min(latest) }, Some(Effect::Stop))
            }
            Self::StoppingLeftovers { exit, kill_at } => {
                (Self::StoppingLeftovers { exit, kill_at: kill_at.min(latest) }, None)
            }
            Self::Killing { .. } | Self::KillingLeftovers { .. } | Self::Done(_) => (self, None),
        }
    }

    /// Returns what follows from the end of the trial's own process.
    fn on_exit(
        self,
        exit: TrialExit,
        left: Remaining,
        now: Instant,
        drain: Duration,
    ) -> (Self, Option<Effect>) {
        match (self, left) {
            (Self::Running | Self::Stopping { .. } | Self::Killing { .. }, Remaining::NOTHING) => {
                (Self::Done(Some(exit)), None)
            }
            (Self::Running, Remaining { output: true, .. }) => {
                (Self::Draining { exit, terminate_at: now + drain / 2, kill_at: now + drain }, None)
            }
            (Self::Running, Remaining { output: false, .. }) => {
                (Self::StoppingLeftovers { exit, kill_at: now + drain }, Some(Effect::Stop))
            }
            // The tree already got SIGTERM and keeps its grace, unless no process is left.
            (Self::Stopping { kill_at }, _) => {
                let kill_at = if left.processes { kill_at } else { kill_at.min(now + drain) };
                (Self::StoppingLeftovers { exit, kill_at }, None)
            }
            (Self::Killing { give_up_at }, _) => {
                (Self::KillingLeftovers { exit, give_up_at }, Some(Effect::Kill))
            }
            // The event is outdated.
            (phase, _) => (phase, None),
        }
    }

    /// Returns what follows from a check of the rest of the trial. `drained` is the end of the time for its output.
    fn on_check(self, left: Remaining, drained: Instant) -> (Self, Option<Effect>) {
        match (self, left) {
            (
                Self::Draining { exit, .. }
                | Self::StoppingLeftovers { exit, .. }
                | Self::KillingLeftovers { exit, .. },
                Remaining::NOTHING,
            ) => (Self::Done(Some(exit)), None),
            // The leftover processes have closed the output, so no more output is possible.
            (Self::Draining { exit, kill_at, .. }, Remaining { output: false, .. }) => {
                (Self::StoppingLeftovers { exit, kill_at }, Some(Effect::Stop))
            }
            (Self::StoppingLeftovers { exit, kill_at }, Remaining { processes: false, .. }) => {
                (Self::StoppingLeftovers { exit, kill_at: kill_at.min(drained) }, None)
            }
            (phase, _) => (phase, None),
        }
    }

    /// Returns what follows from the end of the phase's time. `give_up_at` ends the wait after a SIGKILL.
    fn on_deadline(self, left: Remaining, give_up_at: Instant) -> (Self, Option<Effect>) {
        match self {
            Self::Stopping { .. } => (Self::Killing { give_up_at }, Some(Effect::Kill)),
            Self::Killing { .. } => (Self::Done(None), None),
            Self::Draining { exit, kill_at, .. } => {
                (Self::StoppingLeftovers { exit, kill_at }, Some(Effect::Stop))
            }
            Self::StoppingLeftovers { exit, .. } if left.processes => {
                (Self::KillingLeftovers { exit, give_up_at }, Some(Effect::Kill))
            }
            // A process outside the tree holds the output open. The agent must not end it and need not wait for it.
            Self::StoppingLeftovers { exit, .. } | Self::KillingLeftovers { exit, .. } => {
                (Self::Done(Some(exit)), None)
            }
            Self::Running | Self::Done(_) => (self, None),
        }
    }
}

#[cfg(test)]
mod tests;
