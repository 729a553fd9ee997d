//! `backup` and `check`: an experiment's database beside a running manager, or without one.

use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use super::{BAD_INPUT, DONE, NOTHING_SUCCEEDED, fail};
use crate::layout::ExperimentDir;
use crate::store::Store;

/// Copies the database to `to`.
pub(super) fn backup(dir: &ExperimentDir, to: &Path) -> ExitCode {
    match Store::backup_file(&dir.database(), to) {
        Ok(()) => ExitCode::from(DONE),
        Err(error) => fail(&error, BAD_INPUT),
    }
}

/// Prints everything that is wrong with the database, a line each.
pub(super) fn check(dir: &ExperimentDir) -> ExitCode {
    match Store::check_file(&dir.database()) {
        Ok(wrong) if wrong.is_empty() => ExitCode::from(DONE),
        Ok(wrong) => {
            // A closed standard output changes nothing about the code.
            drop(writeln!(std::io::stdout().lock(), "{}", wrong.join("\n")));
            ExitCode::from(NOTHING_SUCCEEDED)
        }
        Err(error) => fail(&error, BAD_INPUT),
    }
}
