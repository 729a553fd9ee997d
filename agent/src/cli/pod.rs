//! Options of a run that shares no disk with its manager, or that is one pod of several.

use core::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use super::flags::{choice, flags, parsed, path, text, value};
use super::values::duration;
use crate::pod::peers::{Role, Task};

flags! {
    /// The options of a pod.
    pub struct PodArgs {
        /// The files to fetch from the manager before the trial starts.
        fetch: Vec<Fetch> = choice("KINDS").separated_by(','),
        /// The directory for fetched code, in which the trial then runs [default: code, in the output directory].
        code_dir: Option<PathBuf> = path("DIR"),
        /// A code archive on this machine, unpacked into the code directory. Files that the trial did not change are
        /// removed after it.
        code_archive: Option<PathBuf> = path("FILE"),
        /// A directory for one unpacked copy of the code archive, from which runs copy their code. Files share blocks if
        /// the file system supports it (Btrfs, XFS).
        code_base: Option<PathBuf> = path("DIR"),
        /// Maximum time for fetching and for waiting for the other pods, together.
        start_timeout: Duration = value("TIME", duration).default("10m"),
        /// Role of this pod in its trial [default: `$FC_TASKROLE_NAME`].
        role: Option<String> = text("NAME"),
        /// Number of this pod in its role, from 0 [default: `$FC_TASK_INDEX`].
        role_index: Option<u32> = parsed("N"),
        /// ID of this pod, if the cluster may run an attempt again in another pod. Each pod then reports as a separate
        /// attempt.
        incarnation: Option<String> = text("ID"),
        /// All pods of the trial, as ROLE:NUMBER or ROLE:NUMBER:PORT. Each pod waits until all have registered with the
        /// manager.
        roles: Vec<Role> = parsed("ROLES").separated_by(','),
        /// The pod whose metrics are the trial's, as ROLE:INDEX [default: the first].
        metrics_from: Option<Task> = parsed("POD"),
        /// The address at which the trial's other pods reach this one [default: the one that reaches the manager].
        pod_ip: Option<IpAddr> = parsed("IP"),
    }
}

/// A file that a pod can fetch from the manager.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Fetch {
    /// The code directory.
    Code,
    /// The parameters.
    Parameters,
}
