//! Readings of the agent. An absent value is `None`, never 0: a GPU that cannot be read has no utilisation.

use serde::{Deserialize, Serialize};

/// All values that could be read at one time.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// The trial's process tree.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<ProcessSample>,
    /// The container's control group. Absence means that it could not be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<CgroupSample>,
    /// One entry per GPU. Absence means that there are no GPUs or that none could be read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<GpuSample>,
}

/// The sums over the trial's process tree. Source: `/proc`, through the `sysinfo` crate.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ProcessSample {
    /// Number of live processes.
    pub processes: u32,
    /// Number of threads of all processes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threads: Option<u32>,
    /// Processor time used since the previous sample, in percent of one core: 250 is two and a half cores. Absent in
    /// the first sample.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_percent: Option<f64>,
    /// Resident memory, in bytes. Shared pages count once for each process.
    pub memory_bytes: u64,
    /// Bytes read from storage since each process began. Source: `/proc/PID/io`, `read_bytes`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_bytes: Option<u64>,
    /// Bytes written to storage since each process began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub written_bytes: Option<u64>,
    /// Open file descriptors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub descriptors: Option<u32>,
}

/// The container's limits and usage. Source: cgroup v2 (kernel `Documentation/admin-guide/cgroup-v2.rst`) or the same
/// values of v1.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct CgroupSample {
    /// Memory in use, page cache included, in bytes (`memory.current`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Memory limit in bytes (`memory.max`). Absence means no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_limit_bytes: Option<u64>,
    /// Highest memory use so far, in bytes (`memory.peak`, since Linux 5.19).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_peak_bytes: Option<u64>,
    /// Processor limit in cores (`cpu.max`). Absence means no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_limit_cores: Option<f64>,
    /// Processor time used so far, in microseconds (`cpu.stat`, `usage_usec`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_usage_us: Option<u64>,
    /// Time spent throttled so far, in microseconds (`cpu.stat`, `throttled_usec`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_throttled_us: Option<u64>,
    /// Memory in use, page cache included, in percent of the limit. Absence means no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_percent: Option<f64>,
    /// Processor time used since the previous sample, in percent of the limit. Absence means no limit or no previous
    /// sample.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_percent: Option<f64>,
    /// Share of the last 10 s in which some task waited for memory, in percent (`memory.pressure`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_pressure_percent: Option<f64>,
    /// Share of the last 10 s in which some task waited for the processor, in percent (`cpu.pressure`). In a container
    /// at its limit, it includes the throttled time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_pressure_percent: Option<f64>,
    /// Share of the last 10 s in which some task waited for I/O, such as a slow data disk, in percent (`io.pressure`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub io_pressure_percent: Option<f64>,
    /// Number of times that the limit was reached and the out-of-memory killer was called (`memory.events`, `oom`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oom_events: Option<u64>,
    /// Number of processes that the out-of-memory killer killed (`memory.events`, `oom_kill`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oom_kills: Option<u64>,
}

/// One GPU. Source: `nvidia-smi --query-gpu`, or AMD's sysfs. Comments give the DCGM field of the same meaning.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct GpuSample {
    /// Index in the tool's numbering.
    pub index: u32,
    /// Unique id, such as `GPU-5f0c…`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// Name of the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// `DCGM_FI_DEV_GPU_UTIL`: share of time in which a kernel ran, 0 to 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub utilization_percent: Option<f64>,
    /// `DCGM_FI_DEV_FB_USED`, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_used_bytes: Option<u64>,
    /// `DCGM_FI_DEV_FB_TOTAL`, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_total_bytes: Option<u64>,
    /// `DCGM_FI_DEV_POWER_USAGE`, in watts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power_watts: Option<f64>,
    /// Power limit, in watts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power_limit_watts: Option<f64>,
    /// `DCGM_FI_DEV_GPU_TEMP`, in degrees Celsius.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temperature_celsius: Option<f64>,
    /// `DCGM_FI_DEV_SM_CLOCK`, in MHz.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sm_clock_mhz: Option<u32>,
    /// `DCGM_FI_DEV_ECC_DBE_VOL_TOTAL`: uncorrectable memory errors since the driver was loaded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ecc_uncorrected: Option<u64>,
    /// `true` if the GPU is split by MIG. Absence means that the GPU does not support MIG.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mig_enabled: Option<bool>,
}
