//! The end of attempts that the manager has given up while this machine was out of its reach, so that others may have replaced
//! them. The manager is answered when none of them runs.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use serde_json::{Value, json};

use super::fence;
use super::job::Job;
use super::lock::{LOCK_INTERVAL, LOCK_TIMEOUT, pause};
use super::{Refusal, invalid};

/// The time that a fenced agent has to end politely: shorter than after a cancel, since the attempt may run elsewhere.
const FENCE_GRACE: Duration = Duration::from_secs(5);
/// The time that a killed agent may take to let go of its lock.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);

/// Fences the attempts of `params`, and returns when none of them runs.
pub(super) fn give_up(root: &Path, params: &Value) -> Result<Value, Refusal> {
    let keys = params["attempts"].as_array().ok_or_else(|| invalid("attempts"))?;
    let jobs = keys.iter().map(|key| Job::of(root, &json!({"key": key})));
    let jobs = jobs.collect::<Result<Vec<Job>, Refusal>>()?;
    // A full disk must not save an attempt from its end: the first error is told after it.
    let written: Vec<io::Result<bool>> =
        jobs.iter().map(|job| fence::raise(root, &job.attempt)).collect();
    let run = |(_, written): &(&Job, &io::Result<bool>)| !matches!(written, Ok(false));
    let running: Vec<&Job> = jobs.iter().zip(&written).filter(run).map(|(job, _)| job).collect();
    await_locks(&running);
    signal(&running, Signal::SIGTERM, FENCE_GRACE);
    signal(&running, Signal::SIGKILL, KILL_TIMEOUT);
    if let Some(job) = running.iter().find(|job| job.lives().is_some()) {
        let message = format!("the attempt {} does not end", job.attempt);
        return Err(Refusal { code: -32002, message });
    }
    written.into_iter().collect::<io::Result<Vec<bool>>>()?;
    for job in running {
        fence::settle(root, &job.attempt)?;
    }
    Ok(json!({}))
}

/// Waits for agents that were started a moment ago and do not hold their locks yet.
fn await_locks(jobs: &[&Job]) {
    for _ in 0..LOCK_TIMEOUT.as_millis() / LOCK_INTERVAL.as_millis() {
        if !jobs.iter().any(|job| job.lives().is_none() && is_starting(job)) {
            return;
        }
        pause();
    }
}

/// Returns whether an attempt was begun a moment ago and has not held its lock.
fn is_starting(job: &Job) -> bool {
    let written = |path: PathBuf| std::fs::metadata(path).and_then(|file| file.modified()).ok();
    // The fence was written just now, by the same clock.
    let Some((begun, fenced)) =
        written(job.begun()).zip(written(fence::path(&job.root, &job.attempt)))
    else {
        return false;
    };
    let age = fenced.duration_since(begun).unwrap_or_default();
    let said = std::fs::read_to_string(job.lock_file()).unwrap_or_default();
    age < LOCK_TIMEOUT && said.lines().nth(1).map(str::trim) != Some(job.attempt.as_str())
}

/// Signals the agents that live, and waits until they are gone or `limit` has passed.
fn signal(jobs: &[&Job], signal: Signal, limit: Duration) {
    for pid in jobs.iter().filter_map(|job| job.lives()) {
        // One that has just ended is no error.
        kill(pid, signal).ok();
    }
    for _ in 0..limit.as_millis() / LOCK_INTERVAL.as_millis() {
        if jobs.iter().all(|job| job.lives().is_none()) {
            return;
        }
        pause();
    }
}
