//! Connects a machine's agents to the manager: directly, if they reach its encrypted address, or else through a socket
//! that ssh forwards.

use std::io;
use std::path::Path;

use super::ssh::Ssh;
use crate::util::shell::quote;

/// The address in the file next to the socket. It is invalid, so that no agent connects to a port.
const NO_ADDRESS: &str = "http://127.0.0.1:0";
/// The name of the socket in an experiment's folder on the machine.
const SOCKET_NAME: &str = "manager.sock";
/// The name of the socket until it replaces that of an earlier session.
const TEMPORARY_SOCKET_NAME: &str = "manager.new";
/// The longest path that the kernel accepts for a socket, in bytes: unix(7), `sun_path`, without its last NUL.
const MAX_SOCKET_PATH_BYTES: usize = 107;
/// The file of the authority for the manager's certificate, in an experiment's folder on the machine.
pub(super) const AUTHORITY_FILE: &str = "ca.pem";

/// The address of a manager that other machines may reach.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DirectAddress {
    /// The base URL, which is encrypted.
    pub(super) url: String,
    /// The authority that agents trust, in PEM form. `None`: the public ones.
    pub(super) authority: Option<String>,
}

impl DirectAddress {
    /// Returns the manager's address. `None`: the connection would not be encrypted.
    pub(super) fn new_if_encrypted(
        url: String,
        ca_file: Option<&Path>,
    ) -> io::Result<Option<Self>> {
        if !url.starts_with("https://") {
            return Ok(None);
        }
        let authority = ca_file.map(std::fs::read_to_string).transpose()?;
        Ok(Some(Self { url, authority }))
    }
}

/// Opens the connection to the manager for agents whose files are in `root`. Returns the address to write there.
pub(super) async fn open<'a>(
    ssh: &Ssh,
    agent: &str,
    root: &str,
    socket: &Path,
    direct: Option<&'a DirectAddress>,
) -> Result<&'a str, String> {
    if let Some(direct) = direct
        && can_reach_manager(ssh, agent, root, direct).await
    {
        return Ok(&direct.url);
    }
    let forwarded = forward_socket(ssh, root, socket).await;
    forwarded.map(|()| NO_ADDRESS).map_err(|why| match direct {
        Some(direct) => format!("{why}; nor does it reach {}", direct.url),
        None => {
            format!("{why}; alternatively, make the manager reachable from the machine (`--host`, `--advertise`)")
        }
    })
}

/// Makes the agent on the machine test whether it reaches the manager directly. Returns `false` for a machine that has
/// had a socket, because agents that have seen a socket use only the socket.
async fn can_reach_manager(ssh: &Ssh, agent: &str, root: &str, direct: &DirectAddress) -> bool {
    let (agent, url, folder) = (quote(agent), quote(&direct.url), quote(root));
    let trust = match direct.authority {
        Some(_) => format!("--ca-file {folder}/{AUTHORITY_FILE}"),
        None => String::new(),
    };
    let script = format!(
        "[ ! -S {folder}/{SOCKET_NAME} ] && exec {agent} doctor --manager {url} {trust} --output-dir {folder} --gpu-program true"
    );
    ssh.run(&script).await.is_ok()
}

/// Forwards a socket in the experiment's folder on the machine to the manager's socket. Only the folder's owner can
/// enter it. A port, in contrast, is open to any user of the machine as soon as the connection is gone.
async fn forward_socket(ssh: &Ssh, root: &str, socket: &Path) -> Result<(), String> {
    let new = format!("{root}/{TEMPORARY_SOCKET_NAME}");
    if new.len() > MAX_SOCKET_PATH_BYTES {
        return Err(format!(
            "{new} is too long for a socket, which may have {MAX_SOCKET_PATH_BYTES} bytes; set a shorter `remoteDirectory`"
        ));
    }
    let (folder, file) = (quote(root), quote(&new));
    ssh.run(&format!("chmod 700 {folder} && rm -f {file}")).await?;
    ssh.forward(&new, socket).await.map_err(|why| {
        format!("the machine does not forward a socket to the manager (AllowStreamLocalForwarding in its sshd_config): {why}")
    })?;
    // The rename is atomic, so a socket exists at every moment.
    ssh.run(&format!("mv -f {file} {folder}/{SOCKET_NAME}")).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_without_encryption_is_not_used() {
        let folder = tempfile::tempdir().unwrap();
        let ca_file = folder.path().join("ca.pem");
        let of = |url: &str, ca_file| DirectAddress::new_if_encrypted(url.to_owned(), ca_file);
        assert_eq!(of("http://10.0.0.1:8080", Some(&ca_file)).unwrap(), None);
        assert!(of("https://10.0.0.1:8080", Some(&ca_file)).is_err(), "the authority is missing");
        std::fs::write(&ca_file, "PEM").unwrap();
        for (ca_file, authority) in
            [(Some(ca_file.as_path()), Some("PEM".to_owned())), (None, None)]
        {
            let url = "https://10.0.0.1:8080".to_owned();
            assert_eq!(of(&url, ca_file).unwrap(), Some(DirectAddress { url, authority }));
        }
    }
}
