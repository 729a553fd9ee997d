//! Holds trials back until the test lets them go on, one step at a time.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

/// A named pipe that holds one line per step which a trial may take. A trial of the shell waits with
/// `read _ <"$GATE"`, which takes exactly one line.
#[derive(Debug)]
pub struct Gate {
    path: PathBuf,
    /// Open for both directions, so that neither side ever waits for the other to open it.
    pipe: File,
}

impl Gate {
    /// A shut gate at `path`.
    pub fn new(path: &Path) -> Self {
        mkfifo(path, Mode::S_IRWXU).expect("the bed is writable");
        let pipe = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(OFlag::O_NONBLOCK.bits())
            .open(path)
            .expect("a pipe open for both directions does not wait");
        Self { path: path.to_owned(), pipe }
    }

    /// Where a trial finds it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Lets trials take `steps` more steps; at most 60,000 may be waiting.
    pub fn open(&self, steps: usize) {
        (&self.pipe).write_all(&vec![b'\n'; steps]).expect("a pipe holds 64 KiB");
    }
}
