//! The dependency rules of `ARCHITECTURE.md`, as tests.
fn main() {}
