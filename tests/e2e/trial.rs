//! One trial: its parameters, its output and its failures.

mod failures;
mod output;
mod parameters;
