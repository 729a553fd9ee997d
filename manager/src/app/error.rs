//! The reasons that an experiment could not be run, and whether the user can mend them.

use std::io;
use std::path::PathBuf;

use trial_protocol::{ExperimentId, IdError};

use super::{Finished, reach};
use crate::api;
use crate::code_archive;
use crate::config;
use crate::experiment::command::Refused;
use crate::search::tuner;
use crate::store;
use crate::token;
use crate::training_service::platform::BoxError;

/// The reason that an experiment could not be run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The experiment's configuration, as stored.
    #[error("the stored configuration of the experiment is not valid")]
    Config(#[from] config::Error),
    /// The arguments of the tuner or the assessor.
    #[error("the tuner or the assessor cannot be made")]
    Arguments(#[from] tuner::Error),
    /// An id that cannot be one.
    #[error(transparent)]
    Id(#[from] IdError),
    /// There is no such experiment.
    #[error(
        "there is no experiment {id} under {}; --data-dir looks elsewhere",
        .data_dir.display()
    )]
    NoSuchExperiment {
        /// The id.
        id: ExperimentId,
        /// Where.
        data_dir: PathBuf,
    },
    /// The id of a new experiment has a folder already.
    #[error(
        "there is an experiment {id} already, in {}: `trial-manager resume {id}` goes on with it; for a new one take \
         another --id, or remove that folder",
        .folder.display()
    )]
    IdTaken {
        /// The id.
        id: ExperimentId,
        /// Its folder.
        folder: PathBuf,
    },
    /// The experiment's folder is there, and its database says nothing.
    #[error(
        "the record of experiment {id} is lost: {} holds no experiment, as it does when trialkeeper.db-wal was removed or \
         left behind; put that file back, or a backup in the place of trialkeeper.db. What the trials printed is in their \
         folders beside it",
        .database.display()
    )]
    RecordLost {
        /// The id.
        id: ExperimentId,
        /// Its database.
        database: PathBuf,
    },
    /// Nothing is left to do but to show the results.
    #[error("experiment {} is done; there is nothing to resume", .finished.id)]
    AlreadyDone {
        /// Where its results are.
        finished: Box<Finished>,
    },
    /// A folder or file under the data directory.
    #[error("cannot write {}; {}", .path.display(), data_dir_hint(.source.kind()))]
    DataDir {
        /// The path.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// Another process serves it already.
    #[error(
        "{what} is served already, on {url}; open that, or end the other `trial-manager serve` first"
    )]
    AlreadyServed {
        /// The experiment or the home.
        what: String,
        /// Its address.
        url: String,
    },
    /// The address.
    #[error("cannot listen on {host}:{port}{}", hint(.source.kind()))]
    Listen {
        /// The address.
        host: String,
        /// The port.
        port: u16,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The training service cannot run trials.
    #[error(transparent)]
    Platform(#[from] BoxError),
    /// The address for trials on other machines.
    #[error(transparent)]
    Advertise(#[from] reach::BadAddress),
    /// The certificate for encrypted connections.
    #[error("connections from other machines cannot be encrypted")]
    Tls(#[from] api::tls::Error),
    /// The code for trials elsewhere.
    #[error("the trials' code cannot be packed")]
    Code(#[from] code_archive::Error),
    /// The trial tokens' secret, or the user's token.
    #[error("cannot make the experiment's tokens")]
    Secret(#[from] token::Error),
    /// The store.
    #[error("the experiment's store failed")]
    Store(#[from] store::Error),
    /// The request cannot be done as things stand.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// The experiment was to stop, and a disk failed: nothing could be recorded, so nothing was stopped.
    #[error(
        "the experiment was left as it is, since nothing could be recorded; trials that run go on, and \
         `trial-manager resume {id}` takes them over"
    )]
    Left {
        /// The id.
        id: ExperimentId,
        /// The write that failed.
        #[source]
        source: store::Error,
    },
    /// The experiment was to end, and its database is gone: there is nothing to go on with.
    #[error(
        "the experiment has ended without its database; `trial-manager resume {id}` goes on once a backup lies in its \
         place, and what trials printed since is in their own folders, if those are left"
    )]
    Displaced {
        /// The id.
        id: ExperimentId,
        /// Where the database was.
        #[source]
        source: store::Error,
    },
    /// A part of the manager came to an unexpected end.
    #[error("a part of the manager ended unexpectedly; `resume` goes on with the experiment")]
    Lost,
}

impl Error {
    /// Returns whether the user can mend it by giving other input, as opposed to a fault while running.
    pub fn is_usage(&self) -> bool {
        match self {
            Self::Config(_)
            | Self::Arguments(_)
            | Self::Id(_)
            | Self::NoSuchExperiment { .. }
            | Self::IdTaken { .. }
            | Self::RecordLost { .. }
            | Self::AlreadyDone { .. }
            | Self::DataDir { .. }
            | Self::AlreadyServed { .. }
            | Self::Listen { .. }
            | Self::Platform(_)
            | Self::Advertise(_)
            | Self::Tls(_)
            | Self::Code(_)
            | Self::Secret(_) => true,
            Self::Store(error) | Self::Refused(Refused::Store(error)) => matches!(
                error,
                store::Error::Open { .. }
                    | store::Error::InUse { .. }
                    | store::Error::NotOurs { .. }
                    | store::Error::Newer { .. }
            ),
            Self::Refused(refused) => matches!(refused, Refused::UnknownTrial(_)),
            Self::Left { .. } | Self::Displaced { .. } | Self::Lost => false,
        }
    }
}

/// Returns what helps against a folder that cannot be written. An experiment that exists cannot move to another one.
fn data_dir_hint(kind: io::ErrorKind) -> &'static str {
    if matches!(kind, io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) {
        "no space is left there: free some, and try again"
    } else {
        "choose a writable folder with --data-dir"
    }
}

/// Returns the remedy for an address that cannot be listened on.
fn hint(kind: io::ErrorKind) -> &'static str {
    if kind == io::ErrorKind::AddrNotAvailable {
        "; --host is to be an address of this machine"
    } else {
        "; --port 0 picks a free port"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_not_answered_with_another_folder() {
        for (kind, advice) in [
            (io::ErrorKind::StorageFull, "free some"),
            (io::ErrorKind::QuotaExceeded, "free some"),
            (io::ErrorKind::PermissionDenied, "--data-dir"),
            (io::ErrorKind::ReadOnlyFilesystem, "--data-dir"),
        ] {
            let error = Error::DataDir { path: PathBuf::from("/d/netrc"), source: kind.into() };
            assert!(error.to_string().contains(advice), "{error}");
        }
    }
}
