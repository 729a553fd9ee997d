//! Measures a program from outside: its time, its memory and its size. Also measures the limits of the
//! machine.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::thread;
use std::time::Instant;

use super::status_megabytes;

/// Returns the wall time of one run, in milliseconds.
pub(super) fn run_time_ms(command: &mut Command) -> f64 {
    let began = Instant::now();
    command.status().expect("the program can be started");
    began.elapsed().as_secs_f64() * 1e3
}

/// Returns the peak memory of a program in MB. Then opens the gate, and waits for the end of the program.
pub(super) fn measure_peak_and_end(mut child: Child, gate: &str) -> f64 {
    let pid = i32::try_from(child.id()).expect("Linux has pids below 2^22");
    let peak = status_megabytes(pid, "VmHWM");
    fs::write(gate, "").expect("the folder is writable");
    child.wait().expect("the process is a child of this process");
    fs::remove_file(gate).expect("this function created it");
    peak
}

/// Returns the processor time of all threads of a process so far, in milliseconds
/// (`/proc/PID/task/TID/schedstat`).
pub(super) fn processor_ms(pid: u32) -> f64 {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).expect("the process runs");
    let used = threads.flatten().filter_map(|thread| {
        let text = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<f64>().ok()
    });
    used.sum::<f64>() / 1e6
}

/// Reads the two numbers that a trial has written.
pub(super) fn read_two_numbers(path: &Path) -> (f64, f64) {
    let text = fs::read_to_string(path).expect("the trial wrote it");
    let number = |text: &str| text.parse().expect("the trial wrote numbers");
    let (one, two) = text.split_once(' ').expect("the trial wrote two numbers");
    (number(one), number(two))
}

/// Searches a program in `PATH`.
pub(super) fn find_program(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(program)).find(|path| path.exists())
}

/// Returns a file's size in bytes as text.
pub(super) fn file_size_text(path: &Path) -> String {
    fs::metadata(path).map(|data| data.len().to_string()).unwrap_or_default()
}

/// Returns the number of sequential requests per second over loopback between two threads. Requests have the
/// size of a post. It is the upper limit for an agent that posts one line at a time to a remote server.
pub(super) fn sequential_request_rate(requests: u32) -> f64 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
    let address = listener.local_addr().expect("the listener has an address");
    let answering = thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("the connection is accepted");
        stream.set_nodelay(true).expect("the socket is connected");
        let mut request = [0; 512];
        while stream.read(&mut request).is_ok_and(|read| read > 0) {
            stream.write_all(&[b'a'; 100]).expect("the connection is open");
        }
    });
    let mut stream = TcpStream::connect(address).expect("the connection is accepted");
    stream.set_nodelay(true).expect("the socket is connected");
    let began = Instant::now();
    for _ in 0..requests {
        stream.write_all(&[b'q'; 300]).expect("the connection is open");
        let mut answer = [0; 100];
        stream.read_exact(&mut answer).expect("the server answers");
    }
    let rate = f64::from(requests) / began.elapsed().as_secs_f64();
    drop(stream);
    answering.join().expect("the thread does not panic");
    rate
}
