//! Runs trials on machines that are reached over SSH, each under an agent that outlives the connection.
//!
//! A machine has one session at a time (`connection.rs`), and the manager reopens a lost session without end. An
//! attempt that a machine may have started never runs on another machine. The trial's folder therefore records the
//! machine before the machine receives the attempt (`records.rs`). Every request to a machine may be repeated, so a new
//! session sends all of them again (`job_protocol.rs`).
//!
//! The manager stops waiting for a machine that has been out of reach for too long. It *fences* the machine's attempts:
//! they are recorded as over, and the machine ends them first when it returns. Until then, they may continue there,
//! while other attempts replace them on other machines. No agent ends its own trial, since a trial outranks its agent.

use std::collections::HashSet;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::{Notify, Semaphore};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::warn;
use trial_protocol::{AttemptId, Class, ExperimentId, TrialJobId};

use self::job_protocol::{HelperMessage, JobEndReport, Reply};
use self::machine_assignment::{Assignments, JobToStop};
use self::manager_tunnel::DirectAddress;
use self::output::MAX_OUTPUTS;
use self::records::{Fence, Records, TrialPlacement};
use self::session::MAX_MESSAGE_BYTES;
use self::ssh::Ssh;
use super::agent_arguments::AgentSettings;
use super::{
    AGENT_ERROR_CODE, AdoptionResult, FreeRoom, JobEnd, JobEndEvent, JobNews, JobNewsSender,
    JobWait, Output, SubmitError, TrainingService, TrialJobSpec,
};
use crate::config::MachineSpec;
use crate::token::Secret;
use crate::util::digest::sha256_of_file;
use crate::util::layout::ExperimentDir;

mod askpass;
mod clean;
mod code_cache;
mod connection;
mod examine;
mod host_keys;
mod job_protocol;
mod logind;
mod machine_assignment;
mod manager_tunnel;
mod output;
mod platform;
mod records;
mod session;
mod shell;
mod ssh;
mod ssh_errors;

/// The name of the link to the manager's socket, next to the control sockets. The path there is short enough for a
/// socket.
const MANAGER_LINK: &str = "manager";
/// The pause after a failure to write fences.
const FENCE_RETRY_PAUSE: Duration = Duration::from_secs(1);

/// The interval between repetitions of a stop to an agent that did not exist yet.
const STOP_REPEAT_INTERVAL: Duration = Duration::from_secs(1);

/// The settings of a [`Remote`].
#[derive(Debug)]
pub struct Settings {
    /// The agent program.
    pub agent: PathBuf,
    /// The experiment.
    pub experiment: ExperimentId,
    /// The folder of the experiment.
    pub dir: ExperimentDir,
    /// The machines.
    pub machines: Vec<MachineSpec>,
    /// The time for which a machine may be out of reach before its trials run elsewhere.
    pub max_absence: Duration,
    /// The manager's address for other machines. `None`: they cannot reach the manager, or only without encryption.
    direct: Option<DirectAddress>,
    /// `trialGpuNumber`.
    pub gpus_each: Option<u32>,
    /// The settings of the agents.
    pub agents: AgentSettings,
    /// The secret from which trials' tokens are derived.
    pub secret: Arc<Secret>,
    /// The receiver of news of jobs.
    pub events: JobNewsSender,
}

/// A reason why the service cannot start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file for the machines cannot be read.
    #[error("cannot read {}", .path.display())]
    Read {
        /// The path of the file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// The record of machines and fences cannot be read or written.
    #[error("cannot use {}", .path.display())]
    Records {
        /// The path of the record.
        path: PathBuf,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// The folder for the connections' sockets cannot be created.
    #[error("cannot create a folder for the control sockets")]
    Sockets(#[source] std::io::Error),
}

/// Runs trials on machines that are reached over SSH.
#[derive(Debug, Clone)]
pub struct Remote {
    state: Arc<RemoteState>,
}

#[derive(Debug)]
struct RemoteState {
    settings: Settings,
    /// The machines of the experiment file, followed by those that it no longer names.
    machines: Vec<MachineSpec>,
    agent_sha256: String,
    code_sha256: String,
    sockets: TempDir,
    assignments: Mutex<Assignments>,
    /// Locked after `assignments` when both are needed.
    records: Mutex<Records>,
    /// The outputs that can still be read from each machine.
    outputs: Vec<Arc<Semaphore>>,
    /// The machines to which a task keeps a connection.
    kept_connections: Mutex<HashSet<usize>>,
    /// Notified when [`Assignments::next_change`] may have moved closer.
    changed: Notify,
    ended: CancellationToken,
    tasks: TaskTracker,
}

impl Remote {
    /// Creates the service and starts to connect to the machines. Errors concern only files of this machine.
    pub fn start(settings: Settings) -> Result<Self, Error> {
        let sum =
            |path: PathBuf| sha256_of_file(&path).map_err(|source| Error::Read { path, source });
        let agent_sha256 = sum(settings.agent.clone())?;
        let code_sha256 = sum(settings.dir.code_archive())?;
        // In the data directory the path could be too long for a socket.
        let mut builder = tempfile::Builder::new();
        let sockets = builder.prefix("tk-").tempdir_in("/tmp").map_err(Error::Sockets)?;
        let manager = std::path::absolute(settings.dir.manager_socket()).map_err(Error::Sockets)?;
        std::os::unix::fs::symlink(manager, sockets.path().join(MANAGER_LINK))
            .map_err(Error::Sockets)?;
        let path = settings.dir.remote_machines();
        let known = Records::load(path.clone()).and_then(|mut records| {
            let retired = records.record_machines(&settings.machines)?;
            Ok((records, retired))
        });
        let (records, retired) = known.map_err(|source| Error::Records { path, source })?;
        let named = settings.machines.len();
        let machines: Vec<_> = settings.machines.iter().cloned().chain(retired).collect();
        let (each, max_absence) = (settings.gpus_each, settings.max_absence);
        let assignments = Assignments::new(&machines, named, each, max_absence, Instant::now());
        let outputs = machines.iter().map(|_| Arc::new(Semaphore::new(MAX_OUTPUTS))).collect();
        let state = Arc::new(RemoteState {
            settings,
            machines,
            outputs,
            agent_sha256,
            code_sha256,
            sockets,
            assignments: Mutex::new(assignments),
            records: Mutex::new(records),
            kept_connections: Mutex::default(),
            changed: Notify::new(),
            ended: CancellationToken::new(),
            tasks: TaskTracker::new(),
        });
        for number in 0..state.machines.len() {
            let is_needed = number < named
                || !state.records().unconfirmed_fences(&state.machines[number].name).is_empty();
            if is_needed {
                state.keep_connection(number);
            }
        }
        let watch = Arc::clone(&state);
        let stopped = state.ended.clone();
        state.tasks.spawn(async move {
            stopped.run_until_cancelled(watch.watch_absent_machines()).await;
        });
        Ok(Self { state })
    }
}

impl RemoteState {
    fn assignments(&self) -> MutexGuard<'_, Assignments> {
        self.assignments.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn records(&self) -> MutexGuard<'_, Records> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn send_news(&self, news: JobNews) {
        // The receiver lives as long as the experiment, and later news has no reader.
        drop(self.settings.events.send(news));
    }

    /// Starts the task that keeps the connection to a machine, unless it already runs.
    fn keep_connection(self: &Arc<Self>, number: usize) {
        if self.kept_connections.lock().unwrap_or_else(PoisonError::into_inner).insert(number) {
            let keeper = Arc::clone(self);
            let stopped = self.ended.clone();
            self.tasks.spawn(async move {
                stopped.run_until_cancelled(connection::keep_connected(&keeper, number)).await;
            });
        }
    }

    /// Fences the attempts whose machines have been absent for too long, and places trials at the end of a machine's
    /// pause.
    async fn watch_absent_machines(self: Arc<Self>) {
        loop {
            let change = self.assignments().next_change(Instant::now());
            tokio::select! {
                () = connection::wait_until(change) => {}
                () = self.changed.notified() => continue,
            }
            if let Err(error) = self.fence_absent_jobs() {
                warn!("cannot write {}: {error}", self.settings.dir.remote_machines().display());
                sleep(FENCE_RETRY_PAUSE).await;
            }
            self.place_trials();
        }
    }

    /// Fences the attempts whose machines have been absent for too long. It fences none if the fences cannot be
    /// recorded.
    fn fence_absent_jobs(self: &Arc<Self>) -> io::Result<()> {
        let mut assignments = self.assignments();
        let absent = assignments.absent_jobs(Instant::now());
        if absent.is_empty() {
            return Ok(());
        }
        let fences = absent.iter().map(|job| Fence {
            machine: self.machines[job.machine].name.clone(),
            trial: job.trial.clone(),
            attempt: job.attempt.clone(),
            confirmed: false,
        });
        self.records().record_fences(fences.collect())?;
        for job in &absent {
            assignments.remove(&job.trial, &job.attempt);
        }
        drop(assignments);
        for job in absent {
            self.report_fenced(job.trial, job.attempt, job.why);
        }
        Ok(())
    }

    fn report_fenced(&self, trial: TrialJobId, attempt: AttemptId, why: String) {
        let (message, class) = (Some(why), Some(Class::Transient));
        let end = JobEnd { message, class, replaced: true, ..JobEnd::default() };
        self.send_news(JobNews::Gone(JobEndEvent { trial, attempt, end }));
    }

    /// Assigns waiting trials to machines with room, in the order of their waits.
    fn place_trials(self: &Arc<Self>) {
        loop {
            let mut assignments = self.assignments();
            let Some((trial, machine)) = assignments.place(Instant::now()) else { break };
            let Some(job) = assignments.jobs.get(&trial) else { continue };
            let (attempt, gpus) = (job.attempt.clone(), job.gpus.clone());
            drop(assignments);
            let name = self.machines[machine].name.clone();
            let place = TrialPlacement { attempt, machine: name, gpus };
            let dir = self.settings.dir.trial(&trial);
            match place.write(dir.path()) {
                Ok(()) => self.send_state(machine, &trial),
                Err(error) => {
                    let message = Some(format!("cannot write {}: {error}", dir.path().display()));
                    self.report_end(&trial, &place.attempt, None, message, Some(Class::Transient));
                }
            }
        }
        self.report_waits();
    }

    /// Reports why trials wait, once for each trial and reason.
    fn report_waits(&self) {
        let (why, unreported_waits) = self.assignments().unreported_waits(Instant::now());
        for (trial, attempt) in unreported_waits {
            self.send_news(JobNews::Waits(JobWait { trial, attempt, why: why.clone() }));
        }
    }

    /// Reports the end of a job once, and assigns its room to the next trial.
    fn report_end(
        self: &Arc<Self>,
        trial: &TrialJobId,
        attempt: &AttemptId,
        exit_code: Option<i32>,
        message: Option<String>,
        class: Option<Class>,
    ) {
        if !self.assignments().remove(trial, attempt) {
            return;
        }
        let (trial, attempt) = (trial.clone(), attempt.clone());
        let end = JobEnd { exit_code, message, class, ..JobEnd::default() };
        self.send_news(JobNews::Gone(JobEndEvent { trial, attempt, end }));
        self.place_trials();
    }

    /// Sends a machine all requests that it may not have received.
    fn send_all_states(self: &Arc<Self>, number: usize) {
        let trials: Vec<TrialJobId> = self.assignments().trials_on(number).cloned().collect();
        for trial in trials {
            self.send_state(number, &trial);
        }
    }

    /// Sends a machine the state of a trial: a submit or adopt, and a stop if one is requested.
    fn send_state(self: &Arc<Self>, number: usize, trial: &TrialJobId) {
        let now = Instant::now();
        let mut assignments = self.assignments();
        let Some(job) = assignments.jobs.get(trial) else { return };
        let key = self.attempt_key(trial, &job.attempt);
        let (method, params) = match &job.spec {
            Some(spec) if !job.is_stop_requested() => {
                ("submit", job_protocol::submit_params(&self.settings, job, spec, &key))
            }
            Some(_) | None => {
                let secret = &self.settings.secret;
                let token = secret.trial_token(&self.settings.experiment, trial, secret.now_ms());
                ("adopt", job_protocol::adopt_params(&key, &token))
            }
        };
        if let Some(length) = job_protocol::excessive_length(method, &params) {
            let attempt = job.attempt.clone();
            drop(assignments);
            let message = format!(
                "its parameters and its command have {length} bytes; the maximum is {MAX_MESSAGE_BYTES}"
            );
            return self.report_end(trial, &attempt, None, Some(message), Some(Class::Permanent));
        }
        let is_stop_requested = job.is_stop_requested();
        assignments.request(number, trial, method, &params, now);
        if is_stop_requested {
            assignments.request(number, trial, "cancel", &json!({"key": key}), now);
        }
    }

    fn attempt_key(&self, trial: &TrialJobId, attempt: &AttemptId) -> Value {
        job_protocol::attempt_key(&self.settings.experiment, trial, attempt)
    }

    /// Handles a line from a machine's helper.
    fn handle_line(self: &Arc<Self>, number: usize, line: &str) {
        match HelperMessage::read(line) {
            Some(HelperMessage::Room(facts)) => {
                let too_few = self.assignments().record_reading(number, &facts);
                self.warn_of_gpus(number, too_few);
                self.place_trials();
            }
            Some(HelperMessage::Reply(reply)) => self.handle_reply(number, &reply),
            Some(HelperMessage::End(report)) => self.handle_end(number, report),
            None => {}
        }
    }

    fn handle_reply(self: &Arc<Self>, number: usize, reply: &Reply) {
        let Some(request) = self.assignments().complete_request(number, reply.id) else { return };
        let (trial, attempt) = (request.trial, request.attempt);
        match request.method {
            "submit" => {
                let Some(why) = &reply.refusal else { return };
                if reply.is_gpu_in_use {
                    let waits = self.assignments().lose_gpu(number, &trial, &attempt);
                    let why = format!("another experiment has just taken {why}");
                    self.place_again(number, &trial, &attempt, waits, &why);
                } else {
                    self.handle_refusal(number, &trial, &attempt, why);
                }
            }
            "adopt" if reply.is_unknown => self.report_end(&trial, &attempt, None, None, None),
            "cancel" if reply.is_unknown => {
                let state = Arc::clone(self);
                let stopped = self.ended.clone();
                self.tasks.spawn(async move {
                    stopped.run_until_cancelled(sleep(STOP_REPEAT_INTERVAL)).await;
                    let params = json!({"key": state.attempt_key(&trial, &attempt)});
                    let now = Instant::now();
                    state.assignments().request(number, &trial, "cancel", &params, now);
                });
            }
            _ => {}
        }
    }

    fn handle_end(self: &Arc<Self>, number: usize, report: JobEndReport) {
        let JobEndReport { trial, attempt, exit_code, has_left_reports } = report;
        // The agent could not deliver its last reports to the manager, so they are requested.
        if has_left_reports && self.assignments().begin_replay(number, &trial, &attempt) {
            let params = json!({"key": self.attempt_key(&trial, &attempt)});
            self.assignments().request(number, &trial, "adopt", &params, Instant::now());
            return;
        }
        let mut message = None;
        if exit_code == Some(AGENT_ERROR_CODE) {
            let why = format!("the agent failed there (code {AGENT_ERROR_CODE})");
            message = Some(format!("{}: {why}", self.machines[number].name));
            self.pause_machine(number, &why);
        } else {
            self.assignments().reset_pauses(number);
        }
        self.report_end(&trial, &attempt, exit_code, message, None);
    }

    /// Warns of a machine that has too few GPUs for a trial.
    fn warn_of_gpus(&self, number: usize, too_few: Option<String>) {
        if let Some(why) = too_few {
            let machine = &self.machines[number].name;
            warn!(%machine, "the machine gets no trial for now: {why}");
        }
    }

    /// Handles a machine's failure to start a trial. The trial has not run there, so the same attempt waits for another
    /// machine.
    fn handle_refusal(
        self: &Arc<Self>,
        number: usize,
        trial: &TrialJobId,
        attempt: &AttemptId,
        why: &str,
    ) {
        let why = &ssh_errors::explain(why).unwrap_or_else(|| why.to_owned());
        self.pause_machine(number, why);
        let waits = self.assignments().requeue(trial, attempt);
        self.place_again(number, trial, attempt, waits, why);
    }

    /// Assigns a refused trial that waits again to a machine, or ends a trial that must not run any more.
    fn place_again(
        self: &Arc<Self>,
        number: usize,
        trial: &TrialJobId,
        attempt: &AttemptId,
        waits: bool,
        why: &str,
    ) {
        if waits {
            self.place_trials();
        } else {
            let message = format!("{}: {why}", self.machines[number].name);
            self.report_end(trial, attempt, None, Some(message), Some(Class::Transient));
        }
    }

    /// Starts a pause for a machine that could not start a trial.
    fn pause_machine(&self, number: usize, why: &str) {
        let pause = self.assignments().pause_machine(number, why.to_owned(), Instant::now());
        let machine = &self.machines[number].name;
        warn!(%machine, "the machine cannot start a trial, and gets none for {} s: {why}", pause.as_secs());
        self.changed.notify_one();
    }
}

#[async_trait]
impl TrainingService for Remote {
    async fn submit(&self, job: &TrialJobSpec) -> Result<(), SubmitError> {
        self.state.assignments().enqueue(job.clone());
        self.state.place_trials();
        Ok(())
    }

    async fn adopt(&self, trial: &TrialJobId, attempt: &AttemptId) -> AdoptionResult {
        let state = &self.state;
        let dir = state.settings.dir.trial(trial);
        let place = TrialPlacement::read(dir.path()).filter(|place| place.attempt == *attempt);
        let Some(place) = place else { return AdoptionResult::Unknown };
        let known = state.machines.iter().position(|machine| machine.name == place.machine);
        let is_fenced = state.records().is_fenced(trial, attempt);
        let (false, Some(number)) = (is_fenced, known) else {
            // The earlier manager died before it could replace the attempt, or the machine is no longer known.
            let why = format!("it was assigned to {}, which is out of reach", place.machine);
            state.report_fenced(trial.clone(), attempt.clone(), why);
            return AdoptionResult::Alive;
        };
        state.assignments().take_over(trial, attempt, number, place.gpus);
        state.keep_connection(number);
        state.changed.notify_one();
        state.send_state(number, trial);
        AdoptionResult::Alive
    }

    async fn recover_reports(&self, trial: &TrialJobId) {
        // Nothing to do: the helper delivers remaining reports before it reports that a job is gone.
        let _ = trial;
    }

    async fn stop(&self, trial: &TrialJobId) {
        let now = Instant::now();
        let job = self.state.assignments().request_stop(trial, now);
        match job {
            Some(JobToStop::Waiting(attempt)) => {
                let event = JobEndEvent::unexplained(trial.clone(), attempt);
                self.state.send_news(JobNews::Gone(event));
            }
            Some(JobToStop::Assigned { machine, attempt }) => {
                let params = json!({"key": self.state.attempt_key(trial, &attempt)});
                self.state.assignments().request(machine, trial, "cancel", &params, now);
                self.state.changed.notify_one();
            }
            None => {}
        }
    }

    async fn output(
        &self,
        trial: &TrialJobId,
        ago: Option<Duration>,
    ) -> Option<Result<Output, String>> {
        let state = &self.state;
        let number = state.assignments().jobs.get(trial)?.machine;
        // Without a permit, the output is available later.
        let permit = Arc::clone(&state.outputs[number]).try_acquire_owned().ok()?;
        let machine = &state.machines[number];
        let ssh = Ssh::new(machine, state.sockets.path(), number);
        let ids = (&state.settings.experiment, trial);
        // Earlier output is not requested if the caller wants only recent output.
        let output = output::follow_output(&ssh, machine, ids, ago.is_some(), permit).await?;
        Some(Ok(output))
    }

    fn free_room(&self) -> FreeRoom {
        self.state.assignments().free_room(Instant::now())
    }

    async fn withdraw(&self, trial: &TrialJobId) -> bool {
        self.state.assignments().withdraw_waiting(trial)
    }

    async fn close(&self) {
        self.state.ended.cancel();
        self.state.tasks.close();
        self.state.tasks.wait().await;
    }
}
