//! End-to-end tests of the real program with real processes.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod directories;
mod doctor;
mod exit_codes;
mod failure_modes;
mod faults;
mod listen;
mod manager;
mod metric_collection;
mod nni;
mod observation;
mod output;
mod pods;
mod signals;
mod terminal;
mod test_agent;
mod tools;
mod tree;
