//! Notifies a program of the user. The event is on its standard input and in a few environment variables. After a
//! time limit, the program is killed with all processes that it started.

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

use super::retry::DeliveryOutcome;

/// The maximum run time of the program.
const PROGRAM_TIMEOUT: Duration = Duration::from_secs(30);
/// The time to wait for remaining error output after the program has ended.
const OUTPUT_TIMEOUT: Duration = Duration::from_millis(200);
/// The maximum size of the error output in a message, in bytes.
const MAX_SHOWN_BYTES: usize = 300;

/// The process group of a program. Dropping it kills the remaining processes.
struct ProcessGroup(Option<Pid>);

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        if let Some(pid) = self.0 {
            // A group that has ended is not an error.
            let _gone = killpg(pid, Signal::SIGKILL);
        }
    }
}

/// Runs the program for an event.
pub(super) async fn run(line: &str, directory: &Path, id: &str, event: &Value) -> DeliveryOutcome {
    run_within(PROGRAM_TIMEOUT, line, directory, id, event).await
}

async fn run_within(
    bound: Duration,
    line: &str,
    directory: &Path,
    id: &str,
    event: &Value,
) -> DeliveryOutcome {
    let mut child = match spawn(line, directory, id, event) {
        Ok(child) => child,
        Err(error) => return DeliveryOutcome::Retryable(format!("it cannot be started: {error}")),
    };
    let pid = child.id().and_then(|pid| i32::try_from(pid).ok());
    let mut group = ProcessGroup(pid.map(Pid::from_raw));
    let mut last = Vec::new();
    let ended = run_to_end(&mut child, bound, &format!("{event}\n"), &mut last).await;
    match ended {
        Ok(Ok(status)) if status.success() => {
            // Processes that the program left in the background are intended.
            group.0 = None;
            DeliveryOutcome::Delivered
        }
        Ok(Ok(status)) => DeliveryOutcome::Retryable(format!(
            "it ended with {status}{}",
            format_error_output(&last)
        )),
        Ok(Err(error)) => DeliveryOutcome::Retryable(format!("cannot wait for its end: {error}")),
        Err(_) => {
            drop(group);
            drop(child.wait().await);
            DeliveryOutcome::Retryable(format!(
                "it did not end within {} s and was killed",
                bound.as_secs()
            ))
        }
    }
}

/// Writes the program's input, keeps the end of its error output, and waits for its exit.
async fn run_to_end(
    child: &mut Child,
    bound: Duration,
    body: &str,
    last: &mut Vec<u8>,
) -> Result<std::io::Result<ExitStatus>, Elapsed> {
    let (input, errors) = (child.stdin.take(), child.stderr.take());
    let write = async {
        if let Some(mut input) = input {
            // Ignored: the program need not read its input.
            drop(input.write_all(body.as_bytes()).await);
        }
    };
    let read = read_tail(errors, last);
    tokio::pin!(write, read);
    let (mut is_written, mut is_read) = (false, false);
    let ended = timeout(bound, async {
        loop {
            tokio::select! {
                ended = child.wait() => break ended,
                () = &mut write, if !is_written => is_written = true,
                () = &mut read, if !is_read => is_read = true,
            }
        }
    })
    .await;
    if !is_read && matches!(&ended, Ok(Ok(status)) if !status.success()) {
        // A child of the program may keep the pipe open indefinitely.
        let _late = timeout(OUTPUT_TIMEOUT, read).await;
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
        // Only the manager handles a Ctrl-C at the terminal.
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
}

/// Reads the error output, and keeps its end.
async fn read_tail(errors: Option<impl AsyncRead + Unpin>, last: &mut Vec<u8>) {
    let Some(mut errors) = errors else { return };
    let mut bytes = [0; 4096];
    while let Ok(count @ 1..) = errors.read(&mut bytes).await {
        last.extend_from_slice(&bytes[..count]);
        let surplus = last.len().saturating_sub(MAX_SHOWN_BYTES);
        last.drain(..surplus);
    }
}

/// Formats the end of the error output on a single line.
fn format_error_output(last: &[u8]) -> String {
    let text = String::from_utf8_lossy(last);
    let line: String = text.trim().chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    if line.is_empty() { line } else { format!(": {line}") }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    async fn run_program(bound: Duration, line: &str) -> (DeliveryOutcome, String) {
        let folder = tempfile::tempdir().unwrap();
        let event = json!({"event": "experiment_ended", "experiment": {"id": "e"}, "big": "x".repeat(1 << 18)});
        let outcome = run_within(bound, line, folder.path(), "i7", &event).await;
        (outcome, std::fs::read_to_string(folder.path().join("out")).unwrap_or_default())
    }

    const LONG_TIMEOUT: Duration = Duration::from_mins(1);

    #[tokio::test]
    async fn a_program_gets_the_event() {
        let line = "cat | wc -c > out; echo $TRIALKEEPER_EVENT $TRIALKEEPER_EVENT_ID $TRIALKEEPER_EXPERIMENT >> out";
        let (outcome, out) = run_program(LONG_TIMEOUT, line).await;
        assert_eq!(outcome, DeliveryOutcome::Delivered);
        let (count, rest) = out.split_once('\n').unwrap();
        assert!(count.trim().parse::<usize>().unwrap() > 1 << 18, "{count}");
        assert_eq!(rest, "experiment_ended i7 e\n");
    }

    #[tokio::test]
    async fn the_outcome_follows_from_the_exit_of_the_program() {
        let failed = |why: &str| DeliveryOutcome::Retryable(why.to_owned());
        #[rustfmt::skip]
        let table = [
            ("does not read its input",      "true",                              DeliveryOutcome::Delivered),
            ("closes its input",             "exec <&-; true",                    DeliveryOutcome::Delivered),
            ("leaves a child",               "sleep 2 & exit 0",                 DeliveryOutcome::Delivered),
            ("fails",                        "echo 'no\tway' >&2; exit 3",        failed("it ended with exit status: 3: no way")),
            ("fails and leaves a child",     "sleep 600 & echo no >&2; exit 3",    failed("it ended with exit status: 3: no")),
            ("is killed",                    "kill -9 $$",                        failed("it ended with signal: 9 (SIGKILL)")),
            ("does not exist",               "exec ./nowhere 2>/dev/null",        failed("it ended with exit status: 127")),
        ];
        for (case, line, expected) in table {
            assert_eq!(run_program(LONG_TIMEOUT, line).await.0, expected, "{case}");
        }
        let (flood, _) =
            run_program(LONG_TIMEOUT, "head -c 10000000 /dev/zero | tr '\\0' x >&2; exit 1").await;
        assert!(
            matches!(flood, DeliveryOutcome::Retryable(why) if why.len() < 2 * MAX_SHOWN_BYTES)
        );
    }

    #[tokio::test]
    async fn a_hanging_program_is_killed_with_its_children() {
        let line = "trap '' TERM; sleep 600 & echo $! > out; wait; sleep 600";
        let mut seconds = 1;
        let (outcome, out) = loop {
            let (outcome, out) = run_program(Duration::from_secs(seconds), line).await;
            // On a slow machine, the time may be over before the program has begun.
            if !out.is_empty() || seconds > 60 {
                break (outcome, out);
            }
            seconds *= 4;
        };
        let why = format!("it did not end within {seconds} s and was killed");
        assert_eq!(outcome, DeliveryOutcome::Retryable(why));
        let child = Pid::from_raw(out.trim().parse().unwrap());
        let dies = async {
            loop {
                // Dead, or dead and not yet reaped.
                let stat = std::fs::read_to_string(format!("/proc/{child}/stat"));
                let stat = stat.unwrap_or_default();
                if matches!(stat.split(' ').nth(2), None | Some("Z")) {
                    return;
                }
                // A pause between polls, not a timing assumption.
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        timeout(LONG_TIMEOUT, dies).await.expect("the child is killed, too");
    }
}
