//! The identity of the database's file. A file that was removed or replaced while it is open takes writes as before,
//! and they are never found again.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::{Error, Store};

/// A file as it was when it was opened.
#[derive(Debug)]
pub(super) struct FileIdentity {
    path: PathBuf,
    /// Device and inode.
    identity: (u64, u64),
}

impl FileIdentity {
    /// Notes which file is at `path` now.
    pub(super) fn of(path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), identity: identity(path)? })
    }

    /// Fails with [`Error::Displaced`] if another file, or none, is at the path. A system that cannot tell is believed to
    /// have kept the file.
    pub(super) fn check(&self) -> Result<(), Error> {
        let is_here = match identity(&self.path) {
            Ok(found) => found == self.identity,
            Err(error) => {
                !matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
            }
        };
        if is_here { Ok(()) } else { Err(Error::Displaced { path: self.path.clone() }) }
    }
}

impl Store {
    /// Looks whether the file is still at its path, so that an idle store is known to be ill when it is not.
    pub async fn check_identity(&self) {
        if !self.is_in_place() && self.write_error().is_none() {
            // It is refused for that reason, and everyone is told.
            drop(self.probe().await);
        }
    }

    /// Returns whether the file that is open is the one at its path.
    pub fn is_in_place(&self) -> bool {
        self.inner.shared.identity.as_ref().is_none_or(|place| place.check().is_ok())
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let file = std::fs::metadata(path)?;
    Ok((file.dev(), file.ino()))
}
