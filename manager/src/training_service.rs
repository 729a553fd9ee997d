//! The training services, which run trial jobs. A training service starts jobs, says when they are gone, and stops them; it knows
//! nothing of experiments, tuners or the store.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use trial_protocol::{AttemptId, Cause, Class, ExperimentId, TrialJobId, Verdict};

pub mod agent_program;
pub mod hybrid;
pub mod kubernetes;
pub mod local;
pub mod platform;
pub mod plugin;
pub mod remote;

/// A trial job as wanted.
#[derive(Debug, Clone, PartialEq)]
pub struct TrialJobSpec {
    /// The experiment.
    pub experiment: ExperimentId,
    /// The trial.
    pub trial: TrialJobId,
    /// Its attempt.
    pub attempt: AttemptId,
    /// Position of the trial in its experiment, from 0.
    pub sequence: u64,
    /// The shell line to run, placeholders filled in.
    pub command: String,
    /// The parameter record for `parameter.cfg`.
    pub parameter_record: Value,
    /// The bearer token with which the agent reports. Never shown.
    pub token: Token,
}

/// A parameter record as NNI's SDK reads it from `parameter.cfg` (NNI 3.0, `nni/trial.py`): the content
/// of the dispatcher's `TR` message.
pub fn parameter_record(parameter_id: Option<u64>, parameters: &Value) -> Value {
    let source = if parameter_id.is_some() { "algorithm" } else { "customized" };
    json!({
        "parameter_id": parameter_id,
        "parameter_source": source,
        "parameters": parameters,
        "parameter_index": 0,
    })
}

/// A secret text: its `Debug` hides it.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(pub String);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// The end of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobEvent {
    /// The trial.
    pub trial: TrialJobId,
    /// Its attempt.
    pub attempt: AttemptId,
    /// Exit code of the job's first process (the agent), as a shell shows it, where known.
    pub exit_code: Option<i32>,
    /// The reason that the job is gone, where the service knows more than a code. For a person.
    pub message: Option<String>,
    /// The prospect of a retry, where the service knows.
    pub class: Option<Class>,
    /// The cause, where the service knows it for certain and the agent may not have lived to tell it.
    pub cause: Option<Cause>,
    /// The disruption that took the job's machine away: the platform's reason and its words.
    pub disruption: Option<String>,
    /// True if the service calls the job a success, whatever its agent saw: a controller ends the other pods of a job
    /// once enough of them have succeeded.
    pub succeeded: bool,
    /// True if the service has fenced the attempt: its machine is out of reach, and the service sees to it that the attempt
    /// ends before anything else happens there. What it still reports counts for nothing.
    pub fenced: bool,
    /// True if the service never made the job and never will: it may be submitted elsewhere.
    pub refused: bool,
}

impl JobEvent {
    /// The job is gone, and the service knows no more.
    pub fn unexplained(trial: TrialJobId, attempt: AttemptId) -> Self {
        Self {
            trial,
            attempt,
            exit_code: None,
            message: None,
            class: None,
            cause: None,
            disruption: None,
            succeeded: false,
            fenced: false,
            refused: false,
        }
    }
}

/// The reason that a job that was submitted does not run yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobWaits {
    /// The trial.
    pub trial: TrialJobId,
    /// Its attempt.
    pub attempt: AttemptId,
    /// For a person.
    pub why: String,
}

/// A pod of a job with several that its platform takes away.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodLeft {
    /// Which trial.
    pub trial: TrialJobId,
    /// Which attempt of it.
    pub attempt: AttemptId,
    /// The pod's own id, as its platform gives it.
    pub incarnation: String,
}

/// The image that a job runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobImage {
    /// The trial.
    pub trial: TrialJobId,
    /// Its attempt.
    pub attempt: AttemptId,
    /// The image with its digest, as the platform names it: `docker.io/library/busybox@sha256:…`.
    pub image: String,
}

/// The part of several training services to which an attempt is submitted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobPart {
    /// The trial.
    pub trial: TrialJobId,
    /// Its attempt.
    pub attempt: AttemptId,
    /// The part's place in the list, from 0.
    pub part: usize,
    /// Its platform.
    pub platform: String,
}

/// News from a training service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobNews {
    /// A job is gone and everything that its agent left behind was delivered: once per job.
    Gone(JobEvent),
    /// A job waits, for a reason that is new.
    Waits(JobWaits),
    /// A job that ran is to wait again, as [`Self::Waits`], and is not gone: its queue has taken it back.
    Requeued(JobWaits),
    /// A pod is no longer one of its job's, and another may take its place: once per pod.
    PodLeft(PodLeft),
    /// The platform has resolved a job's image: once per attempt.
    Image(JobImage),
    /// An attempt is about to be submitted to one of several services: once per submission.
    Placed(JobPart),
}

/// The room for further jobs, as of now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FreeRoom {
    /// The service does not know; a job that it cannot begin with waits there.
    Unknown,
    /// The service begins at once with so many jobs.
    Jobs(usize),
    /// The service cannot begin, since it is out of reach. The reason, for a person.
    Unreachable(String),
}

/// The state of one of several training services.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartStatus {
    /// Its platform.
    pub platform: String,
    /// Jobs that are there.
    pub jobs: usize,
    /// The jobs of these that wait there.
    pub waiting: usize,
    /// Jobs that it could take beside them. `None`: it does not know.
    pub free: Option<usize>,
    /// The reason that it cannot be reached. `None`: it can.
    pub trouble: Option<String>,
}

/// Where the news of all jobs goes.
pub type JobEvents = mpsc::UnboundedSender<JobNews>;

/// The fate of a job that was submitted before a restart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Adopted {
    /// The job is there; its event will come.
    Alive,
    /// The job is gone. What its agent left behind was delivered, and this is all that the service knows.
    Gone(JobEvent),
    /// The job was never there: it may be submitted.
    Unknown,
}

/// The output of a job, piece by piece, as the job prints it.
pub type Output = BoxStream<'static, Vec<u8>>;

/// The reason that a job could not be submitted: an error of the service's own.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct SubmitError(Box<dyn std::error::Error + Send + Sync>);

impl SubmitError {
    /// Returns the error as a training service hands it on.
    pub fn new(error: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self(Box::new(error))
    }
}

/// Runs trial jobs somewhere.
#[async_trait]
pub trait TrainingService: Send + Sync {
    /// Starts a job. The caller has recorded the attempt before, so that a crash in between is seen.
    async fn submit(&self, job: &TrialJobSpec) -> Result<(), SubmitError>;

    /// Takes over a job that an earlier manager submitted: looks for it, delivers what it left behind,
    /// and watches it if it lives.
    async fn adopt(&self, trial: &TrialJobId, attempt: &AttemptId) -> Adopted;

    /// Delivers what a gone job's agent left behind, if anything.
    async fn recover(&self, trial: &TrialJobId);

    /// The verdict that an attempt's agent kept where the service can read it, for one whose reports were lost on their
    /// way. `None`: there is none, or it is out of reach.
    async fn kept_verdict(&self, _trial: &TrialJobId, _attempt: &AttemptId) -> Option<Verdict> {
        None
    }

    /// Asks a job to end: politely, and after its agent's own budgets by force. Returns at once; the end
    /// comes as an event. A job that is gone is no error.
    async fn stop(&self, trial: &TrialJobId);

    /// Returns whether a trial has ended as soon as its agent has said so, while its job still goes: then the service sees to
    /// the rest, and the next trial need not wait for it.
    fn ends_with_verdict(&self) -> bool {
        false
    }

    /// A job's agent has said that its command has ended, and the trial was recorded as ended. Returns at once.
    async fn handed_over(&self, _trial: &TrialJobId) {}

    /// A job's agent has said that its command has ended and has been silent since, and the job is still there: ends
    /// what is left of it. Returns at once.
    async fn finish(&self, trial: &TrialJobId) {
        self.stop(trial).await;
    }

    /// Returns the output of a job whose agent is not heard, straight from its machine: all of it, or what comes since
    /// `ago`. `None`: nothing is to be had, or not yet. `Err`: why it never will be.
    async fn output(
        &self,
        _trial: &TrialJobId,
        _ago: Option<Duration>,
    ) -> Option<Result<Output, String>> {
        None
    }

    /// Waits until the service has been out of reach for so long that a stopping manager should not wait for the ends
    /// of its jobs. [`Self::close`] then says what is left where, and why.
    async fn out_of_reach(&self) {
        std::future::pending::<()>().await;
    }

    /// Trials that it can run at a time. `None`: it knows of no bound.
    fn room(&self) -> Option<usize> {
        None
    }

    /// Returns the room for further jobs beside those that were submitted.
    fn free_room(&self) -> FreeRoom {
        FreeRoom::Unknown
    }

    /// Takes back a job that was submitted and that the service has not begun with: `true` if no part of it is there and none
    /// will be. No news of it come any more.
    async fn withdraw(&self, _trial: &TrialJobId) -> bool {
        false
    }

    /// A job's agent was heard: the job runs. Returns at once.
    fn began(&self, _trial: &TrialJobId) {}

    /// Returns the state of each of several services. Empty: it is one.
    fn parts(&self) -> Vec<PartStatus> {
        Vec::new()
    }

    /// Waits for what still watches jobs; called once, when no job is left that anybody waits for.
    async fn close(&self);
}
