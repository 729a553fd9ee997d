//! The training services, which run trial jobs. A training service starts jobs, reports their ends, and stops them. It
//! does not depend on experiments, tuners or the store.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use trial_protocol::{AttemptId, Cause, Class, ExperimentId, TrialJobId, Verdict};

use self::completion::TrialCompletion;

pub mod agent_arguments;
pub mod agent_program;
pub mod completion;
pub mod hybrid;
pub mod kubernetes;
pub mod local;
pub mod platform;
pub mod plugin;
pub mod remote;

/// The time limit for the end of an agent after a stop request. It includes the agent's own limits (20 s for the trial,
/// 2 s for its output, 5 s for delivery) and a margin. After it, the agent is killed, and thereby its trial.
const AGENT_END_TIMEOUT: Duration = Duration::from_secs(35);
/// The exit code of an agent that failed itself (`docs/exit-codes.md`).
const AGENT_ERROR_CODE: i32 = 125;

/// The specification of a trial job.
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
    /// The shell line to run, without placeholders.
    pub command: String,
    /// The parameter record for `parameter.cfg`.
    pub parameter_record: Value,
    /// The bearer token with which the agent reports. `Debug` output hides it.
    pub token: Token,
}

/// Returns the parameter record that NNI's SDK reads from `parameter.cfg` (NNI 3.0, `nni/trial.py`). It is the content
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

/// A secret text. Its `Debug` output hides the text.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(pub String);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// The end of a job at its training service.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JobEnd {
    /// The exit code of the job's first process (the agent) in the form that a shell shows, if known.
    pub exit_code: Option<i32>,
    /// The reason for the end, for the user, if the service knows more than a code.
    pub message: Option<String>,
    /// The prospect of a retry, if the service knows it.
    pub class: Option<Class>,
    /// The cause, if the service is certain of it. The agent may have died before it could report the cause. It is
    /// `Preempted` if the disruption removed another pod of the job before the main pod failed.
    pub cause: Option<Cause>,
    /// The disruption that removed the job's machine, in the platform's words.
    pub disruption: Option<String>,
    /// True if the service calls the job a success, regardless of its agent's observations. For example, a controller
    /// ends the other pods of a job as soon as enough of them have succeeded.
    pub succeeded: bool,
    /// True if the attempt has not ended by itself, and another one must replace it. Either the service has fenced it:
    /// its machine is out of reach, and the service ends the attempt there before it does anything else on the machine.
    /// Or the service has no job of an attempt that an earlier manager recorded. Further reports of the attempt are
    /// ignored.
    pub replaced: bool,
    /// True if the service has not created the job and never will. The job may be submitted elsewhere.
    pub refused: bool,
}

/// The news of the end of an attempt's job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobEndEvent {
    /// The trial.
    pub trial: TrialJobId,
    /// Its attempt.
    pub attempt: AttemptId,
    /// The end.
    pub end: JobEnd,
}

impl JobEndEvent {
    /// Returns the end of a job about which the service knows nothing else.
    pub fn unexplained(trial: TrialJobId, attempt: AttemptId) -> Self {
        Self { trial, attempt, end: JobEnd::default() }
    }
}

/// The reason why a submitted job does not run yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobWait {
    /// The trial.
    pub trial: TrialJobId,
    /// Its attempt.
    pub attempt: AttemptId,
    /// The reason, for the user.
    pub why: String,
}

/// A pod that the platform removes from a job with several pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DepartedPod {
    /// The trial.
    pub trial: TrialJobId,
    /// The attempt of the trial.
    pub attempt: AttemptId,
    /// The platform's unique id of the pod.
    pub incarnation: String,
}

/// The image that a job runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobImage {
    /// The trial.
    pub trial: TrialJobId,
    /// Its attempt.
    pub attempt: AttemptId,
    /// The image with its digest, in the platform's form: `docker.io/library/busybox@sha256:…`.
    pub image: String,
}

/// The training service, of several, that receives an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobPart {
    /// The trial.
    pub trial: TrialJobId,
    /// Its attempt.
    pub attempt: AttemptId,
    /// The position of the part in the list, from 0.
    pub part: usize,
    /// The platform of the part.
    pub platform: String,
}

/// News from a training service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobNews {
    /// A job is gone, and its agent's remaining reports were delivered. Sent once for each job.
    Gone(JobEndEvent),
    /// A job waits for a new reason.
    Waits(JobWait),
    /// A running job waits again, because its queue evicted it. The job is not gone.
    Requeued(JobWait),
    /// A pod no longer belongs to its job, and another pod may replace it. Sent once for each pod.
    PodLeft(DepartedPod),
    /// The platform has resolved a job's image. Sent once for each attempt.
    Image(JobImage),
    /// An attempt is about to be submitted to one of several services. Sent once for each submission.
    Placed(JobPart),
}

/// The present room for further jobs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FreeRoom {
    /// The service does not know its room. A job that it cannot start yet waits there.
    Unknown,
    /// The service can start this number of further jobs at once.
    Jobs(usize),
    /// The service has no room. A further job would wait in its queue.
    Queue,
    /// The service is out of reach and cannot start jobs. The text is the reason, for the user.
    Unreachable(String),
}

/// The state of one of several training services.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartStatus {
    /// The platform of the part.
    pub platform: String,
    /// The number of jobs at the service.
    pub jobs: usize,
    /// The number of these jobs that wait there.
    pub waiting: usize,
    /// The number of further jobs that the service could start. `None`: unknown.
    pub free: Option<usize>,
    /// The reason why the service is out of reach. `None`: it can be reached.
    pub trouble: Option<String>,
}

/// The certainty of an end that follows from the verdicts of a trial's agents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VerdictCertainty {
    /// No knowledge of the service can change the end.
    Final,
    /// Pods have failed. The service may have removed another pod before, which made them fail.
    Failed,
    /// As [`Self::Failed`], and other pods were stopped by the service or from outside.
    FailedAndStopped,
}

/// The sender for the news of all jobs.
pub type JobNewsSender = mpsc::UnboundedSender<JobNews>;

/// The fate of a job that was submitted before a restart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AdoptionResult {
    /// The job still exists. Its end will be reported as an event.
    Alive,
    /// The job is gone, and its agent's remaining reports were delivered. The event has the service's knowledge of the
    /// end.
    Gone(JobEndEvent),
    /// The job was never created, and may be submitted.
    Unknown,
}

/// The output of a job, in pieces, as the job prints it.
pub type Output = BoxStream<'static, Vec<u8>>;

/// The reason why a job could not be submitted, as an error of the service.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct SubmitError(Box<dyn std::error::Error + Send + Sync>);

impl SubmitError {
    /// Wraps an error of a training service.
    pub fn new(error: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self(Box::new(error))
    }
}

/// A service that runs trial jobs.
#[async_trait]
pub trait TrainingService: Send + Sync {
    /// Starts a job. The caller has already recorded the attempt, so that a crash of the manager cannot hide the job.
    async fn submit(&self, job: &TrialJobSpec) -> Result<(), SubmitError>;

    /// Takes over a job that an earlier manager submitted. If the job still exists, the service watches it. Otherwise,
    /// the service delivers its agent's remaining reports.
    async fn adopt(&self, trial: &TrialJobId, attempt: &AttemptId) -> AdoptionResult;

    /// Informs the service that all live jobs of an earlier manager were adopted. The service ends the others, whose
    /// trials have ended. Returns at once.
    fn end_unadopted(&self) {}

    /// Delivers the remaining reports of a gone job's agent.
    async fn recover_reports(&self, trial: &TrialJobId);

    /// Returns the verdict that an attempt's agent has kept on disk, in case its report was lost. `None`: the service
    /// finds no verdict, or cannot reach the disk.
    async fn verdict_on_disk(&self, _trial: &TrialJobId, _attempt: &AttemptId) -> Option<Verdict> {
        None
    }

    /// Requests the end of a job. The service kills the job if it still runs after its agent's own time limits. Returns
    /// at once, and the end is reported as an event. Has no effect on a job that is gone.
    async fn stop(&self, trial: &TrialJobId);

    /// Returns the rules by which a trial ends with its agents' verdicts, even if its job still exists. The service
    /// then ends the job itself, and the next trial does not wait for that. `None`: the trial ends with its job.
    fn completion(&self, _trial: &TrialJobId) -> Option<TrialCompletion> {
        None
    }

    /// Informs the service that a trial ends because its agents have reported the ends of all its commands, although
    /// the job still exists. Returns at once. `false`: the trial must wait for its job, because the service may know
    /// another reason for the end.
    async fn accept_verdict_end(&self, _trial: &TrialJobId, _certainty: VerdictCertainty) -> bool {
        true
    }

    /// Ends a job whose agents' verdicts have decided the end of its trial, and that continues. Returns at once.
    async fn finish(&self, trial: &TrialJobId) {
        self.stop(trial).await;
    }

    /// Returns the output of a job whose agent does not report, directly from its machine: the whole output, or the
    /// part since `ago`. `None`: there is no output, or not yet. `Err`: the reason why the output will never be
    /// available.
    async fn output(
        &self,
        _trial: &TrialJobId,
        _ago: Option<Duration>,
    ) -> Option<Result<Output, String>> {
        None
    }

    /// Waits until the service has been out of reach for so long that a stopping manager should not wait for the ends
    /// of its jobs. [`Self::close`] then reports the remaining jobs, their location and the reason.
    async fn wait_until_out_of_reach(&self) {
        std::future::pending::<()>().await;
    }

    /// Returns the greatest number of concurrent trials. `None`: there is no known bound.
    fn capacity(&self) -> Option<usize> {
        None
    }

    /// Returns the room for jobs in addition to the submitted ones.
    fn free_room(&self) -> FreeRoom {
        FreeRoom::Unknown
    }

    /// Withdraws a submitted job that the service has not started. Returns `true` if the job does not exist and never
    /// will. The service then sends no more news of it.
    async fn withdraw(&self, _trial: &TrialJobId) -> bool {
        false
    }

    /// Informs the service that a job's agent has reported, so the job runs. Returns at once.
    fn mark_running(&self, _trial: &TrialJobId) {}

    /// Returns the state of each of several services. The list is empty for a single service.
    fn parts(&self) -> Vec<PartStatus> {
        Vec::new()
    }

    /// Waits for the service's own tasks to end. Called once, when the experiment no longer waits for any job.
    async fn close(&self);
}
