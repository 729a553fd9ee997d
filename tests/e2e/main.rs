//! End-to-end tests of the real programs. Each module covers one kind of behaviour or fault.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod cli;
mod kubernetes;
mod nni;
mod portal;
mod recovery;
mod search;
mod security;
mod services;
mod trial;
