//! The manager's helper on a remote machine. It serves JSON-RPC 2.0 on stdin and stdout, with one message per line.
//!
//! The helper starts agents, waits for their locks and reports their end. All of its state is on the disk, because it
//! may end with its connection at any time, and the next helper must find everything again. An agent is in its own
//! session and outlives the helper.

use std::ffi::OsString;
use std::fs;
use std::io::{self, BufRead as _, Read as _, Write as _};
use std::num::NonZero;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::thread;

use nix::unistd::setsid;
use serde_json::{Value, json};

use self::files::{create_private_dir, write_files};
use self::job::Job;
use crate::cli::AGENT_FAULT;
use crate::trial::guard::OWN_PROGRAM;

mod fence;
mod fence_attempts;
mod files;
mod gpu_locks;
mod job;
mod lock;

/// The argument that selects this part of the program.
pub const MACHINE_SUBCOMMAND: &str = "machine";
/// The next argument, with which the helper executes an agent.
const DETACHED_ARGUMENT: &str = "detached";
/// The maximum length of a message in bytes, including its newline.
const MAX_MESSAGE_BYTES: u64 = 1 << 20;

/// Serves the requests on stdin until it is closed. `words` are the arguments after `machine`.
pub fn main(words: &[OsString]) -> ExitCode {
    match words {
        [word, rest @ ..] if word == DETACHED_ARGUMENT => run_detached(rest),
        [root] => serve(Path::new(root)),
        _ => {
            print_error(
                "trialkeeper machine is started by the manager, with the folder of its files",
            );
            ExitCode::from(AGENT_FAULT)
        }
    }
}

/// Turns this process into an agent in its own session.
fn run_detached(words: &[OsString]) -> ExitCode {
    // Fails only for the leader of a process group, which a child is not.
    setsid().ok();
    let error = Command::new(OWN_PROGRAM).arg0("trialkeeper").args(words).exec();
    print_error(&format!("cannot execute the agent: {error}"));
    ExitCode::from(AGENT_FAULT)
}

/// Writes to standard error, which ssh passes to the manager. Ignores a closed standard error.
fn print_error(text: &str) {
    drop(writeln!(io::stderr(), "{text}"));
}

fn serve(root: &Path) -> ExitCode {
    let mut stdin = io::stdin().lock();
    loop {
        let mut line = Vec::new();
        match (&mut stdin).take(MAX_MESSAGE_BYTES).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return ExitCode::SUCCESS,
            Ok(_) if !line.ends_with(b"\n") => return ExitCode::from(AGENT_FAULT),
            Ok(_) => {}
        }
        let Ok(request) = serde_json::from_slice::<Value>(&line) else { continue };
        let (id, method) = (request["id"].clone(), request["method"].as_str().unwrap_or_default());
        if method == "room" {
            // On a separate thread, so that a hanging driver does not block other requests.
            let with_gpus = request["params"]["gpus"] == true;
            thread::spawn(move || respond(&id, Ok(describe_resources(with_gpus))));
            continue;
        }
        respond(&id, perform_request(root, method, &request["params"]));
        if method == "close" {
            return ExitCode::SUCCESS;
        }
    }
}

fn respond(id: &Value, answer: Result<Value, Refusal>) {
    send_message(&match answer {
        Ok(result) => json!({"jsonrpc": "2.0", "id": id, "result": result}),
        Err(Refusal { code, message }) => {
            json!({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message}})
        }
    });
}

/// Writes a message. A manager that no longer reads gets the state again through `adopt`.
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

fn invalid_params(what: &str) -> Refusal {
    Refusal { code: -32602, message: format!("{what} is missing or wrong") }
}

fn perform_request(root: &Path, method: &str, params: &Value) -> Result<Value, Refusal> {
    match method {
        "initialize" => Ok(json!({
            "protocol": 1,
            "service": {"name": "trialkeeper", "version": env!("CARGO_PKG_VERSION")},
            "capabilities": {"adopt": true, "recover": true, "room": true, "clean_up": true},
        })),
        "open" => {
            create_private_dir(root)?;
            write_files(root, &params["files"])?;
            Ok(json!({}))
        }
        "ping" | "close" => Ok(json!({})),
        "clean_up" => Ok(fs::remove_dir_all(root).map(|()| json!({}))?),
        "fence" => fence_attempts::fence_attempts(root, params),
        "submit" => Job::from_params(root, params)?.submit(params),
        "adopt" => Job::from_params(root, params)?.adopt(params),
        "cancel" => Ok(Job::from_params(root, params)?.cancel()),
        _ => Err(Refusal { code: -32601, message: format!("unknown request {method:?}") }),
    }
}

/// Returns the resources for trials on this machine. The manager parses the memory table, which keeps this program
/// small.
fn describe_resources(with_gpus: bool) -> Value {
    let meminfo = fs::read_to_string("/proc/meminfo").ok();
    json!({"gpus": with_gpus.then(list_gpus), "cores": count_cores(), "meminfo": meminfo})
}

/// Returns the number of processors that this process may use. `None` means that it is unknown.
fn count_cores() -> Option<usize> {
    thread::available_parallelism().ok().map(NonZero::get)
}

/// Returns the GPUs of this machine as `nvidia-smi` lists them, or none if it cannot be run.
fn list_gpus() -> Value {
    let ask = |query: &str| {
        let output = Command::new("nvidia-smi").args([query, "--format=csv,noheader"]).output();
        let text = output.ok().filter(|output| output.status.success()).map(|output| output.stdout);
        String::from_utf8_lossy(&text.unwrap_or_default()).into_owned()
    };
    let (gpus, busy) = (ask("--query-gpu=index,uuid"), ask("--query-compute-apps=gpu_uuid"));
    let locks = gpu_locks::list_held_locks();
    let gpu = |line: &str| {
        let (index, uuid) = line.split_once(',')?;
        let (index, uuid): (u64, _) = (index.trim().parse().ok()?, uuid.trim());
        let is_busy = busy.lines().any(|line| line.trim() == uuid);
        let is_busy = is_busy || locks.contains(&gpu_locks::lock_prefix(uuid));
        Some(json!({"index": index, "uuid": uuid, "busy": is_busy}))
    };
    gpus.lines().filter_map(gpu).collect()
}
