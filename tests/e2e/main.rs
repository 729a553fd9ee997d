//! End-to-end tests of the real programs, one module per story of a user or misfortune.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod bad_input;
mod crash;
mod examples;
mod failing;
mod interrupt;
mod output;
mod parameters;
mod sdk;
mod secure;
