//! The verdict on a trial's end, with the evidence.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{GpuSample, StopReason};

/// The end of the trial's process as the kernel reported it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TrialExit {
    /// It exited with this code, 0 to 255.
    Code(u8),
    /// This signal killed it.
    Signal(u8),
}

impl TrialExit {
    /// The exit code a shell would show: the code itself, or 128 + signal.
    pub fn shell_code(self) -> u8 {
        match self {
            Self::Code(code) => code,
            Self::Signal(signal) => 128_u8.saturating_add(signal),
        }
    }
}

/// The cause of a trial's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    /// Exit code 0.
    Succeeded,
    /// Another exit code.
    Exit,
    /// A signal whose sender is not TrialKeeper.
    Signal,
    /// The kernel's out-of-memory killer.
    OomKernel,
    /// The GPU's memory did not suffice.
    OomCuda,
    /// A person or the manager's end.
    Stopped,
    /// An assessor.
    EarlyStopped,
    /// The platform took the machine back.
    Preempted,
    /// `maxTrialDuration`.
    Deadline,
    /// No progress for too long.
    Stalled,
    /// A GPU vanished.
    GpuLost,
    /// No space left on a disk.
    DiskFull,
    /// The command is not an executable file.
    NotExecutable,
    /// There is no such command.
    NotFound,
    /// The agent's own fault.
    KeeperError,
    /// A cause that this build does not know.
    #[serde(other)]
    Other,
}

/// The prospect of a retry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// Nothing failed, or the end was wanted.
    None,
    /// The command or its parameters: the same again will fail the same.
    UserError,
    /// The environment: elsewhere or later it may succeed.
    Transient,
    /// The environment, and it will not change by itself.
    Permanent,
    /// A class that this build does not know.
    #[serde(other)]
    Other,
}

/// The agent's certainty about the cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Confidence {
    /// The kernel says so, or the agent did it itself.
    Certain,
    /// The evidence fits and nothing else does.
    Likely,
    /// A guess from the output.
    Possible,
    /// A degree that this build does not know.
    #[serde(other)]
    Other,
}

/// The verdict on a trial's end: the last fact of an attempt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// The cause.
    pub cause: Cause,
    /// The prospect of a retry.
    pub class: Class,
    /// The certainty of that cause.
    pub confidence: Confidence,
    /// The end of the process. Absent if it was never started, or if this verdict was written ahead of the end and no
    /// process lived to replace it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit: Option<TrialExit>,
    /// One sentence for a person.
    pub message: String,
    /// The party that requested the end, if one did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop: Option<StopReason>,
    /// The time that the trial ran, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    /// The grounds of the conclusion.
    #[serde(default)]
    pub evidence: Evidence,
}

/// The grounds of a verdict. Everything absent was not seen.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Evidence {
    /// Last lines of standard output, at most a few KiB, not UTF-8 shown as U+FFFD.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub stdout_tail: String,
    /// Last lines of standard error, likewise.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub stderr_tail: String,
    /// Processes the kernel killed for memory during the trial (`memory.events`, after minus before).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oom_kills: Option<u64>,
    /// Highest memory use of the trial's process tree that a sample showed, in bytes; pages that processes share
    /// count in each.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_peak_bytes: Option<u64>,
    /// Highest memory use of the control group since it was made, in bytes: of everything in it, page cache included.
    /// In a container that is the trial and its keeper, elsewhere it may be a whole machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup_memory_peak_bytes: Option<u64>,
    /// The container's memory limit, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_limit_bytes: Option<u64>,
    /// The last reading of each GPU.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<GpuSample>,
    /// The time that each GPU had nothing to do, in milliseconds, by UUID or else by index: between two samples that both say so.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub gpu_idle_ms: BTreeMap<String, u64>,
    /// Processes that were still there long after the trial's own process had ended, and were ended; or that were
    /// killed with it at the end of the grace. Each as `pid name`; of very many the first, and how many more there
    /// were. A process that even SIGKILL has not ended is followed by `(still there)`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub leftovers: Vec<String>,
    /// Raw wait status as `waitpid` gave it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_status: Option<i32>,
    /// The sender of the signal that made the agent end the trial, or that it passed on and the trial died of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal_sender: Option<SignalSender>,
    /// The platform's words when it took the trial's machine away: its reason and its words. The manager's to fill in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub platform: Option<String>,
}

/// The sender of a signal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignalSender {
    /// Its process id as the agent sees it; 0 for a process outside the agent's container.
    pub pid: u32,
    /// Its user id.
    pub uid: u32,
    /// Its command's name, if it was still there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The kernel sent it: a key was pressed or the terminal was closed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub kernel: bool,
}
