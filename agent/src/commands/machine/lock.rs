//! The locks that identify running agents.

use std::fs::{File, OpenOptions};
use std::io::Read as _;
use std::path::Path;
use std::thread;
use std::time::Duration;

use nix::fcntl::{Flock, FlockArg};
use nix::unistd::Pid;

/// The maximum time from an agent's start to its lock.
pub(super) const LOCK_TIMEOUT: Duration = Duration::from_secs(10);
/// The interval at which a lock is checked.
pub(super) const LOCK_INTERVAL: Duration = Duration::from_millis(200);

/// Waits between two checks of a lock, because no event announces its release.
#[expect(clippy::disallowed_methods, reason = "a helper's thread: no trial waits for it")]
pub(super) fn wait_for_lock_interval() {
    thread::sleep(LOCK_INTERVAL);
}

/// The state of an agent's lock.
pub(super) enum LockHolder {
    /// A running agent holds the lock.
    Agent { pid: Pid, attempt: String, file: File },
    /// No agent is running.
    Free,
}

pub(super) fn find_holder(path: &Path) -> LockHolder {
    let Ok(file) = OpenOptions::new().read(true).write(true).open(path) else {
        return LockHolder::Free;
    };
    let Err((mut file, _)) = Flock::lock(file, FlockArg::LockExclusiveNonblock) else {
        return LockHolder::Free;
    };
    let mut text = String::new();
    drop(file.read_to_string(&mut text));
    let mut lines = text.lines().map(str::trim);
    // 0, 1 and negative ids denote groups or the system.
    let pid = lines.next().and_then(|line| line.parse().ok()).filter(|pid| *pid > 1);
    match (pid, lines.next()) {
        (Some(pid), Some(attempt)) => {
            LockHolder::Agent { pid: Pid::from_raw(pid), attempt: attempt.to_owned(), file }
        }
        _ => LockHolder::Free,
    }
}
