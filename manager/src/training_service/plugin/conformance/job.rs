//! A job of the conformance test, observed through the files in its folder.

use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};

use super::super::wire::AttemptKey;
use super::{SHORT_GRACE, STATE_TIMEOUT};
use crate::util::files::write_file;

/// The interval between checks of the files.
const FILE_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A job of the test.
#[derive(Debug, Clone)]
pub(super) struct ConformanceJob {
    pub(super) key: AttemptKey,
    pub(super) folder: PathBuf,
    pub(super) command: String,
}

impl ConformanceJob {
    /// Opens the gate, so that the job's command can end.
    pub(super) fn open_gate(&self) -> Result<(), String> {
        std::fs::write(self.folder.join("gate"), "").map_err(|error| error.to_string())
    }

    /// Writes the job's files and returns the parameters of `submit`.
    pub(super) fn submit_params(&self) -> Result<Value, String> {
        let failed = |error: std::io::Error| format!("cannot prepare a job: {error}");
        std::fs::create_dir_all(&self.folder).map_err(failed)?;
        let (token, parameters) = (self.folder.join("token"), self.folder.join("parameter.cfg"));
        // The file is replaced as a whole, because the agent of an earlier submission may be reading it.
        write_file(&token, 0o600, "a token").map_err(failed)?;
        write_file(&parameters, 0o600, r#"{"parameter_id": 0, "parameters": {}}"#)
            .map_err(failed)?;
        let key = &self.key;
        let place = |of: &str, name: &str| json!({"in": of, "name": name});
        Ok(json!({
            "key": key,
            "name": format!("tk-{}-{}", key.experiment, key.attempt),
            "sequence": 0,
            "folder": self.folder,
            "args": [
                "run", "--experiment", key.experiment, "--trial", key.trial, "--attempt", key.attempt,
                "--platform", "plugin", "--manager-file", place("shared", "manager.url"),
                "--token-file", place("job", "token"), "--output-dir", place("work", ""),
                "--spool-dir", place("work", "spool"), "--parameters", place("job", "parameter.cfg"),
                "--grace", format!("{}s", SHORT_GRACE.as_secs()), "--flush", "0s", "--shell", self.command,
            ],
            "files": [
                {"name": "token", "path": token, "secret": true},
                {"name": "parameter.cfg", "path": parameters},
            ],
            "resources": {},
            "grace_ms": (SHORT_GRACE * 2).as_millis(),
        }))
    }

    /// Returns the number of starts of the job's command.
    pub(super) fn count_starts(&self) -> usize {
        let text = std::fs::read_to_string(self.folder.join("starts")).unwrap_or_default();
        text.lines().count()
    }

    /// Returns the output of the job's command.
    pub(super) fn output(&self) -> String {
        std::fs::read_to_string(self.folder.join("stdout")).unwrap_or_default()
    }

    pub(super) async fn wait_for_start(&self) -> Result<(), String> {
        wait_until(|| self.count_starts() > 0, "a job was not started").await
    }

    /// Kills the job's agent. Returns false if the agent is no process of this machine.
    pub(super) fn kill_agent(&self) -> bool {
        let lock = std::fs::read_to_string(self.folder.join("spool/lock")).unwrap_or_default();
        let pid = lock.split_whitespace().next().and_then(|pid| pid.parse::<i32>().ok());
        // On another machine, or in a container, the number means another process. The agent has its lock open.
        let path = std::fs::canonicalize(self.folder.join("spool/lock")).unwrap_or_default();
        let is_agent = |pid: &i32| {
            let files = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten();
            files.flatten().any(|file| std::fs::read_link(file.path()).is_ok_and(|it| it == path))
        };
        pid.filter(is_agent).is_some_and(|pid| kill(Pid::from_raw(pid), Signal::SIGKILL).is_ok())
    }

    /// Returns whether the job's agent has ended.
    pub(super) fn has_ended(&self) -> bool {
        self.count_starts() > 0 && !is_locked(&self.folder.join("spool/lock"))
    }

    /// Waits for the job's end for at most `bound`.
    pub(super) async fn wait_for_end_within(&self, bound: Duration) {
        drop(timeout(bound, self.wait_for_end()).await);
    }

    pub(super) async fn wait_for_end(&self) -> Result<(), String> {
        wait_until(|| self.has_ended(), "a job did not end").await
    }
}

async fn wait_until(state: impl Fn() -> bool, otherwise: &str) -> Result<(), String> {
    let until = Instant::now() + STATE_TIMEOUT;
    while !state() {
        if Instant::now() >= until {
            return Err(otherwise.to_owned());
        }
        sleep(FILE_POLL_INTERVAL).await;
    }
    Ok(())
}

/// Returns whether an agent holds its lock.
fn is_locked(path: &Path) -> bool {
    use nix::fcntl::{Flock, FlockArg};
    let Ok(file) = std::fs::File::open(path) else { return false };
    Flock::lock(file, FlockArg::LockExclusiveNonblock).is_err()
}
