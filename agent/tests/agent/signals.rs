//! Signals: forwarded, or still ignored as by the caller.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use trial_protocol::Cause;

use crate::test_agent::{TestAgent, process_state, wait_until, with_default_signals};

#[test]
fn signals_are_passed_on() {
    for (signal, name) in [
        (Signal::SIGINT, "INT"),
        (Signal::SIGHUP, "HUP"),
        (Signal::SIGQUIT, "QUIT"),
        (Signal::SIGUSR1, "USR1"),
        (Signal::SIGUSR2, "USR2"),
        (Signal::SIGWINCH, "WINCH"),
        (Signal::SIGCONT, "CONT"),
    ] {
        let line = format!("trap 'exit 9' {name}; touch ready; while :; do sleep 0.05; done");
        let running = TestAgent::shell(&[], &line).start().wait_for("ready");
        running.send_signal(signal);
        let ended = running.wait();
        assert_eq!(ended.code, Some(9), "{name}");
        assert_eq!(ended.verdict().cause, Cause::Exit, "{name}: the trial chose its exit code");
    }
}

#[test]
fn a_trial_that_dies_of_a_signal_passed_on_was_stopped() {
    // The shell creates the file itself: while it waits for a program such as `touch`, it may ignore the signal.
    let running = TestAgent::shell(&[], ": >ready; exec sleep 1000").start().wait_for("ready");
    running.send_signal(Signal::SIGINT);
    let ended = running.wait();
    assert_eq!(ended.code, Some(130));
    assert_eq!(ended.verdict().cause, Cause::Stopped);
}

#[test]
fn a_term_to_trial_and_agent_alike_is_a_stop() {
    for _ in 0..5 {
        let running = TestAgent::shell(&[], "echo $$ >pid; exec sleep 1000").start();
        let trial = i32::try_from(running.wait_for_pid("pid")).unwrap();
        // The stopped agent gets its signal no later than it notices the end of the trial.
        let agent = running.pid();
        running.send_signal(Signal::SIGSTOP);
        wait_until("the agent is stopped", || {
            process_state(agent).is_some_and(|(state, _)| state == 'T')
        });
        kill(Pid::from_raw(trial), Signal::SIGTERM).unwrap();
        running.send_signal(Signal::SIGTERM);
        running.send_signal(Signal::SIGCONT);
        let ended = running.wait();
        assert_eq!(ended.code, Some(143));
        assert_eq!(ended.verdict().cause, Cause::Stopped);
    }
}

/// Returns a mask in the trial's `/proc/self/status`, without the real-time signals. C libraries and sandboxes reserve
/// some of those.
fn mask(status: &str, name: &str) -> u64 {
    let value = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    u64::from_str_radix(value.trim(), 16).unwrap() & 0x7fff_ffff
}

#[test]
fn the_trial_starts_with_nothing_blocked_or_ignored() {
    let ended = TestAgent::new(&["--", "cat", "/proc/self/status"]).run();
    assert_eq!(mask(ended.stdout(), "SigBlk:"), 0);
    assert_eq!(
        mask(ended.stdout(), "SigIgn:"),
        0,
        "not even SIGPIPE and SIGXFSZ, which the agent ignores"
    );
}

#[test]
fn signals_that_the_caller_ignores_stay_ignored() {
    let agent = env!("CARGO_BIN_EXE_trialkeeper");
    let line = format!(
        "trap '' HUP; exec {agent} run --output-dir out -- \
         sh -c 'kill -HUP $PPID; kill -HUP $$; cat /proc/self/status'"
    );
    let dir = tempfile::tempdir().unwrap();
    let output = with_default_signals("sh").args(["-c", &line]).current_dir(&dir).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(mask(std::str::from_utf8(&output.stdout).unwrap(), "SigIgn:"), 1);
}

#[test]
fn in_the_background_of_a_script_interrupts_are_ignored_and_term_is_obeyed() {
    // A shell without job control ignores INT and QUIT in a background command: Ctrl-C is for another process.
    let agent = env!("CARGO_BIN_EXE_trialkeeper");
    let line = format!(
        "{agent} run --output-dir out -- sh -c 'cat /proc/self/status; touch ready; exec sleep 1000' &
         while ! test -e ready; do sleep 0.02; done
         kill -INT $!; kill -QUIT $!; kill -TERM $!; wait $!"
    );
    let dir = tempfile::tempdir().unwrap();
    let output = with_default_signals("sh").args(["-c", &line]).current_dir(&dir).output().unwrap();
    assert_eq!(output.status.code(), Some(143), "{}", String::from_utf8_lossy(&output.stderr));
    let int_and_quit = 1 << (2 - 1) | 1 << (3 - 1);
    assert_eq!(mask(std::str::from_utf8(&output.stdout).unwrap(), "SigIgn:"), int_and_quit);
}

#[test]
fn the_trial_leads_a_process_group_of_its_own() {
    let ended = TestAgent::shell(&[], "echo $$; cut -d ' ' -f 5 /proc/$$/stat").run();
    let lines: Vec<_> = ended.stdout().lines().collect();
    assert_eq!(lines[0], lines[1]);
}
