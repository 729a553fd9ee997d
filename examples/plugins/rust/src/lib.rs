//! A training service of your own in Rust: say how a job is started, stopped and looked at.
//!
//! Implement [`TrainingService`] and call [`serve`] in `main`. `examples/processes.rs` is the shortest whole service.
//! The crate speaks the protocol (`docs/plugins.md`), keeps a record of each job, and makes requests safe to repeat.
//! Its words are those of the Python module `trialkeeper.service`.

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

/// The facts with which a service begins.
#[derive(Debug, Clone)]
pub struct Setup {
    /// `trainingService.settings` of the experiment file.
    pub settings: Value,
    /// A folder of the service's own for the experiment.
    pub state_dir: PathBuf,
    /// The experiment's id.
    pub experiment: String,
}

/// The reason that a request has no result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ServiceError {
    /// The job is refused, and would be again: the trial fails and is not retried.
    #[error("{0}")]
    Refused(String),
    /// The attempt failed; the next one may succeed.
    #[error("{0}")]
    Transient(String),
    /// There is no room just now: the trial waits. Nothing was started.
    #[error("{message}")]
    NoRoom {
        /// For a person.
        message: String,
        /// The time until the next try. `None`: the manager's usual one.
        after: Option<Duration>,
    },
    /// The platform does not answer: the trial waits. The job may run. A token that has expired belongs here.
    #[error("{message}")]
    Unavailable {
        /// For a person.
        message: String,
        /// The time until the next try. `None`: the manager's usual one.
        after: Option<Duration>,
    },
    /// The settings are wrong: a new experiment is not started.
    #[error("{0}")]
    Settings(String),
}

/// A problem that [`TrainingService::check`] has found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The problem, for a person.
    pub message: String,
    /// True if trials can run nevertheless.
    pub is_warning: bool,
    /// The setting that is wrong: `settings.partition`. Empty: none is.
    pub path: String,
    /// The remedy. Empty: there is none to name.
    pub advice: String,
}

/// Starts, stops and looks at jobs. Methods are called from several threads.
pub trait TrainingService: Send + Sync + 'static {
    /// Returns the service's name in messages.
    fn name(&self) -> &'static str;

    /// Starts a job and returns its handle. Called once for each attempt, unless [`Self::find`] finds it.
    fn start(&self, job: &Job) -> Result<String, ServiceError>;

    /// Ends a job: by SIGTERM to the agent, with `force` at once. May be called again, also after the end.
    fn stop(&self, handle: &str, job: &Job, force: bool) -> Result<(), ServiceError>;

    /// Looks at jobs by their handles. A handle that is left out is not known just now, which is no end; nor is an error.
    fn poll(&self, jobs: &BTreeMap<String, Job>) -> Result<BTreeMap<String, State>, ServiceError>;

    /// Looks for a job whose start may have succeeded without a record. It may have ended since. `None`: it was not started.
    fn find(&self, _job: &Job) -> Result<Option<String>, ServiceError> {
        Ok(None)
    }

    /// Returns the version in messages.
    fn version(&self) -> &'static str {
        ""
    }

    /// Returns the interval at which jobs are looked at.
    fn poll_interval(&self) -> Duration {
        Duration::from_secs(2)
    }

    /// Looks at settings and platform, for `trial-manager doctor`. Changes nothing.
    fn check(&self) -> Vec<Problem> {
        Vec::new()
    }

    /// Makes ready. Called in every process before the first job. Returns the agent program as the jobs' machines see it.
    fn open(&self, agent: &Path) -> Result<PathBuf, ServiceError> {
        Ok(agent.to_owned())
    }

    /// Returns how many jobs can begin now beside those that were started, of which `living` have not ended. `None`: not
    /// known just now.
    fn room(&self, _living: usize) -> Option<u64> {
        None
    }

    /// Removes what the platform keeps of a job that has ended. Called once its end is recorded.
    fn ended(&self, _handle: &str, _job: &Job) -> Result<(), ServiceError> {
        Ok(())
    }

    /// Reads output from a byte on, at most `size` bytes. A place behind the end stands for the end. Returns the place, too.
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

    /// Removes what a job has left at the platform.
    fn clean(&self, _job: &Job) -> Result<(), ServiceError> {
        Ok(())
    }

    /// Called before the process ends. Jobs live on.
    fn close(&self) {}
}

/// Returns whether the agent in a job's folder runs: it holds a lock for as long as it lives.
pub fn agent_lives(folder: &Path) -> bool {
    let Ok(lock) = File::open(folder.join("spool/lock")) else { return false };
    matches!(lock.try_lock(), Err(std::fs::TryLockError::WouldBlock))
}
