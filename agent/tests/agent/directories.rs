//! The files of a run, and the trial's view of them.

use std::fs;
use std::process::Stdio;

use crate::test_agent::{EndedAgent, TestAgent, trialkeeper_command, with_default_signals};

/// Returns the value of a variable in the trial's output of `env`.
fn variable_in_env<'a>(ended: &'a EndedAgent, name: &str) -> Option<&'a str> {
    ended.stdout().lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='))
}

#[test]
fn the_trial_gets_its_directories_and_parameters() {
    let parameters =
        r#"{"parameter_id": 4, "parameters": {"lr": 0.1, "opt": "it's"}, "parameter_index": 0}"#;
    let mut agent = TestAgent::new(&[
        "--experiment",
        "exp1",
        "--trial",
        "tri1",
        "--sequence",
        "5",
        "--platform",
        "remote",
        "--parameters",
        parameters,
        "--",
        "env",
    ]);
    agent.command.env("TRIALKEEPER_TOKEN_FILE", "/secret").env_remove("PYTHONUNBUFFERED");
    let dir = agent.dir.path().to_owned();
    let ended = agent.run();
    let out = dir.join("out");
    let out = out.to_str().unwrap();
    let file = format!("{out}/parameters.json");
    #[rustfmt::skip]
    let table = [
        ("NNI_PLATFORM",                Some("remote")),
        ("NNI_EXP_ID",                  Some("exp1")),
        ("NNI_TRIAL_JOB_ID",            Some("tri1")),
        ("NNI_TRIAL_SEQ_ID",            Some("5")),
        ("NNI_SYS_DIR",                 Some(out)),
        ("NNI_OUTPUT_DIR",              Some(out)),
        ("NNI_CODE_DIR",                dir.to_str()),
        ("REUSE_MODE",                  Some("true")),
        ("MULTI_PHASE",                 Some("false")),
        ("PYTHONUNBUFFERED",            Some("1")),
        ("TRIALKEEPER_PARAMETERS",      Some(r#"{"lr":0.1,"opt":"it's"}"#)),
        ("TRIALKEEPER_PARAMETERS_FILE", Some(file.as_str())),
        ("TRIALKEEPER_PARAM_lr",        Some("0.1")),
        ("TRIALKEEPER_PARAM_opt",       Some("it's")),
        ("TRIALKEEPER_TOKEN_FILE",      None),
    ];
    for (name, value) in table {
        assert_eq!(variable_in_env(&ended, name), value, "{name}");
    }
    assert_eq!(ended.file("out/parameter.cfg"), parameters.as_bytes());
    assert_eq!(ended.file("out/parameters.json"), br#"{"lr":0.1,"opt":"it's"}"#);
}

#[test]
fn parameters_may_be_in_a_file() {
    let agent = TestAgent::new(&["--parameters", "mine.json", "--", "env"]);
    fs::write(agent.dir.path().join("mine.json"), r#"{"x": 1}"#).unwrap();
    let ended = agent.run();
    assert_eq!(variable_in_env(&ended, "TRIALKEEPER_PARAM_x"), Some("1"), "{}", ended.stderr);
}

#[test]
fn a_reused_directory_gets_the_given_parameters() {
    let first = TestAgent::shell(&["--parameters", r#"{"x":1}"#], "cat out/parameter.cfg").run();
    assert!(first.stdout().contains(r#""x":1"#), "{}", first.stdout());
    let again = |parameters: &[&str]| {
        let line = "cat out/parameter.cfg; echo; echo $TRIALKEEPER_PARAMETERS";
        let mut agent = TestAgent::shell(parameters, line);
        agent.command.current_dir(first.path(""));
        agent.run()
    };
    let second = again(&["--parameters", r#"{"x":2}"#]);
    assert!(second.stdout().contains(r#""parameters":{"x":2}"#), "{}", second.stdout());
    // Without parameters, the earlier record counts.
    let third = again(&[]);
    assert_eq!(third.stdout(), second.stdout());
}

#[test]
fn without_a_directory_a_new_one_is_created() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = trialkeeper_command();
    let output = command.args(["--", "echo", "hi"]).current_dir(&dir).output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    let runs: Vec<_> =
        fs::read_dir(dir.path().join("trialkeeper-runs")).unwrap().flatten().collect();
    assert_eq!(runs.len(), 1);
    assert_eq!(fs::read(runs[0].path().join("stdout")).unwrap(), b"hi\n");
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains(&format!("files      {}", runs[0].path().display())), "{stderr}");
}

#[test]
fn a_directory_that_cannot_be_written_is_replaced() {
    let elsewhere = tempfile::tempdir().unwrap();
    let mut agent = TestAgent::new(&["--output-dir", "/proc/none", "--", "env"]);
    // The command of `TestAgent` sets `--output-dir` already, so this test needs a new command.
    agent.command = {
        let mut command = trialkeeper_command();
        command.args(["run", "--output-dir", "/proc/none", "--", "env"]);
        command.env("TMPDIR", elsewhere.path()).current_dir(agent.dir.path());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    };
    let ended = agent.run();
    assert_eq!(ended.code, Some(0));
    assert!(
        ended.stderr.contains("cannot write the output directory /proc/none"),
        "{}",
        ended.stderr
    );
    assert!(
        variable_in_env(&ended, "NNI_SYS_DIR")
            .unwrap()
            .starts_with(elsewhere.path().to_str().unwrap())
    );
}

#[test]
fn the_trial_runs_without_a_writable_directory() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = trialkeeper_command();
    command.args(["run", "--output-dir", "/proc/none", "--", "sh", "-c", "echo loss=1; exit 6"]);
    let output = command.env("TMPDIR", "/proc/none").current_dir(&dir).output().unwrap();
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(6), &b"loss=1\n"[..]));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("no files are kept"), "{stderr}");
}

#[test]
fn a_file_size_limit_affects_only_the_copies() {
    let dir = tempfile::tempdir().unwrap();
    // The limit is in blocks of 512 bytes.
    let line = format!(
        "ulimit -f 8; exec {} run --output-dir out -- sh -c 'seq 1 10000; exit 6'",
        env!("CARGO_BIN_EXE_trialkeeper")
    );
    let output = with_default_signals("sh").args(["-c", &line]).current_dir(&dir).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(6), "{stderr}");
    assert!(output.stdout.ends_with(b"\n10000\n"));
    assert!(stderr.contains("bytes of output are not in the files"), "{stderr}");
}

#[test]
fn messages_can_go_to_a_file() {
    let ended = TestAgent::new(&["--log-file", "keeper.log", "--", "no-such-program-here"]).run();
    assert!(String::from_utf8(ended.file("keeper.log")).unwrap().contains("error: cannot find"));
    assert!(!ended.stderr.contains("cannot find"), "{}", ended.stderr);
}

#[test]
fn a_log_pipe_without_a_reader_delays_nothing() {
    let agent = TestAgent::new(&["--log-file", "pipe", "--", "no-such-program-here"]);
    let pipe = agent.dir.path().join("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let ended = agent.run();
    assert_eq!(ended.code, Some(127));
    assert!(ended.stderr.contains("cannot open the log file pipe"), "{}", ended.stderr);
    assert!(ended.stderr.contains("error: cannot find"), "{}", ended.stderr);
}

#[test]
fn a_provisional_verdict_is_written_before_the_end() {
    let line = "echo working; exec sleep 1000";
    let running =
        TestAgent::shell(&["--termination-log", "log"], line).start().wait_for("out/verdict.json");
    let ahead: trial_protocol::Verdict =
        serde_json::from_slice(&crate::test_agent::read_file(&running.path("out/verdict.json")))
            .unwrap();
    assert_eq!((ahead.exit, ahead.evidence.stdout_tail.as_str()), (None, "working\n"));
    let running = running.wait_for("log");
    running.send_signal(nix::sys::signal::Signal::SIGTERM);
    let ended = running.wait();
    let short: trial_protocol::Verdict = serde_json::from_slice(&ended.file("log")).unwrap();
    assert_eq!(short.exit, ended.verdict().exit);
    assert!(short.exit.is_some());
}

#[test]
fn output_files_are_rotated() {
    let ended = TestAgent::shell(&["--rotate-bytes", "4096"], "seq 1 10000").run();
    let (aside, last) = (ended.file("out/stdout.1"), ended.file("out/stdout"));
    assert!(aside.len() <= 4096 && last.len() <= 4096 && last.ends_with(b"\n10000\n"));
    assert!(ended.stdout().ends_with(&String::from_utf8([aside, last].concat()).unwrap()));
}
