//! One process at a time in a spool's directory.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::fd::{AsRawFd, RawFd};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use trial_protocol::AttemptId;

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

    /// Whether another process works in the directory on this very attempt: running it again would run the
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

/// Why the lock was not taken.
#[derive(Debug)]
pub enum Error {
    /// Somebody has it.
    Held {
        /// Process id of the holder, as it wrote it; `?` if it has not yet.
        holder: String,
        /// The attempt it works on.
        attempt: Option<String>,
    },
    /// The directory or the file cannot be used.
    Io {
        /// Which.
        path: PathBuf,
        /// Why.
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
        fs::create_dir_all(dir).map_err(io(dir))?;
        let mut options = OpenOptions::new();
        let open = options.read(true).write(true).create(true).truncate(false).open(&path);
        let file = open.map_err(io(&path))?;
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(mut file) => {
                // Nobody's correctness rests on this text; a full disk is no reason to give up the lock.
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
