//! The identity of the database's file. If the file is removed or replaced while it is open, writes still succeed,
//! but their data is lost.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::{Error, Store};

/// The identity of a file at the time at which it was opened.
#[derive(Debug)]
pub(super) struct FileIdentity {
    path: PathBuf,
    /// The device and the inode.
    identity: (u64, u64),
}

impl FileIdentity {
    /// Records the identity of the file at `path`.
    pub(super) fn of(path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), identity: identity(path)? })
    }

    /// Fails with [`Error::Displaced`] if the path no longer leads to the same file. Other errors of the system are
    /// ignored.
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
    /// Checks that the file is still at its path, so that an idle store detects a displaced file.
    pub async fn check_identity(&self) {
        if !self.is_in_place() && self.write_error().is_none() {
            // The probe fails for that reason and updates `write_error`.
            drop(self.probe().await);
        }
    }

    /// Returns whether the open file is still the one at its path.
    pub fn is_in_place(&self) -> bool {
        self.inner.shared.identity.as_ref().is_none_or(|place| place.check().is_ok())
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let file = std::fs::metadata(path)?;
    Ok((file.dev(), file.ino()))
}
