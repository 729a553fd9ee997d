//! The agent: starts a trial's command, watches it, and delivers every observation to the manager.
//!
//! This file composes the parts; it decides nothing. Whatever happens to observing, spooling or
//! delivering, the trial runs on: no error of ours reaches it.
//!
//! Bottom up: `clock, collect, detect, errors, legacy_cli, cli, http, last_bytes, log_lines, parameters, phase, reap,
//! sample, signals, spool, tree, verdict` -> `channel, dialect, environment, log, log_ship, run_dir, tail, tools` -> `book,
//! capture, deliver, gpus, inspect, trial` -> `doctor, output, replay, standalone` -> `metric_file, observe` -> `settings,
//! supervise` -> `run`. A module imports only from its left.

pub mod book;
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
pub mod gpus;
pub mod http;
pub mod inspect;
pub mod last_bytes;
pub mod legacy_cli;
pub mod log;
pub mod log_lines;
pub mod log_ship;
pub mod metric_file;
pub mod observe;
pub mod output;
pub mod parameters;
pub mod phase;
pub mod reap;
pub mod replay;
pub mod run;
pub mod run_dir;
pub mod sample;
pub mod settings;
pub mod signals;
pub mod spool;
pub mod standalone;
pub mod supervise;
pub mod tail;
pub mod tools;
pub mod tree;
pub mod trial;
pub mod verdict;

use std::process::ExitCode;

use cli::Command;

/// Runs the program and returns its exit code: the trial's own, or 125 for a fault of ours.
pub fn main() -> ExitCode {
    match cli::parse(std::env::args_os()) {
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
