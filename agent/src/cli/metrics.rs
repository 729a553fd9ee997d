//! Options for a trial's parameters and metrics.

use std::ffi::OsString;
use std::path::PathBuf;

use trial_protocol::Direction;

use super::flags::{choice, flags, os_text, parsed, path, single_value, text, value};
use super::values::pattern;
use crate::collect::Pattern;

flags! {
    /// The parameters of a trial, and the collection of its metrics.
    pub struct MetricArgs {
        /// The trial's parameters: NNI's record or a JSON object, in a file or inline.
        parameters: Option<OsString> = os_text("FILE|JSON"),
        /// Metric formats to look for in the trial's output, besides the SDK's.
        collect: Vec<Collect> = choice("KINDS").separated_by(',').default("text,json"),
        /// A regular expression for lines of output, whose named groups are metrics. Can be repeated (in the
        /// variable: one per line).
        metric_pattern: Vec<Pattern> = value("REGEX", pattern).separated_by('\n'),
        /// A file to which the trial writes metrics, in the formats of its output. Can be repeated.
        metric_file: Vec<PathBuf> = path("FILE").separated_by(':'),
        /// A directory to which the trial writes `TensorBoard` event files. Can be repeated.
        tensorboard: Vec<PathBuf> = path("DIR").separated_by(':'),
        /// The channel over which NNI's SDK reports.
        sdk_channel: SdkChannelKind = choice("CHANNEL").default("stdout"),
        /// The metric that the search optimises.
        objective: Option<String> = text("NAME"),
        /// The direction of the search, `maximize` or `minimize`. Without an objective, it decides between a loss
        /// and a measure of quality if a trial prints both.
        direction: Option<Direction> = parsed("DIRECTION"),
    }
}

/// A metric format in the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Collect {
    /// `name=value` text.
    Text,
    /// JSON objects on separate lines.
    Json,
    /// No format.
    None,
}

/// A channel of NNI's SDK.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum SdkChannelKind {
    /// Marked lines on standard output.
    #[default]
    Stdout,
    /// HTTP requests to trialkeeper.
    Http,
}

single_value!(SdkChannelKind: Set);
