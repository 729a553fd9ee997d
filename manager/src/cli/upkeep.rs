//! `backup`, `check` and `experiment rm`: operations on an experiment's database that need no manager.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use trial_protocol::{ExperimentId, TrialJobId};

use super::selection::Error;
use super::{EXIT_BAD_INPUT, EXIT_DONE, EXIT_FAILED, fail, print_error};
use crate::app;
use crate::store::{self, Store};
use crate::util::files::{LockOutcome, try_lock};
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
        return fail(&error, EXIT_BAD_INPUT);
    }
    match store::backup(&dir.database(), to) {
        Ok(()) => ExitCode::from(EXIT_DONE),
        Err(error) => fail(&error, EXIT_BAD_INPUT),
    }
}

/// Prints each problem of the database on a line, and returns the exit code.
pub(super) fn check(dir: &ExperimentDir, id: &ExperimentId) -> ExitCode {
    if let Err(error) = check_exists(dir, id) {
        return fail(&error, EXIT_BAD_INPUT);
    }
    match store::check(&dir.database()) {
        Ok(wrong) if wrong.is_empty() => ExitCode::from(EXIT_DONE),
        Ok(wrong) => {
            // Ignored: standard output may be closed.
            drop(writeln!(io::stdout().lock(), "{}", wrong.join("\n")));
            ExitCode::from(EXIT_FAILED)
        }
        Err(error) => fail(&error, EXIT_BAD_INPUT),
    }
}

/// Removes an experiment without a manager, and returns the exit code.
pub(super) fn remove(id: &ExperimentId, given: Option<PathBuf>) -> u8 {
    let dir = super::experiment_dir(given, id);
    if !dir.path().exists() {
        // Ignored: usually, no earlier removal was killed.
        std::fs::rename(name_while_removed(dir.path()), dir.path()).ok();
    }
    // A folder without a database, whose manager died early, can also be removed.
    if !dir.path().exists()
        && let Err(error) = check_exists(&dir, id)
    {
        print_error(&error);
        return EXIT_BAD_INPUT;
    }
    // Opening the store fails while a manager runs. No manager can start until the folder is gone.
    let store = match Store::open(&dir.database()) {
        Ok(store) => store,
        Err(error) => {
            print_error(&error);
            return EXIT_BAD_INPUT;
        }
    };
    let running = running_trials(&dir);
    if !running.is_empty() {
        let trials: Vec<String> = running.iter().map(ToString::to_string).collect();
        print_error(&Error::TrialsRun(id.clone(), trials.join(", ")));
        return EXIT_BAD_INPUT;
    }
    let removed = remove_folder(dir.path(), |moved| std::fs::remove_dir_all(moved));
    drop(store);
    match removed {
        Ok(()) => EXIT_DONE,
        Err(source) => {
            print_error(&Error::ReadFile { path: dir.path().to_owned(), source });
            EXIT_FAILED
        }
    }
}

/// Returns the trials whose agents run on this machine: each holds the lock in the folder of its trial.
fn running_trials(dir: &ExperimentDir) -> Vec<TrialJobId> {
    let is_running =
        |id: &TrialJobId| matches!(try_lock(&dir.trial(id).agent_lock()), Ok(LockOutcome::Busy(_)));
    dir.trials().into_iter().filter(is_running).collect()
}

/// Returns the name of an experiment's folder during its removal. No experiment id contains a dot.
fn name_while_removed(folder: &Path) -> PathBuf {
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    folder.with_file_name(format!(".{name}.removed"))
}

/// Removes the folder of a locked experiment. The folder loses its name first, because `delete` also removes the lock
/// file, which no longer excludes a manager then. A folder that cannot be deleted gets its name back.
fn remove_folder(folder: &Path, delete: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
    let moved = name_while_removed(folder);
    if moved.exists() {
        // The removal of an earlier experiment with this id was killed.
        std::fs::remove_dir_all(&moved)?;
    }
    std::fs::rename(folder, &moved)?;
    // Ignored: the error of `delete` is the cause.
    delete(&moved).inspect_err(|_| drop(std::fs::rename(&moved, folder)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_manager_starts_while_an_experiment_is_removed() {
        let data = tempfile::tempdir().unwrap();
        let dir = ExperimentDir::new(data.path(), &ExperimentId::new("e").unwrap());
        std::fs::create_dir(dir.path()).unwrap();
        let store = Store::open(&dir.database()).unwrap();
        remove_folder(dir.path(), |moved| {
            assert!(Store::open(&dir.database()).is_err(), "the experiment has no folder");
            std::fs::remove_dir_all(moved)
        })
        .unwrap();
        drop(store);
        assert_eq!(std::fs::read_dir(data.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_killed_removal_is_completed() {
        let data = tempfile::tempdir().unwrap();
        let id = ExperimentId::new("e").unwrap();
        let (folder, moved) = (data.path().join("e"), data.path().join(".e.removed"));
        for left in [vec![&moved], vec![&moved, &folder]] {
            for path in left {
                std::fs::create_dir(path).unwrap();
                std::fs::write(path.join("file"), "").unwrap();
            }
            assert_eq!(remove(&id, Some(data.path().to_owned())), EXIT_DONE);
            assert_eq!(std::fs::read_dir(data.path()).unwrap().count(), 0);
        }
    }

    #[test]
    fn a_folder_that_cannot_be_deleted_keeps_its_name() {
        let data = tempfile::tempdir().unwrap();
        let folder = data.path().join("e");
        std::fs::create_dir(&folder).unwrap();
        let error = remove_folder(&folder, |_| Err(io::ErrorKind::PermissionDenied.into()));
        assert_eq!(error.unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        assert!(folder.is_dir());
    }
}
