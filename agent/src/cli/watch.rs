//! Options for the observation of a trial, and for the reactions to it.

use std::path::PathBuf;
use std::time::Duration;

use super::flags::{flags, path, switch, value};
use super::values::{duration, sample_interval};

/// The default program that reads NVIDIA's GPUs.
pub(super) const GPU_PROGRAM: &str = "nvidia-smi";

flags! {
    /// The observations to make, and their limits.
    pub struct WatchArgs {
        /// Time between two samples of processes, control group and GPUs; 0: no samples.
        sample_interval: Duration = value("TIME", sample_interval).default("5s"),
        /// The program that reads NVIDIA's GPUs; `none`: do not read them.
        gpu_program: PathBuf = path("PROGRAM").default(GPU_PROGRAM),
        /// Warn if the trial shows no activity for this long; 0: use only the trial's own step times.
        stall_after: Duration = value("TIME", duration).default("30m"),
        /// End a trial that shows no activity.
        stop_on_stall: bool = switch(),
        /// Warn if a GPU of the trial is idle for this long; 0: never.
        gpu_idle_after: Duration = value("TIME", duration).default("10m"),
        /// End a trial if all of its GPUs have been idle for that long.
        stop_on_gpu_idle: bool = switch(),
        /// Warn if a GPU is fully used at little power for this long; 0: never.
        gpu_hang_after: Duration = value("TIME", duration).default("5m"),
        /// End a trial with such a GPU if it also reported and printed nothing for that long.
        stop_on_gpu_hang: bool = switch(),
    }
}
