//! PURE: concludes the cause of the trial's end from all observations.
//!
//! [`conclude`] uses the sources in a fixed order, the most reliable first: the agent's own actions, then the kernel's
//! counters, then the trial's output. The trial's output never outweighs a counter of the kernel. A trial that exited
//! with 0 has succeeded, whatever it printed.
//!
//! A provisional verdict ([`TrialEnd::Running`]) is written every few seconds while the trial runs, in case the kernel
//! ends the agent together with its trial.

mod evidence;
mod phrases;
mod publish;
mod stop;

pub use evidence::EVIDENCE_TAIL_BYTES;
pub use publish::{
    TERMINATION_MESSAGE_BYTES, exit_code_for_frameworkcontroller, termination_message,
};

pub use stop::{Stop, StopBy};

use std::collections::BTreeMap;

use nix::sys::signal::Signal;
use trial_protocol::{
    Cause, CgroupSample, Class, Confidence, GpuSample, SignalSender, TrialExit, Verdict,
};

use crate::trial::tree::{LeftoverCounts, Leftovers};

use evidence::{
    evidence, is_near_limit, is_near_limit_now, last_output, memory_figures, oom_kills,
};
use phrases::Hint;
use stop::conclude_stop;

/// All observations of a trial's end. Unknown values are empty or `None`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Observations {
    /// The end of the trial.
    pub end: TrialEnd,
    /// The stop by this agent, if there was one.
    pub stop: Option<Stop>,
    /// The sender of the signal that caused the stop.
    pub sender: Option<SignalSender>,
    /// The trial's running time, in milliseconds.
    pub duration_ms: Option<u64>,
    /// The last bytes of standard output.
    pub stdout_tail: Vec<u8>,
    /// The last bytes of standard error.
    pub stderr_tail: Vec<u8>,
    /// `true` if the control group contains no other trial.
    pub is_alone_in_cgroup: bool,
    /// The control group before the trial was started.
    pub cgroup_before: Option<CgroupSample>,
    /// The control group after the end.
    pub cgroup_after: Option<CgroupSample>,
    /// The memory of the control group that the kernel cannot simply drop, in bytes. Read only while the trial runs.
    pub working_set_bytes: Option<u64>,
    /// Highest memory use of the process tree in any sample, in bytes.
    pub process_peak_bytes: Option<u64>,
    /// The last reading of each GPU.
    pub gpus: Vec<GpuSample>,
    /// The idle time of each GPU, in milliseconds, by UUID or index.
    pub gpu_idle_ms: BTreeMap<String, u64>,
    /// GPUs that disappeared during the trial, by UUID or index.
    pub gpus_lost: Vec<String>,
    /// The leftover processes and their ends.
    pub leftovers: Leftovers,
}

/// The end of a trial's process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum TrialEnd {
    /// The trial is running: the verdict is provisional.
    #[default]
    Running,
    /// The trial exited or was ended by a signal.
    Exited {
        /// The exit, as reported by the kernel.
        exit: TrialExit,
        /// Raw wait status.
        wait_status: Option<i32>,
    },
    /// The program does not exist.
    NotFound {
        /// The program, as in the command.
        program: String,
    },
    /// The program exists and cannot be executed.
    NotExecutable {
        /// The program, as in the command.
        program: String,
        /// The kernel's error.
        why: String,
    },
    /// The agent received a signal to stop before it had started the trial.
    StoppedBefore {
        /// The signal.
        signal: u8,
    },
    /// The agent could not start or watch the trial.
    AgentFailed {
        /// The failure, for the user.
        why: String,
    },
}

/// The concluded part of a verdict.
struct Conclusion {
    cause: Cause,
    class: Class,
    confidence: Confidence,
    message: String,
}

/// Concludes the cause of the trial's end.
pub fn conclude(observed: &Observations) -> Verdict {
    let exit = match observed.end {
        TrialEnd::Exited { exit, .. } => Some(exit),
        TrialEnd::Running
        | TrialEnd::NotFound { .. }
        | TrialEnd::NotExecutable { .. }
        | TrialEnd::StoppedBefore { .. }
        | TrialEnd::AgentFailed { .. } => None,
    };
    let mut conclusion = conclusion(observed);
    conclusion.message.push_str(&leftovers_sentence(observed.leftovers.counts()));

    let Conclusion { cause, class, confidence, message } = conclusion;
    let stop = observed.stop.and_then(Stop::reason);
    let evidence = evidence(observed);
    Verdict {
        cause,
        class,
        confidence,
        exit,
        message,
        stop,
        duration_ms: observed.duration_ms,
        evidence,
    }
}

/// Returns the conclusion from the trial's end, without the sentence about leftover processes.
fn conclusion(observed: &Observations) -> Conclusion {
    match &observed.end {
        TrialEnd::Running => conclude_provisionally(observed),
        TrialEnd::Exited { exit, .. } => match observed.stop {
            Some(Stop { by, signal: Some(signal) }) => conclude_stop(observed, by, signal, *exit),
            Some(Stop { signal: None, .. }) | None => conclude_end(observed, *exit),
        },
        TrialEnd::NotFound { program } => Conclusion {
            cause: Cause::NotFound,
            class: Class::UserError,
            confidence: Confidence::Certain,
            message: format!(
                "There is no program {program:?} in this image or on its PATH: check the trial command."
            ),
        },
        TrialEnd::NotExecutable { program, why } => Conclusion {
            cause: Cause::NotExecutable,
            class: Class::UserError,
            confidence: Confidence::Certain,
            message: format!(
                "{program:?} cannot be executed ({why}): check its mode, its first line and for which \
                 processor it was built."
            ),
        },
        TrialEnd::StoppedBefore { signal } => Conclusion {
            cause: Cause::Stopped,
            class: Class::Transient,
            confidence: Confidence::Certain,
            message: format!(
                "{} requested a stop before the trial was started.",
                signal_name(*signal)
            ),
        },
        TrialEnd::AgentFailed { why } => Conclusion {
            cause: Cause::KeeperError,
            class: Class::Transient,
            confidence: Confidence::Certain,
            message: format!("trialkeeper itself failed: {why}. The trial is not to blame."),
        },
    }
}

/// Returns a sentence about the leftover processes for each way in which they ended.
fn leftovers_sentence(LeftoverCounts { terminated, killed, alive }: LeftoverCounts) -> String {
    let some = |count: usize, one: &str, many: &str, what: &str| match count {
        0 => String::new(),
        1 => format!(" 1 leftover process {one}{what}."),
        _ => format!(" {count} leftover processes {many}{what}."),
    };
    [
        some(terminated, "", "", "ended on SIGTERM"),
        some(killed, "", "", "had to be killed (SIGKILL)"),
        some(
            alive,
            "is ",
            "are ",
            "still running: SIGKILL cannot end a process that hangs in a device or a file system, or belongs to another user",
        ),
    ]
    .concat()
}

/// Concludes if the trial ended, and not because of this agent.
fn conclude_end(observed: &Observations, exit: TrialExit) -> Conclusion {
    if exit == TrialExit::Code(0) {
        let message = match oom_kills(observed) {
            Some(kills) if kills > 0 => format!(
                "The trial succeeded, although the kernel killed {kills} of its processes when memory ran out."
            ),
            Some(_) | None => "The trial succeeded.".to_owned(),
        };
        let (class, confidence) = (Class::None, Confidence::Certain);
        return Conclusion { cause: Cause::Succeeded, class, confidence, message };
    }
    conclude_oom_kernel(observed, exit)
        .or_else(|| conclude_gpu_lost(observed))
        .or_else(|| conclude_from_output(observed, exit))
        .unwrap_or_else(|| conclude_from_exit(observed, exit))
}

/// Returns whether the output says that one of the trial's processes was killed.
fn has_killed_child(observed: &Observations) -> bool {
    find_hint(observed, &[Hint::ChildKilled]) == Some(Hint::ChildKilled)
}

/// Concludes that the kernel's out-of-memory killer ended the trial, from its counter or from the signs of a kill at
/// the limit.
fn conclude_oom_kernel(observed: &Observations, exit: TrialExit) -> Option<Conclusion> {
    let kills = oom_kills(observed);
    let killed = exit.shell_code() == 137;
    let (confidence, what) = match kills {
        Some(kills) if kills > 0 && killed => {
            (Confidence::Certain, "The kernel killed the trial when memory ran out".to_owned())
        }
        // Otherwise, the kernel may have killed another trial.
        Some(kills) if kills > 0 && (observed.is_alone_in_cgroup || has_killed_child(observed)) => {
            let what = format!(
                "The kernel killed {kills} of the trial's processes when memory ran out, and {}",
                describe_exit(exit)
            );
            (Confidence::Likely, what)
        }
        // A counter of 0 excludes the kernel, so another process sent the signal.
        Some(_) => return None,
        None if killed && is_near_limit(observed) => {
            let what =
                "The trial was killed when its memory was nearly used up, probably by the kernel";
            (Confidence::Possible, what.to_owned())
        }
        None if !killed && has_killed_child(observed) => {
            let what = format!(
                "One of the trial's processes was killed, probably when memory ran out, and {}",
                describe_exit(exit)
            );
            (Confidence::Possible, what)
        }
        None => return None,
    };
    let message = format!(
        "{what}{}: give it more memory, or use a smaller batch, data set or number of workers.",
        memory_figures(observed)
    );
    Some(Conclusion { cause: Cause::OomKernel, class: Class::Permanent, confidence, message })
}

fn conclude_gpu_lost(observed: &Observations) -> Option<Conclusion> {
    let (confidence, which) = if observed.gpus_lost.is_empty() {
        find_hint(observed, &[Hint::GpuLost]).filter(|hint| *hint == Hint::GpuLost)?;
        (Confidence::Possible, "a GPU".to_owned())
    } else {
        (Confidence::Likely, observed.gpus_lost.join(", "))
    };
    let message = format!(
        "The machine lost {which} during the trial: run it elsewhere, and have the machine's kernel log \
         checked for Xid errors."
    );
    Some(Conclusion { cause: Cause::GpuLost, class: Class::Transient, confidence, message })
}

/// Concludes from the trial's last output.
fn conclude_from_output(observed: &Observations, exit: TrialExit) -> Option<Conclusion> {
    let shell = match exit {
        TrialExit::Code(127) => Some(Hint::NotFound),
        TrialExit::Code(126) => Some(Hint::NotExecutable),
        TrialExit::Code(_) | TrialExit::Signal(_) => None,
    };
    let hint = find_hint(observed, shell.as_slice())?;
    let confidence = Confidence::Likely;
    match hint {
        Hint::GpuMemory => Some(Conclusion {
            cause: Cause::OomCuda,
            class: Class::UserError,
            confidence,
            message: format!(
                "The GPU ran out of memory and {}: use a smaller batch or model, or check whether \
                 another process holds the GPU's memory.",
                describe_exit(exit)
            ),
        }),
        Hint::DiskFull => Some(Conclusion {
            cause: Cause::DiskFull,
            class: Class::Transient,
            confidence,
            message: format!(
                "A disk (or /dev/shm) was full and {}: free some space, or write elsewhere.",
                describe_exit(exit)
            ),
        }),
        Hint::NotFound => Some(Conclusion {
            cause: Cause::NotFound,
            class: Class::UserError,
            confidence,
            message: format!(
                "The shell did not find the program{}: check the trial command, and that the program is installed \
                 where the trial runs.",
                last_output(observed)
            ),
        }),
        Hint::NotExecutable => Some(Conclusion {
            cause: Cause::NotExecutable,
            class: Class::UserError,
            confidence,
            message: format!(
                "The shell could not execute the program{}: check its mode, its first line and for which \
                 processor it was built.",
                last_output(observed)
            ),
        }),
        Hint::ChildKilled | Hint::GpuLost => None,
    }
}

/// Returns the hint in the trial's last output, standard error first. Searches for full GPUs and disks, whose phrases
/// have no other meaning, and for the hints in `also`.
fn find_hint(observed: &Observations, also: &[Hint]) -> Option<Hint> {
    let asked = [&[Hint::GpuMemory, Hint::DiskFull], also].concat();
    phrases::find_hint(&observed.stderr_tail, &asked)
        .or_else(|| phrases::find_hint(&observed.stdout_tail, &asked))
}

/// Concludes from the exit alone.
fn conclude_from_exit(observed: &Observations, exit: TrialExit) -> Conclusion {
    let words = last_output(observed);
    match exit {
        TrialExit::Signal(signal) => {
            let (class, advice) = retry_advice(signal);
            let message = format!(
                "The trial was ended by {}, which trialkeeper did not send{words}: {advice}.",
                signal_name(signal)
            );
            Conclusion { cause: Cause::Signal, class, confidence: Confidence::Certain, message }
        }
        // The exit code with which a shell reports that a signal ended its child.
        TrialExit::Code(code @ 129..=159) => {
            let signal = code - 128;
            let (class, advice) = retry_advice(signal);
            let message = format!(
                "The trial exited with code {code}, which stands for {}{words}: {advice}.",
                signal_name(signal)
            );
            Conclusion { cause: Cause::Signal, class, confidence: Confidence::Likely, message }
        }
        TrialExit::Code(code) => {
            let message = format!("The trial exited with code {code}{words}.");
            let (class, confidence) = (Class::UserError, Confidence::Certain);
            Conclusion { cause: Cause::Exit, class, confidence, message }
        }
    }
}

/// Concludes for the case that no process can write a better verdict.
fn conclude_provisionally(observed: &Observations) -> Conclusion {
    let killed = oom_kills(observed).is_some_and(|kills| kills > 0);
    if killed || is_near_limit_now(observed) {
        let confidence = if killed { Confidence::Likely } else { Confidence::Possible };
        let message = format!(
            "The trial and trialkeeper were ended together, probably by the kernel for memory{}: give the \
             trial more memory, or use a smaller batch, data set or number of workers.",
            memory_figures(observed)
        );
        return Conclusion {
            cause: Cause::OomKernel,
            class: Class::Permanent,
            confidence,
            message,
        };
    }
    Conclusion {
        cause: Cause::Signal,
        class: Class::Transient,
        confidence: Confidence::Possible,
        message: "The trial and trialkeeper were ended together from outside: the machine or the container \
                  went away."
            .to_owned(),
    }
}

/// Returns the prospect of a retry after `signal`, and the remedy.
fn retry_advice(signal: u8) -> (Class, &'static str) {
    match Signal::try_from(i32::from(signal)) {
        Ok(Signal::SIGKILL) => (
            Class::Transient,
            "sent by the trial itself, a user, the platform or an out-of-memory killer outside this container; \
             see the system's and the platform's logs",
        ),
        Ok(Signal::SIGTERM | Signal::SIGINT | Signal::SIGHUP | Signal::SIGQUIT) => {
            (Class::Transient, "sent by a user, the platform or the trial itself")
        }
        Ok(Signal::SIGBUS) => (
            Class::UserError,
            "usually memory shared between processes that is too small; enlarge /dev/shm or use fewer workers",
        ),
        Ok(
            Signal::SIGSEGV | Signal::SIGILL | Signal::SIGFPE | Signal::SIGABRT | Signal::SIGTRAP,
        ) => (Class::UserError, "a native library crashed, or was built for another processor"),
        Ok(Signal::SIGPIPE) => (Class::UserError, "it wrote to a pipe without a reader"),
        Ok(Signal::SIGXCPU | Signal::SIGXFSZ) => {
            (Class::Permanent, "a resource limit (ulimit) of its environment was reached")
        }
        Ok(Signal::SIGSYS) => {
            (Class::Permanent, "the container's seccomp profile forbids a system call")
        }
        Ok(_) | Err(_) => (Class::UserError, "sent by the trial or from outside"),
    }
}

fn signal_name(signal: u8) -> String {
    match Signal::try_from(i32::from(signal)) {
        Ok(signal) => signal.as_str().to_owned(),
        Err(_) => format!("signal {signal}"),
    }
}

fn describe_exit(exit: TrialExit) -> String {
    match exit {
        TrialExit::Code(code) => format!("the trial exited with code {code}"),
        TrialExit::Signal(signal) => format!("{} ended the trial", signal_name(signal)),
    }
}

#[cfg(test)]
mod tests;
