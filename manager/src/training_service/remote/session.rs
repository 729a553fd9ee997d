//! A session on a machine: connection, agent and code, the manager's socket, helper. Then messages in both directions until it ends.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, ChildStdin};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::ssh::{Ssh, quoted};
use crate::config::MachineSpec;

/// The time that the helper may take to answer the first requests.
const ANSWER_TIMEOUT: Duration = Duration::from_mins(1);
/// The longest message, in bytes with its newline.
const MESSAGE_BYTES: u64 = 1 << 20;
/// Messages that are read ahead.
const AHEAD: usize = 64;
/// The address that agents find beside the socket. It leads nowhere, so that no agent tries a port.
const NO_ADDRESS: &str = "http://127.0.0.1:0";
/// The name of the socket until it takes the place of the one of an earlier session.
const NEW_SOCKET: &str = "manager.new";
/// The longest path that the kernel takes for a socket, in bytes: unix(7), `sun_path`, without its last NUL.
const LONGEST_SOCKET_PATH: usize = 107;
/// The mark of our scripts' lines, which a login shell's banner does not have.
const MARK: &str = "tk:";

/// The files and names that a machine is given.
#[derive(Debug)]
pub(super) struct Luggage<'a> {
    /// The experiment, as a name of a folder.
    pub(super) experiment: &'a str,
    /// The agent program.
    pub(super) agent: &'a Path,
    /// SHA-256 of the agent in hexadecimal digits.
    pub(super) agent_sha256: &'a str,
    /// The archive of the trials' code.
    pub(super) code: &'a Path,
    /// The socket of the manager on this machine.
    pub(super) socket: &'a Path,
}

/// A session that is open. Dropping it ends its processes here, and the helper there.
#[derive(Debug)]
pub(super) struct Session {
    /// The control connection.
    pub(super) master: Child,
    /// Lines of the helper.
    pub(super) lines: mpsc::Receiver<String>,
    /// GPUs of the machine: index, and whether a process computes on it.
    pub(super) gpus: Vec<(u64, bool)>,
    stdin: ChildStdin,
    _helper: Child,
}

impl Session {
    /// Connects to a machine and makes it ready for trials.
    pub(super) async fn open(
        ssh: &Ssh,
        machine: &MachineSpec,
        luggage: &Luggage<'_>,
    ) -> Result<Self, String> {
        let master = ssh.connect().await?;
        let (agent, root) = bootstrap(ssh, machine, luggage).await?;
        forward_back(ssh, &root, luggage.socket).await?;
        let path = machine.python_path.as_ref();
        let path = path.map(|path| format!("PATH={}:$PATH; export PATH; ", quoted(path)));
        let line = format!(
            "{}exec {} machine {}",
            path.unwrap_or_default(),
            quoted(&agent),
            quoted(&root)
        );
        let mut helper = ssh.script(&line);
        helper.stdin(Stdio::piped()).stderr(Stdio::null());
        let mut helper = helper.spawn().map_err(|error| format!("cannot run ssh: {error}"))?;
        let (Some(stdin), Some(stdout)) = (helper.stdin.take(), helper.stdout.take()) else {
            return Err("ssh has no pipes".to_owned());
        };
        let (sender, lines) = mpsc::channel(AHEAD);
        tokio::spawn(async move {
            let mut reader = BufReader::new(stdout);
            loop {
                let mut line = Vec::new();
                let read = (&mut reader).take(MESSAGE_BYTES).read_until(b'\n', &mut line).await;
                // A longer line or half a line is the end: no message of the helper's is.
                if read.is_err() || !line.ends_with(b"\n") {
                    return;
                }
                if sender.send(String::from_utf8_lossy(&line).into_owned()).await.is_err() {
                    return;
                }
            }
        });
        let mut session = Self { master, lines, gpus: Vec::new(), stdin, _helper: helper };
        session.begin().await?;
        Ok(session)
    }

    async fn begin(&mut self) -> Result<(), String> {
        let hello = self.ask(0, "initialize", &json!({"protocol": {"min": 1, "max": 1}})).await?;
        if hello["protocol"] != 1 {
            return Err("the agent there speaks another version of the protocol".to_owned());
        }
        let files = [json!({"name": "manager.url", "text": format!("{NO_ADDRESS}\n")})];
        self.ask(0, "open", &json!({"files": files})).await?;
        let room = self.ask(0, "room", &json!({})).await?;
        let gpu = |gpu: &Value| Some((gpu["index"].as_u64()?, gpu["busy"].as_bool()?));
        self.gpus = room["gpus"].as_array().into_iter().flatten().filter_map(gpu).collect();
        Ok(())
    }

    /// Sends a request and waits for its answer; for the first ones, before which nothing is told.
    async fn ask(&mut self, id: u64, method: &str, params: &Value) -> Result<Value, String> {
        self.send(&request(id, method, params)).await?;
        let answer = async {
            while let Some(line) = self.lines.recv().await {
                // A banner is no message.
                let Ok(mut message) = serde_json::from_str::<Value>(&line) else { continue };
                if message["id"] != id {
                    continue;
                }
                return match message["error"]["message"].as_str() {
                    Some(why) => Err(format!("{method}: {why}")),
                    None => Ok(message["result"].take()),
                };
            }
            Err(format!("the agent there ended at {method}"))
        };
        timeout(ANSWER_TIMEOUT, answer)
            .await
            .unwrap_or_else(|_| Err(format!("no answer to {method}")))
    }

    /// Writes a message to the helper.
    pub(super) async fn send(&mut self, line: &str) -> Result<(), String> {
        let lost = |error| format!("the helper is gone: {error}");
        self.stdin.write_all(line.as_bytes()).await.map_err(lost)?;
        self.stdin.flush().await.map_err(lost)
    }
}

/// A request as a line.
pub(super) fn request(id: u64, method: &str, params: &Value) -> String {
    format!("{}\n", json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}))
}

/// Forwards `manager.sock` in the experiment's folder there to the manager's socket here. Only its owner can enter the
/// folder, while any user of the machine can take a port as soon as the connection is gone.
async fn forward_back(ssh: &Ssh, root: &str, socket: &Path) -> Result<(), String> {
    let new = format!("{root}/{NEW_SOCKET}");
    if new.len() > LONGEST_SOCKET_PATH {
        return Err(format!(
            "{new} is too long for a socket, which may have {LONGEST_SOCKET_PATH} bytes; set a shorter `remoteDirectory`"
        ));
    }
    let (folder, file) = (quoted(root), quoted(&new));
    ssh.run(&format!("chmod 700 {folder} && rm -f {file}")).await?;
    ssh.forward(&new, socket).await.map_err(|why| {
        format!("the machine forwards no socket to the manager (AllowStreamLocalForwarding in its sshd_config): {why}")
    })?;
    // In one step: at no moment is there no socket.
    ssh.run(&format!("mv -f {file} {folder}/manager.sock")).await?;
    Ok(())
}

/// Brings the agent and the code, unless they are there: the agent's path and the experiment's folder.
async fn bootstrap(
    ssh: &Ssh,
    machine: &MachineSpec,
    luggage: &Luggage<'_>,
) -> Result<(String, String), String> {
    let (cache, root) = match &machine.directory {
        Some(folder) => (quoted(&format!("{folder}/agent")), quoted(folder)),
        None => (
            r#""${XDG_CACHE_HOME:-$HOME/.cache}/trialkeeper/agent""#.to_owned(),
            r#""$HOME/.local/share/trialkeeper/remote""#.to_owned(),
        ),
    };
    let (sha256, experiment) = (luggage.agent_sha256, luggage.experiment);
    let said = ssh
        .run(&format!(
            r#"cache={cache}; root={root}; echo "{MARK}$(uname -sm)"; echo "{MARK}$cache/{sha256}"; echo "{MARK}$root/{experiment}"
if [ -x "$cache/{sha256}" ] && [ "$(sha256sum < "$cache/{sha256}")" = "{sha256}  -" ]; then echo {MARK}agent; fi
if [ -f "$root/{experiment}/code.tar.gz" ]; then echo {MARK}code; fi"#
        ))
        .await?;
    let mut said = said.lines().filter_map(|line| line.strip_prefix(MARK));
    let (Some(system), Some(agent), Some(root)) = (said.next(), said.next(), said.next()) else {
        return Err("the machine's shell did not run the set-up script".to_owned());
    };
    let ours = format!("Linux {}", std::env::consts::ARCH);
    if system != ours {
        return Err(format!("the machine is {system}, and the agent is for {ours}"));
    }
    let rest: Vec<&str> = said.collect();
    let (file, folder) = (quoted(agent), quoted(root));
    if !rest.contains(&"agent") {
        let script = format!(
            r#"set -e; umask 077; mkdir -p "$(dirname {file})"; new={file}.$$; trap 'rm -f "$new"' EXIT; cat > "$new"
[ "$(sha256sum < "$new")" = "{sha256}  -" ] || {{ echo "the agent arrived damaged" >&2; exit 1; }}
chmod 700 "$new"; mv "$new" {file}"#
        );
        ssh.send(&script, luggage.agent).await?;
    }
    if !rest.contains(&"code") {
        let script = format!(
            r#"set -e; umask 077; mkdir -p {folder}; new={folder}/code.$$; trap 'rm -f "$new"' EXIT; cat > "$new"
mv "$new" {folder}/code.tar.gz"#
        );
        ssh.send(&script, luggage.code).await?;
    }
    Ok((agent.to_owned(), root.to_owned()))
}
