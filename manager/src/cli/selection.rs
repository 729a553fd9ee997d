//! The selection of the experiment, and of the source of the answers: its manager if one runs, otherwise its store.

pub(super) mod complete;
pub(super) mod paging;
pub(super) mod trial_name;

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use serde_json::Value;
use trial_protocol::{ExperimentId, IdError};

use super::{data_dir, plain_text};
use crate::api::client::{self, Client};
use crate::app;
use crate::config;
use crate::store::{self, ExperimentRow, Store};
use crate::util::layout::ExperimentDir;
use crate::view;

/// The options that select an experiment and its manager.
#[derive(Debug, Clone, Args)]
pub(super) struct ExperimentArgs {
    /// Id of the experiment [default: the only running experiment, else the newest].
    #[arg(long, short, value_name = "ID", env = "TRIAL_MANAGER_EXPERIMENT")]
    pub(super) experiment: Option<ExperimentId>,
    /// Folder of all experiments [default: `trialkeeper` in the XDG data directory].
    #[arg(long, env = "TRIAL_MANAGER_DATA_DIR")]
    pub(super) data_dir: Option<PathBuf>,
    /// Base URL of a manager on another machine, such as `https://host:8080`.
    #[arg(long, value_name = "URL", env = "TRIAL_MANAGER_URL")]
    pub(super) manager: Option<String>,
    /// File with the user's token for --manager.
    #[arg(long, value_name = "FILE", env = "TRIAL_MANAGER_TOKEN_FILE")]
    pub(super) token_file: Option<PathBuf>,
    /// File with the certificate authority of --manager, in PEM format.
    #[arg(long, value_name = "FILE", env = "TRIAL_MANAGER_CA_FILE")]
    pub(super) ca_file: Option<PathBuf>,
}

/// The options that select an experiment, and the output format.
#[derive(Debug, Clone, Args)]
pub(super) struct OutputArgs {
    #[command(flatten)]
    pub(super) experiment_args: ExperimentArgs,
    /// Output format.
    #[arg(long, short, value_enum, default_value_t = Format::Table)]
    pub(super) output: Format,
}

impl OutputArgs {
    /// Returns the options for the experiment `named`, if any. It takes precedence over `--experiment`.
    #[must_use]
    pub(super) fn for_experiment(self, named: Option<ExperimentId>) -> Self {
        Self { experiment_args: self.experiment_args.for_experiment(named), ..self }
    }
}

/// An output format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    /// A table for people.
    Table,
    /// JSON with the fields of the REST API.
    Json,
    /// YAML with the fields of the REST API.
    Yaml,
}

/// The reason why a command failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    /// The data directory contains no experiment.
    #[error("there is no experiment in {}; choose another folder with --data-dir", .0.display())]
    NoExperiment(PathBuf),
    /// No server serves the experiment's pages.
    #[error(
        "no server is running for experiment {0}; `trial-manager serve --experiment {0}` shows its pages"
    )]
    NotServed(ExperimentId),
    /// Several experiments run, and the command names none of them.
    #[error("several experiments run: {0}; choose one with --experiment")]
    Several(String),
    /// A file cannot be read.
    #[error("cannot read {}", .path.display())]
    ReadFile {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// A file cannot be written.
    #[error("cannot write {}", .path.display())]
    WriteFile {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// The content of a file is not valid.
    #[error(transparent)]
    InvalidFile(#[from] config::Error),
    /// Standard output cannot be written.
    #[error("cannot write the answer to standard output")]
    Output(#[source] std::io::Error),
    /// The experiment has no manager that could change it.
    #[error("experiment {0} has no manager; run `trial-manager resume {0}`")]
    NotRunning(ExperimentId),
    /// The manager of the experiment runs, and does not answer.
    #[error(
        "the manager of experiment {0} does not answer, although it has the database open: is its process stopped or overloaded?"
    )]
    ManagerSilent(ExperimentId),
    /// Trials of the experiment run without a manager.
    #[error(
        "trials of experiment {0} still run: {1}; `trial-manager resume {0}` continues the search, and `trial-manager clean {0}` stops them"
    )]
    TrialsRun(ExperimentId, String),
    /// A parameter has several values.
    #[error("--set names the parameter `{}` twice; give it one value", plain_text::printable(.0))]
    SetTwice(String),
    /// The experiment is done and cannot be changed.
    #[error(
        "experiment {0} is DONE: there is nothing to stop or to change; `trial-manager resume {0} --max-trial-number N` continues it with a higher limit"
    )]
    Ended(ExperimentId),
    /// An id is not valid.
    #[error(transparent)]
    InvalidId(IdError),
    /// No trial has this number.
    #[error("there is no trial with the number {number}; there are {trials}, counted from 0")]
    NoNumber {
        /// The number.
        number: u64,
        /// The number of trials.
        trials: usize,
    },
    /// The store cannot be read.
    #[error(transparent)]
    Stored(#[from] app::Error),
    /// The manager requires the user's token.
    #[error(
        "the manager requires the user's token: pass the file user.token of the experiment's folder with --token-file"
    )]
    TokenRequired,
    /// The manager refused the request, or cannot be reached.
    #[error(transparent)]
    Client(client::Error),
}

impl From<client::Error> for Error {
    fn from(error: client::Error) -> Self {
        if matches!(error, client::Error::TokenRequired) {
            Self::TokenRequired
        } else {
            Self::Client(error)
        }
    }
}

impl Error {
    /// Returns `true` if the user can fix the error with other arguments or files.
    pub(super) fn is_usage(&self) -> bool {
        match self {
            Self::NoExperiment(_)
            | Self::Several(_)
            | Self::NotServed(_)
            | Self::ReadFile { .. }
            | Self::WriteFile { .. }
            | Self::InvalidFile(_)
            | Self::InvalidId(_)
            | Self::SetTwice(_)
            | Self::NoNumber { .. } => true,
            Self::Stored(error) => error.is_usage(),
            Self::Client(client::Error::Refused { status, .. }) => matches!(status, 400 | 404),
            Self::Client(_)
            | Self::TokenRequired
            | Self::Output(_)
            | Self::NotRunning(_)
            | Self::ManagerSilent(_)
            | Self::TrialsRun(..)
            | Self::Ended(_) => false,
        }
    }
}

/// An experiment on this machine.
pub(super) struct StoredExperiment {
    /// Its id.
    pub(super) id: ExperimentId,
    /// The row of its store, or the error when reading it.
    pub(super) row: Result<Option<ExperimentRow>, store::Error>,
}

impl StoredExperiment {
    /// Returns whether a manager runs the experiment.
    fn is_running(&self, data_dir: &Path) -> bool {
        let Ok(Some(row)) = &self.row else { return false };
        let open = Store::is_open_to_write(&ExperimentDir::new(data_dir, &self.id).database());
        row.ended_at_ms.is_none() && !view::is_interrupted(row.ended_at_ms, open)
    }
}

/// PURE: returns the only running experiment, or else the newest one. `all` has the newest last, each with whether it
/// runs.
fn choose(mut all: Vec<(bool, ExperimentId)>) -> Result<Option<ExperimentId>, Error> {
    let running: Vec<_> = all.iter().filter(|(runs, _)| *runs).map(|(_, id)| id).collect();
    match running.as_slice() {
        [only] => Ok(Some((*only).clone())),
        [] => Ok(all.pop().map(|(_, id)| id)),
        several => {
            let ids: Vec<_> = several.iter().map(ToString::to_string).collect();
            Err(Error::Several(ids.join(", ")))
        }
    }
}

/// Returns the experiments on this machine, the newest last.
pub(super) async fn experiments(data_dir: &Path) -> Vec<StoredExperiment> {
    let folders = std::fs::read_dir(data_dir).into_iter().flatten().flatten();
    // NNI's client creates a link `_latest` in this folder.
    let folders = folders.filter(|folder| folder.file_type().is_ok_and(|kind| !kind.is_symlink()));
    let ids = folders.filter_map(|folder| ExperimentId::new(folder.file_name().to_str()?).ok());
    let mut found = Vec::new();
    for id in ids {
        let database = ExperimentDir::new(data_dir, &id).database();
        // Opening a named pipe would block.
        if database.is_file() {
            let row = match Store::open_to_read(&database) {
                Ok(store) => store.experiment().row().await,
                Err(error) => Err(error),
            };
            found.push(StoredExperiment { id, row });
        }
    }
    let created = |found: &StoredExperiment| {
        let row = found.row.as_ref().ok().and_then(Option::as_ref);
        row.map_or(0, |row| row.created_at_ms)
    };
    found.sort_by_key(created);
    found
}

impl ExperimentArgs {
    /// Returns the options for the experiment `named`, if any. It takes precedence over `--experiment`.
    #[must_use]
    pub(super) fn for_experiment(self, named: Option<ExperimentId>) -> Self {
        Self { experiment: named.or(self.experiment), ..self }
    }

    /// Returns the id and the folder of the selected experiment.
    pub(super) async fn dir(&self) -> Result<(ExperimentId, ExperimentDir), Error> {
        let data_dir = data_dir(self.data_dir.clone());
        if let Some(id) = &self.experiment {
            let dir = ExperimentDir::new(&data_dir, id);
            if !dir.database().exists() {
                let id = id.clone();
                return Err(app::Error::NoSuchExperiment { id, data_dir }.into());
            }
            return Ok((id.clone(), dir));
        }
        let all = experiments(&data_dir).await.into_iter();
        let all = all.map(|found| (found.is_running(&data_dir), found.id)).collect();
        let id = choose(all)?.ok_or_else(|| Error::NoExperiment(data_dir.clone()))?;
        let dir = ExperimentDir::new(&data_dir, &id);
        Ok((id, dir))
    }

    /// Returns a client of the experiment's manager, which alone can change the experiment.
    pub(super) async fn manager(&self) -> Result<Client, Error> {
        let client = self.client().await?;
        if matches!(client, Client::Remote { .. }) {
            return Ok(client);
        }
        let shown = client.request_json("GET", "/api/v1/experiment", None).await?;
        let (id, dir) = self.dir().await?;
        if Store::is_open_to_write(&dir.database()) == Some(true) {
            return Err(Error::ManagerSilent(id));
        }
        let done = shown.get("state").and_then(Value::as_str) == Some("DONE");
        Err(if done { Error::Ended(id) } else { Error::NotRunning(id) })
    }

    /// Returns a client that answers for the experiment: from its manager if one runs, otherwise from its store.
    pub(super) async fn client(&self) -> Result<Client, Error> {
        let read = |path: &Path| {
            let text = std::fs::read_to_string(path);
            text.map_err(|source| Error::ReadFile { path: path.to_owned(), source })
        };
        if let Some(url) = &self.manager {
            let token = self.token_file.as_deref().map(read).transpose()?;
            let token = token.map(|token| token.trim().to_owned());
            let ca_pem = self.ca_file.as_deref().map(read).transpose()?;
            let url = url.trim_end_matches('/').to_owned();
            return Ok(Client::Remote { url, token, ca_pem, socket: None });
        }
        let (id, dir) = self.dir().await?;
        if let Some((manager_client, _)) = app::manager_of(&id, &dir).await {
            return Ok(manager_client);
        }
        Ok(app::stored_client(&id, &dir).await?)
    }

    /// Returns a client of the server that serves the experiment's pages, and the address of the pages.
    pub(super) async fn portal(&self) -> Result<(Client, String), Error> {
        if let Some(url) = &self.manager {
            return Ok((self.client().await?, url.trim_end_matches('/').to_owned()));
        }
        let (id, dir) = self.dir().await?;
        if let Some(found) = app::manager_of(&id, &dir).await {
            return Ok(found);
        }
        app::viewer_of(&id, &dir).await.ok_or(Error::NotServed(id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_only_running_experiment_is_chosen_or_else_the_newest() {
        #[rustfmt::skip]
        let table: [(&[(bool, &str)], &str); 5] = [
            (&[],                                                 "none"),
            (&[(false, "dead"), (false, "new")],                  "new"),
            (&[(true, "alive"), (false, "new")],                  "alive"),
            (&[(false, "dead"), (true, "alive"), (false, "new")], "alive"),
            (
                &[(true, "a"), (false, "dead"), (true, "b")],
                "several experiments run: a, b; choose one with --experiment",
            ),
        ];
        for (all, expected) in table {
            let ids = all.iter().map(|(runs, id)| (*runs, ExperimentId::new(*id).unwrap()));
            let chosen = match choose(ids.collect()) {
                Ok(id) => id.map_or_else(|| "none".to_owned(), |id| id.to_string()),
                Err(error) => error.to_string(),
            };
            assert_eq!(chosen, expected, "{all:?}");
        }
    }
}
