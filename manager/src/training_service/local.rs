//! Runs trials as processes of this machine, each under its own agent.
//!
//! An agent outlives the manager on purpose. It runs in its own process group and writes to files rather than to pipes
//! of the manager. While it runs, it holds a lock on its spool, and a resumed manager waits for that lock. Unlike a
//! process id, the lock cannot belong to an unrelated process.

use std::collections::HashMap;
use std::fs::File;
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
use super::agent_arguments::{AgentArguments, AgentPath, AgentSettings, redirects_output};
use super::{
    AGENT_END_TIMEOUT, AGENT_ERROR_CODE, AdoptionResult, FreeRoom, JobEnd, JobEndEvent, JobNews,
    JobNewsSender, SubmitError, TrainingService, TrialJobSpec,
};
use crate::token::Secret;
use crate::util::files::{LockOutcome, create_private_folder, try_lock, write_file};
use crate::util::layout::{ExperimentDir, TrialDir};

mod clean;
pub mod gpus;
mod platform;

/// The time limit for an agent's report of a problem with its settings.
const SETTINGS_CHECK_TIMEOUT: Duration = Duration::from_secs(10);
/// The interval between tries to examine an unreadable lock.
const LOCK_RETRY_PAUSE: Duration = Duration::from_secs(1);
/// The stack size of a thread that waits for a lock, in bytes.
const LOCK_STACK_BYTES: usize = 64 << 10;
/// The longest verdict that is read, in bytes. Usual verdicts have a few thousand.
const MAX_VERDICT_BYTES: u64 = 1 << 20;
/// The variable with which the manager's user chooses whether agents send their trials' output.
const LOG_COLLECTION_VARIABLE: &str = "TRIALKEEPER_LOG_COLLECTION";
/// The variable with which the manager's user chooses the channel of NNI's SDK.
const SDK_CHANNEL_VARIABLE: &str = "TRIALKEEPER_SDK_CHANNEL";

/// Runs trials on this machine.
#[derive(Debug, Clone)]
pub struct Local {
    state: Arc<LocalState>,
}

/// The settings of a [`Local`].
#[derive(Debug)]
pub struct Settings {
    /// The agent program.
    pub agent: PathBuf,
    /// The experiment.
    pub experiment: ExperimentId,
    /// The folder of the experiment.
    pub dir: ExperimentDir,
    /// The working directory of agents, and of trials unless there is an archive.
    pub code_directory: PathBuf,
    /// An archive that each agent unpacks for its trial. `None`: trials share the code directory.
    pub code_archive: Option<PathBuf>,
    /// The settings of the agents.
    pub agents: AgentSettings,
    /// The certificate authority of the manager's own certificate, if connections are encrypted.
    pub ca_file: Option<PathBuf>,
    /// Variables of the manager's environment that trials do not inherit.
    pub secret_variables: Vec<String>,
    /// The secret from which trials' tokens are derived, for agents that an earlier manager started.
    pub secret: Arc<Secret>,
    /// The receiver of news of jobs.
    pub events: JobNewsSender,
}

/// A reason why a job could not be submitted.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file or folder of the job cannot be written.
    #[error("cannot write {}", .path.display())]
    Write {
        /// The path of the file or folder.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The agent program cannot be started.
    #[error("cannot start the agent {}{}", .program.display(), start_advice(.source))]
    StartAgent {
        /// The path of the program.
        program: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

/// Returns the remedy for an agent that cannot be started.
fn start_advice(source: &io::Error) -> &'static str {
    let is = |kind: io::ErrorKind| source.kind() == kind;
    if is(io::ErrorKind::NotFound) || is(io::ErrorKind::PermissionDenied) {
        "; build it or name it with --agent"
    } else if is(io::ErrorKind::ArgumentListTooLong) {
        "; the command with its parameters is too long for the system: read long parameters from \
         $TRIALKEEPER_PARAMETERS_FILE"
    } else if is(io::ErrorKind::InvalidInput) {
        "; the command or a parameter in it contains a NUL character"
    } else {
        ""
    }
}

#[derive(Debug)]
struct LocalState {
    settings: Settings,
    gpus: Mutex<Gpus>,
    /// The process ids of living agents, by trial. An id is removed as soon as its process is known to be gone, long
    /// before the kernel reuses the number.
    agents: Mutex<HashMap<TrialJobId, Pid>>,
    tasks: TaskTracker,
}

impl Local {
    /// Creates the service without starting anything.
    pub fn new(settings: Settings, gpus: Gpus) -> Self {
        let (agents, gpus) = (Mutex::new(HashMap::new()), Mutex::new(gpus));
        Self { state: Arc::new(LocalState { settings, gpus, agents, tasks: TaskTracker::new() }) }
    }
}

impl LocalState {
    fn agents(&self) -> MutexGuard<'_, HashMap<TrialJobId, Pid>> {
        self.agents.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn gpus(&self) -> MutexGuard<'_, Gpus> {
        self.gpus.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reports that a job is gone, after the delivery of its agent's remaining reports.
    async fn report_end(&self, event: JobEndEvent) {
        self.deliver_remaining_reports(&event.trial).await;
        self.gpus().release(&event.trial);
        // The receiver lives as long as the experiment, and later news has no use.
        drop(self.settings.events.send(JobNews::Gone(event)));
    }

    fn write_job_files(&self, job: &TrialJobSpec) -> Result<TrialDir, Error> {
        let dir = self.settings.dir.trial(&job.trial);
        let write = |path: PathBuf, mode: u32, text: &str| {
            write_file(&path, mode, text).map_err(|source| Error::Write { path, source })
        };
        create_private_folder(dir.path())
            .map_err(|source| Error::Write { path: dir.path().to_owned(), source })?;
        write(dir.parameters(), 0o600, &job.parameter_record.to_string())?;
        write(dir.token(), 0o600, &job.token.0)?;
        Ok(dir)
    }

    /// Returns a path for a trial's agent.
    fn agent_path(&self, path: AgentPath, trial: &TrialDir) -> Option<PathBuf> {
        let Settings { dir, ca_file, code_archive, .. } = &self.settings;
        match path {
            AgentPath::ManagerUrl => Some(dir.manager_url()),
            AgentPath::Authority => ca_file.clone(),
            AgentPath::Token => Some(trial.token()),
            AgentPath::Output => Some(trial.path().to_owned()),
            AgentPath::Spool => Some(trial.spool()),
            AgentPath::Parameters => Some(trial.parameters()),
            AgentPath::CodeArchive => code_archive.clone(),
            AgentPath::CodeBase => code_archive.is_some().then(|| dir.code_base()),
            AgentPath::Log => Some(trial.agent_log()),
        }
    }

    fn agent_command(&self, job: &TrialJobSpec, dir: &TrialDir) -> Command {
        let mut command = Command::new(&self.settings.agent);
        for name in &self.settings.secret_variables {
            command.env_remove(name);
        }
        command.arg("run");
        let arguments = AgentArguments {
            settings: &self.settings.agents,
            job,
            platform: "local",
            // The web pages show the growing output. Storing it takes as much disk space again as the files.
            requests_output: std::env::var_os(LOG_COLLECTION_VARIABLE).is_none(),
            serves_sdk: std::env::var_os(SDK_CHANNEL_VARIABLE).is_none()
                && redirects_output(&job.command),
        };
        let path = |path| self.agent_path(path, dir).map(PathBuf::into_os_string);
        for (flag, value) in arguments.render(|text| text.to_owned().into(), path) {
            command.arg(flag).arg(value);
        }
        command.args(["--shell", &job.command]);
        command.current_dir(&self.settings.code_directory);
        // The agent has its own process group, because Ctrl-C at the terminal must only reach the manager, which then
        // stops trials gracefully.
        command.process_group(0);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    /// Returns the agent's own message about its failure to start. The agent is started again only to check its
    /// settings. Its first message is not kept, because the agent's streams carry its trial's output.
    async fn start_error(&self, job: &TrialJobSpec) -> Option<String> {
        let mut command = self.agent_command(job, &self.settings.dir.trial(&job.trial));
        command.arg("--print-config").kill_on_drop(true);
        let output =
            tokio::time::timeout(SETTINGS_CHECK_TIMEOUT, command.output()).await.ok()?.ok()?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        let stderr = stderr.lines().next().map(|line| line.trim().trim_start_matches("error: "));
        let stderr = stderr.filter(|line| !output.status.success() && !line.is_empty())?;
        Some(format!("the agent did not start: {stderr}"))
    }

    /// Delivers an agent's remaining reports from its spool. Usually there are none.
    async fn deliver_remaining_reports(&self, trial: &TrialJobId) {
        if has_remaining_reports(&self.settings.dir.trial(trial).spool()) {
            self.replay_reports(trial).await;
        }
    }

    /// Renews the token of a trial's agent. The old one may have expired while no manager ran, or while the clock was
    /// wrong. Then the agent could deliver none of its reports.
    fn renew_token(&self, trial: &TrialJobId) {
        let Settings { dir, secret, experiment, .. } = &self.settings;
        let token = secret.trial_token(experiment, trial, secret.now_ms());
        if let Err(error) = write_file(&dir.trial(trial).token(), 0o600, &token) {
            warn!(%trial, "a new token for its agent cannot be written, so the agent keeps the old one: {error}");
        }
    }

    async fn replay_reports(&self, trial: &TrialJobId) {
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
                let stderr = String::from_utf8_lossy(&output.stderr);
                warn!(%trial, "the agent's remaining reports could not be delivered: {}", stderr.trim());
            }
            Err(error) => {
                warn!(%trial, "cannot start the agent to deliver its remaining reports: {error}");
            }
        }
    }
}

#[async_trait]
impl TrainingService for Local {
    async fn submit(&self, job: &TrialJobSpec) -> Result<(), SubmitError> {
        self.state.submit(job).map_err(SubmitError::new)
    }

    async fn adopt(&self, trial: &TrialJobId, attempt: &AttemptId) -> AdoptionResult {
        let path = self.state.settings.dir.trial(trial).agent_lock();
        let gone = || {
            let (trial, attempt) = (trial.clone(), attempt.clone());
            AdoptionResult::Gone(JobEndEvent::unexplained(trial, attempt))
        };
        match try_lock(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => AdoptionResult::Unknown,
            Err(error) => {
                // A trial that may be running must not be started a second time.
                warn!(%trial, "cannot examine {}: {error}; the trial counts as running until that is possible", path.display());
                self.state.take_over(trial, None);
                let state = Arc::clone(&self.state);
                let (trial, attempt) = (trial.clone(), attempt.clone());
                // The task is not tracked, so that the end of the experiment does not wait for it.
                tokio::spawn(
                    async move { watch_unreadable_lock(&state, &path, trial, attempt).await },
                );
                AdoptionResult::Alive
            }
            Ok(LockOutcome::Acquired(lock)) => {
                drop(lock);
                self.state.deliver_remaining_reports(trial).await;
                gone()
            }
            Ok(LockOutcome::Busy(file)) => {
                self.state.take_over(trial, LockHolder::read(&file).pid);
                let state = Arc::clone(&self.state);
                let (trial, attempt) = (trial.clone(), attempt.clone());
                let watch = async move { watch_lock(&state, file, trial, attempt).await };
                self.state.tasks.spawn(watch);
                AdoptionResult::Alive
            }
        }
    }

    async fn recover_reports(&self, trial: &TrialJobId) {
        self.state.deliver_remaining_reports(trial).await;
    }

    async fn verdict_on_disk(&self, trial: &TrialJobId, attempt: &AttemptId) -> Option<Verdict> {
        verdict_on_disk(&self.state.settings.dir.trial(trial), attempt)
    }

    async fn stop(&self, trial: &TrialJobId) {
        if !self.state.signal_agent(trial, Signal::SIGTERM) {
            return;
        }
        let state = Arc::clone(&self.state);
        let trial = trial.clone();
        self.state.tasks.spawn(async move {
            let begun = tokio::time::Instant::now();
            while begun.elapsed() < AGENT_END_TIMEOUT {
                tokio::time::sleep(Duration::from_millis(200)).await;
                if !state.agents().contains_key(&trial) {
                    return;
                }
            }
            warn!(%trial, "the agent did not end within {AGENT_END_TIMEOUT:?} of the stop request; killing it");
            state.signal_agent(&trial, Signal::SIGKILL);
        });
    }

    fn capacity(&self) -> Option<usize> {
        self.state.gpus().capacity()
    }

    fn free_room(&self) -> FreeRoom {
        self.state.gpus().free().map_or(FreeRoom::Unknown, FreeRoom::Jobs)
    }

    async fn close(&self) {
        self.state.tasks.close();
        self.state.tasks.wait().await;
        // Kept while agents run, because an agent may be about to copy from the unpacked code. An agent that starts
        // later unpacks the code again.
        if self.state.settings.code_archive.is_some() && self.state.agents().is_empty() {
            self.state.remove_code_base();
        }
    }
}

impl LocalState {
    /// Starts an agent for a job.
    fn submit(self: &Arc<Self>, job: &TrialJobSpec) -> Result<(), Error> {
        let state = Arc::clone(self);
        let dir = state.write_job_files(job)?;
        let mut command = state.agent_command(job, &dir);
        if let Some(visible) = state.gpus().assign(&job.trial) {
            // The numbers come from nvidia-smi, which orders GPUs by bus. CUDA's own order has the fastest first (CUDA
            // C++ Programming Guide, "CUDA Environment Variables").
            command.env("CUDA_VISIBLE_DEVICES", visible).env("CUDA_DEVICE_ORDER", "PCI_BUS_ID");
        }
        let child = command.spawn().map_err(|source| {
            state.gpus().release(&job.trial);
            Error::StartAgent { program: state.settings.agent.clone(), source }
        })?;
        if let Some(pid) = pid_of(&child) {
            state.agents().insert(job.trial.clone(), pid);
        }
        let job = job.clone();
        self.tasks.spawn(async move { watch_child(&state, child, job).await });
        Ok(())
    }

    fn remove_code_base(&self) {
        let path = self.settings.dir.code_base();
        match std::fs::remove_dir_all(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                debug!("{} remains: {error}", path.display());
            }
            Ok(()) | Err(_) => {}
        }
    }

    /// Takes over a trial that an earlier manager started.
    fn take_over(&self, trial: &TrialJobId, pid: Option<Pid>) {
        self.renew_token(trial);
        // The trial keeps the GPUs that the earlier manager chose. Only their number is counted here.
        self.gpus().assign(trial);
        if let Some(pid) = pid {
            self.agents().insert(trial.clone(), pid);
        }
    }

    /// Returns the earlier agent of the job, if the new agent ended because it found the lock of the same attempt held.
    /// The manager that started the earlier agent was killed before that agent took the lock.
    fn earlier_agent(&self, job: &TrialJobSpec) -> Option<(File, Pid)> {
        let path = self.settings.dir.trial(&job.trial).agent_lock();
        let Ok(LockOutcome::Busy(file)) = try_lock(&path) else { return None };
        let holder = LockHolder::read(&file);
        let same = holder.attempt.as_deref() == Some(job.attempt.as_str());
        holder.pid.filter(|_| same).map(|pid| (file, pid))
    }

    /// Sends a signal to a trial's agent. Returns `false` if there is none.
    fn signal_agent(&self, trial: &TrialJobId, signal: Signal) -> bool {
        let agents = self.agents();
        let Some(pid) = agents.get(trial) else { return false };
        if let Err(error) = kill(*pid, signal) {
            debug!(%trial, "cannot signal the agent: {error}");
        }
        true
    }
}

async fn watch_child(state: &LocalState, mut child: Child, job: TrialJobSpec) {
    let status = child.wait().await;
    state.agents().remove(&job.trial);
    let end = match status {
        Ok(status) => {
            let code = shell_exit_code(status);
            if code == AGENT_ERROR_CODE
                && let Some((file, pid)) = state.earlier_agent(&job)
            {
                info!(trial = %job.trial, "an earlier manager had already started an agent for the trial: process {pid}");
                state.agents().insert(job.trial.clone(), pid);
                return watch_lock(state, file, job.trial, job.attempt).await;
            }
            let message =
                if code == AGENT_ERROR_CODE { state.start_error(&job).await } else { None };
            JobEnd { exit_code: Some(code), message, ..JobEnd::default() }
        }
        Err(error) => {
            let message = Some(format!("the agent's end could not be read: {error}"));
            JobEnd { message, ..JobEnd::default() }
        }
    };
    let TrialJobSpec { trial, attempt, .. } = job;
    state.report_end(JobEndEvent { trial, attempt, end }).await;
}

async fn watch_lock(state: &LocalState, file: File, trial: TrialJobId, attempt: AttemptId) {
    // A separate thread waits, because the release of a lock has no other notification. The runtime's own threads are
    // few and needed elsewhere.
    let (freed, wait) = oneshot::channel();
    let thread = thread::Builder::new().name("lock".to_owned()).stack_size(LOCK_STACK_BYTES);
    let started = thread.spawn(move || {
        let lock = Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, error)| error);
        // The receiver disappears only with the manager.
        drop(freed.send(lock));
    });
    match (started, wait.await) {
        (Ok(_), Ok(Ok(lock))) => drop(lock),
        (Ok(_), Ok(Err(error))) => warn!(%trial, "cannot wait for the agent's lock: {error}"),
        (Err(error), _) => warn!(%trial, "cannot wait for the agent's lock: {error}"),
        (Ok(_), Err(_)) => warn!(%trial, "the wait for the agent's lock was aborted"),
    }
    state.agents().remove(&trial);
    state.report_end(JobEndEvent::unexplained(trial, attempt)).await;
}

/// Watches an agent whose lock cannot be examined yet.
async fn watch_unreadable_lock(
    state: &LocalState,
    path: &Path,
    trial: TrialJobId,
    attempt: AttemptId,
) {
    let held = loop {
        tokio::time::sleep(LOCK_RETRY_PAUSE).await;
        match try_lock(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => break None,
            Err(_) => {}
            Ok(LockOutcome::Acquired(_)) => break None,
            Ok(LockOutcome::Busy(file)) => break Some(file),
        }
    };
    if let Some(file) = held {
        if let Some(pid) = LockHolder::read(&file).pid {
            state.agents().insert(trial.clone(), pid);
        }
        return watch_lock(state, file, trial, attempt).await;
    }
    state.report_end(JobEndEvent::unexplained(trial, attempt)).await;
}

/// Returns whether a spool holds reports. An agent that has delivered everything leaves no segment.
fn has_remaining_reports(spool: &Path) -> bool {
    let attempts = std::fs::read_dir(spool).into_iter().flatten().flatten();
    let mut files =
        attempts.flat_map(|entry| std::fs::read_dir(entry.path()).into_iter().flatten().flatten());
    files.any(|file| file.path().extension().is_some_and(|extension| extension == "seg"))
}

/// Returns the verdict in a trial's folder if it belongs to this attempt: the attempt's agent was the last to take the
/// lock, and the verdict is newer than the lock. Otherwise, the agent may have died early, and the verdict may be that
/// of an earlier attempt.
fn verdict_on_disk(dir: &TrialDir, attempt: &AttemptId) -> Option<Verdict> {
    let lock = File::open(dir.agent_lock()).ok()?;
    if LockHolder::read(&lock).attempt.as_deref() != Some(attempt.as_str()) {
        return None;
    }
    let taken_at = lock.metadata().and_then(|lock| lock.modified()).ok()?;
    let mut file = File::open(dir.verdict()).ok()?.take(MAX_VERDICT_BYTES);
    if file.get_ref().metadata().and_then(|file| file.modified()).ok()? < taken_at {
        return None;
    }
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).ok()?;
    serde_json::from_slice(&bytes).ok()
}

/// The holder of an agent's lock, according to the lock's file.
struct LockHolder {
    pid: Option<Pid>,
    attempt: Option<String>,
}

impl LockHolder {
    fn read(mut file: &File) -> Self {
        let mut text = String::new();
        // An unreadable file names no holder.
        file.read_to_string(&mut text).ok();
        let mut lines = text.lines().map(str::trim);
        let pid = lines.next().and_then(|line| line.parse().ok());
        // Ids of 0 and below would address process groups.
        let pid = pid.filter(|pid| *pid > 1).map(Pid::from_raw);
        Self { pid, attempt: lines.next().map(str::to_owned) }
    }
}

fn pid_of(child: &Child) -> Option<Pid> {
    child.id().and_then(|id| i32::try_from(id).ok()).map(Pid::from_raw)
}

fn shell_exit_code(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

#[cfg(test)]
mod tests;
