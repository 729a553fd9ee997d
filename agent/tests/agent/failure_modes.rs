//! Known failures of other keepers, each as reported for them.

use std::os::unix::fs::PermissionsExt as _;
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use nix::sys::signal::Signal;
use trial_protocol::{Cause, ReportBody};

use crate::manager::Manager;
use crate::test_agent::{TestAgent, is_alive, trialkeeper_command, wait_until};

/// Kubernetes may end a pod while its first process is still starting. At any point of the start, the agent must end
/// and leave no process of the trial.
#[test]
fn a_term_during_the_start_is_not_lost() {
    for delay_us in (0..30_000).step_by(1_500) {
        let running = TestAgent::shell(&[], "echo $$ >pid; exec sleep 1000").start();
        // Hits many points of the start; the agent must handle each.
        thread::park_timeout(Duration::from_micros(delay_us));
        running.send_signal(Signal::SIGTERM);
        let ended = running.wait();
        let stopped = ended.code == Some(143);
        // Before the agent handles signals, there is no trial, and the signal's default action applies.
        assert!(stopped || ended.code.is_none(), "after {delay_us} us: {:?}", ended.code);
        if let Ok(pid) = std::fs::read_to_string(ended.path("pid")) {
            let pid = pid.trim().parse().unwrap_or(u32::MAX);
            wait_until("the trial to be gone", || !is_alive(pid));
        }
    }
}

/// Since Kubernetes 1.28, a process that uses too much memory takes down its whole container, including the agent. The
/// next attempt finds and reports the provisional verdict.
#[test]
fn the_next_attempt_reports_the_verdict_of_a_killed_agent() {
    let manager = Manager::start(vec![]);
    let first = TestAgent::shell(&manager.options(&[]), "touch ready; exec sleep 1000").start();
    let first = first.wait_for("ready");
    wait_until("the provisional verdict", || first.path("out/verdict.json").exists());
    first.send_signal(Signal::SIGKILL);
    let first = first.wait();
    assert_eq!(first.code, None);

    let mut again = trialkeeper_command();
    again.arg("run").args(manager.options(&["--output-dir"])).arg(first.path("out"));
    again.args(["--shell", "exit 0"]).stdout(Stdio::null()).stderr(Stdio::null());
    assert_eq!(again.status().unwrap().code(), Some(0));
    let state = manager.state.lock().unwrap();
    let note = state.facts.iter().find_map(|report| match &report.body {
        ReportBody::Note { code, message } if code == "earlier-attempt" => Some(message.clone()),
        ReportBody::Note { .. }
        | ReportBody::Started(_)
        | ReportBody::Metric(_)
        | ReportBody::Ended(_)
        | ReportBody::Shed(_)
        | ReportBody::Log(_)
        | ReportBody::Sample(_)
        | ReportBody::Unknown => None,
    });
    let note = note.expect("a note about the earlier attempt");
    assert!(note.contains("was cut off together with its agent"), "{note}");
}

/// A driver call can hang permanently, together with the program that makes it, even on SIGTERM.
#[test]
fn a_gpu_program_that_hangs_or_disappears_does_not_affect_the_trial() {
    for (case, script) in [
        (
            "it hangs and ignores SIGTERM",
            "#!/bin/sh\ntrap '' TERM INT HUP\nwhile :; do sleep 1; done\n",
        ),
        ("it disappears", "#!/bin/sh\nrm \"$0\"\nexit 1\n"),
        ("it prints nonsense", "#!/bin/sh\nwhile :; do echo 'no, GPU, here'; done\n"),
    ] {
        let agent = TestAgent::shell(
            &["--gpu-program", "./smi", "--sample-interval", "20ms"],
            "for i in 1 2 3 4 5; do sleep 0.05; echo score=$i; done",
        );
        let program = agent.dir.path().join("smi");
        std::fs::write(&program, script).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        let ended = agent.run();
        assert_eq!(ended.code, Some(0), "{case}: {}", ended.stderr);
        assert_eq!(ended.verdict().cause, Cause::Succeeded, "{case}");
        assert_eq!(ended.stdout(), "score=1\nscore=2\nscore=3\nscore=4\nscore=5\n", "{case}");
    }
}

/// A manager that is unreachable for days fills the spool: logs are dropped, metrics and the verdict are not, and the
/// trial succeeds.
#[test]
fn a_full_spool_keeps_metrics_and_the_verdict() {
    let manager = Manager::start(vec![]);
    let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let url = format!("http://{address}");
    let small = ["--spool-bytes", "20000", "--log-collection", "http", "--flush", "100ms"];
    let mut options = manager.options(&small);
    let real = std::mem::replace(&mut options[1], &url).to_owned();
    // The log alone exceeds the spool's size, however it is interleaved with the metrics.
    let line = "for i in $(seq 300); do printf '%0200d\\n' $i; echo score=$i; done";
    let ended = TestAgent::shell(&options, line).run();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(ended.stderr.contains("/spool --manager http://127.0.0.1:"), "{}", ended.stderr);

    let mut replay = trialkeeper_command();
    replay.arg("replay").arg(ended.path("out")).args(["--manager", &real]);
    assert!(replay.output().unwrap().status.success());
    let state = manager.state.lock().unwrap();
    let count =
        |is: fn(&ReportBody) -> bool| state.facts.iter().filter(|report| is(&report.body)).count();
    assert_eq!(count(|body| matches!(body, ReportBody::Metric(_))), 301, "and the result");
    assert_eq!(count(|body| matches!(body, ReportBody::Ended(_))), 1);
    assert!(
        count(|body| matches!(body, ReportBody::Shed(_))) >= 1,
        "the dropped reports are counted"
    );
}
