//! Readings: GPU, process tree, control group.
//!
//! Every reader gives what it can read and `None` for the rest; none of them fails. They are called
//! between samples, seconds apart, and do short blocking reads of the kernel's files.

pub mod amd;
pub mod cgroup;
pub mod gpu;
pub mod process;
