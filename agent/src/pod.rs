//! Work that a pod needs before its trial starts: it fetches code and parameters, and meets the trial's other pods.

pub mod code_base;
pub mod fetch;
pub mod peers;
pub mod rendezvous;
pub mod unpack;
