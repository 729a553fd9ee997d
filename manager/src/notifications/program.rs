//! Notifies a program of the user's: the event is on its standard input and in a few variables. After a bounded time
//! the program is killed, with all that it started.

use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, Command};
use tokio::time::error::Elapsed;
use tokio::time::timeout;

use super::pace::DeliveryOutcome;

/// The time that it may take.
const BOUND: Duration = Duration::from_secs(30);
/// The time that its complaints are waited for once it has ended.
const LAST_WORDS: Duration = Duration::from_millis(200);
/// The length of its output that is shown, in bytes.
const SHOWN: usize = 300;

/// The process group of a program; what is left of it dies with this.
struct ProcessGroup(Option<Pid>);

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        if let Some(pid) = self.0 {
            // One that has ended is no error.
            let _gone = killpg(pid, Signal::SIGKILL);
        }
    }
}

/// Runs the program with an event.
pub(super) async fn run(line: &str, directory: &Path, id: &str, event: &Value) -> DeliveryOutcome {
    run_for(BOUND, line, directory, id, event).await
}

async fn run_for(
    bound: Duration,
    line: &str,
    directory: &Path,
    id: &str,
    event: &Value,
) -> DeliveryOutcome {
    let mut child = match spawn(line, directory, id, event) {
        Ok(child) => child,
        Err(error) => return DeliveryOutcome::NotNow(format!("it cannot be started: {error}")),
    };
    let pid = child.id().and_then(|pid| i32::try_from(pid).ok());
    let mut group = ProcessGroup(pid.map(Pid::from_raw));
    let mut last = Vec::new();
    let ended = converse(&mut child, bound, &format!("{event}\n"), &mut last).await;
    match ended {
        Ok(Ok(status)) if status.success() => {
            // What it left in the background is wanted.
            group.0 = None;
            DeliveryOutcome::Delivered
        }
        Ok(Ok(status)) => {
            DeliveryOutcome::NotNow(format!("it ended with {status}{}", shown(&last)))
        }
        Ok(Err(error)) => DeliveryOutcome::NotNow(format!("it was lost: {error}")),
        Err(_) => {
            drop(group);
            drop(child.wait().await);
            DeliveryOutcome::NotNow(format!(
                "it did not end within {} s and was killed",
                bound.as_secs()
            ))
        }
    }
}

/// Gives the program its input, keeps the last of its messages, and waits for its end.
async fn converse(
    child: &mut Child,
    bound: Duration,
    body: &str,
    last: &mut Vec<u8>,
) -> Result<std::io::Result<ExitStatus>, Elapsed> {
    let (input, errors) = (child.stdin.take(), child.stderr.take());
    let say = async {
        if let Some(mut input) = input {
            // One that does not read has what it wants.
            drop(input.write_all(body.as_bytes()).await);
        }
    };
    let hear = hear(errors, last);
    tokio::pin!(say, hear);
    let (mut said, mut heard) = (false, false);
    let ended = timeout(bound, async {
        loop {
            tokio::select! {
                ended = child.wait() => break ended,
                () = &mut say, if !said => said = true,
                () = &mut hear, if !heard => heard = true,
            }
        }
    })
    .await;
    if !heard && matches!(&ended, Ok(Ok(status)) if !status.success()) {
        // What it started may hold the pipe for ever.
        let _late = timeout(LAST_WORDS, hear).await;
    }
    ended
}

fn spawn(line: &str, directory: &Path, id: &str, event: &Value) -> std::io::Result<Child> {
    let text = |path: &str| event.pointer(path).and_then(Value::as_str).unwrap_or_default();
    Command::new("/bin/sh")
        .args(["-c", line])
        .current_dir(directory)
        .env("TRIALKEEPER_EVENT", text("/event"))
        .env("TRIALKEEPER_EVENT_ID", id)
        .env("TRIALKEEPER_EXPERIMENT", text("/experiment/id"))
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        // A Ctrl-C at the terminal is the manager's to handle.
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
}

/// Keeps the last of what it says.
async fn hear(errors: Option<impl AsyncRead + Unpin>, last: &mut Vec<u8>) {
    let Some(mut errors) = errors else { return };
    let mut bytes = [0; 4096];
    while let Ok(count @ 1..) = errors.read(&mut bytes).await {
        last.extend_from_slice(&bytes[..count]);
        let surplus = last.len().saturating_sub(SHOWN);
        last.drain(..surplus);
    }
}

/// Its last words, fit for one line.
fn shown(last: &[u8]) -> String {
    let text = String::from_utf8_lossy(last);
    let line: String = text.trim().chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    if line.is_empty() { line } else { format!(": {line}") }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    async fn told(bound: Duration, line: &str) -> (DeliveryOutcome, String) {
        let folder = tempfile::tempdir().unwrap();
        let event = json!({"event": "experiment_ended", "experiment": {"id": "e"}, "big": "x".repeat(1 << 18)});
        let outcome = run_for(bound, line, folder.path(), "i7", &event).await;
        (outcome, std::fs::read_to_string(folder.path().join("out")).unwrap_or_default())
    }

    const LONG: Duration = Duration::from_mins(1);

    #[tokio::test]
    async fn a_program_gets_the_event() {
        let line = "cat | wc -c > out; echo $TRIALKEEPER_EVENT $TRIALKEEPER_EVENT_ID $TRIALKEEPER_EXPERIMENT >> out";
        let (outcome, out) = told(LONG, line).await;
        assert_eq!(outcome, DeliveryOutcome::Delivered);
        let (count, rest) = out.split_once('\n').unwrap();
        assert!(count.trim().parse::<usize>().unwrap() > 1 << 18, "{count}");
        assert_eq!(rest, "experiment_ended i7 e\n");
    }

    #[tokio::test]
    async fn the_outcome_of_each_program_follows_the_table() {
        let failed = |why: &str| DeliveryOutcome::NotNow(why.to_owned());
        #[rustfmt::skip]
        let table = [
            ("one that does not read",       "true",                              DeliveryOutcome::Delivered),
            ("one that closes its input",    "exec <&-; true",                    DeliveryOutcome::Delivered),
            ("one that leaves another",      "sleep 2 & exit 0",                 DeliveryOutcome::Delivered),
            ("one that fails",               "echo 'no\tway' >&2; exit 3",        failed("it ended with exit status: 3: no way")),
            ("one that fails and is held",   "sleep 600 & echo no >&2; exit 3",    failed("it ended with exit status: 3: no")),
            ("one that is killed",           "kill -9 $$",                        failed("it ended with signal: 9 (SIGKILL)")),
            ("one that is not there",        "exec ./nowhere 2>/dev/null",        failed("it ended with exit status: 127")),
        ];
        for (says, line, expected) in table {
            assert_eq!(told(LONG, line).await.0, expected, "{says}");
        }
        let (flood, _) = told(LONG, "head -c 10000000 /dev/zero | tr '\\0' x >&2; exit 1").await;
        assert!(matches!(flood, DeliveryOutcome::NotNow(why) if why.len() < 2 * SHOWN));
    }

    #[tokio::test]
    async fn a_hanging_program_is_killed_with_its_children() {
        let line = "trap '' TERM; sleep 600 & echo $! > out; wait; sleep 600";
        let (outcome, out) = told(Duration::from_secs(1), line).await;
        let why = "it did not end within 1 s and was killed";
        assert_eq!(outcome, DeliveryOutcome::NotNow(why.to_owned()));
        let child = Pid::from_raw(out.trim().parse().unwrap());
        let dies = async {
            loop {
                // Gone, or dead and not yet buried.
                let stat = std::fs::read_to_string(format!("/proc/{child}/stat"));
                let stat = stat.unwrap_or_default();
                if matches!(stat.split(' ').nth(2), None | Some("Z")) {
                    return;
                }
                // Between two looks only.
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        timeout(LONG, dies).await.expect("its child dies with it");
    }
}
