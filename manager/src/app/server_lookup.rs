//! Finds the servers of an experiment on this machine by the files in the experiment's folder.

use std::path::{Path, PathBuf};

use serde_json::Value;
use tokio::net::UnixStream;
use trial_protocol::ExperimentId;

use super::Error;
use crate::api::client::Client;
use crate::store::{self, Store};
use crate::util::layout::{ExperimentDir, HomeDir};

/// Returns a client of the manager that runs an experiment, and its address.
pub async fn manager_of(id: &ExperimentId, dir: &ExperimentDir) -> Option<(Client, String)> {
    served_by(id, dir, &Server::manager(dir)).await
}

/// Opens the store of an experiment for writing, which only one manager can do. The error names the manager that has it
/// open, if that manager answers.
pub(super) async fn open_store(id: &ExperimentId, dir: &ExperimentDir) -> Result<Store, Error> {
    let refused = match Store::open(&dir.database()) {
        Err(refused @ store::Error::InUse { .. }) => refused,
        opened => return Ok(opened?),
    };
    let Some((_, url)) = manager_of(id, dir).await else { return Err(refused.into()) };
    let pid = listener_pid(&dir.manager_socket()).await;
    Err(Error::AlreadyRuns { id: id.clone(), url, pid })
}

/// Returns the process id of the listener on a socket. `None` if it is unknown, as in another container.
async fn listener_pid(socket: &Path) -> Option<i32> {
    let peer = UnixStream::connect(socket).await.ok()?.peer_cred().ok()?;
    peer.pid().filter(|pid| *pid > 0)
}

/// Returns a client of the process that serves an experiment without running it, and its address.
pub async fn viewer_of(id: &ExperimentId, dir: &ExperimentDir) -> Option<(Client, String)> {
    served_by(id, dir, &Server::viewer(dir)).await
}

/// Returns the address of the home of a data directory, if it is served.
pub async fn home_of(dir: &HomeDir) -> Option<String> {
    let url = std::fs::read_to_string(dir.url()).ok()?;
    let url = url.lines().next().unwrap_or_default().trim().to_owned();
    let socket = Some(dir.socket()).filter(|socket| socket.exists());
    let client =
        Client::Remote { url: url.clone(), token: None, ca_pem: None, socket: Some(socket?) };
    client.request_json("GET", "/healthz", None).await.ok().map(|_| url)
}

/// Returns a client of an experiment's server, and the address for browsers. The client uses the Unix socket, on
/// which only the folder's owner can listen. The port in the file may now belong to another user's server, which must
/// not receive the token.
async fn served_by(
    id: &ExperimentId,
    dir: &ExperimentDir,
    server: &Server,
) -> Option<(Client, String)> {
    let url = std::fs::read_to_string(&server.url_file).ok()?;
    let url = url.lines().next().unwrap_or_default().trim().to_owned();
    let socket = Some(server.socket.clone()).filter(|socket| socket.exists());
    if socket.is_none()
        && !(server.holds_lock && Store::is_open_to_write(&dir.database()) == Some(true))
    {
        return None;
    }
    let token = std::fs::read_to_string(dir.user_token()).ok();
    let token = token.map(|token| token.trim().to_owned());
    let ca_pem = url.starts_with("https").then(|| std::fs::read_to_string(dir.ca_file()).ok());
    let client = Client::Remote { url: url.clone(), token, ca_pem: ca_pem.flatten(), socket };
    // A manager of an earlier version has no socket, and another experiment's manager may now use its port.
    let answer = client.request_json("GET", "/api/v1/experiment", None).await.ok()?;
    (answer.get("id") == Some(&Value::from(id.as_str()))).then_some((client, url))
}

/// A server of an experiment on this machine, described by files in the experiment's folder.
struct Server {
    url_file: PathBuf,
    socket: PathBuf,
    /// `true` if the server holds the database's lock while it runs. For a server of an earlier version, which has no
    /// socket, the lock is the only evidence.
    holds_lock: bool,
}

impl Server {
    fn manager(dir: &ExperimentDir) -> Self {
        Self { url_file: dir.manager_url(), socket: dir.manager_socket(), holds_lock: true }
    }

    fn viewer(dir: &ExperimentDir) -> Self {
        Self { url_file: dir.view_url(), socket: dir.view_socket(), holds_lock: false }
    }
}
