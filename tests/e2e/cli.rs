//! The command line: every help, every mistake, tables, completions, and the terminal.

mod bad_input;
mod completions;
mod doctor;
mod open;
mod orders;
mod places;
mod snapshots;
mod top;
mod tutorial;
