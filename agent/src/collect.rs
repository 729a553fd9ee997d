//! PURE: the trial's bytes -> metrics. No I/O, no clock.
//!
//! Collectors find ([`CollectedMetric`]); the [`MetricRegistry`] names, numbers and bounds what was found and concludes the
//! final result of a trial that knows no SDK. Foreign bytes never panic; what looks like a metric and is
//! unreadable becomes a [`Finding::Unreadable`], and the bytes are passed on either way.
//!
//! In what portions bytes arrive never matters: every collector of a stream finds the same in one piece and
//! byte by byte.

pub mod ansi;
mod epoch_table;
mod events;
mod json_lines;
mod lines;
#[cfg(test)]
mod logs;
mod metric_file;
mod metric_registry;
mod objective;
mod pattern;
#[cfg(test)]
mod recordings;
mod scanner;
mod sdk;
pub mod tail;
mod text;

pub use events::EventFileReader;
pub use lines::{Line, LineCutter};
pub use metric_file::MetricFileReader;
pub use metric_registry::MetricRegistry;
pub use objective::Direction;
pub use pattern::{Pattern, PatternError};
pub use scanner::{MARKER, StreamScanner};
pub use sdk::{SdkRecord, read_record};
pub use text::number;

use trial_protocol::{MetricKind, MetricValue};

/// Longest name of a metric, in bytes; the wire's limit.
pub const NAME_BYTES: usize = 256;

/// Longest line, or record of a file, that is searched for metrics, in bytes. NNI's SDK admits values of 1,000,000
/// characters.
const LONGEST_BYTES: usize = 1024 * 1024 + 64 * 1024;

/// Longest excerpt of something unreadable, in characters.
const EXCERPT_CHARS: usize = 200;

/// Bytes that are certain to hold [`EXCERPT_CHARS`] characters, if there are as many at all.
const EXCERPT_BYTES: usize = 4 * EXCERPT_CHARS;

/// The collector that a metric came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Source {
    /// NNI's SDK: the stdout marker, the metric file or the loopback channel. The trial says itself what
    /// is intermediate and what is final.
    Sdk,
    /// `name=value` text.
    Text,
    /// A JSON object on a line of its own.
    Json,
    /// A scalar in one of `TensorBoard`'s event files.
    Events,
    /// A regular expression of the user's.
    Pattern,
}

/// A metric as a collector found it.
#[derive(Debug, Clone, PartialEq)]
pub struct CollectedMetric {
    /// The collector that found it.
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

/// A result of a collector.
#[derive(Debug, Clone, PartialEq)]
pub enum Finding {
    /// A metric.
    Metric(CollectedMetric),
    /// Something that looks like a metric and cannot be read.
    Unreadable {
        /// The collector that found it.
        source: Source,
        /// The beginning of the bytes, at most 200 characters, lossy; empty where that would say nothing.
        excerpt: String,
        /// The problem with it.
        why: String,
    },
}

impl Finding {
    pub(crate) fn unreadable(source: Source, bytes: &[u8], why: impl Into<String>) -> Self {
        let head = &bytes[..bytes.len().min(EXCERPT_BYTES)];
        let excerpt = String::from_utf8_lossy(head).chars().take(EXCERPT_CHARS).collect();
        Self::Unreadable { source, excerpt, why: why.into() }
    }
}

/// The settings of the collectors: which are on, and the names of the trial's metrics.
#[derive(Debug, Clone, PartialEq)]
pub struct CollectSpec {
    /// Name of the metric that the search optimises. `None`: concluded at the end, see [`MetricRegistry`].
    pub objective: Option<String>,
    /// The direction of the objective, where the user stated it: a search that minimizes means a loss.
    pub direction: Option<Direction>,
    /// `true` if `name=value` text on stdout counts.
    pub text: bool,
    /// `true` if JSON objects on lines of their own on stdout count.
    pub json_lines: bool,
    /// Regular expressions for lines of stdout. Where one matches, the line is neither read as
    /// `name=value` nor as JSON.
    pub patterns: Vec<Pattern>,
    /// Variables of the trial's that are numbers: a line that prints one as it stands (`env` in a script) reports nothing.
    pub variables: Vec<(String, MetricValue)>,
    /// Parameters of the trial's that are numbers: a value that only repeats one is no result by itself.
    pub parameters: Vec<(String, MetricValue)>,
}

impl CollectSpec {
    /// Returns whether `name=value` tells of a variable of the trial's, and not of the objective.
    fn is_variable(&self, name: &str, value: &MetricValue) -> bool {
        let is = |(own, set): &(String, MetricValue)| own == name && set == value;
        // `bash` counts in this one how deep it is nested, so that no script prints what was set.
        (name == "SHLVL" || self.variables.iter().any(is))
            && self.objective.as_deref() != Some(name)
    }
}

impl Default for CollectSpec {
    fn default() -> Self {
        Self {
            objective: None,
            direction: None,
            text: true,
            json_lines: true,
            patterns: Vec::new(),
            variables: Vec::new(),
            parameters: Vec::new(),
        }
    }
}
