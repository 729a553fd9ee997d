//! Reports, the batches that carry them, and their acknowledgements.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{AttemptId, Directive, ExperimentId, Metric, Offer, Sample, TrialJobId, Verdict};

/// One of the two numbered sequences of an attempt's reports. Each lane has its own spool, numbering and request in
/// flight, so a metric never waits behind a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lane {
    /// Lifecycle reports, metrics and the verdict. Never dropped.
    Facts,
    /// Log chunks and samples. Dropped and counted when the spool is full.
    Bulk,
}

/// One of the trial's two output streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// An observation of an agent about one attempt of one trial job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Position within the attempt's lane, always rising. Source: the agent's spool, which starts at a number derived
    /// from the clock. A gap does not mean that reports were lost: the spool skips numbers after a restart. A [`Shed`]
    /// on the facts lane counts dropped reports.
    pub seq: u64,
    /// Time of the observation: milliseconds since the Unix epoch by the agent's clock, which may differ from the
    /// manager's. For display only: the order of reports is that of `seq`.
    pub observed_at_ms: i64,
    /// The observation.
    pub body: ReportBody,
}

/// The content of a report. An older reader reads a newer kind as [`ReportBody::Unknown`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ReportBody {
    /// Facts: the trial's process was started, or could not be started (a verdict then follows at once).
    Started(Started),
    /// Facts: the trial reported a metric.
    Metric(Metric),
    /// Facts, and the last one of an attempt: the cause and the manner of the trial's end.
    Ended(Box<Verdict>),
    /// Facts: reports of the bulk lane were dropped.
    Shed(Shed),
    /// Facts: an event to show in the trial's timeline.
    Note {
        /// Stable name of the kind of note, such as `gpu-lost`, `stalled`, `metric-unreadable`.
        code: String,
        /// A sentence for the user.
        message: String,
    },
    /// Bulk: a piece of the trial's output.
    Log(LogChunk),
    /// Bulk: readings of the agent.
    Sample(Box<Sample>),
    /// A kind that this build does not know.
    #[serde(other)]
    Unknown,
}

/// The start of the trial's process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Started {
    /// The program and its arguments, as started.
    pub command: Vec<String>,
    /// Process id in the agent's PID namespace; absent if the process could not be started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// Host name as the agent sees it (in a pod: the pod's name). Absence means that the host has no name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Version of the agent.
    pub agent_version: String,
    /// Task role of this pod, if the trial has several pods. Source: `FC_TASKROLE_NAME`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// Index within the role, from 0. Source: `FC_TASK_INDEX`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role_index: Option<u32>,
}

/// A piece of one output stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogChunk {
    /// The output stream.
    pub stream: Stream,
    /// Position of the first byte within the sent text of the stream, in bytes from 0. A gap means that bytes were
    /// dropped. Text that is never sent, such as the overwritten states of a progress bar, does not count.
    pub offset_bytes: u64,
    /// The bytes.
    #[serde(flatten)]
    pub text: LogText,
}

/// Bytes of output: as text if they are UTF-8, else as base64, so that every byte is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogText {
    /// Valid UTF-8.
    Text(String),
    /// Anything else, in standard base64 with padding.
    Base64(String),
}

/// The numbers of dropped reports of the bulk lane since the attempt began. Absence means none.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shed {
    /// Dropped bytes of log.
    #[serde(default)]
    pub log_bytes: u64,
    /// Dropped samples.
    #[serde(default)]
    pub samples: u64,
}

/// Reports of one lane of one attempt, oldest first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReportBatch {
    /// The agent's capabilities.
    pub offer: Offer,
    /// Id of the experiment.
    pub experiment: ExperimentId,
    /// Id of the trial.
    pub trial: TrialJobId,
    /// Id of the incarnation.
    pub attempt: AttemptId,
    /// The lane of `reports`.
    pub lane: Lane,
    /// The reports in rising order of `seq`. Empty in a heartbeat, which means only "alive".
    #[serde(default)]
    pub reports: Vec<Report>,
    /// Ids of the directives that the agent has carried out or refused since its last batch.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub obeyed: Vec<u64>,
    /// Highest `seq` of this lane and attempt that a manager has acknowledged to the agent. If the manager has stored
    /// less, its store was replaced by an older copy. Absence means none, or an agent that does not send this member.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acknowledged: Option<u64>,
    /// Highest `seq` of this lane and attempt that the agent cannot send again. Absence means that the agent has kept
    /// everything, or does not send this member.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forgotten: Option<u64>,
}

/// The manager's answer to a batch. Every report up to and including `through` is stored durably.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReportAck {
    /// The manager's capabilities.
    pub offer: Offer,
    /// Highest `seq` of this lane and attempt that is stored durably. The agent deletes the reports up to it. Absence
    /// means that nothing is stored yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub through: Option<u64>,
    /// Directives for the agent, each repeated until it appears in [`ReportBatch::obeyed`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub directives: Vec<Directive>,
    /// The maximum time between two batches, in milliseconds, before the manager regards the agent as lost. The agent
    /// should send at least three times as often. Absence means no lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_ms: Option<u64>,
    /// The token to use from now on, before the present token expires. Absence means the present token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<BearerToken>,
    /// `true` if the manager no longer has reports after `through` that it acknowledged earlier. The manager stored
    /// nothing of the batch. The agent resends the reports after `through` that it has kept.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub resend: bool,
    /// Members of a later version, kept so that they can be displayed.
    #[serde(flatten)]
    pub other: BTreeMap<String, serde_json::Value>,
}

/// A secret text. Its `Debug` output hides it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BearerToken(pub String);

impl fmt::Debug for BearerToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BearerToken(..)")
    }
}

impl ReportBody {
    /// Returns the lane of this kind of report.
    pub fn lane(&self) -> Lane {
        match self {
            Self::Started(_)
            | Self::Metric(_)
            | Self::Ended(_)
            | Self::Shed(_)
            | Self::Note { .. }
            | Self::Unknown => Lane::Facts,
            Self::Log(_) | Self::Sample(_) => Lane::Bulk,
        }
    }
}
