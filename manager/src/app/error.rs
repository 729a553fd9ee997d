//! The reasons for which an experiment cannot run, and whether the user can correct them.

use std::io;
use std::path::PathBuf;

use trial_protocol::{ExperimentId, IdError};

use super::{FinishedExperiment, ReachedLimit, advertised_address};
use crate::api;
use crate::code_archive;
use crate::config;
use crate::experiment::command::CommandError;
use crate::search::tuner;
use crate::store;
use crate::token;
use crate::training_service::platform::BoxError;

/// The reason for which an experiment cannot run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The stored configuration of the experiment is invalid.
    #[error("the stored configuration of the experiment is not valid")]
    Config(#[from] config::Error),
    /// The arguments of the tuner or the assessor are invalid.
    #[error("cannot create the tuner or the assessor")]
    Arguments(#[from] tuner::Error),
    /// The id is invalid.
    #[error(transparent)]
    Id(#[from] IdError),
    /// The experiment does not exist.
    #[error(
        "there is no experiment {id} in {}; `trial-manager experiment ls` lists the experiments there, and --data-dir \
         chooses another folder",
        .data_dir.display()
    )]
    NoSuchExperiment {
        /// The id.
        id: ExperimentId,
        /// The data directory.
        data_dir: PathBuf,
    },
    /// The folder of the new experiment already exists.
    #[error(
        "experiment {id} already exists in {}: continue it with `trial-manager resume {id}`; for a new one, choose \
         another --id, or remove that folder",
        .folder.display()
    )]
    IdTaken {
        /// The id.
        id: ExperimentId,
        /// The folder of the experiment.
        folder: PathBuf,
    },
    /// The experiment's folder exists, but its database is empty.
    #[error(
        "the record of experiment {id} is lost: {} contains no experiment. This happens if trialkeeper.db-wal was removed or \
         left behind. Restore that file, or replace trialkeeper.db by a backup. The output of the trials is in their \
         folders beside it",
        .database.display()
    )]
    RecordLost {
        /// The id.
        id: ExperimentId,
        /// The experiment's database.
        database: PathBuf,
    },
    /// The experiment is done, and only its results can be shown.
    #[error("experiment {} is done; there is nothing to resume", .finished.id)]
    AlreadyDone {
        /// The experiment with its results.
        finished: Box<FinishedExperiment>,
    },
    /// The experiment is done, and its new limits leave no room for another trial.
    #[error(
        "experiment {id} is done and does not continue under these limits: {}",
        ReachedLimit::describe(reached)
    )]
    NoRoom {
        /// The id.
        id: ExperimentId,
        /// The limits.
        reached: Vec<ReachedLimit>,
    },
    /// A file or folder of the data directory cannot be written.
    #[error("cannot write {}; {}", .path.display(), data_dir_remedy(.source.kind()))]
    DataDir {
        /// The path.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// Another manager runs the experiment.
    #[error(
        "experiment {id} already runs on {url}{}; open that address, or stop it with `trial-manager experiment stop {id}`",
        describe_process(*.pid)
    )]
    AlreadyRuns {
        /// The id.
        id: ExperimentId,
        /// The address of its manager.
        url: String,
        /// The process id of its manager. `None` if it is unknown.
        pid: Option<i32>,
    },
    /// Another process already serves the experiment or the home.
    #[error(
        "{what} is already served on {url}; open that address, or stop the other `trial-manager serve` first"
    )]
    AlreadyServed {
        /// The experiment or the home.
        what: String,
        /// The address of the other server.
        url: String,
    },
    /// The manager cannot listen on the address.
    #[error("cannot listen on {host}:{port}: {cause}; {}", listen_remedy(.cause.kind()))]
    Listen {
        /// The address.
        host: String,
        /// The port.
        port: u16,
        /// The cause. It is part of the text, because the remedy follows it.
        cause: io::Error,
    },
    /// The training service cannot run trials.
    #[error(transparent)]
    Platform(#[from] BoxError),
    /// The address for trials on other machines is invalid or unknown.
    #[error(transparent)]
    Advertise(#[from] advertised_address::BadAddress),
    /// The certificate for encrypted connections cannot be used.
    #[error("connections from other machines cannot be encrypted")]
    Tls(#[from] api::server::tls::Error),
    /// The code for trials on other machines cannot be packed.
    #[error("the trials' code cannot be packed")]
    Code(#[from] code_archive::Error),
    /// The secret for the trials' tokens, or the user's token, cannot be created.
    #[error("cannot create the experiment's tokens")]
    Secret(#[from] token::Error),
    /// The store failed.
    #[error("the experiment's store failed")]
    Store(#[from] store::Error),
    /// The request is not possible in the present state.
    #[error(transparent)]
    Refused(#[from] CommandError),
    /// The experiment should stop, but the database could not be written, so nothing was stopped.
    #[error(
        "the experiment was not stopped, because its database cannot be written; running trials continue, and \
         `trial-manager resume {id}` adopts them"
    )]
    NotStopped {
        /// The id.
        id: ExperimentId,
        /// The write that failed.
        #[source]
        source: store::Error,
    },
    /// The database is missing, so the experiment cannot continue.
    #[error(
        "the experiment has ended because its database is missing; restore a backup and run `trial-manager resume \
         {id}`; the later output of the trials is in their folders, if those still exist"
    )]
    DatabaseMissing {
        /// The id.
        id: ExperimentId,
        /// The store's error, which contains the path of the database.
        #[source]
        source: store::Error,
    },
    /// A part of the manager ended unexpectedly.
    #[error(
        "a part of the manager ended unexpectedly; `trial-manager resume` continues the experiment"
    )]
    TaskFailed,
}

impl Error {
    /// Returns whether the user can correct the error by changing the input. Otherwise it is a failure at run time.
    pub fn is_usage(&self) -> bool {
        match self {
            Self::Config(_)
            | Self::Arguments(_)
            | Self::Id(_)
            | Self::NoSuchExperiment { .. }
            | Self::IdTaken { .. }
            | Self::RecordLost { .. }
            | Self::AlreadyDone { .. }
            | Self::NoRoom { .. }
            | Self::DataDir { .. }
            | Self::AlreadyRuns { .. }
            | Self::AlreadyServed { .. }
            | Self::Listen { .. }
            | Self::Platform(_)
            | Self::Advertise(_)
            | Self::Tls(_)
            | Self::Code(_)
            | Self::Secret(_) => true,
            Self::Store(error) | Self::Refused(CommandError::Store(error)) => matches!(
                error,
                store::Error::Open { .. }
                    | store::Error::InUse { .. }
                    | store::Error::ForeignDatabase { .. }
                    | store::Error::NewerSchema { .. }
            ),
            Self::Refused(refused) => matches!(
                refused,
                CommandError::UnknownTrial(_)
                    | CommandError::ZeroLimit(_)
                    | CommandError::InvalidValue(_)
            ),
            Self::NotStopped { .. } | Self::DatabaseMissing { .. } | Self::TaskFailed => false,
        }
    }
}

fn describe_process(pid: Option<i32>) -> String {
    pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default()
}

/// Returns the remedy for a folder that cannot be written. An existing experiment cannot move to another folder.
fn data_dir_remedy(kind: io::ErrorKind) -> &'static str {
    if matches!(kind, io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) {
        "no space is left there: free some space and try again"
    } else {
        "choose a writable folder with --data-dir"
    }
}

/// Returns the remedy for an address on which the manager cannot listen.
fn listen_remedy(kind: io::ErrorKind) -> &'static str {
    if matches!(kind, io::ErrorKind::AddrInUse | io::ErrorKind::PermissionDenied) {
        "--port 0 picks a free port"
    } else {
        "--host must be an address of this machine"
    }
}

#[cfg(test)]
mod tests {
    use crate::util::errors::error_chain;

    use super::*;

    #[test]
    fn the_remedy_for_an_unusable_address_names_the_flag_that_is_wrong() {
        for (kind, flag) in [
            (io::ErrorKind::AddrInUse, "--port"),
            (io::ErrorKind::PermissionDenied, "--port"),
            (io::ErrorKind::AddrNotAvailable, "--host"),
            // The resolver's errors have no kind of their own.
            (io::Error::other("failed to lookup address information").kind(), "--host"),
        ] {
            let error = Error::Listen { host: "h".to_owned(), port: 1, cause: kind.into() };
            let text = error_chain(&error);
            let expected = format!("cannot listen on h:1: {}; {flag} ", io::Error::from(kind));
            assert!(text.starts_with(&expected) && text.matches(": ").count() == 1, "{text}");
        }
    }

    #[test]
    fn an_experiment_that_already_runs_is_named_with_its_address() {
        for (pid, expected) in [
            (Some(123), "experiment e already runs on http://127.0.0.1:8080 (pid 123); open"),
            (None, "experiment e already runs on http://127.0.0.1:8080; open that address"),
        ] {
            let id = ExperimentId::new("e").unwrap();
            let error = Error::AlreadyRuns { id, url: "http://127.0.0.1:8080".to_owned(), pid };
            assert!(error.to_string().starts_with(expected), "{error}");
            assert!(error.to_string().contains("`trial-manager experiment stop e`"), "{error}");
        }
    }

    #[test]
    fn the_remedy_for_a_full_disk_is_not_another_folder() {
        for (kind, advice) in [
            (io::ErrorKind::StorageFull, "free some space"),
            (io::ErrorKind::QuotaExceeded, "free some space"),
            (io::ErrorKind::PermissionDenied, "--data-dir"),
            (io::ErrorKind::ReadOnlyFilesystem, "--data-dir"),
        ] {
            let error = Error::DataDir { path: PathBuf::from("/d/netrc"), source: kind.into() };
            assert!(error.to_string().contains(advice), "{error}");
        }
    }
}
