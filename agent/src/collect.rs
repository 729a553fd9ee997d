//! PURE: extracts metrics from the trial's bytes. No I/O, no clock.
//!
//! Collectors return a [`CollectedMetric`] for each metric they find. The [`MetricRegistry`] names, numbers and limits
//! these metrics. It also determines the final result of a trial that does not use the SDK. Input bytes never cause a
//! panic. Text that looks like a metric but cannot be read becomes a [`Finding::Unreadable`], and the bytes are passed
//! on in any case.
//!
//! The result never depends on the portions in which bytes arrive. Every collector finds the same metrics in one piece
//! and byte by byte.

pub mod ansi;
mod epoch_table;
mod events;
mod json_lines;
mod lines;
#[cfg(test)]
mod log_fixture_tests;
mod metric_file;
mod metric_registry;
mod objective;
mod pattern;
mod scanner;
mod sdk;
#[cfg(test)]
mod sdk_recording_tests;
mod text;

pub use events::EventFileReader;
pub use lines::{Line, LineCutter};
pub use metric_file::MetricFileReader;
pub use metric_registry::MetricRegistry;
pub use pattern::{Pattern, PatternError};
pub use scanner::{METRIC_MARKER, StreamScanner};
pub use sdk::{SdkRecord, read_record};
pub use text::parse_number;

use trial_protocol::{Direction, MetricKind, MetricValue};

/// The maximum length of a metric's name, in bytes. It is the protocol's limit.
pub const MAX_NAME_BYTES: usize = 256;

/// The maximum length of a line, or of a record of a file, that is searched for metrics, in bytes. NNI's SDK admits
/// values of 1,000,000 characters.
const MAX_LINE_BYTES: usize = 1024 * 1024 + 64 * 1024;

/// The maximum length of an excerpt of unreadable text, in characters.
const EXCERPT_CHARS: usize = 200;

/// A number of bytes that always contains [`EXCERPT_CHARS`] characters, if there are that many.
const EXCERPT_BYTES: usize = 4 * EXCERPT_CHARS;

/// The collector that found a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Source {
    /// NNI's SDK: the stdout marker, the metric file or the loopback channel. The trial itself distinguishes
    /// intermediate and final results.
    Sdk,
    /// `name=value` text.
    Text,
    /// A JSON object on a separate line.
    Json,
    /// A scalar in a `TensorBoard` event file.
    Events,
    /// A user's regular expression.
    Pattern,
}

/// A metric as a collector found it.
#[derive(Debug, Clone, PartialEq)]
pub struct CollectedMetric {
    /// The collector that found it.
    pub source: Source,
    /// Name of the metric.
    pub name: String,
    /// Intermediate or final, if the source states it.
    pub kind: Option<MetricKind>,
    /// The number within name and kind, if the source states it.
    pub sequence: Option<u64>,
    /// The value as reported.
    pub value: MetricValue,
}

/// A result of a collector.
#[derive(Debug, Clone, PartialEq)]
pub enum Finding {
    /// A metric.
    Metric(CollectedMetric),
    /// Text that looks like a metric but cannot be read.
    Unreadable {
        /// The collector that found it.
        source: Source,
        /// The first 200 characters at most, lossy. Empty if they would not help the reader.
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

/// The settings of the collectors: which of them are enabled, and the names of the trial's metrics.
#[derive(Debug, Clone, PartialEq)]
pub struct CollectSpec {
    /// Name of the metric that the search optimises. `None`: chosen at the end, see [`MetricRegistry`].
    pub objective: Option<String>,
    /// The direction of the objective, if the user stated it. A search that minimises expects a loss.
    pub direction: Option<Direction>,
    /// `true` if `name=value` text on stdout counts.
    pub text: bool,
    /// `true` if JSON objects on separate lines of stdout count.
    pub json_lines: bool,
    /// Regular expressions for lines of stdout. A line that one of them matches is not read as `name=value` or JSON.
    pub patterns: Vec<Pattern>,
    /// The trial's environment variables that are numbers. A line that prints an unchanged variable, as `env` does, is
    /// not a metric.
    pub variables: Vec<(String, MetricValue)>,
    /// The trial's parameters that are numbers. A value that only repeats a parameter is never chosen as the result.
    pub parameters: Vec<(String, MetricValue)>,
}

impl CollectSpec {
    /// Returns whether `name=value` repeats an environment variable and is not the objective.
    fn is_variable(&self, name: &str, value: &MetricValue) -> bool {
        let is = |(own, set): &(String, MetricValue)| own == name && set == value;
        // `bash` counts its nesting depth in this variable, so a script prints a different value.
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
