//! Options for the observation of a trial, and for the reactions to it.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use clap::builder::BoolishValueParser;

use super::values::sample_interval;
use super::{defaults, duration};

/// The observations to make, and their limits.
#[derive(Debug, Default, Args)]
pub struct WatchArgs {
    /// Time between two samples of processes, control group and GPUs; 0: no samples.
    #[arg(long, env = "TRIALKEEPER_SAMPLE_INTERVAL", value_name = "TIME", default_value = defaults::SAMPLE_INTERVAL, value_parser = sample_interval)]
    pub sample_interval: Duration,
    /// The program that reads NVIDIA's GPUs; `none`: do not read them.
    #[arg(
        long,
        env = "TRIALKEEPER_GPU_PROGRAM",
        value_name = "PROGRAM",
        default_value = defaults::GPU_PROGRAM
    )]
    pub gpu_program: PathBuf,
    /// Warn if the trial shows no activity for this long; 0: use only the trial's own step times.
    #[arg(long, env = "TRIALKEEPER_STALL_AFTER", value_name = "TIME", default_value = defaults::STALL_AFTER, value_parser = duration)]
    pub stall_after: Duration,
    /// End a trial that shows no activity.
    #[arg(long, env = "TRIALKEEPER_STOP_ON_STALL", value_parser = BoolishValueParser::new())]
    pub stop_on_stall: bool,
    /// Warn if a GPU of the trial is idle for this long; 0: never.
    #[arg(long, env = "TRIALKEEPER_GPU_IDLE_AFTER", value_name = "TIME", default_value = defaults::GPU_IDLE_AFTER, value_parser = duration)]
    pub gpu_idle_after: Duration,
    /// End a trial if all of its GPUs have been idle for that long.
    #[arg(long, env = "TRIALKEEPER_STOP_ON_GPU_IDLE", value_parser = BoolishValueParser::new())]
    pub stop_on_gpu_idle: bool,
    /// Warn if a GPU is fully used at little power for this long; 0: never.
    #[arg(long, env = "TRIALKEEPER_GPU_HANG_AFTER", value_name = "TIME", default_value = defaults::GPU_HANG_AFTER, value_parser = duration)]
    pub gpu_hang_after: Duration,
    /// End a trial with such a GPU if it also reported and printed nothing for that long.
    #[arg(long, env = "TRIALKEEPER_STOP_ON_GPU_HANG", value_parser = BoolishValueParser::new())]
    pub stop_on_gpu_hang: bool,
}
