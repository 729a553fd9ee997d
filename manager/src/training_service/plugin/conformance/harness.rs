//! The manager's side of the conformance test: processes of the plugin, jobs, and their ends.

use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::process::Command;
use tokio::time::{Instant, timeout};
use trial_protocol::{AttemptId, ExperimentId, TrialJobId};

use super::super::handshake::{Capabilities, initialize, program};
use super::super::link::{self, AskError, Link, Program, StartedProcess};
use super::super::wire::{AttemptKey, GoneMessage, Message, Remedy};
use super::super::{ADOPT_TIMEOUT, CANCEL_TIMEOUT, CLEAN_UP_TIMEOUT, Error, SUBMIT_TIMEOUT};
use super::job::ConformanceJob;
use super::{PIECE_PAUSE, SHORT_GRACE, STATE_TIMEOUT, unsupported_version_params};
use crate::config::PluginSpec;
use crate::util::ids;

/// The time limit for the end of a plugin that was closed, or was started by hand.
const END_TIMEOUT: Duration = Duration::from_secs(10);

/// A plugin under test, and the folder of an experiment.
#[derive(Debug)]
pub(super) struct Harness {
    spec: PluginSpec,
    program: Program,
    agent: PathBuf,
    experiment: ExperimentId,
    folder: TempDir,
    process: Option<StartedProcess>,
    gone: Vec<GoneMessage>,
    jobs: AtomicU64,
}

impl Harness {
    pub(super) fn new(spec: &PluginSpec, agent: PathBuf) -> Result<Self, Error> {
        // The folder is below the working directory, whose disk a remote platform is more likely to share than /tmp.
        let place = std::env::current_dir().unwrap_or_else(|_| std::env::temp_dir());
        let failed = |source| Error::Write { path: place.clone(), source };
        let folder = tempfile::Builder::new().prefix(".conformance-").tempdir_in(&place);
        let folder = folder.map_err(failed)?;
        let state_dir = folder.path().join("training-service");
        std::fs::create_dir(&state_dir).map_err(failed)?;
        // No manager listens there, so agents keep their reports.
        let url = folder.path().join("manager.url");
        std::fs::write(&url, "http://127.0.0.1:9\n").map_err(failed)?;
        Ok(Self {
            spec: spec.clone(),
            program: program(spec, &place, &state_dir, Vec::new()),
            agent,
            experiment: ids::new_experiment_id(),
            folder,
            process: None,
            gone: Vec::new(),
            jobs: AtomicU64::new(0),
        })
    }

    fn state_dir(&self) -> PathBuf {
        self.folder.path().join("training-service")
    }

    /// Returns the last lines of the plugin's standard error.
    pub(super) fn last_errors(&self) -> String {
        self.program.last_errors()
    }

    fn link(&self) -> Result<Arc<Link>, String> {
        let process = self.process.as_ref().ok_or("no process of the plugin runs")?;
        Ok(Arc::clone(&process.link))
    }

    /// Starts a process and completes the handshake.
    pub(super) async fn open(&mut self) -> Result<Capabilities, String> {
        let started = Link::start(&self.program)?;
        let link = Arc::clone(&started.link);
        self.process = Some(started);
        let state_dir = self.state_dir();
        let hello = initialize(
            &self.program,
            &link,
            (&self.experiment, None),
            &state_dir,
            &self.spec,
            None,
        );
        let hello = hello.await.map_err(|error| error.to_string())?;
        let url = self.folder.path().join("manager.url");
        let files = json!([{"name": "manager.url", "path": url}]);
        self.ask("open", &json!({"agent": self.agent, "files": files})).await?;
        Ok(hello.capabilities)
    }

    /// Sends a request and waits for the result.
    pub(super) async fn ask(&self, method: &'static str, params: &Value) -> Result<Value, String> {
        let bound = match method {
            "submit" => SUBMIT_TIMEOUT,
            "cancel" => CANCEL_TIMEOUT,
            "clean_up" => CLEAN_UP_TIMEOUT,
            _ => ADOPT_TIMEOUT,
        };
        let link = self.link()?;
        link.ask(method, params, bound).await.map_err(|error| match error {
            AskError::Lost if !link.lost_reason().is_empty() => {
                format!("{method}: {}", link.lost_reason())
            }
            error @ (AskError::Lost | AskError::Refused(_)) => format!("{method}: {error}"),
        })
    }

    /// Creates a job without submitting it.
    pub(super) fn new_job(&self, command: &str) -> ConformanceJob {
        let number = self.jobs.fetch_add(1, Ordering::Relaxed);
        let trial = TrialJobId::new(format!("t{number}")).expect("a valid id");
        let attempt = AttemptId::new(format!("t{number}-1")).expect("a valid id");
        let folder = self.folder.path().join(trial.as_str());
        let key = AttemptKey { experiment: self.experiment.clone(), trial, attempt };
        let command = format!("echo run >>'{}'; {command}", folder.join("starts").display());
        ConformanceJob { key, folder, command }
    }

    /// Creates a job that runs until its gate, a file, exists.
    pub(super) fn job_at_gate(&self) -> ConformanceJob {
        let mut job = self.new_job("");
        let gate = job.folder.join("gate");
        // A job that starts late must not outlive the case, whose folder is removed at its end.
        let (folder, gate) = (job.folder.display(), gate.display());
        let wait = format!("while [ -d '{folder}' ] && ! [ -e '{gate}' ]; do sleep 0.05; done");
        job.command.push_str(&wait);
        job
    }

    /// Submits a job without waiting for its start.
    pub(super) async fn submit_new(&self, command: &str) -> Result<ConformanceJob, String> {
        let job = self.new_job(command);
        self.submit(&job).await?;
        Ok(job)
    }

    /// Submits a job that runs until its gate is opened, and waits for its start.
    pub(super) async fn run_at_gate(&self) -> Result<ConformanceJob, String> {
        let job = self.job_at_gate();
        self.submit(&job).await?;
        job.wait_for_start().await?;
        Ok(job)
    }

    /// Creates a job that runs `action` on SIGTERM.
    pub(super) fn job_trapping(&self, action: &str) -> ConformanceJob {
        let mut job = self.new_job("");
        // The trap is set before the start is recorded.
        job.command = format!("trap '{action}' TERM; {} while :; do sleep 0.05; done", job.command);
        job
    }

    /// Submits a job that runs `action` on SIGTERM, and waits for its start.
    pub(super) async fn run_trapping(&self, action: &str) -> Result<ConformanceJob, String> {
        let job = self.job_trapping(action);
        self.submit(&job).await?;
        job.wait_for_start().await?;
        Ok(job)
    }

    pub(super) async fn submit(&self, job: &ConformanceJob) -> Result<(), String> {
        self.ask("submit", &job.submit_params()?).await.map(drop)
    }

    /// Submits a job with a request that arrives in pieces.
    pub(super) async fn submit_in_pieces(&self, job: &ConformanceJob) -> Result<(), String> {
        let (link, params) = (self.link()?, job.submit_params()?);
        let answer = link.ask_in_pieces("submit", &params, SUBMIT_TIMEOUT, PIECE_PAUSE).await;
        answer.map(drop).map_err(|error| format!("submit: {error}"))
    }

    /// Submits a job that should be refused, and returns the remedy. `None`: the plugin accepted it.
    pub(super) async fn submit_refused(
        &self,
        job: &ConformanceJob,
    ) -> Result<Option<Remedy>, String> {
        let params = job.submit_params()?;
        match self.link()?.ask("submit", &params, SUBMIT_TIMEOUT).await {
            Ok(_) => Ok(None),
            Err(AskError::Refused(refusal)) => Ok(Some(refusal.remedy)),
            Err(AskError::Lost) => Err("submit: the plugin's process ended".to_owned()),
        }
    }

    /// Submits a job, and kills the plugin after `delay`, even without an answer.
    pub(super) async fn submit_and_kill(&mut self, job: &ConformanceJob, delay: Duration) {
        // The answer, if any, is lost.
        drop(timeout(delay, self.submit(job)).await);
        self.kill().await;
    }

    /// Stops a job and returns whether the plugin knew it.
    pub(super) async fn cancel(&self, job: &ConformanceJob, force: bool) -> Result<bool, String> {
        let grace_ms = u64::try_from((SHORT_GRACE * 2).as_millis()).unwrap_or(0);
        let params = json!({"key": job.key, "force": force, "grace_ms": grace_ms});
        let answer = self.ask("cancel", &params).await?;
        let known = answer["known"].as_bool();
        known.ok_or_else(|| format!("the answer to cancel is {answer}, without `known`"))
    }

    /// Adopts a job and returns its phase.
    pub(super) async fn adopt(&mut self, job: &ConformanceJob) -> Result<String, String> {
        let params = json!({"key": job.key, "files": []});
        let answer = self.ask("adopt", &params).await?;
        if let Ok(gone) = serde_json::from_value::<GoneMessage>(answer["gone"].clone()) {
            self.gone.push(gone);
        }
        Ok(answer["phase"].as_str().unwrap_or_default().to_owned())
    }

    /// Waits until the plugin reports that a job is gone.
    pub(super) async fn wait_until_gone(
        &mut self,
        job: &ConformanceJob,
    ) -> Result<GoneMessage, String> {
        let until = Instant::now() + STATE_TIMEOUT;
        loop {
            if let Some(gone) = self.gone.iter().find(|gone| gone.key == job.key) {
                return Ok(gone.clone());
            }
            let process = self.process.as_mut().ok_or("no process of the plugin runs")?;
            match tokio::time::timeout_at(until, process.notifications.recv()).await {
                Ok(Some(Message::Gone(gone))) => self.gone.push(*gone),
                Ok(Some(_)) => {}
                Ok(None) => return Err("the plugin's process ended".to_owned()),
                Err(_) => return Err("the plugin did not report the end of a job".to_owned()),
            }
        }
    }

    /// Returns how often the plugin has reported that a job is gone.
    pub(super) fn count_gone(&self, job: &ConformanceJob) -> usize {
        self.gone.iter().filter(|gone| gone.key == job.key).count()
    }

    /// Returns the number of jobs that the plugin lists.
    pub(super) async fn count_listed(&self) -> Result<usize, String> {
        let answer = self.ask("list", &json!({})).await?;
        let jobs = answer["jobs"].as_array().map(Vec::len);
        jobs.ok_or_else(|| format!("the answer to list is {answer}, without `jobs`"))
    }

    /// Adopts a job that has ended or is about to, and waits for the report of its end.
    pub(super) async fn adopt_until_gone(
        &mut self,
        job: &ConformanceJob,
    ) -> Result<GoneMessage, String> {
        let phase = self.adopt(job).await?;
        if phase == "unknown" {
            return Err("the plugin no longer knows a started job".to_owned());
        }
        self.wait_until_gone(job).await
    }

    /// Kills the plugin and its entire process group.
    pub(super) async fn kill(&mut self) {
        let Some(mut process) = self.process.take() else { return };
        if let Some(pid) = process.child.id().and_then(|pid| i32::try_from(pid).ok()) {
            // Ignored: the plugin may already have ended.
            killpg(Pid::from_raw(pid), Signal::SIGKILL).ok();
        }
        drop(process.child.wait().await);
    }

    /// Closes the plugin.
    pub(super) async fn close(&mut self) -> Result<(), String> {
        self.ask("close", &json!({})).await?;
        let Some(mut process) = self.process.take() else { return Ok(()) };
        // Giving up the link closes the plugin's standard input.
        process.link.give_up(String::new());
        let ended = timeout(END_TIMEOUT, process.child.wait()).await;
        ended.map(drop).map_err(|_| "it did not end within ten seconds of close".to_owned())
    }

    /// Starts the program as a user would at a terminal.
    pub(super) async fn start_by_hand(&self) -> Result<(), String> {
        let (name, arguments) = self.program.command.split_first().ok_or("there is no command")?;
        let mut command = Command::new(name);
        command.args(arguments).env_remove("TRIALKEEPER_PLUGIN").stdin(Stdio::null());
        let output = command.kill_on_drop(true).output();
        let output = timeout(END_TIMEOUT, output).await;
        let output =
            output.map_err(|_| "it does not end when a user starts it by hand".to_owned())?;
        let output = output.map_err(|error| error.to_string())?;
        if output.status.success() || output.stderr.is_empty() {
            return Err("it ends with exit code 0, or prints nothing on standard error".to_owned());
        }
        Ok(())
    }

    /// Offers a version that does not exist.
    pub(super) async fn offer_unsupported_version(&mut self) -> Result<(), String> {
        let started = Link::start(&self.program)?;
        let link = Arc::clone(&started.link);
        self.process = Some(started);
        match link
            .ask("initialize", &unsupported_version_params(&self.state_dir()), ADOPT_TIMEOUT)
            .await
        {
            Err(AskError::Refused(refusal)) if refusal.remedy == Remedy::OtherVersion => Ok(()),
            Err(AskError::Refused(refusal)) => {
                Err(format!("it refuses, but not with -32007: {refusal}"))
            }
            Err(AskError::Lost) => Err("it ends instead of answering -32007".to_owned()),
            Ok(_) => Err("it accepts versions 7 to 9".to_owned()),
        }
    }

    /// Sends lines that are not requests, and a request with an unknown method.
    pub(super) async fn send_invalid_lines(&mut self) -> Result<(), String> {
        self.open().await?;
        let link = self.link()?;
        for line in ["no JSON\n", "[]\n", "{}\n", "\n", "{\"method\": \"sings\"}\n"] {
            link.send_line(line);
        }
        if link.ask("dances", &json!({}), ADOPT_TIMEOUT).await.is_ok() {
            return Err("it accepts an unknown request".to_owned());
        }
        let job = self.submit_new("true").await?;
        self.wait_until_gone(&job).await.map(drop)
    }

    /// Ends the plugin and the remaining jobs.
    pub(super) async fn end(mut self) {
        let made = self.jobs.load(Ordering::Relaxed);
        for number in 0..made {
            // Opens the gates, so that waiting jobs end.
            drop(std::fs::write(self.folder.path().join(format!("t{number}/gate")), ""));
        }
        if self.process.is_none() && made > 0 {
            drop(self.open().await);
        }
        drop(self.ask("clean_up", &json!({})).await);
        if let Some(mut process) = self.process.take() {
            link::end_process(&process.link, &mut process.child).await;
        }
    }
}
