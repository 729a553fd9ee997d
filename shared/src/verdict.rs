//! The verdict on a trial's end, with the evidence.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{GpuSample, StopReason};

/// The end of the trial's process as the kernel reported it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TrialExit {
    /// The process exited with this code, 0 to 255.
    Code(u8),
    /// This signal killed the process.
    Signal(u8),
}

impl TrialExit {
    /// Returns the exit code that a shell would show: the code itself, or 128 + signal.
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
    /// The process exited with code 0.
    Succeeded,
    /// The process exited with another code.
    Exit,
    /// A signal that TrialKeeper did not send.
    Signal,
    /// The kernel's out-of-memory killer.
    OomKernel,
    /// The GPU's memory was exhausted.
    OomCuda,
    /// A user requested the stop, or the manager shut down.
    Stopped,
    /// An assessor ended the trial early.
    EarlyStopped,
    /// The platform reclaimed the machine.
    Preempted,
    /// The trial exceeded `maxTrialDuration`.
    Deadline,
    /// No progress for too long.
    Stalled,
    /// A GPU disappeared.
    GpuLost,
    /// A disk is full.
    DiskFull,
    /// The command is not an executable file.
    NotExecutable,
    /// The command does not exist.
    NotFound,
    /// An error of the agent itself.
    KeeperError,
    /// A cause that this build does not know.
    #[serde(other)]
    Other,
}

/// The prospect of a retry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// Nothing failed, or the end was requested.
    None,
    /// The command or its parameters. A retry will fail in the same way.
    UserError,
    /// The environment. A retry elsewhere or later may succeed.
    Transient,
    /// The environment. Only a change to it can help.
    Permanent,
    /// A class that this build does not know.
    #[serde(other)]
    Other,
}

/// The agent's certainty about the cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Confidence {
    /// The kernel reported the cause, or the agent caused the end itself.
    Certain,
    /// The evidence fits no other cause.
    Likely,
    /// A guess from the trial's output.
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
    /// The end of the process. Absent if the process never started, or if this verdict was written before the end and
    /// no process replaced it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit: Option<TrialExit>,
    /// A sentence for the user.
    pub message: String,
    /// The reason for the stop, if a stop was requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop: Option<StopReason>,
    /// The trial's running time, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    /// The evidence for the cause.
    #[serde(default)]
    pub evidence: Evidence,
}

/// The evidence of a verdict. An absent value was not observed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Evidence {
    /// Last lines of standard output, at most a few KiB. Invalid UTF-8 is shown as U+FFFD.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub stdout_tail: String,
    /// Last lines of standard error, in the same form.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub stderr_tail: String,
    /// Number of processes that the kernel killed for memory during the trial (`memory.events`, end minus start).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oom_kills: Option<u64>,
    /// Highest memory use of the trial's process tree in any sample, in bytes. Shared pages count once for each
    /// process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_peak_bytes: Option<u64>,
    /// Highest memory use of the control group since its creation, in bytes, page cache included. A container's group
    /// contains only the trial and its agent; elsewhere the group may be the whole machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup_memory_peak_bytes: Option<u64>,
    /// The container's memory limit, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_limit_bytes: Option<u64>,
    /// The last reading of each GPU.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<GpuSample>,
    /// The idle time of each GPU, in milliseconds, by UUID or else by index. A period counts if the samples at its
    /// beginning and end both show an idle GPU.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub gpu_idle_ms: BTreeMap<String, u64>,
    /// Processes that outlived the trial's own process and were ended, or that were killed with it at the end of the
    /// grace. Each is `pid name`; a long list is cut off, with the number of the remaining processes. `(still there)`
    /// marks a process that survived SIGKILL.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub leftovers: Vec<String>,
    /// Raw wait status from `waitpid`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_status: Option<i32>,
    /// The sender of the signal that made the agent end the trial, or that the agent forwarded and that killed the
    /// trial.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal_sender: Option<SignalSender>,
    /// The platform's reason and message for removing the trial's machine. Filled in by the manager.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub platform: Option<String>,
}

/// The sender of a signal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignalSender {
    /// Process id as the agent sees it; 0 for a process outside the agent's container.
    pub pid: u32,
    /// User id.
    pub uid: u32,
    /// Name of the sender's command, if the process still existed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// `true` if the kernel sent the signal: a key was pressed or the terminal was closed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub kernel: bool,
}
