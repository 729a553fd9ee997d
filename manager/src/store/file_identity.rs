//! The identity of the database's file. If the file is removed or replaced while it is open, writes still succeed,
//! but their data is lost.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::error::Error;
use super::writer::CommitGuard;

/// The identity of a file at the time at which it was opened.
#[derive(Debug)]
pub(super) struct FileIdentity {
    path: PathBuf,
    /// The device and the inode.
    identity: (u64, u64),
}

impl FileIdentity {
    /// Records the identity of the file at `path`.
    pub(super) fn read(path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), identity: identity(path)? })
    }
}

// A commit to a removed file would succeed, and all its acknowledged data would be lost.
impl CommitGuard for FileIdentity {
    /// Fails with [`Error::Displaced`] if the path no longer leads to the same file. Other errors of the system are
    /// ignored.
    fn check(&self) -> Result<(), Error> {
        let is_here = match identity(&self.path) {
            Ok(found) => found == self.identity,
            Err(error) => {
                !matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
            }
        };
        if is_here { Ok(()) } else { Err(Error::Displaced { path: self.path.clone() }) }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let file = std::fs::metadata(path)?;
    Ok((file.dev(), file.ino()))
}
