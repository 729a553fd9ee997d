//! Reports and the batches they travel in; acks and what they promise.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{AttemptId, Directive, ExperimentId, Metric, Offer, Sample, TrialJobId, Verdict};

/// One of the two numbered sequences of an attempt's reports. Each has its own spool, its own numbering
/// and its own request in flight, so a metric never waits behind a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lane {
    /// Lifecycle, metrics, verdict: never shed.
    Facts,
    /// Log chunks and samples: shed when the spool is full, and counted.
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

/// One thing an agent observed about one attempt of one trial job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Position within the attempt's lane, from 0, always rising. Source: the agent's spool. A gap means
    /// that reports were shed because the spool was full, which a [`Shed`] on the facts lane counts.
    pub seq: u64,
    /// Time of the observation: milliseconds since the Unix epoch, by the agent's clock, which may disagree
    /// with the manager's. Order by `seq`; show this.
    pub observed_at_ms: i64,
    /// The observation.
    pub body: ReportBody,
}

/// The content of a report. An older reader keeps a newer kind as [`ReportBody::Unknown`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ReportBody {
    /// Facts: the trial's process was started, or could not be (then a verdict follows at once).
    Started(Started),
    /// Facts: the trial reported a metric.
    Metric(Metric),
    /// Facts, and the last one of an attempt: why and how the trial ended.
    Ended(Box<Verdict>),
    /// Facts: reports of the bulk lane were dropped.
    Shed(Shed),
    /// Facts: something a person should see in the trial's timeline.
    Note {
        /// Stable name of the kind of note, such as `gpu-lost`, `stalled`, `metric-unreadable`.
        code: String,
        /// One sentence for a person.
        message: String,
    },
    /// Bulk: a piece of the trial's output.
    Log(LogChunk),
    /// Bulk: a reading by the agent.
    Sample(Box<Sample>),
    /// A kind that this build does not know.
    #[serde(other)]
    Unknown,
}

/// The start of the trial's process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Started {
    /// The program and its arguments as started.
    pub command: Vec<String>,
    /// Process id in the agent's PID namespace; absent if the process could not be started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// Host name as the agent sees it (in a pod: the pod's name). Absence means that it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Version of the agent.
    pub agent_version: String,
    /// Task role and index of this pod, where the trial has several. Source: `FC_TASKROLE_NAME`.
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
    /// Position of the first byte within the stream, in bytes from 0. A gap means that bytes were shed or
    /// folded (a progress bar's overwritten states).
    pub offset_bytes: u64,
    /// The bytes.
    #[serde(flatten)]
    pub text: LogText,
}

/// Bytes of output: as text where they are UTF-8, else base64, so that nothing is lost.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogText {
    /// Valid UTF-8.
    Text(String),
    /// Anything else, in standard base64 with padding.
    Base64(String),
}

/// The reports of the bulk lane that were dropped since the attempt began, by class. Absence means none.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shed {
    /// Bytes of log.
    #[serde(default)]
    pub log_bytes: u64,
    /// Samples.
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
    /// In rising order of `seq`. Empty: a heartbeat, which says only "alive".
    #[serde(default)]
    pub reports: Vec<Report>,
    /// Directives the agent has carried out or refused since its last batch, by id.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub obeyed: Vec<u64>,
    /// Highest `seq` of this lane and attempt that a manager has acknowledged to the agent. A manager that has less
    /// stored has lost what it confirmed: its store was replaced by an older copy. Absence means none, or an agent
    /// that does not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acknowledged: Option<u64>,
    /// Highest `seq` of this lane and attempt that the agent cannot send again. Absence means that it has kept
    /// everything, or an agent that does not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forgotten: Option<u64>,
}

/// The manager's answer to a batch: everything up to and including `through` is stored for good.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReportAck {
    /// The manager's capabilities.
    pub offer: Offer,
    /// Highest `seq` of this lane and attempt that is durable; the agent forgets up to it. Absence means
    /// that nothing is stored yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub through: Option<u64>,
    /// Orders for the agent, each repeated until it appears in [`ReportBatch::obeyed`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub directives: Vec<Directive>,
    /// The longest time in milliseconds that the agent may stay silent before it is taken for lost; it
    /// should speak at least three times as often. Absence means no lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_ms: Option<u64>,
    /// The token to show from now on, before the present one expires. Absence means the present one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<BearerToken>,
    /// `true` if the manager lacks what it acknowledged after `through`. Nothing of the batch was stored; the agent
    /// sends again what it has kept after `through`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub resend: bool,
    /// Members of a later version, kept so that they can be shown.
    #[serde(flatten)]
    pub other: BTreeMap<String, serde_json::Value>,
}

/// A secret text: its `Debug` hides it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BearerToken(pub String);

impl fmt::Debug for BearerToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BearerToken(..)")
    }
}

impl ReportBody {
    /// The lane this kind of report travels on.
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
