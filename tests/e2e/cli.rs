//! The command line: help texts, error messages, tables, completions and terminal output.

mod bad_input;
mod completions;
mod directives;
mod doctor;
mod open;
mod progress;
mod relative_paths;
mod report;
mod snapshots;
mod top;
mod tutorial;
