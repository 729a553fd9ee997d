//! Runs the system's `ssh`: one control connection for each machine, with commands and forwards over it.
//!
//! Host keys are always checked. `ProxyCommand=false` prevents a command from opening its own connection after the
//! control connection is gone.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Output, Stdio};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

use super::{askpass, host_keys, shell, ssh_errors};
use crate::config::MachineSpec;
use crate::util::files::write_file;

/// The time limit for opening a connection, including name resolution and all jumps.
const CONNECT_TIMEOUT: Duration = Duration::from_mins(1);
/// The time limit for a short command or a forward.
pub(super) const COMMAND_TIMEOUT: Duration = Duration::from_secs(30);
/// The time limit for sending a file, or for deleting many.
const COPY_TIMEOUT: Duration = Duration::from_mins(10);
/// The longest message of ssh that is kept, in bytes.
const MAX_MESSAGE_BYTES: u64 = 16 << 10;

/// Overrides settings of the user's SSH configuration that suit a login at a terminal. With a command such as
/// `tmux attach`, `ssh` refuses all other commands. Other settings take away a command or its input. The log level keeps
/// the messages that explain a failure, and no others.
///
/// Earlier versions of `ssh` ignore the settings that they do not know. This hides no fault of the configuration, which
/// has passed [`Ssh::check_configuration`].
const OVERRIDES: [&str; 6] = [
    "IgnoreUnknown=*",
    "RemoteCommand=none",
    "SessionType=default",
    "StdinNull=no",
    "ForkAfterAuthentication=no",
    "LogLevel=ERROR",
];

/// The command that holds a control connection. It ends when its standard input closes, which also happens when the
/// manager is killed. Its empty line ends what the login shell printed.
const HOLD_COMMAND: &str = "echo; echo connected; exec cat >/dev/null";
/// The end of the output of [`HOLD_COMMAND`]. A `LocalCommand` cannot replace it, because it runs in the shell of this
/// user, which may be `nologin`.
const CONNECTED_OUTPUT: &[u8] = b"\nconnected\n";

/// A control connection. Dropping the value ends the connection.
#[derive(Debug)]
pub(super) struct ControlConnection {
    ssh: Child,
    /// The standard input of [`HOLD_COMMAND`].
    _input: ChildStdin,
}

impl ControlConnection {
    /// Waits for the end of the connection.
    pub(super) async fn wait_for_end(&mut self) -> io::Result<ExitStatus> {
        self.ssh.wait().await
    }
}

/// The connection data of a machine.
#[derive(Debug, Clone)]
pub(super) struct Ssh {
    machine: MachineSpec,
    socket: PathBuf,
}

impl Ssh {
    /// Returns the connection data of a machine, without connecting.
    pub(super) fn new(machine: &MachineSpec, sockets: &Path, number: usize) -> Self {
        Self { machine: machine.clone(), socket: sockets.join(number.to_string()) }
    }

    /// Checks that the user's SSH configuration requires checks of host keys, for the machine and for all jump hosts.
    /// Returns the machine's configuration, which `ssh -G` prints.
    pub(super) async fn check_configuration(&self) -> Result<String, String> {
        let mut command = Command::new("ssh");
        command.arg("-G");
        // The manager's own `knownHosts` option would hide the user's configuration.
        for option in self.machine_options() {
            command.arg("-o").arg(option);
        }
        command.arg("--").arg(&self.machine.host);
        let configuration = read_configuration(command).await?;
        if let Some(fault) = host_keys::fault(&self.machine.host, &configuration) {
            return Err(fault);
        }
        for (host, port) in host_keys::jump_hosts(&configuration) {
            let mut command = Command::new("ssh");
            command.arg("-G");
            command.args(port.map(|port| format!("-p{port}")));
            command.arg("--").arg(&host);
            if let Some(fault) = host_keys::fault(&host, &read_configuration(command).await?) {
                return Err(fault);
            }
        }
        Ok(configuration)
    }

    /// Opens the control connection.
    pub(super) async fn connect(&self) -> Result<ControlConnection, String> {
        let configuration = self.check_configuration().await?;
        // A manager that was killed leaves the socket behind.
        drop(std::fs::remove_file(&self.socket));
        // The process has its own session, because Ctrl-C at the terminal must only reach the manager, and because
        // `ssh` before OpenSSH 8.4 asks its questions at any terminal.
        let mut command = Command::new("setsid");
        command.args(["ssh", "-M", "-T", "-x", "-S"]).arg(&self.socket);
        for option in self.options() {
            command.arg("-o").arg(option);
        }
        if let Some(file) = &self.machine.key_file {
            command.arg("-i").arg(file);
        }
        self.set_askpass(&mut command, &configuration)?;
        command.arg("--").arg(&self.machine.host).arg(HOLD_COMMAND);
        command.kill_on_drop(true);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let ssh = command.spawn().map_err(|error| {
            format!("cannot run setsid: {error}; install util-linux on this machine")
        })?;
        timeout(CONNECT_TIMEOUT, self.wait_until_connected(ssh)).await.unwrap_or_else(|_| {
            Err(format!("ssh did not connect within {CONNECT_TIMEOUT:?}, or the login there hangs"))
        })
    }

    /// Waits until the machine runs [`HOLD_COMMAND`].
    async fn wait_until_connected(&self, mut ssh: Child) -> Result<ControlConnection, String> {
        let pipes = (ssh.stdin.take(), ssh.stdout.take(), ssh.stderr.take());
        let (Some(input), Some(mut stdout), Some(mut stderr)) = pipes else {
            return Err("ssh has no pipes".to_owned());
        };
        let stderr = tokio::spawn(async move {
            let mut text = Vec::new();
            drop((&mut stderr).take(MAX_MESSAGE_BYTES).read_to_end(&mut text).await);
            // The rest is discarded, so that ssh never waits for a reader.
            drop(tokio::io::copy(&mut stderr, &mut tokio::io::sink()).await);
            String::from_utf8_lossy(&text).into_owned()
        });
        let Err(printed) = read_until_connected(&mut stdout).await else {
            // Further output is read and discarded, because ssh ends when it cannot write.
            tokio::spawn(async move {
                drop(tokio::io::copy(&mut stdout, &mut tokio::io::sink()).await);
            });
            return Ok(ControlConnection { ssh, _input: input });
        };
        drop((input, stdout));
        drop(ssh.wait().await);
        let stderr = stderr.await.unwrap_or_default();
        // `nologin` and forced commands print their reason to standard output.
        Err(ssh_errors::explain_login(&stderr, self.machine.password_file.is_some())
            .or_else(|| ssh_errors::explain(&printed))
            .unwrap_or_else(|| "ssh ended without a message".to_owned()))
    }

    /// Sets the program that answers ssh's questions. Without files with secrets, no question is answered.
    fn set_askpass(&self, command: &mut Command, configuration: &str) -> Result<(), String> {
        // `force`: the program is used even if there is a terminal, or no display. The variables also apply to a further
        // ssh, to a jump host or in a `ProxyCommand`.
        command.env("SSH_ASKPASS_REQUIRE", "force");
        // OpenSSH before 8.4 does not know `force`, and uses the program only if there is a display.
        if std::env::var_os("DISPLAY").is_none() {
            command.env("DISPLAY", ":");
        }
        let Some(script) = askpass::script(&self.machine, configuration) else {
            command.env("SSH_ASKPASS", "false").args(["-o", "BatchMode=yes"]);
            return Ok(());
        };
        let path = self.socket.with_extension("askpass");
        let written = write_file(&path, 0o700, &script);
        written.map_err(|error| format!("cannot write {}: {error}", path.display()))?;
        command.env("SSH_ASKPASS", path);
        command.args(["-o", "BatchMode=no", "-o", "NumberOfPasswordPrompts=1"]);
        Ok(())
    }

    fn options(&self) -> Vec<String> {
        let check = if self.machine.strict { "yes" } else { "accept-new" };
        let mut options = OVERRIDES.map(str::to_owned).to_vec();
        options.extend([
            "ControlMaster=yes".to_owned(),
            "ControlPersist=no".to_owned(),
            format!("StrictHostKeyChecking={check}"),
            "ForwardAgent=no".to_owned(),
            "PermitLocalCommand=no".to_owned(),
            // The user's own forwards may be in use by another `ssh`.
            "ExitOnForwardFailure=no".to_owned(),
        ]);
        options.extend(self.machine_options());
        // The first value of an option counts, so the user's own values override these.
        let defaults = ["ConnectTimeout=10", "ServerAliveInterval=5", "ServerAliveCountMax=3"];
        options.extend(defaults.map(str::to_owned));
        options
    }

    /// Returns the options of the experiment file.
    fn machine_options(&self) -> Vec<String> {
        let machine = &self.machine;
        let mut options = Vec::new();
        options.extend(machine.port.map(|port| format!("Port={port}")));
        options.extend(machine.user.as_ref().map(|user| format!("User={user}")));
        options.extend(machine.proxy_jump.as_ref().map(|jump| format!("ProxyJump={jump}")));
        if machine.key_file.is_some() {
            options.push("IdentitiesOnly=yes".to_owned());
        }
        options.extend(machine.options.iter().cloned());
        options
    }

    fn command_over_connection(&self) -> Command {
        let mut command = Command::new("ssh");
        command.arg("-S").arg(&self.socket);
        let options = ["ControlMaster=no", "ProxyCommand=false", "BatchMode=yes"];
        command.args(OVERRIDES.iter().chain(&options).flat_map(|option| ["-o", *option]));
        command.process_group(0).kill_on_drop(true);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Returns a command that runs `script` in a Bourne shell of the machine, regardless of the login shell.
    pub(super) fn script_command(&self, script: &str) -> Command {
        let mut command = self.command_over_connection();
        command.args(["-T", "--"]).arg(&self.machine.host);
        command.arg(shell::bourne_command(script));
        command
    }

    /// Runs a short script and returns its output.
    pub(super) async fn run(&self, script: &str) -> Result<String, String> {
        command_output(timeout(COMMAND_TIMEOUT, self.script_command(script).output()).await)
    }

    /// Runs a script that may take minutes and returns its output.
    pub(super) async fn run_slowly(&self, script: &str) -> Result<String, String> {
        command_output(timeout(COPY_TIMEOUT, self.script_command(script).output()).await)
    }

    /// Runs a script with a file as its input.
    pub(super) async fn run_with_input(&self, script: &str, file: &Path) -> Result<String, String> {
        let input = std::fs::File::open(file);
        let input = input.map_err(|error| format!("cannot read {}: {error}", file.display()))?;
        command_output(
            timeout(COPY_TIMEOUT, self.script_command(script).stdin(Stdio::from(input)).output())
                .await,
        )
    }

    /// Forwards a new Unix socket `there` on the machine to the socket `here` on this machine.
    pub(super) async fn forward(&self, there: &str, here: &Path) -> Result<(), String> {
        let mut command = self.command_over_connection();
        let ends = format!(
            "{}:{}",
            escape_for_forward(there),
            escape_for_forward(&here.to_string_lossy())
        );
        // Without a configuration, which may contain further forwards, or clear all.
        command.args(["-F", "/dev/null", "-O", "forward", "-R", &ends, "--"]);
        command.arg(&self.machine.host);
        command_output(timeout(COMMAND_TIMEOUT, command.output()).await).map(|_| ())
    }
}

/// Reads until [`CONNECTED_OUTPUT`]. The error contains what was printed without it.
async fn read_until_connected(stdout: &mut ChildStdout) -> Result<(), String> {
    let mut reader = BufReader::new(stdout.take(MAX_MESSAGE_BYTES));
    let mut text = Vec::new();
    while let Ok(1..) = reader.read_until(b'\n', &mut text).await {
        if text.ends_with(CONNECTED_OUTPUT) {
            return Ok(());
        }
    }
    Err(String::from_utf8_lossy(&text).into_owned())
}

/// Returns the output of `ssh -G`.
async fn read_configuration(mut command: Command) -> Result<String, String> {
    command.stdin(Stdio::null()).process_group(0).kill_on_drop(true);
    command_output(timeout(COMMAND_TIMEOUT, command.output()).await)
}

/// Escapes a path for a forward: a colon ends a field, and a percent sign begins a token.
fn escape_for_forward(path: &str) -> String {
    path.replace('\\', r"\\").replace(':', r"\:").replace('%', "%%")
}

fn command_output(
    output: Result<std::io::Result<Output>, tokio::time::error::Elapsed>,
) -> Result<String, String> {
    let output = output.map_err(|_| "the machine did not answer in time".to_owned())?;
    let output = output.map_err(|error| format!("cannot run ssh: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    Err(ssh_errors::explain(&stderr).unwrap_or_else(|| output.status.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_in_a_forward_keeps_its_colons() {
        assert_eq!(escape_for_forward(r"/data/a:b/100%\x"), r"/data/a\:b/100%%\\x");
    }
}
