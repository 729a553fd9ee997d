//! End-to-end tests of the real program with real processes.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod bed;
mod collecting;
mod directories;
mod doctor;
mod exit_codes;
mod failure_modes;
mod faults;
mod listen;
mod manager;
mod nni;
mod output;
mod pods;
mod signals;
mod terminal;
mod tools;
mod tree;
mod watching;
