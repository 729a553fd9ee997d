//! A library for training services in Rust.
//!
//! Implement [`TrainingService`] and call [`serve`] in `main`. `examples/processes.rs` is the shortest
//! complete service. The crate implements the protocol (`docs/plugins.md`), keeps a record of each job, and
//! makes requests safe to repeat. It uses the same terms as the Python module `trialkeeper.service`.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

pub use self::job::{Gone, Job, State};
pub use self::server::serve;

mod job;
mod record;
mod server;
mod wire;

/// The data that a service gets at its start.
#[derive(Debug, Clone)]
pub struct Setup {
    /// `trainingService.settings` of the experiment file.
    pub settings: Value,
    /// A folder of this service for this experiment.
    pub state_dir: PathBuf,
    /// The experiment's id.
    pub experiment: String,
    /// The number of GPUs that each trial needs. `None`: not specified.
    pub gpus: Option<u64>,
}

/// The reason that a request failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ServiceError {
    /// The job is refused permanently: the trial fails and is not retried.
    #[error("{0}")]
    Refused(String),
    /// The attempt failed. The next one may succeed.
    #[error("{0}")]
    Transient(String),
    /// The platform has no free capacity: the trial waits. No job was started.
    #[error("{message}")]
    NoRoom {
        /// The message for the user.
        message: String,
        /// The time until the next try. `None`: the manager's default.
        after: Option<Duration>,
    },
    /// The platform does not answer: the trial waits. The job may run. Also return this for an expired token.
    #[error("{message}")]
    Unavailable {
        /// The message for the user.
        message: String,
        /// The time until the next try. `None`: the manager's default.
        after: Option<Duration>,
    },
    /// The settings are invalid: a new experiment is not started.
    #[error("{0}")]
    Settings(String),
}

/// A problem that [`TrainingService::check`] found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The message for the user.
    pub message: String,
    /// If set, trials can run despite the problem.
    pub is_warning: bool,
    /// The path of the invalid setting: `settings.partition`. Empty if the problem is not a setting.
    pub path: String,
    /// The remedy. Empty if there is none.
    pub advice: String,
}

/// Starts, stops and polls jobs. The server calls these methods from several threads.
pub trait TrainingService: Send + Sync + 'static {
    /// Returns the service's name in messages.
    fn name(&self) -> &'static str;

    /// Starts a job and returns its handle. The server calls this once for each attempt, unless
    /// [`Self::find`] returns a handle.
    fn start(&self, job: &Job) -> Result<String, ServiceError>;

    /// Stops a job with a SIGTERM to its agent, or at once with `force`. The server may call this repeatedly,
    /// also after the job's end.
    fn stop(&self, handle: &str, job: &Job, force: bool) -> Result<(), ServiceError>;

    /// Returns the states of jobs by their handles. Leave out jobs whose state is unknown. A missing job or
    /// an error does not end a job.
    fn poll(&self, jobs: &BTreeMap<String, Job>) -> Result<BTreeMap<String, State>, ServiceError>;

    /// Finds a job whose start may have succeeded without a record. Also finds a job that has ended since.
    /// Returns `None` if the job was not started.
    fn find(&self, _job: &Job) -> Result<Option<String>, ServiceError> {
        Ok(None)
    }

    /// Returns the service's version in messages.
    fn version(&self) -> &'static str {
        ""
    }

    /// Returns the interval between two polls.
    fn poll_interval(&self) -> Duration {
        Duration::from_secs(2)
    }

    /// Checks settings and platform for `trial-manager doctor`. It must change nothing.
    fn check(&self) -> Vec<Problem> {
        Vec::new()
    }

    /// Prepares the service. The server calls this in every process before the first job. Returns the path of
    /// the agent program on the jobs' machines.
    fn open(&self, agent: &Path) -> Result<PathBuf, ServiceError> {
        Ok(agent.to_owned())
    }

    /// Returns the number of jobs that can begin now, in addition to the started ones. Of those, `living`
    /// have not ended. `None`: not known at present.
    fn room(&self, _living: usize) -> Option<u64> {
        None
    }

    /// Returns whether a job without free capacity waits in the platform's queue.
    fn queues(&self) -> bool {
        false
    }

    /// Removes the platform's data of an ended job. The server calls this after it recorded the end.
    fn ended(&self, _handle: &str, _job: &Job) -> Result<(), ServiceError> {
        Ok(())
    }

    /// Reads at most `size` bytes of output from a byte offset. An offset behind the end is replaced by the
    /// end. Returns the offset used, too.
    fn output(
        &self,
        job: &Job,
        stream: &str,
        offset: u64,
        size: u64,
    ) -> io::Result<(u64, Vec<u8>)> {
        let mut file = match File::open(job.folder.join(stream)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((0, Vec::new())),
            opened => opened?,
        };
        let offset = offset.min(file.metadata()?.len());
        file.seek(SeekFrom::Start(offset))?;
        let mut bytes = Vec::new();
        file.take(size).read_to_end(&mut bytes)?;
        Ok((offset, bytes))
    }

    /// Removes everything that a job has left on the platform.
    fn clean(&self, _job: &Job) -> Result<(), ServiceError> {
        Ok(())
    }

    /// Releases resources before the process ends. Jobs keep running.
    fn close(&self) {}
}

/// Returns `true` if the agent in a job's folder is running: it holds a lock until its end.
pub fn agent_lives(folder: &Path) -> bool {
    let Ok(lock) = File::open(folder.join("spool/lock")) else { return false };
    matches!(lock.try_lock(), Err(std::fs::TryLockError::WouldBlock))
}
