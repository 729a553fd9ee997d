//! The Unix socket on which a manager answers agents and commands on its machine. The socket is in the experiment's
//! folder, which only its owner may enter, so other users can neither listen on it nor reach it. A TCP port offers no
//! such guarantee: after the manager's end, any user of the machine may listen on it.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use tokio::net::{UnixListener, UnixStream};

use super::files::temporary_path;

/// The maximum length of a socket's path in the kernel, in bytes: unix(7), `sun_path`, without the final NUL.
const MAX_PATH_BYTES: usize = 107;

/// Listens on `path`. A socket of an earlier manager is replaced atomically. Otherwise an agent might find no socket,
/// and assume a manager of an earlier version.
pub fn bind(path: &Path) -> io::Result<UnixListener> {
    let new = temporary_path(path);
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

/// Connects to the manager on `path`.
pub async fn connect(path: &Path) -> io::Result<UnixStream> {
    let address = ShortPath::of(path)?;
    UnixStream::connect(&address.path).await
}

/// A path that is short enough for the kernel, and the open folder to which the path refers.
struct ShortPath {
    path: PathBuf,
    _folder: Option<File>,
}

impl ShortPath {
    fn of(path: &Path) -> io::Result<Self> {
        if path.as_os_str().as_bytes().len() <= MAX_PATH_BYTES {
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
    async fn a_leftover_temporary_socket_does_not_prevent_writing_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("manager.sock");
        let left = UnixListener::bind(temporary_path(&socket)).unwrap();
        write_file(&dir.path().join("manager.url"), 0o600, "http://m\n").unwrap();
        bind(&socket).unwrap();
        drop(left);
    }

    const TEST_TIMEOUT: Duration = Duration::from_secs(30);

    #[tokio::test]
    async fn a_socket_is_private_and_replaces_a_leftover_one() {
        let dir = tempfile::tempdir().unwrap();
        for folder in [dir.path().to_owned(), dir.path().join("long".repeat(40))] {
            fs::create_dir_all(&folder).unwrap();
            let path = folder.join("manager.sock");
            drop(bind(&path).unwrap());
            // A child of another test also holds the socket until its exec closes the inherited descriptors.
            let refused = tokio::time::timeout(TEST_TIMEOUT, async {
                loop {
                    if let Err(error) = connect(&path).await {
                        return error;
                    }
                    tokio::task::yield_now().await;
                }
            });
            let refused = refused.await.expect("a socket without a listener refuses");
            assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused, "no process listens");
            let listener = bind(&path).unwrap();
            let mode = fs::symlink_metadata(&path).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
            let (accepted, connected) = tokio::join!(listener.accept(), connect(&path));
            accepted.unwrap();
            connected.unwrap();
        }
    }
}
