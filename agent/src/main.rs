//! `trialkeeper` runs one trial as the first process of its pod and reports what it observes.

use std::process::ExitCode;

fn main() -> ExitCode {
    trialkeeper::main()
}
