//! `trial-manager` proposes parameters, runs the trials that try them, and keeps every result.

use std::process::ExitCode;

fn main() -> ExitCode {
    trial_manager::cli::main()
}
