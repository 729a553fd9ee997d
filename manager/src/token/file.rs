//! Files with a secret in them: written whole or not at all, and for the owner's eyes only. What the bytes
//! mean is not known here.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use super::Error;

/// The file's bytes. A file that others may read is protected first.
pub(super) fn read(path: &Path) -> Result<Vec<u8>, Error> {
    let failed = |action| move |source| Error::File { action, path: path.to_owned(), source };
    let bytes = fs::read(path).map_err(failed("read"))?;
    let mode = fs::metadata(path).map_err(failed("read"))?.permissions().mode();
    if mode & 0o077 != 0 {
        tracing::warn!(path = %path.display(), "others could read the secret; it is protected now");
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).map_err(failed("protect"))?;
    }
    Ok(bytes)
}

/// Reads the file; makes it of `new`'s bytes where there is none.
pub(super) fn read_or_create(
    path: &Path,
    new: impl FnOnce() -> Result<Vec<u8>, Error>,
) -> Result<Vec<u8>, Error> {
    match read(path) {
        Err(Error::File { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            create(path, &new()?)?;
            // What is in the file now counts, also where another process made it first.
            read(path)
        }
        result => result,
    }
}

/// Writes aside and moves into place, so that no reader ever sees half of it.
fn create(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let failed = |source| Error::File { action: "write", path: path.to_owned(), source };
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    // A named temporary file is made with mode 0600.
    let mut file = tempfile::NamedTempFile::new_in(folder).map_err(failed)?;
    file.write_all(bytes).and_then(|()| file.as_file().sync_all()).map_err(failed)?;
    match file.persist_noclobber(path) {
        Ok(_) => {}
        Err(refused) if refused.error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(refused) => return Err(failed(refused.error)),
    }
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(failed)
}
