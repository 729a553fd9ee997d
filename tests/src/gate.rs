//! Blocks trials until the test releases them, one step at a time.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

/// A named pipe that contains one line per step that trials may take. A shell trial waits with `read _
/// <"$GATE"`, which consumes exactly one line.
#[derive(Debug)]
pub struct Gate {
    path: PathBuf,
    /// Open for reading and writing, so that neither side waits for the other to open the pipe.
    pipe: File,
}

impl Gate {
    /// Creates a closed gate at `path`.
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

    /// The path of the pipe, for the trial.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Releases `steps` more steps. At most 60,000 steps may be pending.
    pub fn release(&self, steps: usize) {
        (&self.pipe).write_all(&vec![b'\n'; steps]).expect("a pipe holds 64 KiB");
    }
}
