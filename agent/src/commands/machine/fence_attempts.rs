//! Ends attempts that the manager gave up while it could not reach this machine, because other attempts may have
//! replaced them. The manager gets its answer when none of them is running.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use serde_json::{Value, json};

use super::fence;
use super::job::Job;
use super::lock::{LOCK_INTERVAL, LOCK_TIMEOUT, wait_for_lock_interval};
use super::{Refusal, invalid_params};

/// The time from TERM to KILL for a fenced agent. It is shorter than after a cancellation, because the attempt may run
/// elsewhere.
const FENCE_GRACE: Duration = Duration::from_secs(5);
/// The maximum time from KILL to the release of the agent's lock.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);

/// Fences the attempts in `params`, and returns when none of them is running.
pub(super) fn fence_attempts(root: &Path, params: &Value) -> Result<Value, Refusal> {
    let keys = params["attempts"].as_array().ok_or_else(|| invalid_params("attempts"))?;
    let jobs = keys.iter().map(|key| Job::from_params(root, &json!({"key": key})));
    let jobs = jobs.collect::<Result<Vec<Job>, Refusal>>()?;
    // A full disk must not prevent the end of an attempt. The first error is therefore returned afterwards.
    let written: Vec<io::Result<bool>> =
        jobs.iter().map(|job| fence::create_fence(root, &job.attempt)).collect();
    let run = |(_, written): &(&Job, &io::Result<bool>)| !matches!(written, Ok(false));
    let running: Vec<&Job> = jobs.iter().zip(&written).filter(run).map(|(job, _)| job).collect();
    await_locks(&running);
    signal_agents(&running, Signal::SIGTERM, FENCE_GRACE);
    signal_agents(&running, Signal::SIGKILL, KILL_TIMEOUT);
    if let Some(job) = running.iter().find(|job| job.running_pid().is_some()) {
        let message = format!("the attempt {} does not end", job.attempt);
        return Err(Refusal { code: -32002, message });
    }
    written.into_iter().collect::<io::Result<Vec<bool>>>()?;
    for job in running {
        fence::record_end(root, &job.attempt)?;
    }
    Ok(json!({}))
}

/// Waits for agents that were just started and do not hold their locks yet.
fn await_locks(jobs: &[&Job]) {
    for _ in 0..LOCK_TIMEOUT.as_millis() / LOCK_INTERVAL.as_millis() {
        if !jobs.iter().any(|job| job.running_pid().is_none() && is_starting(job)) {
            return;
        }
        wait_for_lock_interval();
    }
}

/// Returns whether an attempt was just started and has not held its lock yet.
fn is_starting(job: &Job) -> bool {
    let written = |path: PathBuf| std::fs::metadata(path).and_then(|file| file.modified()).ok();
    // The fence was just written, so its time comes from the same clock.
    let Some((begun, fenced)) =
        written(job.start_record()).zip(written(fence::fence_path(&job.root, &job.attempt)))
    else {
        return false;
    };
    let age = fenced.duration_since(begun).unwrap_or_default();
    let lock_text = std::fs::read_to_string(job.lock_file()).unwrap_or_default();
    age < LOCK_TIMEOUT && lock_text.lines().nth(1).map(str::trim) != Some(job.attempt.as_str())
}

/// Signals the running agents, and waits until they have ended or `limit` has passed.
fn signal_agents(jobs: &[&Job], signal: Signal, limit: Duration) {
    for pid in jobs.iter().filter_map(|job| job.running_pid()) {
        // Ignored: the agent may have just ended.
        kill(pid, signal).ok();
    }
    for _ in 0..limit.as_millis() / LOCK_INTERVAL.as_millis() {
        if jobs.iter().all(|job| job.running_pid().is_none()) {
            return;
        }
        wait_for_lock_interval();
    }
}
