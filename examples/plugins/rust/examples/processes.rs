//! A training service whose jobs are processes of this machine. It is the shortest complete service.
//!
//! `trainingService: {platform: plugin, command: [target/debug/examples/processes]}`. `platform: local` has
//! more features. The setting `jobs` is the number of jobs that a hybrid search may run here at a time.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use trialkeeper_service::{Gone, Job, ServiceError, Setup, State, TrainingService, serve};

/// A shell script that becomes the agent as soon as its pid is recorded. If this process dies before that, `read` fails
/// and the job never starts. So no job can start unrecorded, and then start again.
const SCRIPT: &str = r#"read -r _ && exec "$@" </dev/null"#;

/// The maximum time that an agent takes from its start to its lock.
const START_TIMEOUT: Duration = Duration::from_secs(30);

struct Processes {
    /// The jobs that this process has started, by their handles.
    children: Mutex<HashMap<String, Child>>,
    jobs: Option<u64>,
}

impl Processes {
    fn new(setup: &Setup) -> Result<Self, ServiceError> {
        let jobs = &setup.settings["jobs"];
        if !jobs.is_null() && !jobs.is_u64() {
            return Err(ServiceError::Settings(format!("settings.jobs: {jobs} is not a number")));
        }
        Ok(Self { children: Mutex::default(), jobs: jobs.as_u64() })
    }

    fn state_of(&self, handle: &str, job: &Job) -> State {
        let mut children = self.children.lock().expect("no other thread panics");
        match children.get_mut(handle).map(Child::try_wait) {
            Some(Ok(Some(status))) => State::Gone(Gone::of(status)),
            Some(_) => State::Running,
            // An earlier process of this service has started the job.
            None if is_process_of(handle, job) => State::Running,
            None => State::Gone(Gone::unknown()),
        }
    }
}

impl TrainingService for Processes {
    fn name(&self) -> &'static str {
        "processes"
    }

    fn poll_interval(&self) -> Duration {
        Duration::from_millis(200)
    }

    fn start(&self, job: &Job) -> Result<String, ServiceError> {
        let mut command = Command::new("sh");
        command.args(["-c", SCRIPT, "sh"]).args(&job.argv).current_dir(&job.folder);
        // A process group of its own, because the job outlives this process.
        let child = command.stdin(Stdio::piped()).process_group(0).spawn();
        let mut child = child.map_err(transient)?;
        let handle = child.id().to_string();
        let shell = child.stdin.take();
        self.children.lock().expect("no other thread panics").insert(handle.clone(), child);
        let record = format!("{handle} {}", job.attempt);
        std::fs::write(job.folder.join("process"), record).map_err(transient)?;
        if let Some(mut shell) = shell {
            shell.write_all(b"start\n").map_err(transient)?;
        }
        Ok(handle)
    }

    fn find(&self, job: &Job) -> Result<Option<String>, ServiceError> {
        let Some(pid) = recorded_pid(&job.folder.join("process"), &job.attempt) else {
            return Ok(None);
        };
        let end = Instant::now() + START_TIMEOUT;
        // The agent's lock contains its pid and its attempt, also after the agent's end.
        while recorded_pid(&job.folder.join("spool/lock"), &job.attempt).is_none() {
            if !Path::new("/proc").join(&pid).exists() || Instant::now() > end {
                return Ok(None);
            }
            thread::park_timeout(Duration::from_millis(10));
        }
        Ok(Some(pid))
    }

    fn stop(&self, handle: &str, job: &Job, force: bool) -> Result<(), ServiceError> {
        if let Some(pid) = handle.parse().ok().filter(|_| is_process_of(handle, job)) {
            let signal = if force { Signal::SIGKILL } else { Signal::SIGTERM };
            // Ignored: the process may have ended.
            kill(Pid::from_raw(pid), signal).ok();
        }
        Ok(())
    }

    fn poll(&self, jobs: &BTreeMap<String, Job>) -> Result<BTreeMap<String, State>, ServiceError> {
        let state = |(handle, job): (&String, &Job)| (handle.clone(), self.state_of(handle, job));
        Ok(jobs.iter().map(state).collect())
    }

    fn room(&self, living: usize) -> Option<u64> {
        Some(self.jobs?.saturating_sub(u64::try_from(living).unwrap_or(u64::MAX)))
    }
}

/// Returns `true` if a process is a job's shell or agent. The agent may have no lock yet, and the pid may be reused.
fn is_process_of(pid: &str, job: &Job) -> bool {
    let words = std::fs::read(Path::new("/proc").join(pid).join("cmdline")).unwrap_or_default();
    let has = |text: &str| words.split(|byte| *byte == 0).any(|word| word == text.as_bytes());
    has(&job.attempt) && job.argv.last().is_some_and(|last| has(last))
}

/// Returns the process id in a file with the text `PID ATTEMPT …`. `None`: the file is absent, or of another attempt.
fn recorded_pid(file: &Path, attempt: &str) -> Option<String> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let mut words = text.split_whitespace();
    let pid = words.next()?;
    (words.next() == Some(attempt)).then(|| pid.to_owned())
}

#[expect(clippy::needless_pass_by_value, reason = "the argument of `map_err`")]
fn transient(error: io::Error) -> ServiceError {
    ServiceError::Transient(error.to_string())
}

fn main() -> ExitCode {
    serve(Processes::new)
}
