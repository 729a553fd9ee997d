//! A test bed for the real programs. It provides a temporary folder, processes that always end with the test,
//! and waits for a state with a time limit. The tests use the programs as a user does: through command lines,
//! files and output.
//!
//! Nothing here sleeps for a fixed time: such a pause is too short on a busy machine and too long on an idle
//! one.

mod axe;
mod bed;
mod browser;
pub mod faults;
mod gate;
pub mod kube;
mod machines;
mod network;
mod process;
mod programs;
mod python;
mod rng;
mod search;
pub mod seed;
mod small_disk;
mod snapshot;
mod terminal;
mod webhook;

pub use axe::axe_script;
pub use bed::TestBed;
pub use browser::Browser;
pub use gate::Gate;
pub use machines::Machines;
pub use network::Network;
pub use process::{FinishedProgram, RunningProgram};
pub use python::{nni_python, optuna_python};
pub use search::{Outcome, Search, Trial, docs_folder, examples_folder};
pub use small_disk::SmallDisk;
pub use snapshot::Snapshots;
pub use terminal::Terminal;
pub use webhook::{ReceivedRequest, WebhookAnswer, WebhookServer};

use std::time::{Duration, Instant};

/// The time limit of one wait. It is generous because machines are shared, and it does not slow a passing
/// test.
pub const WAIT_TIMEOUT: Duration = Duration::from_mins(5);

/// Polls `seen` until it returns a value. Panics with `what` after `bound`.
pub fn wait_for<T>(what: &str, bound: Duration, mut seen: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = seen() {
            return found;
        }
        assert!(began.elapsed() < bound, "waited {bound:?} without success for {what}");
        // Limits the CPU use of polling. No result depends on the length of this pause.
        std::thread::park_timeout(Duration::from_millis(2));
    }
}

/// Sends `GET path` to a base URL and returns status and body, or `None` if the server does not answer.
pub fn http_get(base: &str, path: &str) -> Option<(u16, String)> {
    send_request(base, &format!("GET {path}"), "", "")
}

/// Sends a request to a base URL and returns status and body. `what` is method and path; an empty `token`
/// sends no credentials; `body` is JSON.
pub fn send_request(base: &str, what: &str, token: &str, body: &str) -> Option<(u16, String)> {
    use std::io::{Read as _, Write as _};
    let host = base.strip_prefix("http://")?;
    let mut stream = std::net::TcpStream::connect(host).ok()?;
    stream.set_read_timeout(Some(WAIT_TIMEOUT)).ok()?;
    let user =
        if token.is_empty() { String::new() } else { format!("authorization: Bearer {token}\r\n") };
    let length = body.len();
    let request = format!(
        "{what} HTTP/1.1\r\nhost: {host}\r\n{user}content-type: application/json\r\ncontent-length: {length}\r\n\
         connection: close\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    Some((head.split(' ').nth(1)?.parse().ok()?, body.to_owned()))
}
