//! Runs trials at the user's own training service: a program that communicates through JSON-RPC on its standard streams
//! (`docs/plugins.md`).
//!
//! The program may die at any time, and the manager restarts it without end. Each attempt has a task (`job.rs`) that
//! informs every new process, so the plugin may receive any request again.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use futures_util::{StreamExt as _, stream};
use serde_json::json;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{info, warn};
use trial_protocol::{AttemptId, ExperimentId, TrialJobId};

use self::handshake::{Capabilities, initialize, program, startup_error};
pub use self::handshake::{Identity, clean_up, probe};
use self::job::{JobMessage, PluginJob};
use self::link::{AskError, Link, Program, StartedProcess};
use self::parameters::RequestParameters;
use self::room::RoomCount;
use self::wire::{AttemptKey, Message};
use super::agent_arguments::AgentSettings;
use super::{
    AdoptionResult, FreeRoom, JobNews, JobNewsSender, Output, SubmitError, TrainingService,
    TrialJobSpec,
};
use crate::config::PluginSpec;
use crate::token::Secret;
use crate::util::backoff::Backoff;
use crate::util::files::{create_private_folder, write_file};
use crate::util::layout::ExperimentDir;

pub mod conformance;
mod handshake;
mod job;
mod link;
mod parameters;
mod platform;
mod room;
mod wire;

/// The time limits for answers, one for each request.
const OPEN_TIMEOUT: Duration = Duration::from_mins(10);
const SUBMIT_TIMEOUT: Duration = Duration::from_mins(1);
const ADOPT_TIMEOUT: Duration = Duration::from_mins(2);
const CANCEL_TIMEOUT: Duration = Duration::from_secs(30);
const RECOVER_TIMEOUT: Duration = Duration::from_mins(2);
const CLEAN_UP_TIMEOUT: Duration = Duration::from_mins(10);
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);
const ROOM_TIMEOUT: Duration = Duration::from_secs(30);
/// The interval between two requests for room: the shortest, and the longest while nothing has changed.
const ROOM_PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(15));
/// The time that a resumed experiment waits for a process before it assumes that its jobs are alive.
const FIRST_LINK_TIMEOUT: Duration = Duration::from_mins(2);
/// The first and the longest pause before a process is restarted.
const RESTART_PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_mins(1));
/// The lifetime of a process after which the pauses begin anew.
const STEADY_LIFETIME: Duration = Duration::from_mins(1);
/// The number of bytes of output that one request asks for, and the time that the plugin may wait for them.
const OUTPUT_BYTES: u64 = 256 << 10;
const OUTPUT_WAIT: Duration = Duration::from_secs(20);
/// The greatest number of concurrent requests that a plugin may allow.
const MAX_IN_FLIGHT: u64 = 64;

/// The settings of a [`Plugin`].
#[derive(Debug)]
pub struct Settings {
    /// The section of the experiment file.
    pub spec: PluginSpec,
    /// The working directory of the program.
    pub code_directory: PathBuf,
    /// The experiment.
    pub experiment: ExperimentId,
    /// The name of the experiment.
    pub name: Option<String>,
    /// The folder of the experiment.
    pub dir: ExperimentDir,
    /// The agent program.
    pub agent: PathBuf,
    /// `trialGpuNumber`.
    pub gpus_each: Option<u32>,
    /// The settings of the agents.
    pub agents: AgentSettings,
    /// The certificate authority of the manager's own certificate, if connections are encrypted.
    pub ca_file: Option<PathBuf>,
    /// The base URL of the manager, as trials reach it.
    pub url: String,
    /// Variables of the manager's environment that the program does not inherit.
    pub secret_variables: Vec<String>,
    /// The secret from which the trials' tokens are derived.
    pub secret: Arc<Secret>,
    /// The receiver of news of jobs.
    pub events: JobNewsSender,
}

/// A reason why a plugin cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file or folder of the plugin cannot be written.
    #[error("cannot write {}", .path.display())]
    Write {
        /// The file or folder.
        path: PathBuf,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// The program cannot be started.
    #[error("trainingService.command: {0}")]
    Start(String),
    /// The program ends, does not answer, or uses another version of the protocol.
    #[error("trainingService.command: {0}")]
    Unusable(String),
    /// The plugin refuses the settings.
    #[error("trainingService: the plugin `{program}` reports: {message}")]
    Refused {
        /// The command.
        program: String,
        /// The plugin's message.
        message: String,
    },
    /// The plugin reports a problem of its own or of its platform.
    #[error("trainingService: the plugin `{program}` reports: {message}")]
    Trouble {
        /// The command.
        program: String,
        /// The plugin's message.
        message: String,
    },
    /// The search ended before the plugin was ready.
    #[error("the search ended before the plugin was ready")]
    Closed,
}

impl Error {
    /// Returns whether the plugin may become usable without a change of the experiment file.
    fn is_temporary(&self) -> bool {
        match self {
            Self::Unusable(_) | Self::Trouble { .. } => true,
            Self::Write { .. } | Self::Start(_) | Self::Refused { .. } | Self::Closed => false,
        }
    }
}

/// Runs trials at the user's own training service.
#[derive(Debug, Clone)]
pub struct Plugin {
    state: Arc<PluginState>,
}

#[derive(Debug)]
struct PluginState {
    settings: Settings,
    program: Program,
    state_dir: PathBuf,
    url_file: PathBuf,
    link: watch::Sender<Option<Arc<Link>>>,
    /// The reason why no process of the plugin is available.
    trouble: Mutex<String>,
    capabilities: Mutex<Capabilities>,
    jobs: Mutex<HashMap<TrialJobId, JobTask>>,
    /// Wakes the jobs that wait for room.
    room_available: Notify,
    room_count: Arc<RoomCount>,
    /// Triggers a new request for room.
    room_changed: Notify,
    began: Instant,
    ended: CancellationToken,
    tasks: TaskTracker,
}

/// The handle of a job's task.
#[derive(Debug)]
struct JobTask {
    attempt: AttemptId,
    messages: mpsc::UnboundedSender<JobMessage>,
}

impl Plugin {
    /// Creates the service: starts the program, and restarts it whenever it ends.
    ///
    /// # Errors
    ///
    /// The folder for the program's files cannot be written.
    pub fn start(settings: Settings) -> Result<Self, Error> {
        let state_dir = settings.dir.plugin();
        let write = |path: &Path, source| Error::Write { path: path.to_owned(), source };
        create_private_folder(&state_dir).map_err(|source| write(&state_dir, source))?;
        let url_file = url_file(&settings, &state_dir)?;
        let program = program(
            &settings.spec,
            &settings.code_directory,
            &state_dir,
            settings.secret_variables.clone(),
        );
        let state = Arc::new(PluginState {
            settings,
            program,
            state_dir,
            url_file,
            link: watch::Sender::new(None),
            trouble: Mutex::new("the plugin is being started".to_owned()),
            capabilities: Mutex::default(),
            jobs: Mutex::default(),
            room_available: Notify::new(),
            room_count: Arc::default(),
            room_changed: Notify::new(),
            began: Instant::now(),
            ended: CancellationToken::new(),
            tasks: TaskTracker::new(),
        });
        state.tasks.spawn(keep_running(Arc::clone(&state)));
        Ok(Self { state })
    }
}

/// Returns the file with the manager's address for agents. The manager's own file lies next to its socket, which agents
/// on this machine prefer.
fn url_file(settings: &Settings, state_dir: &Path) -> Result<PathBuf, Error> {
    let host = settings.url.split_once("://").map_or("", |(_, rest)| rest);
    if ["127.", "localhost", "[::1]"].iter().any(|own| host.starts_with(own)) {
        return Ok(settings.dir.manager_url());
    }
    let path = state_dir.join("manager.url");
    write_file(&path, 0o600, &format!("{}\n", settings.url))
        .map_err(|source| Error::Write { path: path.clone(), source })?;
    Ok(path)
}

/// Keeps a process running until the service is closed.
async fn keep_running(state: Arc<PluginState>) {
    let mut backoff = Backoff::new(RESTART_PAUSES.0, RESTART_PAUSES.1);
    loop {
        let began = Instant::now();
        let why = match state.start_process().await {
            Ok(started) => state.serve_process(started).await,
            Err(error) => error.to_string(),
        };
        if state.ended.is_cancelled() {
            return;
        }
        if began.elapsed() > STEADY_LIFETIME {
            backoff.reset();
        }
        let pause = backoff.next_pause();
        warn!("{why}; the plugin is restarted in {} s", pause.as_secs());
        state.set_trouble(why);
        if state.ended.run_until_cancelled(sleep(pause)).await.is_none() {
            return;
        }
    }
}

impl PluginState {
    fn parameters(&self) -> RequestParameters<'_> {
        RequestParameters::new(&self.settings, &self.url_file)
    }

    /// Starts a process and prepares it for jobs.
    async fn start_process(&self) -> Result<StartedProcess, Error> {
        let mut started = Link::start(&self.program).map_err(Error::Start)?;
        let StartedProcess { link, notifications, .. } = &mut started;
        // A plugin may send any number of messages before its answer, and may take minutes.
        let messages = async {
            while let Some(message) = notifications.recv().await {
                self.handle_message(message);
            }
            std::future::pending::<()>().await;
        };
        let opened = tokio::select! {
            opened = self.complete_handshake(link) => opened,
            () = self.ended.cancelled() => Err(Error::Closed),
            () = messages => Err(Error::Closed),
        };
        if let Err(error) = opened {
            link::end_process(&started.link, &mut started.child).await;
            return Err(error);
        }
        Ok(started)
    }

    async fn complete_handshake(&self, link: &Link) -> Result<(), Error> {
        let Settings { experiment, name, spec, gpus_each, .. } = &self.settings;
        let (state_dir, about) = (&self.state_dir, (experiment, name.as_deref()));
        let hello = initialize(&self.program, link, about, state_dir, spec, *gpus_each).await?;
        *self.capabilities.lock().unwrap_or_else(PoisonError::into_inner) = hello.capabilities;
        let in_flight = hello.limits["in_flight"].as_u64().unwrap_or(0).min(MAX_IN_FLIGHT);
        link.allow_in_flight(usize::try_from(in_flight).unwrap_or(0));
        let answer = link.ask("open", &self.parameters().open_params(), OPEN_TIMEOUT).await;
        answer.map_err(|error| startup_error(&self.program, link, &error))?;
        self.ask_for_room(link).await;
        info!("the plugin `{}` is ready", self.program.command_line());
        Ok(())
    }

    /// Serves a process until it ends, and returns the reason for its end.
    async fn serve_process(&self, started: StartedProcess) -> String {
        let StartedProcess { link, mut notifications, mut child } = started;
        self.link.send_replace(Some(Arc::clone(&link)));
        self.room_available.notify_waiters();
        let messages = async {
            while let Some(message) = notifications.recv().await {
                self.handle_message(message);
            }
        };
        tokio::select! {
            () = messages => {}
            () = link.wait_until_lost() => {}
            () = self.keep_asking_for_room(&link) => {}
            () = self.ended.cancelled() => {
                drop(timeout(CLOSE_TIMEOUT, link.ask("close", &json!({}), CLOSE_TIMEOUT)).await);
            }
        }
        self.link.send_replace(None);
        let why = link.lost_reason();
        let how = link::end_process(&link, &mut child).await;
        let why = if why.is_empty() { format!("it ended ({how})") } else { why };
        format!("the plugin `{}`: {why}{}", self.program.command_line(), self.program.last_errors())
    }

    /// Requests the room after each change, and from time to time.
    async fn keep_asking_for_room(&self, link: &Link) {
        loop {
            sleep(ROOM_PAUSES.0).await;
            // A timeout is expected: the room is also requested at intervals, because jobs of other users take room,
            // too.
            drop(timeout(ROOM_PAUSES.1, self.room_changed.notified()).await);
            self.ask_for_room(link).await;
        }
    }

    async fn ask_for_room(&self, link: &Link) {
        let counted = self.room_count.submitted_count();
        let free = if self.capabilities().room {
            match link.ask("room", &json!({}), ROOM_TIMEOUT).await {
                Ok(answer) => answer["free"].as_u64(),
                Err(AskError::Refused(refusal)) => {
                    info!(
                        "the plugin `{}` cannot determine its free room: {refusal}",
                        self.program.command_line()
                    );
                    None
                }
                Err(AskError::Lost) => None,
            }
        } else {
            None
        };
        self.room_count.record_answer(free, counted);
    }

    /// Handles a notification from the plugin.
    fn handle_message(&self, message: Message) {
        let (key, job_message) = match message {
            Message::Gone(gone) => (gone.key.clone(), JobMessage::Gone(gone)),
            Message::Waits(waits) => (waits.key, JobMessage::Waits(waits.why)),
            Message::Room => {
                self.room_changed.notify_one();
                return self.room_available.notify_waiters();
            }
            Message::Log(text) => {
                return info!("the plugin `{}` reports: {text}", self.program.command_line());
            }
            Message::Unknown(method) => {
                return info!(
                    "the plugin `{}` sent an unknown notification: {method}; the manager ignores it",
                    self.program.command_line()
                );
            }
            Message::Answer { .. } => return,
        };
        let jobs = self.jobs();
        match jobs.get(&key.trial).filter(|known| known.attempt == key.attempt) {
            // The send fails if the job has ended, and the message is then obsolete.
            Some(known) => drop(known.messages.send(job_message)),
            None => {
                let name = self.program.command_line();
                info!(trial = %key.trial, "the plugin `{name}` reports an attempt that has ended");
            }
        }
    }

    /// Returns the reason why no process is available. `None`: a process is available.
    fn unavailable_reason(&self) -> Option<String> {
        let is_there = self.link.borrow().as_ref().is_some_and(|link| !link.is_lost());
        (!is_there).then(|| self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }

    /// Waits until a process is available.
    async fn wait_for_link(&self) -> Arc<Link> {
        let mut links = self.link.subscribe();
        let usable = |link: &Option<Arc<Link>>| link.as_ref().is_some_and(|link| !link.is_lost());
        match links.wait_for(usable).await.map(|link| link.clone()) {
            Ok(Some(link)) => link,
            // The sender lives as long as this service.
            Ok(None) | Err(_) => std::future::pending().await,
        }
    }

    fn capabilities(&self) -> Capabilities {
        *self.capabilities.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn jobs(&self) -> MutexGuard<'_, HashMap<TrialJobId, JobTask>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_trouble(&self, why: String) {
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = why;
    }

    fn send_news(&self, news: JobNews) {
        // The receiver lives as long as the experiment, and later news has no reader.
        drop(self.settings.events.send(news));
    }

    fn attempt_key(&self, trial: &TrialJobId, attempt: &AttemptId) -> AttemptKey {
        let experiment = self.settings.experiment.clone();
        AttemptKey { experiment, trial: trial.clone(), attempt: attempt.clone() }
    }

    /// Starts the task of a job.
    fn start_job_task(self: &Arc<Self>, key: AttemptKey, spec: Option<TrialJobSpec>) {
        let (messages, waiting) = mpsc::unbounded_channel();
        let known = JobTask { attempt: key.attempt.clone(), messages };
        self.jobs().insert(key.trial.clone(), known);
        let may_exist = spec.is_none();
        let pending = spec.as_ref().map(|_| self.room_count.add_pending());
        let (trial, attempt) = (key.trial.clone(), key.attempt.clone());
        let job = PluginJob {
            state: Arc::clone(self),
            key,
            spec,
            messages: waiting,
            may_exist,
            pending,
            stop_requested: None,
            withdrawn: false,
            gone: None,
        };
        let (state, ended) = (Arc::clone(self), self.ended.clone());
        self.tasks.spawn(async move {
            let Some(event) = ended.run_until_cancelled(job.run()).await else { return };
            let is_same = |known: &JobTask| known.attempt == attempt;
            let mut jobs = state.jobs();
            if jobs.get(&trial).is_some_and(is_same) {
                jobs.remove(&trial);
            }
            drop(jobs);
            state.room_changed.notify_one();
            // A withdrawn job produces no news.
            if let Some(event) = event {
                state.send_news(JobNews::Gone(event));
            }
        });
    }

    fn send_to_job(&self, trial: &TrialJobId, message: JobMessage) {
        if let Some(known) = self.jobs().get(trial) {
            // A job that is gone needs no stop.
            drop(known.messages.send(message));
        }
    }
}

#[async_trait]
impl TrainingService for Plugin {
    async fn submit(&self, job: &TrialJobSpec) -> Result<(), SubmitError> {
        let key = self.state.attempt_key(&job.trial, &job.attempt);
        self.state.start_job_task(key, Some(job.clone()));
        Ok(())
    }

    async fn adopt(&self, trial: &TrialJobId, attempt: &AttemptId) -> AdoptionResult {
        let state = &self.state;
        let key = state.attempt_key(trial, attempt);
        // All jobs share this time limit, so that hundreds of them do not wait one after the other.
        let until = state.began + FIRST_LINK_TIMEOUT;
        if let Ok(link) = timeout_at(until, state.wait_for_link()).await {
            let answer =
                link.ask("adopt", &state.parameters().adopt_params(&key), ADOPT_TIMEOUT).await;
            let phase = answer.as_ref().ok().and_then(|answer| answer["phase"].as_str());
            if phase == Some("unknown") {
                return AdoptionResult::Unknown;
            }
        }
        // Even without an answer, the job may run, and it must not run twice.
        state.start_job_task(key, None);
        AdoptionResult::Alive
    }

    async fn recover_reports(&self, _: &TrialJobId) {
        // Nothing to do: the reports are delivered before the end of the job is reported.
    }

    async fn stop(&self, trial: &TrialJobId) {
        self.state.send_to_job(trial, JobMessage::Stop { force: false });
    }

    async fn finish(&self, trial: &TrialJobId) {
        self.state.send_to_job(trial, JobMessage::Stop { force: true });
    }

    fn mark_running(&self, trial: &TrialJobId) {
        self.state.send_to_job(trial, JobMessage::Began);
    }

    fn free_room(&self) -> FreeRoom {
        match self.state.unavailable_reason() {
            Some(why) => FreeRoom::Unreachable(why),
            None => match self.state.room_count.free() {
                None => FreeRoom::Unknown,
                Some(0) if self.state.capabilities().queue => FreeRoom::Queue,
                Some(free) => FreeRoom::Jobs(free),
            },
        }
    }

    async fn withdraw(&self, trial: &TrialJobId) -> bool {
        let (reply, answer) = oneshot::channel();
        self.state.send_to_job(trial, JobMessage::Withdraw(reply));
        // The task of a job that is gone does not answer.
        answer.await.unwrap_or(false)
    }

    async fn output(
        &self,
        trial: &TrialJobId,
        ago: Option<Duration>,
    ) -> Option<Result<Output, String>> {
        let state = Arc::clone(&self.state);
        let attempt = state.jobs().get(trial)?.attempt.clone();
        if !state.capabilities().output {
            return None;
        }
        let key = state.attempt_key(trial, &attempt);
        // Earlier output is not requested if the caller wants only recent output.
        let from = if ago.is_some() { u64::MAX } else { 0 };
        let pieces = stream::unfold(Some(from), move |from| {
            let (state, key) = (Arc::clone(&state), key.clone());
            async move { request_output_piece(&state, &key, from?).await }
        });
        Some(Ok(pieces.boxed()))
    }

    async fn close(&self) {
        self.state.ended.cancel();
        self.state.tasks.close();
        self.state.tasks.wait().await;
    }
}

/// Requests a piece of a job's output from this byte on. Returns the piece and the position of the next one. `None` as
/// the position: the output has ended.
async fn request_output_piece(
    state: &PluginState,
    key: &AttemptKey,
    from: u64,
) -> Option<(Vec<u8>, Option<u64>)> {
    let link = state.wait_for_link().await;
    let wait_ms = u64::try_from(OUTPUT_WAIT.as_millis()).unwrap_or(0);
    let params = json!({
        "key": key, "stream": "stdout", "offset": from, "max_bytes": OUTPUT_BYTES, "wait_ms": wait_ms,
    });
    let answer = link.ask("output", &params, OUTPUT_WAIT * 2).await.ok()?;
    let data = BASE64_STANDARD.decode(answer["data"].as_str().unwrap_or_default()).ok()?;
    let offset = answer["offset"].as_u64().unwrap_or(from);
    let next = offset.saturating_add(u64::try_from(data.len()).unwrap_or(0));
    Some((data, (answer["end"] != true).then_some(next)))
}
