//! One trial: its parameters, its output and its failures.

mod failing;
mod output;
mod parameters;
