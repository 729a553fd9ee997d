//! One process at a time in a spool's directory.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use trial_protocol::AttemptId;

/// Makes a spool's directory for its owner only, whatever the umask is: it holds all that a trial prints. One that is
/// there is left as it is, and so are those above it.
pub(super) fn make_private(dir: &Path) -> io::Result<()> {
    if let Some(above) = dir.parent() {
        fs::create_dir_all(above)?;
    }
    match fs::DirBuilder::new().mode(0o700).create(dir) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && dir.is_dir() => Ok(()),
        made => made,
    }
}

/// The lock, for as long as it lives.
#[derive(Debug)]
pub struct DirLock {
    file: Flock<File>,
}

/// The right to work in a spool's directory, or why it was not had: taken before anything is started that must
/// not run twice, and given to [`Spool::open`](super::Spool::open) when there is time for that.
#[derive(Debug)]
pub struct Claim(pub(super) Option<Result<DirLock, Error>>);

impl Claim {
    /// Claims `dir`, if there is one, for `attempt`.
    pub fn take(dir: Option<&Path>, attempt: &AttemptId) -> Self {
        Self(dir.map(|dir| DirLock::take(dir, attempt)))
    }

    /// Returns whether another process works in the directory on this very attempt: running it again would run the
    /// trial twice.
    pub fn is_of_another(&self, attempt: &AttemptId) -> bool {
        match &self.0 {
            Some(Err(Error::Held { attempt: theirs, .. })) => {
                theirs.as_deref() == Some(attempt.as_str())
            }
            Some(Ok(_) | Err(Error::Io { .. })) | None => false,
        }
    }

    /// The locked file's descriptor: the lock lasts as long as it is open in any process.
    pub fn descriptor(&self) -> Option<RawFd> {
        self.0.as_ref()?.as_ref().ok().map(|lock| lock.file.as_raw_fd())
    }
}

/// The errors of taking the lock.
#[derive(Debug)]
pub enum Error {
    /// Another process has it.
    Held {
        /// Process id of the holder, as it wrote it; `?` if it has not yet.
        holder: String,
        /// The attempt it works on.
        attempt: Option<String>,
    },
    /// The directory or the file cannot be used.
    Io {
        /// Path of the file.
        path: PathBuf,
        /// The underlying error.
        source: io::Error,
    },
}

impl DirLock {
    /// Makes `dir` if it is not there and locks it, without waiting.
    ///
    /// The lock is of the open file (`flock(2)`): it ends with the process, however that ends. Children do
    /// not inherit the descriptor.
    pub fn take(dir: &Path, attempt: &AttemptId) -> Result<Self, Error> {
        let path = dir.join("lock");
        let io = |path: &Path| {
            let path = path.to_owned();
            move |source| Error::Io { path, source }
        };
        make_private(dir).map_err(io(dir))?;
        let mut options = OpenOptions::new();
        let open = options.read(true).write(true).create(true).truncate(false).open(&path);
        let file = open.map_err(io(&path))?;
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(mut file) => {
                // No correctness rests on this text; a full disk is no reason to give up the lock.
                drop(write_holder(&mut file, attempt));
                Ok(Self { file })
            }
            Err((mut file, Errno::EWOULDBLOCK)) => {
                let mut text = String::new();
                drop(file.read_to_string(&mut text));
                let mut lines = text.lines();
                let holder = lines.next().unwrap_or("?").to_owned();
                Err(Error::Held { holder, attempt: lines.next().map(str::to_owned) })
            }
            Err((_, errno)) => Err(Error::Io { path, source: errno.into() }),
        }
    }
}

fn write_holder(file: &mut File, attempt: &AttemptId) -> io::Result<()> {
    file.set_len(0)?;
    file.rewind()?;
    file.write_all(format!("{}\n{attempt}\n", std::process::id()).as_bytes())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_spool_is_for_its_owner_only_and_a_directory_that_is_there_is_left_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let new = folder.path().join("above/spool");
        make_private(&new).unwrap();
        assert_eq!(mode(&new), 0o700);
        let own = folder.path().join("own");
        fs::create_dir(&own).unwrap();
        fs::set_permissions(&own, fs::Permissions::from_mode(0o750)).unwrap();
        make_private(&own).unwrap();
        assert_eq!(mode(&own), 0o750);
        fs::write(folder.path().join("file"), "").unwrap();
        assert!(make_private(&folder.path().join("file")).is_err());
    }
}
