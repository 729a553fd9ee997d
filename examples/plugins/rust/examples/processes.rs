//! A training service whose jobs are processes of this machine. It is the shortest complete service.
//!
//! `trainingService: {platform: plugin, command: [target/debug/examples/processes]}`. `platform: local` has
//! more features. The setting `jobs` is the number of jobs that a hybrid search may run here at a time.

use std::collections::{BTreeMap, HashMap};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use trialkeeper_service::{
    Gone, Job, ServiceError, Setup, State, TrainingService, agent_lives, serve,
};

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
        let status = children.get_mut(handle).map(Child::try_wait);
        match status {
            // The job was started twice because the first agent did not hold its lock yet. The second agent
            // has ended because of the lock.
            Some(Ok(Some(_))) if agent_lives(&job.folder) => {
                children.remove(handle);
                State::Running
            }
            Some(Ok(Some(status))) => State::Gone(Gone::of(status)),
            Some(_) => State::Running,
            // An earlier process of this service has started the job.
            None if agent_lives(&job.folder) => State::Running,
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
        let mut command = Command::new(&job.argv[0]);
        command.args(&job.argv[1..]).current_dir(&job.folder).stdin(Stdio::null());
        // A process group of its own, because the job outlives this process.
        let child = command.process_group(0).spawn();
        let child = child.map_err(|error| ServiceError::Transient(error.to_string()))?;
        let handle = child.id().to_string();
        self.children.lock().expect("no other thread panics").insert(handle.clone(), child);
        Ok(handle)
    }

    fn find(&self, job: &Job) -> Result<Option<String>, ServiceError> {
        // The lock file contains the agent's process id and attempt, also after the agent's end.
        let lock = std::fs::read_to_string(job.folder.join("spool/lock")).unwrap_or_default();
        let mut words = lock.split_whitespace();
        let handle = words.next().map(str::to_owned);
        Ok(handle.filter(|_| words.next() == Some(job.attempt.as_str())))
    }

    fn stop(&self, handle: &str, job: &Job, force: bool) -> Result<(), ServiceError> {
        // The lock file contains the agent that runs the trial.
        let agent = self.find(job)?.unwrap_or_else(|| handle.to_owned());
        if let Some(pid) = agent.parse().ok().filter(|_| agent_lives(&job.folder)) {
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

fn main() -> ExitCode {
    serve(Processes::new)
}
