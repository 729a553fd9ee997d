//! Readings: GPU, process tree, control group.
//!
//! Every reader returns the values that it can read, and `None` for the others. No reader fails. The agent calls the
//! readers seconds apart; each makes short blocking reads of kernel files.

pub mod amd;
pub mod cgroup;
pub mod gpu;
pub mod process;
