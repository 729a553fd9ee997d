//! Fences: a fenced attempt never starts on this machine.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};

use super::Refusal;
use super::files::{folder, write_file};

/// The folder of the fences.
const FENCES: &str = "fenced";
/// The file whose lock orders fences and starts, of this process and of one that an earlier connection has left.
const GATE: &str = "gate";
/// The word in the fence of an attempt that does not run.
const OVER: &str = "over\n";

/// Lets an attempt start, unless it is fenced: until the lock is dropped no fence is raised.
pub(super) fn pass(root: &Path, attempt: &str) -> Result<Flock<File>, Refusal> {
    let gate = gate(root)?;
    if path(root, attempt).exists() {
        let message = "the manager has given this attempt up".to_owned();
        return Err(Refusal { code: -32003, message });
    }
    Ok(gate)
}

/// Raises a fence; `false` if it stands and its attempt is over.
pub(super) fn raise(root: &Path, attempt: &str) -> io::Result<bool> {
    let path = path(root, attempt);
    if fs::read_to_string(&path).is_ok_and(|text| text == OVER) {
        return Ok(false);
    }
    folder(&root.join(FENCES))?;
    let _gate = gate(root)?;
    write_file(&path, "")?;
    Ok(true)
}

/// Notes that a fenced attempt is over.
pub(super) fn settle(root: &Path, attempt: &str) -> io::Result<()> {
    write_file(&path(root, attempt), OVER)
}

/// Returns the file of a fence.
pub(super) fn path(root: &Path, attempt: &str) -> PathBuf {
    root.join(FENCES).join(attempt)
}

fn gate(root: &Path) -> io::Result<Flock<File>> {
    let mut options = OpenOptions::new();
    let file = options.write(true).create(true).truncate(false).mode(0o600);
    let file = file.open(root.join(GATE))?;
    Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, error)| error.into())
}
