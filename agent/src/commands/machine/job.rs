//! An attempt of a trial on this machine. It is started, adopted or cancelled, and its end is recognised by its agent's
//! lock.

use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use trial_protocol::{AttemptId, ExperimentId, TrialJobId};

use super::fence;
use super::files::{create_private_dir, write_file, write_files};
use super::gpu_locks;
use super::lock::{LOCK_INTERVAL, LOCK_TIMEOUT, LockHolder, find_holder, wait_for_lock_interval};
use super::{DETACHED_ARGUMENT, MACHINE_SUBCOMMAND, Refusal, invalid_params, send_message};
use crate::trial::guard::OWN_PROGRAM;

/// The maximum time from TERM to the agent's end.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(35);

/// An attempt of a trial and its folder.
#[derive(Clone)]
pub(super) struct Job {
    pub(super) root: PathBuf,
    dir: PathBuf,
    key: Value,
    pub(super) attempt: String,
}

impl Job {
    pub(super) fn from_params(root: &Path, params: &Value) -> Result<Self, Refusal> {
        let text = |name: &str| params["key"][name].as_str().ok_or_else(|| invalid_params(name));
        // The ids are used as file names.
        ExperimentId::new(text("experiment")?).map_err(|_| invalid_params("experiment"))?;
        let trial = TrialJobId::new(text("trial")?).map_err(|_| invalid_params("trial"))?;
        let attempt = AttemptId::new(text("attempt")?).map_err(|_| invalid_params("attempt"))?;
        let dir = root.join("trials").join(trial.as_str());
        let (root, key) = (root.to_owned(), params["key"].clone());
        Ok(Self { root, dir, key, attempt: attempt.as_str().to_owned() })
    }

    pub(super) fn lock_file(&self) -> PathBuf {
        self.dir.join("spool/lock")
    }

    /// Returns the file which records that this attempt was started.
    pub(super) fn start_record(&self) -> PathBuf {
        self.dir.join(format!("begun-{}", self.attempt))
    }

    pub(super) fn submit(self, params: &Value) -> Result<Value, Refusal> {
        if let LockHolder::Agent { attempt, file, .. } = find_holder(&self.lock_file())
            && attempt == self.attempt
        {
            self.watch_lock(file);
            return Ok(json!({"created": false}));
        }
        if self.start_record().exists() {
            thread::spawn(move || self.handle_unlocked());
            return Ok(json!({"created": false}));
        }
        create_private_dir(&self.dir)?;
        write_files(&self.dir, &params["files"])?;
        let mut command = self.agent_command(params)?;
        let gate = fence::permit_start(&self.root, &self.attempt)?;
        let gpus = gpu_locks::lock_gpus(params)?;
        write_file(&self.start_record(), "")?;
        let child = command.spawn().inspect_err(|_| drop(fs::remove_file(self.start_record())))?;
        drop((gate, gpus));
        thread::spawn(move || self.wait_for_child(child));
        Ok(json!({"created": true}))
    }

    fn agent_command(&self, params: &Value) -> Result<Command, Refusal> {
        let mut command = Command::new(OWN_PROGRAM);
        command.args([MACHINE_SUBCOMMAND, DETACHED_ARGUMENT]);
        for word in params["args"].as_array().ok_or_else(|| invalid_params("args"))? {
            let name = word["name"].as_str().unwrap_or_default();
            match (word.as_str(), word["in"].as_str()) {
                (Some(text), _) => command.arg(text),
                (None, Some("shared")) => command.arg(self.root.join(name)),
                (None, Some("job")) => command.arg(self.dir.join(name)),
                _ => return Err(invalid_params("args")),
            };
        }
        for (name, value) in params["environment"].as_object().into_iter().flatten() {
            command.env(name, value.as_str().ok_or_else(|| invalid_params("environment"))?);
        }
        command.current_dir(&self.dir);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Ok(command)
    }

    pub(super) fn adopt(self, params: &Value) -> Result<Value, Refusal> {
        let phase = match find_holder(&self.lock_file()) {
            LockHolder::Agent { attempt, file, .. } if attempt == self.attempt => {
                write_files(&self.dir, &params["files"])?;
                self.watch_lock(file);
                "running"
            }
            LockHolder::Agent { .. } | LockHolder::Free if self.start_record().exists() => {
                write_files(&self.dir, &params["files"])?;
                thread::spawn(move || self.handle_unlocked());
                "waiting"
            }
            LockHolder::Agent { .. } | LockHolder::Free => "unknown",
        };
        Ok(json!({"phase": phase}))
    }

    /// Asks the agent to end, and kills it if it does not.
    pub(super) fn cancel(self) -> Value {
        let LockHolder::Agent { attempt, pid, .. } = find_holder(&self.lock_file()) else {
            return json!({"known": false});
        };
        if attempt != self.attempt {
            return json!({"known": false});
        }
        // Ignored: the agent may have just ended.
        kill(pid, Signal::SIGTERM).ok();
        thread::spawn(move || {
            for _ in 0..CANCEL_TIMEOUT.as_millis() / LOCK_INTERVAL.as_millis() {
                wait_for_lock_interval();
                if self.running_pid().is_none() {
                    return;
                }
            }
            if let Some(pid) = self.running_pid() {
                kill(pid, Signal::SIGKILL).ok();
            }
        });
        json!({"known": true})
    }

    pub(super) fn running_pid(&self) -> Option<Pid> {
        match find_holder(&self.lock_file()) {
            LockHolder::Agent { attempt, pid, .. } if attempt == self.attempt => Some(pid),
            LockHolder::Agent { .. } | LockHolder::Free => None,
        }
    }

    /// Handles a started attempt without a lock. It has ended, or an earlier helper has just started it and it is about
    /// to take the lock.
    fn handle_unlocked(self) {
        for _ in 0..LOCK_TIMEOUT.as_millis() / LOCK_INTERVAL.as_millis() {
            if let LockHolder::Agent { attempt, file, .. } = find_holder(&self.lock_file())
                && attempt == self.attempt
            {
                return self.watch_lock(file);
            }
            let lock_text = fs::read_to_string(self.lock_file()).unwrap_or_default();
            if lock_text.lines().nth(1).map(str::trim) == Some(self.attempt.as_str()) {
                break;
            }
            wait_for_lock_interval();
        }
        self.report_end(None);
    }

    fn wait_for_child(self, mut child: Child) {
        let status = child.wait().ok();
        let code = status.map(|status| {
            status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default())
        });
        self.report_end(code);
    }

    fn watch_lock(self, file: File) {
        thread::spawn(move || {
            // An error means that the file and the agent are gone.
            drop(Flock::lock(file, FlockArg::LockExclusive));
            self.report_end(None);
        });
    }

    /// Reports the end of the attempt, after delivering the remaining reports to the manager.
    fn report_end(self, code: Option<i32>) {
        let spool = self.dir.join("spool");
        if has_undelivered_reports(&spool) {
            self.replay_reports();
        }
        let left = if has_undelivered_reports(&spool) { "left" } else { "delivered" };
        let mut params = json!({"key": self.key, "reason": "unknown", "spool": left});
        if let Some(code) = code {
            params["exit"] = json!({"code": code});
            params["reason"] = Value::from("exit");
        }
        send_message(&json!({"jsonrpc": "2.0", "method": "gone", "params": params}));
    }

    fn replay_reports(&self) {
        let mut command = Command::new(OWN_PROGRAM);
        command.arg("replay").arg(&self.dir);
        command.arg("--manager-file").arg(self.root.join("manager.url"));
        command.arg("--token-file").arg(self.dir.join("token"));
        let ca_file = self.root.join("ca.pem");
        if ca_file.exists() {
            command.arg("--ca-file").arg(ca_file);
        }
        command.stdin(Stdio::null()).stdout(Stdio::null());
        // Undelivered reports are still in the spool, which the helper reports.
        drop(command.status());
    }
}

/// Returns whether a spool contains undelivered reports.
fn has_undelivered_reports(spool: &Path) -> bool {
    let attempts = fs::read_dir(spool).into_iter().flatten().flatten();
    let mut files =
        attempts.flat_map(|entry| fs::read_dir(entry.path()).into_iter().flatten().flatten());
    files.any(|file| file.path().extension().is_some_and(|extension| extension == "seg"))
}
