//! The command line: help texts, error messages, tables, completions and terminal output.

mod bad_input;
mod completions;
mod doctor;
mod open;
mod orders;
mod places;
mod snapshots;
mod top;
mod tutorial;
