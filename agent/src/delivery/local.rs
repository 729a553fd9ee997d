//! The way to a manager on this machine: its Unix socket, in a folder that only its owner may enter.

use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use reqwest::Client;

use crate::http::client;

/// The base URL for requests over the socket; its host is not looked up.
pub const LOCAL_BASE: &str = "http://localhost";

/// The longest path that the kernel takes for a socket, in bytes: unix(7), `sun_path`, without its last NUL.
const LONGEST_PATH: usize = 107;

/// A client of the manager's socket.
#[derive(Debug, Clone)]
pub struct LocalClient {
    client: Client,
    /// Open while the client lives, where the socket is reached through its folder's descriptor.
    _folder: Option<std::sync::Arc<File>>,
}

impl LocalClient {
    /// Makes a client; it connects when it is first used.
    pub fn new(socket: &Path) -> Result<Self, client::Error> {
        let (path, folder) = short(socket);
        let client = client::build_on_socket(&path)?;
        Ok(Self { client, _folder: folder.map(std::sync::Arc::new) })
    }

    /// The client.
    pub fn client(&self) -> &Client {
        &self.client
    }
}

/// A path to the socket that is short enough, and the folder that it needs open. A folder that cannot be opened leaves the
/// path as it is: the connection will say what is wrong.
fn short(socket: &Path) -> (PathBuf, Option<File>) {
    let long = socket.as_os_str().as_bytes().len() > LONGEST_PATH;
    let folder = socket.parent().filter(|_| long).and_then(|folder| File::open(folder).ok());
    match (folder, socket.file_name()) {
        (Some(folder), Some(name)) => {
            let path = Path::new("/proc/self/fd").join(folder.as_raw_fd().to_string()).join(name);
            (path, Some(folder))
        }
        _ => (socket.to_owned(), None),
    }
}
