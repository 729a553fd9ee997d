//! Readings: GPU, process tree, control group.
