//! Tests of the capture thread's guarantees.

use std::fs::OpenOptions;
use std::path::Path;

use super::*;
use crate::verdict::{Observations, conclude};

fn paths(dir: &Path) -> CapturePaths {
    CapturePaths { dir: Some(dir.to_owned()), ..CapturePaths::default() }
}

#[tokio::test]
async fn both_streams_and_the_verdict_are_kept_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let capture = Capture::new(paths(dir.path()));
    let mut expected = Vec::new();
    for n in 0..20_000_u32 {
        let line = format!("line {n}\n");
        expected.extend_from_slice(line.as_bytes());
        capture.queue_output(Stream::Stdout, line.as_bytes());
    }
    capture.queue_output(Stream::Stderr, b"\xff no newline");
    let verdict = conclude(&Observations::default());
    capture.queue_verdict(&verdict);
    let outcome = capture.finish(Duration::from_secs(30)).await;
    assert_eq!(outcome, CaptureOutcome::default());
    assert!(std::fs::read(dir.path().join("stdout")).unwrap() == expected);
    assert_eq!(std::fs::read(dir.path().join("stderr")).unwrap(), b"\xff no newline");
    let kept = std::fs::read(dir.path().join(VERDICT_FILE)).unwrap();
    assert_eq!(serde_json::from_slice::<Verdict>(&kept).unwrap(), verdict);
}

#[tokio::test]
async fn a_second_attempt_appends() {
    let dir = tempfile::tempdir().unwrap();
    for _ in 0..2 {
        let capture = Capture::new(paths(dir.path()));
        capture.queue_output(Stream::Stdout, b"x\n");
        capture.finish(Duration::from_secs(30)).await;
    }
    assert_eq!(std::fs::read(dir.path().join("stdout")).unwrap(), b"x\nx\n");
}

#[tokio::test]
async fn unwritten_output_is_counted() {
    let dir = tempfile::tempdir().unwrap();
    let capture = Capture::new(paths(&dir.path().join("absent")));
    capture.queue_output(Stream::Stdout, b"12345");
    let outcome = capture.finish(Duration::from_secs(30)).await;
    assert_eq!(outcome.shed_bytes, 5);
    assert!(outcome.error.unwrap().contains("cannot write"));
}

#[tokio::test]
async fn a_disk_that_hangs_is_waited_for_once() {
    // A FIFO without a reader hangs like a dead network file system.
    let dir = tempfile::tempdir().unwrap();
    let stdout = dir.path().join("stdout");
    nix::unistd::mkfifo(&stdout, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let reader = OpenOptions::new().read(true).write(true).open(&stdout).unwrap();
    let capture = Capture::new(paths(dir.path()));
    let before = Instant::now();
    for _ in 0..40 {
        capture.queue_output(Stream::Stdout, &vec![b'x'; MAX_QUEUED_BYTES / 2]);
    }
    assert!(capture.shed_bytes() > 0, "the pipe holds far less than was written");
    // Forty waits would take forty times the timeout; the bound is generous for a busy machine.
    assert!(before.elapsed() < 20 * DISK_TIMEOUT);
    let outcome = capture.finish(Duration::from_millis(10)).await;
    assert!(outcome.error.unwrap().contains("does not respond"));
    drop(reader);
}

#[tokio::test]
async fn the_termination_log_is_written_in_place_and_without_a_directory() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("termination-log");
    std::fs::write(&log, "x".repeat(9000)).unwrap();
    let before =
        std::fs::metadata(&log).map(|metadata| std::os::unix::fs::MetadataExt::ino(&metadata));
    let paths = CapturePaths { termination_log: Some(log.clone()), ..CapturePaths::default() };
    let capture = Capture::new(paths);
    capture.queue_output(Stream::Stdout, b"nowhere to keep this");
    let verdict = conclude(&Observations::default());
    capture.queue_verdict(&verdict);
    assert_eq!(capture.finish(Duration::from_secs(30)).await, CaptureOutcome::default());
    let kept = std::fs::read(&log).unwrap();
    assert_eq!(serde_json::from_slice::<Verdict>(&kept).unwrap(), verdict);
    let after =
        std::fs::metadata(&log).map(|metadata| std::os::unix::fs::MetadataExt::ino(&metadata));
    assert_eq!(before.unwrap(), after.unwrap(), "a mount cannot be replaced");
}

#[tokio::test]
async fn the_termination_log_is_written_if_the_directory_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("termination-log");
    let absent = dir.path().join("absent");
    let capture =
        Capture::new(CapturePaths { termination_log: Some(log.clone()), ..paths(&absent) });
    let verdict = conclude(&Observations::default());
    capture.queue_verdict(&verdict);
    let outcome = capture.finish(Duration::from_secs(30)).await;
    assert!(outcome.error.unwrap().contains("cannot write verdict.json"));
    let kept = std::fs::read(&log).unwrap();
    assert_eq!(serde_json::from_slice::<Verdict>(&kept).unwrap(), verdict);
}
