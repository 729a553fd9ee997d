//! A plugin's process. The process receives requests, and sends answers and notifications, until it ends or the manager
//! gives it up.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde_json::Value;
use tokio::io::{AsyncBufRead, AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::wire::{MAX_MESSAGE_BYTES, Message, Refusal, read_message, request_line};

/// The number of notifications that are read ahead. Beyond it, the manager reads nothing from the plugin until they are
/// handled.
const MAX_NOTIFICATIONS: usize = 10_000;
/// The number of unreadable lines, and of unexpected answers, that the log reports. Further ones are only counted.
const MAX_QUOTED_LINES: u64 = 3;
/// The longest line that is skipped, in bytes. A plugin that continues without an end of line is given up.
const MAX_SKIPPED_BYTES: usize = 16 << 20;
/// The time that a process has to end after its standard input was closed, and again after SIGTERM.
const END_TIMEOUT: Duration = Duration::from_secs(5);
/// The length of the end of the plugin's standard error that a message quotes, in bytes.
const LAST_ERRORS_BYTES: u64 = 2_000;
/// The size of a plugin's log at which it is rotated, in bytes.
const MAX_LOG_BYTES: u64 = 10 << 20;
/// The number of concurrent requests until the plugin names its own limit.
const DEFAULT_IN_FLIGHT: usize = 8;
/// The length of a piece of a request that is sent in pieces, in characters.
const PIECE_CHARS: usize = 300;

/// The program to start.
#[derive(Debug)]
pub(super) struct Program {
    /// The program and its arguments.
    pub(super) command: Vec<String>,
    /// The working directory.
    pub(super) directory: PathBuf,
    /// The file for its standard error.
    pub(super) log: PathBuf,
    /// Variables of the manager's environment that the program does not inherit.
    pub(super) secret_variables: Vec<String>,
}

impl Program {
    /// Returns the command line, as a user would type it.
    pub(super) fn command_line(&self) -> String {
        self.command.join(" ")
    }

    /// Returns the last lines of its standard error, for a message.
    pub(super) fn last_errors(&self) -> String {
        let words = read_tail(&self.log).unwrap_or_default();
        let words: Vec<_> = words.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        let last = words.len().saturating_sub(3);
        if words.is_empty() { String::new() } else { format!(": {}", words[last..].join(" | ")) }
    }
}

fn read_tail(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let from = file.metadata()?.len().saturating_sub(LAST_ERRORS_BYTES);
    file.seek(SeekFrom::Start(from))?;
    let mut bytes = Vec::new();
    file.take(LAST_ERRORS_BYTES).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// A reason why a request has no result.
#[derive(Debug, Clone, thiserror::Error)]
pub(super) enum AskError {
    /// The process has ended, or was given up. The request may have had its effect.
    #[error("the plugin's process ended")]
    Lost,
    /// The plugin refused the request.
    #[error(transparent)]
    Refused(#[from] Refusal),
}

type Reply = oneshot::Sender<Result<Value, Refusal>>;

/// The connection to a running process.
#[derive(Debug)]
pub(super) struct Link {
    /// The command line, for messages.
    name: String,
    outgoing: mpsc::UnboundedSender<String>,
    pending: Mutex<PendingRequests>,
    in_flight: Semaphore,
    /// Cancelled when the process has ended or must end.
    lost: CancellationToken,
    lost_reason: Mutex<String>,
}

#[derive(Debug, Default)]
struct PendingRequests {
    last_id: u64,
    replies: HashMap<u64, Reply>,
}

/// A process that was started, and its messages.
#[derive(Debug)]
pub(super) struct StartedProcess {
    pub(super) link: Arc<Link>,
    pub(super) notifications: mpsc::Receiver<Message>,
    pub(super) child: Child,
}

impl Link {
    /// Starts the program.
    pub(super) fn start(program: &Program) -> Result<StartedProcess, String> {
        let failed =
            |error: io::Error| format!("`{}` cannot be started: {error}", program.command_line());
        let log = open_log(&program.log)
            .map_err(|error| format!("cannot write {}: {error}", program.log.display()))?;
        let (name, arguments) = program.command.split_first().expect("a command has a program");
        let mut command = Command::new(name);
        command.args(arguments).current_dir(&program.directory);
        for (name, _) in std::env::vars_os().filter(|(name, _)| is_trialkeeper_variable(name)) {
            command.env_remove(name);
        }
        for name in &program.secret_variables {
            command.env_remove(name);
        }
        command.env("TRIALKEEPER_PLUGIN", "1");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::from(log));
        // The process has its own group, because Ctrl-C at the terminal must only reach the manager.
        let mut child = command.process_group(0).kill_on_drop(true).spawn().map_err(failed)?;
        let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(failed(io::ErrorKind::BrokenPipe.into()));
        };
        let (outgoing, lines) = mpsc::unbounded_channel();
        let (messages, notifications) = mpsc::channel(MAX_NOTIFICATIONS);
        let link = Arc::new(Self {
            name: program.command_line(),
            outgoing,
            pending: Mutex::default(),
            in_flight: Semaphore::new(DEFAULT_IN_FLIGHT),
            lost: CancellationToken::new(),
            lost_reason: Mutex::default(),
        });
        tokio::spawn(write_lines(Arc::clone(&link), stdin, lines));
        tokio::spawn(read_messages(Arc::clone(&link), stdout, messages));
        Ok(StartedProcess { link, notifications, child })
    }

    /// Allows this number of concurrent requests, at least [`DEFAULT_IN_FLIGHT`].
    pub(super) fn allow_in_flight(&self, requests: usize) {
        self.in_flight.add_permits(requests.saturating_sub(DEFAULT_IN_FLIGHT));
    }

    /// Sends a request and waits for the answer. A process that has not answered within `bound` is given up.
    pub(super) async fn ask(
        &self,
        method: &'static str,
        params: &Value,
        bound: Duration,
    ) -> Result<Value, AskError> {
        self.ask_in_pieces(method, params, bound, Duration::ZERO).await
    }

    /// Sends a request like [`Self::ask`]. With a pause above zero, the request is sent in pieces with this pause
    /// between them. No other request may be sent meanwhile.
    pub(super) async fn ask_in_pieces(
        &self,
        method: &'static str,
        params: &Value,
        bound: Duration,
        pause: Duration,
    ) -> Result<Value, AskError> {
        let pending = async {
            let _permit = self.in_flight.acquire().await.map_err(|_| AskError::Lost)?;
            let (reply, answer) = oneshot::channel();
            let id = {
                let mut pending = self.pending();
                pending.last_id += 1;
                let id = pending.last_id;
                pending.replies.insert(id, reply);
                id
            };
            let line = request_line(id, method, params);
            if line.len() > MAX_MESSAGE_BYTES {
                self.pending().replies.remove(&id);
                let message =
                    format!("the request {method} is longer than {MAX_MESSAGE_BYTES} bytes");
                return Err(Refusal { message, remedy: super::wire::Remedy::None }.into());
            }
            let mut rest = line.as_str();
            while let Some(end) = rest.char_indices().nth(PIECE_CHARS).filter(|_| !pause.is_zero())
            {
                let (piece, after) = rest.split_at(end.0);
                self.outgoing.send(piece.to_owned()).map_err(|_| AskError::Lost)?;
                sleep(pause).await;
                rest = after;
            }
            self.outgoing.send(rest.to_owned()).map_err(|_| AskError::Lost)?;
            match timeout(bound, answer).await {
                Ok(Ok(answer)) => answer.map_err(AskError::Refused),
                Ok(Err(_)) => Err(AskError::Lost),
                Err(_) => {
                    self.give_up(format!("no answer to {method} within {} s", bound.as_secs()));
                    Err(AskError::Lost)
                }
            }
        };
        tokio::select! {
            biased;
            answer = pending => answer,
            () = self.lost.cancelled() => Err(AskError::Lost),
        }
    }

    /// Writes a line that expects no answer.
    pub(super) fn send_line(&self, line: &str) {
        // A process that has ended receives nothing.
        drop(self.outgoing.send(line.to_owned()));
    }

    /// Waits until the process has ended or was given up.
    pub(super) async fn wait_until_lost(&self) {
        self.lost.cancelled().await;
    }

    /// Returns whether the process has ended or was given up.
    pub(super) fn is_lost(&self) -> bool {
        self.lost.is_cancelled()
    }

    /// Returns the reason why the process was given up. The text is empty if it was not.
    pub(super) fn lost_reason(&self) -> String {
        self.lost_reason.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn give_up(&self, why: String) {
        let mut known = self.lost_reason.lock().unwrap_or_else(PoisonError::into_inner);
        if known.is_empty() {
            *known = why;
        }
        self.lost.cancel();
    }

    fn pending(&self) -> MutexGuard<'_, PendingRequests> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_trialkeeper_variable(name: &OsStr) -> bool {
    name.as_encoded_bytes().starts_with(b"TRIALKEEPER_")
}

/// Opens the file for a plugin's standard error, after rotating a long one.
fn open_log(path: &Path) -> io::Result<File> {
    if path.metadata().is_ok_and(|log| log.len() > MAX_LOG_BYTES) {
        std::fs::rename(path, path.with_extension("1"))?;
    }
    OpenOptions::new().append(true).create(true).mode(0o600).open(path)
}

async fn write_lines(
    link: Arc<Link>,
    mut stdin: ChildStdin,
    mut lines: mpsc::UnboundedReceiver<String>,
) {
    let written = async {
        while let Some(line) = lines.recv().await {
            if stdin.write_all(line.as_bytes()).await.is_err() || stdin.flush().await.is_err() {
                break;
            }
        }
    };
    // Standard input is closed here, which makes a plugin end.
    link.lost.run_until_cancelled(written).await;
    link.lost.cancel();
}

async fn read_messages(link: Arc<Link>, stdout: ChildStdout, messages: mpsc::Sender<Message>) {
    let mut reader = BufReader::with_capacity(64 << 10, stdout);
    let (mut bytes, mut unreadable, mut unexpected) = (Vec::new(), 0_u64, 0_u64);
    let name = &link.name;
    loop {
        let whole = match read_line(&mut reader, &mut bytes).await {
            Ok(Some(whole)) => whole,
            Ok(None) => break,
            Err(error) => {
                link.give_up(error.to_string());
                break;
            }
        };
        let message = if whole {
            read_message(&bytes).map_err(|error| error.to_string())
        } else {
            Err(format!("is longer than {MAX_MESSAGE_BYTES} bytes"))
        };
        match message {
            Ok(Message::Answer { id, result }) => {
                let reply = link.pending().replies.remove(&id);
                match reply {
                    // The caller may no longer wait.
                    Some(reply) => drop(reply.send(result)),
                    None => {
                        unexpected += 1;
                        if unexpected <= MAX_QUOTED_LINES {
                            warn!(
                                "the plugin `{name}` answered request {id}, which is not pending; a plugin must answer \
                                 each request once, with the id of the request"
                            );
                        }
                    }
                }
            }
            Ok(message) => {
                if messages.send(message).await.is_err() {
                    break;
                }
            }
            Err(why) => {
                unreadable += 1;
                if unreadable <= MAX_QUOTED_LINES {
                    let start: String = String::from_utf8_lossy(&bytes).chars().take(80).collect();
                    warn!("a line of the plugin `{name}` {why}: {start:?}");
                }
            }
        }
    }
    if unreadable > MAX_QUOTED_LINES {
        warn!("{unreadable} lines of the plugin `{name}` were not messages");
    }
    if unexpected > MAX_QUOTED_LINES {
        warn!("{unexpected} answers of the plugin `{name}` had no request");
    }
    link.lost.cancel();
    // Dropping the senders wakes the waiting callers.
    link.pending().replies.clear();
}

/// Reads a line without its end. `false`: the line was too long and was skipped. `None`: there are no more lines.
async fn read_line(
    reader: &mut (impl AsyncBufRead + Unpin),
    line: &mut Vec<u8>,
) -> io::Result<Option<bool>> {
    line.clear();
    let mut skipped = 0;
    loop {
        let bytes = reader.fill_buf().await?;
        if bytes.is_empty() {
            return Ok(None);
        }
        let end = bytes.iter().position(|byte| *byte == b'\n');
        let piece = end.unwrap_or(bytes.len());
        if skipped == 0 && line.len() + piece < MAX_MESSAGE_BYTES {
            line.extend_from_slice(&bytes[..piece]);
        } else {
            skipped += piece;
        }
        let taken = end.map_or(bytes.len(), |end| end + 1);
        reader.consume(taken);
        if end.is_some() {
            return Ok(Some(skipped == 0));
        }
        if skipped > MAX_SKIPPED_BYTES {
            return Err(io::Error::other(format!(
                "{MAX_SKIPPED_BYTES} bytes without an end of line"
            )));
        }
    }
}

/// Ends a process: closes its standard input, then sends SIGTERM to its group, then SIGKILL. Returns a description of
/// its end.
pub(super) async fn end_process(link: &Link, child: &mut Child) -> String {
    link.lost.cancel();
    let mut status = timeout(END_TIMEOUT, child.wait()).await;
    for signal in [Signal::SIGTERM, Signal::SIGKILL] {
        if status.is_ok() {
            break;
        }
        if let Some(pid) = child.id().and_then(|pid| i32::try_from(pid).ok()) {
            // A failure means that the process has just ended.
            killpg(Pid::from_raw(pid), signal).ok();
        }
        status = timeout(END_TIMEOUT, child.wait()).await;
    }
    match status {
        Ok(Ok(status)) => status.to_string(),
        Ok(Err(error)) => error.to_string(),
        Err(_) => "it does not end".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_process_that_does_not_answer_is_given_up_and_ended() {
        let folder = tempfile::tempdir().unwrap();
        let program = Program {
            command: ["sh", "-c", "cat >/dev/null"].map(str::to_owned).into(),
            directory: folder.path().to_owned(),
            log: folder.path().join("log"),
            secret_variables: Vec::new(),
        };
        let StartedProcess { link, mut child, .. } = Link::start(&program).unwrap();
        let asked = link.ask("submit", &Value::Null, Duration::from_mins(1)).await;
        assert!(matches!(asked, Err(AskError::Lost)), "{asked:?}");
        assert_eq!(
            (link.is_lost(), link.lost_reason().as_str()),
            (true, "no answer to submit within 60 s")
        );
        tokio::time::resume();
        assert_eq!(end_process(&link, &mut child).await, "exit status: 0");
    }

    #[tokio::test]
    async fn long_lines_are_skipped() {
        let long = vec![b'x'; MAX_MESSAGE_BYTES];
        let text = [b"one\n".as_slice(), &long, b"\ntwo\r\n\nhalf"].concat();
        let mut reader = BufReader::with_capacity(1_000, text.as_slice());
        let (mut line, mut lines) = (Vec::new(), Vec::new());
        while let Some(whole) = read_line(&mut reader, &mut line).await.unwrap() {
            lines.push((whole, line.len()));
        }
        assert!(!lines[1].0 && lines[1].1 < MAX_MESSAGE_BYTES);
        lines.remove(1);
        assert_eq!(lines, [(true, 3), (true, 4), (true, 0)]);
        let endless = vec![b'x'; MAX_SKIPPED_BYTES + 2 * MAX_MESSAGE_BYTES];
        let mut reader = BufReader::new(endless.as_slice());
        assert!(read_line(&mut reader, &mut line).await.is_err());
    }
}
