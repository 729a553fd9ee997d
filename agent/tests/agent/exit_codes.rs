//! Exit codes: the trial's own, or the code for a trial that did not start.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;

use trial_protocol::{Cause, TrialExit};

use crate::test_agent::{TestAgent, trialkeeper_command};

#[test]
fn every_exit_code_is_passed_on() {
    for code in 0..=255 {
        let ended = TestAgent::shell(&[], &format!("exit {code}")).run();
        assert_eq!(ended.code, Some(code), "{}", ended.stderr);
    }
}

#[test]
fn a_fatal_signal_gives_128_plus_its_number() {
    // Signals 1 to 64 without those that are ignored, stop or continue, and without the two that the C library
    // reserves.
    let harmless = [17, 18, 19, 20, 21, 22, 23, 28, 32, 33];
    for signal in (1..=64).filter(|signal| !harmless.contains(signal)) {
        // Not a shell line: bash survives some of these signals.
        let line = format!("ulimit -c 0; kill -{signal} $$");
        let ended = TestAgent::new(&["--", "sh", "-c", &line]).run();
        assert_eq!(ended.code, Some(128 + signal), "signal {signal}: {}", ended.stderr);
        let exit = TrialExit::Signal(u8::try_from(signal).unwrap());
        assert_eq!(ended.verdict().exit, Some(exit), "signal {signal}");
    }
}

#[test]
fn commands_that_cannot_run_have_codes_of_their_own() {
    #[rustfmt::skip]
    let table: [(&[&str], _, _); 5] = [
        (&["no-such-program-here"],  127, Cause::NotFound),
        (&["/no/such/program"],      127, Cause::NotFound),
        (&[""],                      127, Cause::NotFound),
        (&["/etc/passwd"],           126, Cause::NotExecutable),
        (&["/"],                     126, Cause::NotExecutable),
    ];
    for (trial, code, cause) in table {
        let words: Vec<_> = ["--"].iter().chain(trial).copied().collect();
        let ended = TestAgent::new(&words).run();
        assert_eq!(ended.code, Some(code), "{trial:?}");
        assert_eq!(ended.verdict().cause, cause, "{trial:?}");
        assert!(ended.stderr.contains("trialkeeper: error: cannot "), "{}", ended.stderr);
    }
}

#[test]
fn a_script_without_an_interpreter_line_runs_in_the_shell() {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("train");
    std::fs::write(&script, "[ \"$1\" = 'a b' ] && exit \"$2\"\n").unwrap();
    std::fs::set_permissions(&script, Permissions::from_mode(0o755)).unwrap();
    let path = std::env::var("PATH").unwrap();
    let path = format!("/no/such/folder:{}:{path}", folder.path().display());
    for program in [script.to_str().unwrap(), "train"] {
        let mut agent = TestAgent::new(&["--", program, "a b", "7"]);
        agent.command.env("PATH", &path);
        let ended = agent.run();
        assert_eq!(ended.code, Some(7), "{program}: {}", ended.stderr);
    }
}

#[test]
fn a_bad_command_line_is_a_fault_of_the_agent() {
    #[rustfmt::skip]
    let table: [(&[&str], _); 7] = [
        (&["--listen", "somewhere", "--", "true"],     125),
        (&["--no-such-flag", "--", "true"],              125),
        (&["--grace", "soon", "--", "true"],             125),
        (&["--manager", "http://127.0.0.1:9", "true"],   125),
        (&["--parameters", "/no/such/file", "true"],     125),
        (&["--parameters", "{not json", "true"],         125),
        (&["--help"],                                    0),
    ];
    for (words, code) in table {
        let ended = TestAgent::new(words).run();
        assert_eq!(ended.code, Some(code), "{words:?}: {}", ended.stderr);
    }
}

#[test]
fn version_and_help_need_no_trial() {
    for (words, code) in
        [(&["--version"][..], 0), (&["--help"], 0), (&[], 125), (&["nonsense"], 125)]
    {
        let output = trialkeeper_command().args(words).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{words:?}");
    }
}

#[test]
fn a_bare_command_is_run() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = trialkeeper_command();
    let output = command.args(["--", "sh", "-c", "exit 9"]).current_dir(&dir).output().unwrap();
    assert_eq!(output.status.code(), Some(9));
}

#[test]
fn a_shell_line_may_use_any_shell_syntax() {
    let ended = TestAgent::shell(&[], r#"x="it's"; echo "$x" | tr s S && (exit 3)"#).run();
    assert_eq!((ended.code, ended.stdout()), (Some(3), "it'S\n"));
}

/// Lines that `sh` need not understand. With some of them, `sh` would succeed without doing anything.
#[test]
fn bash_runs_a_shell_line() {
    let lines = [
        "[[ abc == a* ]] && exit 7",
        "echo exit 7 >activate; source ./activate",
        "set -o pipefail; (exit 7) | cat",
        "set -- {1..7}; exit $#",
        "read -r code < <(echo 7); exit $code",
    ];
    for line in lines {
        let ended = TestAgent::shell(&[], line).run();
        assert_eq!(ended.code, Some(7), "{line}: {}", ended.stderr);
    }
}

#[test]
fn the_summary_names_the_metrics() {
    let ended = TestAgent::shell(&["-v"], "echo loss=0.5; echo loss=0.25").run();
    assert_eq!(ended.code, Some(0));
    for line in [
        "trialkeeper: loss[0] = 0.5",
        "trialkeeper: metric     loss = 0.25",
        "trialkeeper: results    2 intermediate",
        "trialkeeper: exit code  0",
    ] {
        assert!(ended.stderr.lines().any(|other| other == line), "{line:?} in {}", ended.stderr);
    }
    assert_eq!(ended.stdout(), "loss=0.5\nloss=0.25\n");
}

#[test]
fn the_metric_file_is_read_to_its_end() {
    let line = r#"mkdir -p "$NNI_SYS_DIR/.nni"
        metric='{"parameter_id": 0, "trial_job_id": "x", "type": "FINAL", "sequence": 0, "value": "0.75"}'
        printf 'ME%06d%s\n' $((${#metric} + 1)) "$metric" >> "$NNI_SYS_DIR/.nni/metrics""#;
    let ended = TestAgent::shell(&[], line).run();
    assert!(ended.stderr.contains("default = 0.75"), "{}", ended.stderr);
}

#[test]
fn the_metric_file_is_read_while_the_trial_runs() {
    let line = r#"mkdir -p "$NNI_SYS_DIR/.nni"; touch "$NNI_SYS_DIR/.nni/metrics"
        metric='{"parameter_id": 0, "trial_job_id": "x", "type": "PERIODICAL", "sequence": 0, "value": "0.75"}'
        printf 'ME%06d%s\n' $((${#metric} + 1)) "$metric" >> "$NNI_SYS_DIR/.nni/metrics"
        touch ready; exec sleep 1000"#;
    let mut agent = TestAgent::shell(&["-v"], line);
    let seen = agent.dir.path().join("stderr");
    agent.command.stderr(std::fs::File::create(&seen).unwrap());
    let running = agent.start().wait_for("ready");
    crate::test_agent::wait_until("the metric on stderr", || {
        std::fs::read_to_string(&seen).unwrap().contains("default[0] = 0.75")
    });
    running.send_signal(nix::sys::signal::Signal::SIGTERM);
    assert_eq!(running.wait().code, Some(143));
}

#[test]
fn exit_codes_can_follow_frameworkcontroller() {
    #[rustfmt::skip]
    let table = [
        ("exit 0",           0),
        ("exit 3",           210),
        ("kill -9 $$",       200),
        ("no-such-program",  210),
    ];
    for (line, code) in table {
        let ended = TestAgent::shell(&["--exit-code-map", "frameworkcontroller"], line).run();
        let verdict = ended.verdict();
        assert_eq!(ended.code, Some(code), "{line}: {:?} {:?}", verdict.class, verdict.exit);
    }
}
