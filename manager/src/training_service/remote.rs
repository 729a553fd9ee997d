//! Trials on machines that are reached over SSH, each under an agent that outlives the connection.
//!
//! A machine has one session at a time (`session.rs`), which is opened again for ever. A trial is put on a machine once,
//! and that is written into its folder before the machine is told: it never runs on another as the same attempt. What is
//! said to a machine may be said again, so a new session says everything again.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{info, warn};
use trial_protocol::{AttemptId, Class, ExperimentId, TrialJobId};

use self::machine_assignment::{Assignments, Job};
use self::session::{Luggage, Session, request};
use self::ssh::Ssh;
use super::{
    Adopted, FreeRoom, JobEvent, JobEvents, JobNews, JobWaits, SubmitError, TrainingService,
    TrialJobSpec,
};
use crate::code_archive::hexadecimal;
use crate::config::MachineSpec;
use crate::search::tuner::OptimizeMode;
use crate::token::Secret;
use crate::util::backoff::Backoff;
use crate::util::files::{private_folder, write_file};
use crate::util::layout::ExperimentDir;

mod machine_assignment;
mod platform;
mod session;
mod ssh;

/// The name of the link to the manager's socket beside the control sockets, whose path is short enough for a socket.
const MANAGER_LINK: &str = "manager";
/// The pauses between two attempts to reach a machine: the first, and the longest.
const RECONNECT_PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_mins(1));
/// The life of a session after which the next pause is the first again.
const STEADY_SESSION: Duration = Duration::from_mins(1);
/// The interval at which a stop is repeated to an agent that was not there yet.
const STOP_AGAIN: Duration = Duration::from_secs(1);

/// The facts that a [`Remote`] needs.
#[derive(Debug)]
pub struct Settings {
    /// The agent program.
    pub agent: PathBuf,
    /// The experiment.
    pub experiment: ExperimentId,
    /// Its folder.
    pub dir: ExperimentDir,
    /// The machines.
    pub machines: Vec<MachineSpec>,
    /// `trialGpuNumber`.
    pub gpus_each: Option<u32>,
    /// Name of the metric to optimise, where it is configured.
    pub objective: Option<String>,
    /// Direction of the search, where the file states it.
    pub direction: Option<OptimizeMode>,
    /// The secret that trials' tokens are made from.
    pub secret: Arc<Secret>,
    /// The receiver of news of jobs.
    pub events: JobEvents,
}

/// The reason that the service cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file that the machines are to have.
    #[error("cannot read {}", .path.display())]
    Read {
        /// The path.
        path: PathBuf,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// The folder for the connections' sockets.
    #[error("cannot make a folder for the control sockets")]
    Sockets(#[source] std::io::Error),
}

/// Runs trials on machines that are reached over SSH.
#[derive(Debug, Clone)]
pub struct Remote {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    settings: Settings,
    agent_sha256: String,
    sockets: TempDir,
    assignments: Mutex<Assignments>,
    ended: CancellationToken,
    tasks: TaskTracker,
}

impl Remote {
    /// Makes the service and begins to connect to the machines. An error is of this machine's files.
    pub fn start(settings: Settings) -> Result<Self, Error> {
        let read = |path: &PathBuf| {
            std::fs::read(path).map_err(|source| Error::Read { path: path.clone(), source })
        };
        let digest = ring::digest::digest(&ring::digest::SHA256, &read(&settings.agent)?);
        let agent_sha256 = hexadecimal(digest.as_ref());
        // In the data directory the path could be too long for a socket.
        let mut builder = tempfile::Builder::new();
        let sockets = builder.prefix("tk-").tempdir_in("/tmp").map_err(Error::Sockets)?;
        let manager = std::path::absolute(settings.dir.manager_socket()).map_err(Error::Sockets)?;
        std::os::unix::fs::symlink(manager, sockets.path().join(MANAGER_LINK))
            .map_err(Error::Sockets)?;
        let assignments = Mutex::new(Assignments::new(&settings.machines, settings.gpus_each));
        let (ended, tasks) = (CancellationToken::new(), TaskTracker::new());
        let shared =
            Arc::new(Shared { settings, agent_sha256, sockets, assignments, ended, tasks });
        for number in 0..shared.settings.machines.len() {
            let keeper = Arc::clone(&shared);
            let stopped = shared.ended.clone();
            shared.tasks.spawn(async move {
                stopped.run_until_cancelled(keep(&keeper, number)).await;
            });
        }
        Ok(Self { shared })
    }
}

/// Keeps a session on a machine, for ever.
async fn keep(shared: &Arc<Shared>, number: usize) {
    let machine = &shared.settings.machines[number];
    let ssh = Ssh::new(machine, shared.sockets.path(), number);
    let mut backoff = Backoff::new(RECONNECT_PAUSES.0, RECONNECT_PAUSES.1);
    loop {
        let begun = Instant::now();
        let why = match session(shared, number, &ssh).await {
            Ok(why) | Err(why) => why,
        };
        warn!(machine = %machine.name, "not connected: {why}");
        shared.assignments().disconnected(number, why);
        shared.tell_waiting();
        if begun.elapsed() > STEADY_SESSION {
            backoff.reset();
        }
        sleep(backoff.next_pause()).await;
    }
}

/// One session from its beginning to its end: why it ended.
async fn session(shared: &Arc<Shared>, number: usize, ssh: &Ssh) -> Result<String, String> {
    let settings = &shared.settings;
    let machine = &settings.machines[number];
    let code = settings.dir.code_archive();
    let luggage = Luggage {
        experiment: settings.experiment.as_str(),
        agent: &settings.agent,
        agent_sha256: &shared.agent_sha256,
        code: &code,
        socket: &shared.sockets.path().join(MANAGER_LINK),
    };
    let mut session = Session::open(ssh, machine, &luggage).await?;
    let (sender, mut outgoing) = mpsc::unbounded_channel();
    shared.assignments().connected(number, &session.gpus, sender)?;
    info!(machine = %machine.name, "connected");
    shared.say_everything(number);
    shared.place();
    loop {
        tokio::select! {
            line = session.lines.recv() => match line {
                Some(line) => shared.heard(number, &line),
                None => return Ok("the helper there ended".to_owned()),
            },
            Some(line) = outgoing.recv() => session.send(&line).await?,
            ended = session.master.wait() => return Ok(match ended {
                Ok(status) => format!("the connection was lost (ssh: {status})"),
                Err(error) => format!("the connection was lost: {error}"),
            }),
        }
    }
}

impl Shared {
    fn assignments(&self) -> MutexGuard<'_, Assignments> {
        self.assignments.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn news(&self, news: JobNews) {
        // The receiver lives as long as the experiment; after it the news have no reader.
        drop(self.settings.events.send(news));
    }

    /// Puts waiting trials on machines that have room, the longest waiting one first.
    fn place(self: &Arc<Self>) {
        loop {
            let placed = self.assignments().place();
            let Some((trial, machine)) = placed else { break };
            let name = &self.settings.machines[machine].name;
            let attempt = self.assignments().jobs.get(&trial).map(|job| job.attempt.clone());
            let Some(attempt) = attempt else { continue };
            let dir = self.settings.dir.trial(&trial);
            let written = private_folder(dir.path()).and_then(|()| {
                let text = format!("{attempt}\n{name}\n");
                write_file(&dir.path().join(PLACE), 0o600, &text)
            });
            match written {
                Ok(()) => self.say(machine, &trial),
                Err(error) => {
                    let message = Some(format!("cannot write {}: {error}", dir.path().display()));
                    self.ended(&trial, &attempt, None, message, Some(Class::Transient));
                }
            }
        }
        self.tell_waiting();
    }

    /// Tells why trials wait.
    fn tell_waiting(&self) {
        let assignments = self.assignments();
        let why = assignments.why();
        for job in &assignments.waiting {
            let (trial, attempt) = (job.trial.clone(), job.attempt.clone());
            self.news(JobNews::Waits(JobWaits { trial, attempt, why: why.clone() }));
        }
    }

    /// Says to a machine what it may not have heard.
    fn say_everything(self: &Arc<Self>, number: usize) {
        let trials: Vec<TrialJobId> = self.assignments().on(number).cloned().collect();
        for trial in trials {
            self.say(number, &trial);
        }
    }

    /// Says to a machine what becomes of a trial: submit or adopt, and that it is to stop.
    fn say(self: &Arc<Self>, number: usize, trial: &TrialJobId) {
        let mut assignments = self.assignments();
        let Some(job) = assignments.jobs.get(trial) else { return };
        let key = self.key(trial, &job.attempt);
        let (method, params) = match &job.spec {
            Some(spec) if !job.stop_requested => ("submit", self.submission(job, spec, &key)),
            Some(_) | None => {
                let secret = &self.settings.secret;
                let token = secret.trial_token(&self.settings.experiment, trial, secret.now_ms());
                ("adopt", json!({"key": key, "files": [{"name": "token", "text": token}]}))
            }
        };
        let stop_requested = job.stop_requested;
        assignments.request(number, trial, method, &params);
        if stop_requested {
            assignments.request(number, trial, "cancel", &json!({"key": key}));
        }
    }

    fn key(&self, trial: &TrialJobId, attempt: &AttemptId) -> Value {
        json!({"experiment": self.settings.experiment, "trial": trial, "attempt": attempt})
    }

    fn submission(&self, job: &Job, spec: &TrialJobSpec, key: &Value) -> Value {
        let place = |of: &str, name: &str| json!({"in": of, "name": name});
        let mut args = vec![json!("run")];
        let mut say = |flag: &str, value: Value| args.extend([json!(flag), value]);
        say("--experiment", json!(spec.experiment));
        say("--trial", json!(spec.trial));
        say("--attempt", json!(spec.attempt));
        say("--platform", json!("remote"));
        say("--sequence", json!(spec.sequence.to_string()));
        say("--manager-file", place("shared", "manager.url"));
        say("--token-file", place("job", "token"));
        say("--output-dir", place("job", ""));
        say("--spool-dir", place("job", "spool"));
        say("--parameters", place("job", "parameter.cfg"));
        say("--code-archive", place("shared", "code.tar.gz"));
        say("--log-file", place("job", "agent.log"));
        say("--log-collection", json!("http"));
        if let Some(objective) = &self.settings.objective {
            say("--objective", json!(objective));
        }
        if let Some(direction) = self.settings.direction {
            say("--direction", json!(direction.word()));
        }
        say("--shell", json!(spec.command));
        let mut environment = json!({});
        if let Some(visible) = &job.gpus {
            environment["CUDA_VISIBLE_DEVICES"] = json!(visible);
            environment["CUDA_DEVICE_ORDER"] = json!("PCI_BUS_ID");
        }
        json!({
            "key": key,
            "sequence": spec.sequence,
            "args": args,
            "environment": environment,
            "files": [
                {"name": "token", "text": spec.token.0},
                {"name": "parameter.cfg", "text": spec.parameter_record.to_string()},
            ],
        })
    }

    /// Takes a line of a machine's helper.
    fn heard(self: &Arc<Self>, number: usize, line: &str) {
        let Ok(message) = serde_json::from_str::<Value>(line) else { return };
        if message["method"] == "gone" {
            return self.heard_gone(number, &message["params"]);
        }
        let Some(asked) =
            message["id"].as_u64().and_then(|id| self.assignments().answered(number, id))
        else {
            return;
        };
        let (trial, attempt) = (asked.trial, asked.attempt);
        match asked.method {
            "submit" => {
                if let Some(why) = message["error"]["message"].as_str() {
                    let why = format!("{}: {why}", self.settings.machines[number].name);
                    self.ended(&trial, &attempt, None, Some(why), Some(Class::Transient));
                }
            }
            "adopt" if message["result"]["phase"] == "unknown" => {
                self.ended(&trial, &attempt, None, None, None);
            }
            "cancel" if message["result"]["known"] == false => {
                let shared = Arc::clone(self);
                let stopped = self.ended.clone();
                self.tasks.spawn(async move {
                    stopped.run_until_cancelled(sleep(STOP_AGAIN)).await;
                    let key = shared.key(&trial, &attempt);
                    shared.assignments().request(number, &trial, "cancel", &json!({"key": key}));
                });
            }
            _ => {}
        }
    }

    fn heard_gone(self: &Arc<Self>, number: usize, params: &Value) {
        let text = |name: &str| params["key"][name].as_str();
        let ids = text("trial").zip(text("attempt"));
        let ids = ids.and_then(|(trial, attempt)| {
            Some((TrialJobId::new(trial).ok()?, AttemptId::new(attempt).ok()?))
        });
        let Some((trial, attempt)) = ids else { return };
        // The manager was out of reach for the agent's last reports; they are asked for again.
        if params["spool"] == "left" && self.assignments().may_replay(number, &trial, &attempt) {
            let key = self.key(&trial, &attempt);
            self.assignments().request(number, &trial, "adopt", &json!({"key": key}));
            return;
        }
        let code = params["exit"]["code"].as_i64().and_then(|code| i32::try_from(code).ok());
        self.ended(&trial, &attempt, code, None, None);
    }

    /// A job is gone: tells it once, and gives its place to the next.
    fn ended(
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
        let unexplained = JobEvent::unexplained(trial, attempt);
        self.news(JobNews::Gone(JobEvent { exit_code, message, class, ..unexplained }));
        self.place();
    }
}

/// Name of the file in a trial's folder that says on which machine which attempt was put.
const PLACE: &str = "machine";

#[async_trait]
impl TrainingService for Remote {
    async fn submit(&self, job: &TrialJobSpec) -> Result<(), SubmitError> {
        self.shared.assignments().waiting.push_back(job.clone());
        self.shared.place();
        Ok(())
    }

    async fn adopt(&self, trial: &TrialJobId, attempt: &AttemptId) -> Adopted {
        let path = self.shared.settings.dir.trial(trial).path().join(PLACE);
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let mut lines = text.lines();
        if lines.next() != Some(attempt.as_str()) {
            return Adopted::Unknown;
        }
        let name = lines.next().unwrap_or_default();
        let machines = &self.shared.settings.machines;
        let Some(number) = machines.iter().position(|machine| machine.name == name) else {
            warn!(%trial, "it was put on the machine {name:?}, which the experiment does not name");
            return Adopted::Gone(JobEvent::unexplained(trial.clone(), attempt.clone()));
        };
        self.shared.assignments().take_over(trial, attempt, number);
        self.shared.say(number, trial);
        Adopted::Alive
    }

    async fn recover(&self, trial: &TrialJobId) {
        // The helper delivers what is left before it tells that a job is gone.
        let _ = trial;
    }

    async fn stop(&self, trial: &TrialJobId) {
        let (waited, job) = self.shared.assignments().request_stop(trial);
        if let Some(attempt) = waited {
            let event = JobEvent::unexplained(trial.clone(), attempt);
            self.shared.news(JobNews::Gone(event));
        } else if let Some((number, attempt)) = job {
            let params = json!({"key": self.shared.key(trial, &attempt)});
            self.shared.assignments().request(number, trial, "cancel", &params);
        }
    }

    fn free_room(&self) -> FreeRoom {
        self.shared.assignments().free_room()
    }

    async fn withdraw(&self, trial: &TrialJobId) -> bool {
        self.shared.assignments().withdraw(trial)
    }

    async fn close(&self) {
        self.shared.ended.cancel();
        self.shared.tasks.close();
        self.shared.tasks.wait().await;
    }
}
