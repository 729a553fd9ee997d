//! The lock that admits one process at a time to a spool's directory.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use trial_protocol::AttemptId;

/// The tries to take a held lock, and the pause between two. Programs that check whether an agent runs, such as the
/// manager and training services, take its lock for an instant. An agent that started in this instant would run without
/// its spool.
const PROBE_TRIES: u32 = 25;
const PROBE_PAUSE: Duration = Duration::from_millis(2);

/// Creates a spool's directory for its owner only, regardless of the umask, because it contains everything that a trial
/// prints. An existing directory keeps its permissions, and so do its parents.
pub(super) fn create_private_dir(dir: &Path) -> io::Result<()> {
    if let Some(above) = dir.parent() {
        fs::create_dir_all(above)?;
    }
    match fs::DirBuilder::new().mode(0o700).create(dir) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && dir.is_dir() => Ok(()),
        made => made,
    }
}

/// The held lock. It is released when the value is dropped.
#[derive(Debug)]
pub struct DirLock {
    file: Flock<File>,
}

/// The right to use a spool's directory, or the error that prevented it. It is taken before anything starts that must
/// not run twice. Later, it is passed to [`Spool::open_locked`](super::Spool::open_locked).
#[derive(Debug)]
pub struct SpoolLock(pub(super) Option<Result<DirLock, Error>>);

impl SpoolLock {
    /// Locks `dir`, if there is one, for `attempt`.
    pub fn acquire(dir: Option<&Path>, attempt: &AttemptId) -> Self {
        Self(dir.map(|dir| DirLock::acquire(dir, attempt)))
    }

    /// Returns whether another process already runs this attempt in the directory. A second run would run the trial
    /// twice.
    pub fn is_held_by_another(&self, attempt: &AttemptId) -> bool {
        match &self.0 {
            Some(Err(Error::Held { attempt: running, .. })) => {
                running.as_deref() == Some(attempt.as_str())
            }
            Some(Ok(_) | Err(Error::Io { .. })) | None => false,
        }
    }

    /// Returns the locked file's descriptor. The lock lasts as long as any process has it open.
    pub fn descriptor(&self) -> Option<RawFd> {
        self.0.as_ref()?.as_ref().ok().map(|lock| lock.file.as_raw_fd())
    }
}

/// The errors of taking the lock.
#[derive(Debug)]
pub enum Error {
    /// Another process holds the lock.
    Held {
        /// Process id of the holder, as it wrote it; `?` if it has not written it yet.
        holder: String,
        /// The attempt that the holder runs.
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
    /// Creates `dir` if it is absent, and locks it without waiting.
    ///
    /// The lock belongs to the open file (`flock(2)`). It ends with the process, in whatever way the process ends.
    /// Children do not inherit the descriptor.
    pub fn acquire(dir: &Path, attempt: &AttemptId) -> Result<Self, Error> {
        let path = dir.join("lock");
        let io = |path: &Path| {
            let path = path.to_owned();
            move |source| Error::Io { path, source }
        };
        create_private_dir(dir).map_err(io(dir))?;
        let mut options = OpenOptions::new();
        let open = options.read(true).write(true).create(true).truncate(false).open(&path);
        match lock_file(open.map_err(io(&path))?, || std::thread::park_timeout(PROBE_PAUSE)) {
            Ok(mut file) => {
                // Ignored: the text is only informative, and a full disk must not prevent the lock.
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

/// Locks a file, with pauses between the tries. A lock that stays held is not the short one of a check.
fn lock_file(file: File, mut pause: impl FnMut()) -> Result<Flock<File>, (File, Errno)> {
    let mut locked = Flock::lock(file, FlockArg::LockExclusiveNonblock);
    for _ in 0..PROBE_TRIES {
        let Err((file, Errno::EWOULDBLOCK)) = locked else { break };
        pause();
        locked = Flock::lock(file, FlockArg::LockExclusiveNonblock);
    }
    locked
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
    fn a_new_spool_is_private_and_an_existing_directory_keeps_its_mode() {
        let folder = tempfile::tempdir().unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let new = folder.path().join("above/spool");
        create_private_dir(&new).unwrap();
        assert_eq!(mode(&new), 0o700);
        let own = folder.path().join("own");
        fs::create_dir(&own).unwrap();
        fs::set_permissions(&own, fs::Permissions::from_mode(0o750)).unwrap();
        create_private_dir(&own).unwrap();
        assert_eq!(mode(&own), 0o750);
        fs::write(folder.path().join("file"), "").unwrap();
        assert!(create_private_dir(&folder.path().join("file")).is_err());
    }

    #[test]
    fn a_check_of_the_lock_does_not_keep_an_agent_from_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let open = || File::create(&path).unwrap();
        for pauses in [1, PROBE_TRIES] {
            let mut check = Some(Flock::lock(open(), FlockArg::LockExclusiveNonblock).unwrap());
            let mut left = pauses;
            let taken = lock_file(open(), || {
                left -= 1;
                // The check releases the lock during this pause.
                check.take_if(|_| left == 0);
            });
            assert!(taken.is_ok() && left == 0, "{pauses} pauses, {left} left");
        }
        let _agent = Flock::lock(open(), FlockArg::LockExclusiveNonblock).unwrap();
        let (_, refusal) = lock_file(open(), || ()).unwrap_err();
        assert_eq!(refusal, Errno::EWOULDBLOCK, "a lasting lock must be respected");
    }
}
