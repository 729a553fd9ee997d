//! Helpers that start an agent around a shell line, wait for a state, and return how the agent ended.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;
use trial_protocol::Verdict;

/// Generous, because the machine may be busy. A test that passes never waits this long.
const TEST_TIMEOUT: Duration = Duration::from_mins(1);

/// An agent to start, with a directory of its own.
pub(crate) struct TestAgent {
    pub(crate) command: Command,
    pub(crate) dir: TempDir,
}

/// A running agent.
pub(crate) struct RunningAgent {
    child: Child,
    pub(crate) dir: TempDir,
}

/// An agent that has ended.
pub(crate) struct EndedAgent {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
    dir: TempDir,
}

/// Returns a command that starts with no signal ignored, as from an interactive shell. The tests themselves may run
/// with ignored signals: under `nohup`, in a cron job, in the background of a script.
pub(crate) fn with_default_signals(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("env");
    command.arg("--default-signal").arg(program);
    command
}

/// Returns a command that runs `trialkeeper` with no signal ignored.
pub(crate) fn trialkeeper_command() -> Command {
    with_default_signals(env!("CARGO_BIN_EXE_trialkeeper"))
}

impl TestAgent {
    /// Returns `trialkeeper run`, with its output directory as `out` in the current directory.
    pub(crate) fn new(words: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut command = trialkeeper_command();
        command.args(["run", "--output-dir", "out"]).args(words).current_dir(dir.path());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // Variables of the test run itself must not reach the agent.
        for (name, _) in std::env::vars_os() {
            let name_bytes = name.as_encoded_bytes();
            if name_bytes.starts_with(b"TRIALKEEPER_") || name_bytes.ends_with(b"_VISIBLE_DEVICES")
            {
                command.env_remove(name);
            }
        }
        Self { command, dir }
    }

    /// Returns an agent that runs a shell line.
    pub(crate) fn shell(options: &[&str], line: &str) -> Self {
        let words: Vec<&str> = options.iter().copied().chain(["--shell", line]).collect();
        Self::new(&words)
    }

    pub(crate) fn run(self) -> EndedAgent {
        self.start().wait()
    }

    pub(crate) fn start(mut self) -> RunningAgent {
        RunningAgent { child: self.command.spawn().unwrap(), dir: self.dir }
    }
}

impl RunningAgent {
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn send_signal(&self, signal: Signal) {
        send_signal(self.pid(), signal);
    }

    /// Waits until the trial has created the file `name`.
    pub(crate) fn wait_for(self, name: &str) -> Self {
        let path = self.path(name);
        wait_until(name, || path.exists());
        self
    }

    /// Waits for a pid that the trial writes into the file `name`.
    pub(crate) fn wait_for_pid(&self, name: &str) -> u32 {
        let path = self.path(name);
        let read = || fs::read_to_string(&path).ok()?.strip_suffix('\n')?.trim().parse().ok();
        wait_until(name, || read().is_some());
        read().unwrap()
    }

    /// Waits until the agent has ended.
    pub(crate) fn wait(self) -> EndedAgent {
        let (ended, watch_end) = mpsc::channel::<()>();
        let pid = self.pid();
        // An agent that hangs must fail the test, not block it.
        let guard = thread::spawn(move || {
            if watch_end.recv_timeout(TEST_TIMEOUT) == Err(mpsc::RecvTimeoutError::Timeout) {
                send_signal(pid, Signal::SIGKILL);
            }
        });
        let Output { status, stdout, stderr } = self.child.wait_with_output().unwrap();
        drop(ended);
        guard.join().unwrap();
        let stderr = String::from_utf8_lossy(&stderr).into_owned();
        EndedAgent { code: status.code(), stdout, stderr, dir: self.dir }
    }
}

impl EndedAgent {
    pub(crate) fn stdout(&self) -> &str {
        std::str::from_utf8(&self.stdout).unwrap()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn file(&self, name: &str) -> Vec<u8> {
        read_file(&self.path(name))
    }

    pub(crate) fn verdict(&self) -> Verdict {
        serde_json::from_slice(&self.file("out/verdict.json")).unwrap()
    }
}

pub(crate) fn read_file(path: &Path) -> Vec<u8> {
    fs::read(path).unwrap_or_else(|source| panic!("{}: {source}", path.display()))
}

pub(crate) fn send_signal(pid: u32, signal: Signal) {
    kill(Pid::from_raw(i32::try_from(pid).unwrap()), signal).unwrap();
}

/// Returns whether the process is alive. A zombie is not.
pub(crate) fn is_alive(pid: u32) -> bool {
    process_state(pid).is_some_and(|(state, _)| state != 'Z')
}

/// Returns the state and the parent of a process.
pub(crate) fn process_state(pid: u32) -> Option<(char, u32)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}

/// Returns the children of a process, with their states.
pub(crate) fn children(parent: u32) -> Vec<(u32, char)> {
    let pids = fs::read_dir("/proc").unwrap().flatten();
    pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(|pid| {
            process_state(pid).filter(|(_, of)| *of == parent).map(|(state, _)| (pid, state))
        })
        .collect()
}

/// Waits for a state instead of a fixed time.
pub(crate) fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let step = Duration::from_millis(5);
    for _ in 0..TEST_TIMEOUT.as_millis() / step.as_millis() {
        if is_so() {
            return;
        }
        std::thread::park_timeout(step);
    }
    panic!("waited {TEST_TIMEOUT:?} for: {what}");
}
