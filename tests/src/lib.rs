//! A test bed for the real programs: a folder of its own, processes that are started and always ended,
//! and waits for a state with a bound. A stranger with a terminal: it knows the programs by their
//! command lines, files and output only.
//!
//! It must not nap: a fixed pause is neither long enough on a busy machine nor short enough on an idle one.

mod axe;
mod bed;
mod browser;
pub mod faults;
mod gate;
mod hook;
pub mod kube;
mod machines;
mod network;
mod process;
mod programs;
mod python;
mod search;
pub mod seed;
mod snapshot;
mod terminal;

pub use axe::axe;
pub use bed::TestBed;
pub use browser::Browser;
pub use gate::Gate;
pub use hook::{Answer, Hook, Told};
pub use machines::Machines;
pub use network::{Network, SmallDisk};
pub use process::{Finished, Running};
pub use python::{nni_python, optuna_python};
pub use search::{Outcome, Search, Trial, docs, examples};
pub use snapshot::Snapshots;
pub use terminal::Terminal;

use std::time::{Duration, Instant};

/// How long anything may take before a test calls it hung: generous, because machines are shared, and
/// without influence on how long a passing test runs.
pub const BOUND: Duration = Duration::from_mins(2);

/// Waits until `seen` gives something, looking often; panics with `what` when `bound` is over.
pub fn wait_for<T>(what: &str, bound: Duration, mut seen: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = seen() {
            return found;
        }
        assert!(began.elapsed() < bound, "waited {bound:?} in vain for {what}");
        // Between two looks only; nothing depends on its length.
        std::thread::park_timeout(Duration::from_millis(2));
    }
}

/// What `GET path` answers at a base URL: status and body; `None` if nobody does.
pub fn get(base: &str, path: &str) -> Option<(u16, String)> {
    ask(base, &format!("GET {path}"), "", "")
}

/// What a method and a path, with the user's token (or none) and a JSON body, are answered at a base URL.
pub fn ask(base: &str, what: &str, token: &str, body: &str) -> Option<(u16, String)> {
    use std::io::{Read as _, Write as _};
    let host = base.strip_prefix("http://")?;
    let mut stream = std::net::TcpStream::connect(host).ok()?;
    stream.set_read_timeout(Some(BOUND)).ok()?;
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
