//! The agent: starts a trial's command, watches it, and delivers every observation to the manager.
//!
//! This file composes the parts; it decides nothing. If the agent fails to observe, spool or deliver, the trial
//! continues: no error of the agent reaches it.
//!
//! Bottom up: `util` -> `collect, spool` -> `http` -> `delivery` -> `pod` -> `cli` -> `trial` -> `verdict` -> `output`
//! -> `observe` -> `supervise` -> `commands` -> `run`. A module imports only from the modules to its left.

pub mod cli;
pub mod collect;
pub mod commands;
pub mod delivery;
pub mod http;
pub mod observe;
pub mod output;
pub mod pod;
pub mod run;
pub mod spool;
pub mod supervise;
pub mod trial;
pub mod util;
pub mod verdict;

use std::process::ExitCode;

use cli::Command;
use commands::{doctor, gpus, inspect, machine, replay, tools};
use run::fallback;
use trial::guard;
use trial::reexec::FALLBACK_FLAG;

/// Runs the program and returns its exit code: the trial's own, or 125 for a fault of the agent.
pub fn main() -> ExitCode {
    let words: Vec<_> = std::env::args_os().collect();
    if words.get(1).is_some_and(|word| word == FALLBACK_FLAG) {
        return fallback::main(&words[2..]);
    }
    if let Some(code) = guard::main(words.iter().skip(1).cloned()) {
        return code;
    }
    if words.get(1).is_some_and(|word| word == machine::MACHINE_SUBCOMMAND) {
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
