//! The defaults of the flags of a run, as texts. Both readers, clap and [`plain`](super::plain), use them.

pub(super) const GPU_PROGRAM: &str = "nvidia-smi";
pub(super) const SPOOL_BYTES: &str = "268435456";
pub(super) const LOG_LINE_BYTES: &str = "16384";
pub(super) const LOG_RATE: &str = "67108864";
pub(super) const COLLECT: &str = "text,json";
pub(super) const STOP_GRACE: &str = "20s";
pub(super) const DRAIN: &str = "2s";
pub(super) const FLUSH: &str = "5s";
pub(super) const HEARTBEAT: &str = "5s";
pub(super) const SAMPLE_INTERVAL: &str = "5s";
pub(super) const STALL_AFTER: &str = "30m";
pub(super) const GPU_IDLE_AFTER: &str = "10m";
pub(super) const GPU_HANG_AFTER: &str = "5m";
pub(super) const START_TIMEOUT: &str = "10m";
