//! PURE: the party that requested a stop, and the conclusion from it.

use trial_protocol::{Cause, Class, Confidence, SignalSender, StopReason, TrialExit};

use super::{Conclusion, Observations, signal_name};

/// A request to stop the trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stop {
    /// The party that requested it.
    pub by: StopBy,
    /// The last signal that the agent sent before the trial ended. `None`: the trial ended before any was
    /// sent, and so not because of it.
    pub signal: Option<u8>,
}

/// The party that requested a trial's end.
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
    /// The manager's reason, if it asked.
    pub(super) fn reason(self) -> Option<StopReason> {
        match self.by {
            StopBy::Manager(reason) => Some(reason),
            StopBy::Signal(_) | StopBy::Stalled(_) | StopBy::GpuIdle(_) | StopBy::GpuHang(_) => {
                None
            }
        }
    }
}

/// The trial ended after this agent had signalled it.
pub(super) fn stopped(
    observed: &Observations,
    by: StopBy,
    signal: u8,
    exit: TrialExit,
) -> Conclusion {
    let (cause, class, what) = request(observed, by);
    let how = match exit {
        TrialExit::Code(0) => "it then exited with code 0".to_owned(),
        TrialExit::Code(code) => format!("it then exited with code {code}"),
        TrialExit::Signal(9) if signal == 9 => "it had to be killed (SIGKILL)".to_owned(),
        TrialExit::Signal(by) => format!("it ended by {}", signal_name(by)),
    };
    // A trial that ends well right after the signal may have been done anyway.
    let confidence = match exit {
        TrialExit::Code(0) => Confidence::Likely,
        TrialExit::Code(_) | TrialExit::Signal(_) => Confidence::Certain,
    };
    Conclusion { cause, class, confidence, message: format!("{what}; {how}.") }
}

/// Returns the cause and the class of a stop request, and a sentence about it.
fn request(observed: &Observations, by: StopBy) -> (Cause, Class, String) {
    match by {
        StopBy::Manager(reason) => {
            let (cause, class, what) = manager_request(reason);
            (cause, class, what.to_owned())
        }
        StopBy::Signal(2) => {
            (Cause::Stopped, Class::None, "Somebody interrupted the trial".to_owned())
        }
        // A deleted pod, a drained node, a batch system at its limit: all of them say only TERM.
        StopBy::Signal(received) => {
            let from = observed.sender.as_ref().map_or_else(|| "outside".to_owned(), named);
            let what = format!("{} reached trialkeeper from {from}", signal_name(received));
            (Cause::Stopped, Class::Transient, what)
        }
        StopBy::Stalled(silent_ms) => {
            let what =
                format!("The trial made no progress for {} s and was ended", silent_ms / 1_000);
            (Cause::Stalled, Class::Transient, what)
        }
        // The same again would keep them idle again.
        StopBy::GpuIdle(idle_ms) => {
            let what = format!(
                "No GPU of the trial's had any work for {} s and it was ended (--stop-on-gpu-idle): it may have waited \
                 for its data, or need no GPU",
                idle_ms / 1_000
            );
            (Cause::Stalled, Class::UserError, what)
        }
        StopBy::GpuHang(hung_ms) => {
            let what = format!(
                "A GPU of the trial's was fully used at little power for {} s without a word from the trial, and it was \
                 ended (--stop-on-gpu-hang): a collective may have waited for a process that was gone",
                hung_ms / 1_000
            );
            (Cause::Stalled, Class::Transient, what)
        }
    }
}

/// Returns the cause, the class and a sentence for a stop by the manager.
fn manager_request(reason: StopReason) -> (Cause, Class, &'static str) {
    let (cause, what) = match reason {
        StopReason::User => (Cause::Stopped, "A person stopped the trial"),
        StopReason::EarlyStop => (Cause::EarlyStopped, "The assessor gave the trial up early"),
        StopReason::Deadline => {
            (Cause::Deadline, "The trial ran longer than maxTrialDuration allows")
        }
        StopReason::Budget => (Cause::Stopped, "The experiment reached its own limit"),
        StopReason::ManagerShutdown => {
            (Cause::Stopped, "The manager went away and left a resumable experiment")
        }
        StopReason::Preempted => (Cause::Preempted, "The platform took the machine back"),
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

/// A sender, for a person.
fn named(sender: &SignalSender) -> String {
    match sender {
        SignalSender { kernel: true, .. } => "the terminal".to_owned(),
        SignalSender { pid: 0, .. } => "outside its container".to_owned(),
        SignalSender { pid, uid, name: Some(name), .. } => {
            format!("process {pid} ({name}) of user {uid}")
        }
        SignalSender { pid, uid, name: None, .. } => format!("process {pid} of user {uid}"),
    }
}
