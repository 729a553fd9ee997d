//! Lists and opens the files that a trial has written to its folder on this machine. The agent's own files are
//! excluded.
//!
//! The trial may change the folder at any time. No link is followed, and only regular files are opened.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Component, Path};
use std::time::UNIX_EPOCH;

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;
use serde::Serialize;
use utoipa::ToSchema;

/// The maximum number of files in a list.
const MAX_FILES: usize = 1_000;
/// The maximum number of directory entries that are read for a list.
const MAX_ENTRIES: usize = 20_000;
/// The files of the agent and the SDK in a trial's folder. The API and the pages show them elsewhere, or they contain
/// a secret.
const AGENT_FILES: [&str; 10] = [
    ".nni",
    "agent.log",
    "collectors.json",
    "parameter.cfg",
    "parameters.json",
    "spool",
    "stderr",
    "stdout",
    "token",
    "trialkeeper.log",
];
/// The prefixes of the names of agent files that exist in several versions.
const AGENT_PREFIXES: [&str; 4] = ["stdout.", "stderr.", "verdict", "token."];

/// A file of a trial.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct TrialFile {
    /// The path below the trial's folder.
    pub name: String,
    /// The size in bytes.
    pub bytes: u64,
    /// The time of the last change, in milliseconds since 1970.
    pub modified_ms: i64,
}

/// The files of a trial.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct TrialFiles {
    /// The trial's folder on the manager's machine.
    pub folder: String,
    /// The files, sorted by name. Files whose names are not UTF-8 are left out.
    pub files: Vec<TrialFile>,
    /// True if the trial has more than 1,000 files.
    pub cut: bool,
}

/// Lists the files of a trial, sorted by name. Blocks on disk access.
///
/// # Errors
///
/// Fails if the folder cannot be read, with `NotFound` if the trial ran on another machine.
pub fn list(folder: &Path) -> io::Result<TrialFiles> {
    folder.metadata()?;
    let walk = ignore::WalkBuilder::new(folder)
        .standard_filters(false)
        .follow_links(false)
        .sort_by_file_name(OsStr::cmp)
        .filter_entry(|entry| !is_agents(entry.depth(), entry.file_name()))
        .build();
    let (mut files, mut cut) = (Vec::new(), false);
    for (visited, entry) in walk.enumerate() {
        if files.len() == MAX_FILES || visited == MAX_ENTRIES {
            cut = true;
            break;
        }
        // A file may vanish while the folder is read.
        let Ok(entry) = entry else { continue };
        let Ok(metadata) = entry.metadata() else { continue };
        let name = entry.path().strip_prefix(folder).ok().and_then(Path::to_str);
        let Some(name) = name.filter(|_| metadata.is_file()) else { continue };
        let modified = metadata.modified().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok());
        let modified = modified.and_then(|at| i64::try_from(at.as_millis()).ok());
        files.push(TrialFile {
            name: name.to_owned(),
            bytes: metadata.len(),
            modified_ms: modified.unwrap_or(0),
        });
    }
    Ok(TrialFiles { folder: folder.to_string_lossy().into_owned(), files, cut })
}

/// Opens the file `name` of a trial. Blocks on disk access.
///
/// # Errors
///
/// Fails with `NotFound` for a name that [`list`] would not return, for example a path that leads out of the folder.
pub fn open(folder: &Path, name: &str) -> io::Result<File> {
    let unknown = || io::Error::from(io::ErrorKind::NotFound);
    let mut parts = Vec::new();
    for part in Path::new(name).components() {
        let Component::Normal(part) = part else { return Err(unknown()) };
        parts.push(part);
    }
    let agents = parts.iter().zip(1..).any(|(part, depth)| is_agents(depth, part));
    let (last, above) = parts.split_last().filter(|_| !agents).ok_or_else(unknown)?;
    let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let mut at: OwnedFd = File::open(folder)?.into();
    for part in above {
        at = open_part(&at, part, flags | OFlag::O_DIRECTORY)?;
    }
    // `O_NONBLOCK`: opening a named pipe must not block.
    let file = File::from(open_part(&at, last, flags | OFlag::O_NONBLOCK)?);
    if file.metadata()?.is_file() { Ok(file) } else { Err(unknown()) }
}

fn open_part(folder: &OwnedFd, name: &OsStr, flags: OFlag) -> io::Result<OwnedFd> {
    // The errors for a link, a path component that is not a folder, and a file that cannot be opened for reading.
    const NOT_OPENABLE: [Errno; 5] =
        [Errno::ELOOP, Errno::ENOTDIR, Errno::ENXIO, Errno::EINVAL, Errno::ENAMETOOLONG];
    openat(folder.as_fd(), name, flags, Mode::empty()).map_err(|error| {
        if NOT_OPENABLE.contains(&error) { io::ErrorKind::NotFound.into() } else { error.into() }
    })
}

/// PURE: returns whether an entry at this depth below the trial's folder belongs to the agent, the SDK or Python.
fn is_agents(depth: usize, name: &OsStr) -> bool {
    let Some(name) = name.to_str() else { return depth == 1 };
    name == "__pycache__"
        || depth == 1
            && (AGENT_FILES.contains(&name)
                || AGENT_PREFIXES.iter().any(|prefix| name.starts_with(prefix)))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    fn folder() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str| {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, name).unwrap();
        };
        for name in [
            "model.pt",
            "code/b/stdout",
            "code/__pycache__/a.pyc",
            "spool/lock",
            ".nni/metrics",
            ".hidden",
            "stdout",
            "stderr.1",
            "token",
            "verdict.json",
            "parameter.cfg",
        ] {
            write(name);
        }
        symlink("/etc/passwd", folder.path().join("passwd")).unwrap();
        symlink("/etc", folder.path().join("etc")).unwrap();
        nix::unistd::mkfifo(&folder.path().join("pipe"), Mode::S_IRWXU).unwrap();
        folder
    }

    #[test]
    fn a_trials_own_files_are_listed() {
        let folder = folder();
        let listed = list(folder.path()).unwrap();
        let names: Vec<_> = listed.files.iter().map(|file| file.name.as_str()).collect();
        assert_eq!(names, [".hidden", "code/b/stdout", "model.pt"]);
        assert_eq!((listed.files[2].bytes, listed.cut), (8, false));
        assert!(listed.files[2].modified_ms > 1_700_000_000_000);
        let elsewhere = list(&folder.path().join("none")).unwrap_err();
        assert_eq!(elsewhere.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_long_list_is_cut() {
        let folder = tempfile::tempdir().unwrap();
        for number in 0..=MAX_FILES {
            fs::write(folder.path().join(number.to_string()), "").unwrap();
        }
        let listed = list(folder.path()).unwrap();
        assert_eq!((listed.files.len(), listed.cut), (MAX_FILES, true));
    }

    #[test]
    fn only_listed_files_are_opened() {
        let folder = folder();
        for name in [".hidden", "code/b/stdout", "model.pt"] {
            let file = open(folder.path(), name).unwrap();
            assert_eq!(io::read_to_string(file).unwrap(), name);
        }
        for name in [
            "",
            ".",
            "..",
            "/etc/passwd",
            "../x",
            "code/../model.pt",
            "passwd",
            "etc/passwd",
            "pipe",
            "code",
            "token",
            "spool/lock",
            "none",
            "model.pt/x",
            "./token",
            "a\0b",
        ] {
            let refused = open(folder.path(), name).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::NotFound, "{name:?}");
        }
    }
}
