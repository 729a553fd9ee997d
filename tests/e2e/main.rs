//! End-to-end tests of the real programs.
fn main() {}
