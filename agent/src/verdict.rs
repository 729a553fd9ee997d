//! PURE: everything known -> why the trial ended.
//!
//! [`conclude`] asks in a fixed order, the surest source first: what this agent did itself, then what the
//! kernel counted, then what the trial said. Nothing that the trial prints can outweigh a counter of the
//! kernel, and a trial that exited with 0 has succeeded whatever it printed.
//!
//! A verdict is also written *ahead* ([`TrialEnd::Running`]): every few seconds, for the case that
//! the kernel ends the agent together with its trial.

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

use evidence::{evidence, is_near_limit, is_near_limit_now, last_words, memory_figures, oom_kills};
use phrases::Hint;
use stop::stopped;

/// Everything that is known about a trial's end. What was not seen is empty or `None`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Observations {
    /// The end of the trial.
    pub end: TrialEnd,
    /// The reason for which this agent ended it.
    pub stop: Option<Stop>,
    /// The sender of the signal that made it end.
    pub sender: Option<SignalSender>,
    /// The time that it ran, in milliseconds.
    pub duration_ms: Option<u64>,
    /// The last bytes of standard output.
    pub stdout_tail: Vec<u8>,
    /// The last bytes of standard error.
    pub stderr_tail: Vec<u8>,
    /// The control group before the trial was started.
    pub cgroup_before: Option<CgroupSample>,
    /// The control group after the end.
    pub cgroup_after: Option<CgroupSample>,
    /// The memory of the control group that cannot simply be dropped, in bytes; asked for while the trial runs.
    pub memory_held_bytes: Option<u64>,
    /// Highest memory use of the process tree that a sample showed, in bytes.
    pub process_peak_bytes: Option<u64>,
    /// The last reading of each GPU.
    pub gpus: Vec<GpuSample>,
    /// The time that each GPU had nothing to do, in milliseconds, by UUID or index.
    pub gpu_idle_ms: BTreeMap<String, u64>,
    /// GPUs that vanished during the trial, by UUID or index.
    pub gpus_lost: Vec<String>,
    /// Processes that were left of it, and what became of them.
    pub leftovers: Leftovers,
}

/// The end of a trial's process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum TrialEnd {
    /// The trial has not ended: the verdict is written ahead.
    #[default]
    Running,
    /// The trial ended by itself or by a signal.
    Exited {
        /// The exit that the kernel reported.
        exit: TrialExit,
        /// Raw wait status.
        wait_status: Option<i32>,
    },
    /// There is no such program.
    NotFound {
        /// As in the command.
        program: String,
    },
    /// The program is there and cannot be executed.
    NotExecutable {
        /// As in the command.
        program: String,
        /// The kernel's error.
        why: String,
    },
    /// The agent was asked to end before it had started the trial.
    StoppedBefore {
        /// The signal that it received.
        signal: u8,
    },
    /// The agent could not start or watch the trial.
    KeeperFailed {
        /// The failure, for the user.
        why: String,
    },
}

/// The part of a verdict that is a conclusion.
struct Conclusion {
    cause: Cause,
    class: Class,
    confidence: Confidence,
    message: String,
}

/// Concludes why the trial ended.
pub fn conclude(observed: &Observations) -> Verdict {
    let exit = match observed.end {
        TrialEnd::Exited { exit, .. } => Some(exit),
        TrialEnd::Running
        | TrialEnd::NotFound { .. }
        | TrialEnd::NotExecutable { .. }
        | TrialEnd::StoppedBefore { .. }
        | TrialEnd::KeeperFailed { .. } => None,
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

/// Returns the conclusion from the trial's end, before anything that it left running is added.
fn conclusion(observed: &Observations) -> Conclusion {
    match &observed.end {
        TrialEnd::Running => written_ahead(observed),
        TrialEnd::Exited { exit, .. } => match observed.stop {
            Some(Stop { by, signal: Some(signal) }) => stopped(observed, by, signal, *exit),
            Some(Stop { signal: None, .. }) | None => exited(observed, *exit),
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
        TrialEnd::KeeperFailed { why } => Conclusion {
            cause: Cause::KeeperError,
            class: Class::Transient,
            confidence: Confidence::Certain,
            message: format!("trialkeeper itself failed: {why}. The trial is not to blame."),
        },
    }
}

/// Returns the fates of the leftovers, a sentence for each way.
fn leftovers_sentence(LeftoverCounts { asked, killed, alive }: LeftoverCounts) -> String {
    let some = |count: usize, one: &str, many: &str, what: &str| match count {
        0 => String::new(),
        1 => format!(" 1 process {one} {what}."),
        _ => format!(" {count} processes {many} {what}."),
    };
    let [started, one, many] = ["that it had started", "of it is", "of it are"];
    [
        some(asked, started, started, "ended when asked to"),
        some(killed, started, started, "had to be killed (SIGKILL)"),
        some(
            alive,
            one,
            many,
            "still there: SIGKILL does not end what hangs in a device or a file system, or is another user's",
        ),
    ]
    .concat()
}

/// The trial ended, and not because of this agent.
fn exited(observed: &Observations, exit: TrialExit) -> Conclusion {
    if exit == TrialExit::Code(0) {
        let message = match oom_kills(observed) {
            Some(kills) if kills > 0 => format!(
                "The trial succeeded, though the kernel killed {kills} of its processes for memory."
            ),
            Some(_) | None => "The trial succeeded.".to_owned(),
        };
        let (class, confidence) = (Class::None, Confidence::Certain);
        return Conclusion { cause: Cause::Succeeded, class, confidence, message };
    }
    oom_kernel(observed, exit)
        .or_else(|| gpu_lost(observed))
        .or_else(|| said(observed, exit))
        .unwrap_or_else(|| plain(observed, exit))
}

/// The kernel's out-of-memory killer, by its counter or by the traces of a kill at the limit.
fn oom_kernel(observed: &Observations, exit: TrialExit) -> Option<Conclusion> {
    let kills = oom_kills(observed);
    let killed = exit.shell_code() == 137;
    let (confidence, what) = match kills {
        Some(kills) if kills > 0 && killed => {
            (Confidence::Certain, "The kernel killed the trial for memory".to_owned())
        }
        Some(kills) if kills > 0 => {
            let what = format!(
                "The kernel killed {kills} of the trial's processes for memory, and {}",
                ended(exit)
            );
            (Confidence::Likely, what)
        }
        // The counter says no: then another process sent the signal.
        Some(_) => return None,
        None if killed && is_near_limit(observed) => {
            let what =
                "The trial was killed when its memory was nearly used up, probably by the kernel";
            (Confidence::Possible, what.to_owned())
        }
        None if !killed && hint(observed, &[Hint::ChildKilled]) == Some(Hint::ChildKilled) => {
            let what = format!(
                "One of the trial's processes was killed, probably for memory, and {}",
                ended(exit)
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

fn gpu_lost(observed: &Observations) -> Option<Conclusion> {
    let (confidence, which) = if observed.gpus_lost.is_empty() {
        hint(observed, &[Hint::GpuLost]).filter(|hint| *hint == Hint::GpuLost)?;
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

/// Returns the conclusion from the trial's own last words.
fn said(observed: &Observations, exit: TrialExit) -> Option<Conclusion> {
    let shell = match exit {
        TrialExit::Code(127) => Some(Hint::NotFound),
        TrialExit::Code(126) => Some(Hint::NotExecutable),
        TrialExit::Code(_) | TrialExit::Signal(_) => None,
    };
    let hint = hint(observed, shell.as_slice())?;
    let confidence = Confidence::Likely;
    match hint {
        Hint::GpuMemory => Some(Conclusion {
            cause: Cause::OomCuda,
            class: Class::UserError,
            confidence,
            message: format!(
                "The GPU's memory did not suffice and {}: use a smaller batch or model, or see whether \
                 another process holds the GPU's memory.",
                ended(exit)
            ),
        }),
        Hint::DiskFull => Some(Conclusion {
            cause: Cause::DiskFull,
            class: Class::Transient,
            confidence,
            message: format!(
                "No space was left on a disk (or in /dev/shm) and {}: make room, or write elsewhere.",
                ended(exit)
            ),
        }),
        Hint::NotFound => Some(Conclusion {
            cause: Cause::NotFound,
            class: Class::UserError,
            confidence,
            message: format!(
                "The shell found no such program{}: check the trial command and the image.",
                last_words(observed)
            ),
        }),
        Hint::NotExecutable => Some(Conclusion {
            cause: Cause::NotExecutable,
            class: Class::UserError,
            confidence,
            message: format!(
                "The shell could not execute the program{}: check its mode, its first line and for which \
                 processor it was built.",
                last_words(observed)
            ),
        }),
        Hint::ChildKilled | Hint::GpuLost => None,
    }
}

/// Returns the hint in the last words, standard error before output: full GPUs and disks, which programs say of nothing
/// else, and what is `also` asked for.
fn hint(observed: &Observations, also: &[Hint]) -> Option<Hint> {
    let asked = [&[Hint::GpuMemory, Hint::DiskFull], also].concat();
    phrases::hint(&observed.stderr_tail, &asked)
        .or_else(|| phrases::hint(&observed.stdout_tail, &asked))
}

/// Nothing but the exit itself is known.
fn plain(observed: &Observations, exit: TrialExit) -> Conclusion {
    let words = last_words(observed);
    match exit {
        TrialExit::Signal(signal) => {
            let (class, advice) = meaning(signal);
            let message = format!(
                "The trial was ended by {}, which trialkeeper did not send{words}: {advice}.",
                signal_name(signal)
            );
            Conclusion { cause: Cause::Signal, class, confidence: Confidence::Certain, message }
        }
        // A shell's way to say that its child was killed.
        TrialExit::Code(code @ 129..=159) => {
            let signal = code - 128;
            let (class, advice) = meaning(signal);
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

/// For the case that no process lives to say more: the trial runs now.
fn written_ahead(observed: &Observations) -> Conclusion {
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
fn meaning(signal: u8) -> (Class, &'static str) {
    match Signal::try_from(i32::from(signal)) {
        Ok(Signal::SIGKILL) => (
            Class::Transient,
            "a process of the trial itself, a person, the platform or an out-of-memory killer outside this container did; \
             the system's and the platform's logs tell",
        ),
        Ok(Signal::SIGTERM | Signal::SIGINT | Signal::SIGHUP | Signal::SIGQUIT) => {
            (Class::Transient, "a person, the platform or the trial itself did")
        }
        Ok(Signal::SIGBUS) => (
            Class::UserError,
            "usually memory shared between processes that is too small; enlarge /dev/shm or use fewer workers",
        ),
        Ok(
            Signal::SIGSEGV | Signal::SIGILL | Signal::SIGFPE | Signal::SIGABRT | Signal::SIGTRAP,
        ) => (Class::UserError, "a native library crashed, or was built for another processor"),
        Ok(Signal::SIGPIPE) => (Class::UserError, "it wrote to a pipe that nobody reads"),
        Ok(Signal::SIGXCPU | Signal::SIGXFSZ) => {
            (Class::Permanent, "a resource limit (ulimit) of its environment was reached")
        }
        Ok(Signal::SIGSYS) => {
            (Class::Permanent, "the container's seccomp profile forbids a system call")
        }
        Ok(_) | Err(_) => (Class::UserError, "the trial or somebody outside did"),
    }
}

fn signal_name(signal: u8) -> String {
    match Signal::try_from(i32::from(signal)) {
        Ok(signal) => signal.as_str().to_owned(),
        Err(_) => format!("signal {signal}"),
    }
}

fn ended(exit: TrialExit) -> String {
    match exit {
        TrialExit::Code(code) => format!("the trial exited with code {code}"),
        TrialExit::Signal(signal) => format!("the trial ended by {}", signal_name(signal)),
    }
}

#[cfg(test)]
mod tests;
