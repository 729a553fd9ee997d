//! `trialkeeper` runs one trial as the first process of its pod and reports what it observes.

use std::process::ExitCode;

/// Musl's own allocator asks the kernel for every few pages anew and gives them back at once. That is a third of the
/// cost of a short trial.
#[global_allocator]
static MEMORY: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

fn main() -> ExitCode {
    trialkeeper::main()
}
