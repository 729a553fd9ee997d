//! The real program around real processes.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod bed;
mod collecting;
mod doctor;
mod ends;
mod manager;
mod nni;
mod output;
mod places;
mod signals;
mod tools;
mod tree;
mod watching;
