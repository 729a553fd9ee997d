//! The messages between a trial's agent (`trialkeeper`) and the manager.
//!
//! The agent posts each [`ReportBatch`] on one [`Lane`]. The manager answers each with a [`ReportAck`]. Delivery is at
//! least once. (`experiment`, `trial`, `attempt`, `lane`, `seq`) permanently identifies a report, so its effect is
//! exactly once.
//!
//! This crate contains types, their checks and their JSON. It must not do I/O, read a clock or contain a URL. Every
//! message has a golden document under `fixtures/v1`. Documents are added and never edited.
//!
//! # Compatibility
//!
//! Readers ignore unknown members. Writers omit absent values (`None` is never `0`). An enumeration that may grow has
//! an `Unknown` variant, so that an older reader can still read the rest of the message. Everything else is negotiated,
//! see [`Offer`].

mod code_limits;
mod direction;
mod directive;
mod id;
mod metric;
mod negotiate;
mod rendezvous;
mod report;
mod sample;
mod verdict;

pub use code_limits::{MAX_CODE_BYTES, MAX_CODE_ENTRIES};
pub use direction::Direction;
pub use directive::{Directive, DirectiveBody, LogLevel, StopReason, StopRule, StopWhen};
pub use id::{AttemptId, ExperimentId, IdError, TrialJobId};
pub use metric::{Metric, MetricKind, MetricValue, OBJECTIVE, ValueError};
pub use negotiate::{
    Agreement, NoCommonVersion, Offer, VERSION_NEWEST, VERSION_OLDEST, capability,
};
pub use rendezvous::{Member, RendezvousReply, RendezvousRequest, RoleSize};
pub use report::{
    BearerToken, Lane, LogChunk, LogText, Report, ReportAck, ReportBatch, ReportBody, Shed,
    Started, Stream,
};
pub use sample::{CgroupSample, GpuSample, ProcessSample, Sample};
pub use verdict::{Cause, Class, Confidence, Evidence, SignalSender, TrialExit, Verdict};
