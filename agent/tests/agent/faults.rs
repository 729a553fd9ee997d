//! A fault of the agent itself, in any part, ends neither the trial nor the copying of its output.

use nix::sys::signal::Signal;
use trial_protocol::{Cause, TrialExit};

use crate::test_agent::{TestAgent, wait_until};

/// The places and the ways in which the program is made to fail.
const FAULT_PLACES: [&str; 6] =
    ["pump", "supervise", "spool", "abort:pump", "abort:supervise", "abort:spool"];

/// The message that the trial is held.
const HAND_OVER_MESSAGE: &str = "trialkeeper has failed. The trial continues";

fn failing_agent(fault: &str, line: &str) -> TestAgent {
    let mut agent = TestAgent::shell(&["--grace", "1s"], line);
    agent.command.env("TRIALKEEPER_FAULT", fault);
    agent
}

/// A trial that prints, so that every part has work, and then waits for the file `go`.
const WAITING_TRIAL: &str = "echo x=1; echo $$ >pid; until [ -e go ]; do sleep 0.01; done;";

fn wait_until_held(agent: u32) {
    wait_until("the new program", || {
        let words = std::fs::read(format!("/proc/{agent}/cmdline")).unwrap_or_default();
        words.split(|byte| *byte == 0).any(|word| word == b"--fallback")
    });
}

#[test]
fn the_trial_continues_and_its_exit_code_is_passed_on() {
    for fault in FAULT_PLACES {
        let line = format!("{WAITING_TRIAL} echo out; echo err >&2; exit 7");
        let running = failing_agent(fault, &line).start().wait_for("pid");
        wait_until_held(running.pid());
        std::fs::write(running.path("go"), "").unwrap();
        let ended = running.wait();
        assert_eq!(ended.code, Some(7), "{fault}: {}", ended.stderr);
        assert!(ended.stdout().ends_with("out\n"), "{fault}: {:?}", ended.stdout());
        assert!(ended.stderr.contains("\nerr\n"), "{fault}: {}", ended.stderr);
        assert_eq!(ended.stderr.matches(HAND_OVER_MESSAGE).count(), 1, "{fault}: {}", ended.stderr);
        let verdict = ended.verdict();
        assert_eq!(verdict.exit, Some(TrialExit::Code(7)), "{fault}");
        assert!(verdict.message.contains("trialkeeper itself failed"), "{}", verdict.message);
    }
}

#[test]
fn a_secret_is_masked_in_the_verdict_of_a_held_trial_too() {
    let mut agent = failing_agent("pump", &format!("{WAITING_TRIAL} echo key $KEY; exit 7"));
    agent.command.args(["--mask-env", "KEY"]).env("KEY", "first line of it\nsecond line of it");
    let running = agent.start().wait_for("pid");
    wait_until_held(running.pid());
    std::fs::write(running.path("go"), "").unwrap();
    let tail = running.wait().verdict().evidence.stdout_tail;
    assert_eq!(tail, "key *** ***\n");
}

#[test]
fn a_held_trial_gets_sigterm_and_then_sigkill() {
    for (line, code) in [("", 143), ("trap 'exit 3' TERM;", 3), ("trap '' TERM;", 137)] {
        let running =
            failing_agent("pump", &format!("{line} {WAITING_TRIAL}")).start().wait_for("pid");
        wait_until_held(running.pid());
        running.send_signal(Signal::SIGTERM);
        let ended = running.wait();
        assert_eq!(ended.code, Some(code), "{line}: {}", ended.stderr);
        assert_eq!(ended.verdict().cause, Cause::Stopped, "{line}");
    }
}

#[test]
fn a_stop_before_the_fault_is_completed() {
    let line = "trap 'echo asked; trap : TERM' TERM; touch ready; while :; do sleep 0.01; done";
    let running = failing_agent("pump", line).start().wait_for("ready");
    // The trial's output after the signal is the first that the pump reads.
    running.send_signal(Signal::SIGTERM);
    let ended = running.wait();
    assert_eq!(ended.code, Some(137), "{}", ended.stderr);
    assert_eq!(ended.stderr.matches(HAND_OVER_MESSAGE).count(), 1, "{}", ended.stderr);
    assert_eq!(ended.verdict().cause, Cause::Stopped);
}

/// Each of two threads that fail at once signals the main thread; the second signal may come too late.
#[test]
fn two_faults_at_once_cause_one_hand_over() {
    for _ in 0..20 {
        let line = "echo out & echo err >&2; wait; until [ -e go ]; do sleep 0.01; done; exit 5";
        let running = failing_agent("pump", line).start();
        wait_until_held(running.pid());
        std::fs::write(running.path("go"), "").unwrap();
        let ended = running.wait();
        assert_eq!(ended.code, Some(5), "{}", ended.stderr);
        assert_eq!(ended.stderr.matches(HAND_OVER_MESSAGE).count(), 1, "{}", ended.stderr);
    }
}

/// The trial ends while the agent fails at the trial's last output.
#[test]
fn a_trial_that_ends_during_the_fault_keeps_its_exit_code() {
    for _ in 0..20 {
        let ended = failing_agent("pump", "sleep 0.02; echo out; exit 5").run();
        assert_eq!(ended.code, Some(5), "{}", ended.stderr);
    }
}

#[test]
fn a_held_trial_keeps_its_guard() {
    let line = "(setsid sleep 600 >/dev/null 2>&1 & echo $! >orphan); until [ -e guarded ]; do sleep 0.01; done; \
                echo x; exec sleep 600";
    let running = failing_agent("pump", line).start().wait_for("orphan");
    let orphan = running.wait_for_pid("orphan");
    wait_until("the guard", || crate::tree::is_guarded(running.pid()));
    std::fs::write(running.path("guarded"), "").unwrap();
    wait_until_held(running.pid());
    running.send_signal(Signal::SIGKILL);
    wait_until("the end of what the trial started", || !crate::test_agent::is_alive(orphan));
}

#[test]
fn other_signals_reach_a_held_trial_and_orphans_are_reaped() {
    let line = format!(
        "trap 'echo usr1; touch go' USR1; (sleep 600 >/dev/null 2>&1 & echo $! >orphan); {WAITING_TRIAL} exit 0"
    );
    let running = failing_agent("abort:pump", &line).start().wait_for("pid");
    let orphan = running.wait_for_pid("orphan");
    wait_until_held(running.pid());
    running.send_signal(Signal::SIGUSR1);
    let ended = running.wait();
    assert_eq!((ended.code, ended.stdout()), (Some(0), "usr1\n"), "{}", ended.stderr);
    assert!(!crate::test_agent::is_alive(orphan), "the leftover process is ended");
}

#[test]
fn a_lot_of_output_passes_through_a_held_trial() {
    // The output that the pump holds when it fails is lost, so only later output is compared.
    let running =
        failing_agent("pump", &format!("{WAITING_TRIAL} seq 200000")).start().wait_for("pid");
    wait_until_held(running.pid());
    std::fs::write(running.path("go"), "").unwrap();
    let ended = running.wait();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let expected: Vec<String> = (1..=200_000).map(|n| n.to_string()).collect();
    assert!(ended.stdout().lines().eq(expected), "{} bytes", ended.stdout.len());
}

#[test]
fn a_fault_before_the_trial_is_an_agent_error() {
    let mut agent = TestAgent::new(&["--", "true"]);
    agent.command.args(["x"]).env("TRIALKEEPER_FAULT", "prepare");
    let ended = agent.run();
    assert_eq!(ended.code, Some(125), "{}", ended.stderr);
    assert!(ended.stderr.contains("a fault in trialkeeper"), "{}", ended.stderr);
}
