//! The setup before the trial: a missing part prevents the trial's start, and the verdict gives the reason.

use std::process::Command;

use nix::sys::signal::Signal;
use trial_protocol::{Cause, Class};

use crate::test_agent::TestAgent;

/// Nothing listens at this address.
const UNREACHABLE: [&str; 8] =
    ["--manager", "http://127.0.0.1:9", "--experiment", "e", "--trial", "t", "--attempt", "t-1"];

#[test]
fn a_trial_whose_code_cannot_be_fetched_is_not_started() {
    for (kind, what) in
        [("code", "cannot fetch the code"), ("parameters", "cannot fetch the parameters")]
    {
        let options = ["--fetch", kind, "--start-timeout", "300ms", "--flush", "0"];
        let agent = TestAgent::shell(&[&UNREACHABLE[..], &options].concat(), "touch started");
        let ended = agent.run();
        assert_eq!(ended.code, Some(125), "{}", ended.stderr);
        assert!(!ended.path("started").exists());
        let verdict = ended.verdict();
        assert_eq!((verdict.cause, verdict.class), (Cause::KeeperError, Class::Transient));
        let parts =
            [what, "cannot reach the manager at http://127.0.0.1:9/api/v1/agent/", "not to blame"];
        for part in parts {
            assert!(verdict.message.contains(part), "{part}: {}", verdict.message);
        }
    }
}

#[test]
fn a_code_archive_is_unpacked_and_fetched_again_if_damaged() {
    let make = "mkdir pack && echo 'touch ran' >pack/train.sh && tar -czf code.tar.gz -C pack .";
    for (prepare, runs) in [
        (make.to_owned(), true),
        (format!("{make} && truncate -s 60 code.tar.gz"), false),
        ("true".to_owned(), false),
    ] {
        let options = ["--fetch", "code", "--code-archive", "code.tar.gz", "--code-dir", "code"];
        let bounds = ["--start-timeout", "300ms", "--flush", "0"];
        let agent =
            TestAgent::shell(&[&UNREACHABLE[..], &options, &bounds].concat(), "sh train.sh");
        let prepared = Command::new("sh").args(["-c", &prepare]).current_dir(&agent.dir).status();
        assert!(prepared.unwrap().success(), "{prepare}");
        let ended = agent.run();
        assert_eq!(ended.path("code/ran").exists(), runs, "{prepare}: {}", ended.stderr);
        let message = ended.verdict().message;
        assert_eq!(message.contains("cannot fetch the code"), !runs, "{prepare}: {message}");
        // The archive belongs to the caller.
        assert_eq!(ended.path("code.tar.gz").exists(), prepare != "true");
    }
}

#[test]
fn a_pod_that_waits_for_others_can_be_stopped() {
    let options = ["--roles", "worker:2", "--role", "worker", "--role-index", "0", "--flush", "0"];
    let log = ["--log-file", "log", "-vv"];
    let agent = TestAgent::shell(&[&UNREACHABLE[..], &options, &log].concat(), "touch started");
    let running = agent.start();
    let log = running.path("log");
    crate::test_agent::wait_until("the first try", || {
        std::fs::read_to_string(&log).is_ok_and(|log| log.contains("cannot meet the other pods"))
    });
    running.send_signal(Signal::SIGTERM);
    let ended = running.wait();
    // The exit code of a process that SIGTERM ended: neither the trial nor the agent failed.
    assert_eq!(ended.code, Some(143), "{}", ended.stderr);
    assert!(!ended.path("started").exists());
    let verdict = ended.verdict();
    assert_eq!((verdict.cause, verdict.class), (Cause::Stopped, Class::Transient));
    let message = verdict.message;
    assert!(message.contains("SIGTERM requested a stop before the trial was started"), "{message}");
}
