//! The system's `ssh`: one control connection for each machine, commands and forwards over it.
//!
//! Host keys are always checked. A command never opens a connection of its own when the control connection is gone, which
//! `ProxyCommand=false` prevents.

use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::config::MachineSpec;

/// The time that a connection may take from its start, name resolution and all jumps included.
const CONNECT_TIMEOUT: Duration = Duration::from_mins(1);
/// The time that a short command or a forward may take.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(30);
/// The time that a file may take to be sent.
const COPY_TIMEOUT: Duration = Duration::from_mins(10);
/// The longest message of ssh's that is kept, in bytes.
const SAID_BYTES: u64 = 16 << 10;
/// The line that a connection prints when it is there.
const CONNECTED: &str = "connected";

/// The way to a machine.
#[derive(Debug, Clone)]
pub(super) struct Ssh {
    machine: MachineSpec,
    socket: PathBuf,
}

impl Ssh {
    /// Names the control socket of a machine; nothing is started.
    pub(super) fn new(machine: &MachineSpec, sockets: &Path, number: usize) -> Self {
        Self { machine: machine.clone(), socket: sockets.join(number.to_string()) }
    }

    /// Opens the control connection: its process, whose end is the end of the connection.
    pub(super) async fn connect(&self) -> Result<Child, String> {
        // It is left by a manager that was killed.
        drop(std::fs::remove_file(&self.socket));
        let mut command = Command::new("ssh");
        command.args(["-M", "-N", "-T", "-S"]).arg(&self.socket);
        for option in self.options() {
            command.arg("-o").arg(option);
        }
        if let Some(file) = &self.machine.key_file {
            command.arg("-i").arg(file);
        }
        command.arg("--").arg(&self.machine.host);
        // A group of its own: the terminal's Ctrl-C is for the manager.
        command.process_group(0).kill_on_drop(true);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| format!("cannot run ssh: {error}"))?;
        let (Some(stdout), Some(stderr)) = (child.stdout.take(), child.stderr.take()) else {
            return Err("ssh has no output".to_owned());
        };
        let said = tokio::spawn(async move {
            let mut stderr = stderr;
            let mut text = Vec::new();
            drop((&mut stderr).take(SAID_BYTES).read_to_end(&mut text).await);
            // More of it is thrown away, so that ssh never waits for a reader.
            drop(tokio::io::copy(&mut stderr, &mut tokio::io::sink()).await);
            String::from_utf8_lossy(&text).into_owned()
        });
        let mut lines = BufReader::new(stdout.take(SAID_BYTES)).lines();
        match timeout(CONNECT_TIMEOUT, lines.next_line()).await {
            Ok(Ok(Some(line))) if line.trim() == CONNECTED => Ok(child),
            Ok(_) => {
                drop(child.wait().await);
                let said = said.await.unwrap_or_default();
                Err(last_line(&said).unwrap_or("ssh ended without a word").to_owned())
            }
            Err(_) => Err(format!("ssh did not connect within {CONNECT_TIMEOUT:?}")),
        }
    }

    fn options(&self) -> Vec<String> {
        let machine = &self.machine;
        let check = if machine.strict { "yes" } else { "accept-new" };
        let mut options = vec![
            "ControlMaster=yes".to_owned(),
            "ControlPersist=no".to_owned(),
            "BatchMode=yes".to_owned(),
            "ConnectTimeout=10".to_owned(),
            "ServerAliveInterval=5".to_owned(),
            "ServerAliveCountMax=3".to_owned(),
            format!("StrictHostKeyChecking={check}"),
            "ForwardAgent=no".to_owned(),
            "PermitLocalCommand=yes".to_owned(),
            format!("LocalCommand=echo {CONNECTED}"),
        ];
        options.extend(machine.port.map(|port| format!("Port={port}")));
        options.extend(machine.user.as_ref().map(|user| format!("User={user}")));
        options.extend(machine.proxy_jump.as_ref().map(|jump| format!("ProxyJump={jump}")));
        if machine.key_file.is_some() {
            options.push("IdentitiesOnly=yes".to_owned());
        }
        options.extend(machine.options.iter().cloned());
        options
    }

    fn over(&self) -> Command {
        let mut command = Command::new("ssh");
        command.arg("-S").arg(&self.socket);
        command.args(["-o", "ControlMaster=no", "-o", "ProxyCommand=false", "-o", "BatchMode=yes"]);
        command.process_group(0).kill_on_drop(true);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// A command that runs `script` in a Bourne shell of the machine, whatever the login shell is.
    pub(super) fn script(&self, script: &str) -> Command {
        let mut command = self.over();
        command.args(["-T", "--"]).arg(&self.machine.host);
        command.arg(format!("exec /bin/sh -c {}", quoted(script)));
        command
    }

    /// Runs a short script and returns what it prints.
    pub(super) async fn run(&self, script: &str) -> Result<String, String> {
        finished(timeout(COMMAND_TIMEOUT, self.script(script).output()).await)
    }

    /// Runs a script with a file as its input.
    pub(super) async fn send(&self, script: &str, file: &Path) -> Result<String, String> {
        let input = std::fs::File::open(file);
        let input = input.map_err(|error| format!("cannot read {}: {error}", file.display()))?;
        finished(
            timeout(COPY_TIMEOUT, self.script(script).stdin(Stdio::from(input)).output()).await,
        )
    }

    /// Forwards a new Unix socket `there`, on the machine, to the socket `here`, on this one.
    pub(super) async fn forward(&self, there: &str, here: &Path) -> Result<(), String> {
        let mut command = self.over();
        let ends = format!("{}:{}", in_forward(there), in_forward(&here.to_string_lossy()));
        command.args(["-O", "forward", "-R", &ends, "--"]);
        command.arg(&self.machine.host);
        finished(timeout(COMMAND_TIMEOUT, command.output()).await).map(|_| ())
    }
}

/// A path as ssh reads it in a forward: a colon ends a field, a percent sign begins a token.
fn in_forward(path: &str) -> String {
    path.replace('\\', r"\\").replace(':', r"\:").replace('%', "%%")
}

fn finished(
    output: Result<std::io::Result<Output>, tokio::time::error::Elapsed>,
) -> Result<String, String> {
    let output = output.map_err(|_| "the machine did not answer in time".to_owned())?;
    let output = output.map_err(|error| format!("cannot run ssh: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(last_line(&said).map_or_else(|| output.status.to_string(), str::to_owned))
}

/// The last line that is not empty: ssh puts its reason there.
fn last_line(text: &str) -> Option<&str> {
    text.lines().map(str::trim).rfind(|line| !line.is_empty())
}

/// One word of a Bourne shell.
pub(super) fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_reason_is_the_last_line() {
        let said = "Warning: banner\nme@gpu1: Permission denied (publickey).\r\n\n";
        assert_eq!(last_line(said), Some("me@gpu1: Permission denied (publickey)."));
        assert_eq!(last_line("\n"), None);
    }

    #[test]
    fn a_path_in_a_forward_keeps_its_colons() {
        assert_eq!(in_forward(r"/data/a:b/100%\x"), r"/data/a\:b/100%%\\x");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn a_shell_reads_back_what_was_quoted(text in "[^\0]*") {
            let line = format!("printf %s {}", quoted(&text));
            let output = std::process::Command::new("/bin/sh").args(["-c", &line]).output().unwrap();
            prop_assert_eq!(output.stdout, text.into_bytes());
        }
    }
}
