//! PURE: the measured side of a verdict: memory figures, and the evidence that goes with the conclusion.

use trial_protocol::{CgroupSample, Evidence};

use super::{End, Known, phrases};

/// Most of each stream's tail that the evidence keeps, in bytes.
pub const EVIDENCE_TAIL_BYTES: usize = 4 * 1024;

/// Memory use over which a kill without a counter is taken for the out-of-memory killer, as a share of the
/// limit.
const NEAR_LIMIT_PERCENT: u64 = 95;

/// Processes killed for memory during the trial.
pub(super) fn oom_kills(known: &Known) -> Option<u64> {
    let counter = |sample: &Option<CgroupSample>| sample.as_ref()?.oom_kills;
    let after = counter(&known.cgroup_after)?;
    Some(after.saturating_sub(counter(&known.cgroup_before)?))
}

fn memory_limit(known: &Known) -> Option<u64> {
    let limit = |sample: &Option<CgroupSample>| sample.as_ref()?.memory_limit_bytes;
    limit(&known.cgroup_after).or_else(|| limit(&known.cgroup_before))
}

fn cgroup_peak(known: &Known) -> Option<u64> {
    known.cgroup_after.as_ref()?.memory_peak_bytes
}

pub(super) fn is_near_limit(known: &Known) -> bool {
    let now = known.cgroup_after.as_ref().and_then(|cgroup| cgroup.memory_bytes);
    is_near(cgroup_peak(known).or(known.process_peak_bytes).max(now), known)
}

/// The same for what is held now: a peak includes page cache, with which any trial reaches its limit that reads much.
pub(super) fn is_near_limit_now(known: &Known) -> bool {
    is_near(known.memory_held_bytes.or(known.process_peak_bytes), known)
}

fn is_near(used: Option<u64>, known: &Known) -> bool {
    used.zip(memory_limit(known)).is_some_and(|(used, limit)| {
        u128::from(used) * 100 >= u128::from(limit) * u128::from(NEAR_LIMIT_PERCENT)
    })
}

pub(super) fn memory_figures(known: &Known) -> String {
    let mib = |bytes: u64| bytes / (1024 * 1024);
    // The limit is the control group's, so what is compared with it must be, too.
    match (cgroup_peak(known), known.process_peak_bytes, memory_limit(known)) {
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

/// The last line of standard error or else output, for the end of a sentence.
pub(super) fn last_words(known: &Known) -> String {
    let tails = [&known.stderr_tail, &known.stdout_tail];
    match tails.iter().find_map(|tail| phrases::last_line(tail)) {
        Some(line) => format!("; its last words were {line:?}"),
        None => String::new(),
    }
}

pub(super) fn evidence(known: &Known) -> Evidence {
    let wait_status = match known.end {
        End::Exited { wait_status, .. } => wait_status,
        End::Running
        | End::NotFound { .. }
        | End::NotExecutable { .. }
        | End::StoppedBefore { .. }
        | End::KeeperFailed { .. } => None,
    };
    Evidence {
        stdout_tail: phrases::tail(&known.stdout_tail, EVIDENCE_TAIL_BYTES),
        stderr_tail: phrases::tail(&known.stderr_tail, EVIDENCE_TAIL_BYTES),
        oom_kills: oom_kills(known),
        memory_peak_bytes: known.process_peak_bytes,
        cgroup_memory_peak_bytes: cgroup_peak(known),
        memory_limit_bytes: memory_limit(known),
        gpus: known.gpus.clone(),
        gpu_idle_ms: known.gpu_idle_ms.clone(),
        leftovers: known.leftovers.names(),
        wait_status,
        signal_sender: known.sender.clone(),
        platform: None,
    }
}
