//! The trial's whole process tree: stopped, killed, reaped, and named in the verdict.

use nix::sys::signal::Signal;
use trial_protocol::Cause;

use crate::test_agent::{TestAgent, children, is_alive, process_state, send_signal, wait_until};

const IGNORES_TERM: &str = r#"trap "" TERM; touch ready; while :; do sleep 0.05; done"#;

#[test]
fn orphans_are_reaped() {
    let line = "for i in 1 2 3 4 5 6 7 8 9; do (sh -c : &); done; touch ready; exec sleep 1000";
    let running = TestAgent::shell(&[], line).start().wait_for("ready");
    let agent = running.pid();
    wait_until("only the trial is left, and no zombie", || {
        let children = children(agent);
        let trial = children.iter().filter(|(pid, _)| !is_a_guard(*pid)).count();
        trial == 1 && children.iter().all(|(_, state)| *state != 'Z')
    });
    running.send_signal(Signal::SIGTERM);
    assert_eq!(running.wait().code, Some(143));
}

#[test]
fn a_trial_may_handle_sigterm() {
    let line = r#"trap "echo bye; exit 7" TERM; touch ready; while :; do sleep 0.05; done"#;
    let running = TestAgent::shell(&[], line).start().wait_for("ready");
    running.send_signal(Signal::SIGTERM);
    let ended = running.wait();
    assert_eq!((ended.code, ended.stdout()), (Some(7), "bye\n"));
    assert_eq!(ended.verdict().cause, Cause::Stopped);
}

#[test]
fn a_trial_that_ignores_sigterm_is_killed_after_its_grace() {
    let running = TestAgent::shell(&["--grace", "200ms"], IGNORES_TERM).start().wait_for("ready");
    running.send_signal(Signal::SIGTERM);
    let ended = running.wait();
    assert_eq!(ended.code, Some(137));
    assert_eq!(ended.verdict().cause, Cause::Stopped);
}

#[test]
fn processes_killed_with_a_trial_are_named() {
    let line = r#"trap "" TERM; setsid sh -c 'echo $$ > inner; while :; do sleep 0.05; done' &
        while :; do sleep 0.05; done"#;
    let running = TestAgent::shell(&["--grace", "200ms"], line).start();
    let inner = running.wait_for_pid("inner");
    running.send_signal(Signal::SIGTERM);
    let ended = running.wait();
    assert_eq!(ended.code, Some(137));
    assert!(!is_alive(inner));
    let leftovers = ended.verdict().evidence.leftovers;
    assert!(leftovers.contains(&format!("{inner} sh")), "{leftovers:?}");
}

#[test]
fn a_verdict_names_the_sender_of_the_signal() {
    let running = TestAgent::shell(&[], "touch ready; exec sleep 600").start().wait_for("ready");
    running.send_signal(Signal::SIGTERM);
    let sender = running.wait().verdict().evidence.signal_sender.expect("the test sent the signal");
    assert_eq!(sender.pid, std::process::id());
    assert_eq!(sender.uid, nix::unistd::getuid().as_raw());
    assert!(sender.name.is_some() && !sender.kernel, "{sender:?}");
}

/// Otherwise the kernel would reap the trial itself, and the exit code would be lost.
#[test]
fn a_launcher_that_ignores_sigchld_does_not_hide_the_exit_code() {
    for line in ["exit 3", "echo x; sleep 0.1; exit 3"] {
        let agent = TestAgent::shell(&[], line);
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", "trap '' CHLD; exec \"$0\" \"$@\""]).arg(agent.command.get_program());
        shell.args(agent.command.get_args()).current_dir(agent.dir.path());
        assert_eq!(shell.output().unwrap().status.code(), Some(3), "{line}");
    }
}

#[test]
fn a_second_term_shortens_the_grace() {
    let line = r#"trap "touch asked" TERM; touch ready; while :; do sleep 0.05; done"#;
    let running = TestAgent::shell(&["--grace", "1h"], line).start().wait_for("ready");
    running.send_signal(Signal::SIGTERM);
    let running = running.wait_for("asked");
    // Signals that follow the first one at once count as the same.
    let agent = running.pid();
    wait_until("the trial is killed", || {
        running.send_signal(Signal::SIGTERM);
        children(agent).is_empty()
    });
    assert_eq!(running.wait().code, Some(137));
}

/// A script with workers, such as those of data loaders, that saves a checkpoint when it is asked to stop.
const SCRIPT_WITH_WORKERS: &str = r#"
import os, signal, time

main, asked = os.getpid(), []
for _ in range(2):
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, lambda *_: os.getppid() == main and open("hit", "w"))
        while os.getppid() == main:
            time.sleep(0.01)
        os._exit(0)
signal.signal(signal.SIGTERM, lambda *_: asked.append(True))
open("ready", "w")
while not asked:
    time.sleep(0.01)
open("saved", "w")
"#;

#[test]
fn a_stop_spares_the_workers_of_a_program_that_handles_it() {
    for line in ["exec python3 main.py", "python3 main.py; exit $?"] {
        let agent = TestAgent::shell(&["--grace", "1h"], line);
        std::fs::write(agent.dir.path().join("main.py"), SCRIPT_WITH_WORKERS).unwrap();
        let running = agent.start().wait_for("ready");
        running.send_signal(Signal::SIGTERM);
        let ended = running.wait();
        let has = |name: &str| ended.path(name).exists();
        assert!(has("saved") && !has("hit"), "{line}");
    }
}

/// A script that leaves workers behind, which do not end by themselves.
#[test]
fn spared_workers_are_stopped_when_their_program_has_ended() {
    let script = SCRIPT_WITH_WORKERS.replace("while os.getppid() == main:", "while True:");
    let script = script
        .replace("lambda *_: os.getppid() == main and open(\"hit\", \"w\")", "signal.SIG_DFL");
    let agent = TestAgent::shell(&["--grace", "1h"], "exec python3 main.py");
    std::fs::write(agent.dir.path().join("main.py"), script).unwrap();
    let running = agent.start().wait_for("ready");
    running.send_signal(Signal::SIGTERM);
    assert_eq!(running.wait().code, Some(0));
}

#[test]
fn a_suspended_trial_can_be_ended() {
    let running = TestAgent::shell(&[], "touch ready; kill -STOP $$").start().wait_for("ready");
    let agent = running.pid();
    wait_until("the trial is stopped", || children(agent).iter().any(|(_, state)| *state == 'T'));
    running.send_signal(Signal::SIGTERM);
    assert_eq!(running.wait().code, Some(143));
}

#[test]
fn descendants_with_a_session_of_their_own_are_stopped_too() {
    let line = "setsid sh -c 'echo $$ > inner; exec sleep 1000' & exec sleep 1000";
    let running = TestAgent::shell(&[], line).start();
    let inner = running.wait_for_pid("inner");
    running.send_signal(Signal::SIGTERM);
    assert_eq!(running.wait().code, Some(143));
    assert!(!is_alive(inner));
}

#[test]
fn processes_that_a_trial_leaves_behind_are_killed_and_named() {
    let line = r#"setsid sh -c 'trap "" TERM; echo $$ > inner; while :; do sleep 0.05; done' \
        > /dev/null 2>&1 & while ! test -s inner; do sleep 0.02; done; exit 4"#;
    let running = TestAgent::shell(&["--drain", "200ms"], line).start();
    let inner = running.wait_for_pid("inner");
    let ended = running.wait();
    assert_eq!(ended.code, Some(4), "the exit is the trial's own");
    assert!(!is_alive(inner));
    let verdict = ended.verdict();
    let leftovers = verdict.evidence.leftovers;
    assert!(leftovers.contains(&format!("{inner} sh")), "{leftovers:?}");
    assert!(verdict.message.contains("had to be killed (SIGKILL)"), "{}", verdict.message);
    assert!(!verdict.message.contains("still running"), "{}", verdict.message);
}

#[test]
fn a_grandchild_that_holds_the_pipe_delays_the_end_by_the_drain_only() {
    // Ignores SIGTERM, so that only the kill at the end of the drain ends it.
    let line = r#"sh -c 'trap "" TERM; echo from below; echo $$ > inner; while :; do sleep 0.05; done' &
        while ! test -s inner; do sleep 0.02; done; printf last"#;
    let running = TestAgent::shell(&["--drain", "200ms"], line).start();
    let inner = running.wait_for_pid("inner");
    let ended = running.wait();
    assert_eq!((ended.code, ended.stdout()), (Some(0), "from below\nlast"));
    assert!(!is_alive(inner));
}

#[test]
fn a_helper_behind_a_pipe_may_finish_its_work() {
    // The trial ends at once. Another process prints its output and needs a moment.
    let line = "(sleep 0.1; echo late) & exit 0";
    let ended = TestAgent::shell(&[], line).run();
    assert_eq!((ended.code, ended.stdout()), (Some(0), "late\n"));
}

#[test]
fn leftovers_that_end_on_sigterm_are_named() {
    // The background process has other names before it becomes `sleep`.
    let line = "setsid sleep 1000 & until grep -q sleep /proc/$!/comm; do sleep 0.02; done";
    let ended = TestAgent::shell(&["--drain", "200ms"], line).run();
    assert_eq!(ended.code, Some(0));
    let verdict = ended.verdict();
    assert_eq!(verdict.evidence.leftovers.len(), 1, "{verdict:?}");
    assert!(verdict.evidence.leftovers[0].ends_with(" sleep"), "{verdict:?}");
    assert!(ended.stderr.contains("1 leftover process ended on SIGTERM."), "{}", ended.stderr);
}

#[test]
fn the_trial_dies_with_its_agent() {
    let running = TestAgent::new(&["--", "sh", "-c", "echo $$ > trial; exec sleep 1000"]).start();
    let trial = running.wait_for_pid("trial");
    running.send_signal(Signal::SIGKILL);
    running.wait();
    wait_until("the trial is gone", || !is_alive(trial));
}

const DRAIN_WORD: &str = "drain-of-a-trial";

/// Returns whether this process is an agent's guard.
fn is_a_guard(pid: u32) -> bool {
    has_word(pid, "guard-of-a-trial")
}

fn has_word(pid: u32, word: &str) -> bool {
    std::fs::read(format!("/proc/{pid}/cmdline"))
        .is_ok_and(|words| words.split(|byte| *byte == 0).any(|other| other == word.as_bytes()))
}

pub(crate) fn is_guarded(agent: u32) -> bool {
    children(agent).iter().any(|(pid, _)| is_a_guard(*pid))
}

#[test]
fn processes_of_the_trial_die_with_the_agent_too() {
    let stay = "exec sleep 1000";
    #[rustfmt::skip]
    let table = [
        ("a child of a shell",          format!("sh -c 'echo $$ > inner; {stay}' & wait")),
        ("in a session of its own",     format!("setsid sh -c 'echo $$ > inner; {stay}' & wait")),
        ("forked twice",                format!("(setsid sh -c '(echo $$ > inner; {stay}) &' &); {stay}")),
        ("without the environment",     format!("env -i /bin/sh -c 'echo $$ > inner; {stay}' & wait")),
        ("and below one without it",    format!("setsid sh -c 'env -i /bin/sh -c \"echo \\$\\$ > inner; {stay}\"; :' & wait")),
        ("when its own process is gone", format!("setsid sh -c 'trap \"\" TERM; echo $$ > inner; {stay}' & while ! test -e go; do sleep 0.02; done; exit 3")),
    ];
    for (case, line) in table {
        let mut agent = TestAgent::shell(&["--drain", "1h"], &line);
        // The leftover processes inherit these. Pipes would make the test wait for them.
        agent.command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
        let running = agent.start();
        let (agent, inner) = (running.pid(), running.wait_for_pid("inner"));
        wait_until("the guard", || is_guarded(agent));
        if case.starts_with("when") {
            std::fs::write(running.path("go"), "").unwrap();
            wait_until("the trial's own process is gone", || {
                process_state(inner).is_some_and(|(_, parent)| parent == agent)
            });
        }
        let guards = children(agent);
        running.send_signal(Signal::SIGKILL);
        running.wait();
        wait_until(case, || !is_alive(inner));
        wait_until("the guard is gone", || guards.iter().all(|(pid, _)| !is_alive(*pid)));
    }
}

#[test]
fn the_guard_is_not_part_of_the_trial_and_ends_with_its_agent() {
    let line = "touch ready; while ! test -e go; do sleep 0.02; done";
    let running = TestAgent::shell(&["--drain", "1h"], line).start().wait_for("ready");
    let agent = running.pid();
    wait_until("the guard", || is_guarded(agent));
    let guard = children(agent);
    std::fs::write(running.path("go"), "").unwrap();
    let ended = running.wait();
    assert_eq!((ended.code, ended.verdict().evidence.leftovers), (Some(0), Vec::new()));
    assert!(guard.iter().all(|(pid, _)| process_state(*pid).is_none()), "reaped by its agent");
}

#[test]
fn a_killed_guard_is_replaced() {
    let line =
        "echo $$ > trial; (setsid sleep 600 >/dev/null 2>&1 & echo $! > inner); exec sleep 600";
    let mut agent = TestAgent::shell(&[], line);
    agent.command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
    let running = agent.start();
    let (agent, inner) = (running.pid(), running.wait_for_pid("inner"));
    let guard = || children(agent).into_iter().map(|(pid, _)| pid).find(|pid| is_a_guard(*pid));
    for _ in 0..3 {
        wait_until("the guard", || is_guarded(agent));
        let killed = guard().unwrap();
        send_signal(killed, Signal::SIGKILL);
        wait_until("another guard", || guard().is_some_and(|other| other != killed));
    }
    running.send_signal(Signal::SIGKILL);
    running.wait();
    wait_until("the end of the leftover process", || !is_alive(inner));
}

#[test]
fn repeatedly_killed_guards_are_abandoned_with_a_warning() {
    let line = "touch ready; while ! test -e go; do sleep 0.02; done";
    let running = TestAgent::shell(&[], line).start().wait_for("ready");
    let agent = running.pid();
    let guard = || children(agent).into_iter().map(|(pid, _)| pid).find(|pid| is_a_guard(*pid));
    let mut killed = Vec::new();
    for _ in 0..4 {
        wait_until("another guard", || guard().is_some_and(|other| !killed.contains(&other)));
        killed.push(guard().unwrap());
        send_signal(killed[killed.len() - 1], Signal::SIGKILL);
    }
    wait_until("the last guard is gone", || killed.iter().all(|pid| process_state(*pid).is_none()));
    std::fs::write(running.path("go"), "").unwrap();
    let ended = running.wait();
    assert_eq!(ended.code, Some(0));
    let stderr = ended.stderr;
    assert_eq!(stderr.matches("another was started").count(), 3, "{stderr}");
    assert_eq!(stderr.matches("it is not replaced").count(), 1, "{stderr}");
}

#[test]
fn a_trial_that_kills_itself_is_named_as_a_possible_sender() {
    for line in ["kill -9 0", "kill -9 $$"] {
        let ended = TestAgent::shell(&[], line).start().wait();
        assert_eq!(ended.code, Some(137), "{line}");
        let message = ended.verdict().message;
        assert!(message.contains("the trial itself"), "{line}: {message}");
    }
}

#[test]
fn a_detached_trial_survives_its_agent() {
    // The trial prints before and after the agent's end. A line without a reader would end it.
    let line = r"echo $$ > trial; until [ -e killed ]; do echo before; sleep 0.02; done
        seq 1 20000; echo after; echo error >&2; touch printed; exec sleep 1000";
    let mut agent = TestAgent::shell(&["--detach-on-death"], line);
    // The trial inherits these. Pipes would make the test wait for it.
    agent.command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
    let running = agent.start();
    let (agent, trial) = (running.pid(), running.wait_for_pid("trial"));
    wait_until("the draining process", || {
        children(agent).iter().any(|(pid, _)| has_word(*pid, DRAIN_WORD))
    });
    let drain = children(agent).into_iter().find(|(pid, _)| has_word(*pid, DRAIN_WORD)).unwrap().0;
    assert!(!is_guarded(agent));
    running.send_signal(Signal::SIGKILL);
    // The kernel kills the child at the parent's death, before it gets another parent. So a child with another parent
    // survives.
    wait_until("the trial has another parent", || {
        process_state(trial).is_some_and(|(_, of)| of != agent)
    });
    std::fs::write(running.path("killed"), "").unwrap();
    let running = running.wait_for("printed");
    let ends =
        |name: &str, end: &str| std::fs::read_to_string(running.path(name)).unwrap().ends_with(end);
    wait_until("the trial's whole output", || {
        ends("out/stdout", "\n20000\nafter\n") && ends("out/stderr", "error\n")
    });
    assert!(is_alive(trial));
    send_signal(trial, Signal::SIGKILL);
    wait_until("the draining process is gone", || !is_alive(drain));
    running.wait();
}
