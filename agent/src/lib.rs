//! The agent: starts a trial's command, watches it, and delivers every observation to the manager.
//!
//! This file composes the parts; it decides nothing. Whatever happens to observing, spooling or
//! delivering, the trial runs on: no error of ours reaches it.
//!
//! Bottom up: `clock, collect, detect, errors, faults, gunzip, gzip, legacy_cli, peers, cli, http, last_bytes, log_lines,
//! machine, parameters, phase, prometheus, reap, rules, sample, serve, signals, spool, tar, tree, verdict` -> `channel, dialect,
//! guard, listen, log, log_ship, run_dir, tail, terminal, tools, unpack` -> `recorder, capture, deliver, environment,
//! gpus, inspect, trial` -> `doctor, fetch, output, rendezvous, replay, standalone` -> `metric_file, observe` ->
//! `settings, supervise` -> `hold, run`. A module imports only from its left.

pub mod capture;
pub mod channel;
pub mod cli;
pub mod clock;
pub mod collect;
pub mod deliver;
pub mod detect;
pub mod dialect;
pub mod doctor;
pub mod environment;
pub mod errors;
pub mod faults;
pub mod fetch;
pub mod gpus;
pub mod guard;
pub mod gunzip;
pub mod gzip;
pub mod hold;
pub mod http;
pub mod inspect;
pub mod last_bytes;
pub mod legacy_cli;
pub mod listen;
pub mod log;
pub mod log_lines;
pub mod log_ship;
pub mod machine;
pub mod metric_file;
pub mod observe;
pub mod output;
pub mod parameters;
pub mod peers;
pub mod phase;
pub mod prometheus;
pub mod reap;
pub mod recorder;
pub mod rendezvous;
pub mod replay;
pub mod rules;
pub mod run;
pub mod run_dir;
pub mod sample;
pub mod serve;
pub mod settings;
pub mod signals;
pub mod spool;
pub mod standalone;
pub mod supervise;
pub mod tail;
pub mod tar;
pub mod terminal;
pub mod tools;
pub mod tree;
pub mod trial;
pub mod unpack;
pub mod verdict;

use std::process::ExitCode;

use cli::Command;
use trial::hand_over::HOLD;

/// Runs the program and returns its exit code: the trial's own, or 125 for a fault of ours.
pub fn main() -> ExitCode {
    let words: Vec<_> = std::env::args_os().collect();
    if words.get(1).is_some_and(|word| word == HOLD) {
        return hold::main(&words[2..]);
    }
    if let Some(code) = guard::main(words.iter().skip(1).cloned()) {
        return code;
    }
    if words.get(1).is_some_and(|word| word == machine::WORD) {
        return machine::main(&words[2..]);
    }
    match cli::parse(words) {
        Ok(cli) => match cli.command {
            Command::Run(args) => run::run(&args),
            Command::Replay(args) => replay::main(args),
            Command::Inspect { dir, output } => inspect::inspect(&dir, output),
            Command::Doctor(args) => doctor::main(args),
            Command::Gpu { gpu_program, output } => gpus::main(&gpu_program, output),
            Command::Install { dir } => tools::install(&dir),
            Command::Completions { shell } => tools::completions(shell),
            Command::Version { output } => tools::version(output),
        },
        Err(code) => code,
    }
}
