//! The output of a trial whose agent does not report, read from the trial's folder over the machine's connection.

use std::process::Stdio;
use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use tokio::io::{AsyncBufRead, AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;
use trial_protocol::{ExperimentId, TrialJobId};

use super::shell::{LINE_MARK, experiment_folder_script, folders};
use super::ssh::Ssh;
use crate::config::MachineSpec;
use crate::training_service::Output;

/// The greatest number of outputs that are read from a machine at the same time. `sshd` permits ten sessions for each
/// connection by default, and the helper and the manager's scripts need some of them.
pub(super) const MAX_OUTPUTS: usize = 4;
/// The time limit for the first line.
const START_TIMEOUT: Duration = Duration::from_secs(10);
/// The greatest number of bytes that a login shell may print first.
const MAX_BANNER_BYTES: u64 = 64 << 10;

/// The number of bytes before the present end that count as recent output.
const RECENT_BYTES: u64 = 16 << 10;

/// Returns the script that prints a trial's output from its beginning, or from the recent part on. The script prints
/// nothing if the trial has not begun, and ends with its standard input.
fn output_script(
    machine: &MachineSpec,
    experiment: &ExperimentId,
    trial: &TrialJobId,
    is_recent: bool,
) -> String {
    let ((_, root), place) = (folders(machine), experiment_folder_script(experiment.as_str()));
    let from = if is_recent { RECENT_BYTES.to_string() } else { "+1".to_owned() };
    format!(
        r#"root={root}; {place}
cd "$root/$at/trials/{trial}" && [ -f stdout ] || exit 1
echo {LINE_MARK}; tail -q -c {from} -f stdout stderr 2>/dev/null & cat >/dev/null; kill $!"#
    )
}

/// Follows the output of a trial. `None`: the trial has not begun, or the machine is out of reach.
pub(super) async fn follow_output(
    ssh: &Ssh,
    machine: &MachineSpec,
    (experiment, trial): (&ExperimentId, &TrialJobId),
    is_recent: bool,
    permit: OwnedSemaphorePermit,
) -> Option<Output> {
    let mut command = ssh.script_command(&output_script(machine, experiment, trial, is_recent));
    let mut child = command.stdin(Stdio::piped()).stderr(Stdio::null()).spawn().ok()?;
    let mut reader = BufReader::new(child.stdout.take()?);
    timeout(START_TIMEOUT, skip_banner(&mut reader)).await.ok()??;
    // Dropping the child ends the script.
    let opened = (reader, child, permit);
    let pieces = stream::unfold(opened, |(mut reader, child, permit)| async move {
        let piece = reader.fill_buf().await.ok()?.to_vec();
        reader.consume(piece.len());
        (!piece.is_empty()).then_some((piece, (reader, child, permit)))
    });
    Some(pieces.boxed())
}

/// Skips the login shell's output. `None`: the script ended before its first line.
pub(super) async fn skip_banner(reader: &mut (impl AsyncBufRead + Unpin)) -> Option<()> {
    let mut reader = reader.take(MAX_BANNER_BYTES);
    loop {
        let mut line = Vec::new();
        reader.read_until(b'\n', &mut line).await.ok()?;
        let line = line.strip_suffix(b"\n")?;
        if line == LINE_MARK.as_bytes() {
            return Some(());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[tokio::test]
    async fn a_banner_is_skipped_and_the_output_is_kept() {
        #[rustfmt::skip]
        let table: [(&[u8], Option<&[u8]>); 5] = [
            (b"tk:\none\n",                 Some(b"one\n")),
            (b"Welcome!\n\xff\ntk:\ntk:\n", Some(b"tk:\n")),
            (b"\ntk:\n",                    Some(b"")),
            (b"Welcome!\n",                 None),
            (b"tk:",                        None),
        ];
        for (printed, expected) in table {
            let mut reader = printed;
            let begun = skip_banner(&mut reader).await;
            assert_eq!(begun.map(|()| reader), expected, "{}", String::from_utf8_lossy(printed));
        }
    }

    #[test]
    fn the_script_prints_both_streams_and_ends_with_its_input() {
        let folder = tempfile::tempdir().unwrap();
        let machine = MachineSpec {
            directory: Some(folder.path().display().to_string()),
            ..MachineSpec::new("m")
        };
        let (experiment, trial) = (ExperimentId::new("e").unwrap(), TrialJobId::new("t").unwrap());
        let run = |is_recent| {
            let script = output_script(&machine, &experiment, &trial, is_recent);
            let mut shell = Command::new("/bin/sh");
            shell
                .args(["-c", &script])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::null());
            shell.spawn().unwrap()
        };
        assert!(!run(false).wait().unwrap().success(), "the trial has not begun");
        let place = folder.path().join("e/trials/t");
        std::fs::create_dir_all(&place).unwrap();
        std::fs::write(place.join("stderr"), "two\n").unwrap();
        let recent = "x".repeat(usize::try_from(RECENT_BYTES).unwrap());
        std::fs::write(place.join("stdout"), format!("one\n{recent}")).unwrap();
        for (is_recent, first) in [(false, "one\n"), (true, "")] {
            use std::io::Read as _;
            let expected = format!("tk:\n{first}{recent}two\n");
            let mut shell = run(is_recent);
            let mut printed = vec![0; expected.len()];
            let mut stdout = shell.stdout.take().unwrap();
            stdout.read_exact(&mut printed).unwrap();
            assert!(printed == expected.as_bytes(), "{is_recent}");
            drop(shell.stdin.take());
            let mut rest = String::new();
            stdout.read_to_string(&mut rest).unwrap();
            assert_eq!(rest, "", "no process holds the output");
            shell.wait().unwrap();
        }
    }
}
