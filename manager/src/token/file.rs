//! Files with a secret, written atomically and readable only by their owner. This module does not interpret the
//! content.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use super::Error;

/// Returns the file's bytes. A file that other users may read is protected first.
pub(super) fn read(path: &Path) -> Result<Vec<u8>, Error> {
    let failed = |action| move |source| Error::File { action, path: path.to_owned(), source };
    let bytes = fs::read(path).map_err(failed("read"))?;
    let mode = fs::metadata(path).map_err(failed("read"))?.permissions().mode();
    if mode & 0o077 != 0 {
        tracing::warn!(path = %path.display(), "other users could read the secret; now only its owner can");
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).map_err(failed("protect"))?;
    }
    Ok(bytes)
}

/// Reads the file. If it does not exist, it is created with the bytes of `new`.
pub(super) fn read_or_create(
    path: &Path,
    new: impl FnOnce() -> Result<Vec<u8>, Error>,
) -> Result<Vec<u8>, Error> {
    match read(path) {
        Err(Error::File { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            create(path, &new()?)?;
            // Reads the file again, because another process may have created it first.
            read(path)
        }
        result => result,
    }
}

/// Writes a temporary file and moves it into place, so that no reader sees a partial file.
fn create(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let failed = |source| Error::File { action: "write", path: path.to_owned(), source };
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    // A named temporary file has mode 0600.
    let mut file = tempfile::NamedTempFile::new_in(folder).map_err(failed)?;
    file.write_all(bytes).and_then(|()| file.as_file().sync_all()).map_err(failed)?;
    match file.persist_noclobber(path) {
        Ok(_) => {}
        Err(refused) if refused.error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(refused) => return Err(failed(refused.error)),
    }
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(failed)
}
