//! End-to-end tests of the real program with real processes.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod bed;
mod collecting;
mod doctor;
mod ends;
mod faults;
mod listen;
mod manager;
mod nni;
mod output;
mod places;
mod pods;
mod signals;
mod terminal;
mod tools;
mod traps;
mod tree;
mod watching;
