//! `backup`, `check` and `experiment rm`: operations on an experiment's database that need no manager.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use trial_protocol::ExperimentId;

use super::ask::Error;
use super::{BAD_INPUT, DONE, NOTHING_SUCCEEDED, fail, print_error};
use crate::app;
use crate::store::Store;
use crate::util::layout::ExperimentDir;

/// Checks that the experiment exists. Without this check, the error would be SQLite's, for a missing file.
fn check_exists(dir: &ExperimentDir, id: &ExperimentId) -> Result<(), app::Error> {
    if dir.database().exists() {
        return Ok(());
    }
    let data_dir = dir.path().parent().map(PathBuf::from).unwrap_or_default();
    Err(app::Error::NoSuchExperiment { id: id.clone(), data_dir })
}

/// Copies the database to `to` and returns the exit code.
pub(super) fn backup(dir: &ExperimentDir, id: &ExperimentId, to: &Path) -> ExitCode {
    if let Err(error) = check_exists(dir, id) {
        return fail(&error, BAD_INPUT);
    }
    match Store::backup_file(&dir.database(), to) {
        Ok(()) => ExitCode::from(DONE),
        Err(error) => fail(&error, BAD_INPUT),
    }
}

/// Prints each problem of the database on a line, and returns the exit code.
pub(super) fn check(dir: &ExperimentDir, id: &ExperimentId) -> ExitCode {
    if let Err(error) = check_exists(dir, id) {
        return fail(&error, BAD_INPUT);
    }
    match Store::check_file(&dir.database()) {
        Ok(wrong) if wrong.is_empty() => ExitCode::from(DONE),
        Ok(wrong) => {
            // Ignored: standard output may be closed.
            drop(writeln!(std::io::stdout().lock(), "{}", wrong.join("\n")));
            ExitCode::from(NOTHING_SUCCEEDED)
        }
        Err(error) => fail(&error, BAD_INPUT),
    }
}

/// Removes an experiment without a manager, and returns the exit code.
pub(super) fn remove(id: &ExperimentId, given: Option<PathBuf>) -> u8 {
    let dir = super::data_dir_of(given, id);
    // A folder without a database, whose manager died early, can also be removed.
    if !dir.path().exists()
        && let Err(error) = check_exists(&dir, id)
    {
        print_error(&error);
        return BAD_INPUT;
    }
    // Opening the store fails while a manager runs.
    let removed = Store::open(&dir.database()).map(drop);
    match removed {
        Ok(()) => match std::fs::remove_dir_all(dir.path()) {
            Ok(()) => DONE,
            Err(source) => {
                print_error(&Error::File { path: dir.path().to_owned(), source });
                NOTHING_SUCCEEDED
            }
        },
        Err(error) => {
            print_error(&error);
            BAD_INPUT
        }
    }
}
