//! A browser's session survives a restart of the manager, and a log-out ends it on the server.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use nix::sys::signal::Signal;
use trialkeeper_tests::{Gate, Outcome, Search, TestBed, WAIT_TIMEOUT, send_request, wait_for};

/// Sends a request with these header lines and returns the head of the answer.
fn request_head(url: &str, what: &str, lines: &str) -> String {
    let host = url.strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(host).unwrap();
    stream.set_read_timeout(Some(WAIT_TIMEOUT)).unwrap();
    let request = format!(
        "{what} HTTP/1.1\r\nhost: {host}\r\n{lines}content-length: 0\r\nconnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer.split_once("\r\n\r\n").unwrap().0.to_ascii_lowercase()
}

#[test]
fn a_session_survives_a_restart_and_ends_with_its_log_out() {
    let bed = TestBed::new();
    let gate = Gate::new(&bed.path("gate"));
    let line = format!("read _ <{}; echo score=1", gate.path().display());
    let manager = Search::new(&line, 1).start(&bed);
    let folder = wait_for("the experiment's folder", WAIT_TIMEOUT, || {
        let folder = bed.find_experiment_folder()?;
        folder.join("manager.url").exists().then_some(folder)
    });
    let id = folder.file_name().unwrap().to_str().unwrap().to_owned();
    let url = || bed.manager_url();
    let token = bed.user_token();
    let shown = format!("authorization: bearer {token}\r\n");
    let log_in = || {
        // Not with `head`, which lowercases the case-sensitive cookie.
        let host = url();
        let host = host.strip_prefix("http://").unwrap();
        let mut stream = TcpStream::connect(host).unwrap();
        let request = format!(
            "POST /api/v1/session HTTP/1.1\r\nhost: {host}\r\n{shown}content-length: 0\r\nconnection: close\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let cookie = answer.split_once("set-cookie: ").unwrap().1.split(';').next().unwrap();
        format!("cookie: {cookie}\r\n")
    };
    let (left, kept) = (log_in(), log_in());
    assert_ne!(left, kept);
    let ticket = |cookie: &str| request_head(&url(), "POST /api/v1/session/ticket", cookie);
    assert!(ticket(&left).starts_with("http/1.1 200"), "{}", ticket(&left));
    assert!(request_head(&url(), "DELETE /api/v1/session", &left).starts_with("http/1.1 204"));
    assert!(ticket(&left).starts_with("http/1.1 401"), "{}", ticket(&left));

    manager.signal(Signal::SIGKILL);
    assert_eq!(manager.finish(WAIT_TIMEOUT).code, None);
    fs::remove_file(folder.join("manager.url")).unwrap();
    let manager = Outcome::start_resume(&bed, &id);
    wait_for("the next manager", WAIT_TIMEOUT, || {
        folder.join("manager.url").exists().then_some(())
    });
    assert!(ticket(&kept).starts_with("http/1.1 200"), "{}", ticket(&kept));
    assert!(ticket(&left).starts_with("http/1.1 401"), "{}", ticket(&left));
    assert_eq!(send_request(&url(), "DELETE /api/v1/session", "tku1.wrong", "").unwrap().0, 401);
    gate.release(1);
    Outcome::parse(manager.finish(WAIT_TIMEOUT)).expect_done(1, 0);
}
