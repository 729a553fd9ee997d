//! Fences: attempts that the manager has given up while this machine was out of its reach, so that others may have replaced
//! them. A fenced attempt never starts here, and one that runs is ended before the manager is answered.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::{Signal, kill};
use serde_json::{Value, json};

use super::files::{folder, write_file};
use super::job::Job;
use super::lock::{LOCK_INTERVAL, LOCK_TIMEOUT, pause};
use super::{Refusal, invalid};

/// The folder of the fences.
const FENCES: &str = "fenced";
/// The file whose lock orders fences and starts, of this process and of one that an earlier connection has left.
const GATE: &str = "gate";
/// The word in the fence of an attempt that does not run.
const OVER: &str = "over\n";
/// The time that a fenced agent has to end politely: shorter than after a cancel, since the attempt may run elsewhere.
const FENCE_GRACE: Duration = Duration::from_secs(5);
/// The time that a killed agent may take to let go of its lock.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);

/// Fences the attempts of `params`, and returns when none of them runs.
pub(super) fn fence(root: &Path, params: &Value) -> Result<Value, Refusal> {
    let keys = params["attempts"].as_array().ok_or_else(|| invalid("attempts"))?;
    let jobs = keys.iter().map(|key| Job::of(root, &json!({"key": key})));
    let jobs = jobs.collect::<Result<Vec<Job>, Refusal>>()?;
    // A full disk must not save an attempt from its end: the first error is told after it.
    let written: Vec<io::Result<bool>> = jobs.iter().map(write_fence).collect();
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
        write_file(&path(job), OVER)?;
    }
    Ok(json!({}))
}

/// Lets an attempt start, unless it is fenced: until the lock is dropped no fence is raised.
pub(super) fn pass(job: &Job) -> Result<Flock<File>, Refusal> {
    let gate = gate(&job.root)?;
    if path(job).exists() {
        let message = "the manager has given this attempt up".to_owned();
        return Err(Refusal { code: -32003, message });
    }
    Ok(gate)
}

/// Writes a fence; `false` if it stands and its attempt is over.
fn write_fence(job: &Job) -> io::Result<bool> {
    let path = path(job);
    if fs::read_to_string(&path).is_ok_and(|text| text == OVER) {
        return Ok(false);
    }
    folder(&job.root.join(FENCES))?;
    let _gate = gate(&job.root)?;
    write_file(&path, "")?;
    Ok(true)
}

fn path(job: &Job) -> PathBuf {
    job.root.join(FENCES).join(&job.attempt)
}

fn gate(root: &Path) -> io::Result<Flock<File>> {
    let mut options = OpenOptions::new();
    let file = options.write(true).create(true).truncate(false).mode(0o600);
    let file = file.open(root.join(GATE))?;
    Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, error)| error.into())
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
    let written = |path: PathBuf| fs::metadata(path).and_then(|file| file.modified()).ok();
    // The fence was written just now, by the same clock.
    let Some((begun, fenced)) = written(job.begun()).zip(written(path(job))) else { return false };
    let age = fenced.duration_since(begun).unwrap_or_default();
    let said = fs::read_to_string(job.lock_file()).unwrap_or_default();
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
