//! The agent: starts a trial's command, watches it, and delivers every observation to the manager.
//!
//! This file composes the parts; it decides nothing. Whatever happens to observing, spooling or
//! delivering, the trial runs on: no error of ours reaches it.

pub mod channel;
pub mod clock;
pub mod collect;
pub mod deliver;
pub mod detect;
pub mod dialect;
pub mod errors;
pub mod http;
pub mod replay;
pub mod sample;
pub mod spool;
pub mod verdict;

use std::process::ExitCode;

/// Runs the program and returns its exit code: the trial's own, or 125 for a fault of ours.
pub fn main() -> ExitCode {
    ExitCode::from(125)
}
