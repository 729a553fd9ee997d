//! The only place in the program that waits for processes, including orphans.
//!
//! As PID 1 or child subreaper, the agent inherits every orphan of the trial's tree and must reap it. A second waiter
//! would steal exit statuses. So the agent starts each of its own processes with [`Reaper::spawn`], which returns a
//! channel for the exit status. `tokio::process` is not used at all.
//!
//! `rustix` reads the wait status here instead of `nix`. The `waitpid` of `nix` fails for a process that a real-time
//! signal killed, and so loses the status permanently.

use std::collections::HashMap;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::unistd::Pid;
use rustix::process::{WaitId, WaitIdOptions, WaitIdStatus, WaitOptions};
use tokio::sync::oneshot;

/// The role of a child process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChildRole {
    /// The trial's own process.
    Trial,
    /// A tool of the agent, such as a GPU probe. It is not part of the trial's tree.
    Helper,
}

/// A handle to the table of children. All clones share the table.
#[derive(Debug, Clone, Default)]
pub struct Reaper {
    table: Arc<Mutex<HashMap<u32, ChildEntry>>>,
}

#[derive(Debug)]
struct ChildEntry {
    role: ChildRole,
    exit_sender: oneshot::Sender<ExitStatus>,
    /// The signal that stopped the child, until it is read.
    stop_signal: Option<i32>,
}

/// The wait status of the trial's own process; -1 until it has ended. Once reaped, the process has no status any more,
/// and the program that takes the agent's place needs it.
static TRIAL_STATUS: AtomicI32 = AtomicI32::new(-1);

/// Returns the wait status of the trial's own process, if it has ended. Async-signal-safe.
pub fn trial_status() -> Option<i32> {
    Some(TRIAL_STATUS.load(Ordering::Acquire)).filter(|status| *status >= 0)
}

impl Reaper {
    /// Makes the agent the parent of the orphans of the trial's tree. As PID 1 it already is.
    pub fn adopt_orphans() -> Result<(), io::Error> {
        if std::process::id() == 1 {
            return Ok(());
        }
        nix::sys::prctl::set_child_subreaper(true).map_err(io::Error::from)
    }

    /// Starts a child. The receiver gets its exit status.
    pub fn spawn(
        &self,
        command: &mut Command,
        role: ChildRole,
    ) -> Result<(Child, oneshot::Receiver<ExitStatus>), io::Error> {
        let mut child = None;
        let (_, exit) = self.spawn_with(role, || {
            let spawned = child.insert(command.spawn()?);
            Ok(Pid::from_raw(spawned.id().cast_signed()))
        })?;
        Ok((child.expect("it was started"), exit))
    }

    /// Starts a child with `start`. The child is reaped as for [`Self::spawn`]. If `start` fails, it must have reaped
    /// its child.
    pub fn spawn_with(
        &self,
        role: ChildRole,
        start: impl FnOnce() -> Result<Pid, io::Error>,
    ) -> Result<(Pid, oneshot::Receiver<ExitStatus>), io::Error> {
        let (exit_sender, exit) = oneshot::channel();
        // Locked during the start: a child that ends at once must find its entry. The lock also prevents `reap_ended`
        // from reaping a child whose exec failed.
        let mut table = self.lock();
        let pid = start()?;
        table.insert(
            pid.as_raw().unsigned_abs(),
            ChildEntry { role, exit_sender, stop_signal: None },
        );
        Ok((pid, exit))
    }

    /// Adds a child that this process's previous program started.
    pub fn adopt(&self, pid: u32, role: ChildRole) -> oneshot::Receiver<ExitStatus> {
        let (exit_sender, exit) = oneshot::channel();
        self.lock().insert(pid, ChildEntry { role, exit_sender, stop_signal: None });
        exit
    }

    /// Reaps all children that have ended. Returns whether any child other than a helper may still exist.
    pub fn reap_ended(&self) -> bool {
        let mut table = self.lock();
        store_trial_status(&table);
        loop {
            match rustix::process::wait(WaitOptions::NOHANG | WaitOptions::UNTRACED) {
                Ok(Some((pid, status))) => {
                    let pid = pid.as_raw_nonzero().get().unsigned_abs();
                    if let Some(signal) = status.stopping_signal() {
                        if let Some(entry) = table.get_mut(&pid) {
                            entry.stop_signal = Some(signal);
                        }
                    } else if let Some(entry) = table.remove(&pid) {
                        if entry.role == ChildRole::Trial {
                            // The process may have ended after the call of `store_trial_status`.
                            TRIAL_STATUS.store(status.as_raw(), Ordering::Release);
                        }
                        // The receiver of an abandoned helper no longer exists.
                        entry.exit_sender.send(ExitStatus::from_raw(status.as_raw())).ok();
                    }
                }
                Ok(None) => return !has_only_helpers(&table),
                Err(rustix::io::Errno::INTR) => {}
                // ECHILD: there are no children.
                Err(_) => return false,
            }
        }
    }

    /// Returns the signal that stopped child `pid` since the last call, if [`Self::reap_ended`] has seen the stop.
    pub fn take_suspend_signal(&self, pid: u32) -> Option<i32> {
        self.lock().get_mut(&pid)?.stop_signal.take()
    }

    /// Kills a helper and reaps it, unless [`Self::reap_ended`] has reaped it: its pid may then belong to another
    /// process.
    pub fn kill_helper(&self, helper: u32) {
        let mut table = self.lock();
        let pid = i32::try_from(helper).ok().and_then(rustix::process::Pid::from_raw);
        let (Some(_), Some(pid)) = (table.remove(&helper), pid) else { return };
        // An adopted helper may never have existed.
        if rustix::process::waitpid(Some(pid), WaitOptions::NOHANG).is_ok_and(|end| end.is_none()) {
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).ok();
            // The helper is an unreaped child, so this returns as soon as the kernel has killed it.
            while rustix::process::waitpid(Some(pid), WaitOptions::empty())
                .is_err_and(|error| error == rustix::io::Errno::INTR)
            {}
        }
    }

    /// Returns the pids of the agent's own tools.
    pub fn helpers(&self) -> Vec<u32> {
        let table = self.lock();
        table
            .iter()
            .filter(|(_, entry)| entry.role == ChildRole::Helper)
            .map(|(pid, _)| *pid)
            .collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u32, ChildEntry>> {
        // The table is consistent between any two statements, so a panic elsewhere has not damaged it.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reaps a child whose exec failed, within [`Reaper::spawn_with`]. Its exit status is not reported.
pub fn reap_failed_child(child: Pid) {
    let child = rustix::process::Pid::from_raw(child.as_raw());
    while rustix::process::waitpid(child, WaitOptions::empty())
        .is_err_and(|error| error == rustix::io::Errno::INTR)
    {}
}

/// Stores the wait status of the trial's own process before the process is reaped. Otherwise, a thread that fails
/// between the two would lose the status permanently.
fn store_trial_status(table: &HashMap<u32, ChildEntry>) {
    let trial = table.iter().find(|(_, entry)| entry.role == ChildRole::Trial);
    let pid = trial.and_then(|(pid, _)| rustix::process::Pid::from_raw(pid.cast_signed()));
    let Some(pid) = pid else { return };
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    let ended = rustix::process::waitid(WaitId::Pid(pid), options).ok().flatten();
    if let Some(status) = ended.as_ref().and_then(wait_status) {
        TRIAL_STATUS.store(status, Ordering::Release);
    }
}

/// PURE: returns the status in `waitpid`'s format: the code in the second byte, or the signal in the first with a flag
/// for a core dump.
fn wait_status(status: &WaitIdStatus) -> Option<i32> {
    let dumped = if status.dumped() { 0x80 } else { 0 };
    let killed = || Some(status.terminating_signal()? | dumped);
    status.exit_status().map(|code| (code & 0xff) << 8).or_else(killed)
}

/// Returns whether every child is a helper, by the kernel's lists of children (`man 5 proc_tid_children`), which is
/// much cheaper than a walk through `/proc`. No process is reaped during the reads, so the lists can only grow. Returns
/// `false` without children.
fn has_only_helpers(table: &HashMap<u32, ChildEntry>) -> bool {
    let is_helper = |pid: &str| {
        let entry = pid.parse().ok().and_then(|pid: u32| table.get(&pid));
        entry.is_some_and(|entry| entry.role == ChildRole::Helper)
    };
    // An orphan becomes the child of any one thread, not necessarily the main thread.
    let Ok(mut threads) = std::fs::read_dir("/proc/self/task") else { return false };
    !table.is_empty()
        && threads.all(|thread| {
            let children =
                thread.and_then(|thread| std::fs::read_to_string(thread.path().join("children")));
            children.is_ok_and(|children| children.split_ascii_whitespace().all(is_helper))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_status_is_the_same_before_and_after_reaping() {
        for line in
            ["exit 0", "exit 7", "exit 255", "kill -TERM $$", "kill -KILL $$", "kill -64 $$"]
        {
            let mut child = Command::new("sh").args(["-c", line]).spawn().unwrap();
            let pid = rustix::process::Pid::from_raw(child.id().cast_signed()).unwrap();
            let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
            let seen = rustix::process::waitid(WaitId::Pid(pid), options).unwrap().unwrap();
            assert_eq!(wait_status(&seen), Some(child.wait().unwrap().into_raw()), "{line}");
        }
    }
}
