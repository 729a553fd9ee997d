//! Fences: a fenced attempt never starts on this machine.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};

use super::Refusal;
use super::files::{create_private_dir, write_file};

/// The folder of the fences.
const FENCES_DIR: &str = "fenced";
/// The file whose lock orders fences and starts of this process, and of a process that an earlier connection left.
const START_LOCK_FILE: &str = "gate";
/// The content of a fence whose attempt has ended.
const ENDED_MARK: &str = "over\n";

/// Permits the start of an attempt, unless it is fenced. No fence can be created until the lock is dropped.
pub(super) fn permit_start(root: &Path, attempt: &str) -> Result<Flock<File>, Refusal> {
    let gate = lock_starts(root)?;
    if fence_path(root, attempt).exists() {
        let message = "the manager has given up this attempt".to_owned();
        return Err(Refusal { code: -32003, message });
    }
    Ok(gate)
}

/// Creates a fence. Returns `false` if the fence exists and its attempt has ended.
pub(super) fn create_fence(root: &Path, attempt: &str) -> io::Result<bool> {
    let path = fence_path(root, attempt);
    if fs::read_to_string(&path).is_ok_and(|text| text == ENDED_MARK) {
        return Ok(false);
    }
    create_private_dir(&root.join(FENCES_DIR))?;
    let _gate = lock_starts(root)?;
    write_file(&path, "")?;
    Ok(true)
}

/// Records that a fenced attempt has ended.
pub(super) fn record_end(root: &Path, attempt: &str) -> io::Result<()> {
    write_file(&fence_path(root, attempt), ENDED_MARK)
}

/// Returns the file of a fence.
pub(super) fn fence_path(root: &Path, attempt: &str) -> PathBuf {
    root.join(FENCES_DIR).join(attempt)
}

fn lock_starts(root: &Path) -> io::Result<Flock<File>> {
    let mut options = OpenOptions::new();
    let file = options.write(true).create(true).truncate(false).mode(0o600);
    let file = file.open(root.join(START_LOCK_FILE))?;
    Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, error)| error.into())
}
