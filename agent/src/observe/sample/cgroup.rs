//! The container's control group, version 1 or 2, read from the kernel's files.
//!
//! The agent's group is the path in `/proc/self/cgroup`, below the mount point. In a container with a mount but without
//! a cgroup namespace, the group is the mount point itself. Each limit is the smallest of the group and its visible
//! ancestors. If a file is absent (an older kernel, a disabled controller), its fields are absent too.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use trial_protocol::CgroupSample;

use crate::util::numbers::to_f64;

/// Version 1 represents "no limit" by the largest multiple of the page size. Any value from this one on means no limit.
const V1_UNLIMITED: u64 = 1 << 60;

/// The control group of this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CgroupReader {
    mount: PathBuf,
    group: CgroupDirs,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum CgroupDirs {
    /// One directory for all controllers.
    V2(PathBuf),
    /// A directory per controller.
    V1 { memory: Option<PathBuf>, cpu: Option<PathBuf>, cpuacct: Option<PathBuf> },
}

impl CgroupReader {
    /// Returns the control group of this process as seen under `root`, which is `/` except in tests. `None` if no
    /// control group has usable files.
    pub fn find(root: &Path) -> Option<Self> {
        let mount = root.join("sys/fs/cgroup");
        let own = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
        let own = parse_process_cgroups(&own);

        if mount.join("cgroup.controllers").exists() {
            let group = find_group_dir(&mount, own.v2.as_deref(), "memory.current")
                .or_else(|| find_group_dir(&mount, own.v2.as_deref(), "cpu.stat"))?;
            return Some(Self { mount, group: CgroupDirs::V2(group) });
        }

        let v1 = |controller: &str, file: &str| {
            let path = own.v1(controller);
            // Debian mounts `cpu,cpuacct` together with links for both names. Other systems mount each separately.
            find_group_dir(&mount.join(controller), path, file)
        };
        let memory = v1("memory", "memory.usage_in_bytes");
        let cpu = v1("cpu", "cpu.cfs_quota_us");
        let cpuacct = v1("cpuacct", "cpuacct.usage");
        let any = memory.is_some() || cpu.is_some() || cpuacct.is_some();
        any.then_some(Self { mount, group: CgroupDirs::V1 { memory, cpu, cpuacct } })
    }

    /// Reads all values once.
    pub fn read(&self) -> CgroupSample {
        match &self.group {
            CgroupDirs::V2(group) => self.read_v2(group),
            CgroupDirs::V1 { memory, cpu, cpuacct } => {
                let mut sample = CgroupSample::default();
                if let Some(memory) = memory {
                    self.read_v1_memory(memory, &mut sample);
                }
                if let Some(cpu) = cpu {
                    self.read_v1_cpu(cpu, &mut sample);
                }
                if let Some(cpuacct) = cpuacct {
                    sample.cpu_usage_us =
                        read_number(cpuacct, "cpuacct.usage").map(|ns| ns / 1_000);
                }
                sample
            }
        }
    }

    /// Returns the used memory that the kernel cannot simply drop, in bytes. It excludes the page cache, which fills up
    /// to the limit after many reads.
    pub fn working_set(&self) -> Option<u64> {
        let (group, used, prefix) = match &self.group {
            CgroupDirs::V2(group) => (group, "memory.current", ""),
            CgroupDirs::V1 { memory, .. } => (memory.as_ref()?, "memory.usage_in_bytes", "total_"),
        };
        let stat = read_text(group, "memory.stat");
        let cache = |kind: &str| number_after_key(&stat, &format!("{prefix}{kind}_file"));
        Some(
            read_number(group, used)?
                .saturating_sub(cache("inactive")?)
                .saturating_sub(cache("active")?),
        )
    }

    fn read_v2(&self, group: &Path) -> CgroupSample {
        let cpu = read_text(group, "cpu.stat");
        let events = read_text(group, "memory.events");
        CgroupSample {
            memory_bytes: read_number(group, "memory.current"),
            memory_limit_bytes: self
                .smallest_limit(group, |group| read_number(group, "memory.max")),
            memory_peak_bytes: read_number(group, "memory.peak"),
            cpu_limit_cores: self
                .smallest_limit(group, |group| parse_cpu_max(&read_text(group, "cpu.max"))),
            cpu_usage_us: number_after_key(&cpu, "usage_usec"),
            cpu_throttled_us: number_after_key(&cpu, "throttled_usec"),
            memory_pressure_percent: parse_pressure(&read_text(group, "memory.pressure")),
            cpu_pressure_percent: parse_pressure(&read_text(group, "cpu.pressure")),
            io_pressure_percent: parse_pressure(&read_text(group, "io.pressure")),
            oom_events: number_after_key(&events, "oom"),
            oom_kills: number_after_key(&events, "oom_kill"),
            ..CgroupSample::default()
        }
    }

    fn read_v1_memory(&self, group: &Path, sample: &mut CgroupSample) {
        let limit = |group: &Path| {
            read_number(group, "memory.limit_in_bytes").filter(|limit| *limit < V1_UNLIMITED)
        };
        sample.memory_bytes = read_number(group, "memory.usage_in_bytes");
        sample.memory_limit_bytes = self.smallest_limit(group, limit);
        sample.memory_peak_bytes = read_number(group, "memory.max_usage_in_bytes");
        // Since Linux 4.13.
        sample.oom_kills = number_after_key(&read_text(group, "memory.oom_control"), "oom_kill");
    }

    fn read_v1_cpu(&self, group: &Path, sample: &mut CgroupSample) {
        let limit = |group: &Path| {
            // The value -1 means no limit; it does not parse as a number here.
            to_cores(
                read_number(group, "cpu.cfs_quota_us")?,
                read_number(group, "cpu.cfs_period_us")?,
            )
        };
        sample.cpu_limit_cores = self.smallest_limit(group, limit);
        let throttled = number_after_key(&read_text(group, "cpu.stat"), "throttled_time");
        sample.cpu_throttled_us = throttled.map(|ns| ns / 1_000);
    }

    /// Returns the smallest limit of `group` and its ancestors up to the mount point.
    fn smallest_limit<T: PartialOrd>(
        &self,
        group: &Path,
        limit: impl Fn(&Path) -> Option<T>,
    ) -> Option<T> {
        let ancestors = group.ancestors().take_while(|group| group.starts_with(&self.mount));
        ancestors
            .filter_map(limit)
            .reduce(|smallest, next| if next < smallest { next } else { smallest })
    }
}

/// Returns the used memory in percent of the container's limit; `None` without a limit.
pub fn memory_percent(sample: &CgroupSample) -> Option<f64> {
    let (used, limit) = (sample.memory_bytes?, sample.memory_limit_bytes?);
    (limit > 0).then(|| 100.0 * to_f64(used) / to_f64(limit))
}

/// Returns the processor time between two readings in percent of the container's limit; `None` without a limit.
/// `elapsed_us` is the time between the readings.
pub fn cpu_percent(before: &CgroupSample, after: &CgroupSample, elapsed_us: u64) -> Option<f64> {
    let used = after.cpu_usage_us?.checked_sub(before.cpu_usage_us?)?;
    let available = after.cpu_limit_cores? * to_f64(elapsed_us);
    (available > 0.0).then(|| 100.0 * to_f64(used) / available)
}

/// The groups of a process, from `/proc/self/cgroup`.
#[derive(Debug, Default, PartialEq, Eq)]
struct ProcessCgroups {
    v2: Option<String>,
    v1: Vec<(String, String)>,
}

impl ProcessCgroups {
    fn v1(&self, controller: &str) -> Option<&str> {
        let of = |controllers: &str| controllers.split(',').any(|name| name == controller);
        self.v1.iter().find(|(controllers, _)| of(controllers)).map(|(_, path)| path.as_str())
    }
}

/// Parses lines of `id:controllers:path`.
fn parse_process_cgroups(text: &str) -> ProcessCgroups {
    let mut own = ProcessCgroups::default();
    for line in text.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(id), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next())
        else {
            continue;
        };
        if id == "0" && controllers.is_empty() {
            own.v2 = Some(path.to_owned());
        } else {
            own.v1.push((controllers.to_owned(), path.to_owned()));
        }
    }
    own
}

/// Returns the directory of `path` below `mount`, or else `mount` itself: the first that has `file`.
fn find_group_dir(mount: &Path, path: Option<&str>, file: &str) -> Option<PathBuf> {
    let below = path.map(|path| path.trim_start_matches('/')).filter(|path| {
        // A path that leaves the mount (`/../..`, from another namespace) is unusable.
        !path.is_empty() && !path.split('/').any(|part| part == "..")
    });
    let candidates = below.map(|path| mount.join(path)).into_iter().chain([mount.to_owned()]);
    candidates.into_iter().find(|candidate| candidate.join(file).exists())
}

/// The maximum number of bytes read from a file. The longest file, `cpu.stat`, has a few hundred.
const MAX_FILE_BYTES: usize = 4096;

/// Returns the text of a file. The kernel generates the whole text for the first read, so one call is enough.
fn read_text(group: &Path, file: &str) -> String {
    let mut text = [0; MAX_FILE_BYTES];
    let read = File::open(group.join(file)).and_then(|mut file| file.read(&mut text));
    String::from_utf8_lossy(&text[..read.unwrap_or(0)]).into_owned()
}

/// Reads a file with one number; `max` returns `None`.
fn read_number(group: &Path, file: &str) -> Option<u64> {
    read_text(group, file).trim().parse().ok()
}

/// Returns the number after `key` in lines of `key number`.
fn number_after_key(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.trim().parse().ok())
}

/// Parses `cpu.max`: `quota period`, both in microseconds, or `max period`.
fn parse_cpu_max(text: &str) -> Option<f64> {
    let (quota, period) = text.trim().split_once(' ')?;
    to_cores(quota.parse().ok()?, period.trim().parse().ok()?)
}

/// Parses `memory.pressure` and similar files: the share of the last 10 s in which some task waited.
fn parse_pressure(text: &str) -> Option<f64> {
    let some = text.lines().find_map(|line| line.strip_prefix("some "))?;
    let share = some.split(' ').find_map(|field| field.strip_prefix("avg10="))?;
    share.parse().ok().filter(|share: &f64| (0.0..=100.0).contains(share))
}

fn to_cores(quota_us: u64, period_us: u64) -> Option<f64> {
    (period_us > 0).then(|| to_f64(quota_us) / to_f64(period_us))
}

#[cfg(test)]
mod tests;
