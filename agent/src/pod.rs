//! The work of a pod before its trial starts: it fetches code and parameters, and waits for the trial's other pods.

pub mod code_base;
pub mod fetch;
pub mod peers;
pub mod rendezvous;
pub mod unpack;
