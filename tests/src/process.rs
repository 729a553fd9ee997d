//! A started program. Threads read its output while it runs, so it never blocks on a full pipe.

use std::io::Read;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use serde_json::Value;

use crate::{WAIT_TIMEOUT, http_get, wait_for};

/// A running program. Dropping it kills the program.
#[derive(Debug)]
pub struct RunningProgram {
    what: String,
    child: Child,
    stdout: OutputCollector,
    stderr: OutputCollector,
}

/// The exit code and the whole output of a program.
#[derive(Debug)]
pub struct FinishedProgram {
    /// Exit code; `None` if a signal killed it.
    pub code: Option<i32>,
    /// Standard output.
    pub stdout: Vec<u8>,
    /// Standard error, as text.
    pub stderr: String,
}

#[derive(Debug)]
struct OutputCollector {
    bytes: Arc<Mutex<Vec<u8>>>,
    reader: JoinHandle<()>,
}

impl OutputCollector {
    fn start(mut source: impl Read + Send + 'static) -> Self {
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&bytes);
        let reader = std::thread::spawn(move || {
            let mut chunk = vec![0; 64 * 1024];
            while let Ok(length @ 1..) = source.read(&mut chunk) {
                sink.lock().expect("no other thread panics").extend_from_slice(&chunk[..length]);
            }
        });
        Self { bytes, reader }
    }

    fn bytes_so_far(&self) -> Vec<u8> {
        self.bytes.lock().expect("no other thread panics").clone()
    }
}

impl RunningProgram {
    pub(crate) fn start(command: &mut Command) -> Self {
        let what = format!("{command:?}");
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {what}: {error}"));
        let stdout = OutputCollector::start(child.stdout.take().expect("the stream is piped"));
        let stderr = OutputCollector::start(child.stderr.take().expect("the stream is piped"));
        Self { what, child, stdout, stderr }
    }

    /// The process id.
    pub fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().try_into().expect("a process id is a positive i32"))
    }

    /// Standard output so far.
    pub fn stdout(&self) -> Vec<u8> {
        self.stdout.bytes_so_far()
    }

    /// Standard error so far, as text.
    pub fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.stderr.bytes_so_far()).into_owned()
    }

    /// Waits until standard error contains these words.
    pub fn wait_for_stderr(&self, words: &str) {
        wait_for(words, WAIT_TIMEOUT, || self.stderr().contains(words).then_some(()));
    }

    /// Returns the id of the experiment and the URL of its manager, once the manager has printed them.
    fn experiment(&self) -> Option<(String, String)> {
        let stderr = self.stderr();
        let mut words = stderr.lines().find(|line| line.starts_with("experiment "))?.split(' ');
        Some((words.nth(1)?.to_owned(), words.next_back()?.to_owned()))
    }

    /// Waits for the id of the manager's experiment.
    pub fn wait_for_experiment_id(&self) -> String {
        wait_for("the experiment's id", WAIT_TIMEOUT, || self.experiment()).0
    }

    /// Waits for the URL of the manager.
    pub fn wait_for_manager_url(&self) -> String {
        wait_for("the manager's URL", WAIT_TIMEOUT, || self.experiment()).1
    }

    /// Returns a page or an answer of the manager, once it answers with 200.
    pub fn read_page(&self, path: &str) -> Option<String> {
        let (status, body) = http_get(&self.experiment()?.1, path)?;
        (status == 200).then_some(body)
    }

    /// Returns an answer of the manager's API, once it answers with 200.
    pub fn read_api(&self, path: &str) -> Option<Value> {
        Some(serde_json::from_str(&self.read_page(path)?).expect("the API answers with JSON"))
    }

    /// Sends a signal to the process alone.
    pub fn signal(&self, signal: Signal) {
        kill(self.pid(), signal)
            .unwrap_or_else(|error| panic!("{signal} to {}: {error}", self.what));
    }

    /// Sends a signal to the process group that the process leads, as a terminal does on Ctrl-C. The command
    /// must have been started with `process_group(0)`.
    pub fn signal_group(&self, signal: Signal) {
        killpg(self.pid(), signal)
            .unwrap_or_else(|error| panic!("{signal} to the group of {}: {error}", self.what));
    }

    /// Returns `true` until the process has ended.
    pub fn is_running(&mut self) -> bool {
        self.try_wait().is_none()
    }

    fn try_wait(&mut self) -> Option<ExitStatus> {
        self.child
            .try_wait()
            .unwrap_or_else(|error| panic!("cannot wait for {}: {error}", self.what))
    }

    /// Waits for the end of the process and of its output.
    pub fn finish(mut self, bound: Duration) -> FinishedProgram {
        let what = format!("the end of {}", self.what);
        let status = wait_for(&what, bound, || self.try_wait());
        let what = format!("the end of the output of {}", self.what);
        wait_for(&what, bound, || {
            (self.stdout.reader.is_finished() && self.stderr.reader.is_finished()).then_some(())
        });
        FinishedProgram { code: status.code(), stdout: self.stdout(), stderr: self.stderr() }
    }
}

impl Drop for RunningProgram {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let stdout = String::from_utf8_lossy(&self.stdout.bytes_so_far()).into_owned();
            #[expect(clippy::print_stderr, reason = "the output explains the failure")]
            {
                eprintln!("output of {}:\n{stdout}{}", self.what, self.stderr());
            }
        }
        // Both calls fail only if the process has ended.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
