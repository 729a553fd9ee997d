//! Options of a run that shares no disk with its manager, or that is one pod of several.

use core::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::duration;
use crate::pod::peers::{Role, Task};

/// The options of a pod.
#[derive(Debug, Default, Args)]
pub struct PodArgs {
    /// The files that the manager gives before the trial starts.
    #[arg(long, env = "TRIALKEEPER_FETCH", value_name = "KINDS", value_delimiter = ',')]
    pub fetch: Vec<Fetch>,
    /// Where fetched code goes, and where the trial then runs [default: code, in the output directory].
    #[arg(long, env = "TRIALKEEPER_CODE_DIR", value_name = "DIR")]
    pub code_dir: Option<PathBuf>,
    /// A code archive on this machine: it is unpacked where fetched code would go, and files that the trial leaves
    /// unchanged are removed after it.
    #[arg(long, env = "TRIALKEEPER_CODE_ARCHIVE", value_name = "FILE")]
    pub code_archive: Option<PathBuf>,
    /// Where one unpacked copy of the code archive is kept, from which the runs that name it copy their code. Files share
    /// their blocks where the file system can (Btrfs, XFS).
    #[arg(long, env = "TRIALKEEPER_CODE_BASE", value_name = "DIR")]
    pub code_base: Option<PathBuf>,
    /// The time that fetching, and waiting for the other pods, may take in all.
    #[arg(long, env = "TRIALKEEPER_START_TIMEOUT", value_name = "TIME", default_value = "10m", value_parser = duration)]
    pub start_timeout: Duration,
    /// The role of this pod in its trial; else `FC_TASKROLE_NAME`.
    #[arg(long, env = "TRIALKEEPER_ROLE", value_name = "NAME")]
    pub role: Option<String>,
    /// Its number within the role, from 0; else `FC_TASK_INDEX`.
    #[arg(long, env = "TRIALKEEPER_ROLE_INDEX", value_name = "N")]
    pub role_index: Option<u32>,
    /// The pod's own id, where the cluster may run an attempt again in another pod: each then reports as a try of its own.
    #[arg(long, env = "TRIALKEEPER_INCARNATION", value_name = "ID")]
    pub incarnation: Option<String>,
    /// All roles of a trial of several pods, as ROLE:NUMBER or ROLE:NUMBER:PORT: each pod waits until all have
    /// told the manager where they are, and its trial learns it.
    #[arg(long, env = "TRIALKEEPER_ROLES", value_name = "ROLES", value_delimiter = ',')]
    pub roles: Vec<Role>,
    /// The pod, as ROLE:INDEX, whose metrics are the trial's [default: the first].
    #[arg(long, env = "TRIALKEEPER_METRICS_FROM", value_name = "POD")]
    pub metrics_from: Option<Task>,
    /// The address at which the trial's other pods reach this one [default: the one that reaches the manager].
    #[arg(long, env = "TRIALKEEPER_POD_IP", value_name = "IP")]
    pub pod_ip: Option<IpAddr>,
}

/// A file that the manager gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Fetch {
    /// The code directory.
    Code,
    /// The parameters.
    Parameters,
}
