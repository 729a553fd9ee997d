//! The Unix socket on which a manager answers the agents and command lines of its own machine. It lies in the
//! experiment's folder, which only its owner may enter, so a stranger can neither listen on it nor reach it. A TCP port
//! proves nothing: after the manager's death any user of the machine may take it.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use tokio::net::{UnixListener, UnixStream};

use super::files::temporary;

/// The longest path that the kernel takes for a socket, in bytes: unix(7), `sun_path`, without its last NUL.
const LONGEST_PATH: usize = 107;

/// Listens on `path`. A socket that an earlier manager left there is replaced in one step: at no moment is there none,
/// which an agent would take for a manager of an earlier version.
pub fn bind(path: &Path) -> io::Result<UnixListener> {
    let new = temporary(path);
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let address = ShortPath::of(&new)?;
    let listener = UnixListener::bind(&address.path)?;
    fs::set_permissions(&new, Permissions::from_mode(0o600))?;
    fs::rename(&new, path)?;
    Ok(listener)
}

/// Connects to the manager that listens on `path`.
pub async fn connect(path: &Path) -> io::Result<UnixStream> {
    let address = ShortPath::of(path)?;
    UnixStream::connect(&address.path).await
}

/// A path that is short enough for the kernel, and the folder that it needs open.
struct ShortPath {
    path: PathBuf,
    _folder: Option<File>,
}

impl ShortPath {
    fn of(path: &Path) -> io::Result<Self> {
        if path.as_os_str().as_bytes().len() <= LONGEST_PATH {
            return Ok(Self { path: path.to_owned(), _folder: None });
        }
        let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        let folder = File::open(path.parent().unwrap_or(Path::new(".")))?;
        let path = Path::new("/proc/self/fd").join(folder.as_raw_fd().to_string()).join(name);
        Ok(Self { path, _folder: Some(folder) })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::util::files::write_file;

    #[tokio::test]
    async fn a_socket_that_a_killed_manager_left_half_made_hinders_no_file() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("manager.sock");
        let left = UnixListener::bind(temporary(&socket)).unwrap();
        write_file(&dir.path().join("manager.url"), 0o600, "http://m\n").unwrap();
        bind(&socket).unwrap();
        drop(left);
    }

    const BOUND: Duration = Duration::from_secs(30);

    #[tokio::test]
    async fn a_socket_is_for_its_owner_only_and_replaces_one_that_was_left() {
        let dir = tempfile::tempdir().unwrap();
        for folder in [dir.path().to_owned(), dir.path().join("long".repeat(40))] {
            fs::create_dir_all(&folder).unwrap();
            let path = folder.join("manager.sock");
            drop(bind(&path).unwrap());
            // A child of another test has the socket, too, until its exec closes what it has inherited.
            let refused = tokio::time::timeout(BOUND, async {
                loop {
                    if let Err(error) = connect(&path).await {
                        return error;
                    }
                    tokio::task::yield_now().await;
                }
            });
            let refused = refused.await.expect("a socket without a listener refuses");
            assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused, "nobody listens");
            let listener = bind(&path).unwrap();
            let mode = fs::symlink_metadata(&path).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
            let (accepted, connected) = tokio::join!(listener.accept(), connect(&path));
            accepted.unwrap();
            connected.unwrap();
        }
    }
}
