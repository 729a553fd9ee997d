//! PURE: the trial's bytes -> metrics. No I/O, no clock.
//!
//! Collectors find ([`Found`]); the [`Ledger`] names, numbers and bounds what was found and concludes the
//! final result of a trial that knows no SDK. Foreign bytes never panic; what looks like a metric and is
//! unreadable becomes a [`Finding::Unreadable`], and the bytes are passed on either way.

use trial_protocol::{Metric, MetricKind, MetricValue, Stream};

/// Where a metric came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Source {
    /// NNI's SDK: the stdout marker, the metric file or the loopback channel. The trial says itself what
    /// is intermediate and what is final.
    Sdk,
    /// `name=value` text.
    Text,
    /// A JSON object on a line of its own.
    Json,
}

/// A metric as a collector found it.
#[derive(Debug, Clone, PartialEq)]
pub struct Found {
    /// Which collector.
    pub source: Source,
    /// Name of the metric.
    pub name: String,
    /// Intermediate or final, where the source says so.
    pub kind: Option<MetricKind>,
    /// Number within name and kind, where the source says so.
    pub sequence: Option<u64>,
    /// The value as reported.
    pub value: MetricValue,
}

/// What a collector found.
#[derive(Debug, Clone, PartialEq)]
pub enum Finding {
    /// A metric.
    Metric(Found),
    /// Something that looks like a metric and cannot be read.
    Unreadable {
        /// Which collector.
        source: Source,
        /// The beginning of the bytes, at most 200 characters, lossy.
        excerpt: String,
        /// What is wrong with it.
        why: String,
    },
}

/// Which collectors are on, and what the trial's metrics are called.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CollectSpec {
    /// Name of the metric that the search optimises. `None`: concluded at the end, see [`Ledger`].
    pub objective: Option<String>,
}

/// Finds metrics in one output stream, given its bytes in any portions.
#[derive(Debug)]
pub struct StreamScanner;

impl StreamScanner {
    /// A scanner for `stream` with the collectors that `spec` turns on.
    pub fn new(_spec: &CollectSpec, _stream: Stream) -> Self {
        Self
    }

    /// Takes the next bytes of the stream and appends what they complete.
    pub fn feed(&mut self, _bytes: &[u8], _found: &mut Vec<Finding>) {}

    /// The stream has ended: its last line may lack a newline.
    pub fn finish(&mut self, _found: &mut Vec<Finding>) {}
}

/// Names, numbers and bounds what all collectors of one attempt found.
#[derive(Debug)]
pub struct Ledger;

impl Ledger {
    /// An empty ledger.
    pub fn new(_spec: &CollectSpec) -> Self {
        Self
    }

    /// Turns a finding into the metric to report, or `None` if it is to be dropped.
    pub fn enter(&mut self, _found: Found) -> Option<Metric> {
        None
    }

    /// The trial has ended: the final metric, if the trial itself reported none and one can be concluded.
    pub fn conclude(&mut self, _succeeded: bool) -> Option<Metric> {
        None
    }
}
