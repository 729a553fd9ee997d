//! Options about what is seen of a trial from outside, and what follows from it.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use clap::builder::BoolishValueParser;

use super::duration;
use super::values::sample_interval;

/// The observations to make, and their limits.
#[derive(Debug, Default, Args)]
pub struct WatchArgs {
    /// Time between two readings of processes, control group and GPUs; 0: none.
    #[arg(long, env = "TRIALKEEPER_SAMPLE_INTERVAL", value_name = "TIME", default_value = "5s", value_parser = sample_interval)]
    pub sample_interval: Duration,
    /// The program that reads NVIDIA's GPUs; `none`: they are not read.
    #[arg(
        long,
        env = "TRIALKEEPER_GPU_PROGRAM",
        value_name = "PROGRAM",
        default_value = "nvidia-smi"
    )]
    pub gpu_program: PathBuf,
    /// Warn of a trial that shows no sign of life for this long; 0: its own steps alone decide.
    #[arg(long, env = "TRIALKEEPER_STALL_AFTER", value_name = "TIME", default_value = "30m", value_parser = duration)]
    pub stall_after: Duration,
    /// End such a trial.
    #[arg(long, env = "TRIALKEEPER_STOP_ON_STALL", value_parser = BoolishValueParser::new())]
    pub stop_on_stall: bool,
    /// Warn of a GPU of the trial's that has nothing to do for this long; 0: never.
    #[arg(long, env = "TRIALKEEPER_GPU_IDLE_AFTER", value_name = "TIME", default_value = "10m", value_parser = duration)]
    pub gpu_idle_after: Duration,
    /// End a trial of which every GPU has had nothing to do for so long.
    #[arg(long, env = "TRIALKEEPER_STOP_ON_GPU_IDLE", value_parser = BoolishValueParser::new())]
    pub stop_on_gpu_idle: bool,
    /// Warn of a GPU that is fully used at little power for this long; 0: never.
    #[arg(long, env = "TRIALKEEPER_GPU_HANG_AFTER", value_name = "TIME", default_value = "5m", value_parser = duration)]
    pub gpu_hang_after: Duration,
    /// End a trial with such a GPU that has reported and printed nothing for so long, either.
    #[arg(long, env = "TRIALKEEPER_STOP_ON_GPU_HANG", value_parser = BoolishValueParser::new())]
    pub stop_on_gpu_hang: bool,
}
