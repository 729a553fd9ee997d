//! The servers of this machine that answer for an experiment, as the experiment's folder describes them.

use std::path::PathBuf;

use serde_json::Value;
use trial_protocol::ExperimentId;

use crate::api::client::Client;
use crate::store::Store;
use crate::util::layout::{ExperimentDir, HomeDir};

/// Returns a client of the manager that runs an experiment, and its address.
pub async fn manager_of(id: &ExperimentId, dir: &ExperimentDir) -> Option<(Client, String)> {
    served_by(id, dir, &Server::manager(dir)).await
}

/// Returns a client of the process that shows an experiment without running it, and its address.
pub async fn viewer_of(id: &ExperimentId, dir: &ExperimentDir) -> Option<(Client, String)> {
    served_by(id, dir, &Server::viewer(dir)).await
}

/// Returns the address of the home of a data directory, if one is served.
pub async fn home_of(dir: &HomeDir) -> Option<String> {
    let url = std::fs::read_to_string(dir.url()).ok()?;
    let url = url.lines().next().unwrap_or_default().trim().to_owned();
    let socket = Some(dir.socket()).filter(|socket| socket.exists());
    let client = Client::Far { url: url.clone(), token: None, ca_pem: None, socket: Some(socket?) };
    client.ask("GET", "/healthz", None).await.ok().map(|_| url)
}

/// The server of an experiment, and the address that a browser opens. It is asked over its Unix socket, which only the
/// owner of the folder can listen on: the port in the file may be a stranger's by now, and the token is not for strangers.
async fn served_by(
    id: &ExperimentId,
    dir: &ExperimentDir,
    server: &Server,
) -> Option<(Client, String)> {
    let url = std::fs::read_to_string(&server.url_file).ok()?;
    let url = url.lines().next().unwrap_or_default().trim().to_owned();
    let socket = Some(server.socket.clone()).filter(|socket| socket.exists());
    if socket.is_none() && !(server.locks && Store::is_open_to_write(&dir.database()) == Some(true))
    {
        return None;
    }
    let token = std::fs::read_to_string(dir.user_token()).ok();
    let token = token.map(|token| token.trim().to_owned());
    let ca_pem = url.starts_with("https").then(|| std::fs::read_to_string(dir.ca_file()).ok());
    let far = Client::Far { url: url.clone(), token, ca_pem: ca_pem.flatten(), socket };
    // A manager of an earlier version has no socket, and another experiment's may have had its port.
    let answer = far.ask("GET", "/api/v1/experiment", None).await.ok()?;
    (answer.get("id") == Some(&Value::from(id.as_str()))).then_some((far, url))
}

/// A server of an experiment on this machine, as its folder describes it.
struct Server {
    url_file: PathBuf,
    socket: PathBuf,
    /// The server holds the database's lock while it lives. One of an earlier version, without a socket, is believed by
    /// that alone.
    locks: bool,
}

impl Server {
    fn manager(dir: &ExperimentDir) -> Self {
        Self { url_file: dir.manager_url(), socket: dir.manager_socket(), locks: true }
    }

    fn viewer(dir: &ExperimentDir) -> Self {
        Self { url_file: dir.view_url(), socket: dir.view_socket(), locks: false }
    }
}
