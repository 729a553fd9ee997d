//! The types of the rows that the store reads and writes.

use serde_json::Value;
use serde_json::value::RawValue;
use trial_protocol::{
    AttemptId, ExperimentId, Lane, Metric, Report, ReportBatch, StopReason, Stream, TrialJobId,
    Verdict,
};

use crate::job_state::JobState;

/// The number of a derived metric on the facts lane. It sorts after every report of an agent.
pub(super) const DERIVED_METRIC_SEQ: i64 = i64::MAX;

/// The number of the manager's own verdict. It sorts after the agent's reports and before a derived metric.
pub(super) const OWN_VERDICT_SEQ: i64 = DERIVED_METRIC_SEQ - 1;

/// The experiment of a database.
#[derive(Debug, Clone, PartialEq)]
pub struct ExperimentRow {
    /// The experiment's identifier.
    pub id: ExperimentId,
    /// The checked experiment file.
    pub canonical: Value,
    /// The seed of the tuner.
    pub seed: u64,
    /// The state, as the experiment spells it.
    pub state: String,
    /// The time at which it was created.
    pub created_at_ms: i64,
    /// The time at which the experiment ended. `None` if its state is not an end.
    pub ended_at_ms: Option<i64>,
    /// The time that the experiment has run, without interruptions.
    pub elapsed_ms: u64,
    /// The problem with an external tuner or assessor, as a message. `None` if no problem is known.
    pub trouble: Option<String>,
}

/// An imported result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportedRow {
    /// The parameters.
    pub parameters: Value,
    /// The result of these parameters.
    pub value: Value,
}

/// A new trial, which is stored before it is submitted.
#[derive(Debug, Clone, PartialEq)]
pub struct NewTrial {
    /// The trial's identifier.
    pub id: TrialJobId,
    /// The position among the experiment's trials, from 0.
    pub sequence: u64,
    /// The number of the tuner's proposal. `None` if a user chose the parameters.
    pub parameter_id: Option<u64>,
    /// The parameters.
    pub parameters: Value,
    /// The first attempt.
    pub attempt: AttemptId,
    /// The time of creation.
    pub created_at_ms: i64,
}

/// A change of a trial.
#[derive(Debug, Clone, PartialEq)]
pub struct TrialChange {
    /// The new state.
    pub state: JobState,
    /// The time of the change.
    pub at_ms: i64,
    /// The reason, as text for users. It replaces the last message; `None` removes that.
    pub message: Option<String>,
    /// The trial's exit code. `None` keeps the stored one.
    pub exit_code: Option<i32>,
    /// A new attempt. It clears the start time, the end time and the exit code of the previous attempt. `None` keeps
    /// the current attempt.
    pub attempt: Option<AttemptId>,
    /// The times that the agent reports, which take precedence over `at_ms`.
    pub reported: TrialTimes,
}

/// The time span of a trial, as its agent reports it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TrialTimes {
    /// The time at which the command started, by the agent's clock. That clock may be wrong: the store limits the
    /// time to the range from the creation of the trial to the time of the change.
    pub started_at_ms: Option<i64>,
    /// The duration of the trial, which does not depend on clock changes. Only with [`JobState::is_final`] states.
    pub duration_ms: Option<u64>,
}

/// A stored trial.
#[derive(Debug, Clone, PartialEq)]
pub struct TrialRow {
    /// The trial's identifier.
    pub id: TrialJobId,
    /// The position among the experiment's trials, from 0.
    pub sequence: u64,
    /// The number of the tuner's proposal. `None` if a user chose the parameters.
    pub parameter_id: Option<u64>,
    /// The parameters.
    pub parameters: Value,
    /// The current attempt.
    pub attempt: AttemptId,
    /// The current state.
    pub state: JobState,
    /// The reason for which the manager intends to stop the trial. `None` if it does not.
    pub intent: Option<StopReason>,
    /// The number of retries after failures that may be temporary.
    pub retries: u32,
    /// The time at which the trial was created.
    pub created_at_ms: i64,
    /// The time at which the current attempt started to run, by the agent's report if there is one.
    pub started_at_ms: Option<i64>,
    /// The time at which the trial ended, by the agent's report if there is one; otherwise the time of the final
    /// state.
    pub ended_at_ms: Option<i64>,
    /// The message of the last change.
    pub message: Option<String>,
    /// The trial's exit code.
    pub exit_code: Option<i32>,
}

/// An entry of a trial's timeline.
#[derive(Debug, Clone, PartialEq)]
pub struct TrialEventRow {
    /// The time of the entry.
    pub at_ms: i64,
    /// The state after the change.
    pub state: JobState,
    /// The attempt at that time.
    pub attempt: AttemptId,
    /// The reason for which the manager intended to stop the trial at that time.
    pub intent: Option<StopReason>,
    /// The reason for the change.
    pub message: Option<String>,
    /// The exit code, if the change set one.
    pub exit_code: Option<i32>,
}

/// A stored metric.
#[derive(Debug, Clone, PartialEq)]
pub struct MetricRow {
    /// The attempt that reported it.
    pub attempt: AttemptId,
    /// The position on the facts lane.
    pub seq: u64,
    /// The time at which the agent read the metric, by the agent's clock.
    pub observed_at_ms: i64,
    /// The time at which the metric was stored, by the manager's clock.
    pub stored_at_ms: i64,
    /// The metric.
    pub metric: Metric,
}

/// A report as it arrived. A log chunk is a [`LogChunkRow`] instead, unless its bytes cannot be decoded.
#[derive(Debug, Clone, PartialEq)]
pub struct ReportRow {
    /// The attempt that reported it.
    pub attempt: AttemptId,
    /// The lane.
    pub lane: Lane,
    /// The position on that lane.
    pub seq: u64,
    /// The time at which the agent observed the event, by the agent's clock.
    pub observed_at_ms: i64,
    /// The time at which the report was stored, by the manager's clock.
    pub stored_at_ms: i64,
    /// The kind, as the agent wrote it; empty if the agent wrote none.
    pub kind: String,
    /// The complete body, including fields that this build does not support.
    pub body: Value,
}

impl ReportRow {
    /// Returns whether the report is a verdict or a metric of the manager, not of an agent.
    pub fn is_own(&self) -> bool {
        self.lane == Lane::Facts && i64::try_from(self.seq).is_ok_and(|seq| seq >= OWN_VERDICT_SEQ)
    }
}

/// A log chunk: a piece of a trial's output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogChunkRow {
    /// The attempt that wrote the output.
    pub attempt: AttemptId,
    /// The stream.
    pub stream: Stream,
    /// The position of the first byte in the attempt's stream.
    pub offset_bytes: u64,
    /// The time at which the agent read it, by the agent's clock.
    pub observed_at_ms: i64,
    /// The bytes.
    pub bytes: Vec<u8>,
}

/// The state of one attempt's reports.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AttemptState {
    /// The highest stored seq of the facts lane. `None` if no fact has arrived.
    pub facts_through: Option<u64>,
    /// The number up to which the bulk lane is stored.
    pub bulk_through: Option<u64>,
    /// `true` if the verdict, which is the last fact, is stored.
    pub ended: bool,
    /// The time of the last report, by the manager's clock. `None` if there was no report.
    pub last_heard_ms: Option<i64>,
}

/// A batch of reports as it arrived: parsed as far as this build supports the reports, and as raw JSON.
#[derive(Debug, Clone)]
pub struct ReceivedBatch {
    /// The batch. A report that this build cannot parse is [`trial_protocol::ReportBody::Unknown`].
    pub(crate) batch: ReportBatch,
    /// The JSON of each report's body, in the same order.
    pub(crate) bodies: Vec<Box<RawValue>>,
    /// The attempt to which the batch applies. The batch is refused if another attempt is current. `None` applies the
    /// batch to any attempt.
    pub(crate) required_attempt: Option<AttemptId>,
}

impl From<ReportBatch> for ReceivedBatch {
    fn from(batch: ReportBatch) -> Self {
        let bodies = batch
            .reports
            .iter()
            .map(|report| {
                serde_json::value::to_raw_value(&report.body)
                    .expect("a report's maps have text keys and its numbers are finite")
            })
            .collect();
        Self { batch, bodies, required_attempt: None }
    }
}

/// The outcome of storing a batch. All of the batch is durable.
#[derive(Debug, Clone, PartialEq)]
pub struct IngestOutcome {
    /// The highest stored seq of the batch's attempt and lane. No report below it can still arrive, because an agent
    /// sends a lane oldest first; gaps are reports that the agent dropped. `None` if nothing is stored.
    pub through: Option<u64>,
    /// The reports that were stored for the first time, in order.
    pub fresh: Vec<Report>,
    /// `true` if the store lacks reports after `through` that it had acknowledged, and the agent still has them.
    /// Nothing of the batch was stored.
    pub resend: bool,
}

/// The final records of an attempt.
#[derive(Debug, Clone, PartialEq)]
pub struct FinalRecords {
    /// `true` if the end of the attempt is stored.
    pub ended: bool,
    /// The time at which the agent started the command, by the agent's clock.
    pub started_at_ms: Option<i64>,
    /// The verdict, if the attempt has ended and this build can parse the verdict.
    pub verdict: Option<Verdict>,
    /// The metrics of all attempts of the trial, in the order of [`ReportRecords::metrics`](super::ReportRecords::metrics).
    pub metrics: Vec<MetricRow>,
}
