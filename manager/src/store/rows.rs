//! The rows that go into the store and come out.

use serde_json::Value;
use serde_json::value::RawValue;
use trial_protocol::{
    AttemptId, ExperimentId, Lane, Metric, Report, ReportBatch, StopReason, Stream, TrialJobId,
    Verdict,
};

use super::reports;
use crate::job_state::JobState;

/// The experiment that a database belongs to.
#[derive(Debug, Clone, PartialEq)]
pub struct ExperimentRow {
    /// Its name.
    pub id: ExperimentId,
    /// The checked experiment file.
    pub canonical: Value,
    /// Seed of the tuner.
    pub seed: u64,
    /// Its state, in the experiment's own words.
    pub state: String,
    /// The time at which it was created.
    pub created_at_ms: i64,
    /// The time at which it reached the state it is in, if that is an ending one. `None` while it goes on.
    pub ended_at_ms: Option<i64>,
    /// The time that it has run, interruptions left out.
    pub elapsed_ms: u64,
    /// The trouble with a tuner or an assessor outside the manager, as a sentence. `None`: nothing is known to be.
    pub trouble: Option<String>,
}

/// A result from elsewhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportedRow {
    /// The parameters.
    pub parameters: Value,
    /// The result of these parameters.
    pub value: Value,
}

/// The intent to run a trial, stored before anything is started.
#[derive(Debug, Clone, PartialEq)]
pub struct NewTrial {
    /// Its name.
    pub id: TrialJobId,
    /// Position among the experiment's trials, from 0.
    pub sequence: u64,
    /// Number of the tuner's proposal. `None`: the parameters come from a person.
    pub parameter_id: Option<u64>,
    /// The parameters.
    pub parameters: Value,
    /// The first attempt.
    pub attempt: AttemptId,
    /// The time.
    pub created_at_ms: i64,
}

/// A step in a trial's life.
#[derive(Debug, Clone, PartialEq)]
pub struct TrialChange {
    /// The state from now on.
    pub state: JobState,
    /// The time.
    pub at_ms: i64,
    /// Why, for a person. Replaces the last message, also by nothing.
    pub message: Option<String>,
    /// The trial's exit code. `None` leaves the stored one.
    pub exit_code: Option<i32>,
    /// A new attempt, which forgets the start, the end and the exit code of the one before. `None`: the
    /// current one goes on.
    pub attempt: Option<AttemptId>,
    /// The times of the trial as its agent reports them, which go before `at_ms`.
    pub told: Span,
}

/// The span of a trial's run, as its agent says.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Span {
    /// The time at which the command was started, by the agent's clock. That clock may be wrong: a time before the
    /// trial was made, or after the change that brings it, is moved to that bound.
    pub started_at_ms: Option<i64>,
    /// The time that it ran, which no clock that is set can falsify. With [`JobState::is_final`] states only.
    pub duration_ms: Option<u64>,
}

/// A trial as stored.
#[derive(Debug, Clone, PartialEq)]
pub struct TrialRow {
    /// Its name.
    pub id: TrialJobId,
    /// Position among the experiment's trials, from 0.
    pub sequence: u64,
    /// Number of the tuner's proposal.
    pub parameter_id: Option<u64>,
    /// The parameters.
    pub parameters: Value,
    /// The current attempt.
    pub attempt: AttemptId,
    /// Where it stands.
    pub state: JobState,
    /// The reason that the manager means to stop it. `None`: the manager does not.
    pub intent: Option<StopReason>,
    /// The number of times that it was tried again after a failure that may pass.
    pub retries: u32,
    /// The time at which its intent was stored.
    pub created_at_ms: i64,
    /// The time at which the current attempt was first RUNNING, by its agent's word if there is one.
    pub started_at_ms: Option<i64>,
    /// The time at which it ended, by its agent's word if there is one; else when it reached a final state.
    pub ended_at_ms: Option<i64>,
    /// The last change's message.
    pub message: Option<String>,
    /// The trial's exit code.
    pub exit_code: Option<i32>,
}

/// One line of a trial's timeline.
#[derive(Debug, Clone, PartialEq)]
pub struct TrialEventRow {
    /// The time.
    pub at_ms: i64,
    /// The state from then on.
    pub state: JobState,
    /// The attempt it is about.
    pub attempt: AttemptId,
    /// The intent to stop it, as it was then.
    pub intent: Option<StopReason>,
    /// The cause.
    pub message: Option<String>,
    /// The exit code, where this line brought one.
    pub exit_code: Option<i32>,
}

/// A metric as stored.
#[derive(Debug, Clone, PartialEq)]
pub struct MetricRow {
    /// The attempt that reported it.
    pub attempt: AttemptId,
    /// Its position on the facts lane.
    pub seq: u64,
    /// The time at which the agent saw it, by the agent's clock.
    pub observed_at_ms: i64,
    /// The time at which it was stored, by the manager's clock.
    pub stored_at_ms: i64,
    /// The metric.
    pub metric: Metric,
}

/// Any report but a piece of log, as it arrived.
#[derive(Debug, Clone, PartialEq)]
pub struct ReportRow {
    /// The attempt that reported it.
    pub attempt: AttemptId,
    /// Its lane.
    pub lane: Lane,
    /// Its position on that lane.
    pub seq: u64,
    /// The time at which the agent saw it, by the agent's clock.
    pub observed_at_ms: i64,
    /// The time at which it was stored, by the manager's clock.
    pub stored_at_ms: i64,
    /// Its kind, as the agent wrote it; empty where it wrote none.
    pub kind: String,
    /// All it said, members that this build does not know included.
    pub body: Value,
}

impl ReportRow {
    /// Returns whether the manager says it, not an agent.
    pub fn is_own(&self) -> bool {
        self.lane == Lane::Facts && i64::try_from(self.seq).is_ok_and(|seq| seq >= reports::JUDGED)
    }
}

/// A piece of a trial's output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogChunkRow {
    /// The attempt whose output it is.
    pub attempt: AttemptId,
    /// The stream.
    pub stream: Stream,
    /// Position of the first byte within the attempt's stream.
    pub offset_bytes: u64,
    /// The time at which the agent read it, by the agent's clock.
    pub observed_at_ms: i64,
    /// The bytes.
    pub bytes: Vec<u8>,
}

/// The state of one attempt's reports.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AttemptState {
    /// Highest stored seq of the facts lane. `None`: nothing of it has arrived.
    pub facts_through: Option<u64>,
    /// The number up to which the bulk lane is stored.
    pub bulk_through: Option<u64>,
    /// `true` if its last fact, the verdict, is stored.
    pub ended: bool,
    /// The time at which it last spoke, by the manager's clock. `None`: never.
    pub last_heard_ms: Option<i64>,
}

/// A batch of reports as it arrived: typed where this build knows the type, and raw in any case.
#[derive(Debug, Clone)]
pub struct Arrival {
    /// The batch. A report that this build cannot read is [`trial_protocol::ReportBody::Unknown`] in it.
    pub(crate) batch: ReportBatch,
    /// The JSON of each report's body, in the same order.
    pub(crate) bodies: Vec<Box<RawValue>>,
    /// It is about this attempt, and refused unless that is the trial's current one. `None`: whatever that is.
    pub(crate) about: Option<AttemptId>,
}

impl From<ReportBatch> for Arrival {
    fn from(batch: ReportBatch) -> Self {
        let bodies = batch
            .reports
            .iter()
            .map(|report| {
                serde_json::value::to_raw_value(&report.body)
                    .expect("a report's maps have text keys and its numbers are finite")
            })
            .collect();
        Self { batch, bodies, about: None }
    }
}

/// The outcome of storing a batch. All of it is durable.
#[derive(Debug, Clone, PartialEq)]
pub struct Ingested {
    /// Highest stored seq of the batch's attempt and lane. Nothing below it is still to come, since an
    /// agent sends a lane oldest first; gaps were shed. `None`: nothing is stored.
    pub through: Option<u64>,
    /// The reports that were stored now for the first time, in order.
    pub fresh: Vec<Report>,
    /// `true` if the store lacks what it once confirmed after `through`, and the agent has it still. Nothing of the batch
    /// was stored.
    pub resend: bool,
}

/// The records of an attempt that is over.
#[derive(Debug, Clone, PartialEq)]
pub struct LastWords {
    /// `true` if its agent has said how it ended.
    pub ended: bool,
    /// The time at which its agent started the command, by the agent's clock.
    pub started_at_ms: Option<i64>,
    /// How, if it did and this build knows the words.
    pub verdict: Option<Verdict>,
    /// The metrics of all the trial's attempts, as [`Store::metrics`](super::Store::metrics) orders them.
    pub metrics: Vec<MetricRow>,
}
