//! The checks of the machine: disk space, GPUs, memory.

use std::path::Path;

use nix::sys::statvfs::statvfs;

use super::Check;
use crate::commands::gpus::GpuReading;
use crate::observe::sample::cgroup::{CgroupReader, memory_percent};

/// The least free space without a warning. With less, output and checkpoints soon fill the disk.
const MIN_FREE_BYTES: u64 = 1 << 30;

/// Checks that files can be created in `dir`, or in the place where `dir` would be created.
pub(super) fn check_directory(name: &'static str, dir: &Path) -> Check {
    let shown = dir.display();
    let absolute = std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned());
    let Some(nearest) = absolute.ancestors().find(|ancestor| ancestor.exists()) else {
        return Check::fail(name, format!("{shown} cannot be accessed"), "name another directory");
    };
    if let Err(error) = tempfile::tempfile_in(nearest) {
        let finding = format!("{} cannot be written: {error}", nearest.display());
        let advice = "mount a volume there that this user may write, or name another directory";
        return Check::fail(name, finding, advice);
    }
    match statvfs(nearest) {
        Ok(space) => check_free_space(
            name,
            &shown.to_string(),
            space.blocks_available().saturating_mul(space.fragment_size()),
        ),
        Err(error) => Check::warn(
            name,
            format!("{shown} can be written; its free space is unknown ({error})"),
            "make sure that the volume has free space",
        ),
    }
}

fn check_free_space(name: &'static str, shown: &str, free: u64) -> Check {
    let finding = format!("{shown} can be written; {} MiB are free", free >> 20);
    if free < MIN_FREE_BYTES {
        return Check::warn(name, finding, "enlarge the volume: at least 1 GiB should be free");
    }
    Check::ok(name, finding)
}

/// Returns the check for a reading of the GPUs.
pub(super) fn check_gpus(reading: &GpuReading) -> Check {
    match reading {
        GpuReading::Gpus(gpus) => {
            let names = gpus.iter().map(|gpu| gpu.name.as_deref().unwrap_or("a GPU"));
            Check::ok("GPU", names.collect::<Vec<_>>().join(", "))
        }
        GpuReading::None => Check::skipped("GPU", "none, and no nvidia-smi"),
        GpuReading::Failed(why) => Check::warn(
            "GPU",
            why.clone(),
            "check the driver on the node, and that the container has access to the devices",
        ),
    }
}

/// Returns the check for the limits of the control group below `root`.
pub(super) fn check_cgroup(root: &Path) -> Check {
    let name = "control group";
    let Some(reader) = CgroupReader::find(root) else {
        let finding = "cannot be read; an out-of-memory kill cannot be recognised";
        return Check::warn(name, finding, "mount /sys/fs/cgroup into the container, read-only");
    };
    let sample = reader.read();
    let memory = match sample.memory_limit_bytes {
        Some(limit) => format!("{} MiB of memory", limit >> 20),
        None => "no memory limit".to_owned(),
    };
    let cpu = match sample.cpu_limit_cores {
        Some(cores) => format!("{cores} cores"),
        None => "no processor limit".to_owned(),
    };
    let finding = format!("{memory}, {cpu}");
    match memory_percent(&sample) {
        Some(used) if used > 90.0 => Check::warn(
            name,
            format!("{finding}; {used:.0} % of the memory is in use before a trial runs"),
            "raise the limit, or find the processes that use it",
        ),
        _ => Check::ok(name, finding),
    }
}

#[cfg(test)]
mod tests {
    use super::super::CheckState;
    use super::*;

    #[test]
    fn directories_are_writable_creatable_or_neither() {
        let dir = tempfile::tempdir().unwrap();
        #[rustfmt::skip]
        let table = [
            ("there",            dir.path().to_owned(),          false),
            ("to be made",       dir.path().join("a/b"),         false),
            ("not to be made",   Path::new("/proc/a/b").into(),  true),
        ];
        for (case, path, fails) in table {
            assert_eq!(check_directory("d", &path).state == CheckState::Fail, fails, "{case}");
        }
        assert!(!dir.path().join("a").exists(), "nothing is created");
    }

    #[test]
    fn little_free_space_is_a_warning() {
        for (free, state) in [
            (MIN_FREE_BYTES, CheckState::Ok),
            (MIN_FREE_BYTES - 1, CheckState::Warn),
            (0, CheckState::Warn),
        ] {
            assert_eq!(check_free_space("d", "x", free).state, state, "{free}");
        }
    }

    #[test]
    fn gpus_are_present_absent_or_failing() {
        let gpus = vec![trial_protocol::GpuSample::default()];
        #[rustfmt::skip]
        let table = [
            (GpuReading::Gpus(gpus),                     CheckState::Ok),
            (GpuReading::None,                           CheckState::Skipped),
            (GpuReading::Failed("lost".to_owned()),      CheckState::Warn),
        ];
        for (reading, state) in table {
            assert_eq!(check_gpus(&reading).state, state, "{reading:?}");
        }
    }

    #[test]
    fn existing_limits_are_read() {
        let fixtures = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/cgroup");
        #[rustfmt::skip]
        let table = [
            ("v2-container", CheckState::Ok),
            ("v1-unlimited", CheckState::Ok),
            ("none",         CheckState::Warn),
        ];
        for (root, state) in table {
            let check = check_cgroup(&Path::new(fixtures).join(root));
            assert_eq!(check.state, state, "{root}: {}", check.finding);
        }
    }
}
