//! Unpacks an archive into a directory, and nowhere else, whatever the archive contains. Also removes unchanged entries
//! again.
//!
//! A name is relative and has no `..`. Nothing is written through a link. Links are created last, and none leads out of
//! the directory, not even through other links. An entry replaces an existing file of its name. An archive that is
//! larger than any that a manager packs is refused.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, BufReader, Read, Seek as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{
    DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, symlink,
};
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use trial_protocol::{MAX_CODE_BYTES, MAX_CODE_ENTRIES};

use crate::util::gzip::GzDecoder;
use crate::util::numbers::to_u64;
use crate::util::tar::{Archive, EntryKind};

/// The maximum number of links that a path may lead through: `path_resolution(7)`.
const MAX_LINK_DEPTH: usize = 40;

/// The errors of unpacking.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The archive cannot be read.
    #[error("the archive cannot be read")]
    Archive(#[source] io::Error),
    /// A name or a link leads out of the directory.
    #[error("the archive's entry {name:?} leads out of the directory; it is not unpacked")]
    LeadsOut {
        /// Name of the entry.
        name: PathBuf,
    },
    /// The archive is larger than any that a manager packs.
    #[error(
        "the archive holds more than {MAX_CODE_ENTRIES} entries or {} MiB, more than a manager packs; unpacking stopped",
        MAX_CODE_BYTES >> 20
    )]
    TooLarge,
    /// A file cannot be written.
    #[error("cannot write {}", .path.display())]
    Write {
        /// Path of the file.
        path: PathBuf,
        /// The underlying error.
        #[source]
        source: io::Error,
    },
}

/// The maximum number of bytes after the last entry of an archive. `tar` pads to 10 KiB by default.
const MAX_TRAILER_BYTES: u64 = 1 << 20;

/// The remaining limits of an archive.
#[derive(Debug, Clone, Copy)]
struct UnpackBudget {
    entries: usize,
    bytes: u64,
}

impl UnpackBudget {
    fn spend(&mut self, entries: usize, bytes: u64) -> Result<(), Error> {
        let left = |entries: Option<usize>, bytes: Option<u64>| Some((entries?, bytes?));
        let left = left(self.entries.checked_sub(entries), self.bytes.checked_sub(bytes));
        (self.entries, self.bytes) = left.ok_or(Error::TooLarge)?;
        Ok(())
    }
}

/// Opens a compressed archive from its start. All callers share this one type of reader, because the code for a further
/// type would take 8 KB of the program.
pub(super) fn open_compressed(mut archive: &File) -> io::Result<GzDecoder<BufReader<&File>>> {
    archive.rewind()?;
    Ok(GzDecoder::new(BufReader::new(archive)))
}

/// Unpacks everything into the directory `into`, which is created if absent.
pub fn unpack(archive: impl Read, into: &Path) -> Result<(), Error> {
    unpack_bounded(archive, into, UnpackBudget { entries: MAX_CODE_ENTRIES, bytes: MAX_CODE_BYTES })
}

fn unpack_bounded(archive: impl Read, into: &Path, mut budget: UnpackBudget) -> Result<(), Error> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| Error::Write { path, source }
    };
    fs::create_dir_all(into).map_err(failed(into))?;
    let mut archive = Archive::new(archive);
    let (mut links, mut folders) = (Vec::new(), Vec::new());
    while let Some(entry) = archive.next_entry().map_err(Error::Archive)? {
        budget.spend(1, 0)?;
        let name = PathBuf::from(std::ffi::OsStr::from_bytes(&entry.name));
        let inside = normalize_name(&name).ok_or_else(|| Error::LeadsOut { name: name.clone() })?;
        if inside.as_os_str().is_empty() {
            continue; // The directory itself.
        }
        let path = into.join(&inside);
        match entry.kind {
            EntryKind::Directory => {
                create_folders(into, &inside).map_err(failed(&path))?;
                // An earlier run may have left the directory with its final mode.
                let open = fs::set_permissions(&path, Permissions::from_mode(0o700));
                open.map_err(failed(&path))?;
                folders.push((path, entry.mode));
            }
            EntryKind::File => {
                create_parents(into, &inside).map_err(failed(&path))?;
                let mut file = create_file(&path, entry.mode).map_err(failed(&path))?;
                copy_content(&mut archive, &mut file, &path, &mut budget)?;
                let changed = UNIX_EPOCH.checked_add(Duration::from_secs(entry.mtime));
                // Ignored: a file system may not be able to store the time.
                changed.map(|changed| file.set_modified(changed).ok());
            }
            EntryKind::Link(target) => {
                links.push((inside, PathBuf::from(std::ffi::OsStr::from_bytes(&target))));
            }
        }
    }
    // The checksum at the end of a gzip stream is verified only when a reader reaches the end.
    if archive.skip_trailer(MAX_TRAILER_BYTES).map_err(Error::Archive)? > MAX_TRAILER_BYTES {
        return Err(Error::TooLarge);
    }
    refuse_outward_links(&links)?;
    for (inside, target) in links {
        let path = into.join(&inside);
        let made = create_parents(into, &inside).and_then(|()| remove_existing(&path));
        made.and_then(|()| symlink(&target, &path)).map_err(failed(&path))?;
    }
    // Modes are set last, because nothing can be created in a read-only directory.
    for (path, mode) in folders.into_iter().rev() {
        fs::set_permissions(&path, Permissions::from_mode(mode)).map_err(failed(&path))?;
    }
    Ok(())
}

/// Removes the unchanged files and links of `archive` from the directory `from`, then the empty directories. A file is
/// unchanged if its size and the time of its last change are those in the archive. Files that cannot be examined or
/// removed stay.
pub fn remove_unchanged(archive: impl Read, from: &Path) {
    let mut archive = Archive::new(archive);
    let mut removal = UnchangedRemoval::new(from);
    while let Ok(Some(entry)) = archive.next_entry() {
        let Some(inside) = normalize_name(Path::new(std::ffi::OsStr::from_bytes(&entry.name)))
        else {
            continue;
        };
        let original = match &entry.kind {
            EntryKind::Directory => OriginalEntry::Directory,
            EntryKind::File => OriginalEntry::File {
                bytes: archive.content_bytes(),
                mtime: i64::try_from(entry.mtime).unwrap_or(i64::MAX),
            },
            EntryKind::Link(target) => {
                OriginalEntry::Link(Path::new(std::ffi::OsStr::from_bytes(target)))
            }
        };
        removal.remove(&inside, &original);
    }
    removal.remove_empty_folders();
}

/// An entry as unpacked into the directory.
pub(super) enum OriginalEntry<'a> {
    Directory,
    /// A file of this size, last changed at this time in seconds.
    File {
        bytes: u64,
        mtime: i64,
    },
    /// A link with this target.
    Link(&'a Path),
}

/// Removes unchanged entries one by one, and at the end the empty directories.
pub(super) struct UnchangedRemoval<'a> {
    from: &'a Path,
    folders: Vec<PathBuf>,
}

impl<'a> UnchangedRemoval<'a> {
    pub(super) fn new(from: &'a Path) -> Self {
        Self { from, folders: vec![from.to_owned()] }
    }

    pub(super) fn remove(&mut self, inside: &Path, original: &OriginalEntry<'_>) {
        // A folder that was replaced by a link leads elsewhere.
        let above = inside.parent().unwrap_or(Path::new("")).ancestors();
        let is_folder =
            |part: &Path| fs::symlink_metadata(self.from.join(part)).is_ok_and(|it| it.is_dir());
        if inside.as_os_str().is_empty() || !above.into_iter().all(is_folder) {
            return;
        }
        let path = self.from.join(inside);
        let unchanged = match original {
            OriginalEntry::Directory => {
                self.folders.push(path);
                return;
            }
            OriginalEntry::File { bytes, mtime } => fs::symlink_metadata(&path)
                .is_ok_and(|it| it.is_file() && it.len() == *bytes && it.mtime() == *mtime),
            OriginalEntry::Link(target) => fs::read_link(&path).is_ok_and(|found| found == *target),
        };
        if unchanged {
            fs::remove_file(&path).ok();
        }
    }

    pub(super) fn remove_empty_folders(self) {
        for folder in self.folders.iter().rev() {
            fs::remove_dir(folder).ok();
        }
    }
}

/// PURE: returns a name without `.`, or `None` if it is absolute or has a `..`.
fn normalize_name(name: &Path) -> Option<PathBuf> {
    let parts = name.components().filter(|part| *part != Component::CurDir);
    parts.map(|part| matches!(part, Component::Normal(_)).then_some(part)).collect()
}

/// PURE: refuses links that lead out of the directory, directly or through one another.
fn refuse_outward_links(links: &[(PathBuf, PathBuf)]) -> Result<(), Error> {
    let targets: BTreeMap<&Path, &Path> =
        links.iter().map(|(name, target)| (name.as_path(), target.as_path())).collect();
    for (name, target) in links {
        let above = name.parent().unwrap_or(Path::new(""));
        let is_below_link = above.ancestors().any(|folder| targets.contains_key(folder));
        if is_below_link || !resolves_inside(above, target, &targets) {
            return Err(Error::LeadsOut { name: name.clone() });
        }
    }
    Ok(())
}

/// PURE: returns whether `target`, relative to the folder `from`, is in the directory after every link in it is
/// followed.
fn resolves_inside(from: &Path, target: &Path, links: &BTreeMap<&Path, &Path>) -> bool {
    let mut at = from.to_owned();
    let mut ahead: Vec<Component<'_>> = target.components().rev().collect();
    let mut followed = 1;
    while let Some(part) = ahead.pop() {
        match part {
            Component::Normal(part) => {
                at.push(part);
                let Some(next) = links.get(at.as_path()) else { continue };
                followed += 1;
                if followed > MAX_LINK_DEPTH {
                    return false;
                }
                at.pop();
                ahead.extend(next.components().rev());
            }
            Component::CurDir => {}
            Component::ParentDir => {
                if !at.pop() {
                    return false;
                }
            }
            Component::Prefix(_) | Component::RootDir => return false,
        }
    }
    true
}

/// Creates the directories above `inside`.
pub(super) fn create_parents(into: &Path, inside: &Path) -> io::Result<()> {
    inside.parent().map_or(Ok(()), |above| create_folders(into, above))
}

/// Creates a directory and its parents, none of them through a link.
pub(super) fn create_folders(into: &Path, inside: &Path) -> io::Result<()> {
    let mut path = into.to_owned();
    for part in inside.components() {
        path.push(part);
        if !fs::symlink_metadata(&path).is_ok_and(|found| found.is_dir()) {
            remove_existing(&path)?;
            DirBuilder::new().mode(0o755).create(&path)?;
        }
    }
    Ok(())
}

pub(super) fn create_file(path: &Path, mode: u32) -> io::Result<File> {
    remove_existing(path)?;
    let mut options = OpenOptions::new();
    let file = options.write(true).create_new(true).mode(mode).open(path)?;
    // The mode is that of the archive, regardless of the agent's umask.
    file.set_permissions(Permissions::from_mode(mode))?;
    Ok(file)
}

/// Removes an existing file, link or empty directory.
pub(super) fn remove_existing(path: &Path) -> io::Result<()> {
    let removed = match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => fs::remove_dir(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// Copies an entry's content. The error distinguishes the archive from the disk.
fn copy_content(
    archive: &mut impl Read,
    file: &mut File,
    path: &Path,
    budget: &mut UnpackBudget,
) -> Result<(), Error> {
    let mut portion = vec![0; 64 << 10];
    loop {
        let read = archive.read(&mut portion).map_err(Error::Archive)?;
        if read == 0 {
            return Ok(());
        }
        budget.spend(0, to_u64(read))?;
        io::Write::write_all(file, &portion[..read])
            .map_err(|source| Error::Write { path: path.to_owned(), source })?;
    }
}

#[cfg(test)]
mod tests;
