//! PURE: concludes from a requested stop.

use trial_protocol::{Cause, Class, Confidence, SignalSender, StopReason, TrialExit};

use super::{Conclusion, Observations, signal_name};

/// A request to stop the trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stop {
    /// The party that requested the stop.
    pub by: StopBy,
    /// The last signal that the agent sent before the trial ended. `None`: the trial ended before the agent sent a
    /// signal, so the stop is not the cause.
    pub signal: Option<u8>,
}

/// The party that requested the stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopBy {
    /// The manager, for this reason.
    Manager(StopReason),
    /// The sender of this signal to the agent.
    Signal(u8),
    /// The agent's own detector, after this many milliseconds without progress.
    Stalled(u64),
    /// The agent's own detector, after this many milliseconds without work for any of the trial's GPUs.
    GpuIdle(u64),
    /// The agent's own detector, after this many milliseconds with a GPU that seems to hang.
    GpuHang(u64),
}

impl Stop {
    /// Returns the manager's reason, if the manager requested the stop.
    pub(super) fn reason(self) -> Option<StopReason> {
        match self.by {
            StopBy::Manager(reason) => Some(reason),
            StopBy::Signal(_) | StopBy::Stalled(_) | StopBy::GpuIdle(_) | StopBy::GpuHang(_) => {
                None
            }
        }
    }
}

/// Concludes if the trial ended after a signal from this agent.
pub(super) fn conclude_stop(
    observed: &Observations,
    by: StopBy,
    signal: u8,
    exit: TrialExit,
) -> Conclusion {
    let (cause, class, what) = describe_request(observed, by);
    let how = match exit {
        TrialExit::Code(0) => "it then exited with code 0".to_owned(),
        TrialExit::Code(code) => format!("it then exited with code {code}"),
        TrialExit::Signal(9) if signal == 9 => "it had to be killed (SIGKILL)".to_owned(),
        TrialExit::Signal(by) => format!("{} ended it", signal_name(by)),
    };
    // A trial that exits with 0 right after the signal may have been complete anyway.
    let confidence = match exit {
        TrialExit::Code(0) => Confidence::Likely,
        TrialExit::Code(_) | TrialExit::Signal(_) => Confidence::Certain,
    };
    Conclusion { cause, class, confidence, message: format!("{what}; {how}.") }
}

/// Returns the cause and the class of a stop request, and a sentence about it.
fn describe_request(observed: &Observations, by: StopBy) -> (Cause, Class, String) {
    match by {
        StopBy::Manager(reason) => {
            let (cause, class, what) = describe_manager_request(reason);
            (cause, class, what.to_owned())
        }
        StopBy::Signal(2) => {
            (Cause::Stopped, Class::None, "A user interrupted the trial".to_owned())
        }
        // A deleted pod, a drained node and a batch system at its limit all send only SIGTERM.
        StopBy::Signal(received) => {
            let from =
                observed.sender.as_ref().map_or_else(|| "outside".to_owned(), describe_sender);
            let what = format!("{} reached trialkeeper from {from}", signal_name(received));
            (Cause::Stopped, Class::Transient, what)
        }
        StopBy::Stalled(silent_ms) => {
            let what =
                format!("The trial made no progress for {} s and was stopped", silent_ms / 1_000);
            (Cause::Stalled, Class::Transient, what)
        }
        // A retry would leave the GPUs idle again.
        StopBy::GpuIdle(idle_ms) => {
            let what = format!(
                "The trial's GPUs had no work for {} s and it was stopped (--stop-on-gpu-idle): it may have waited \
                 for its data, or need no GPU",
                idle_ms / 1_000
            );
            (Cause::Stalled, Class::UserError, what)
        }
        StopBy::GpuHang(hung_ms) => {
            let what = format!(
                "A GPU of the trial was fully used at low power for {} s without output from the trial, and it was \
                 stopped (--stop-on-gpu-hang): a collective may have waited for a process that was gone",
                hung_ms / 1_000
            );
            (Cause::Stalled, Class::Transient, what)
        }
    }
}

/// Returns the cause, the class and a sentence for a stop by the manager.
fn describe_manager_request(reason: StopReason) -> (Cause, Class, &'static str) {
    let (cause, what) = match reason {
        StopReason::User => (Cause::Stopped, "A user stopped the trial"),
        StopReason::EarlyStop => (Cause::EarlyStopped, "The assessor stopped the trial early"),
        StopReason::Deadline => {
            (Cause::Deadline, "The trial ran longer than maxTrialDuration allows")
        }
        StopReason::Budget => (Cause::Stopped, "The experiment reached its own limit"),
        StopReason::ManagerShutdown => {
            (Cause::Stopped, "The manager shut down; the experiment can be resumed")
        }
        StopReason::Preempted => (Cause::Preempted, "The platform reclaimed the machine"),
        StopReason::Other => (Cause::Stopped, "The manager stopped the trial"),
    };
    let class = match reason {
        StopReason::Preempted | StopReason::ManagerShutdown => Class::Transient,
        StopReason::User
        | StopReason::EarlyStop
        | StopReason::Deadline
        | StopReason::Budget
        | StopReason::Other => Class::None,
    };
    (cause, class, what)
}

/// Describes a sender for the user.
fn describe_sender(sender: &SignalSender) -> String {
    match sender {
        SignalSender { kernel: true, .. } => "the terminal".to_owned(),
        SignalSender { pid: 0, .. } => "outside its container".to_owned(),
        SignalSender { pid, uid, name: Some(name), .. } => {
            format!("process {pid} ({name}) of user {uid}")
        }
        SignalSender { pid, uid, name: None, .. } => format!("process {pid} of user {uid}"),
    }
}
