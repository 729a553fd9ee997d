//! `cargo run -p trialkeeper-tests --bin faults -- --seeds 1..1000` runs each seed and prints the failed
//! ones. A single seed (`--seeds 17`) repeats its run, as far as the machine's timing allows.
//! Some seeds mount a small disk, which needs root.

use std::process::ExitCode;
use std::time::Instant;

use trialkeeper_tests::faults::{self, FaultCounts, cases};

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let seeds = match words[..] {
        ["--seeds", text] => parse_seeds(text),
        ["--restart", trials] => {
            let Ok(trials) = trials.parse() else { return print_usage() };
            let cases::RestartTimes { back_after, caught_up_after } = cases::check_restart(trials);
            print_line(&format!(
                "a manager killed with {trials} running trials: 0 started again, 0 metrics lost; the first metric was \
                 stored {back_after:.1?} after the kill, the last that had waited {caught_up_after:.1?} after `resume`"
            ));
            return ExitCode::SUCCESS;
        }
        _ => None,
    };
    let Some((first, last)) = seeds else { return print_usage() };
    let began = Instant::now();
    let mut seen = FaultCounts::default();
    let mut failed = Vec::new();
    for seed in first..=last {
        match std::panic::catch_unwind(|| faults::run_seed(seed)) {
            Ok(one) => seen.add(&one),
            Err(_) => {
                print_line(&format!("seed {seed} FAILED"));
                failed.push(seed);
            }
        }
        if seed % 50 == 0 {
            let seconds = began.elapsed().as_secs();
            print_line(&format!("up to seed {seed}: {} failed, {seconds} s", failed.len()));
        }
    }
    let [managers, agents, clocks] = seen.actions;
    print_line(&format!(
        "{} seeds in {} s: {} requests passed, {} were compressed; {managers} managers and {agents} agents killed, {clocks} clocks set",
        last - first + 1,
        began.elapsed().as_secs(),
        seen.passed,
        seen.compressed,
    ));
    for (fault, count) in &seen.faults {
        print_line(&format!("{count:>8} {fault:?}"));
    }
    if failed.is_empty() {
        print_line("every seed: the store holds exactly what the trials printed");
        ExitCode::SUCCESS
    } else {
        print_line(&format!("failed: {failed:?}"));
        ExitCode::FAILURE
    }
}

fn print_usage() -> ExitCode {
    print_line(
        "usage: faults --seeds FIRST..LAST (both included) | --seeds ONE | --restart TRIALS",
    );
    ExitCode::from(2)
}

/// Parses `1..1000`, both included, or one number.
fn parse_seeds(text: &str) -> Option<(u64, u64)> {
    let (first, last) = text.split_once("..").unwrap_or((text, text));
    Some((first.parse().ok()?, last.parse().ok()?)).filter(|(first, last)| first <= last)
}

#[expect(clippy::print_stdout, reason = "the result of this program is its output")]
fn print_line(line: &str) {
    println!("{line}");
}
