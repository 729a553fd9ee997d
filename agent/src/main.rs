//! `trialkeeper` runs one trial as the first process of its pod and reports what it observes.

use std::process::ExitCode;

/// The C library's own, musl's, asks the kernel for every few pages anew and gives them back at once, which is a
/// third of what a short trial costs.
#[global_allocator]
static MEMORY: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

fn main() -> ExitCode {
    trialkeeper::main()
}
