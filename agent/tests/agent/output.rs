//! The trial's output: unchanged and in separate streams, whatever its content and its readers.

use std::io::{Read, pipe};

use trial_protocol::Verdict;

use crate::test_agent::{TestAgent, wait_until, with_default_signals};

/// Compares without printing megabytes on failure.
#[track_caller]
fn assert_same_bytes(got: &[u8], expected: &[u8]) {
    let differs = got.iter().zip(expected).position(|(a, b)| a != b);
    assert!(
        got == expected,
        "{} bytes instead of {}, differing at {differs:?}",
        got.len(),
        expected.len()
    );
}

#[test]
fn bytes_pass_unchanged() {
    let long = "x".repeat(10_000_000);
    #[rustfmt::skip]
    let table = [
        ("nothing",                 "true",                                  Vec::new()),
        ("not UTF-8",               r"printf '\377\376\0\n\200abc\n'",       b"\xff\xfe\0\n\x80abc\n".to_vec()),
        ("no final newline",        "printf 'a\nb'",                         b"a\nb".to_vec()),
        ("carriage returns",        r"printf '1%%\r2%%\r\n'",                b"1%\r2%\r\n".to_vec()),
        ("a broken marker",         r"printf 'NNISDK_MEb{\nNNISDK_MEb'",     b"NNISDK_MEb{\nNNISDK_MEb".to_vec()),
        ("a line of ten megabytes", "head -c 10000000 /dev/zero | tr '\\0' x", long.into_bytes()),
    ];
    for (case, line, bytes) in table {
        let ended = TestAgent::shell(&[], line).run();
        assert_eq!(ended.code, Some(0), "{case}");
        assert_same_bytes(&ended.stdout, &bytes);
        if !bytes.is_empty() {
            assert_same_bytes(&ended.file("out/stdout"), &bytes);
        }
    }
}

#[test]
fn a_million_lines_pass_in_order() {
    let ended = TestAgent::shell(&[], "seq 1 1000000").run();
    let expected = (1..=1_000_000).fold(String::new(), |text, n: u32| text + &n.to_string() + "\n");
    assert_same_bytes(&ended.stdout, expected.as_bytes());
    assert_same_bytes(&ended.file("out/stdout"), expected.as_bytes());
}

#[test]
fn wherever_descriptors_run_out_no_output_is_lost() {
    // The shell itself needs eleven descriptors.
    for limit in 12..=20 {
        let dir = tempfile::tempdir().unwrap();
        let line = format!(
            "ulimit -n {limit}; exec {} run --output-dir out -- sh -c 'echo one; echo two >&2; exit 6'",
            env!("CARGO_BIN_EXE_trialkeeper")
        );
        let output =
            with_default_signals("sh").args(["-c", &line]).current_dir(&dir).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(6), "{limit}: {stderr}");
        assert_eq!(output.stdout, b"one\n", "{limit}: {stderr}");
        assert!(stderr.lines().any(|line| line == "two"), "{limit}: {stderr}");
    }
}

#[test]
fn the_two_streams_stay_separate() {
    let line = "for i in 1 2 3; do echo out $i; echo err $i >&2; done";
    let ended = TestAgent::shell(&[], line).run();
    assert_eq!(ended.stdout(), "out 1\nout 2\nout 3\n");
    assert!(ended.stderr.starts_with("err 1\nerr 2\nerr 3\ntrialkeeper: "), "{}", ended.stderr);
    assert_eq!(ended.file("out/stderr"), b"err 1\nerr 2\nerr 3\n");
    let evidence = ended.verdict().evidence;
    assert!(evidence.stdout_tail.ends_with("out 3\n") && evidence.stderr_tail.ends_with("err 3\n"));
}

#[test]
fn a_closed_stdout_does_not_affect_the_trial() {
    let mut agent = TestAgent::shell(&[], "seq 1 100000 && exit 5");
    let (reader, writer) = pipe().unwrap();
    drop(reader);
    agent.command.stdout(writer);
    let ended = agent.run();
    assert_eq!(ended.code, Some(5), "{}", ended.stderr);
    assert!(ended.file("out/stdout").ends_with(b"\n100000\n"));
}

#[test]
fn a_stalled_reader_of_the_agents_messages_delays_nothing() {
    let line = "i=0; while [ $i -lt 20000 ]; do echo loss=$i; i=$((i+1)); done; exit 5";
    let mut agent = TestAgent::shell(&["-v"], line);
    let (reader, writer) = pipe().unwrap();
    agent.command.stderr(writer);
    let ended = agent.run();
    assert_eq!(ended.code, Some(5));
    assert!(ended.stdout().ends_with("loss=19999\n"));
    drop(reader);
}

#[test]
fn a_slow_reader_at_the_end_loses_no_output() {
    // More than one pipe holds, but not more than the pipes of the agent and the trial together.
    let mut agent = TestAgent::shell(&[], "seq 1 20000; echo acc=0.9");
    let (mut reader, writer) = pipe().unwrap();
    agent.command.stdout(writer);
    let running = agent.start();
    let verdict = running.path("out/verdict.json");
    let read = || serde_json::from_slice::<Verdict>(&std::fs::read(&verdict).ok()?).ok();
    wait_until("a verdict", || read().is_some_and(|verdict| verdict.exit.is_some()));
    let verdict = read().unwrap();
    assert!(verdict.evidence.leftovers.is_empty());
    assert!(verdict.evidence.stdout_tail.ends_with("20000\nacc=0.9\n"), "{verdict:?}");
    // The test keeps its own end of the pipe open, so it cannot wait for the end of the stream.
    let mut expected =
        (1..=20_000).fold(String::new(), |text, n: u32| text + &n.to_string() + "\n");
    expected.push_str("acc=0.9\n");
    let mut taken = vec![0; expected.len()];
    reader.read_exact(&mut taken).unwrap();
    assert_same_bytes(&taken, expected.as_bytes());
    let ended = running.wait();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(ended.stderr.contains("metric     acc = 0.9"), "{}", ended.stderr);
    assert_same_bytes(&ended.file("out/stdout"), expected.as_bytes());
}

#[test]
fn sigterm_ends_the_wait_for_a_stalled_reader() {
    let mut agent = TestAgent::shell(&[], "seq 1 20000; echo acc=0.9");
    let (reader, writer) = pipe().unwrap();
    agent.command.stdout(writer);
    let running = agent.start();
    let verdict = running.path("out/verdict.json");
    let read = || serde_json::from_slice::<Verdict>(&std::fs::read(&verdict).ok()?).ok();
    wait_until("a verdict", || read().is_some_and(|verdict| verdict.exit.is_some()));
    running.send_signal(nix::sys::signal::Signal::SIGTERM);
    let ended = running.wait();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(
        ended.stderr.contains("bytes of output were not read by the receiver"),
        "{}",
        ended.stderr
    );
    assert!(ended.file("out/stdout").ends_with(b"\nacc=0.9\n"));
    drop(reader);
}

#[test]
fn a_reader_that_closes_early_does_not_affect_the_trial() {
    let mut agent = TestAgent::shell(&[], "seq 1 100000 && exit 5");
    let (mut reader, writer) = pipe().unwrap();
    agent.command.stdout(writer);
    let running = agent.start();
    let mut some = [0; 1000];
    reader.read_exact(&mut some).unwrap();
    drop(reader);
    let ended = running.wait();
    assert_eq!(ended.code, Some(5), "{}", ended.stderr);
    assert!(ended.file("out/stdout").ends_with(b"\n100000\n"));
}

#[test]
fn the_trial_reads_the_callers_stdin() {
    let mut agent = TestAgent::new(&["--", "cat"]);
    let (reader, mut writer) = pipe().unwrap();
    agent.command.stdin(reader);
    let running = agent.start();
    std::io::Write::write_all(&mut writer, b"hello").unwrap();
    drop(writer);
    // `start` keeps the command and its reading end of the pipe. Only the closed writing end matters.
    assert_eq!(running.wait().stdout(), "hello");
}
