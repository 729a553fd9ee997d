//! A fingerprint of the code directory, which distinguishes its states.
//!
//! It covers the files of the archive, except Python's caches and git's own folder. Files that appear after the first
//! scan are ignored, because trials write their output there. The tracker reads only the content of changed files, up
//! to a limit: a larger file is represented by its name and size.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{DirBuilder, File, Metadata};
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use ring::digest::{Context, SHA256};
use serde::{Deserialize, Serialize};
use tokio::io::AsyncReadExt as _;
use tokio::process::Command;
use tracing::warn;
use utoipa::ToSchema;

use super::listing;
use crate::util::digest::hexadecimal;
use crate::util::files::write_file;

/// The maximum number of files and bytes that are read.
const READ_LIMITS: super::CodeLimits = super::CodeLimits { entries: 20_000, bytes: 300 << 20 };
/// The names of folders that contain no code of the user.
const SKIPPED_FOLDERS: [&str; 2] = [".git", "__pycache__"];
/// The maximum number of changed files that a version lists.
const MAX_CHANGED_NAMES: usize = 5;
/// The maximum run time of one git command.
const GIT_TIMEOUT: Duration = Duration::from_secs(5);
/// The maximum size of a diff that is stored, in bytes.
const MAX_STORED_DIFF_BYTES: usize = 256 << 10;
/// The maximum size of a diff that is hashed, in bytes.
const MAX_HASHED_DIFF_BYTES: u64 = 16 << 20;

/// A state of the code directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CodeVersion {
    /// SHA-256 over names and contents, in lower-case hexadecimal digits.
    pub sha256: String,
    /// The number of files and links.
    pub files: usize,
    /// The size of the files and links in bytes.
    pub bytes: u64,
    /// True if the version is incomplete: it covers at most 20,000 files. Of contents beyond 300 MiB and of unreadable
    /// files, it covers only name and size.
    pub cut: bool,
    /// The first five files that changed since the previous version. Empty for an experiment's first version.
    #[serde(default)]
    pub changed: Vec<String>,
    /// The git work tree of the directory. Absence means no work tree, no git, or no answer within five seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub git: Option<GitState>,
}

/// The state of a git work tree when the version was first recorded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GitState {
    /// The commit that is checked out.
    pub commit: String,
    /// The branch. Absence means a detached head.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branch: Option<String>,
    /// True if tracked files in the code directory differ from the commit, or files there are neither tracked nor
    /// ignored by git. Absence means that git did not answer in time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dirty: Option<bool>,
    /// SHA-256 of the first 16 MiB of the diff of tracked files. Absence means that there is no diff.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub diff_sha256: Option<String>,
}

/// The attributes of a file. As long as they do not change, the content is considered unchanged.
#[derive(Debug, Clone, PartialEq, Eq)]
struct CodeFileStamp {
    inode: u64,
    size: u64,
    mode: u32,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl CodeFileStamp {
    fn of(metadata: &Metadata) -> Self {
        Self {
            inode: metadata.ino(),
            size: metadata.size(),
            mode: metadata.mode(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

/// A file as it was last read. `digest` is `None` if the content was not read.
#[derive(Debug, Clone)]
struct SeenFile {
    stamp: CodeFileStamp,
    digest: Option<String>,
}

/// The files of a code directory as they were last read.
#[derive(Debug)]
pub struct CodeTracker {
    directory: PathBuf,
    /// The names in the first scan. `None` before the first scan.
    names: Option<BTreeSet<PathBuf>>,
    seen: BTreeMap<PathBuf, SeenFile>,
    last: Option<CodeVersion>,
    /// The folder in which git's diffs are stored. `None` if they are not stored.
    diffs: Option<PathBuf>,
}

/// Returns the path of a diff in the folder of diffs.
pub fn diff_file(folder: &Path, diff_sha256: &str) -> PathBuf {
    folder.join(format!("{diff_sha256}.diff"))
}

impl CodeTracker {
    /// Creates a tracker without reading the directory.
    pub fn new(directory: PathBuf) -> Self {
        Self { directory, names: None, seen: BTreeMap::new(), last: None, diffs: None }
    }

    /// Stores the first 256 KiB of the diff of tracked files in a folder, readable only by its owner.
    #[must_use]
    pub fn with_diff_folder(self, folder: PathBuf) -> Self {
        Self { diffs: Some(folder), ..self }
    }

    /// Returns the directory's current version without [`CodeVersion::git`]. If nothing has changed, it returns the
    /// last version with its git state. Blocks on disk access.
    ///
    /// # Errors
    ///
    /// Fails if the directory does not exist.
    fn scan(&mut self) -> io::Result<CodeVersion> {
        let root = self.directory.canonicalize()?;
        let (mut now, mut left, mut cut) = (BTreeMap::new(), READ_LIMITS.bytes, false);
        for found in listing::walk(&root) {
            let Ok(entry) = found else {
                cut = true;
                continue;
            };
            let name = entry.path().strip_prefix(&root).unwrap_or(entry.path());
            if is_skipped(name) || self.names.as_ref().is_some_and(|names| !names.contains(name)) {
                continue;
            }
            let Ok(metadata) = entry.path().symlink_metadata() else {
                cut = true;
                continue;
            };
            if !metadata.is_file() && !metadata.is_symlink() {
                continue;
            }
            if now.len() == READ_LIMITS.entries {
                cut = true;
                break;
            }
            let seen = self.read(entry.path(), name, &metadata, &mut left);
            cut |= seen.digest.is_none();
            now.insert(name.to_owned(), seen);
        }
        self.names.get_or_insert_with(|| now.keys().cloned().collect());
        let sha256 = digest_of_files(&now);
        if let Some(last) = self.last.as_ref().filter(|last| last.sha256 == sha256) {
            self.seen = now;
            return Ok(last.clone());
        }
        let first = self.last.is_none();
        let changed = if first { Vec::new() } else { changed_names(&self.seen, &now) };
        let bytes = now.values().map(|seen| seen.stamp.size).sum();
        let version = CodeVersion { sha256, files: now.len(), bytes, cut, changed, git: None };
        self.seen = now;
        self.last = Some(version.clone());
        Ok(version)
    }

    /// Returns the directory's current version with [`CodeVersion::git`], and the tracker for the next scan. Fails if
    /// the directory does not exist.
    pub async fn read_version_with_git(mut self) -> (Self, io::Result<CodeVersion>) {
        let known = self.last.as_ref().map(|last| last.sha256.clone());
        let scanned = tokio::task::spawn_blocking(move || {
            let version = self.scan();
            (self, version)
        });
        let (mut tracker, version) = scanned.await.expect("a scan of a directory does not panic");
        let Ok(mut version) = version else { return (tracker, version) };
        if known.as_ref() != Some(&version.sha256) {
            let (git, diff) = git_state(&tracker.directory).await.unzip();
            if let (Some(folder), Some(diff)) = (&tracker.diffs, diff.flatten())
                && let Err(error) = store_diff(folder, &diff)
            {
                warn!("the diff of the code could not be stored in {}: {error}", folder.display());
            }
            version.git = git;
            tracker.last = Some(version.clone());
        }
        (tracker, Ok(version))
    }

    fn read(&self, path: &Path, name: &Path, metadata: &Metadata, left: &mut u64) -> SeenFile {
        let stamp = CodeFileStamp::of(metadata);
        if stamp.size > *left {
            return SeenFile { stamp, digest: None };
        }
        *left -= stamp.size;
        if let Some(seen) = self.seen.get(name).filter(|seen| seen.stamp == stamp) {
            return seen.clone();
        }
        let digest = if metadata.is_symlink() {
            path.read_link().map(|target| hash_bytes(target.as_os_str().as_bytes()))
        } else {
            hash_file(path, stamp.size)
        };
        SeenFile { stamp, digest: digest.ok() }
    }
}

fn is_skipped(name: &Path) -> bool {
    name.components().any(|part| SKIPPED_FOLDERS.iter().any(|skip| part.as_os_str() == *skip))
}

/// Hashes at most the first `size` bytes of a file, so that a file that grows does not cause an endless read.
fn hash_file(path: &Path, size: u64) -> io::Result<String> {
    // The path may have been replaced: a named pipe must not block the manager, and a link must not be followed.
    let flags = nix::libc::O_NONBLOCK | nix::libc::O_NOFOLLOW;
    let mut file = File::options().read(true).custom_flags(flags).open(path)?.take(size);
    let (mut context, mut buffer) = (Context::new(&SHA256), vec![0; 64 << 10]);
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hexadecimal(context.finish().as_ref())),
            read => context.update(&buffer[..read]),
        }
    }
}

fn hash_bytes(bytes: &[u8]) -> String {
    hexadecimal(ring::digest::digest(&SHA256, bytes).as_ref())
}

/// PURE: returns the digest of all files. Each name is preceded by its length, so that no two lists have the same
/// encoding.
fn digest_of_files(files: &BTreeMap<PathBuf, SeenFile>) -> String {
    let mut context = Context::new(&SHA256);
    for (name, seen) in files {
        let name = name.as_os_str().as_bytes();
        let digest = seen.digest.as_deref().unwrap_or("unread");
        let runs = seen.stamp.mode & 0o111 != 0;
        let size = seen.stamp.size;
        let kind = seen.stamp.mode & 0o170_000;
        context.update(format!("{} {kind:o} {runs} {size} {digest} ", name.len()).as_bytes());
        context.update(name);
    }
    hexadecimal(context.finish().as_ref())
}

/// PURE: returns the first names of files that were added, removed or changed.
fn changed_names(
    before: &BTreeMap<PathBuf, SeenFile>,
    now: &BTreeMap<PathBuf, SeenFile>,
) -> Vec<String> {
    let same = |one: &SeenFile, other: &SeenFile| {
        one.digest == other.digest
            && one.stamp.size == other.stamp.size
            && one.stamp.mode & 0o170_111 == other.stamp.mode & 0o170_111
    };
    let other = now
        .iter()
        .filter(|(name, seen)| before.get(*name).is_none_or(|before| !same(before, seen)));
    let removed = before.iter().filter(|(name, _)| !now.contains_key(*name));
    let mut names: Vec<_> = other.chain(removed).map(|(name, _)| name).collect();
    names.sort();
    names.iter().take(MAX_CHANGED_NAMES).map(|name| name.to_string_lossy().into_owned()).collect()
}

/// Returns the state of the git work tree that contains `directory`, and its diff, if any. `None` if there is no work
/// tree, no git, no commit or no answer in time.
async fn git_state(directory: &Path) -> Option<(GitState, Option<Vec<u8>>)> {
    let (head, whole) = run_git(directory, &["rev-parse", "HEAD", "--abbrev-ref", "HEAD"]).await?;
    let head = String::from_utf8(head).ok().filter(|_| whole)?;
    let mut lines = head.lines();
    let commit = lines.next()?.to_owned();
    let branch = lines.next().filter(|name| *name != "HEAD").map(str::to_owned);
    // Without the user's own diff programs: only git may run here.
    let diff =
        ["diff", "--no-ext-diff", "--no-textconv", "--no-color", "--binary", "HEAD", "--", "."];
    let diff = run_git(directory, &diff).await.map(|(bytes, _)| bytes);
    // A new file that was never added, such as `train.py`, is not part of the diff. One such name is enough.
    let untracked = ["ls-files", "--others", "--exclude-standard", "-z", "--", "."];
    let untracked = run_git(directory, &untracked).await.map(|(names, _)| !names.is_empty());
    let changed = diff.as_ref().map(|bytes| !bytes.is_empty());
    let dirty = match (changed, untracked) {
        (Some(true), _) | (_, Some(true)) => Some(true),
        (Some(false), Some(false)) => Some(false),
        (None, _) | (_, None) => None,
    };
    let diff = diff.filter(|bytes| !bytes.is_empty());
    let diff_sha256 = diff.as_deref().map(hash_bytes);
    Some((GitState { commit, branch, dirty, diff_sha256 }, diff))
}

/// Stores a diff in the folder, with its digest as the name.
fn store_diff(folder: &Path, diff: &[u8]) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    let kept = &diff[..diff.len().min(MAX_STORED_DIFF_BYTES)];
    let mut text = String::from_utf8_lossy(kept).into_owned();
    if kept.len() < diff.len() {
        text.push_str("\n[the rest is not stored: the limit is 256 KiB]\n");
    }
    write_file(&diff_file(folder, &hash_bytes(diff)), 0o600, &text)
}

/// Runs git, and returns the first [`MAX_HASHED_DIFF_BYTES`] of its output and whether the output is complete. `None`
/// if git failed or exceeded the time limit.
async fn run_git(directory: &Path, arguments: &[&str]) -> Option<(Vec<u8>, bool)> {
    let mut command = Command::new("git");
    command.arg("-C").arg(directory).args(["-c", "core.fsmonitor=false"]).args(arguments);
    command.env("GIT_OPTIONAL_LOCKS", "0").kill_on_drop(true);
    // The variables of a git hook that started the manager would select another repository.
    for name in ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"] {
        command.env_remove(name);
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let run = async {
        let mut child = command.spawn().ok()?;
        let mut output = Vec::new();
        let mut stdout = child.stdout.take()?.take(MAX_HASHED_DIFF_BYTES + 1);
        stdout.read_to_end(&mut output).await.ok()?;
        let limit = usize::try_from(MAX_HASHED_DIFF_BYTES).ok()?;
        if output.len() > limit {
            output.truncate(limit);
            return Some((output, false));
        }
        child.wait().await.ok()?.success().then_some((output, true))
    };
    tokio::time::timeout(GIT_TIMEOUT, run).await.ok()?
}

#[cfg(test)]
mod tests;
