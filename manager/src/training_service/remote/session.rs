//! Opens a session on a machine: connection, agent and code, helper, fences, and the connection back to the manager.
//! The open session exchanges messages until it ends.

use std::collections::VecDeque;
use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{
    AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWriteExt as _, BufReader,
};
use tokio::process::{Child, ChildStdin, ChildStdout};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tracing::warn;

use super::manager_tunnel::{self, AUTHORITY_FILE, DirectAddress};
use super::records::Fence;
use super::shell::{
    LINE_MARK, SESSION_TOOLS, experiment_folder_script, folders, missing_tools_fault,
    missing_tools_script,
};
use super::ssh::{ControlConnection, Ssh};
use super::{code_cache, examine, logind};
use crate::config::MachineSpec;
use crate::training_service::local::gpus::Gpu;
use crate::util::clock::{Clock as _, SystemClock};
use crate::util::shell::quote;

/// The time limit for the helper's answers to the first requests.
const ANSWER_TIMEOUT: Duration = Duration::from_mins(1);
/// The longest message, in bytes with its newline.
pub(super) const MAX_MESSAGE_BYTES: u64 = 1 << 20;
/// The number of attempts that one request fences, which keeps the message short.
const MAX_FENCES_PER_REQUEST: usize = 500;
/// The number of lines of a helper's standard error that are kept, and their greatest length in bytes.
const MAX_ERROR_LINES: usize = 3;
const MAX_ERROR_LINE_BYTES: u64 = 500;
/// The number of messages that are read ahead.
const MAX_READ_AHEAD: usize = 64;
/// The id of a request for the room, which concerns no job. The ids of other requests count from 1.
pub(super) const ROOM_REQUEST_ID: u64 = 0;

/// The files and names for a machine.
#[derive(Debug)]
pub(super) struct SessionFiles<'a> {
    /// The experiment's id, as the name of a folder.
    pub(super) experiment: &'a str,
    /// The agent program.
    pub(super) agent: &'a Path,
    /// The SHA-256 of the agent in hexadecimal digits.
    pub(super) agent_sha256: &'a str,
    /// The archive of the trials' code.
    pub(super) code: &'a Path,
    /// The SHA-256 of the archive in hexadecimal digits.
    pub(super) code_sha256: &'a str,
    /// The socket of the manager on this machine.
    pub(super) socket: &'a Path,
    /// The address of the manager for other machines, if it has one.
    pub(super) direct: Option<&'a DirectAddress>,
    /// The attempts that must not run on the machine.
    pub(super) fences: &'a [Fence],
}

/// The facts that a machine reports when it is connected.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct MachineFacts {
    /// The GPUs. `None`: they were not requested.
    pub(super) gpus: Option<Vec<Gpu>>,
    /// The number of processors. `None`: unknown.
    pub(super) cores: Option<usize>,
    /// The percentage of memory that is available to programs. `None`: unknown.
    pub(super) available_memory_percent: Option<u64>,
}

impl MachineFacts {
    /// Reads the answer to `room`.
    pub(super) fn read(answer: &Value) -> Self {
        let gpu = |gpu: &Value| {
            let uuid = gpu["uuid"].as_str()?.to_owned();
            Some(Gpu { index: gpu["index"].as_u64()?, uuid, busy: gpu["busy"].as_bool()? })
        };
        let gpus = answer["gpus"].as_array();
        Self {
            gpus: gpus.map(|gpus| gpus.iter().filter_map(gpu).collect()),
            cores: answer["cores"].as_u64().and_then(|cores| usize::try_from(cores).ok()),
            available_memory_percent: answer["meminfo"].as_str().and_then(available_percent),
        }
    }
}

/// PURE: reads the percentage of available memory from the text of `/proc/meminfo`, whose amounts are in KiB.
fn available_percent(meminfo: &str) -> Option<u64> {
    let number = |name: &str| {
        let mut lines = meminfo.lines().map(str::split_whitespace);
        lines.find_map(|mut words| if words.next() == Some(name) { words.next() } else { None })
    };
    let (total, available) = (number("MemTotal:")?, number("MemAvailable:")?);
    available.parse::<u64>().ok()?.checked_mul(100)?.checked_div(total.parse().ok()?)
}

/// An open session. Dropping it ends its processes on this machine, and the helper on the other.
#[derive(Debug)]
pub(super) struct Session {
    /// The control connection.
    pub(super) control: ControlConnection,
    /// The lines of the helper.
    pub(super) lines: mpsc::Receiver<String>,
    /// The facts that scheduling needs.
    pub(super) facts: MachineFacts,
    /// The last lines of the helper's standard error.
    pub(super) errors: LastLines,
    stdin: ChildStdin,
    _helper: Child,
}

impl Session {
    /// Connects to a machine and makes it ready for trials.
    pub(super) async fn open(
        ssh: &Ssh,
        machine: &MachineSpec,
        session_files: &SessionFiles<'_>,
    ) -> Result<Self, String> {
        let control = ssh.connect().await?;
        let (agent, root) = copy_agent_and_code(ssh, machine, session_files).await?;
        let mut session = Self::start_helper(ssh, machine, control, &agent, &root)?;
        let begun = session.prepare_machine(ssh, &agent, &root, session_files).await;
        begun.map_err(|why| session.errors.append_to(why))?;
        Ok(session)
    }

    fn start_helper(
        ssh: &Ssh,
        machine: &MachineSpec,
        control: ControlConnection,
        agent: &str,
        root: &str,
    ) -> Result<Self, String> {
        let path = machine.python_path.as_ref();
        let path = path.map(|path| format!("PATH={}:$PATH; export PATH; ", quote(path)));
        let (path, launcher) = (path.unwrap_or_default(), logind::launcher_script());
        let line = format!("{launcher}{path}exec \"$@\" {} machine {}", quote(agent), quote(root));
        let mut helper = ssh.script_command(&line);
        helper.stdin(Stdio::piped());
        let mut helper = helper.spawn().map_err(|error| format!("cannot run ssh: {error}"))?;
        let pipes = (helper.stdin.take(), helper.stdout.take(), helper.stderr.take());
        let (Some(stdin), Some(stdout), Some(stderr)) = pipes else {
            return Err("ssh has no pipes".to_owned());
        };
        let (sender, lines) = mpsc::channel(MAX_READ_AHEAD);
        tokio::spawn(read_messages(stdout, sender));
        let errors = LastLines::default();
        tokio::spawn(errors.clone().read_from(stderr));
        Ok(Self { control, lines, facts: MachineFacts::default(), errors, stdin, _helper: helper })
    }

    /// Prepares the machine. The fences are sent before any other request.
    async fn prepare_machine(
        &mut self,
        ssh: &Ssh,
        agent: &str,
        root: &str,
        session_files: &SessionFiles<'_>,
    ) -> Result<(), String> {
        let hello = self.ask(0, "initialize", &json!({"protocol": {"min": 1, "max": 1}})).await?;
        if hello["protocol"] != 1 {
            return Err("the agent there uses another version of the protocol".to_owned());
        }
        let key = |fence: &Fence| {
            let Fence { trial, attempt, .. } = fence;
            json!({"experiment": session_files.experiment, "trial": trial, "attempt": attempt})
        };
        for fences in session_files.fences.chunks(MAX_FENCES_PER_REQUEST) {
            let keys: Vec<Value> = fences.iter().map(key).collect();
            self.ask(0, "fence", &json!({"attempts": keys})).await?;
        }
        if let Some(pem) = session_files.direct.and_then(|direct| direct.authority.as_ref()) {
            let files = [json!({"name": AUTHORITY_FILE, "text": pem})];
            self.ask(0, "open", &json!({"files": files})).await?;
        }
        let url =
            manager_tunnel::open(ssh, agent, root, session_files.socket, session_files.direct)
                .await?;
        let files = [json!({"name": "manager.url", "text": format!("{url}\n")})];
        self.ask(0, "open", &json!({"files": files})).await?;
        self.facts =
            MachineFacts::read(&self.ask(ROOM_REQUEST_ID, "room", &json!({"gpus": true})).await?);
        Ok(())
    }

    /// Sends a request and waits for its answer. Only used for the first requests, during which the helper sends no
    /// other messages.
    async fn ask(&mut self, id: u64, method: &str, params: &Value) -> Result<Value, String> {
        self.send(&request_line(id, method, params)).await?;
        let answer = async {
            while let Some(line) = self.lines.recv().await {
                // A login shell's banner is skipped.
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
        let lost = |error| format!("the helper has ended: {error}");
        self.stdin.write_all(line.as_bytes()).await.map_err(lost)?;
        self.stdin.flush().await.map_err(lost)
    }
}

/// Reads a helper's messages until it ends.
async fn read_messages(stdout: ChildStdout, sender: mpsc::Sender<String>) {
    let mut reader = BufReader::new(stdout);
    loop {
        let mut line = Vec::new();
        let read = (&mut reader).take(MAX_MESSAGE_BYTES).read_until(b'\n', &mut line).await;
        // A longer or incomplete line ends the session, because the helper sends no such message.
        if read.is_err() || !line.ends_with(b"\n") {
            return;
        }
        if sender.send(String::from_utf8_lossy(&line).into_owned()).await.is_err() {
            return;
        }
    }
}

/// The last lines of a process's standard error.
#[derive(Debug, Clone, Default)]
pub(super) struct LastLines(Arc<Mutex<VecDeque<String>>>);

impl LastLines {
    async fn read_from(self, stderr: impl AsyncRead + Unpin) {
        let mut reader = BufReader::new(stderr);
        loop {
            let mut line = Vec::new();
            // A longer line is read in pieces.
            match (&mut reader).take(MAX_ERROR_LINE_BYTES).read_until(b'\n', &mut line).await {
                Ok(0) | Err(_) => return,
                Ok(_) => self.add_line(&String::from_utf8_lossy(&line)),
            }
        }
    }

    fn add_line(&self, line: &str) {
        let line = line.trim();
        if line.is_empty() {
            return;
        }
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() == MAX_ERROR_LINES {
            lines.pop_front();
        }
        lines.push_back(line.to_owned());
    }

    /// Appends the last lines to the reason for an end.
    pub(super) fn append_to(&self, why: String) -> String {
        let lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.is_empty() {
            return why;
        }
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        format!("{why}; it printed: {}", lines.join(" / "))
    }
}

/// Returns a request as a line.
pub(super) fn request_line(id: u64, method: &str, params: &Value) -> String {
    format!("{}\n", json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}))
}

/// Warns of properties of a machine that do not prevent trials but may explain later problems.
fn warn_of_limitations(machine: &str, answers: &[&str]) {
    let answer = |word: &str| answers.iter().find_map(|answer| answer.strip_prefix(word));
    let time = answer("time ").and_then(|time| time.parse().ok());
    let clock = examine::judge_clock(time, SystemClock.now_ms() / 1000).err();
    let files = answer("files ").and_then(examine::file_system_fault);
    for oddity in clock.into_iter().chain(files) {
        warn!(%machine, "{machine}: {oddity}");
    }
}

/// Copies the agent and the code unless the machine has them. Returns the agent's path and the experiment's folder.
async fn copy_agent_and_code(
    ssh: &Ssh,
    machine: &MachineSpec,
    session_files: &SessionFiles<'_>,
) -> Result<(String, String), String> {
    let (cache, all) = folders(machine);
    let (sha256, place) =
        (session_files.agent_sha256, experiment_folder_script(session_files.experiment));
    let code = code_cache::find_script(session_files.code_sha256);
    let look = missing_tools_script(&SESSION_TOOLS);
    let output = ssh
        .run(&format!(
            r#"{look}
cache={cache}; root={all}; {place}
echo "{LINE_MARK}$(uname -sm)"; echo "{LINE_MARK}$cache/{sha256}"; echo "{LINE_MARK}$root/$at"; echo "{LINE_MARK}time $(date +%s)"; echo "{LINE_MARK}files $files"
if [ -x "$cache/{sha256}" ] && [ "$(sha256sum < "$cache/{sha256}")" = "{sha256}  -" ]; then echo {LINE_MARK}agent; fi
{code}"#
        ))
        .await?;
    let output: Vec<&str> =
        output.lines().filter_map(|line| line.strip_prefix(LINE_MARK)).collect();
    let lacks: Vec<_> = output.iter().filter_map(|line| line.strip_prefix("lacks ")).collect();
    if let Some(fault) = missing_tools_fault(&lacks) {
        return Err(fault);
    }
    let mut output = output.into_iter();
    let (Some(system), Some(agent), Some(root)) = (output.next(), output.next(), output.next())
    else {
        return Err("the machine's shell did not run the setup script".to_owned());
    };
    let ours = format!("Linux {}", std::env::consts::ARCH);
    if system != ours {
        return Err(format!("the machine's system is {system}, but the agent is for {ours}"));
    }
    let rest: Vec<&str> = output.collect();
    warn_of_limitations(&machine.name, &rest);
    let file = quote(agent);
    if !rest.contains(&"agent") {
        let script = format!(
            r#"set -e; umask 077; mkdir -p "$(dirname {file})"; new={file}.$$; trap 'rm -f "$new"' EXIT; cat > "$new"
[ "$(sha256sum < "$new")" = "{sha256}  -" ] || {{ echo "the agent arrived damaged" >&2; exit 1; }}
chmod 700 "$new"; mv "$new" {file}
[ -x {file} ] || {{ echo "$(dirname {file}) permits no programs (noexec); set \`remoteDirectory\` to a folder on another disk" >&2; exit 1; }}"#
        );
        ssh.run_with_input(&script, session_files.agent).await?;
    }
    if !rest.contains(&"code") {
        let receive = code_cache::receive_script(root, session_files.code_sha256);
        ssh.run_with_input(&format!("root={all}; {receive}"), session_files.code).await?;
    }
    Ok((agent.to_owned(), root.to_owned()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn facts_are_read_from_the_helpers_answer() {
        let meminfo =
            "MemTotal:        4000 kB\nMemFree:          100 kB\nMemAvailable:     399 kB\n";
        let gpus = json!([{"index": 1, "uuid": "GPU-b", "busy": true}, {"index": -1}]);
        let facts = MachineFacts::read(&json!({"gpus": gpus, "cores": 8, "meminfo": meminfo}));
        let gpus = Some(vec![Gpu { index: 1, uuid: "GPU-b".to_owned(), busy: true }]);
        let expected = MachineFacts { gpus, cores: Some(8), available_memory_percent: Some(9) };
        assert_eq!(facts, expected);
        for none in [json!({"gpus": null, "cores": null, "meminfo": null}), Value::Null] {
            assert_eq!(MachineFacts::read(&none), MachineFacts::default());
        }
    }

    proptest! {
        #[test]
        fn random_tables_of_memory_never_panic(total in ".*", available in ".*") {
            let meminfo = format!("MemTotal: {total}\nMemAvailable: {available}\n");
            prop_assert_eq!(MachineFacts::read(&json!({"meminfo": meminfo})).cores, None);
        }
    }

    #[tokio::test]
    async fn the_last_lines_of_a_helper_explain_its_end() {
        let errors = LastLines::default();
        assert_eq!(errors.append_to("it ended".to_owned()), "it ended");
        let long = "x".repeat(2_000);
        let output = format!("one\n{long}\n\n two\r\nthree\nfour\n");
        errors.clone().read_from(output.as_bytes()).await;
        assert_eq!(
            errors.append_to("it ended".to_owned()),
            "it ended; it printed: two / three / four"
        );
    }
}
