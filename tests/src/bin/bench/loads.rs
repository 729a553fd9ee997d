//! The commands of the measured trials. The trials run this benchmark program with these arguments.

use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

/// The length of a line in bytes, newline included.
pub(super) const LINE_BYTES: u64 = 100;
const LINE_LENGTH: usize = 100;

/// Runs the load that `words` name. Returns `false` if there is no such load.
pub(super) fn run_load(words: &[&str]) -> bool {
    let number = |text: &str| text.parse().expect("the text is a number");
    match words {
        ["one-metric", stamps] => record_times_around_metric(Path::new(stamps)),
        ["lines", count] => print_lines(0, number(count)),
        ["lines-then-gate", count, gate] => {
            print_lines(0, number(count));
            wait_for_file(gate);
        }
        ["paced-lines", stamps] => print_paced_lines(Path::new(stamps)),
        ["paced-metrics", count] => print_paced_metrics(number(count)),
        ["behind", count] => {
            print_lines(0, number(count));
            print_metric(0);
        }
        ["gate", gate] => wait_for_file(gate),
        _ => return false,
    }
    true
}

/// Returns the time in milliseconds since the Unix epoch, with microseconds as fraction.
#[expect(clippy::disallowed_methods, reason = "two processes compare their clocks")]
#[expect(clippy::cast_precision_loss, clippy::as_conversions, reason = "below 2^53 microseconds")]
pub(super) fn now_ms() -> f64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.expect("the clock is after 1970").as_micros() as f64 / 1e3
}

/// Prints a metric whose value is the time, in the format of NNI's SDK, which both keepers read.
fn print_metric(sequence: u64) {
    // The last digit is not 0, so that the decimal point is kept.
    let now = format!("{:.2}1", now_ms());
    let line = format!(
        "NNISDK_MEb'{{\"parameter_id\": 0, \"trial_job_id\": \"abcde\", \"type\": \"PERIODICAL\", \
         \"sequence\": {sequence}, \"value\": \"{now}\"}}'\n"
    );
    io::stdout().write_all(line.as_bytes()).expect("standard output has a reader");
    io::stdout().flush().expect("standard output has a reader");
}

/// Records times close to its first and last instruction, and prints a metric in between.
fn record_times_around_metric(stamps: &Path) {
    let began = now_ms();
    print_metric(0);
    let mut file = fs::File::create(stamps).expect("the folder is writable");
    write!(file, "{began} {}", now_ms()).expect("the folder is writable");
}

/// Prints numbered lines as fast as possible.
fn print_lines(first: u64, count: u64) {
    let mut out = io::stdout().lock();
    let mut block = Vec::with_capacity(64 * 1024);
    for number in first..first + count {
        let start = block.len();
        write!(block, "line {number:010} ").expect("writes to memory succeed");
        block.resize(start + LINE_LENGTH - 1, b'x');
        block.push(b'\n');
        if block.len() > 63 * 1024 {
            out.write_all(&block).expect("standard output has a reader");
            block.clear();
        }
    }
    out.write_all(&block).expect("standard output has a reader");
    out.flush().expect("standard output has a reader");
}

/// Prints 10,000 lines per second for three seconds, ten at a time. Records the time spent in writes and the
/// total time, in milliseconds.
fn print_paced_lines(stamps: &Path) {
    let began = Instant::now();
    let mut waited = Duration::ZERO;
    for tick in 0..3_000_u32 {
        let before = Instant::now();
        print_lines(u64::from(tick) * 10, 10);
        waited += before.elapsed();
        pause_until(began + Duration::from_millis(u64::from(tick)));
    }
    let millis = |time: Duration| time.as_secs_f64() * 1e3;
    fs::write(stamps, format!("{} {}", millis(waited), millis(began.elapsed())))
        .expect("the folder is writable");
}

/// Prints 100 metrics per second from its first instruction.
fn print_paced_metrics(count: u64) {
    let began = Instant::now();
    for number in 0..count {
        print_metric(number);
        pause_until(began + Duration::from_millis(10 * (number + 1)));
    }
}

fn pause_until(then: Instant) {
    let left = then.saturating_duration_since(Instant::now());
    if !left.is_zero() {
        thread::park_timeout(left);
    }
}

fn wait_for_file(gate: &str) {
    while !Path::new(gate).exists() {
        thread::park_timeout(Duration::from_millis(5));
    }
}
