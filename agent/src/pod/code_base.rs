//! One unpacked copy of a code archive (the base), from which the code of each trial is copied. A copied file shares
//! its blocks with the base until a block is written to, if the file system supports it (`FICLONE`: Btrfs, XFS).
//! Otherwise its content is copied, which is still faster than unpacking.
//!
//! The base is created under a lock and renamed into place, so that no trial uses an incomplete one. Its name contains
//! the checksum of the archive and the id of this boot. Its files are not synced to the disk, and after a power failure
//! it is created again.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{
    DirBuilderExt as _, FileExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _,
    symlink,
};
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};
use rustix::io::Errno;

use super::unpack::{
    self, OriginalEntry, UnchangedRemoval, create_file, create_folders, create_parents,
    open_compressed, remove_existing, unpack,
};

/// The file that is locked while the base is created.
const LOCK_FILE: &str = "lock";
/// The name of an unfinished base.
const PARTIAL_DIR: &str = "part";
const BOOT_ID_FILE: &str = "/proc/sys/kernel/random/boot_id";
/// The last bytes of a gzip file: CRC-32 and length of the content (RFC 1952, section 2.3.1).
const GZIP_TRAILER_BYTES: u64 = 8;

/// The errors of creating, finding and copying a base.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The archive or the id of this boot cannot be read.
    #[error("cannot read {what}")]
    Read {
        /// The file.
        what: &'static str,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// A file of the base or of the copy cannot be read or written.
    #[error("cannot read or write {}", .path.display())]
    File {
        /// Its path.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The archive could not be unpacked.
    #[error("cannot unpack the code")]
    Unpack(#[from] unpack::Error),
}

/// Returns a function that converts an I/O error into an error with `path`.
fn file_error(path: &Path) -> impl FnOnce(io::Error) -> Error + use<> {
    let path = path.to_owned();
    move |source| Error::File { path, source }
}

/// Returns the base of `archive` below `root`, if it exists.
pub fn find(archive: &File, root: &Path) -> Result<Option<PathBuf>, Error> {
    let base = root.join(base_name(archive)?);
    Ok(base.is_dir().then_some(base))
}

/// Returns the base of `archive` below `root`, and creates it if it does not exist. Agents that need it at the same
/// time wait for the first one. If that agent dies, the next one starts over.
pub fn find_or_create(archive: &File, root: &Path) -> Result<PathBuf, Error> {
    if let Some(base) = find(archive, root)? {
        return Ok(base);
    }
    DirBuilder::new().recursive(true).mode(0o700).create(root).map_err(file_error(root))?;
    let path = root.join(LOCK_FILE);
    let lock = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path);
    let _locked = Flock::lock(lock.map_err(file_error(&path))?, FlockArg::LockExclusive)
        .map_err(|(_, error)| file_error(&path)(error.into()))?;
    if let Some(base) = find(archive, root)? {
        return Ok(base);
    }
    remove_stale(root);
    let base = root.join(base_name(archive)?);
    // An unfinished base only contains entries of this archive, which are replaced.
    let part = root.join(PARTIAL_DIR);
    unpack(open_compressed(archive).map_err(unpack::Error::Archive)?, &part)?;
    fs::rename(&part, &base).map_err(file_error(&base))?;
    Ok(base)
}

/// Removes bases of earlier boots. If that fails, they only use disk space.
fn remove_stale(root: &Path) {
    for entry in fs::read_dir(root).into_iter().flatten().flatten() {
        let is_base = entry.file_name() != LOCK_FILE && entry.file_name() != PARTIAL_DIR;
        if is_base && let Err(error) = fs::remove_dir_all(entry.path()) {
            tracing::debug!("cannot remove {}: {error}", entry.path().display());
        }
    }
}

/// Returns the name of an archive's base.
fn base_name(archive: &File) -> Result<String, Error> {
    let of_archive = |source| Error::Read { what: "the code archive", source };
    let bytes = archive.metadata().map_err(of_archive)?.len();
    let mut trailer = [0; 8];
    let offset = bytes.saturating_sub(GZIP_TRAILER_BYTES);
    archive.read_exact_at(&mut trailer, offset).map_err(of_archive)?;
    let boot = fs::read_to_string(BOOT_ID_FILE);
    let boot = boot.map_err(|source| Error::Read { what: BOOT_ID_FILE, source })?;
    Ok(format!("{:016x}-{bytes}-{}", u64::from_be_bytes(trailer), boot.trim()))
}

/// Copies the content of the directory `base` into the directory `into`, which is created if absent. As in unpacking,
/// an entry replaces an existing file of its name, and nothing is written through a link.
pub fn copy(base: &Path, into: &Path) -> Result<(), Error> {
    fs::create_dir_all(into).map_err(file_error(into))?;
    let (mut cloning, mut folders) = (CloneSupport::Possible, Vec::new());
    visit_entries(base, |inside, from, found| {
        let path = into.join(inside);
        if found.is_dir() {
            create_folders(into, inside).map_err(file_error(&path))?;
            let open = fs::set_permissions(&path, Permissions::from_mode(0o700));
            open.map_err(file_error(&path))?;
            folders.push((path, found.permissions()));
            return Ok(());
        }
        create_parents(into, inside).map_err(file_error(&path))?;
        if found.is_symlink() {
            let target = fs::read_link(from).map_err(file_error(from))?;
            let made = remove_existing(&path).and_then(|()| symlink(target, &path));
            return made.map_err(file_error(&path));
        }
        let source = File::open(from).map_err(file_error(from))?;
        let file = create_file(&path, found.mode() & 0o7777).map_err(file_error(&path))?;
        cloning.copy_content(&source, &file).map_err(file_error(&path))?;
        // Ignored: a file system may not be able to store the time.
        found.modified().and_then(|changed| file.set_modified(changed)).ok();
        Ok(())
    })?;
    // Modes are set last, because nothing can be created in a read-only directory.
    for (path, permissions) in folders.into_iter().rev() {
        fs::set_permissions(&path, permissions).map_err(file_error(&path))?;
    }
    Ok(())
}

/// Removes the files and links that [`copy`] created in `from` and that are unchanged, then the empty directories.
///
/// # Errors
///
/// Fails if the base cannot be read. Some files may then stay.
pub fn remove_unchanged(base: &Path, from: &Path) -> Result<(), Error> {
    let mut removal = UnchangedRemoval::new(from);
    visit_entries(base, |inside, path, found| {
        let target;
        let original = if found.is_dir() {
            OriginalEntry::Directory
        } else if found.is_symlink() {
            target = fs::read_link(path).map_err(file_error(path))?;
            OriginalEntry::Link(&target)
        } else {
            OriginalEntry::File { bytes: found.len(), mtime: found.mtime() }
        };
        removal.remove(inside, &original);
        Ok(())
    })?;
    removal.remove_empty_folders();
    Ok(())
}

/// Calls `show` for everything below the directory `base`, for each directory before its content. The arguments are the
/// path within the base, the full path, and the metadata.
fn visit_entries(
    base: &Path,
    mut show: impl FnMut(&Path, &Path, &fs::Metadata) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut folders = vec![PathBuf::new()];
    while let Some(inside) = folders.pop() {
        let folder = base.join(&inside);
        for entry in fs::read_dir(&folder).map_err(file_error(&folder))? {
            let entry = entry.map_err(file_error(&folder))?;
            let (inside, path) = (inside.join(entry.file_name()), entry.path());
            let found = entry.metadata().map_err(file_error(&path))?;
            show(&inside, &path, &found)?;
            if found.is_dir() {
                folders.push(inside);
            }
        }
    }
    Ok(())
}

/// The known ability of the file systems to let two files share their blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CloneSupport {
    Possible,
    Impossible,
}

impl CloneSupport {
    /// Fills the empty file `to` with the content of `from`.
    fn copy_content(&mut self, mut from: &File, mut to: &File) -> io::Result<()> {
        if *self == Self::Possible {
            match rustix::fs::ioctl_ficlone(to, from) {
                Ok(()) => return Ok(()),
                Err(Errno::OPNOTSUPP | Errno::XDEV | Errno::NOTTY | Errno::NOSYS) => {
                    *self = Self::Impossible;
                }
                // The error concerns this file. A copy succeeds or returns the reason.
                Err(_) => {}
            }
        }
        io::copy(&mut from, &mut to).map(drop)
    }
}

#[cfg(test)]
mod tests;
