//! The manager's helper on a remote machine: JSON-RPC 2.0 on stdin and stdout, one message a line.
//!
//! It starts agents, waits for their locks and tells when they are gone. It keeps nothing in memory that the disk does
//! not have: it may end with its connection at any time, and the next one finds everything again. An agent is in a
//! session of its own and outlives it.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, BufRead as _, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread;
use std::time::Duration;

use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, setsid};
use serde_json::{Value, json};
use trial_protocol::{AttemptId, ExperimentId, TrialJobId};

/// The word that selects this part of the program.
pub const WORD: &str = "machine";
/// The word after it with which the helper executes an agent.
const DETACHED: &str = "detached";
/// The longest message, in bytes with its newline.
const MESSAGE_BYTES: u64 = 1 << 20;
/// The time that an agent may take to end after TERM.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(35);
/// The time that an agent may take from its start to its lock.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);
/// The interval at which a slow agent is looked at.
const LOCK_INTERVAL: Duration = Duration::from_millis(200);

/// Serves the requests on stdin until it is closed. `words` are what stands after `machine`.
pub fn main(words: &[OsString]) -> ExitCode {
    match words {
        [word, rest @ ..] if word == DETACHED => detached(rest),
        [root] => serve(Path::new(root)),
        _ => {
            complain("trialkeeper machine is started by the manager, with the folder of its files");
            ExitCode::from(125)
        }
    }
}

/// Becomes an agent in a session of its own.
fn detached(words: &[OsString]) -> ExitCode {
    // It fails for the leader of a process group alone, which a child is not.
    setsid().ok();
    let Ok(program) = std::env::current_exe() else { return ExitCode::from(125) };
    let error = Command::new(program).args(words).exec();
    complain(&format!("cannot execute the agent: {error}"));
    ExitCode::from(125)
}

/// Writes to standard error, which ssh hands to the manager. A closed one is no fault.
fn complain(text: &str) {
    drop(writeln!(io::stderr(), "{text}"));
}

fn serve(root: &Path) -> ExitCode {
    let mut stdin = io::stdin().lock();
    loop {
        let mut line = Vec::new();
        match (&mut stdin).take(MESSAGE_BYTES).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return ExitCode::SUCCESS,
            Ok(_) if !line.ends_with(b"\n") => return ExitCode::from(125),
            Ok(_) => {}
        }
        let Ok(request) = serde_json::from_slice::<Value>(&line) else { continue };
        let (id, method) = (request["id"].clone(), request["method"].as_str().unwrap_or_default());
        let answer = perform(root, method, &request["params"]);
        send_message(&match answer {
            Ok(result) => json!({"jsonrpc": "2.0", "id": id, "result": result}),
            Err(Refusal { code, message }) => {
                json!({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message}})
            }
        });
        if method == "close" {
            return ExitCode::SUCCESS;
        }
    }
}

/// Writes a message. A manager that no longer reads gets everything again by `adopt`.
fn send_message(message: &Value) {
    let mut out = io::stdout().lock();
    drop(writeln!(out, "{message}").and_then(|()| out.flush()));
}

struct Refusal {
    code: i32,
    message: String,
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Self {
        Self { code: -32002, message: error.to_string() }
    }
}

fn invalid(what: &str) -> Refusal {
    Refusal { code: -32602, message: format!("{what} is missing or wrong") }
}

fn perform(root: &Path, method: &str, params: &Value) -> Result<Value, Refusal> {
    match method {
        "initialize" => Ok(json!({
            "protocol": 1,
            "service": {"name": "trialkeeper", "version": env!("CARGO_PKG_VERSION")},
            "capabilities": {"adopt": true, "recover": true, "room": true, "clean_up": true},
        })),
        "open" => {
            folder(root)?;
            write_files(root, &params["files"])?;
            Ok(json!({}))
        }
        "room" => Ok(json!({"gpus": gpus()})),
        "ping" | "close" => Ok(json!({})),
        "clean_up" => Ok(fs::remove_dir_all(root).map(|()| json!({}))?),
        "submit" => Job::of(root, params)?.submit(params),
        "adopt" => Job::of(root, params)?.adopt(params),
        "cancel" => Ok(Job::of(root, params)?.cancel()),
        _ => Err(Refusal { code: -32601, message: format!("there is no request {method:?}") }),
    }
}

/// An attempt of a trial and its folder.
#[derive(Clone)]
struct Job {
    root: PathBuf,
    dir: PathBuf,
    key: Value,
    attempt: String,
}

impl Job {
    fn of(root: &Path, params: &Value) -> Result<Self, Refusal> {
        let text = |name: &str| params["key"][name].as_str().ok_or_else(|| invalid(name));
        // Ids are file names here.
        ExperimentId::new(text("experiment")?).map_err(|_| invalid("experiment"))?;
        let trial = TrialJobId::new(text("trial")?).map_err(|_| invalid("trial"))?;
        let attempt = AttemptId::new(text("attempt")?).map_err(|_| invalid("attempt"))?;
        let dir = root.join("trials").join(trial.as_str());
        let (root, key) = (root.to_owned(), params["key"].clone());
        Ok(Self { root, dir, key, attempt: attempt.as_str().to_owned() })
    }

    fn lock_file(&self) -> PathBuf {
        self.dir.join("spool/lock")
    }

    /// The file that says that this attempt was started, or was cancelled before it could be.
    fn begun(&self) -> PathBuf {
        self.dir.join(format!("begun-{}", self.attempt))
    }

    fn submit(self, params: &Value) -> Result<Value, Refusal> {
        if let LockHolder::By { attempt, file, .. } = holder(&self.lock_file())
            && attempt == self.attempt
        {
            self.watch(file);
            return Ok(json!({"created": false}));
        }
        if self.begun().exists() {
            thread::spawn(move || self.settle());
            return Ok(json!({"created": false}));
        }
        folder(&self.dir)?;
        write_files(&self.dir, &params["files"])?;
        let mut command = self.command(params)?;
        write_file(&self.begun(), "")?;
        let child = command.spawn().inspect_err(|_| drop(fs::remove_file(self.begun())))?;
        thread::spawn(move || self.wait(child));
        Ok(json!({"created": true}))
    }

    fn command(&self, params: &Value) -> Result<Command, Refusal> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args([WORD, DETACHED]);
        for word in params["args"].as_array().ok_or_else(|| invalid("args"))? {
            let name = word["name"].as_str().unwrap_or_default();
            match (word.as_str(), word["in"].as_str()) {
                (Some(text), _) => command.arg(text),
                (None, Some("shared")) => command.arg(self.root.join(name)),
                (None, Some("job")) => command.arg(self.dir.join(name)),
                _ => return Err(invalid("args")),
            };
        }
        for (name, value) in params["environment"].as_object().into_iter().flatten() {
            command.env(name, value.as_str().ok_or_else(|| invalid("environment"))?);
        }
        command.current_dir(&self.dir);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Ok(command)
    }

    fn adopt(self, params: &Value) -> Result<Value, Refusal> {
        let phase = match holder(&self.lock_file()) {
            LockHolder::By { attempt, file, .. } if attempt == self.attempt => {
                write_files(&self.dir, &params["files"])?;
                self.watch(file);
                "running"
            }
            LockHolder::By { .. } | LockHolder::Free if self.begun().exists() => {
                write_files(&self.dir, &params["files"])?;
                thread::spawn(move || self.settle());
                "waiting"
            }
            LockHolder::By { .. } | LockHolder::Free => "unknown",
        };
        Ok(json!({"phase": phase}))
    }

    /// Asks the agent to end, and ends it by force when it has not obeyed.
    fn cancel(self) -> Value {
        let LockHolder::By { attempt, pid, .. } = holder(&self.lock_file()) else {
            return json!({"known": false});
        };
        if attempt != self.attempt {
            return json!({"known": false});
        }
        // An agent that has just ended is no error.
        kill(pid, Signal::SIGTERM).ok();
        thread::spawn(move || {
            for _ in 0..CANCEL_TIMEOUT.as_millis() / LOCK_INTERVAL.as_millis() {
                pause();
                if self.lives().is_none() {
                    return;
                }
            }
            if let Some(pid) = self.lives() {
                kill(pid, Signal::SIGKILL).ok();
            }
        });
        json!({"known": true})
    }

    fn lives(&self) -> Option<Pid> {
        match holder(&self.lock_file()) {
            LockHolder::By { attempt, pid, .. } if attempt == self.attempt => Some(pid),
            LockHolder::By { .. } | LockHolder::Free => None,
        }
    }

    /// Looks for an attempt that was begun and holds no lock: it has ended, or is about to take the lock, since an earlier
    /// helper started it a moment ago.
    fn settle(self) {
        for _ in 0..LOCK_TIMEOUT.as_millis() / LOCK_INTERVAL.as_millis() {
            if let LockHolder::By { attempt, file, .. } = holder(&self.lock_file())
                && attempt == self.attempt
            {
                return self.watch(file);
            }
            let said = fs::read_to_string(self.lock_file()).unwrap_or_default();
            if said.lines().nth(1).map(str::trim) == Some(self.attempt.as_str()) {
                break;
            }
            pause();
        }
        self.gone(None);
    }

    fn wait(self, mut child: Child) {
        let status = child.wait().ok();
        let code = status.map(|status| {
            status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default())
        });
        self.gone(code);
    }

    fn watch(self, file: File) {
        thread::spawn(move || {
            // Its failure means that the file is gone, and the agent with it.
            drop(Flock::lock(file, FlockArg::LockExclusive));
            self.gone(None);
        });
    }

    /// Tells the end, once what the agent left was offered to the manager.
    fn gone(self, code: Option<i32>) {
        let spool = self.dir.join("spool");
        if left_something(&spool) {
            self.replay();
        }
        let left = if left_something(&spool) { "left" } else { "delivered" };
        let mut params = json!({"key": self.key, "reason": "unknown", "spool": left});
        if let Some(code) = code {
            params["exit"] = json!({"code": code});
            params["reason"] = Value::from("exit");
        }
        send_message(&json!({"jsonrpc": "2.0", "method": "gone", "params": params}));
    }

    fn replay(&self) {
        let Ok(program) = std::env::current_exe() else { return };
        let mut command = Command::new(program);
        command.arg("replay").arg(&self.dir);
        command.arg("--manager-file").arg(self.root.join("manager.url"));
        command.arg("--token-file").arg(self.dir.join("token"));
        let ca_file = self.root.join("ca.pem");
        if ca_file.exists() {
            command.arg("--ca-file").arg(ca_file);
        }
        command.stdin(Stdio::null()).stdout(Stdio::null());
        // What it cannot deliver is still in the spool, which is told.
        drop(command.status());
    }
}

/// Waits between two looks at a lock, whose end no event tells.
#[expect(clippy::disallowed_methods, reason = "a helper's thread: no trial waits for it")]
fn pause() {
    thread::sleep(LOCK_INTERVAL);
}

/// State of an agent's lock.
enum LockHolder {
    /// An agent that lives.
    By { pid: Pid, attempt: String, file: File },
    /// No agent lives.
    Free,
}

fn holder(path: &Path) -> LockHolder {
    let Ok(file) = OpenOptions::new().read(true).write(true).open(path) else {
        return LockHolder::Free;
    };
    let Err((mut file, _)) = Flock::lock(file, FlockArg::LockExclusiveNonblock) else {
        return LockHolder::Free;
    };
    let mut text = String::new();
    drop(file.read_to_string(&mut text));
    let mut lines = text.lines().map(str::trim);
    // 0, 1 and negative ids name groups or the system.
    let pid = lines.next().and_then(|line| line.parse().ok()).filter(|pid| *pid > 1);
    match (pid, lines.next()) {
        (Some(pid), Some(attempt)) => {
            LockHolder::By { pid: Pid::from_raw(pid), attempt: attempt.to_owned(), file }
        }
        _ => LockHolder::Free,
    }
}

/// Returns whether a spool holds reports that were not delivered.
fn left_something(spool: &Path) -> bool {
    let attempts = fs::read_dir(spool).into_iter().flatten().flatten();
    let mut files =
        attempts.flat_map(|entry| fs::read_dir(entry.path()).into_iter().flatten().flatten());
    files.any(|file| file.path().extension().is_some_and(|extension| extension == "seg"))
}

fn folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

fn write_files(dir: &Path, files: &Value) -> Result<(), Refusal> {
    for file in files.as_array().into_iter().flatten() {
        let name = file["name"].as_str().filter(|name| !name.is_empty() && !name.contains('/'));
        let text = file["text"].as_str().ok_or_else(|| invalid("text"))?;
        write_file(&dir.join(name.ok_or_else(|| invalid("name"))?), text)?;
    }
    Ok(())
}

/// Writes a file of the owner's whole: a reader sees the old text or the new one.
fn write_file(path: &Path, text: &str) -> io::Result<()> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".new");
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(temporary, path)
}

/// The GPUs of this machine as `nvidia-smi` shows them; none where it cannot be asked.
fn gpus() -> Value {
    let ask = |query: &str| {
        let output = Command::new("nvidia-smi").args([query, "--format=csv,noheader"]).output();
        let text = output.ok().filter(|output| output.status.success()).map(|output| output.stdout);
        String::from_utf8_lossy(&text.unwrap_or_default()).into_owned()
    };
    let (gpus, busy) = (ask("--query-gpu=index,uuid"), ask("--query-compute-apps=gpu_uuid"));
    let gpu = |line: &str| {
        let (index, uuid) = line.split_once(',')?;
        let index: u64 = index.trim().parse().ok()?;
        Some(json!({"index": index, "busy": busy.lines().any(|line| line.trim() == uuid.trim())}))
    };
    gpus.lines().filter_map(gpu).collect()
}
