//! `backup`, `check` and `rm`: an experiment's database beside a running manager, or without one.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use trial_protocol::ExperimentId;

use super::ask::Error;
use super::{BAD_INPUT, DONE, NOTHING_SUCCEEDED, fail, show};
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

/// Removes an experiment that nobody runs.
pub(super) fn remove(id: &ExperimentId, given: Option<PathBuf>) -> u8 {
    let dir = super::data_dir_of(given, id);
    // Whoever opens it to write keeps managers away, and is kept away by one.
    let removed = Store::open(&dir.database()).map(drop);
    match removed {
        Ok(()) => match std::fs::remove_dir_all(dir.path()) {
            Ok(()) => DONE,
            Err(source) => {
                show(&Error::File { path: dir.path().to_owned(), source });
                NOTHING_SUCCEEDED
            }
        },
        Err(error) => {
            show(&error);
            BAD_INPUT
        }
    }
}
