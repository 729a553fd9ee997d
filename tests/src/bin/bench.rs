//! Measures the real programs from outside, and prints the figures with NNI's. No figure is asserted.
//!
//! `bench agent` measures the agent, see `bench/agent.rs`. The other subcommands measure searches: `cargo run
//! --release -p trialkeeper-tests --bin bench -- all`. NNI 3.0 was measured on another machine, so quote
//! ratios and not milliseconds.

use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use loads::now_ms;
use rusqlite::Connection;
use trialkeeper_tests::{Gate, Outcome, RunningProgram, Search, TestBed, WAIT_TIMEOUT, wait_for};

#[path = "bench/agent.rs"]
mod agent;
#[path = "bench/loads.rs"]
mod loads;
#[path = "bench/measure.rs"]
mod measure;
#[path = "bench/remote.rs"]
mod remote;
#[path = "bench/sink.rs"]
mod sink;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["turnover"] => measure_turnover(),
        ["throughput"] => measure_throughput(),
        ["idle"] => measure_idle_use(),
        ["latency"] => measure_latency(),
        ["remote"] => remote::print_remote_figures(),
        ["agent", ref wanted @ ..] => agent::print_table(wanted),
        ["all"] => [measure_turnover, measure_throughput, measure_idle_use, measure_latency]
            .iter()
            .for_each(|measure| measure()),
        // The commands of the measured trials.
        ["stamp", file] => record_run_times(Path::new(file)),
        ["echo", gate] => print_metric_per_line(Path::new(gate)),
        ref words if loads::run_load(words) => {}
        _ => {
            print_line(
                "usage: bench agent [ROW...] | turnover | throughput | idle | latency | remote | all",
            );
            return ExitCode::from(2);
        }
    }
    ExitCode::SUCCESS
}

#[expect(clippy::print_stdout, reason = "the result of this program is its output")]
fn print_line(line: &str) {
    println!("{line}");
}

fn print_figure(what: &str, ours: &str, nni: &str) {
    print_line(&format!("{what:<58} {ours:>14}   NNI 3.0: {nni}"));
}

/// Returns a trial command that runs this program.
fn trial_command(words: &str) -> String {
    let program = std::env::current_exe().expect("a running program has a path");
    format!("exec '{}' {words}", program.display())
}

fn median_and_p95(values: &mut [f64]) -> (f64, f64) {
    values.sort_by(f64::total_cmp);
    assert!(!values.is_empty(), "nothing was measured");
    let at = |percent: usize| values[(values.len() - 1) * percent / 100];
    (at(50), at(95))
}

/// Measures the time from a trial's end to the next one's start, by the trials' clock.
fn measure_turnover() {
    for concurrency in [1_usize, 2] {
        let bed = TestBed::new();
        let log = bed.path("stamps");
        let command = trial_command(&format!("stamp '{}'", log.display()));
        let search = Search::new(&command, 200).with("trialConcurrency", concurrency).run(&bed);
        search.expect_done(200, 0);
        let (middle, slow) = turnover_percentiles(&bed.read("stamps"), concurrency);
        print_figure(
            &format!("trial turnover, concurrency {concurrency}, median (95th percentile)"),
            &format!("{middle:.1} ({slow:.1}) ms"),
            "1,084 ms",
        );
    }
}

/// Returns the median and the 95th percentile of the times between a trial's end and the next one's start, in
/// milliseconds.
fn turnover_percentiles(stamps: &str, concurrency: usize) -> (f64, f64) {
    let (mut starts, mut ends): (Vec<f64>, Vec<f64>) = stamps
        .lines()
        .map(|line| {
            let (start, end) = line.split_once(' ').expect("a line contains two stamps");
            let ms = |text: &str| text.parse::<f64>().expect("a stamp is a number");
            (ms(start), ms(end))
        })
        .unzip();
    starts.sort_by(f64::total_cmp);
    ends.sort_by(f64::total_cmp);
    // End number k frees the slot of start number k + concurrency.
    let mut gaps: Vec<f64> =
        starts.iter().skip(concurrency).zip(&ends).map(|(start, end)| start - end).collect();
    median_and_p95(&mut gaps)
}

/// The trial of [`measure_turnover`]: records its start and its end, in milliseconds.
fn record_run_times(file: &Path) {
    let start = now_ms();
    print_line("score=1");
    let log = OpenOptions::new().create(true).append(true).open(file);
    let line = format!("{start:.3} {:.3}\n", now_ms());
    log.and_then(|mut log| log.write_all(line.as_bytes())).expect("the bed is writable");
}

/// Measures trials per minute, from the manager's start to its exit.
fn measure_throughput() {
    let bed = TestBed::new();
    let trials = 1_000_u32;
    let search = Search::new("true", trials).with("trialConcurrency", 2);
    let began = Instant::now();
    search.run(&bed).expect_done(1_000, 0);
    let minutes = began.elapsed().as_secs_f64() / 60.0;
    print_figure(
        "throughput, trial `true`, concurrency 2",
        &format!("{:.0}/minute", f64::from(trials) / minutes),
        "137/minute",
    );
}

/// Starts a search with one trial that waits at a gate.
fn start_waiting_search(bed: &TestBed, gate: &Gate) -> RunningProgram {
    let command = trial_command(&format!("echo '{}'", gate.path().display()));
    let manager = Search::new(&command, 1).start(bed);
    // One step is released, so that the trial runs and prints its first metric.
    gate.release(1);
    manager
}

fn open_store(bed: &TestBed) -> Connection {
    wait_for("the store", WAIT_TIMEOUT, || bed.find_store())
}

fn wait_for_metrics(store: &Connection, count: i64) {
    wait_for("a metric in the store", WAIT_TIMEOUT, || {
        let seen: i64 = store
            .query_row("SELECT count(*) FROM report WHERE kind = 'metric'", [], |row| row.get(0))
            .ok()?;
        (seen >= count).then_some(())
    });
}

/// Measures the resident memory and the processor time of an idle manager and an idle agent.
fn measure_idle_use() {
    let bed = TestBed::new();
    let gate = Gate::new(&bed.path("gate"));
    let manager = start_waiting_search(&bed, &gate);
    wait_for_metrics(&open_store(&bed), 1);
    let agent = bed.processes().into_iter().find(|(_, words)| {
        words.split(' ').next().is_some_and(|program| program.ends_with("/trialkeeper"))
    });
    let agent = agent.expect("the trial runs below an agent").0.as_raw();
    let minute = Duration::from_secs(20);
    let programs = [
        ("manager", manager.pid().as_raw(), "75 MB + dispatcher 141 MB", "0.71 s"),
        ("agent", agent, "about 148 MB", "0.006 s, no samples"),
    ];
    let before = programs.map(|(_, pid, ..)| cpu_ticks(pid));
    std::thread::park_timeout(minute);
    for ((name, pid, memory, cpu), before) in programs.into_iter().zip(before) {
        let used = f64::from(cpu_ticks(pid) - before) / 100.0 * 60.0 / minute.as_secs_f64();
        print_figure(
            &format!("{name}, idle, resident memory"),
            &format!("{:.1} MB", status_megabytes(pid, "VmRSS")),
            memory,
        );
        print_figure(
            &format!("{name}, idle, peak resident memory"),
            &format!("{:.1} MB", status_megabytes(pid, "VmHWM")),
            "",
        );
        print_figure(
            &format!("{name}, processor time in an idle minute"),
            &format!("{used:.2} s"),
            cpu,
        );
    }
    gate.release(1_000);
    Outcome::parse(manager.finish(WAIT_TIMEOUT)).expect_done(1, 0);
}

/// Returns a value of `/proc/PID/status` in MB.
fn status_megabytes(pid: i32, name: &str) -> f64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("the process runs");
    let line =
        status.lines().find(|line| line.starts_with(name)).expect("Linux reports this value");
    let kib: f64 = line
        .split_whitespace()
        .nth(1)
        .and_then(|text| text.parse().ok())
        .expect("the value is in KiB");
    kib * 1024.0 / 1e6
}

/// Returns the user and system time of a process so far, in ticks of 10 ms (`/proc/PID/stat`, fields 14 and
/// 15).
fn cpu_ticks(pid: i32) -> u32 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("the process runs");
    let after_name = stat.rsplit_once(')').expect("the name is in parentheses").1;
    let ticks = after_name.split_whitespace().skip(11).take(2);
    ticks.map(|text| text.parse::<u32>().expect("the text is a number")).sum()
}

/// Measures the time from a metric's print to its commit. A reader polls the store.
fn measure_latency() {
    let bed = TestBed::new();
    let gate = Gate::new(&bed.path("gate"));
    let manager = start_waiting_search(&bed, &gate);
    let store = open_store(&bed);
    wait_for_metrics(&store, 1);
    let mut times = Vec::new();
    for count in 2..=300 {
        let began = Instant::now();
        gate.release(1);
        wait_for_metrics(&store, count);
        times.push(began.elapsed().as_secs_f64() * 1e3);
    }
    let (middle, slow) = median_and_p95(&mut times);
    print_figure(
        "metric, printed to committed, median (95th percentile)",
        &format!("{middle:.1} ({slow:.1}) ms"),
        "about 990 ms (Kubernetes mode)",
    );
    gate.release(1_000);
    Outcome::parse(manager.finish(WAIT_TIMEOUT)).expect_done(1, 0);
}

/// The trial of [`measure_idle_use`] and [`measure_latency`]: prints a metric for every line of the gate, at most
/// a thousand.
fn print_metric_per_line(gate: &Path) {
    let lines = BufReader::new(fs::File::open(gate).expect("the gate exists")).lines();
    for (count, _) in lines.take(1_000).enumerate() {
        print_line(&format!("score={count}"));
    }
}
