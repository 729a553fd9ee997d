//! `--listen`: the answers to HTTP clients.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;

use nix::sys::signal::Signal;

use crate::test_agent::{TestAgent, wait_until};

/// Returns the address that the agent announces.
fn announced_address(stderr: &Path) -> String {
    let find = || {
        let text = fs::read_to_string(stderr).ok()?;
        let (_, after) = text.split_once("listens on http://")?;
        Some(after.lines().next()?.to_owned()).filter(|_| after.contains('\n'))
    };
    wait_until("an address", || find().is_some());
    find().unwrap()
}

fn send_request(address: &str, line: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "{line} HTTP/1.1\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn health_and_metrics_are_served() {
    let line =
        r#"echo loss=0.5; printf '%s\n' '{"bad \"na\\me": 2}'; touch ready; exec sleep 1000"#;
    let options = ["-vv", "--listen", "127.0.0.1:0", "--sample-interval", "50ms"];
    let mut agent = TestAgent::shell(&options, line);
    let stderr = agent.dir.path().join("stderr");
    agent.command.stderr(File::create(&stderr).unwrap());
    let running = agent.start().wait_for("ready");
    let address = announced_address(&stderr);

    let health = send_request(&address, "GET /healthz");
    assert!(health.starts_with("HTTP/1.1 200 OK\r\n") && health.ends_with("\r\nok\n"), "{health}");
    assert!(health.contains("\r\nContent-Type: text/plain\r\n"), "{health}");
    let wanted = [
        "\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n",
        "\ntrialkeeper_trial_phase{phase=\"running\"} 1\n",
        "\ntrialkeeper_metric{name=\"loss\"} 0.5\n",
        "\ntrialkeeper_metric{name=\"bad \\\"na\\\\me\"} 2\n",
        "\ntrialkeeper_processes 1\n",
        "\ntrialkeeper_spool_reports{lane=\"facts\"} ",
    ];
    // The first sample and the last metric may take a moment.
    let all = || {
        let page = send_request(&address, "GET /metrics?from=a+test");
        wanted.iter().all(|text| page.contains(text))
    };
    wait_until("everything on the page", all);
    for (line, status) in [("GET /", "404"), ("PUT /metrics", "405"), ("POST /healthz", "405")] {
        let answer = send_request(&address, line);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{line}: {answer}");
    }
    running.send_signal(Signal::SIGTERM);
    assert_eq!(running.wait().code, Some(143));
    assert!(TcpStream::connect(&address).is_err(), "the port is closed after the end");
}

#[test]
fn an_address_in_use_is_a_warning_and_the_trial_runs() {
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = other.local_addr().unwrap().to_string();
    let ended = TestAgent::shell(&["--listen", &address], "sleep 0.1; exit 6").run();
    assert_eq!(ended.code, Some(6));
    assert!(
        ended.stderr.contains(&format!("warning: cannot listen on {address}")),
        "{}",
        ended.stderr
    );
}
