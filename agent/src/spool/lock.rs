//! One process at a time in a spool's directory.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use trial_protocol::AttemptId;

/// The lock, for as long as it lives.
#[derive(Debug)]
pub struct DirLock {
    _file: Flock<File>,
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
                Ok(Self { _file: file })
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
