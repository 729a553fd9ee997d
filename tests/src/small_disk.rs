//! A small disk in memory, for tests of full disks and of disks with mount options.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A small tmpfs. Dropping it unmounts it.
#[derive(Debug)]
pub struct SmallDisk(PathBuf);

impl SmallDisk {
    /// Mounts a tmpfs with these options, such as its size, at `folder`.
    ///
    /// # Panics
    ///
    /// If the user is not root. A test that calls this function must be ignored.
    pub fn mount(folder: &Path, options: &str) -> Self {
        fs::create_dir_all(folder).expect("the bed is writable");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(folder);
        let status = mount.status().expect("mount is installed");
        assert!(status.success(), "a small disk cannot be mounted: run as root");
        Self(folder.to_owned())
    }

    /// Fills the disk completely.
    pub fn fill(&self) {
        let mut filler = File::create(self.filler_file()).expect("the disk is writable");
        // Large pieces first, then smaller ones.
        for piece in [1 << 20, 4096, 1] {
            while filler.write_all(&vec![b'x'; piece]).is_ok() {}
        }
    }

    /// Frees the space that [`fill`](Self::fill) used.
    pub fn remove_filler(&self) {
        fs::remove_file(self.filler_file()).expect("the filler exists");
    }

    /// A hidden file, whose name is not an experiment's id.
    fn filler_file(&self) -> PathBuf {
        self.0.join(".filler")
    }

    /// The mount point.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // A lazy unmount: processes keep their open files until they close them.
        drop(Command::new("umount").arg("-l").arg(&self.0).status());
    }
}
