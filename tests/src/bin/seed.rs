//! Creates the store of a large search without running it: `seed DATA_DIR EXPERIMENT TRIALS STEPS [SEED]`.
//! The same seed creates the same store. Use it to test pages and API with much data.

#![expect(clippy::print_stderr, reason = "a command-line program")]

use std::path::Path;
use std::process::ExitCode;

use trialkeeper_tests::seed;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let made = match arguments.as_slice() {
        [data, id, trials, steps, rest @ ..] => {
            let number = rest.first().map_or(Ok(1), |number| number.parse());
            match (trials.parse(), steps.parse(), number) {
                (Ok(trials), Ok(steps), Ok(number)) => {
                    seed::create_store(Path::new(data), id, trials, steps, number)
                }
                _ => Err("TRIALS, STEPS and SEED must be numbers".to_owned()),
            }
        }
        _ => Err("usage: seed DATA_DIR EXPERIMENT TRIALS STEPS [SEED]".to_owned()),
    };
    match made {
        Ok(path) => {
            eprintln!("made {}", path.display());
            ExitCode::SUCCESS
        }
        Err(problem) => {
            eprintln!("seed: {problem}");
            ExitCode::from(2)
        }
    }
}
