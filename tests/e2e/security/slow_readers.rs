//! Clients that request much data and read none of it.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use nix::unistd::Pid;
use trialkeeper_tests::{Gate, Outcome, Search, TestBed, WAIT_TIMEOUT, http_get, wait_for};

/// The number of parallel clients.
const PARALLEL_CLIENTS: usize = 120;
/// The number of rounds in which the clients connect and leave.
const CLIENT_ROUNDS: usize = 4;
/// The length of the requested log, in bytes.
const LOG_BYTES: usize = 16 << 20;
const LOG_END_OFFSET: u64 = 16 << 20;
/// The maximum additional memory of the manager for all clients, in KiB. An earlier version needed 2 MiB per
/// client.
const CLIENT_MEMORY_KIB: usize = 112 << 10;

/// The maximum additional memory after the clients have left, in KiB. The allocator may keep it.
const REMAINING_MEMORY_KIB: usize = 48 << 10;

/// Returns a value of /proc/PID/status in KiB.
fn memory_kib(pid: Pid, name: &str) -> usize {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.trim_start_matches(':').trim().trim_end_matches(" kB").parse().unwrap()
}

/// Requests a list and reads no part of the answer.
fn request_without_reading(host: &str, path: &str) -> TcpStream {
    let mut stream = TcpStream::connect(host).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: {host}\r\n\r\n").unwrap();
    stream
}

/// Requests a log and reads only the first bytes of the answer.
fn request_and_read_start(host: &str, path: &str) -> TcpStream {
    let mut stream = TcpStream::connect(host).unwrap();
    stream.set_read_timeout(Some(WAIT_TIMEOUT)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: {host}\r\n\r\n").unwrap();
    let mut first = [0; 12];
    stream.read_exact(&mut first).unwrap();
    assert_eq!(&first, b"HTTP/1.1 200");
    stream
}

#[test]
fn clients_that_read_nothing_use_little_memory_and_block_no_others() {
    let bed = TestBed::new();
    let gate = Gate::new(&bed.path("gate"));
    let line = format!(
        "seq 1 10000 | sed s/^/score=/; yes 0123456789abcde | head -c {LOG_BYTES}; read _ <{}; echo score=1",
        gate.path().display()
    );
    let manager = Search::new(&line, 1).start(&bed);
    let url = wait_for("the manager's address", WAIT_TIMEOUT, || bed.find_manager_url());
    let path = wait_for("the whole log", WAIT_TIMEOUT, || {
        let (_, listed) = http_get(&url, "/api/v1/trials")?;
        let listed: serde_json::Value = serde_json::from_str(&listed).ok()?;
        let id = listed["trials"][0]["id"].as_str()?.to_owned();
        let (_, part) = http_get(&url, &format!("/api/v1/trials/{id}/log?limit=1"))?;
        let part: serde_json::Value = serde_json::from_str(&part).ok()?;
        (part["end"].as_u64()? >= LOG_END_OFFSET).then(|| format!("/api/v1/trials/{id}/log/stdout"))
    });
    let before = memory_kib(manager.pid(), "VmRSS");
    let host = url.strip_prefix("http://").unwrap();
    for _ in 0..CLIENT_ROUNDS {
        let clients: Vec<_> =
            (0..PARALLEL_CLIENTS).map(|_| request_and_read_start(host, &path)).collect();
        // Other requests are still answered.
        assert_eq!(http_get(&url, "/").unwrap().0, 200);
        let most = memory_kib(manager.pid(), "VmHWM");
        assert!(most < before + CLIENT_MEMORY_KIB, "{most} KiB, {before} KiB before");
        drop(clients);
        wait_for("the release of the readers' memory", WAIT_TIMEOUT, || {
            (memory_kib(manager.pid(), "VmRSS") < before + REMAINING_MEMORY_KIB).then_some(())
        });
    }
    let list = path.replace("/log/stdout", "/metrics?limit=10000");
    let clients: Vec<_> =
        (0..PARALLEL_CLIENTS).map(|_| request_without_reading(host, &list)).collect();
    assert_eq!(http_get(&url, "/").unwrap().0, 200);
    // The allocator's heaps may keep memory of many small values. The limit still applies.
    let most = memory_kib(manager.pid(), "VmHWM");
    assert!(most < before + CLIENT_MEMORY_KIB, "{most} KiB, {before} KiB before");
    drop(clients);
    let (status, body) = http_get(&url, &path).unwrap();
    assert!(status == 200 && body.len() >= LOG_BYTES, "{status}, {} bytes", body.len());
    let most = memory_kib(manager.pid(), "VmHWM");
    assert!(most < before + CLIENT_MEMORY_KIB, "{most} KiB, {before} KiB before");
    gate.release(1);
    Outcome::parse(manager.finish(WAIT_TIMEOUT)).expect_done(1, 0);
}
