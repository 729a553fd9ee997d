//! Private files and folders, which only their owner may read, and locks. Files are written atomically.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

/// Creates a folder and its missing parents with mode 0700, whatever the umask is.
pub fn create_private_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Returns the path at which a file is written before it is moved into place. The name is unique for each file.
pub fn temporary_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    name.into()
}

/// Writes a file atomically: a reader sees either the old text or the new one. The file has `mode` from its creation.
pub fn write_file(path: &Path, mode: u32, text: &str) -> io::Result<()> {
    let temporary = temporary_path(path);
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(mode).open(&temporary)?;
    file.write_all(text.as_bytes())?;
    std::fs::rename(&temporary, path)
}

/// The outcome of an attempt to lock a file.
#[derive(Debug)]
pub enum LockOutcome {
    /// The lock was free, and is held until it is dropped.
    Acquired(Flock<File>),
    /// Another process holds the lock of this open file.
    Busy(File),
}

/// Takes the lock of an existing file if it is free.
pub fn try_lock(path: &Path) -> io::Result<LockOutcome> {
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(lock) => Ok(LockOutcome::Acquired(lock)),
        Err((file, Errno::EWOULDBLOCK)) => Ok(LockOutcome::Busy(file)),
        Err((_, error)) => Err(error.into()),
    }
}
