//! `suggest`: a built-in tuner as a program with the protocol of `docs/ask-and-tell.md`.

use std::io::{self, BufRead as _, Write as _};
use std::process::ExitCode;

use serde_json::Value;

use super::{EXIT_BAD_INPUT, EXIT_DONE, EXIT_FAILED, fail};
use crate::search::suggester::{self, Suggester};

/// The reason why the command failed.
#[derive(Debug, thiserror::Error)]
enum Error {
    /// A line is not JSON.
    #[error("line {number} is not JSON")]
    Line {
        /// The number of the line, from 1.
        number: usize,
        /// The problem.
        #[source]
        source: serde_json::Error,
    },
    /// A message is not valid.
    #[error("line {number}")]
    Message {
        /// The number of the line, from 1.
        number: usize,
        /// The problem.
        #[source]
        source: suggester::Error,
    },
    /// Standard input cannot be read.
    #[error("cannot read standard input")]
    Input(#[source] io::Error),
}

/// Answers the messages on standard input until it is closed or an `end` message arrives, and returns the exit code.
pub(super) fn suggest(tuner: &str) -> ExitCode {
    match converse(tuner) {
        Ok(()) => ExitCode::from(EXIT_DONE),
        Err(error @ Error::Input(_)) => fail(&error, EXIT_FAILED),
        Err(error) => fail(&error, EXIT_BAD_INPUT),
    }
}

fn converse(tuner: &str) -> Result<(), Error> {
    let mut suggester = Suggester::new(tuner);
    let (input, mut output) = (io::stdin().lock(), io::stdout().lock());
    for (index, line) in input.lines().enumerate() {
        let (number, line) = (index + 1, line.map_err(Error::Input)?);
        if line.trim().is_empty() {
            continue;
        }
        let message: Value =
            serde_json::from_str(&line).map_err(|source| Error::Line { number, source })?;
        if message.get("type").and_then(Value::as_str) == Some("end") {
            return Ok(());
        }
        let answer = suggester.handle_message(&message);
        let answer = answer.map_err(|source| Error::Message { number, source })?;
        if let Some(answer) = answer
            && writeln!(output, "{answer}").and_then(|()| output.flush()).is_err()
        {
            return Ok(()); // The reader has exited.
        }
    }
    Ok(())
}
