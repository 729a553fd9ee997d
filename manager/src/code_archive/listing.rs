//! Lists the files of a code directory for the archive: everything except what its `.nniignore` files exclude (with
//! the syntax and nesting of `.gitignore`), in a fixed order.
//!
//! It reads names and sizes, but no contents.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::Metadata;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Component, Path, PathBuf};

use ignore::{DirEntry, WalkBuilder};

use super::{CodeLimits, Error};

/// The name of the files that list exclusions.
const IGNORE_FILE: &str = ".nniignore";

/// The file that marks an experiment's folder, which is not code.
const STORE_FILE: &str = "trialkeeper.db";

/// The number of examples in an error message.
const MAX_EXAMPLES: usize = 5;

/// A file to archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    /// The path relative to the directory.
    pub(super) name: PathBuf,
    /// Its kind.
    pub(super) kind: EntryKind,
    /// The nine permission bits.
    pub(super) mode: u32,
    /// The time of the last change, in seconds since the epoch.
    pub(super) mtime: u64,
}

/// The kind of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum EntryKind {
    /// A file with its size in bytes.
    File(u64),
    /// A directory.
    Directory,
    /// A symbolic link. The target is inside the directory, and its path is relative to the link.
    Link(PathBuf),
}

/// The device and the inode of a file.
type FileId = (u64, u64);

/// Walks the directory `root` in a fixed order, without excluded files and without the files that receive the manager's
/// own output, because those grow while trials run.
pub(super) fn walk(root: &Path) -> ignore::Walk {
    let own = ["/proc/self/fd/1", "/proc/self/fd/2"];
    let own = own.iter().filter_map(|path| std::fs::metadata(path).ok());
    walk_without(root, own.filter(Metadata::is_file).map(|file| id_of(&file)).collect())
}

fn id_of(metadata: &Metadata) -> FileId {
    (metadata.dev(), metadata.ino())
}

/// Walks the directory `root` as [`walk`] does, without the `own` files.
fn walk_without(root: &Path, own: Vec<FileId>) -> ignore::Walk {
    let is_own = move |entry: &DirEntry| {
        entry.file_type().is_some_and(|kind| kind.is_file())
            && entry.metadata().is_ok_and(|metadata| own.contains(&id_of(&metadata)))
    };
    WalkBuilder::new(root)
        .standard_filters(false)
        .add_custom_ignore_filename(IGNORE_FILE)
        .sort_by_file_name(OsStr::cmp)
        .filter_entry(move |entry| {
            let is_store = entry.depth() > 0 && entry.path().join(STORE_FILE).exists();
            !is_store && !is_own(entry)
        })
        .build()
}

/// Lists the directory `root` without the file `private`. Both paths must be canonical.
pub(super) fn list_entries(
    root: &Path,
    private: Option<&Path>,
    limits: CodeLimits,
) -> Result<Vec<Entry>, Error> {
    let mut entries = Vec::new();
    for found in walk(root) {
        let found = found.map_err(|source| Error::List { root: root.to_owned(), source })?;
        if let Some(error) = found.error() {
            return Err(Error::List { root: root.to_owned(), source: error.clone() });
        }
        let path = found.path();
        let name = path.strip_prefix(root).unwrap_or(path).to_owned();
        if name.as_os_str().is_empty() || private == Some(path) {
            continue;
        }
        let metadata =
            found.metadata().map_err(|source| Error::List { root: root.to_owned(), source })?;
        let kind = if metadata.is_dir() {
            EntryKind::Directory
        } else if metadata.is_symlink() {
            EntryKind::Link(link_target(root, path)?)
        } else if metadata.is_file() {
            EntryKind::File(metadata.len())
        } else {
            tracing::warn!(
                "{} is not a file, a directory or a link, and is not copied to trials",
                path.display()
            );
            continue;
        };
        let mtime = u64::try_from(metadata.mtime()).unwrap_or(0);
        entries.push(Entry { name, kind, mode: metadata.mode() & 0o777, mtime });
    }
    check_limits(root, &entries, limits)?;
    Ok(entries)
}

/// Returns the target of a link, relative to the link. A target outside the directory would not exist in a pod.
fn link_target(root: &Path, path: &Path) -> Result<PathBuf, Error> {
    let read = |source| Error::Read { path: path.to_owned(), source };
    let target = std::fs::read_link(path).map_err(read)?;
    let folder = path.parent().unwrap_or(root);
    let outside = || Error::LinkOut { path: path.to_owned(), target: target.clone() };
    let inside = normalize_path(&folder.join(&target));
    if !inside.starts_with(root) {
        return Err(outside());
    }
    // The final target, after other links, must also be inside.
    if let Ok(end) = path.canonicalize()
        && !end.starts_with(root)
    {
        return Err(outside());
    }
    if target.is_relative() {
        return Ok(target);
    }
    let up = folder.strip_prefix(root).unwrap_or(folder).components().map(|_| "..");
    let down = inside.strip_prefix(root).unwrap_or(&inside).to_owned();
    Ok(up.map(PathBuf::from).chain([down]).collect())
}

/// PURE: returns `path` without `.` and `..`, without resolving links.
fn normalize_path(path: &Path) -> PathBuf {
    let mut clean = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                clean.pop();
            }
            Component::CurDir => {}
            Component::Prefix(_) | Component::RootDir | Component::Normal(_) => clean.push(part),
        }
    }
    clean
}

/// PURE: refuses a directory that is too large to be copied to every trial.
fn check_limits(root: &Path, entries: &[Entry], limits: CodeLimits) -> Result<(), Error> {
    let root = root.to_owned();
    if entries.len() > limits.entries {
        let mut folders: BTreeMap<&OsStr, u64> = BTreeMap::new();
        for entry in entries {
            let first = entry.name.components().next().map(Component::as_os_str);
            *folders.entry(first.unwrap_or_default()).or_default() += 1;
        }
        let counts = folders.into_iter().map(|(name, count)| (name.as_bytes(), count));
        let most = describe_largest(counts, |count| format!("{count} entries"));
        return Err(Error::TooMany { root, found: entries.len(), limit: limits.entries, most });
    }
    let sizes = entries.iter().filter_map(|entry| match entry.kind {
        EntryKind::File(size) => Some((entry.name.as_os_str().as_bytes(), size)),
        EntryKind::Directory | EntryKind::Link(_) => None,
    });
    let bytes: u64 = sizes.clone().map(|(_, size)| size).sum();
    if bytes > limits.bytes {
        let most = describe_largest(sizes, mebibytes);
        let (found, limit) = (mebibytes(bytes), mebibytes(limits.bytes));
        return Err(Error::TooLarge { root, found, limit, most });
    }
    Ok(())
}

/// Returns the largest of the counted names, as text for users.
fn describe_largest<'a>(
    counted: impl Iterator<Item = (&'a [u8], u64)>,
    show: impl Fn(u64) -> String,
) -> String {
    let mut counted: Vec<_> = counted.collect();
    counted.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let most = counted.into_iter().take(MAX_EXAMPLES);
    let named = most.map(|(name, n)| format!("{} ({})", String::from_utf8_lossy(name), show(n)));
    named.collect::<Vec<_>>().join(", ")
}

/// Formats a number of bytes for users.
pub(super) fn mebibytes(bytes: u64) -> String {
    let tenths = (bytes * 10).div_ceil(1 << 20);
    format!("{}.{} MiB", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests;
