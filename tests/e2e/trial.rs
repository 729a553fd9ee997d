//! One trial: how it learns its parameters, what it prints, and how it fails.

mod failing;
mod output;
mod parameters;
