//! PURE: the measured part of a verdict: memory figures, and the evidence.

use trial_protocol::{CgroupSample, Evidence};

use super::{Observations, TrialEnd, phrases};
use crate::util::numbers::BYTES_PER_MIB;

/// The maximum size of each stream's tail in the evidence, in bytes.
pub const EVIDENCE_TAIL_BYTES: usize = 4 * 1024;

/// The memory use, in percent of the limit, from which a kill is attributed to the out-of-memory killer if there is no
/// counter.
const NEAR_LIMIT_PERCENT: u64 = 95;

/// Returns the number of processes that the kernel killed when memory ran out during the trial.
pub(super) fn oom_kills(observed: &Observations) -> Option<u64> {
    let counter = |sample: &Option<CgroupSample>| sample.as_ref()?.oom_kills;
    let after = counter(&observed.cgroup_after)?;
    Some(after.saturating_sub(counter(&observed.cgroup_before)?))
}

fn memory_limit(observed: &Observations) -> Option<u64> {
    let limit = |sample: &Option<CgroupSample>| sample.as_ref()?.memory_limit_bytes;
    limit(&observed.cgroup_after).or_else(|| limit(&observed.cgroup_before))
}

fn cgroup_peak(observed: &Observations) -> Option<u64> {
    observed.cgroup_after.as_ref()?.memory_peak_bytes
}

pub(super) fn is_near_limit(observed: &Observations) -> bool {
    let now = observed.cgroup_after.as_ref().and_then(|cgroup| cgroup.memory_bytes);
    is_near(cgroup_peak(observed).or(observed.process_peak_bytes).max(now), observed)
}

/// Returns whether the currently held memory is near the limit. The peak is unsuitable: it includes the page cache,
/// which fills up to the limit in any trial that reads much.
pub(super) fn is_near_limit_now(observed: &Observations) -> bool {
    is_near(observed.working_set_bytes.or(observed.process_peak_bytes), observed)
}

fn is_near(used: Option<u64>, observed: &Observations) -> bool {
    used.zip(memory_limit(observed)).is_some_and(|(used, limit)| {
        u128::from(used) * 100 >= u128::from(limit) * u128::from(NEAR_LIMIT_PERCENT)
    })
}

pub(super) fn memory_figures(observed: &Observations) -> String {
    let mib = |bytes: u64| bytes / BYTES_PER_MIB;
    // The limit is the control group's, so the value compared with it must be too.
    match (cgroup_peak(observed), observed.process_peak_bytes, memory_limit(observed)) {
        (Some(peak), _, Some(limit)) => {
            format!(" (its container used up to {} of {} MiB)", mib(peak), mib(limit))
        }
        (None, Some(peak), Some(limit)) => {
            format!(" (it used up to {} of {} MiB)", mib(peak), mib(limit))
        }
        (None, None, Some(limit)) => format!(" (its limit is {} MiB)", mib(limit)),
        (_, Some(peak), None) => format!(" (it used up to {} MiB)", mib(peak)),
        (_, None, None) => String::new(),
    }
}

/// Returns the exception or the last line of standard error, or else of standard output, for the end of a sentence.
pub(super) fn last_output(observed: &Observations) -> String {
    let tails = [&observed.stderr_tail, &observed.stdout_tail];
    let of = |find: fn(&[u8]) -> Option<String>| tails.iter().find_map(|tail| find(tail));
    let (kind, line) = match (of(phrases::find_exception), of(phrases::last_line)) {
        (Some(line), _) => ("error", line),
        (None, Some(line)) => ("output", line),
        (None, None) => return String::new(),
    };
    format!("; its last {kind} was {line:?}")
}

pub(super) fn evidence(observed: &Observations) -> Evidence {
    let wait_status = match observed.end {
        TrialEnd::Exited { wait_status, .. } => wait_status,
        TrialEnd::Running
        | TrialEnd::NotFound { .. }
        | TrialEnd::NotExecutable { .. }
        | TrialEnd::StoppedBefore { .. }
        | TrialEnd::AgentFailed { .. } => None,
    };
    Evidence {
        stdout_tail: phrases::last_lines_of(&observed.stdout_tail, EVIDENCE_TAIL_BYTES),
        stderr_tail: phrases::last_lines_of(&observed.stderr_tail, EVIDENCE_TAIL_BYTES),
        oom_kills: oom_kills(observed),
        memory_peak_bytes: observed.process_peak_bytes,
        cgroup_memory_peak_bytes: cgroup_peak(observed),
        memory_limit_bytes: memory_limit(observed),
        gpus: observed.gpus.clone(),
        gpu_idle_ms: observed.gpu_idle_ms.clone(),
        leftovers: observed.leftovers.names(),
        wait_status,
        signal_sender: observed.sender.clone(),
        platform: None,
    }
}
