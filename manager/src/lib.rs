//! The manager: scheduler, store, server and command line.
//!
//! Bottom up: `class_args, clock, job_state, nearest, search_space` -> `assessor, tuner` -> `config, token` -> `store, training_service` (neither knows
//! other) -> `experiment` -> `intake` -> `api` -> `app` -> `cli`. A module imports only from its left.

pub mod api;
pub mod assessor;
pub mod class_args;
pub mod clock;
pub mod config;
pub mod experiment;
pub mod intake;
pub mod job_state;
pub mod nearest;
pub mod search_space;
pub mod store;
pub mod token;
pub mod tuner;

use std::process::ExitCode;

/// Runs the program and returns its exit code.
pub fn main() -> ExitCode {
    ExitCode::from(2)
}
