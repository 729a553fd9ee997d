//! Options of a run that shares no disk with its manager, or that is one pod of several.

use core::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::{defaults, duration};
use crate::pod::peers::{Role, Task};

/// The options of a pod.
#[derive(Debug, Default, Args)]
pub struct PodArgs {
    /// The files to fetch from the manager before the trial starts.
    #[arg(long, env = "TRIALKEEPER_FETCH", value_name = "KINDS", value_delimiter = ',')]
    pub fetch: Vec<Fetch>,
    /// The directory for fetched code, in which the trial then runs [default: code, in the output directory].
    #[arg(long, env = "TRIALKEEPER_CODE_DIR", value_name = "DIR")]
    pub code_dir: Option<PathBuf>,
    /// A code archive on this machine, unpacked into the code directory. Files that the trial did not change are
    /// removed after it.
    #[arg(long, env = "TRIALKEEPER_CODE_ARCHIVE", value_name = "FILE")]
    pub code_archive: Option<PathBuf>,
    /// A directory for one unpacked copy of the code archive, from which runs copy their code. Files share blocks if
    /// the file system supports it (Btrfs, XFS).
    #[arg(long, env = "TRIALKEEPER_CODE_BASE", value_name = "DIR")]
    pub code_base: Option<PathBuf>,
    /// Maximum time for fetching and for waiting for the other pods, together.
    #[arg(long, env = "TRIALKEEPER_START_TIMEOUT", value_name = "TIME", default_value = defaults::START_TIMEOUT, value_parser = duration)]
    pub start_timeout: Duration,
    /// Role of this pod in its trial [default: `$FC_TASKROLE_NAME`].
    #[arg(long, env = "TRIALKEEPER_ROLE", value_name = "NAME")]
    pub role: Option<String>,
    /// Number of this pod in its role, from 0 [default: `$FC_TASK_INDEX`].
    #[arg(long, env = "TRIALKEEPER_ROLE_INDEX", value_name = "N")]
    pub role_index: Option<u32>,
    /// ID of this pod, if the cluster may run an attempt again in another pod. Each pod then reports as a separate try.
    #[arg(long, env = "TRIALKEEPER_INCARNATION", value_name = "ID")]
    pub incarnation: Option<String>,
    /// All pods of the trial, as ROLE:NUMBER or ROLE:NUMBER:PORT. Each pod waits until all have registered with the
    /// manager.
    #[arg(long, env = "TRIALKEEPER_ROLES", value_name = "ROLES", value_delimiter = ',')]
    pub roles: Vec<Role>,
    /// The pod whose metrics are the trial's, as ROLE:INDEX [default: the first].
    #[arg(long, env = "TRIALKEEPER_METRICS_FROM", value_name = "POD")]
    pub metrics_from: Option<Task>,
    /// The address at which the trial's other pods reach this one [default: the one that reaches the manager].
    #[arg(long, env = "TRIALKEEPER_POD_IP", value_name = "IP")]
    pub pod_ip: Option<IpAddr>,
}

/// A file that a pod can fetch from the manager.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Fetch {
    /// The code directory.
    Code,
    /// The parameters.
    Parameters,
}
