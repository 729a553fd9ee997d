//! `trialkeeper` runs one trial as the first process of its pod and reports what it observes.

use std::process::ExitCode;

/// The global allocator. Musl's own one requests a few pages at a time from the kernel and returns them at once, which
/// is a third of the cost of a short trial.
#[global_allocator]
static ALLOCATOR: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

fn main() -> ExitCode {
    trialkeeper::main()
}
