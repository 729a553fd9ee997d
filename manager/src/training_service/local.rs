//! Trials as processes of this machine, each under an agent of its own.
//!
//! An agent outlives the manager on purpose. It runs in a process group of its own, and writes to files and not to
//! pipes of the manager. As long as it lives it holds a lock on its spool. A manager that comes back waits on that lock.
//! Unlike a process id, the lock cannot be another process's.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use async_trait::async_trait;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::process::{Child, Command};
use tokio::sync::oneshot;
use tokio_util::task::TaskTracker;
use tracing::{debug, info, warn};
use trial_protocol::{AttemptId, ExperimentId, TrialJobId, Verdict};

use self::gpus::Gpus;
use super::{
    Adopted, FreeRoom, JobEvent, JobEvents, JobNews, SubmitError, TrainingService, TrialJobSpec,
};
use crate::search::tuner::OptimizeMode;
use crate::token::Secret;
use crate::util::files::{private_folder, write_file};
use crate::util::layout::{ExperimentDir, TrialDir};

pub mod gpus;
mod platform;

/// The time that an agent may take to end after it was asked to: its own budgets (20 s for the trial, 2 s for
/// its output, 5 s to deliver) and a margin. Then it is killed, and its trial with it.
const AGENT_END_TIMEOUT: Duration = Duration::from_secs(35);

/// The exit code of an agent that could not do its work (`docs/exit-codes.md`).
const KEEPER_ERROR: i32 = 125;
/// The time that an agent may take to say what is wrong with its settings.
const ANSWER: Duration = Duration::from_secs(10);
/// The interval at which a lock is tried that cannot be looked at.
const UNSEEN_PAUSE: Duration = Duration::from_secs(1);
/// Stack of a thread that waits for a lock, in bytes.
const LOCK_STACK_BYTES: usize = 64 << 10;
/// The longest verdict that is read, in bytes; usual ones have a few thousand.
const VERDICT_BYTES: u64 = 1 << 20;
/// The variable with which the manager's user says whether agents send their trials' output.
const LOG_COLLECTION: &str = "TRIALKEEPER_LOG_COLLECTION";

/// Runs trials on this machine.
#[derive(Debug, Clone)]
pub struct Local {
    shared: Arc<LocalState>,
}

/// The settings of a [`Local`].
#[derive(Debug)]
pub struct Settings {
    /// The agent program.
    pub agent: PathBuf,
    /// The experiment.
    pub experiment: ExperimentId,
    /// Its folder.
    pub dir: ExperimentDir,
    /// The directory that agents are started in, and trials unless there is an archive.
    pub code_directory: PathBuf,
    /// An archive that each agent unpacks for its trial. `None`: trials share the code directory.
    pub code_archive: Option<PathBuf>,
    /// Name of the metric to optimise, where it is configured.
    pub objective: Option<String>,
    /// Direction of the search, where the file states it.
    pub direction: Option<OptimizeMode>,
    /// Certificate authority of the manager's own certificate, where connections are encrypted.
    pub ca_file: Option<PathBuf>,
    /// Variables of the manager's environment that trials are started without.
    pub secret_variables: Vec<String>,
    /// The secret from which trials' tokens are made, for agents that an earlier manager has started.
    pub secret: Arc<Secret>,
    /// The receiver of news of jobs.
    pub events: JobEvents,
}

/// The reason that a job could not be submitted.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file or folder of the job.
    #[error("cannot write {}", .path.display())]
    Write {
        /// Its path.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The agent program.
    #[error("cannot start the agent {}; build it or name it with --agent", .program.display())]
    StartAgent {
        /// Its path.
        program: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

#[derive(Debug)]
struct LocalState {
    settings: Settings,
    gpus: Mutex<Gpus>,
    /// Process ids of the agents that live, by trial. An id is removed as soon as its process is known
    /// to be gone, long before the kernel gives the number to another.
    agents: Mutex<HashMap<TrialJobId, Pid>>,
    tasks: TaskTracker,
}

impl Local {
    /// Makes the service; nothing is started.
    pub fn new(settings: Settings, gpus: Gpus) -> Self {
        let (agents, gpus) = (Mutex::new(HashMap::new()), Mutex::new(gpus));
        Self { shared: Arc::new(LocalState { settings, gpus, agents, tasks: TaskTracker::new() }) }
    }
}

impl LocalState {
    fn agents(&self) -> MutexGuard<'_, HashMap<TrialJobId, Pid>> {
        self.agents.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn gpus(&self) -> MutexGuard<'_, Gpus> {
        self.gpus.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells that a job is gone, once what its agent could not deliver is delivered.
    async fn tell(&self, event: JobEvent) {
        self.deliver_rest(&event.trial).await;
        self.gpus().give_back(&event.trial);
        // The receiver lives as long as the experiment; after it the news has no use.
        drop(self.settings.events.send(JobNews::Gone(event)));
    }

    fn prepare(&self, job: &TrialJobSpec) -> Result<TrialDir, Error> {
        let dir = self.settings.dir.trial(&job.trial);
        let write = |path: PathBuf, mode: u32, text: &str| {
            write_file(&path, mode, text).map_err(|source| Error::Write { path, source })
        };
        private_folder(dir.path())
            .map_err(|source| Error::Write { path: dir.path().to_owned(), source })?;
        write(dir.parameters(), 0o600, &job.parameter_record.to_string())?;
        write(dir.token(), 0o600, &job.token.0)?;
        Ok(dir)
    }

    fn command(&self, job: &TrialJobSpec, dir: &TrialDir) -> Command {
        let mut command = Command::new(&self.settings.agent);
        for name in &self.settings.secret_variables {
            command.env_remove(name);
        }
        command.arg("run");
        command.args(["--experiment", job.experiment.as_str(), "--trial", job.trial.as_str()]);
        command.args(["--attempt", job.attempt.as_str(), "--platform", "local"]);
        command.args(["--sequence", &job.sequence.to_string()]);
        command.arg("--manager-file").arg(self.settings.dir.manager_url());
        command.arg("--token-file").arg(dir.token());
        command.arg("--output-dir").arg(dir.path());
        // Said, so that no variable of the caller's puts it where it is not looked for.
        command.arg("--spool-dir").arg(dir.spool());
        command.arg("--parameters").arg(dir.parameters());
        command.arg("--log-file").arg(dir.agent_log());
        if let Some(archive) = &self.settings.code_archive {
            command.arg("--code-archive").arg(archive);
            command.arg("--code-base").arg(self.settings.dir.code_base());
        }
        if let Some(objective) = &self.settings.objective {
            command.args(["--objective", objective]);
        }
        if let Some(direction) = self.settings.direction {
            command.args(["--direction", direction.word()]);
        }
        if let Some(ca_file) = &self.settings.ca_file {
            command.arg("--ca-file").arg(ca_file);
        }
        // The pages show it as it grows; it takes as much room again as the files.
        if std::env::var_os(LOG_COLLECTION).is_none() {
            command.args(["--log-collection", "http"]);
        }
        command.args(["--shell", &job.command]);
        command.current_dir(&self.settings.code_directory);
        // A group of its own: the terminal's Ctrl-C is for the manager, which then stops trials politely.
        command.process_group(0);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    /// Why an agent would not start, in its own words. It is asked again, for its settings alone: what it says is not
    /// kept, since its trial's output goes the same way and lies in files already.
    async fn complaint(&self, job: &TrialJobSpec) -> Option<String> {
        let mut command = self.command(job, &self.settings.dir.trial(&job.trial));
        command.arg("--print-config").kill_on_drop(true);
        let output = tokio::time::timeout(ANSWER, command.output()).await.ok()?.ok()?;
        let said = String::from_utf8_lossy(&output.stderr);
        let said = said.lines().next().map(|line| line.trim().trim_start_matches("error: "));
        let said = said.filter(|line| !output.status.success() && !line.is_empty())?;
        Some(format!("the agent did not start: {said}"))
    }

    /// Delivers what an agent left in its spool, if it left anything: usually it did not.
    async fn deliver_rest(&self, trial: &TrialJobId) {
        if left_something(&self.settings.dir.trial(trial).spool()) {
            self.replay(trial).await;
        }
    }

    /// Gives a trial's agent a token that is good from now on. The one that it has may have expired while no manager
    /// ran, or while the clock was wrong: then nothing that it keeps could be delivered any more.
    fn renew_token(&self, trial: &TrialJobId) {
        let Settings { dir, secret, experiment, .. } = &self.settings;
        let token = secret.trial_token(experiment, trial, secret.now_ms());
        if let Err(error) = write_file(&dir.trial(trial).token(), 0o600, &token) {
            warn!(%trial, "its agent goes on with the token that it has; a new one cannot be written: {error}");
        }
    }

    async fn replay(&self, trial: &TrialJobId) {
        self.renew_token(trial);
        let dir = self.settings.dir.trial(trial);
        let mut command = Command::new(&self.settings.agent);
        command.arg("replay").arg(dir.path());
        command.arg("--manager-file").arg(self.settings.dir.manager_url());
        command.arg("--token-file").arg(dir.token());
        if let Some(ca_file) = &self.settings.ca_file {
            command.arg("--ca-file").arg(ca_file);
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        match command.output().await {
            Ok(output) if output.status.success() => {}
            Ok(output) => {
                let said = String::from_utf8_lossy(&output.stderr);
                warn!(%trial, "what the agent left behind could not be delivered: {}", said.trim());
            }
            Err(error) => warn!(%trial, "cannot start the agent to deliver what was left: {error}"),
        }
    }
}

#[async_trait]
impl TrainingService for Local {
    async fn submit(&self, job: &TrialJobSpec) -> Result<(), SubmitError> {
        self.shared.submit(job).map_err(SubmitError::new)
    }

    async fn adopt(&self, trial: &TrialJobId, attempt: &AttemptId) -> Adopted {
        let path = self.shared.settings.dir.trial(trial).agent_lock();
        let gone = || {
            let (trial, attempt) = (trial.clone(), attempt.clone());
            Adopted::Gone(JobEvent::unexplained(trial, attempt))
        };
        match try_lock(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Adopted::Unknown,
            Err(error) => {
                // Who may be running is not started a second time.
                warn!(%trial, "cannot look at {}: {error}; the trial is taken for running until that can be seen", path.display());
                self.shared.take_over(trial, None);
                let shared = Arc::clone(&self.shared);
                let (trial, attempt) = (trial.clone(), attempt.clone());
                // No task waits for its end when the experiment's has come.
                tokio::spawn(async move { watch_unseen(&shared, &path, trial, attempt).await });
                Adopted::Alive
            }
            Ok(Ok(lock)) => {
                drop(lock);
                self.shared.deliver_rest(trial).await;
                gone()
            }
            Ok(Err(file)) => {
                self.shared.take_over(trial, LockHolder::of(&file).pid);
                let shared = Arc::clone(&self.shared);
                let (trial, attempt) = (trial.clone(), attempt.clone());
                let watch = async move { watch_lock(&shared, file, trial, attempt).await };
                self.shared.tasks.spawn(watch);
                Adopted::Alive
            }
        }
    }

    async fn recover(&self, trial: &TrialJobId) {
        self.shared.deliver_rest(trial).await;
    }

    async fn kept_verdict(&self, trial: &TrialJobId, attempt: &AttemptId) -> Option<Verdict> {
        kept_verdict(&self.shared.settings.dir.trial(trial), attempt)
    }

    async fn stop(&self, trial: &TrialJobId) {
        if !self.shared.signal(trial, Signal::SIGTERM) {
            return;
        }
        let shared = Arc::clone(&self.shared);
        let trial = trial.clone();
        self.shared.tasks.spawn(async move {
            let begun = tokio::time::Instant::now();
            while begun.elapsed() < AGENT_END_TIMEOUT {
                tokio::time::sleep(Duration::from_millis(200)).await;
                if !shared.agents().contains_key(&trial) {
                    return;
                }
            }
            warn!(%trial, "the agent did not end within {AGENT_END_TIMEOUT:?} of being asked; killing it");
            shared.signal(&trial, Signal::SIGKILL);
        });
    }

    fn room(&self) -> Option<usize> {
        self.shared.gpus().room()
    }

    fn free_room(&self) -> FreeRoom {
        self.shared.gpus().free().map_or(FreeRoom::Unknown, FreeRoom::Jobs)
    }

    async fn close(&self) {
        self.shared.tasks.close();
        self.shared.tasks.wait().await;
        // An agent that is left may be about to copy from it; one that starts later makes it again.
        if self.shared.settings.code_archive.is_some() && self.shared.agents().is_empty() {
            self.shared.remove_code_base();
        }
    }
}

impl LocalState {
    /// Starts an agent for a job.
    fn submit(self: &Arc<Self>, job: &TrialJobSpec) -> Result<(), Error> {
        let shared = Arc::clone(self);
        let dir = shared.prepare(job)?;
        let mut command = shared.command(job, &dir);
        if let Some(visible) = shared.gpus().take(&job.trial) {
            // The numbers are nvidia-smi's, which goes by the bus; CUDA by itself puts the fastest first (CUDA C++
            // Programming Guide, "CUDA Environment Variables").
            command.env("CUDA_VISIBLE_DEVICES", visible).env("CUDA_DEVICE_ORDER", "PCI_BUS_ID");
        }
        let child = command.spawn().map_err(|source| {
            shared.gpus().give_back(&job.trial);
            Error::StartAgent { program: shared.settings.agent.clone(), source }
        })?;
        if let Some(pid) = pid_of(&child) {
            shared.agents().insert(job.trial.clone(), pid);
        }
        let job = job.clone();
        self.tasks.spawn(async move { watch_child(&shared, child, job).await });
        Ok(())
    }

    fn remove_code_base(&self) {
        let path = self.settings.dir.code_base();
        match std::fs::remove_dir_all(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                debug!("{} is left: {error}", path.display());
            }
            Ok(()) | Err(_) => {}
        }
    }

    /// Takes over a trial that an earlier manager has started.
    fn take_over(&self, trial: &TrialJobId, pid: Option<Pid>) {
        self.renew_token(trial);
        // It was given GPUs by the earlier manager; how many are taken is what counts here.
        self.gpus().take(trial);
        if let Some(pid) = pid {
            self.agents().insert(trial.clone(), pid);
        }
    }

    /// The agent that has the job in hand, if the started one found that another is at work on the very same attempt.
    /// That other agent's manager was killed after it had started the agent and before the agent took the lock.
    fn other_agent(&self, job: &TrialJobSpec) -> Option<(File, Pid)> {
        let file = try_lock(&self.settings.dir.trial(&job.trial).agent_lock()).ok()?.err()?;
        let holder = LockHolder::of(&file);
        let same = holder.attempt.as_deref() == Some(job.attempt.as_str());
        holder.pid.filter(|_| same).map(|pid| (file, pid))
    }

    /// Sends a signal to a trial's agent; `false` if there is none.
    fn signal(&self, trial: &TrialJobId, signal: Signal) -> bool {
        let agents = self.agents();
        let Some(pid) = agents.get(trial) else { return false };
        if let Err(error) = kill(*pid, signal) {
            debug!(%trial, "cannot signal the agent: {error}");
        }
        true
    }
}

async fn watch_child(shared: &LocalState, mut child: Child, job: TrialJobSpec) {
    let status = child.wait().await;
    shared.agents().remove(&job.trial);
    let event = match status {
        Ok(status) => {
            let code = shell_code(status);
            if code == KEEPER_ERROR
                && let Some((file, pid)) = shared.other_agent(&job)
            {
                info!(trial = %job.trial, "an earlier manager had started it already: process {pid}");
                shared.agents().insert(job.trial.clone(), pid);
                return watch_lock(shared, file, job.trial, job.attempt).await;
            }
            let message = if code == KEEPER_ERROR { shared.complaint(&job).await } else { None };
            let TrialJobSpec { trial, attempt, .. } = job;
            JobEvent { exit_code: Some(code), message, ..JobEvent::unexplained(trial, attempt) }
        }
        Err(error) => {
            let message = Some(format!("the agent's end could not be read: {error}"));
            let TrialJobSpec { trial, attempt, .. } = job;
            JobEvent { message, ..JobEvent::unexplained(trial, attempt) }
        }
    };
    shared.tell(event).await;
}

async fn watch_lock(shared: &LocalState, file: File, trial: TrialJobId, attempt: AttemptId) {
    // A thread of its own waits: there is no other notice of a lock being freed. The runtime's are few, and others
    // need them.
    let (freed, wait) = oneshot::channel();
    let thread = thread::Builder::new().name("lock".to_owned()).stack_size(LOCK_STACK_BYTES);
    let started = thread.spawn(move || {
        let lock = Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, error)| error);
        // The receiver is gone with the manager only.
        drop(freed.send(lock));
    });
    match (started, wait.await) {
        (Ok(_), Ok(Ok(lock))) => drop(lock),
        (Ok(_), Ok(Err(error))) => warn!(%trial, "cannot wait for the agent's lock: {error}"),
        (Err(error), _) => warn!(%trial, "cannot wait for the agent's lock: {error}"),
        (Ok(_), Err(_)) => warn!(%trial, "nobody waits for the agent's lock any more"),
    }
    shared.agents().remove(&trial);
    shared.tell(JobEvent::unexplained(trial, attempt)).await;
}

/// Watches an agent whose lock cannot be looked at, until it can.
async fn watch_unseen(shared: &LocalState, path: &Path, trial: TrialJobId, attempt: AttemptId) {
    let held = loop {
        tokio::time::sleep(UNSEEN_PAUSE).await;
        match try_lock(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => break None,
            Err(_) => {}
            Ok(Ok(_)) => break None,
            Ok(Err(file)) => break Some(file),
        }
    };
    if let Some(file) = held {
        if let Some(pid) = LockHolder::of(&file).pid {
            shared.agents().insert(trial.clone(), pid);
        }
        return watch_lock(shared, file, trial, attempt).await;
    }
    shared.tell(JobEvent::unexplained(trial, attempt)).await;
}

/// Returns whether a spool holds reports: an agent that has delivered everything leaves no segment.
fn left_something(spool: &Path) -> bool {
    let attempts = std::fs::read_dir(spool).into_iter().flatten().flatten();
    let mut files =
        attempts.flat_map(|entry| std::fs::read_dir(entry.path()).into_iter().flatten().flatten());
    files.any(|file| file.path().extension().is_some_and(|extension| extension == "seg"))
}

/// The verdict in a trial's folder, if it is this attempt's: its agent took the lock last, and wrote the verdict after
/// that. An agent that died before it could set an earlier attempt's verdict aside left that one there.
fn kept_verdict(dir: &TrialDir, attempt: &AttemptId) -> Option<Verdict> {
    let lock = File::open(dir.agent_lock()).ok()?;
    if LockHolder::of(&lock).attempt.as_deref() != Some(attempt.as_str()) {
        return None;
    }
    let taken_at = lock.metadata().and_then(|lock| lock.modified()).ok()?;
    let mut file = File::open(dir.verdict()).ok()?.take(VERDICT_BYTES);
    if file.get_ref().metadata().and_then(|file| file.modified()).ok()? < taken_at {
        return None;
    }
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).ok()?;
    serde_json::from_slice(&bytes).ok()
}

/// Takes the lock if it is free; gives the open file back if another process holds it.
fn try_lock(path: &Path) -> io::Result<Result<Flock<File>, File>> {
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(lock) => Ok(Ok(lock)),
        Err((file, nix::errno::Errno::EWOULDBLOCK)) => Ok(Err(file)),
        Err((_, error)) => Err(error.into()),
    }
}

/// The holder of an agent's lock, as far as it has said.
struct LockHolder {
    pid: Option<Pid>,
    attempt: Option<String>,
}

impl LockHolder {
    fn of(mut file: &File) -> Self {
        let mut text = String::new();
        // What cannot be read says nothing.
        file.read_to_string(&mut text).ok();
        let mut lines = text.lines().map(str::trim);
        let pid = lines.next().and_then(|line| line.parse().ok());
        // 0 and negative ids would name groups.
        let pid = pid.filter(|pid| *pid > 1).map(Pid::from_raw);
        Self { pid, attempt: lines.next().map(str::to_owned) }
    }
}

fn pid_of(child: &Child) -> Option<Pid> {
    child.id().and_then(|id| i32::try_from(id).ok()).map(Pid::from_raw)
}

fn shell_code(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

#[cfg(test)]
mod tests;
