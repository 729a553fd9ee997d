//! Tests of each way to collect a metric.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::json;

use crate::test_agent::{EndedAgent, TestAgent, read_file};

/// Returns the result in the summary.
fn result(ended: &EndedAgent) -> Option<&str> {
    ended.stderr.lines().find_map(|line| line.strip_prefix("trialkeeper: metric")).map(str::trim)
}

#[test]
fn options_select_what_is_collected() {
    #[rustfmt::skip]
    let table: [(&str, &[&str], &str, Option<&str>); 8] = [
        ("text",              &[],                                        "echo loss=1",                  Some("loss = 1")),
        ("JSON",              &[],                                        r#"echo '{"loss": 1}'"#,        Some("loss = 1")),
        ("text only",         &["--collect", "text"],                     r#"echo '{"loss": 1}'"#,        None),
        ("nothing",           &["--collect", "none"],                     "echo loss=1",                  None),
        ("a pattern",         &["--metric-pattern", r"is (?P<acc>\S+)"],  "echo it is 0.5",               Some("acc = 0.5")),
        ("a file of lines",   &["--metric-file", "m.log"],                "printf acc=0.5 >> m.log",      Some("acc = 0.5")),
        ("an objective",      &["--objective", "b"],                      "echo a=1 b=2 c=3",             Some("b = 2")),
        ("the SDK's marker",  &["--collect", "none"],
            r#"printf '%s\n' "NNISDK_MEb'{\"type\": \"FINAL\", \"sequence\": 0, \"value\": \"0.5\"}'""#, Some("default = 0.5")),
    ];
    for (case, options, line, metric) in table {
        let ended = TestAgent::shell(options, line).run();
        assert_eq!(ended.code, Some(0), "{case}: {}", ended.stderr);
        assert_eq!(result(&ended), metric, "{case}: {}", ended.stderr);
    }
}

#[test]
fn a_deeply_nested_object_does_not_hide_the_next_metric() {
    let nested = |open: &str, close: &str, depth| {
        format!("{{\"acc\": 0.5, \"d\": {}1{}}}\n", open.repeat(depth), close.repeat(depth))
    };
    let lines: String = [100, 126, 127, 128, 5_000]
        .into_iter()
        .flat_map(|depth| [nested("[", "]", depth), nested("{\"k\": ", "}", depth)])
        .chain(["acc=0.75\n".to_owned()])
        .collect();
    let marked = lines.replace("acc=", "");
    let marked = marked.lines().map(|line| {
        let value = serde_json::to_string(line).unwrap();
        format!("NNISDK_MEb'{{\"type\": \"PERIODICAL\", \"sequence\": 0, \"value\": {value}}}'\n")
    });
    let marked: String = marked.collect();
    #[rustfmt::skip]
    let table: [(&str, &str, &[&str], &str, &str); 3] = [
        ("printed",   &lines,  &[],                        "cat deep",    "acc = 0.75"),
        ("in a file", &lines,  &["--metric-file", "copy"], "cp deep copy", "acc = 0.75"),
        ("the SDK's", &marked, &[],                        "cat deep",    "default = 0.75"),
    ];
    for (case, text, options, line, metric) in table {
        let agent = TestAgent::shell(options, line);
        fs::write(agent.dir.path().join("deep"), text).unwrap();
        let ended = agent.run();
        assert_eq!(ended.code, Some(0), "{case}: {}", ended.stderr);
        let found = result(&ended).is_some_and(|result| result.starts_with(metric));
        assert!(found, "{case}: {}", ended.stderr);
    }
}

#[test]
fn a_pattern_without_a_metric_name_is_refused() {
    let ended = TestAgent::shell(&["--metric-pattern", "x"], "true").run();
    assert_eq!(ended.code, Some(125));
    assert!(ended.stderr.contains("names no metric"), "{}", ended.stderr);
}

#[test]
fn an_earlier_attempts_file_is_not_read_again() {
    let agent = TestAgent::shell(&["--metric-file", "m.log"], "true");
    fs::write(agent.dir.path().join("m.log"), "acc=0.5\n").unwrap();
    assert_eq!(result(&agent.run()), None);
}

#[test]
fn the_sdks_channel_is_served() {
    let line = r#"printf %s "$NNI_TRIAL_COMMAND_CHANNEL" > url; touch ready
        while ! test -e done; do sleep 0.02; done"#;
    let options = ["--sdk-channel", "http", "--parameters", r#"{"lr": 0.1}"#];
    let running = TestAgent::shell(&options, line).start().wait_for("ready");
    let url = String::from_utf8(read_file(&running.path("url"))).unwrap();
    let (address, path) = url.strip_prefix("http://").unwrap().split_once('/').unwrap();

    let metric = json!({"parameter_id": 0, "trial_job_id": "x", "type": "FINAL", "sequence": 0, "value": "0.75"});
    let body = json!({"type": "metric", "metric": metric.to_string()}).to_string();
    let mut stream = TcpStream::connect(address).unwrap();
    let length = body.len();
    write!(stream, "PUT /{path} HTTP/1.1\r\nhost: {address}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");

    fs::write(running.path("done"), "").unwrap();
    let ended = running.wait();
    assert_eq!(result(&ended), Some("default = 0.75"), "{}", ended.stderr);
}

#[test]
fn a_trial_that_prints_its_environment_reports_nothing() {
    let mut agent = TestAgent::shell(&[], "env; echo PORT=444; echo RATE=2");
    agent.command.env("PORT", "443").env("RATE", "0.5").env("SHLVL", "1");
    let ended = agent.run();
    assert!(ended.stdout().contains("PORT=443\n"), "{}", ended.stdout());
    assert!(ended.stderr.contains("metric     RATE = 2"), "{}", ended.stderr);
    assert!(ended.stderr.contains("results    2 intermediate"), "{}", ended.stderr);
    // Unless the variable is the objective.
    let mut agent = TestAgent::shell(&["--objective", "RATE"], "env");
    agent.command.env("RATE", "0.5");
    let ended = agent.run();
    assert!(ended.stderr.contains("metric     RATE = 0.5"), "{}", ended.stderr);
}
