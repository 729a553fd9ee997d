//! The connection to a manager on this machine: its Unix socket, in a folder that only its owner may enter.

use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use reqwest::Client;

use crate::http::client;

/// The base URL for requests over the socket. Its host is not resolved.
pub const LOCAL_BASE: &str = "http://localhost";

/// The maximum length of a socket's path in bytes: unix(7), `sun_path`, without the final NUL.
const MAX_SOCKET_PATH_BYTES: usize = 107;

/// A client of the manager's socket.
#[derive(Debug, Clone)]
pub struct LocalClient {
    client: Client,
    /// The socket's folder, if the path leads through its descriptor. It stays open as long as the client.
    _folder: Option<std::sync::Arc<File>>,
}

impl LocalClient {
    /// Creates a client. It connects at the first request.
    pub fn new(socket: &Path) -> Result<Self, client::Error> {
        let (path, folder) = shorten_path(socket);
        let client = client::build_on_socket(&path)?;
        Ok(Self { client, _folder: folder.map(std::sync::Arc::new) })
    }

    /// Returns the HTTP client.
    pub fn client(&self) -> &Client {
        &self.client
    }
}

/// Returns a sufficiently short path to the socket, and the folder that must stay open for it. If the folder cannot be
/// opened, the path stays as it is, and the connection reports the error.
fn shorten_path(socket: &Path) -> (PathBuf, Option<File>) {
    let long = socket.as_os_str().as_bytes().len() > MAX_SOCKET_PATH_BYTES;
    let folder = socket.parent().filter(|_| long).and_then(|folder| File::open(folder).ok());
    match (folder, socket.file_name()) {
        (Some(folder), Some(name)) => {
            let path = Path::new("/proc/self/fd").join(folder.as_raw_fd().to_string()).join(name);
            (path, Some(folder))
        }
        _ => (socket.to_owned(), None),
    }
}
