//! The code directory as one archive, for pods without a shared file system.
//!
//! The archive is created once per experiment, in the experiment's folder. Later edits of the code do not change what
//! its trials run, even if the experiment is resumed another day. This module does not know who downloads the
//! archive.

mod listing;
pub mod packages;
mod tar_blocks;
pub mod version;

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use flate2::write::GzEncoder;
use flate2::{Compression, GzBuilder};
use ring::digest::{Context, SHA256};
use tokio::sync::OnceCell;
use trial_protocol::{MAX_CODE_BYTES, MAX_CODE_ENTRIES};

use self::listing::{Entry, EntryKind};
use self::version::{CodeTracker, CodeVersion};
use crate::util::digest::hexadecimal;
use crate::util::layout::DIFFS_FOLDER;

/// The maximum size of the code, because every trial downloads it. Agents unpack no more. NNI allows 2,000 entries
/// and 300 MiB.
const ARCHIVE_LIMITS: CodeLimits = CodeLimits { entries: MAX_CODE_ENTRIES, bytes: MAX_CODE_BYTES };

/// The limits of an archive.
#[derive(Debug, Clone, Copy)]
struct CodeLimits {
    /// The maximum number of files, directories and links.
    entries: usize,
    /// The maximum size of the content of all files in bytes, before compression.
    bytes: u64,
}

/// The reason for which an archive cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The directory, or one of its `.nniignore` files, cannot be read.
    #[error("cannot list the code directory {}", .root.display())]
    List {
        /// The root.
        root: PathBuf,
        /// The cause.
        #[source]
        source: ignore::Error,
    },
    /// A file in the directory cannot be read.
    #[error("cannot read {}; make it readable, or list it in .nniignore", .path.display())]
    Read {
        /// The path.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// A file became shorter while it was read.
    #[error("{} changed while it was read; start the experiment again", .path.display())]
    Changed {
        /// The path.
        path: PathBuf,
    },
    /// A link leads out of the directory.
    #[error(
        "{} is a link to {}, which is outside the code directory and thus missing in a pod; copy it there, or \
         list the link in .nniignore",
        .path.display(), .target.display()
    )]
    LinkOut {
        /// The path.
        path: PathBuf,
        /// The target of the link.
        target: PathBuf,
    },
    /// The code contains more bytes than every trial should download.
    #[error(
        "the code directory {} contains {found}, and a trial may fetch {limit}; list what trials do not need \
         in its .nniignore; the largest files: {most}",
        .root.display()
    )]
    TooLarge {
        /// The root.
        root: PathBuf,
        /// The size that was found.
        found: String,
        /// The maximum size.
        limit: String,
        /// The largest files.
        most: String,
    },
    /// The code contains more entries than every trial should unpack.
    #[error(
        "the code directory {} contains {found} entries, and a trial may fetch {limit}; list what trials do \
         not need in its .nniignore; the directories with most entries: {most}",
        .root.display()
    )]
    TooMany {
        /// The root.
        root: PathBuf,
        /// The number that was found.
        found: usize,
        /// The maximum number.
        limit: usize,
        /// The directories with most entries.
        most: String,
    },
    /// The archive cannot be written.
    #[error("cannot write the code archive {}", .path.display())]
    Write {
        /// The path.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

/// The archive of an experiment's code; cheap to clone.
#[derive(Debug, Clone)]
pub struct CodeArchive(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    directory: PathBuf,
    file: PathBuf,
    /// A file with secrets, which is not part of the code.
    private: Option<PathBuf>,
    archive: OnceCell<Archive>,
}

/// An existing archive: a tar file, compressed with gzip.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Archive {
    /// The path of the file.
    pub file: PathBuf,
    /// The size in bytes.
    pub bytes: u64,
    /// SHA-256 of the file, in lower-case hexadecimal digits.
    pub sha256: String,
}

impl CodeArchive {
    /// Returns the archive of `directory` in `file`, without creating it.
    pub fn new(directory: PathBuf, file: PathBuf) -> Self {
        Self::excluding(directory, file, None)
    }

    /// Returns the archive of `directory` without the file `private`, whose path must be canonical. Diffs are not
    /// stored, because they could contain text of that file.
    pub fn excluding(directory: PathBuf, file: PathBuf, private: Option<PathBuf>) -> Self {
        Self(Arc::new(Inner { directory, file, private, archive: OnceCell::new() }))
    }

    /// Returns the archive. Creates it unless an earlier run of the experiment has created it.
    pub async fn get(&self) -> Result<Archive, Error> {
        let create = async || {
            let inner = Arc::clone(&self.0);
            let task = tokio::task::spawn_blocking(move || {
                find_or_create_archive(&inner.directory, &inner.file, inner.private.as_deref())
            });
            task.await.unwrap_or_else(|lost| {
                Err(Error::Write { path: self.0.file.clone(), source: io::Error::other(lost) })
            })
        };
        self.0.archive.get_or_try_init(create).await.cloned()
    }
}

impl CodeArchive {
    /// Creates the archive unless it exists, and returns the version of the code in it. `None` if an earlier build
    /// created the archive, or the version could not be stored.
    pub async fn version(&self) -> Result<Option<CodeVersion>, Error> {
        let note = self.0.file.with_extension("json");
        let is_new = !self.0.file.exists();
        self.get().await?;
        if !is_new {
            let text = tokio::fs::read(note).await.ok();
            return Ok(text.and_then(|text| serde_json::from_slice(&text).ok()));
        }
        let mut tracker = CodeTracker::new(self.0.directory.clone());
        if self.0.private.is_none() {
            tracker = tracker.with_diff_folder(self.0.file.with_file_name(DIFFS_FOLDER));
        }
        let failed = |source| Error::Read { path: self.0.directory.clone(), source };
        let version = tracker.read_version_with_git().await.1.map_err(failed)?;
        let text =
            serde_json::to_vec(&version).expect("a version has no map with other keys than text");
        if let Err(error) = tokio::fs::write(&note, text).await {
            tracing::warn!(
                "the version of the code could not be stored in {}: {error}",
                note.display()
            );
        }
        Ok(Some(version))
    }
}

/// Returns a summary of the archive that `directory` would have, as text for users. Creates nothing.
pub fn describe_archive(directory: &Path) -> Result<String, Error> {
    let entries = listing::list_entries(&canonical_path(directory)?, None, ARCHIVE_LIMITS)?;
    let sizes = entries.iter().map(|entry| match entry.kind {
        EntryKind::File(size) => size,
        EntryKind::Directory | EntryKind::Link(_) => 0,
    });
    let size = listing::mebibytes(sizes.sum());
    Ok(format!("{}: {} entries, {size}", directory.display(), entries.len()))
}

fn canonical_path(directory: &Path) -> Result<PathBuf, Error> {
    directory.canonicalize().map_err(|source| Error::Read { path: directory.to_owned(), source })
}

fn find_or_create_archive(
    directory: &Path,
    file: &Path,
    private: Option<&Path>,
) -> Result<Archive, Error> {
    let failed = |source| Error::Write { path: file.to_owned(), source };
    match File::open(file) {
        Ok(mut existing) => {
            let mut sink = HashingWriter::new(io::sink());
            io::copy(&mut existing, &mut sink).map_err(failed)?;
            Ok(sink.finish(file))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            create_archive(directory, file, private, ARCHIVE_LIMITS)
        }
        Err(error) => Err(failed(error)),
    }
}

fn create_archive(
    directory: &Path,
    file: &Path,
    private: Option<&Path>,
    limits: CodeLimits,
) -> Result<Archive, Error> {
    let root = canonical_path(directory)?;
    let entries = listing::list_entries(&root, private, limits)?;
    let failed = |source| Error::Write { path: file.to_owned(), source };
    // Written under a temporary name and then moved, so that no reader finds a partial file.
    let folder = file.parent().unwrap_or(Path::new("."));
    let mut part = tempfile::NamedTempFile::new_in(folder).map_err(failed)?;
    let sealed = HashingWriter::new(io::BufWriter::new(part.as_file_mut()));
    let mut packed = GzBuilder::new().mtime(0).write(sealed, Compression::default());
    for entry in &entries {
        pack_entry(&root, entry, &mut packed, &failed)?;
    }
    packed.write_all(&tar_blocks::end_blocks()).map_err(failed)?;
    let mut sealed = packed.finish().map_err(failed)?;
    sealed.flush().map_err(failed)?;
    let archive = sealed.finish(file);
    part.as_file().sync_all().map_err(failed)?;
    part.persist(file).map_err(|refused| failed(refused.error))?;
    tracing::info!(entries = entries.len(), bytes = archive.bytes, "the code is packed");
    Ok(archive)
}

fn pack_entry(
    root: &Path,
    entry: &Entry,
    packed: &mut GzEncoder<impl Write>,
    failed: &impl Fn(io::Error) -> Error,
) -> Result<(), Error> {
    let (name, path) = (entry.name.as_os_str().as_bytes(), root.join(&entry.name));
    let kind = match &entry.kind {
        EntryKind::File(size) => tar_blocks::TarEntryKind::File(*size),
        EntryKind::Directory => tar_blocks::TarEntryKind::Directory,
        EntryKind::Link(target) => tar_blocks::TarEntryKind::Link(target.as_os_str().as_bytes()),
    };
    packed
        .write_all(&tar_blocks::header_blocks(name, kind, entry.mode, entry.mtime))
        .map_err(failed)?;
    let EntryKind::File(size) = entry.kind else { return Ok(()) };
    let read = |source| Error::Read { path: path.clone(), source };
    let content = File::open(&path).map_err(read)?;
    let mut content = io::BufReader::with_capacity(64 << 10, content).take(size);
    // Of a file that has grown, only the listed size is read.
    if io::copy(&mut content, packed).map_err(read)? != size {
        return Err(Error::Changed { path: path.clone() });
    }
    packed.write_all(&[0; tar_blocks::BLOCK_BYTES][..tar_blocks::padding(size)]).map_err(failed)
}

/// A writer that counts and hashes the bytes that it passes on.
struct HashingWriter<W> {
    sink: W,
    bytes: u64,
    hash: Context,
}

impl<W: Write> HashingWriter<W> {
    fn new(sink: W) -> Self {
        Self { sink, bytes: 0, hash: Context::new(&SHA256) }
    }

    fn finish(self, file: &Path) -> Archive {
        let sha256 = hexadecimal(self.hash.finish().as_ref());
        Archive { file: file.to_owned(), bytes: self.bytes, sha256 }
    }
}

impl<W: Write> Write for HashingWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = self.sink.write(bytes)?;
        self.hash.update(&bytes[..taken]);
        self.bytes += u64::try_from(taken).expect("a length fits");
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.sink.flush()
    }
}

#[cfg(test)]
mod tests;
