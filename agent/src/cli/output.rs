//! Options for the files of a run, and for its output.

use std::path::PathBuf;

use super::flags::{choice, flags, parsed, path, single_value, text, value};
use super::values::{log_line_bytes, rotate_bytes};

flags! {
    /// The files of a run, and the output to send.
    pub struct OutputArgs {
        /// The trial's directory for output, verdict and spool [default: `$NNI_OUTPUT_DIR`, else a new one in
        /// ./trialkeeper-runs].
        output_dir: Option<PathBuf> = path("DIR"),
        /// The spool directory [default: spool, in the output directory].
        spool_dir: Option<PathBuf> = path("DIR"),
        /// Maximum size of the spool in bytes. Above it, logs and samples are dropped, but never metrics or lifecycle
        /// reports.
        spool_bytes: u64 = parsed("N").default("268435456"),
        /// Size in bytes at which the files `stdout` and `stderr` are rotated [default: never].
        rotate_bytes: Option<u64> = value("N", rotate_bytes),
        /// A file for the short verdict, at most 4096 bytes of JSON [default: /dev/termination-log, if it exists].
        termination_log: Option<PathBuf> = path("FILE"),
        /// Map the trial's exit code for a platform that decides on retries by the exit code.
        exit_code_map: Option<ExitCodeMap> = choice("PLATFORM"),
        /// The part of the trial's output to send to the manager.
        log_collection: LogCollection = choice("MODE").default("none"),
        /// Length in bytes up to which a line is sent completely.
        log_line_bytes: usize = value("N", log_line_bytes).default("16384"),
        /// Maximum bytes of each stream to send per second. The rest is dropped and counted.
        log_rate: u64 = parsed("N").default("67108864"),
        /// A variable whose value is masked in all data that is sent. Can be repeated.
        mask_env: Vec<String> = text("NAME").separated_by(','),
    }
}

/// The part of the output to send to the manager.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LogCollection {
    /// The last 64 KiB of each stream.
    #[default]
    None,
    /// All lines.
    Http,
}

single_value!(LogCollection: Set);

/// A platform that attaches a meaning to exit codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum ExitCodeMap {
    /// 200 for a transient failure, 210 for any other failure.
    Frameworkcontroller,
    /// 143 for a trial whose verdict has the cause `stopped`, whatever its own code. A Job takes 0 for success, and most other codes
    /// for a failure of the trial.
    Kubernetes,
}
